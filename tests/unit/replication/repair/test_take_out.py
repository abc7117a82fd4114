"""Taking lost bookies out of a ledger, on bookies with given answers.

The metadata names only bookies that have everything, and a ledger that is being written is left to
its writer.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection
from typing import Any

import pytest

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.wire.v2 import Code
from quire.core.fragments import Fragment, stored_by
from quire.core.replicas import Kind
from quire.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    NotEnoughBookiesError,
)
from quire.metadata.ledgers.update import update_ledger
from quire.net.answer_codes import error_of
from quire.replication import ReplicationLocks
from quire.replication.audit.pieces import look
from quire.replication.repair.bookie_removal import (
    CONFLICTS_MAX,
    TARGET_ATTEMPTS,
    LedgerOutcome,
    LedgerResult,
    OpenLedgerState,
    move_of,
    take_out,
    take_out_locked,
)
from quire.replication.repair.fragment import CopyBatch, CopyOutcome, choose_replacements
from quire.replication.repair.opened_ledger import OpenedLedger, open_for_repair
from quire.replication.repair.replica_scan import ReplicaScan, scan
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    FakeCluster,
    payload,
    simulated,
)

CLOSED, OPEN = LedgerState.CLOSED, LedgerState.OPEN
SHAPES = [(3, 3, 2), (4, 3, 2)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])


def locks_of(cluster: FakeCluster, owner: str = "me") -> ReplicationLocks:
    return ReplicationLocks(cluster.store, owner, cluster.clock)


async def out(cluster: FakeCluster, client: Client, *lost: str, **how: Any) -> LedgerResult:
    return await take_out(client, locks_of(cluster), LEDGER, lost, **how)


def assert_has_all(cluster: FakeCluster, metadata: LedgerMetadata, last: int) -> None:
    """Each member that is up has what it should have, as it was written."""
    for segment in metadata.segments:
        end = metadata.segment_end(segment, last)
        for index, name in enumerate(segment.ensemble):
            if cluster[name].down:
                continue
            for entry in stored_by(metadata, index, segment.first_entry_id, end):
                whole = cluster.codec.unpack(cluster[name].entries[entry], entry)
                assert (whole.payload, whole.ledger_length) == (
                    payload(entry),
                    cluster.length(entry),
                )


async def two_segments(cluster: FakeCluster, state: LedgerState = CLOSED) -> LedgerMetadata:
    """A ledger on b0, b1 and b2, and from entry 6 on on b0, b1 and b3."""
    segments = (Segment(0, ("b0", "b1", "b2")), Segment(6, ("b0", "b1", "b3")))
    await cluster.ledger((3, 3, 2), range(20), segments=segments, state=state)
    return await cluster.stored()


# -- ledgers that are complete ----------------------------------------------------------------


@shapes
@pytest.mark.parametrize("down", [True, False])
def test_a_lost_bookie_is_replaced_by_one_with_all_of_its_entries(
    shape: tuple[int, int, int], *, down: bool
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(6)
        await cluster.ledger(shape, range(40), state=CLOSED)
        cluster["b1"].down = down
        locks = locks_of(cluster)
        await locks.mark(LEDGER, ["b1"])
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
            again = await out(cluster, client, "b1")
        now = await cluster.stored()
        mine = stored_by(now, 1, 0, 39)
        assert (done.work, done.fragments, done.entries, done.recovered, done.reason) == (
            LedgerOutcome.DONE, 1, len(mine), False, ""
        )  # fmt: skip
        assert done.size_bytes == sum(len(payload(entry)) for entry in mine)
        assert again == LedgerResult(LEDGER, LedgerOutcome.DONE)
        assert "b1" not in now.segments[0].ensemble
        assert_has_all(cluster, now, 39)
        assert not await locks.is_marked(LEDGER)

    simulated(main)


@shapes
@pytest.mark.parametrize("window", [1, 2, 7, 20])
def test_a_segment_is_copied_completely_in_windows(
    shape: tuple[int, int, int], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two members are replaced at the same time, which have different entries if it is striped."""
    monkeypatch.setattr("quire.replication.repair.fragment.window_entries", lambda *how: window)

    async def main() -> None:
        cluster = await FakeCluster.made(7)
        members = tuple(f"b{number}" for number in range(shape[0]))
        segments = (Segment(0, members), Segment(3, members))
        await cluster.ledger(shape, range(31), segments=segments, state=CLOSED)
        async with cluster.client() as client:
            done = await out(cluster, client, "b1", "b2")
        assert (done.work, done.fragments) == (LedgerOutcome.DONE, 2)
        now = await cluster.stored()
        assert_has_all(cluster, now, 30)
        for name in {name for segment in now.segments for name in segment.ensemble} - {*members}:
            wanted = {
                entry
                for segment in now.segments if name in segment.ensemble
                for entry in stored_by(
                    now, segment.ensemble.index(name), segment.first_entry_id,
                    now.segment_end(segment, 30),
                )
            }  # fmt: skip
            assert sorted(entry for entry, _, _ in cluster[name].added) == sorted(wanted)

    simulated(main)


def test_all_segments_are_repaired_and_other_bookies_keep_their_marks() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(6)
        before = await two_segments(cluster)
        cluster["b1"].down = True
        locks = locks_of(cluster)
        await locks.mark(LEDGER, ["b1", "b3"])
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
        assert (done.work, done.fragments, done.entries) == (LedgerOutcome.DONE, 2, 20)
        now = await cluster.stored()
        assert [(s.ensemble[0], s.ensemble[2]) for s in now.segments] == [
            (s.ensemble[0], s.ensemble[2]) for s in before.segments
        ]
        assert not any("b1" in segment.ensemble for segment in now.segments)
        assert_has_all(cluster, now, 19)
        mark = await locks.marked(LEDGER)
        assert mark is not None
        assert list(mark.value.replicas) == ["b1", "b3"]

    simulated(main)


@pytest.mark.parametrize(
    ("named", "stays"), [("b2", True), ("b3", True), ("b0", True), ("gone", False)]
)
def test_a_mark_is_kept_while_any_segment_names_its_bookie(named: str, *, stays: bool) -> None:
    """The bookie may lack entries of that segment, wherever in the ledger the segment is."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        await two_segments(cluster)
        locks = locks_of(cluster)
        await locks.mark(LEDGER, ["b1", named])
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
        assert done.work is LedgerOutcome.DONE
        assert await locks.is_marked(LEDGER) == stays

    simulated(main)


def test_the_lost_bookie_is_the_source_of_entries_that_only_it_has() -> None:
    """It may still answer, for example while it is decommissioned."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        for name in ("b0", "b2"):
            cluster[name].entries.pop(7)
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
        assert done.work is LedgerOutcome.DONE
        assert cluster.codec.unpack(cluster["b3"].entries[7], 7).payload == payload(7)
        asked = {ask.entry for ask in cluster["b1"].asked}
        assert asked == {7}, "the lost bookie is asked last"

    simulated(main)


@shapes
def test_a_bookie_that_refuses_this_client_does_not_prevent_other_sources(
    shape: tuple[int, int, int],
) -> None:
    """It requires TLS, for example. The copy of an unstriped ledger failed because of it."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        await cluster.ledger(shape, range(20), state=CLOSED)
        cluster["b1"].down = True
        cluster["b0"].says = lambda ask: error_of(Code.UNAUTHORIZED, LEDGER, ask.entry, "b0")
        async with cluster.client() as client:
            for _ in range(2):  # whichever bookie is asked first
                done = await out(cluster, client, "b1")
                assert (done.work, done.reason) == (LedgerOutcome.DONE, "")
                cluster["b1"].down = False
                await update_ledger(
                    cluster.store, LEDGER, await cluster.store.read_ledger(LEDGER),
                    lambda now: dataclasses.replace(
                        now, segments=(Segment(0, tuple(f"b{n}" for n in range(shape[0]))),)
                    ) if "b1" not in now.segments[0].ensemble else None,
                )  # fmt: skip
            [found] = await _scans(client)
        assert [(bad.kind, bad.first, bad.last) for bad in found.bad] == [(Kind.UNREACHABLE, 0, 19)]

    simulated(main)


@shapes
def test_a_bookie_that_refuses_this_client_does_not_end_the_repair_of_an_open_ledger(
    shape: tuple[int, int, int],
) -> None:
    """The error ended the process of autorecovery, and an audit of all ledgers."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        await cluster.ledger(shape, range(20), state=OPEN)
        cluster["b1"].down = True
        cluster["b0"].says = lambda ask: error_of(Code.UNAUTHORIZED, LEDGER, ask.entry, "b0")
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
            assert (done.work, done.reason) == (LedgerOutcome.OPEN, "")
            assert done.seen is not None
            done = await out(cluster, client, "b1", before=done.seen)
            assert done.work is LedgerOutcome.FAILED
            assert "the bookie requires TLS" in done.reason
            assert (await cluster.stored()).state is OPEN
            found = await look(client, {"ledgers": [LEDGER]})
            assert [one["ledger"] for one in found["ledgers"]] == [LEDGER]
            assert found["unreadable"] == []

    simulated(main)


async def _scans(client: Client) -> list[ReplicaScan]:
    ledger = await opened(client)
    [fragment] = ledger.fragments()
    return [await scan(client, ledger, fragment, 0, fragment.first, fragment.last)]


@shapes
def test_the_entries_that_a_bookie_lost_are_reported_as_one_range(
    shape: tuple[int, int, int],
) -> None:
    """A repair writes a range back in large portions, and needs little memory for it."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(40), state=CLOSED)
        lossy = cluster["b0"]
        lossy.says = lambda ask: (
            error_of(Code.UNKNOWN_LEDGER_STATE, LEDGER, ask.entry, "b0")
            if 10 <= ask.entry < 35 and ask.entry != 20
            else ...
        )
        async with cluster.client() as client:
            [found] = await _scans(client)
        metadata = await cluster.stored()
        here = stored_by(metadata, 0, 0, 39)
        bad = [(10, 34)]
        if 20 in here:
            bad = [(10, 19), (21, 34)]
        mine = [[n for n in here if first <= n <= last] for first, last in bad]
        assert [(one.first, one.last) for one in found.bad] == [(ids[0], ids[-1]) for ids in mine]
        assert {one.kind for one in found.bad} == {Kind.DAMAGED}
        assert found.entries == len(here) - sum(map(len, mine))

    simulated(main)


@pytest.mark.parametrize("damaged", [True, False])
def test_a_segment_with_an_unreadable_entry_keeps_its_ensemble(*, damaged: bool) -> None:
    """The mark stays, and what could be repaired is repaired."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        before = await two_segments(cluster)
        cluster["b1"].down = True
        for name in ("b0", "b2"):
            if damaged:
                cluster[name].entries[4] = cluster.entry(4)[:-1] + b"?"
            else:
                cluster[name].entries.pop(4)
        locks = locks_of(cluster)
        await locks.mark(LEDGER, ["b1"])
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
        assert done.work is LedgerOutcome.FAILED
        assert "no replica of entry 4 can be read" in done.reason
        assert done.fragments == 1
        now = await cluster.stored()
        assert now.segments[0] == before.segments[0]
        assert "b1" not in now.segments[1].ensemble
        assert_has_all(cluster, dataclasses.replace(now, segments=now.segments[1:]), 19)
        assert await locks.is_marked(LEDGER)

    simulated(main)


def test_a_repair_without_a_spare_bookie_changes_no_metadata() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        before = await two_segments(cluster)
        cluster["b1"].down = True
        async with cluster.client() as client:
            done = await out(cluster, client, "b1", "b2", "b3")
            assert done.work is LedgerOutcome.FAILED
            assert await cluster.stored() == before
            opened = await open_for_repair(client, LEDGER)
            with pytest.raises(NotEnoughBookiesError):
                await choose_replacements(client, opened, opened.fragments()[0], [1], ["b3"])

    simulated(main)


@pytest.mark.parametrize("broken", [1, TARGET_ATTEMPTS - 1, TARGET_ATTEMPTS])
def test_new_bookies_that_refuse_the_copies_do_not_enter_the_ensemble(broken: int) -> None:
    """The ledger stays as it is, and is repaired as soon as one takes them."""

    async def main() -> None:
        cluster = await FakeCluster.made(3 + broken)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        before = await cluster.stored()
        cluster["b1"].down = True
        spare = [cluster[f"b{number}"] for number in range(3, 3 + broken)]
        for bookie in spare:
            bookie.add_error = Code.IO_ERROR
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
            assert done.work is LedgerOutcome.FAILED
            assert done.reason
            assert await cluster.stored() == before
            assert all(bookie.added for bookie in spare)
            for bookie in spare:
                bookie.add_error = Code.OK
            assert (await out(cluster, client, "b1")).work is LedgerOutcome.DONE
        now = await cluster.stored()
        assert "b1" not in now.segments[0].ensemble
        assert_has_all(cluster, now, 9)

    simulated(main)


@pytest.mark.parametrize("window", [2, 100])
def test_a_new_bookie_that_refuses_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """One that refused during a copy counted again when the copies were to be named, so that the
    repair ended although there was another bookie."""
    monkeypatch.setattr("quire.replication.repair.fragment.window_entries", lambda *how: window)

    async def main() -> None:
        cluster = await FakeCluster.made(3 + TARGET_ATTEMPTS)
        await cluster.ledger((3, 3, 2), range(20), state=CLOSED)
        cluster["b1"].down = True
        refused: list[str] = []

        for number in range(3, 3 + TARGET_ATTEMPTS):
            bookie = cluster[f"b{number}"]

            class Entries(dict[int, bytes]):
                name = bookie.name

                def __setitem__(self, entry: int, stored: bytes) -> None:
                    super().__setitem__(entry, stored)
                    if self.name not in refused and len(refused) < TARGET_ATTEMPTS - 1:
                        refused.append(self.name)
                    if self.name in refused:
                        cluster[self.name].add_error = Code.IO_ERROR

            bookie.entries = Entries()
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
        assert len(refused) == TARGET_ATTEMPTS - 1
        assert (done.work, done.reason) == (LedgerOutcome.DONE, "")
        assert_has_all(cluster, await cluster.stored(), 19)

    simulated(main)


def test_a_new_bookie_that_refuses_is_replaced_by_another_one() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        cluster["b1"].down = True
        refusing = ["b3", "b4"]
        first: list[str] = []

        class Refusing(dict[int, bytes]):
            def __init__(self, name: str) -> None:
                self.name = name

            def __setitem__(self, entry: int, stored: bytes) -> None:
                if not first:
                    first.append(self.name)
                super().__setitem__(entry, stored)
                if first == [self.name]:
                    cluster[self.name].add_error = Code.IO_ERROR

        for name in refusing:
            cluster[name].entries = Refusing(name)
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
        assert done.work is LedgerOutcome.DONE
        now = await cluster.stored()
        [used] = {*now.segments[0].ensemble} & {*refusing}
        assert [used] != first
        assert_has_all(cluster, now, 9)

    simulated(main)


@pytest.mark.parametrize("silent", [True, False])
def test_a_new_bookie_enters_the_ensemble_only_after_acknowledging_every_copy(
    *, silent: bool
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        before = await cluster.stored()
        cluster["b1"].down = True
        cluster["b3"].holds_acks = True
        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            async with CopyBatch(client, opened) as batch:
                [fragment] = opened.fragments()
                assert await batch.copy(fragment, {1: "b3"})
                assert sorted(cluster["b3"].entries) == list(range(10))
                if not silent:
                    cluster["b3"].die()
                done = await batch.name()
            assert (done.outcome, done.named) == (CopyOutcome.DONE, frozenset())
            [(name, error)] = done.broken.items()
            assert name == "b3"
            assert isinstance(error, BookieTimeoutError if silent else BookieUnavailableError)
            assert await cluster.stored() == before

    simulated(main)


def test_only_bookies_that_acknowledged_their_copies_enter_the_ensemble() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(6)
        before = await two_segments(cluster)
        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            async with CopyBatch(client, opened) as batch:
                first, second = opened.fragments()
                cluster["b5"].holds_acks = True
                assert await batch.copy(first, {1: "b4"})
                assert await batch.copy(second, {1: "b5"})
                assert not await batch.copy(first, {2: "b5"}), "one change of a segment at a time"
                done = await batch.name()
            assert (done.named, list(done.broken)) == (frozenset({0}), ["b5"])
            now = await cluster.stored()
            assert now.segments == (Segment(0, ("b0", "b4", "b2")), before.segments[1])
            assert_has_all(cluster, now, 19)

    simulated(main)


@pytest.mark.parametrize("change", ["ensemble", "end", "created again"])
def test_a_copy_is_not_started_if_the_ledger_changed(change: str) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(6)
        await cluster.ledger((3, 3, 2), range(20), state=CLOSED)
        before = await cluster.stored()
        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            [fragment] = opened.fragments()
            if change == "created again":
                await asyncio.sleep(1)  # the time of the creation tells them apart
                await cluster.store.delete_ledger(LEDGER)
                await cluster.store.create_ledger(before, LEDGER)
            else:
                changes: dict[str, Any] = {"last_entry_id": 15}
                if change == "ensemble":
                    changes = {"segments": (Segment(0, ("b0", "b1", "b4")),)}
                other = dataclasses.replace(before, **changes)
                await update_ledger(
                    cluster.store, LEDGER, await cluster.store.read_ledger(LEDGER),
                    lambda now: other if now != other else None,
                )  # fmt: skip
            stored = await cluster.stored()
            async with CopyBatch(client, opened) as batch:
                assert not await batch.copy(fragment, {1: "b3"})
                assert await batch.name() == (await batch.name())
            assert await cluster.stored() == stored
            assert not cluster["b3"].added

    simulated(main)


# -- conflicts --------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, CONFLICTS_MAX - 2, CONFLICTS_MAX])
def test_conflicts_are_resolved_by_reading_the_ledger_again(times: int) -> None:
    """Nothing of the other client's changes is undone."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        cluster["b1"].down = True
        async with cluster.client() as client:
            real, count = client.metadata.write_ledger, 0

            async def conflicting(*how: Any) -> Any:
                nonlocal count
                count += 1
                if count <= times:
                    stored = await cluster.store.read_ledger(LEDGER)
                    other = dataclasses.replace(stored.value, custom={"n": b"%d" % count})
                    await cluster.store.write_ledger(LEDGER, other, stored.version)
                return await real(*how)

            client.metadata.write_ledger = conflicting  # type: ignore[method-assign]
            done = await out(cluster, client, "b1")
        now = await cluster.stored()
        assert now.custom["n"] == b"%d" % times
        if times < CONFLICTS_MAX:
            assert done.work is LedgerOutcome.DONE
            assert now.segments == (Segment(0, ("b0", "b3", "b2")),)
            assert_has_all(cluster, now, 9)
        else:
            assert done.work is LedgerOutcome.FAILED
            assert "other clients changed the ledger 10 times" in done.reason
            assert now.segments == (Segment(0, ("b0", "b1", "b2")),)

    simulated(main)


def test_the_mark_of_a_deleted_ledger_is_removed_with_its_repair() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        locks = locks_of(cluster)
        await locks.mark(LEDGER, ["b1"])
        async with cluster.client() as client:
            done = await out(cluster, client, "b1")
            assert await move_of(client, LEDGER, "b1") is None
        assert done.work is LedgerOutcome.GONE
        assert not await locks.is_marked(LEDGER)

    simulated(main)


def test_a_ledger_that_another_process_repairs_is_not_touched() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        before = await cluster.stored()
        async with cluster.client() as client, locks_of(cluster, "other").hold(LEDGER):
            done = await out(cluster, client, "b1")
        assert done.work is LedgerOutcome.LOCKED
        assert "other" in done.reason
        assert await cluster.stored() == before

    simulated(main)


def test_a_bookie_that_has_returned_is_not_replaced() -> None:
    """It is asked for before each copy. A mark that names it stays, for somebody who reads it."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        before = await two_segments(cluster)
        locks = locks_of(cluster)
        await locks.mark(LEDGER, ["b1"])
        checks: list[set[str]] = []

        async def recheck(lost: Collection[str]) -> Collection[str]:
            checks.append(set(lost))
            return lost if len(checks) == 1 else []

        async with cluster.client() as client, locks.hold(LEDGER) as lock:
            done = await take_out_locked(client, locks, lock, ["b1"], recheck=recheck)
        assert done.work is LedgerOutcome.DONE
        now = await cluster.stored()
        assert "b1" not in now.segments[0].ensemble
        assert now.segments[1] == before.segments[1]
        assert checks[0] == {"b1"}
        assert await locks.is_marked(LEDGER)

    simulated(main)


# -- ledgers that are being written -----------------------------------------------------------


async def opened(client: Client) -> OpenedLedger:
    return await open_for_repair(client, LEDGER)


@pytest.mark.parametrize("moved", ["nothing", "lac", "metadata", "created again"])
def test_a_writer_is_treated_as_dead_only_without_progress(moved: str) -> None:
    """The first call never fences. The second one does if the state is still the same."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(10))
        cluster["b1"].down = True
        before = await cluster.stored()
        async with cluster.client() as client:
            first = await out(cluster, client, "b1")
            assert (first.work, first.recovered) == (LedgerOutcome.OPEN, False)
            assert first.seen is not None
            assert first.seen.last_add_confirmed == 8
            assert not any(bookie.fenced for bookie in cluster.bookies.values())
            assert await cluster.stored() == before
            if moved == "lac":
                for name in ("b0", "b2"):
                    cluster[name].entries[10] = cluster.entry(10)
            elif moved == "metadata":
                await update_ledger(
                    cluster.store, LEDGER, await cluster.store.read_ledger(LEDGER),
                    lambda now: dataclasses.replace(now, custom={"k": b"v"}) if not now.custom
                    else None,
                )  # fmt: skip
            elif moved == "created again":
                await asyncio.sleep(1)  # the time of the creation tells them apart
                await cluster.store.delete_ledger(LEDGER)
                await cluster.store.create_ledger(before, LEDGER)
            second = await out(cluster, client, "b1", before=first.seen)
            if moved == "nothing":
                assert (second.work, second.recovered) == (LedgerOutcome.DONE, True)
                now = await cluster.stored()
                assert (now.closed, now.last_entry_id) == (True, 9)
                assert not any("b1" in segment.ensemble for segment in now.segments)
                assert_has_all(cluster, now, 9)
            else:
                assert (second.work, second.recovered) == (LedgerOutcome.OPEN, False)
                assert second.seen not in (None, first.seen)
                assert not any(bookie.fenced for bookie in cluster.bookies.values())
                assert (await cluster.stored()).state is OPEN

    simulated(main)


@pytest.mark.parametrize("state", [OPEN, LedgerState.IN_RECOVERY])
def test_no_writer_is_fenced_if_no_bookie_can_replace_the_lost_one(state: LedgerState) -> None:
    """A ledger in recovery has no writer to spare, so it is closed."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(10), state=state)
        cluster["b1"].down = True
        async with cluster.client() as client:
            seen = OpenLedgerState.of(await opened(client))
            done = await out(cluster, client, "b1", before=seen)
        assert done.work is LedgerOutcome.FAILED
        if state is OPEN:
            assert "stays open because nothing can be copied" in done.reason
            assert not any(bookie.fenced for bookie in cluster.bookies.values())
            assert (await cluster.stored()).state is OPEN
        else:
            assert (await cluster.stored()).closed

    simulated(main)


def test_a_writer_whose_bookies_are_healthy_is_not_fenced() -> None:
    """Segments before the last one are complete, and are repaired while it writes."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        await two_segments(cluster, OPEN)
        cluster["b2"].down = True
        async with cluster.client() as client:
            seen = OpenLedgerState.of(await opened(client))
            done = await out(cluster, client, "b2", before=seen)
        assert (done.work, done.recovered, done.fragments) == (LedgerOutcome.DONE, False, 1)
        now = await cluster.stored()
        assert now.state is OPEN
        assert "b2" not in now.segments[0].ensemble
        assert now.segments[1].ensemble == ("b0", "b1", "b3")
        assert_has_all(cluster, dataclasses.replace(now, segments=now.segments[:1]), 5)
        assert not any(bookie.fenced for bookie in cluster.bookies.values())

    simulated(main)


def test_a_failed_recovery_is_retried_without_another_grace_period() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(10))
        cluster["b1"].down = True
        for name in ("b0", "b2", "b3"):
            cluster[name].holds_acks = True
        await cluster.registrations["b4"].close()
        config = dataclasses.replace(CONFIG, recovery_timeout_s=2.0)
        async with cluster.client(config) as client:
            first = await out(cluster, client, "b1")
            assert first.work is LedgerOutcome.OPEN
            second = await out(cluster, client, "b1", before=first.seen)
            assert second.work is LedgerOutcome.FAILED
            assert "was not recovered within 2 s" in second.reason
            assert (await cluster.stored()).state is LedgerState.IN_RECOVERY
            assert second.seen == OpenLedgerState.of(await opened(client))
            assert second.seen != first.seen
            for name in ("b0", "b2", "b3"):
                cluster[name].release()
            third = await out(cluster, client, "b1", before=second.seen)
            assert (third.work, third.recovered) == (LedgerOutcome.DONE, True)
        now = await cluster.stored()
        assert now.last_entry_id == 9
        assert_has_all(cluster, now, 9)

    simulated(main)


# -- opening ----------------------------------------------------------------------------------


def test_opening_a_ledger_for_repair_does_not_change_it() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(6)
        before = await two_segments(cluster, OPEN)
        async with cluster.client() as client:
            known = await opened(client)
            assert (known.last_add_confirmed, known.password) == (18, PASSWORD)
            unasked = await open_for_repair(client, LEDGER, ask=False)
            assert unasked.last_add_confirmed == 5
            for name in ("b0", "b1"):
                cluster[name].die()
            assert (await opened(client)).last_add_confirmed == 5
            assert (await opened(client)).fragments() == [
                Fragment(0, 5, ("b0", "b1", "b2"), True), Fragment(6, 5, ("b0", "b1", "b3"), False)
            ]  # fmt: skip
            assert await cluster.stored() == before
        assert not any(bookie.fenced for bookie in cluster.bookies.values())

    simulated(main)


@shapes
def test_the_entries_that_a_removal_would_move_are_counted(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(40), state=CLOSED)
        metadata = await cluster.stored()
        async with cluster.client() as client:
            found = await move_of(client, LEDGER, "b1")
            assert found is not None
            mine = len(stored_by(metadata, 1, 0, 39))
            assert (found.fragments, found.entries, found.open) == (1, mine, False)
            assert found.bytes == int(mine * cluster.length(39) / 40)
            assert await move_of(client, LEDGER, "b4") is None

    simulated(main)


def test_a_copy_with_an_impossible_length_does_not_end_a_scan() -> None:
    """The length in a copy is signed, and a hostile bookie or client gives it a good digest."""

    async def scenario() -> ReplicaScan:
        cluster = await FakeCluster.made(3)
        client = cluster.client()
        await cluster.ledger((3, 3, 2), range(3), state=CLOSED)
        cluster["b1"].entries[1] = cluster.codec.pack(1, 0, -(2**63), payload(1))
        ledger = await open_for_repair(client, LEDGER)
        seen = [await scan(client, ledger, ledger.fragments()[0], n, 0, 2) for n in range(3)]
        assert seen[0].sums == seen[2].sums != seen[1].sums
        await client.close()
        return seen[1]

    found = simulated(scenario)
    assert (found.bad, found.entries) == ([], 3)


@pytest.mark.parametrize("state", [OPEN, LedgerState.IN_RECOVERY])
def test_no_writer_is_fenced_if_too_few_bookies_answer_to_recover_its_ledger(
    state: LedgerState,
) -> None:
    """If the ack quorum is one, the last entries may be only on the lost bookie.

    The writer may still append to that bookie if the bookie has only lost its registration.
    """

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((2, 2, 1), range(5), state=state)
        cluster["b1"].down = True
        async with cluster.client() as client:
            seen = OpenLedgerState.of(await opened(client))
            done = await out(cluster, client, "b1", before=seen)
            assert done.work is LedgerOutcome.FAILED
            assert "too few bookies" in done.reason
            assert (await cluster.stored()).state is state
            if state is OPEN:
                assert not cluster["b0"].fenced
                cluster["b1"].down = False
                done = await out(cluster, client, "b1", before=seen)
                assert done.work is LedgerOutcome.OPEN

    simulated(main)
