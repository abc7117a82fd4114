"""The problems of bookies that are lost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from quire.http.views.problems.cluster import problems
from quire.http.views.problems.lost_bookies import ALONE, lost_groups
from quire.http.views.problems.problem import Problem
from quire.metadata.bookies.start_commands import StartCommand
from quire.net.port_probe import ProbeResult
from quire.replication.explain.at_risk import AtRisk
from tests.support.http.problems import WELL, bookie, said


def test_a_lost_bookie_is_a_problem_with_its_recovery_command() -> None:
    lost = [bookie("a"), bookie("b", "gone")]
    assert said(lost) == [("bad", "b is gone: stopped, or cut off from the metadata store")]
    (one,) = problems(lost, WELL)
    assert "quire bookie recover b" in one.next
    (one,) = problems(lost, WELL, AtRisk(ledgers=7, whole=True, by_group={ALONE: 1}))
    assert (one.severity, "quire bookie recover b" in one.next) == ("bad", True)
    (one,) = problems(lost, WELL, AtRisk(ledgers=7, whole=True, by_group={ALONE: 0}))
    assert one.severity == "note", "its ledgers were copied"
    assert "quire bookie decommission b" in one.next
    assert "recover" not in one.next
    many = [bookie("z"), *(bookie(f"b{n}", "gone") for n in range(9))]
    ((_, what),) = said(many)
    assert what.startswith("b0, b1, b2, b3, b4 and 4 more are gone")


def test_the_id_of_a_lost_bookie_is_quoted_in_commands() -> None:
    """Bookie ids may have characters that mean something to a shell, as those of Apache."""
    (one,) = problems([bookie("a"), bookie("b;reboot", "gone")], WELL)
    assert "quire bookie recover 'b;reboot'. " in one.next
    assert one.next.endswith("quire bookie decommission 'b;reboot'")


def test_a_lost_rack_is_one_problem() -> None:
    bookies = [bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", "gone", "/r2")]
    assert said(bookies) == [("bad", "All bookies of /r2 are gone: b, c")]
    half = [bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", rack="/r2")]
    ((_, what),) = said(half)
    assert what.startswith("b is gone")


def test_a_cluster_without_writable_bookies_is_a_problem() -> None:
    first = said([bookie("a", "gone")])[0]
    assert first == ("bad", "No bookie accepts entries: nothing can be written")


def test_the_command_that_starts_a_lost_bookie_again_is_complete() -> None:
    """A bookie of `quire local` that was restarted without its port once had another address."""
    one = {**bookie("10.0.0.1:29059", "gone"), "directories": ["/data/bookie-1", "/my disk"]}
    (found,) = [found for found in problems([bookie("z"), one], WELL) if "10.0.0.1" in found.what]
    assert found.next == (
        "Start it again, with the options that it had: quire bookie start --dir /data/bookie-1 "
        "--dir '/my disk' --port 29059. If it is lost for good: quire bookie recover "
        "10.0.0.1:29059. When its ledgers are copied, to remove it: quire bookie "
        "decommission 10.0.0.1:29059"
    )
    two = [{**bookie(f"10.0.0.{n}:3181", "gone"), "directories": [f"/d{n}"]} for n in (1, 2)]
    (found,) = [found for found in problems([bookie("z"), *two], WELL) if "10.0.0.1" in found.what]
    assert found.next == (
        "Start each of them again. On the machine of 10.0.0.1:3181, with the options that it had: "
        "quire bookie start --dir /d1. On the machine of 10.0.0.2:3181, with the options that it "
        "had: quire bookie start --dir /d2. If one is lost for good, have its ledgers copied. For "
        "10.0.0.1:3181: quire bookie recover 10.0.0.1:3181. For 10.0.0.2:3181: quire bookie "
        "recover 10.0.0.2:3181. When its ledgers are copied, remove it. For 10.0.0.1:3181: quire "
        "bookie decommission 10.0.0.1:3181. For 10.0.0.2:3181: quire bookie decommission "
        "10.0.0.2:3181"
    )
    (found,) = problems([bookie("z"), *two], WELL, AtRisk(7, True, by_group={ALONE: 0}))
    assert found.next.endswith(
        "If one is lost for good, remove it. For 10.0.0.1:3181: quire bookie decommission "
        "10.0.0.1:3181. For 10.0.0.2:3181: quire bookie decommission 10.0.0.2:3181"
    )
    (found,) = problems([bookie("z"), bookie("b", "gone")], WELL)
    assert "quire bookie start --dir DIR. If" in found.next, "nothing is known about it"


def test_the_command_that_started_a_bookie_has_all_options() -> None:
    words = ("quire", "bookie", "start", "--dir", "d 1", "--set", "gc_interval_s=60")

    def advice(started: StartCommand) -> str:
        known = {"directories": ["/x"], "start_command": asdict(started)}
        (found,) = problems([bookie("z"), {**bookie("b", "gone"), **known}], WELL)
        return found.next

    assert advice(StartCommand(words)).startswith(
        "Start it again, as it was started before: quire bookie start --dir 'd 1' --set "
        "gc_interval_s=60. If it is lost for good"
    )
    within = advice(StartCommand(words, "/srv/a b", ("QUIRE_CONFIG", "QUIRE_METADATA")))
    assert within.startswith(
        "Start it again, as it was started before, in '/srv/a b', with its environment variables "
        "QUIRE_CONFIG and QUIRE_METADATA: quire bookie start"
    )
    one = advice(StartCommand(words, variables=("QUIRE_METADATA",)))
    assert "before, with its environment variable QUIRE_METADATA: quire" in one


def test_recovery_is_not_advised_if_no_bookie_can_take_the_copies() -> None:
    """`quire bookie recover` would refuse: it needs another bookie for each copy."""
    risk = AtRisk(ledgers=7, whole=True, lacking=7, by_group={ALONE: 7}, without_spare=7)
    (found,) = problems([bookie("a"), bookie("b", "gone")], WELL, risk)
    assert "recover" not in found.next
    assert found.next.endswith(
        "If it is lost for good, start another bookie: the others cannot take all of its copies"
    )


def test_a_lost_bookie_is_given_up_by_the_switch_if_autorecovery_is_off() -> None:
    """The advice named `recover`, although the switch was the reason that nothing was copied."""
    bookies = [bookie("a"), bookie("b", "gone")]
    found, switch = problems(bookies, {**WELL, "enabled": False})
    assert switch.what == "Autorecovery is switched off"
    assert found.next.endswith(
        "If it is lost for good: quire autorecovery enable. When its ledgers are copied, to remove "
        "it: quire bookie decommission b"
    )
    risk = AtRisk(ledgers=7, whole=True, lacking=7, by_group={ALONE: 7}, without_spare=7)
    found = next(
        one for one in problems(bookies, {**WELL, "enabled": False}, risk) if "gone" in one.what
    )
    assert found.next.endswith(
        "start another bookie: the others cannot take all of its copies. After that, to have them "
        "restored: quire autorecovery enable"
    )


@pytest.mark.parametrize(
    ("state", "command"),
    [({}, "trigger"), ({"enabled": False}, "enable"), ({"auditor": None}, "start")],
)
def test_a_lost_rack_is_copied_by_the_command_that_works(
    state: dict[str, Any], command: str
) -> None:
    """`trigger` does nothing while autorecovery is switched off, or does not run."""
    bookies = [bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", "gone", "/r2")]
    one = next(one for one in problems(bookies, {**WELL, **state}) if "/r2" in one.what)
    assert one.next.endswith(f"elsewhere now: quire autorecovery {command}")


def of_lost(risk: AtRisk | None, now_ms: int = 0, **recovery: Any) -> Problem:
    """Return what is reported about b, which is lost."""
    found = problems([bookie("a"), bookie("b", "gone")], {**WELL, **recovery}, risk, now_ms=now_ms)
    return next(one for one in found if "b is gone" in one.what)


RISK = AtRisk(ledgers=9, whole=True, lacking=4, last_copy=1, by_group={ALONE: 4})


def test_the_problem_of_a_lost_bookie_states_the_risk() -> None:
    assert of_lost(None).risk == "Quire is still counting the ledgers with copies there"
    assert of_lost(RISK).risk == (
        "4 of 9 ledgers lack the copies stored there, and 1 has entries with only one copy left"
    )
    part = AtRisk(ledgers=9, lacking=4, by_group={ALONE: 4})
    assert of_lost(part).risk == "at least 4 of 9 ledgers lack the copies stored there"
    one = AtRisk(ledgers=1, whole=True, lacking=1, by_group={ALONE: 1})
    assert of_lost(one).risk == "1 of 1 ledger lacks the copies stored there"
    none = of_lost(AtRisk(ledgers=9, whole=True, by_group={ALONE: 0}))
    assert none.risk == "Nothing: every ledger has its copies on other bookies"
    assert none.doing == ""
    nothing_yet = AtRisk(ledgers=9, by_group={ALONE: 0})
    assert of_lost(nothing_yet).doing, "there may be others"


def test_the_problem_of_a_lost_bookie_states_the_progress_of_its_repair() -> None:
    waiting = {"bookie": "b", "since_ms": 0, "until_ms": 30_000}
    assert of_lost(RISK, 10_000, waiting=waiting).doing.startswith(
        "The auditor a waits 20 s more for b to return before its ledgers are copied"
    )
    over = of_lost(RISK, 30_000, waiting=waiting)
    assert over.doing == "The auditor a has not marked its ledgers for repair yet"
    other = of_lost(RISK, 10_000, waiting={**waiting, "bookie": "c"})
    assert other.doing == over.doing
    assert "switched off (quire autorecovery enable)" in of_lost(RISK, enabled=False).doing
    off = of_lost(RISK, auditor=None).doing
    assert "no autorecovery process is running (quire autorecovery start)" in off
    assert of_lost(RISK, marked=4, locked=2).doing == (
        "4 ledgers are marked for repair, 2 are being repaired"
    )
    assert of_lost(RISK, marked=4, failing=1).doing == (
        "4 ledgers are marked for repair; the repair of 1 failed"
    )


def test_lost_bookies_are_grouped_by_rack() -> None:
    """A rack of one bookie is a bookie; a rack with one left is not lost."""
    bookies = [
        bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", "gone", "/r2"),
        bookie("d", "gone", "/r1"), bookie("e", "gone", "/r3"), bookie("f", "gone"),
    ]  # fmt: skip
    assert lost_groups(bookies) == {"/r2": ["b", "c"], ALONE: ["d", "e", "f"]}


def probed(*probes: ProbeResult | None, rack: str | None = None) -> Problem:
    """Return the problem of lost bookies whose addresses answer in these ways."""
    lost = [{**bookie(f"b{n}", "gone", rack), "probe": one} for n, one in enumerate(probes)]
    return next(one for one in problems([bookie("z"), *lost], WELL) if "b0" in one.what)


def test_a_probe_tells_whether_a_lost_bookie_is_stopped_or_cut_off() -> None:
    """The finding said "stopped, or cut off", and the person connected to the port by hand."""
    one = probed(ProbeResult.REFUSED)
    assert one.what == "b0 is gone: nothing listens at its address, so it is stopped"
    assert one.next.startswith("Start it again, with the options that it had: quire bookie start")
    one = probed(ProbeResult.ACCEPTED)
    assert one.what == (
        "b0 is gone: its address accepts connections, so it runs, but is cut off from "
        "the metadata store, paused, or still starting"
    )
    assert one.next.startswith("Do not start it again: look in its log for errors of the")
    assert "bookie start" not in one.next
    one = probed(ProbeResult.SILENT)
    assert one.what == "b0 is gone: its address does not answer, so its machine is off or cut off"
    assert one.next.startswith("Check the machine and the network to it. Start it again, with")
    two = probed(ProbeResult.REFUSED, ProbeResult.REFUSED)
    assert two.what.endswith("nothing listens at their addresses, so they are stopped")
    two = probed(ProbeResult.ACCEPTED, ProbeResult.ACCEPTED)
    assert two.what.endswith(
        "so they run, but are cut off from the metadata store, paused, or still starting"
    )
    assert "their logs" in two.next


def test_lost_bookies_with_different_probe_results_are_listed() -> None:
    one = probed(ProbeResult.REFUSED, ProbeResult.SILENT, None)
    assert one.what.endswith("are gone: stopped, or cut off from the metadata store")
    assert one.items == (
        "b0: nothing listens at its address, so it is stopped",
        "b1: its address does not answer, so its machine is off or cut off",
    )
    assert probed(None).items == ()
    many = probed(*[ProbeResult.REFUSED] * 11, ProbeResult.SILENT)
    assert many.items == (
        "b0, b1, b2, b3, b4, b5, b6, b7, b8, b9 and 1 more: nothing listens at their addresses, so "
        "they are stopped",
        "b11: its address does not answer, so its machine is off or cut off",
    )


def test_lost_bookies_with_different_probe_results_have_different_advice() -> None:
    """All of them were to be started again, although one of them runs."""
    answers = ProbeResult.REFUSED, ProbeResult.SILENT, ProbeResult.ACCEPTED
    for rack, check in (
        (None, "Check the machine of b1 and the network to it"),
        ("/r1", "Check the power and the network there"),
    ):
        assert probed(*answers, rack=rack).next.startswith(
            f"{check}. Start b0, b1 again. On the machine of b0, b1, with the options that it had: "
            "quire bookie start --dir DIR. Do not start b2 again: look in its log for errors"
        )
    two = probed(ProbeResult.REFUSED, ProbeResult.ACCEPTED, rack="/r1")
    assert two.next.startswith("Start b0 again, with the options that it had: quire bookie start")
    assert "Do not start b1 again" in two.next
    two = probed(ProbeResult.ACCEPTED, ProbeResult.ACCEPTED, rack="/r1")
    assert two.next.startswith("Do not start them again")


def test_probes_tell_whether_the_machines_of_a_lost_rack_are_on() -> None:
    one = probed(ProbeResult.REFUSED, ProbeResult.REFUSED, rack="/r1")
    assert one.what == (
        "All bookies of /r1 are gone: b0, b1: nothing listens at their addresses, so they are "
        "stopped"
    )
    assert one.next.startswith("Start each of them again. On the machine of b0, b1, with the ")
    one = probed(ProbeResult.SILENT, ProbeResult.SILENT, rack="/r1")
    assert one.what.endswith("their addresses do not answer, so their machines are off or cut off")
    assert one.next.startswith("Check the power and the network there")


def test_open_ledgers_without_enough_bookies_to_recover_them_are_counted() -> None:
    """The page once said that two lost bookies left copies, and not that appends fail."""
    lost = [bookie("a"), bookie("b", "gone"), bookie("c", "gone")]
    risk = AtRisk(9, True, lacking=3, last_copy=2, by_group={ALONE: 3}, without_quorum=2)
    (one,) = [found for found in problems(lost, WELL, risk) if "are gone" in found.what]
    assert one.risk == (
        "3 of 9 ledgers lack the copies stored there, and 2 have entries with only one copy left. "
        "2 ledgers are not closed, and too few of their bookies are left: they cannot be recovered "
        "until one is back, and appends to a stream that needs them fail"
    )
