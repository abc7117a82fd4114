"""Defects of readers: plain reads, tails, and which LAC they believe."""

from __future__ import annotations

import pytest

from quire.client.cluster.absences import Absences
from quire.client.read.follow import Feed, LedgerFollower
from quire.client.read.hedge import Hedge
from quire.client.read.ledger_view import LedgerView
from quire.client.read.tail import LedgerTail
from quire.codec.entry import entry
from quire.codec.entry.entry import EntryCodec
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="A reader is told that an entry does not exist that other bookies have.",
    invariants=("no_false_absence",),
    workload="all",
    seeds=50,
    rule="rule 3",
)
def a_reader_believes_the_first_no(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Hedge,
        "first_good",
        (
            "errors[bookie] = error\n",
            "errors[bookie] = error\n"
            "                    if type(error).__name__ == 'NoEntryAnswer':\n"
            "                        return None, {bookie: error}\n",
        ),
    )


@mutant(
    lost="A tailing reader gets unacknowledged entries, which may be cut off.",
    invariants=("only_the_acknowledged_is_read", "lac_is_acknowledged", "what_was_read_stays"),
    workload="tail",
    seeds=20,
    rule="rule 21",
)
def a_tail_delivers_what_it_holds(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerTail,
        "_hold",
        ("self._view.confirmed(run.last_add_confirmed)", "self._view.confirmed(run.last)"),
    )


@mutant(
    lost="A tailing reader gets unacknowledged entries, which may be cut off.",
    invariants=("only_the_acknowledged_is_read", "what_was_read_stays"),
    workload="tail",
    seeds=20,
    rule="rule 21",
)
def a_tail_delivers_whole_runs(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LedgerTail, "ready", ("if run.last > last:", "if False:"))
    edit(patch, Feed, "kept", ("run.part(first, last)", "run.part(first, run.last)"))


@mutant(
    lost="A tailing reader does not get the last entries of a ledger.",
    invariants=("entries_are_what_was_appended",),
    workload="tail",
    seeds=20,
)
def a_tail_ends_with_the_close(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerFollower,
        "runs",
        (
            "if self._upcoming <= last:",
            "if not self._view.closed and self._upcoming <= last:",
        ),
    )


@mutant(
    lost="A tailing reader misses entries in the middle.",
    invariants=("entries_are_what_was_appended",),
    workload="tail",
    seeds=20,
)
def a_tail_takes_the_last_entry_for_the_next(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerTail,
        "_learn",
        ("run_of(entry_id, [poll.entry])", "run_of(self._unheld, [poll.entry])"),
    )


@mutant(
    lost="A reader that starts to follow later than others in its client misses entries.",
    invariants=("entries_are_what_was_appended",),
    workload="tail",
    seeds=20,
)
def a_late_follower_gets_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Feed, "kept", ("kept[0].first <= first < self", "first < self"))


@mutant(
    lost="Readers that follow in one client get entries twice.",
    invariants=("entries_are_what_was_appended",),
    workload="tail",
    seeds=20,
)
def a_follower_gets_whole_runs(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Feed, "kept", ("run.part(first, last)", "run.part(run.first, last)"))


@mutant(
    lost="Readers wait forever after the one that polled for all of them left.",
    invariants=("quiet_heals",),
    workload="tail",
    seeds=20,
)
def nobody_takes_over_from_a_follower(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Feed,
        "more",
        (
            "    finally:\n",
            "    except asyncio.CancelledError:\n        raise\n    else:\n",
        ),
    )


@mutant(
    lost="After an ensemble change, readers believe that an unacknowledged entry counts.",
    invariants=("no_false_absence", "lac_is_acknowledged"),
    workload="all",
    seeds=20,
)
def the_first_entry_of_a_segment_counts(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LedgerView, "adopt", ("first_entry_id - 1", "first_entry_id"))


@mutant(
    lost="A reader is given wrong bytes.",
    invariants=("entries_are_what_was_appended",),
    workload="rot",
    seeds=120,
    rule="rule 9",
)
def digests_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntryCodec, "all_match", lambda self, metas, payloads, digests: True)
    edit(
        patch,
        EntryCodec,
        "check",
        ("if self.of(meta, view[head:]) != view[META_BYTES:head]:", "if False:"),
    )
    edit(
        patch,
        entry,
        "_check_each",
        ("or of(view[start:meta], view[body:at]) != data[meta:body]", ""),
    )


@mutant(
    lost="A replica that is a moment late is reported for repair.",
    invariants=("a_late_replica_is_not_accused", "only_a_liar_is_accused"),
    workload="lagging",
    seeds=60,
    rule="lagging replica",
)
def a_replica_that_lags_is_accused(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Absences,
        "denied",
        ("if replica in self._confirmed or not self._pauses.first_s:", "if True:"),
    )
