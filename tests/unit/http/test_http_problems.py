"""The problems of a cluster that the dashboard reports."""

from __future__ import annotations

from typing import Any

from quire.http.views.creatable import Creatable
from quire.http.views.problems import ALONE, Collection, Problem, lost_groups, problems
from quire.replication.explain.at_risk import AtRisk

GB = 10**9
WELL: dict[str, Any] = {
    "enabled": True, "auditor": "a", "marked": 0, "locked": 0, "failing": 0, "failures": [],
    "waiting": None,
}  # fmt: skip


def bookie(
    name: str, state: str = "writable", rack: str | None = None, free: int | None = 50
) -> dict[str, Any]:
    space = None if free is None or state == "gone" else free * GB
    total = None if space is None else 100 * GB
    return {
        "id": name, "state": state, "location": rack, "free_bytes": space, "total_bytes": total,
        "answers": None if state == "gone" else free is not None,
    }  # fmt: skip


def said(bookies: list[dict[str, Any]], **recovery: Any) -> list[tuple[str, str]]:
    return [(one.severity, one.what) for one in problems(bookies, {**WELL, **recovery})]


def test_nothing_is_wrong() -> None:
    assert said([bookie("a"), bookie("b")]) == []


def test_lost_bookies() -> None:
    lost = [bookie("a"), bookie("b", "gone")]
    assert said(lost) == [
        ("bad", "b is not registered: stopped, or cut off from the metadata store")
    ]
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
    assert what.startswith("b0, b1, b2, b3, b4 and 4 more are not registered")


def test_a_lost_rack_is_one_thing() -> None:
    bookies = [bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", "gone", "/r2")]
    assert said(bookies) == [("bad", "All bookies of /r2 are gone: b, c")]
    half = [bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", rack="/r2")]
    ((_, what),) = said(half)
    assert what.startswith("b is not registered")


def test_nobody_takes_entries() -> None:
    first = said([bookie("a", "gone")])[0]
    assert first == ("bad", "No bookie accepts entries: nothing can be written")


def test_disks_that_are_nearly_full_are_one_finding_from_80_percent() -> None:
    assert said([bookie("a", free=21)]) == []
    assert said([bookie("a", free=20)]) == [
        ("warn", "1 disk is nearly full: 80% of the disk of a is used (20.0 GB of 100 GB free)")
    ]
    many = [bookie(f"b{n}", free=n) for n in range(1, 9)]
    (found,) = problems([*many, bookie("z")], WELL)
    assert found.what.startswith(
        "8 disks are nearly full: 99% of the disk of b1 is used (1.0 GB of 100 GB free), 98%"
    )
    assert found.what.endswith("and 3 more")
    assert found.next == "quire bookie explain space DIR", "no directory is known"
    cookie = {**bookie("a", free=20), "directories": ["/data/1"]}
    (found,) = problems([cookie], WELL)
    assert "(/data/1: 20.0 GB of 100 GB free)" in found.what
    assert found.next == "quire bookie explain space /data/1"


def test_a_directory_that_is_nearly_full_is_named_although_the_total_hides_it() -> None:
    disks = [
        {"directory": path, "free_bytes": free * GB, "total_bytes": 50 * GB}
        for path, free in (("/data/1", 40), ("/a; reboot", 2))
    ]
    (found,) = problems([{**bookie("a", free=42), "disks": disks}], WELL)
    assert "96% of the disk of a is used (/a; reboot: 2.0 GB of 50.0 GB free)" in found.what
    assert found.next == "quire bookie explain space '/a; reboot'", "it is typed as it stands"


def test_the_command_that_starts_a_lost_bookie_again_is_complete() -> None:
    """Without its port, a bookie of `quire local` came back with another address."""
    one = {**bookie("10.0.0.1:29059", "gone"), "directories": ["/data/bookie-1", "/my disk"]}
    (found,) = [found for found in problems([bookie("z"), one], WELL) if "10.0.0.1" in found.what]
    assert found.next == (
        "Start it again, with the options that it had: quire bookie start --dir /data/bookie-1 "
        "--dir '/my disk' --port 29059. If it is lost for good: quire bookie recover 10.0.0.1:29059"
    )
    two = [{**bookie(f"10.0.0.{n}:3181", "gone"), "directories": [f"/d{n}"]} for n in (1, 2)]
    (found,) = [found for found in problems([bookie("z"), *two], WELL) if "10.0.0.1" in found.what]
    assert found.next == (
        "Start them again, for example 10.0.0.1:3181, with the options that it had: quire bookie "
        "start --dir /d1. If one is lost for good: quire bookie recover BOOKIE"
    )
    (found,) = problems([bookie("z"), bookie("b", "gone")], WELL)
    assert "quire bookie start --dir DIR. If" in found.next, "nothing is known about it"


def readonly(*reasons: tuple[str, str], **more: Any) -> list[Problem]:
    """Return the problems of a bookie that is read-only for these reasons."""
    told = [{"why": why, "directory": directory} for why, directory in reasons]
    one = {**bookie("a", "read-only", free=1), "unwritable": told, **more}
    return problems([bookie("z"), one], WELL, now_ms=1_000_000)


def test_a_read_only_bookie_says_why() -> None:
    (found,) = readonly(("full", "/data/1"))
    assert found.what == "a is read-only because its disk is full: /data/1: 1.0 GB of 100 GB free"
    assert found.next == "quire bookie explain space /data/1"
    assert found.risk.endswith("New entries go to the 1 writable bookie")
    (found,) = readonly(("lost", "/data/1"), free_bytes=50 * GB)
    assert "a part of its data in /data/1 is lost" in found.what
    (found,) = readonly(("loading", ""), free_bytes=50 * GB)
    assert (found.severity, "still loading" in found.what) == ("note", True)
    held = {"http": ["http://10.0.0.1:8080"], "free_bytes": 50 * GB}
    (found,) = readonly(("held", ""), **held)
    assert "an operator holds it" in found.what
    assert found.next.startswith("curl -X PUT http://10.0.0.1:8080/api/v1/bookie/state/readonly")
    order = {"what": "drain", "since_ms": 400_000, "by": "admin-host"}
    (found,) = readonly(("ordered", ""), order=order, free_bytes=50 * GB)
    assert found.what == (
        "a is read-only because it is being drained or decommissioned (ordered from admin-host, "
        "10 min ago)"
    )
    assert "quire bookie decommission a --cancel" in found.next
    (found,) = readonly(("tired", ""), free_bytes=50 * GB)
    assert found.what == "a is read-only: tired"


def test_each_reason_is_a_finding() -> None:
    both = readonly(("held", ""), ("full", "/data/1"))
    assert sorted(one.what.split("because ")[1][:7] for one in both) == ["an oper", "its dis"]


def test_a_nearly_full_disk_of_a_bookie_that_is_read_only_for_another_reason() -> None:
    found = readonly(("held", ""))
    assert any("nearly full" in one.what for one in found)


def test_a_directory_of_a_writable_bookie() -> None:
    told = [{"why": "full", "directory": "/data/2"}, {"why": "failed", "directory": "/data/3"}]
    full = {"directory": "/data/2", "free_bytes": GB, "total_bytes": 100 * GB}
    one = {**bookie("a"), "unwritable": told, "disks": [full]}
    first, second = problems([one], WELL)
    assert first.severity == "bad"
    assert first.what.startswith("The data directory /data/3 of a cannot be used")
    assert "quire bookie disk replace a /data/3 NEW" in first.next
    assert second.what == "A disk of a is full: /data/2: 1.0 GB of 100 GB free"


def test_a_read_only_bookie_whose_registration_does_not_say_why() -> None:
    ((severity, what),) = said([bookie("z"), bookie("a", "read-only", free=1)])
    assert (severity, what) == (
        "warn",
        "a is read-only, probably because its disk is full: 1.0 GB of 100 GB free",
    )
    ((_, what),) = said([bookie("z"), bookie("a", "read-only")])
    assert what == "a is read-only, and its registration does not say why"


def test_ledgers_of_the_default_shape_that_cannot_be_created() -> None:
    bookies = [bookie("a"), bookie("b"), bookie("c", "read-only")]
    why = "3 bookies are wanted; 2 are writable: a, b"

    def shaped(creatable: Creatable, there: list[dict[str, Any]] = bookies[:2]) -> list[Problem]:
        return problems(there, WELL, creatable=creatable)

    assert shaped(Creatable(True)) == []
    (found,) = shaped(Creatable(False, why, (2, 2, 2)))
    assert found.severity == "bad"
    assert found.what == (
        "No ledger with the default ensemble can be created (ensemble 3, write quorum 3, ack "
        f"quorum 2): {why}"
    )
    assert found.next.endswith("quire ledger write --ensemble 2 --write-quorum 2 --ack-quorum 2")
    (found,) = shaped(Creatable(False, why))
    assert "quire ledger write" not in found.next
    nobody = shaped(Creatable(False, why), [bookie("c", "gone")])
    assert not any("default ensemble" in one.what for one in nobody), "nothing can be written"


def test_one_that_does_not_answer() -> None:
    assert said([bookie("z"), bookie("a", free=None)]) == [
        ("bad", "a is registered but does not answer")
    ]


def test_one_that_was_not_asked_yet_is_no_problem() -> None:
    assert said([bookie("z"), {**bookie("a", free=None), "answers": None}]) == []


def test_autorecovery() -> None:
    well = [bookie("a")]
    assert said(well, enabled=False) == [("warn", "Autorecovery is switched off")]
    assert said(well, auditor=None)[0][0] == "note"
    assert [one[0] for one in said(well, auditor=None, marked=3)] == ["warn", "warn"]
    failure = {"ledger": 7, "failure": {"reason": "no bookie has room"}}
    (one,) = problems(well, {**WELL, "marked": 1, "failing": 1, "failures": [failure]})
    assert one.severity == "bad"
    assert one.what == "1 ledger could not be repaired, such as ledger 7: no bookie has room"
    assert one.next == "quire explain ledger 7"


def test_the_worst_comes_first() -> None:
    bookies = [bookie("a", free=1), bookie("b", "gone")]
    assert [one[0] for one in said(bookies, auditor=None)] == ["bad", "warn", "note"]


def of_lost(risk: AtRisk | None, now_ms: int = 0, **recovery: Any) -> Problem:
    """Return what is reported about b, which is lost."""
    found = problems([bookie("a"), bookie("b", "gone")], {**WELL, **recovery}, risk, now_ms=now_ms)
    return next(one for one in found if "b is not registered" in one.what)


RISK = AtRisk(ledgers=9, whole=True, lacking=4, last_copy=1, by_group={ALONE: 4})


def test_what_is_at_risk() -> None:
    assert of_lost(None).risk == "Quire is still counting the ledgers with copies there"
    assert of_lost(RISK).risk == (
        "4 of 9 ledgers lack the copies stored there, and 1 has entries with only one copy left"
    )
    part = AtRisk(ledgers=9, lacking=4, by_group={ALONE: 4})
    assert of_lost(part).risk == "at least 4 of 9 ledgers lack the copies stored there"
    one = AtRisk(ledgers=1, whole=True, lacking=1, by_group={ALONE: 1})
    assert of_lost(one).risk == "1 of 1 ledger lacks the copies stored there"
    none = of_lost(AtRisk(ledgers=9, whole=True, by_group={ALONE: 0}))
    assert none.risk == "No ledger has a copy there"
    assert none.doing == "Nothing needs to be copied"
    nothing_yet = AtRisk(ledgers=9, by_group={ALONE: 0})
    assert of_lost(nothing_yet).doing != "Nothing needs to be copied", "there may be others"


def test_what_cannot_be_read_comes_first() -> None:
    risk = AtRisk(ledgers=9, whole=True, lacking=4, unreadable=2, by_group={ALONE: 4})
    first = problems([bookie("a"), bookie("b", "gone")], WELL, risk)[0]
    assert first.severity == "bad"
    assert first.what.startswith("Some entries of 2 ledgers cannot be read")


def test_what_is_being_done() -> None:
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


def test_groups_of_lost_bookies() -> None:
    """A rack of one bookie is a bookie; a rack with one left is not lost."""
    bookies = [
        bookie("a", rack="/r1"), bookie("b", "gone", "/r2"), bookie("c", "gone", "/r2"),
        bookie("d", "gone", "/r1"), bookie("e", "gone", "/r3"), bookie("f", "gone"),
    ]  # fmt: skip
    assert lost_groups(bookies) == {"/r2": ["b", "c"], ALONE: ["d", "e", "f"]}


def test_suspended_compaction_is_told_once_with_what_to_type() -> None:
    held = [
        {**bookie("a"), "compaction_suspended": ["minor", "major"], "http": ["http://a:1; reboot"]},
        {**bookie("b"), "compaction_suspended": ["major"]},
        {**bookie("c"), "compaction_suspended": []},
    ]
    (found,) = problems(held, WELL)
    assert found.severity == "note"
    assert found.what == "Major and minor compaction of a, b is suspended"
    assert "curl -X PUT 'http://a:1; reboot/api/v1/bookie/gc/resume_compaction'" in found.next
    held[1] = {**bookie("b", free=1), "compaction_suspended": ["major"]}
    assert (
        "warn",
        "Major and minor compaction of a, b is suspended; the disk of b is nearly full",
    ) in said(held)


def test_garbage_that_is_not_collected() -> None:
    found = Collection("garbage collection is switched off by h.1", ("b:1", "b:2"))
    refused, off = problems([bookie("a")], WELL, collection=found)
    assert refused.severity == "bad"
    assert refused.what.startswith("The metadata store went back in time, as detected by b:1, b:2")
    assert "quire cluster gc status" in refused.next
    assert "quire cluster gc accept" in refused.doing
    assert (off.severity, off.what) == ("warn", "Garbage collection is switched off by h.1")
    assert off.next == "quire cluster gc on"
