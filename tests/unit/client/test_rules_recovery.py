"""The rules of recovery (docs/internals/replication-rules.md), on bookies with given answers."""

from __future__ import annotations

import asyncio

import pytest

from quire.codec.metadata.ledger_metadata import LedgerState, Segment
from quire.codec.wire.v2 import Code, Flag
from quire.errors import NotEnoughBookiesError, RecoveryError, UnreadableMetadataError
from quire.metadata.ledgers.update import update_ledger
from tests.support.bookies.fake_bookies import (
    LEDGER,
    PASSWORD,
    Ask,
    FakeCluster,
    lac_of,
    payload,
    simulated,
)
from tests.support.waiting import until

SHAPES = [(3, 3, 2), (4, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_1_every_read_of_a_recovery_fences(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(30))
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 29
        asked = [ask for bookie in cluster.bookies.values() for ask in bookie.asked]
        assert {ask.entry for ask in asked} >= {-1, 29, 30}
        assert all(ask.flags & Flag.DO_FENCING for ask in asked)

    simulated(main)


def test_rule_1_a_bookie_that_missed_the_first_fencing_is_fenced_by_the_reads() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        late = cluster["b2"]
        late.says = lambda ask: None if ask.entry == -1 else ...
        async with cluster.client() as client:
            await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
        assert late.fenced

    simulated(main)


def test_rule_2_an_empty_last_segment_does_not_hide_the_one_before() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(6)
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(10, ("b3", "b4", "b5")))
        await cluster.ledger((3, 3, 2), range(10), segments=segments)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 9
            assert [e.payload async for e in reader.read()] == [payload(n) for n in range(10)]
        closed = await cluster.stored()
        assert (closed.last_entry_id, closed.segments) == (9, segments)
        assert not any(bookie.added for bookie in cluster.bookies.values())

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_3_a_single_copy_is_kept_and_enough_negatives_end_the_ledger(
    shape: tuple[int, int, int],
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        # Of entry 5 the only copy is on the last member of its write set; 6 is nowhere.
        last = f"b{(5 + 2) % shape[0]}"
        size = shape[0]
        await cluster.ledger(
            shape, range(6),
            on=lambda n: [last] if n == 5 else [f"b{(n + k) % size}" for k in range(3)],
        )  # fmt: skip
        silent = cluster[f"b{6 % size}"]  # nor does one of the others have to answer
        silent.says = lambda ask: None if ask.entry == 6 else ...
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5
            assert (await reader.read_entry(5)).payload == payload(5)

    simulated(main)


def test_rule_4_with_an_ack_quorum_of_unknown_members_nothing_is_concluded() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        cluster["b0"].down = True
        cluster["b1"].says = cluster["b1"].silent
        async with cluster.client() as client:
            with pytest.raises(RecoveryError, match="now: too few bookies") as failed:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert set(failed.value.causes) == {"b0", "b1"}
            assert not failed.value.outcome_known
            assert (await cluster.stored()).state is LedgerState.IN_RECOVERY
            cluster["b1"].says = None
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 3

    simulated(main)


def test_rule_5_nothing_is_closed_before_an_ack_quorum_has_what_was_written_back() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(4))
        cluster["b1"].holds_acks = cluster["b2"].holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: cluster["b1"].added and cluster["b2"].added)
            await asyncio.sleep(0.1)
            assert not opening.done()
            assert (await cluster.stored()).state is LedgerState.IN_RECOVERY
            cluster["b1"].release()
            assert (await opening).last_add_confirmed == 3
            assert (await cluster.stored()).closed

    simulated(main)


def test_rule_6_what_recovery_changes_is_private_until_the_close() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        before = await cluster.ledger((3, 3, 3), range(4))
        cluster["b0"].add_error = Code.IO_ERROR
        cluster["b3"].holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: cluster["b3"].added)
            await asyncio.sleep(0.1)
            assert (await cluster.stored()).segments == before.segments
            cluster["b3"].release()
            reader = await opening
            assert reader.last_add_confirmed == 3
        # Entries 0 to 2 were confirmed when the writer sent 3: those stay where they are.
        expected = (*before.segments, Segment(3, ("b3", "b1", "b2")))
        assert (await cluster.stored()).segments == expected

    simulated(main)


def test_rule_7_a_failed_recovery_begins_anew_from_what_is_stored() -> None:
    """It forgets its own ensembles, and sees those of a re-replication in between."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger((3, 3, 3), range(4))
        cluster["b0"].add_error = cluster["b3"].add_error = cluster["b4"].add_error = Code.IO_ERROR
        async with cluster.client() as client:
            with pytest.raises((NotEnoughBookiesError, RecoveryError)) as failed:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert not failed.value.outcome_known
            cluster["b4"].add_error = Code.OK
            cluster["b4"].entries = dict(cluster["b0"].entries)
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(
                cluster.store, LEDGER, stored,
                lambda now: now.with_ensemble_from(0, ("b4", "b1", "b2")),
            )  # fmt: skip
            cluster["b0"].asked.clear()
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 3
            assert cluster["b0"].asked == []
        assert (await cluster.stored()).segments == (Segment(0, ("b4", "b1", "b2")),)

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_rule_9_a_bad_digest_is_no_answer(shape: tuple[int, int, int]) -> None:
    """This holds for its last entry, and for the entries that decide where the ledger ends."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(4))
        corrupt, other = cluster["b0"], cluster["b1"]

        def damaged(ask: Ask) -> bytes:
            return cluster.entry(max(ask.entry, 0))[:-1] + b"?"

        corrupt.says = damaged
        other.says = other.silent
        async with cluster.client() as client:
            with pytest.raises(RecoveryError):  # two unknown: not covered
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert cluster["b2"].fenced
            other.says = None
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 3
            named = {(one.bookie, one.kind.value) for one in client.suspects()}
            assert named == {("b0", "bad-digest")}

    simulated(main)


def test_rule_19_a_recovery_closes_only_what_is_in_recovery() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6))
        for bookie in cluster.bookies.values():
            bookie.holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: cluster["b1"].added)
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(
                cluster.store, LEDGER, stored, lambda now: now.with_state(LedgerState.OPEN)
            )
            for bookie in cluster.bookies.values():
                bookie.release()
            with pytest.raises(RecoveryError, match="set its state back to OPEN"):
                await opening
        assert (await cluster.stored()).state is LedgerState.OPEN

    simulated(main)


def test_rule_20_a_close_that_came_first_counts() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6))
        for name in ("b1", "b2"):
            cluster[name].holds_acks = True
        async with cluster.client() as client:
            opening = asyncio.ensure_future(
                client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            )
            await until(lambda: cluster["b1"].added)
            stored = await cluster.store.read_ledger(LEDGER)
            await update_ledger(cluster.store, LEDGER, stored, lambda now: now.with_close(4, 45))
            cluster["b1"].release()
            reader = await opening
            assert reader.last_add_confirmed == 4  # it has read 5
        closed = await cluster.stored()
        assert (closed.last_entry_id, closed.length) == (4, 45)

    simulated(main)


def test_rules_22_and_42_what_is_written_back_is_what_was_written_with_the_old_lac() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(6), on=lambda n: ["b0", "b1"] if n < 3 else ["b0"])
        for entry in (3, 4, 5):  # in flight when the writer died
            cluster["b0"].entries[entry] = cluster.entry(entry, lac=1)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 5
            assert reader.length == cluster.length(5)
        for bookie in cluster.bookies.values():
            assert [entry for entry, _, _ in bookie.added] == [2, 3, 4, 5]
            for entry, flags, data in bookie.added:
                assert flags & Flag.RECOVERY_ADD
                whole = cluster.codec.unpack(data, entry)
                assert whole.payload == payload(entry)
                assert whole.ledger_length == cluster.length(entry)
                assert lac_of(data) == 1  # that of the fencing, not the advancing one

    simulated(main)


@pytest.mark.parametrize("begun", [False, True])
def test_an_error_after_a_recovery_began_does_not_say_that_nothing_was_done(begun: bool) -> None:
    """The metadata becomes unreadable before the recovery, or while it reads on."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))

        def damage(ask: Ask | None = None) -> object:
            cluster.metadata.unreadable[LEDGER] = b"damaged"
            return ...

        if begun:
            cluster["b0"].says = damage
        else:
            damage()
        async with cluster.client() as client:
            with pytest.raises(UnreadableMetadataError) as caught:
                await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
        assert caught.value.outcome_known is not begun

    simulated(main)
