"""`quire explain ledger` reports a lost bookie, and why its copies are not made yet."""

from __future__ import annotations

from dataclasses import replace

from quire.metadata.bookies.damage_notes import FoundDamage
from quire.metadata.bookies.start_commands import StartCommand
from quire.net.port_probe import ProbeResult
from quire.replication.explain.explain import (
    Diagnosis,
    Explained,
    ReplicaReport,
    SegmentView,
    _damage_of,
    diagnosed,
    spare_bookies,
)
from quire.replication.explain.silence import Silence, SilenceKind
from quire.replication.explain.status import WhyNot
from quire.replication.marks.notes import LastFailure


def replica(bookie: str, lost: bool) -> ReplicaReport:
    return ReplicaReport(
        bookie,
        None if lost else "host",
        "gone" if lost else "writable",
        "unreachable" if lost else "present",
        10,
        (),
    )


FACTS = Explained(
    ledger=7, state="CLOSED", last_entry=9, quorums=(2, 2, 2),
    segments=(SegmentView(0, 9, True, 1, (replica("a", False), replica("b", True))),),
    mark=None, lock_owner=None, auditor="healer", enabled=True, delay_s=600, waiting=None,
    spare=1, deep=False, verdict=Diagnosis("", ""),
)  # fmt: skip


def said(**facts: object) -> str:
    return diagnosed(replace(FACTS, **facts)).verdict.sentence  # type: ignore[arg-type]


def test_explain_says_how_long_the_auditor_waits() -> None:
    assert "the auditor healer waits 42 s more for b to return" in said(waiting=("b", 42.2))
    assert "waits up to 10 min for a lost bookie" in said()
    assert "waits up to 10 min for a lost bookie" in said(waiting=("z", 42.0)), "another's"


def test_explain_says_why_nothing_is_repaired() -> None:
    assert "autorecovery is switched off" in said(enabled=False, waiting=("b", 42.0))
    assert "there is no auditor" in said(auditor=None, waiting=("b", 42.0))
    assert "has not marked the ledger" in said(delay_s=0)
    assert said(spare=0).endswith(
        "no bookie can replace it. Start b again, with the options that it had, or another bookie"
    )
    directories = {"b": ("/data/1", "/my disk")}
    lost = replace(FACTS, spare=0, directories=directories)
    assert diagnosed(lost).verdict.command == "quire bookie start --dir /data/1 --dir '/my disk'"
    words = ("quire", "bookie", "start", "--dir", "d", "--set", "gc_interval_s=60")
    known = diagnosed(replace(lost, started={"b": StartCommand(words, "/srv")})).verdict
    assert "Start b again, as it was started before, in /srv, or another" in known.sentence
    assert known.command == "quire bookie start --dir d --set gc_interval_s=60"


def test_several_lost_bookies_are_described_in_the_plural() -> None:
    both = (replica("a", True), replica("b", True), replica("c", False))
    first = SegmentView(0, 9, True, 1, both)
    assert "so no bookie can replace them. Start a, b again" in said(spare=0, segments=(first,))
    written = SegmentView(10, 19, False, 1, (replica("b", True), replica("c", False)))
    assert "which is open, uses b. If the writer is alive, it replaces the bookie with" in said(
        spare=2, segments=(first, written)
    )
    apart = (replica("a", True), replica("c", False), replica("b", True), replica("d", False))
    written = SegmentView(10, 19, False, 1, apart)
    assert "which is open, uses a, b. If the writer is alive, it replaces the bookies with" in said(
        spare=2, segments=(first, written)
    )
    alone = SegmentView(10, 19, False, 1, (replica("a", False), replica("b", True)))
    assert "which is open, uses it. If the writer is alive, it replaces the bookie with" in said(
        segments=(alone,)
    )


def test_too_few_spare_bookies_for_several_lost_ones_are_a_reason_to_start_one() -> None:
    """`quire bookie recover` was once advised, and failed for want of a second spare bookie."""
    both = (replica("a", True), replica("b", True), replica("c", False))
    found = diagnosed(replace(FACTS, spare=1, segments=(SegmentView(0, 9, True, 1, both),)))
    assert (
        "and only 1 writable bookie outside of the ensemble can take over their copies. Start a"
        in (found.verdict.sentence)
    )
    assert found.verdict.command.startswith("quire bookie start")


def test_an_open_ledger_without_enough_bookies_cannot_be_recovered() -> None:
    """`quire ledger recover` was once advised, and failed."""
    three = (replica("a", True), replica("b", True), replica("c", False))
    facts = replace(
        FACTS, state="OPEN", quorums=(3, 3, 2), spare=5,
        segments=(SegmentView(0, -1, False, 1, three),),
    )  # fmt: skip
    found = diagnosed(facts).verdict
    assert (
        "The ledger is not closed, and too few bookies of its last segment are left to recover it: "
        "`quire ledger recover 7` fails until another of them is back, and a writer that is alive "
        "can add nothing unless it can replace enough. Start a, b again. The command to type is "
        "that for a, with the options that it had. On the machine of b, with the options that it "
        "had: `quire bookie start --dir DIR`"
    ) in found.sentence
    assert "or another bookie" not in found.sentence, "a new bookie has none of the entries"
    assert found.command.startswith("quire bookie start")
    begun = diagnosed(replace(facts, state="IN_RECOVERY")).verdict.sentence
    assert "a writer that is alive" not in begun


def test_explain_says_why_a_registered_bookie_does_not_answer() -> None:
    silent = replace(replica("10.0.0.1:4181", True), host="host", registered="writable")
    facts = replace(FACTS, segments=(SegmentView(0, 9, True, 1, (replica("a", False), silent)),))

    def of(silence: Silence, **more: object) -> Diagnosis:
        found = replace(facts, silences={"10.0.0.1:4181": silence}, **more)  # type: ignore[arg-type]
        return diagnosed(found).verdict

    down = of(
        Silence(SilenceKind.REFUSED, "nothing listens at its address", ""),
        directories={"10.0.0.1:4181": ("/data",)},
    )
    assert down.sentence.startswith(
        "10.0.0.1:4181 is registered but does not answer (nothing listens at its address). Its "
        "process does not run"
    )
    assert down.command == "quire bookie start --dir /data --port 4181"
    expired = of(Silence(SilenceKind.EXPIRED, "the certificate has expired", "Renew it"))
    assert "(the certificate has expired). Renew it. Then" in expired.sentence
    assert expired.command == "quire explain ledger 7"
    hangs = of(Silence(SilenceKind.OTHER, "it did not answer within 2 s", ""))
    assert "(it did not answer within 2 s). Check its log" in hangs.sentence
    back = diagnosed(facts).verdict
    assert back.sentence == "10.0.0.1:4181 did not answer, and does now. Check again"


def test_entries_only_on_a_silent_bookie_name_the_reason_for_its_silence() -> None:
    """The bookie was to be started again, although only its certificate had expired."""
    silent = replace(replica("b", True), host="host", registered="writable")
    only = SegmentView(0, 9, True, 0, (silent,))
    expired = Silence(SilenceKind.EXPIRED, "its certificate expired", "Renew it")
    found = diagnosed(replace(FACTS, segments=(only,), silences={"b": expired})).verdict
    assert found.sentence == (
        "Some entries have no good copy on a bookie that answers. b is registered but does not "
        "answer (its certificate expired). Renew it. Then check again"
    )
    gone = diagnosed(replace(FACTS, segments=(replace(only, replicas=(replica("b", True),)),)))
    assert (
        "Start b again, with the options that it had. Then check the ledger: `quire explain "
        in (gone.verdict.sentence)
    )
    assert gone.verdict.command == "quire bookie start --dir DIR"
    both = replace(only, replicas=(replica("b", True), replace(silent, bookie="c")))
    found = diagnosed(replace(FACTS, segments=(both,))).verdict
    assert "with the options that it had. c does not answer, too. Then check" in found.sentence


def test_each_of_several_lost_bookies_has_its_command() -> None:
    """The sentence and the command were about the first one."""
    three = (replica("a", True), replica("b", True), replica("c", False))
    facts = replace(FACTS, spare=5, segments=(SegmentView(0, 9, True, 1, three),))
    found = diagnosed(facts).verdict
    assert found.sentence.endswith(
        "Start a, b again. If one is lost for good, copy what that bookie stored to other bookies. "
        "The command to type is that for a. For b: `quire bookie recover b`"
    )
    assert found.command == "quire bookie recover a"
    off = diagnosed(replace(facts, enabled=False)).verdict
    assert off.command == "quire autorecovery enable", "the switch is why nothing is copied"
    assert off.sentence.endswith("copy what that bookie stored to other bookies")
    runs = replace(facts, probes={"a": ProbeResult.ACCEPTED, "b": ProbeResult.REFUSED})
    assert (
        "Start b again. Do not start a again: look in its log" in diagnosed(runs).verdict.sentence
    )
    needed = diagnosed(replace(runs, spare=0)).verdict
    assert "Start b again, with the options that it had, or another bookie. Do not start a" in (
        needed.sentence
    )
    assert needed.command == "quire bookie start --dir DIR"


def test_each_of_several_silent_bookies_has_its_reason_and_its_remedy() -> None:
    """Only the reason of the first bookie was given, and only what to do about that one."""
    silent = [replace(replica(one, True), host="h", registered="writable") for one in "abc"]
    segments = (SegmentView(0, 9, True, 1, (*silent, replica("d", False))),)
    expired = Silence(SilenceKind.EXPIRED, "the certificate of b expired", "Renew it (/b.pem)")
    silences = {
        "a": Silence(SilenceKind.REFUSED, "nothing listens at its address", ""),
        "b": expired,
        "c": Silence(SilenceKind.OTHER, "it did not answer within 2 s", ""),
    }
    found = diagnosed(replace(FACTS, segments=segments, silences=silences)).verdict
    assert found.sentence == (
        "a, b, c are registered but do not answer (a: nothing listens at its address; b: the "
        "certificate of b expired; c: it did not answer within 2 s). Renew it (/b.pem). Check the "
        "log of c and the network to it. If it hangs, stop it: then it counts as lost, and "
        "autorecovery restores its copies. The process of a does not run. The registration ends "
        "with its session, within seconds. Then autorecovery copies the ledgers. Start it again, "
        "with the options that it had"
    )
    assert found.command == "quire bookie start --dir DIR"


def test_a_bookie_of_another_segment_can_replace_a_lost_one() -> None:
    older = SegmentView(0, 9, True, 1, (replica("a", False), replica("b", True)))
    newest = SegmentView(10, 19, False, 2, (replica("a", False), replica("c", False)))
    assert spare_bookies((older, newest), ["a", "c"]) == 1
    assert spare_bookies((newest,), ["a", "c"]) == 0
    both = SegmentView(10, 19, False, 1, (replica("c", False), replica("b", True)))
    assert spare_bookies((older, both), ["a", "c", "d"]) == 2
    assert spare_bookies((older, both), ["c"]) == 0, "no bookie for one of the segments"


def bad(*states: str, **facts: object) -> Diagnosis:
    replicas = tuple(
        replace(replica(f"b{n}", False), state=state) for n, state in enumerate(states)
    )
    segments = (SegmentView(0, 9, True, 1, (*replicas, replica("a", False))),)
    found = replace(FACTS, segments=segments, **facts)  # type: ignore[arg-type]
    return diagnosed(found).verdict


def mark(failure: LastFailure | None = None, unattended: bool = False) -> WhyNot:
    return WhyNot(7, ("b0",), None, None, None, None, failure, True, unattended=unattended)


def test_damage_is_repaired_without_a_spark_job() -> None:
    """A person typed the Spark job, which took a minute. Autorecovery had repaired it before."""
    found = bad("damaged", deep=True)
    assert found.command == "quire explain ledger 7 --deep"
    assert "The bookie reports the damage now that it was read. Autorecovery repairs it" in (
        found.sentence
    )
    assert "`quire pipeline audit --ledger 7 --repair`" in found.sentence, "if it stays"
    assert bad("missing", mark=mark()).command == "quire explain ledger 7"


def test_a_bookie_that_sends_wrong_bytes_from_a_good_disk_is_taken_out_of_service() -> None:
    """It never reports damage, so the advice to wait was all that a person got."""
    assert bad("damaged", deep=True).sentence.endswith(
        "its memory or its network changes what it sends. Take it out of service with "
        "`quire bookie decommission b0`"
    )
    assert "decommission" not in bad("missing", mark=mark()).sentence


def test_explain_reports_bad_replicas_that_nobody_repairs() -> None:
    assert bad("damaged", auditor=None).command == "quire autorecovery start"
    assert bad("damaged", enabled=False).command == "quire autorecovery enable"
    audit = "quire pipeline audit --ledger 7 --repair"
    found = bad("missing")
    assert found.command == audit
    assert found.sentence.endswith("No bookie reports this by itself, so nothing repairs it yet")
    failed = mark(LastFailure("no bookie is left", 1, 3, 2, "host-2"))
    assert bad("damaged", mark=failed).command == audit


def test_explain_reports_a_mark_that_nobody_processes() -> None:
    assert mark().sentence() == "no worker has started on it yet"
    assert "and no autorecovery process is running" in mark(unattended=True).sentence()


def test_every_verdict_about_a_missing_replica_says_if_nothing_is_repaired() -> None:
    """Some verdicts once did not say it, for example in an outage of one rack."""
    off = "Nothing is repaired meanwhile: autorecovery is switched off (`quire autorecovery enable`"
    assert off in said(spare=0, enabled=False)
    assert "Nothing is repaired meanwhile: there is no auditor" in said(spare=0, auditor=None)
    assert "meanwhile" not in said(spare=0)
    only = SegmentView(0, 9, True, 0, (replica("b", True),))
    assert off in said(segments=(only,), enabled=False)
    silent = replace(replica("b", True), host="host", registered="writable")
    segments = (SegmentView(0, 9, True, 1, (replica("a", False), silent)),)
    for kind in (SilenceKind.EXPIRED, SilenceKind.OTHER):
        silences = {"b": Silence(kind, "it does not answer", "Renew it")}
        assert off in said(segments=segments, silences=silences, enabled=False)
    down = {"b": Silence(SilenceKind.REFUSED, "nothing listens", "")}
    assert "Then nothing is copied: autorecovery is switched off" in said(
        segments=segments, silences=down, enabled=False
    )


def test_damage_reported_by_a_bookie_is_part_of_the_verdict() -> None:
    """The verdict was "Nothing is wrong" while 13 entries of the ledger were not restored."""
    whole = (SegmentView(0, 9, True, 2, (replica("a", False), replica("b", False))),)
    assert said(segments=whole).startswith("Nothing is wrong")
    seg = "log/0000000000000001.seg"
    notes = {
        "a": [
            FoundDamage("/d", "log/0.seg", 1, 1, (7,), 3, repaired_ms=2),
            FoundDamage("/d", "log/0.seg", 1, 1, (8,), 3),
        ],
        "b": [FoundDamage("/d", seg, 1, 2, (7, 9), 13)],
        "elsewhere": [FoundDamage("/d", seg, 1, 1, (7,), 1)],
    }
    damage = _damage_of(7, whole, notes)
    assert damage == {"b": tuple(notes["b"])}
    facts = replace(FACTS, segments=whole, damage=damage)
    found = diagnosed(facts).verdict
    assert found.sentence == (
        "No problem was found in what was read (the first and the last entry of each were read, "
        f"not all), but b reported damage in /d/{seg}: it has lost entries of this ledger, and "
        "they are not restored yet. Autorecovery restores them by itself, usually within a minute "
        "or two"
    )
    assert found.command == "quire explain ledger 7 --deep"
    off = diagnosed(replace(facts, enabled=False)).verdict.sentence
    assert "Nothing is repaired meanwhile: autorecovery is switched off" in off
    deep = diagnosed(replace(facts, deep=True)).verdict
    assert deep.sentence.startswith("No replica is missing (every entry was read), but b reported")
    assert deep.command == ""
    for vague in (FoundDamage("/d", seg, 1, 9, (1, 2)), FoundDamage("/d", "", 1)):
        damage = _damage_of(7, whole, {"a": [vague]})
        assert "it may have lost entries of this ledger" in said(segments=whole, damage=damage)


def test_the_verdict_says_whether_a_lost_bookie_is_stopped_or_cut_off() -> None:
    stopped = said(probes={"b": ProbeResult.REFUSED})
    assert stopped.startswith("b does not answer (nothing listens at its address, so it is stopped")
    assert "Start b again. If it is lost for good" in stopped
    facts = replace(FACTS, probes={"b": ProbeResult.ACCEPTED})
    runs = diagnosed(facts).verdict
    assert "(its address accepts connections, so it runs, but is cut off from the " in runs.sentence
    assert "Do not start it again: look in its log" in runs.sentence
    none = diagnosed(replace(facts, spare=0)).verdict
    assert "Do not start it again" in none.sentence
    assert none.command == "quire explain ledger 7"


def test_the_command_that_closes_an_open_ledger_is_named() -> None:
    """A writer that hangs is not a missing replica, so nothing else would name the command."""
    well = SegmentView(0, 9, False, 2, (replica("a", False), replica("c", False)))
    for state in ("OPEN", "IN_RECOVERY"):
        verdict = diagnosed(replace(FACTS, state=state, segments=(well,))).verdict
        assert verdict.sentence.startswith("Nothing is wrong: no replica is missing")
        assert "`quire ledger recover 7`" in verdict.sentence
        assert not verdict.command, "it is no problem"
    closed = replace(well, closed=True)
    assert "recover" not in said(segments=(closed,))
    lost = replace(well, copies_min=1, replicas=(replica("a", False), replica("b", True)))
    assert "close the ledger first: `quire ledger recover 7`" in said(
        state="OPEN", segments=(lost,)
    )
