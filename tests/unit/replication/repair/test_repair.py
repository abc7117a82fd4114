"""Repair of what single bookies lack, on bookies with given answers.

Nothing that is wrong is written, and the metadata names no bookie that lacks entries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.wire.v2 import Code, Flag
from quire.core.fragments import stored_by
from quire.core.replicas import Finding, Kind
from quire.errors import NoSuchLedgerError, VersionConflictError
from quire.metadata.ledgers.update import update_ledger
from quire.replication import ReplicationLocks
from quire.replication.repair.bookie_removal import CONFLICTS_MAX
from quire.replication.repair.repair_findings import Repaired, repair_ledger, repair_locked
from quire.replication.repair.replica_scan import DIFFERENT
from tests.support.bookies.fake_bookies import (
    LEDGER,
    FakeBookie,
    FakeCluster,
    payload,
    simulated,
)

SHAPES = [(3, 3, 2), (4, 3, 2)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
CLOSED = LedgerState.CLOSED


def missing(first: int, last: int, bookie: str = "b1", kind: Kind = Kind.MISSING) -> Finding:
    return Finding(LEDGER, first, last, bookie, kind)


def lose(bookie: FakeBookie, entries: Iterable[int]) -> set[int]:
    """Remove the entries, and return those that there were."""
    return {entry for entry in entries if bookie.entries.pop(entry, None) is not None}


def assert_has_all(cluster: FakeCluster, metadata: LedgerMetadata, last: int) -> None:
    """Each member has what it should have, as it was written."""
    for segment in metadata.segments:
        end = metadata.segment_end(segment, last)
        for index, name in enumerate(segment.ensemble):
            for entry in stored_by(metadata, index, segment.first_entry_id, end):
                whole = cluster.codec.unpack(cluster[name].entries[entry], entry)
                assert (whole.payload, whole.ledger_length) == (
                    payload(entry),
                    cluster.length(entry),
                )


async def repaired(client: Client, *found: Finding) -> Repaired:
    return await repair_locked(client, LEDGER, found)


# -- writing back -----------------------------------------------------------------------------


@shapes
def test_entries_that_a_bookie_lacks_are_written_back(shape: tuple[int, int, int]) -> None:
    """Only that, as recovery adds, and also where the bookie is read-only or the ledger fenced."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(40), state=CLOSED)
        metadata = await cluster.stored()
        target = cluster["b1"]
        lost = lose(target, [*range(5, 12), *range(30, 33)])
        target.fenced = True
        async with cluster.client() as client:
            done = await repaired(client, missing(5, 11), missing(30, 32))
        assert (done.written_back, done.entries, done.moved, done.left) == (
            len(lost), len(lost), 0, []
        )  # fmt: skip
        assert done.size_bytes == sum(len(payload(entry)) for entry in lost)
        assert sorted(entry for entry, _, _ in target.added) == sorted(lost)
        for _, flags, _ in target.added:
            assert flags == Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
        assert_has_all(cluster, metadata, 39)
        assert await cluster.stored() == metadata
        assert not any(bookie.added for bookie in cluster.bookies.values() if bookie is not target)

    simulated(main)


@shapes
def test_only_good_replicas_are_copied(shape: tuple[int, int, int]) -> None:
    """The bookie itself is asked last, and a damaged replica is no source."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(40), state=CLOSED)
        metadata = await cluster.stored()
        lose(cluster["b1"], range(8, 20))
        for entry in cluster["b2"].entries:
            if 8 <= entry < 20:
                cluster["b2"].entries[entry] = cluster.entry(entry)[:-1] + b"?"
        async with cluster.client() as client:
            done = await repaired(client, missing(8, 19))
        assert done.left == []
        for entry in stored_by(metadata, 1, 8, 19):
            assert cluster.codec.unpack(cluster["b1"].entries[entry], entry).payload == (
                payload(entry)
            )

    simulated(main)


def test_entries_without_a_source_are_reported_and_the_others_written_back() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(40), state=CLOSED)
        for bookie in cluster.bookies.values():
            lose(bookie, [7])
        lose(cluster["b1"], range(5, 20))
        async with cluster.client() as client:
            done = await repaired(client, missing(5, 9), missing(12, 19))
        [left] = done.left
        assert (left.first, left.last, left.bookie, left.kind) == (5, 9, "b1", Kind.MISSING)
        assert "no replica of entry 7 can be read" in left.detail
        assert done.written_back == 12
        assert {5, 6, 8, 9, *range(12, 20)} <= cluster["b1"].entries.keys()
        assert 7 not in cluster["b1"].entries

    simulated(main)


@pytest.mark.parametrize("others_have_it", [True, False])
def test_a_differing_replica_is_overwritten_with_the_majoritys_copy(
    *, others_have_it: bool
) -> None:
    """A differing replica is kept if there is no other good replica."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        other = cluster.entry(6, b"another payload")
        cluster["b1"].entries[6] = other
        if not others_have_it:
            for name in ("b0", "b2"):
                cluster[name].entries[6] = cluster.entry(6)[:-1] + b"?"
        async with cluster.client() as client:
            found = Finding(LEDGER, 4, 8, "b1", Kind.DIFFERENT, DIFFERENT)
            done = await repaired(client, dataclasses.replace(found, first=6, last=6))
        now = cluster["b1"].entries[6]
        if others_have_it:
            assert cluster.codec.unpack(now, 6).payload == payload(6)
            assert done.left == []
        else:
            assert now == other
            assert [one.detail for one in done.left] == [
                f"ledger {LEDGER} cannot be copied: no replica of entry 6 can be read. `quire "
                f"explain ledger {LEDGER}` shows the bookies that should have these entries. Start "
                "them, and try again"
            ]
        assert done.written_back == int(others_have_it)

    simulated(main)


def test_replicas_without_a_majority_are_not_changed() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        cluster["b1"].entries[6] = cluster.entry(6, b"one")
        cluster["b2"].entries[6] = cluster.entry(6, b"two")
        before = {name: dict(bookie.entries) for name, bookie in cluster.bookies.items()}
        async with cluster.client() as client:
            names = "b0", "b1", "b2"
            done = await repaired(client, *(missing(6, 6, one, Kind.DIFFERENT) for one in names))
        assert [one.bookie for one in done.left] == ["b0", "b1", "b2"]
        assert done.written_back == 0
        assert {name: bookie.entries for name, bookie in cluster.bookies.items()} == before

    simulated(main)


def test_a_missing_entry_beside_a_differing_one_has_its_own_sources() -> None:
    """The bookie whose replica of entry 6 is wrong is the only one that has entry 5."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        cluster["b2"].entries[6] = cluster.entry(6, b"wrong")
        lose(cluster["b1"], [5, 6])
        lose(cluster["b0"], [5])
        async with cluster.client() as client:
            done = await repaired(client, missing(5, 6), missing(6, 6, "b2", Kind.DIFFERENT))
        assert done.left == []
        for name, entry in (("b1", 5), ("b1", 6), ("b2", 6)):
            found = cluster.codec.unpack(cluster[name].entries[entry], entry)
            assert found.payload == payload(entry)

    simulated(main)


def test_an_outdated_finding_needs_no_repair() -> None:
    """It is of a bookie that is no member any more, or of a ledger that was deleted."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        metadata = await cluster.stored()
        async with cluster.client() as client:
            assert await repaired(client, missing(0, 5, "b4")) == Repaired(LEDGER)
            await cluster.store.delete_ledger(LEDGER)
            assert await repaired(client, missing(0, 5)) == Repaired(LEDGER)
        assert metadata.closed
        assert not any(bookie.added for bookie in cluster.bookies.values())

    simulated(main)


def test_a_ledger_under_repair_by_another_process_is_skipped() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        lose(cluster["b1"], [3])
        theirs = ReplicationLocks(cluster.store, "other", cluster.clock)
        ours = ReplicationLocks(cluster.store, "me", cluster.clock)
        async with cluster.client() as client:
            async with theirs.hold(LEDGER):
                done = await repair_ledger(client, ours, LEDGER, [missing(3, 3)])
                assert "other is copying or repairing its replicas" in done.left[0].detail
                assert not cluster["b1"].added
            done = await repair_ledger(client, ours, LEDGER, [missing(3, 3)])
            assert (done.written_back, done.left) == (1, [])

    simulated(main)


# -- moving -----------------------------------------------------------------------------------


class Forgetful(dict[int, bytes]):
    """The entries of a bookie that acknowledges entries without keeping them."""

    def __setitem__(self, entry: int, stored: bytes) -> None:
        pass


def _forgets(cluster: FakeCluster, bookie: FakeBookie) -> None:
    lose(bookie, [5])
    bookie.entries = Forgetful(bookie.entries)


def _alters(cluster: FakeCluster, bookie: FakeBookie) -> None:
    bookie.entries = Forgetful(bookie.entries | {5: cluster.entry(5, b"something else")})


def _refuses(cluster: FakeCluster, bookie: FakeBookie) -> None:
    lose(bookie, [5])
    bookie.add_error = Code.IO_ERROR


@pytest.mark.parametrize("how", [_forgets, _alters, _refuses])
@pytest.mark.parametrize("closed", [True, False])
def test_an_unrepairable_bookie_is_replaced_in_complete_segments(
    how: Callable[[FakeCluster, FakeBookie], None], *, closed: bool
) -> None:
    """The repair reads from a bookie again what that bookie acknowledged."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        state = CLOSED if closed else LedgerState.OPEN
        await cluster.ledger((3, 3, 2), range(10), state=state)
        metadata = await cluster.stored()
        how(cluster, cluster["b1"])
        async with cluster.client() as client:
            done = await repaired(client, missing(5, 5))
        now = await cluster.stored()
        if closed:
            assert (done.moved, done.left) == (1, [])
            assert now.segments == (Segment(0, ("b0", "b3", "b2")),)
            assert_has_all(cluster, now, 9)
            assert [flags for _, flags, _ in cluster["b3"].added] == [Flag.RECOVERY_ADD] * 10
        else:
            assert now == metadata
            assert done.moved == 0
            [left] = done.left
            assert left.detail.endswith("; the segment is still being written")
            assert cluster["b3"].added == []

    simulated(main)


@pytest.mark.parametrize("back", [False, True])
def test_a_bookie_that_did_not_answer_is_replaced_unless_it_answers_now(*, back: bool) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        metadata = await cluster.stored()
        cluster["b1"].down = not back
        async with cluster.client() as client:
            done = await repaired(client, missing(0, 9, kind=Kind.UNREACHABLE))
        now = await cluster.stored()
        if back:
            assert now == metadata
            assert [one.detail for one in done.left] == [
                "the bookie answers again: audit the ledger once more"
            ]
        else:
            assert (done.moved, done.left) == (1, [])
            assert now.segments == (Segment(0, ("b0", "b3", "b2")),)
            assert_has_all(cluster, now, 9)

    simulated(main)


@pytest.mark.parametrize("trouble", ["none left", "refuses", "no source"])
def test_a_bookie_that_cannot_be_replaced_stays_in_the_ensemble(trouble: str) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3 if trouble == "none left" else 4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        metadata = await cluster.stored()
        cluster["b1"].down = True
        if trouble == "refuses":
            cluster["b3"].add_error = Code.IO_ERROR
        elif trouble == "no source":
            for name in ("b0", "b2"):
                lose(cluster[name], [9])
        async with cluster.client() as client:
            done = await repaired(client, missing(0, 9, kind=Kind.UNREACHABLE))
        assert done.moved == 0
        [left] = done.left
        assert ", and it cannot be replaced: " in left.detail
        assert await cluster.stored() == metadata

    simulated(main)


@pytest.mark.parametrize("wrong", ["b0", "b2"])
@shapes
def test_a_differing_replica_is_not_copied_to_a_replacement(
    shape: tuple[int, int, int], wrong: str
) -> None:
    """Otherwise the wrong entry would have a majority, and replace the acknowledged one."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(40), state=CLOSED)
        metadata = await cluster.stored()
        last = 2 if wrong == "b2" else 1
        differing = [
            entry for entry in (*range(4, 9), 20)
            if entry in stored_by(metadata, int(wrong[1]), 0, 39)
        ]  # fmt: skip
        for entry in differing:
            cluster[wrong].entries[entry] = cluster.entry(entry, b"wrong")
        lost = stored_by(metadata, 1, 30, 39)[last]
        lose(cluster["b1"], [lost])
        cluster["b1"].add_error = Code.IO_ERROR
        async with cluster.client() as client:
            found = [missing(one, one, wrong, Kind.DIFFERENT) for one in differing]
            done = await repaired(client, missing(lost, lost), *found)
        assert (done.moved, done.left) == (1, [])
        now = await cluster.stored()
        assert "b1" not in now.segments[0].ensemble
        assert_has_all(cluster, now, 39)

    simulated(main)


def test_a_bookie_with_a_differing_replica_is_not_the_source_of_its_replacement() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        metadata = await cluster.stored()
        cluster["b1"].entries[6] = cluster.entry(6, b"wrong")
        cluster["b1"].add_error = Code.IO_ERROR
        for name in ("b0", "b2"):
            cluster[name].entries[6] = cluster.entry(6)[:-1] + b"?"
        async with cluster.client() as client:
            found = [missing(6, 6, "b1", Kind.DIFFERENT), missing(5, 5, "b1", Kind.DAMAGED)]
            done = await repaired(client, *found)
        assert done.moved == 0
        assert "no replica of entry 6 can be read" in done.left[0].detail
        assert await cluster.stored() == metadata

    simulated(main)


async def while_naming(client: Client, action: Callable[[], Awaitable[Any]]) -> None:
    """Do this before the next write of the metadata."""
    store = client.metadata
    real = store.write_ledger

    async def write(*how: Any) -> Any:
        store.write_ledger = real  # type: ignore[method-assign]
        await action()
        return await real(*how)

    store.write_ledger = write  # type: ignore[method-assign]


def test_a_bookie_is_replaced_after_a_concurrent_change_which_is_kept() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        cluster["b1"].down = True
        cluster["b4"].entries = dict(cluster["b0"].entries)

        async def moved() -> None:
            await update_ledger(
                cluster.store, LEDGER, await cluster.store.read_ledger(LEDGER),
                lambda now: dataclasses.replace(
                    now, segments=(Segment(0, ("b4", "b1", "b2")),)
                ) if now.segments[0].ensemble[0] != "b4" else None,
            )  # fmt: skip

        async with cluster.client() as client:
            await while_naming(client, moved)
            done = await repaired(client, missing(0, 9, kind=Kind.UNREACHABLE))
        assert (done.moved, done.left) == (1, [])
        now = await cluster.stored()
        assert now.segments[0].ensemble[0] == "b4"
        assert "b1" not in now.segments[0].ensemble
        assert_has_all(cluster, now, 9)

    simulated(main)


def test_a_finding_repaired_by_a_retry_is_not_reported_as_remaining() -> None:
    """The other client's change brings a bookie that has the entry."""
    segments = (Segment(0, ("b0", "b1", "b2")), Segment(6, ("b0", "b1", "b3")))

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED, segments=segments)
        cluster["b4"].entries = dict(cluster["b0"].entries)
        cluster["b1"].down = True
        for name in ("b0", "b2"):
            lose(cluster[name], [2])

        async def moved() -> None:
            await update_ledger(
                cluster.store, LEDGER, await cluster.store.read_ledger(LEDGER),
                lambda now: dataclasses.replace(
                    now, segments=(Segment(0, ("b4", "b1", "b2")), *now.segments[1:])
                ) if now.segments[0].ensemble[0] != "b4" else None,
            )  # fmt: skip

        async with cluster.client() as client:
            await while_naming(client, moved)
            done = await repaired(client, missing(0, 9, kind=Kind.UNREACHABLE))
            assert (done.moved, done.left) == (2, [])
            for bookie in cluster.bookies.values():
                lose(bookie, [2])
            [left] = (await repaired(client, missing(2, 2, "b4"))).left
            assert "no replica of entry 2" in left.detail

    simulated(main)


def test_a_ledger_that_is_deleted_during_a_repair_is_done() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        cluster["b1"].down = True

        async def deleted() -> None:
            await cluster.store.delete_ledger(LEDGER)

        async with cluster.client() as client:
            await while_naming(client, deleted)
            done = await repaired(client, missing(0, 9, kind=Kind.UNREACHABLE))
        assert (done.moved, done.left) == (0, [])

    simulated(main)


@pytest.mark.parametrize("deleted", [False, True])
def test_remaining_findings_are_reported_once_and_none_for_a_deleted_ledger(
    *, deleted: bool
) -> None:
    """An attempt that others disturbed had left it already, and the last one leaves all."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(6, ("b0", "b1", "b3")))
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED, segments=segments)
        cluster["b1"].down = True
        for bookie in cluster.bookies.values():
            lose(bookie, [2])

        async def write(*how: Any) -> Any:
            if deleted:
                await cluster.store.delete_ledger(LEDGER)
                raise NoSuchLedgerError("it is gone")
            raise VersionConflictError("others were faster")

        async with cluster.client() as client:
            client.metadata.write_ledger = write  # type: ignore[method-assign]
            unreachable = missing(0, 9, kind=Kind.UNREACHABLE)
            done = await repaired(client, missing(2, 2, "b0"), unreachable)
        if deleted:
            assert done.left == []
        else:
            assert [one.bookie for one in done.left] == ["b0", "b1"]
            assert f"changed the ledger {CONFLICTS_MAX} times" in done.left[1].detail

    simulated(main)


def test_a_replacement_with_a_lost_metadata_reply_counts_as_done() -> None:
    """The store did it, and the repeated write finds its own change as a conflict."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        cluster["b1"].down = True
        async with cluster.client() as client:
            real = client.metadata.write_ledger

            async def lost(*how: Any) -> Any:
                await real(*how)
                raise VersionConflictError("its own write")

            client.metadata.write_ledger = lost  # type: ignore[method-assign]
            done = await repaired(client, missing(0, 9, kind=Kind.UNREACHABLE))
        assert (done.moved, done.left) == (1, [])
        assert_has_all(cluster, await cluster.stored(), 9)

    simulated(main)


@pytest.mark.parametrize("at", [5, 6, 11, 12])
def test_a_finding_of_one_entry_is_repaired_at_either_end_of_a_segment(at: int) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        segments = tuple(
            Segment(first, ("b0", "b1", name)) for first, name in ((0, "b2"), (6, "b3"), (12, "b2"))
        )
        await cluster.ledger((3, 3, 2), range(20), segments=segments, state=CLOSED)
        metadata = await cluster.stored()
        lose(cluster["b1"], [at])
        async with cluster.client() as client:
            done = await repaired(client, missing(at, at))
        assert (done.written_back, done.left) == (1, [])
        assert_has_all(cluster, metadata, 19)

    simulated(main)


def test_a_finding_over_many_segments_is_written_back_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some entries of a portion differ, and are portions of their own."""
    monkeypatch.setattr("quire.replication.repair.repair_findings.window_entries", lambda *how: 5)

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(13, ("b0", "b1", "b3")))
        await cluster.ledger((3, 3, 2), range(40), segments=segments, state=CLOSED)
        metadata = await cluster.stored()
        lose(cluster["b1"], range(2, 33))
        for name, entry in (("b2", 4), ("b2", 8), ("b3", 20)):
            cluster[name].entries[entry] = cluster.entry(entry, b"wrong")
        async with cluster.client() as client:
            different = (
                missing(4, 4, "b2", Kind.DIFFERENT), missing(8, 8, "b2", Kind.DIFFERENT),
                missing(20, 20, "b3", Kind.DIFFERENT),
            )  # fmt: skip
            done = await repaired(client, missing(2, 32), *different)
        assert (done.written_back, done.left) == (34, [])
        assert_has_all(cluster, metadata, 39)
        assert sorted(entry for entry, _, _ in cluster["b1"].added) == list(range(2, 33))

    simulated(main)
