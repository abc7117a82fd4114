"""The rules of writers (docs/internals/replication-rules.md), on bookies with given answers."""

from __future__ import annotations

import asyncio
import dataclasses
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quire.client import LedgerWriter
from quire.client.write.ensemble_changes import RETURN_REST_S
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.wire.v2 import Code
from quire.core.append.pipeline import AddPipeline, Block
from quire.errors import (
    AddQuorumTimeoutError,
    BookieIOError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    QuireError,
    SilentConnectionError,
    UnreadableMetadataError,
    WriteError,
)
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.update import update_ledger
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    FakeBookie,
    FakeCluster,
    FakePool,
    created,
    payload,
    simulated,
)
from tests.support.waiting import until


async def writing(
    cluster: FakeCluster, client: Any, shape: tuple[int, int, int] = (3, 3, 2)
) -> tuple[LedgerWriter, list[FakeBookie]]:
    """A writer that has appended entry 0, and the bookies of its ensemble, in order."""
    writer = await created(client, shape)
    members = [cluster[name] for name in writer.metadata.last_segment.ensemble]
    await writer.append(payload(0))
    await until(lambda: all(0 in bookie.entries for bookie in members[: shape[1]]))
    return writer, members


def spare(cluster: FakeCluster, members: list[FakeBookie]) -> FakeBookie:
    [other] = [bookie for bookie in cluster.bookies.values() if bookie not in members]
    return other


class HeldStore:
    """The next writes of ledger metadata wait until `go` is set; `now`: what they would write."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.go = asyncio.Event()
        self.wanted: list[LedgerMetadata] = []
        store = writer._store
        real = store.write_ledger

        async def held(ledger_id: int, value: LedgerMetadata, *version: Any) -> Any:
            self.wanted.append(value)
            await self.go.wait()
            return await real(ledger_id, value, *version)

        store.write_ledger = held  # type: ignore[method-assign]


async def change(cluster: FakeCluster, how: Any) -> None:
    """Change the metadata as another client."""
    await update_ledger(cluster.store, LEDGER, await cluster.store.read_ledger(LEDGER), how)


# -- ensemble changes -------------------------------------------------------------------------


def test_rule_8_nothing_is_sent_to_a_new_member_before_the_metadata_names_it() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            new = spare(cluster, members)
            held = HeldStore(writer)
            members[1].holds_acks = True
            members[2].die()
            appended = asyncio.ensure_future(writer.append(payload(1)))
            await until(lambda: held.wanted)
            await asyncio.sleep(1)
            assert (new.added, appended.done()) == ([], False)
            held.go.set()
            assert await appended == 1
            assert [entry for entry, _, _ in new.added] == [1]
            assert new.name in (await cluster.stored()).last_segment.ensemble
            writer.abandon()

    simulated(main)


@pytest.mark.parametrize("bookies", [3, 4])
def test_a_writer_that_has_ended_changes_no_ensemble(
    bookies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once wrote metadata, or began to wait for bookies, after it was abandoned."""
    pick, picking, go = FakePool.pick, asyncio.Event(), asyncio.Event()

    async def slowly(pool: FakePool, *args: Any, **named: Any) -> dict[int, str]:
        picking.set()
        await go.wait()
        return await pick(pool, *args, **named)

    async def main() -> None:
        cluster = await FakeCluster.made(bookies)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            before = await cluster.stored()
            monkeypatch.setattr(FakePool, "pick", slowly)
            members[0].die()
            appended = asyncio.ensure_future(writer.append(payload(1)))
            await picking.wait()
            writer.abandon()
            with pytest.raises(LedgerClosedError):
                await appended
            go.set()
            await asyncio.sleep(1)
            assert await cluster.stored() == before
            changes = writer._session._changes
            assert changes is not None
            assert not changes.absent
            assert changes._giving_up is None

    simulated(main)


def test_rule_10_nothing_is_confirmed_while_the_start_of_a_segment_is_decided() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            held = HeldStore(writer)
            members[2].die()
            await until(lambda: held.wanted)
            # An ack quorum has these at once, but the new segment begins at 1.
            waiting = [writer.submit(payload(entry)) for entry in (1, 2)]
            appended = asyncio.ensure_future(writer.wait(waiting[-1]))
            await until(lambda: all(2 in bookie.entries for bookie in members[:2]))
            await asyncio.sleep(1)
            assert (writer.last_add_confirmed, appended.done()) == (0, False)
            held.go.set()
            assert await appended == 2
            assert [s.first_entry_id for s in (await cluster.stored()).segments] == [0, 1]
            writer.abandon()

    simulated(main)


def test_rule_11_entries_appended_during_a_change_go_to_the_new_ensemble() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            held = HeldStore(writer)
            members[0].die()
            await until(lambda: held.wanted)
            entries = [writer.submit(payload(entry)) for entry in range(1, 20)]
            await asyncio.sleep(0.01)
            held.go.set()
            await writer.wait(entries[-1])
            entries.append(writer.submit(payload(20)))
            await writer.wait(20)
            new = spare(cluster, members)
            await until(lambda: 20 in new.entries)
            assert [entry for entry, _, _ in new.added] == entries
            writer.abandon()

    simulated(main)


def _pushed(pipeline: AddPipeline, entries: int) -> None:
    for entry in range(entries):
        length = pipeline.length
        pipeline.push(Block(entry, entry, (b"",), length, length + 1, 0.0))


def test_rule_12_acks_of_a_replaced_member_are_discarded_before_any_confirmation() -> None:
    """Members 0 and 2 acknowledged entries 0 and 1. Member 2 is replaced, and its acks must go."""
    pipeline = AddPipeline(3, 3, 2)
    _pushed(pipeline, 2)
    pipeline.acked(2, [0, 1])
    pipeline.frozen = True
    pipeline.acked(0, [0, 1])
    assert not pipeline.confirm()
    pipeline.restart([2], 1.0)
    pipeline.frozen = False
    assert not pipeline.confirm()
    assert pipeline.last_confirmed == -1
    pipeline.acked(1, [0, 1])
    assert pipeline.confirm()
    assert pipeline.last_confirmed == 1


def test_rule_13_every_unconfirmed_entry_is_sent_again_also_with_enough_acks() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            held = HeldStore(writer)
            members[2].die()
            await until(lambda: held.wanted)
            writer.submit(payload(1))
            writer.submit(payload(2))
            await until(lambda: all(2 in bookie.entries for bookie in members[:2]))
            held.go.set()
            await writer.wait(2)
            new = spare(cluster, members)
            await until(lambda: {1, 2} <= new.entries.keys())
            writer.abandon()

    simulated(main)


def test_rule_14_a_late_answer_of_a_replaced_bookie_does_not_count() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        config = dataclasses.replace(CONFIG, add_timeout_s=1.0)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client)
            new, late = spare(cluster, members), members[2]
            members[1].holds_acks = late.holds_acks = new.holds_acks = True
            members[1].holds_acks = False
            members[0].holds_acks = True
            appended = asyncio.ensure_future(writer.append(payload(1)))
            # 0 and 2 are late; one of them is replaced by the only spare one.
            await until(lambda: new.added)
            gone = next(b for b in (members[0], late) if b.name not in
                        (writer.metadata.last_segment.ensemble))  # fmt: skip
            gone.release()
            await asyncio.sleep(0.1)
            assert not appended.done(), "only one member of the new ensemble has the entry"
            new.release()
            assert await appended == 1
            writer.abandon()

    simulated(main)


def test_rule_14_an_answer_from_before_a_member_left_does_not_count_after_its_return() -> None:
    """Answers have only the entry's id, so the bookie gets the entry over another connection."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        config = dataclasses.replace(CONFIG, add_timeout_s=1.0)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client, (3, 3, 3))
            late = members[2]
            late.holds_acks = True
            appended = asyncio.ensure_future(writer.append(payload(1)))
            await until(lambda: [entry for entry, _, _ in late.added] == [0, 1, 1])
            former = late.links[0]
            former.unanswered = [1]
            late.holds_acks = False
            former.answer_adds()
            late.holds_acks = True
            await asyncio.sleep(0.1)
            assert not appended.done(), "the bookie may have lost the entry that it answers for"
            late.release()
            assert await appended == 1
            writer.abandon()

    simulated(main)


@pytest.mark.parametrize("refuses", [False, True], ids=["lost again", "refuses"])
def test_a_member_that_may_return_is_replaced_if_it_fails_in_another_way(*, refuses: bool) -> None:
    """Its connection is lost while another member is replaced. Then it fails as well, or not."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            store = HeldStore(writer)
            members[0].die()
            await until(lambda: store.wanted)
            second = writer._session.member(1)
            members[1].links[0].lose()
            if refuses:
                second.on_add_error(1, BookieIOError("the disk failed"))
            store.go.set()
            await until(lambda: not writer._session.pipeline.frozen)
            assert (members[1].name in writer._session.ensemble) != refuses
            assert await writer.append(payload(1)) == 1
            writer.abandon()

    simulated(main)


@pytest.mark.parametrize("rests", [False, True])
def test_a_member_that_soon_loses_its_connection_again_is_replaced(*, rests: bool) -> None:
    """Nothing is outstanding, so each loss alone says little about the bookie."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            one = members[1]
            for entry_id in (1, 2):
                one.links[-1].lose()
                await until(lambda: not writer._session.pipeline.frozen)
                assert await writer.append(payload(entry_id)) == entry_id
                returned = one.name in writer._session.ensemble
                assert returned is (entry_id == 1 or rests)
                await asyncio.sleep(RETURN_REST_S + 1 if rests else RETURN_REST_S - 1)
            writer.abandon()

    simulated(main)


@pytest.mark.parametrize("outstanding", [False, True])
def test_a_member_may_return_only_if_nothing_was_outstanding(*, outstanding: bool) -> None:
    """A bookie or a network that breaks a connection in use will probably do so again."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            one = members[1]
            one.holds_acks = outstanding
            assert await writer.append(payload(1)) == 1
            one.links[-1].lose()
            await until(lambda: not writer._session.pipeline.frozen)
            assert await writer.append(payload(2)) == 2
            assert (one.name in writer._session.ensemble) is not outstanding
            writer.abandon()

    simulated(main)


def test_a_member_that_was_replaced_while_it_was_connected_is_sent_nothing() -> None:
    """The connection comes too late. The metadata no longer names the bookie."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        config = dataclasses.replace(CONFIG, add_timeout_s=1.0)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client)
            spares = [bookie for bookie in cluster.bookies.values() if bookie not in members]
            for bookie in spares:
                bookie.connects_in_s = 10.0
            members[2].die()
            appended = asyncio.ensure_future(writer.append(payload(1)))
            await until(lambda: members[2].name not in writer._session.ensemble)
            [slow] = [bookie for bookie in spares if bookie.name in writer._session.ensemble]
            [other] = [bookie for bookie in spares if bookie is not slow]
            other.connects_in_s = 0.0
            assert await appended == 1
            await until(lambda: other.name in writer._session.ensemble)
            assert await writer.append(payload(2)) == 2
            await until(lambda: slow.links)
            await asyncio.sleep(0)
            assert slow.added == []
            assert slow.links[0]._sinks == {}
            writer.abandon()

    simulated(main)


def test_rule_43_a_member_replaced_by_itself_is_sent_everything_again() -> None:
    """A was replaced by B, and B by A. The ensemble is as before, but A has received nothing."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client, (3, 3, 3))
            first, other = members[0], spare(cluster, members)
            other.down = True
            first.holds_acks = True  # Earlier acknowledgements do not count.
            appended = asyncio.ensure_future(writer.append(payload(1)))
            await until(lambda: 1 in first.entries)
            first.entries.clear()
            first.holds_acks = False
            first.links[0].lose()
            assert await appended == 1
            assert other.name in writer._session.causes
            assert writer._session.ensemble == tuple(bookie.name for bookie in members)
            assert 1 in first.entries
            assert [s.ensemble for s in (await cluster.stored()).segments][-1][0] == first.name
            writer.abandon()

    simulated(main)


def test_rule_43_a_member_that_returns_is_sent_everything_again() -> None:
    """Only its connection was lost. What it acknowledged before does not count."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client, (3, 3, 3))
            first, other = members[0], members[1]
            other.holds_acks = True
            appended = asyncio.ensure_future(writer.append(payload(1)))
            await until(lambda: 1 in first.entries)
            await until(lambda: writer._session.pipeline.outstanding_since(0) is None)
            first.entries.clear()
            first.holds_acks = True
            first.links[0].lose()
            await until(lambda: 1 in first.entries)
            other.release()
            await asyncio.sleep(0.1)
            assert not appended.done(), "its earlier acknowledgement counts"
            first.release()
            assert await appended == 1
            assert writer._session.ensemble == tuple(bookie.name for bookie in members)
            writer.abandon()

    simulated(main)


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 3, 2)])
def test_a_member_whose_connection_was_dead_is_sent_confirmed_entries_too(
    shape: tuple[int, int, int],
) -> None:
    """An ack quorum had them, so the member lacked them, and nobody looked for them there."""

    async def main() -> None:
        cluster = await FakeCluster.made(shape[0])
        async with cluster.client() as client:
            writer, members = await writing(cluster, client, shape)
            first = members[0]
            first.holds_acks = True
            for entry in range(1, 9):
                assert await writer.append(payload(entry)) == entry
            owed = {entry for entry in range(9) if (0 - entry) % shape[0] < shape[1]} - {0}
            first.entries.clear()  # What was sent over the dead connection never arrived.
            first.holds_acks = False
            first.links[-1]._fail(SilentConnectionError("no answer"))
            await until(lambda: not writer._session.pipeline.frozen)
            await until(lambda: writer._session.pipeline.outstanding_since(0) is None)
            assert set(first.entries) == owed, first.entries
            assert writer._session.ensemble == tuple(bookie.name for bookie in members)
            assert await writer.append(payload(9)) == 9
            assert await writer.append(payload(10)) == 10
            writer.abandon()

    simulated(main)


def test_several_members_fail_one_after_the_other_during_a_change() -> None:
    """Failures that occur during a change are handled by the next one.

    Nothing is confirmed before that.
    """

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            held = HeldStore(writer)
            members[0].die()
            await until(lambda: len(held.wanted) == 1)
            appended = asyncio.ensure_future(writer.append(payload(1)))
            members[1].die()
            members[2].die()
            await asyncio.sleep(0.1)
            assert len(held.wanted) == 1
            held.go.set()
            assert await appended == 1
            metadata = await cluster.stored()
            assert not {bookie.name for bookie in members} & {*metadata.last_segment.ensemble}
            assert [s.first_entry_id for s in metadata.segments] == [0, 1]
            writer.abandon()

    simulated(main)


def test_a_member_that_is_being_replaced_fails_only_once() -> None:
    """Its answer is overdue all the time that the metadata takes, and only the first time counts.
    Otherwise its place would be taken from the bookie that has just come there."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        config = dataclasses.replace(CONFIG, add_timeout_s=1.0)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client)
            held = HeldStore(writer)
            members[2].holds_acks = True
            assert await writer.append(payload(1)) == 1
            await until(lambda: held.wanted)
            await asyncio.sleep(5)
            held.go.set()
            assert await writer.append(payload(2)) == 2
            await asyncio.sleep(5)
            assert writer._session.pool.counters.ensemble_changes == 1
            assert len(held.wanted) == 1
            writer.abandon()

    simulated(main)


def test_a_failed_member_is_sent_nothing_more_while_its_replacement_is_recorded() -> None:
    """Nobody will read the entries from the late bookie."""

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        config = dataclasses.replace(CONFIG, add_timeout_s=1.0)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client)
            held, late = HeldStore(writer), members[2]
            late.holds_acks = True
            assert await writer.append(payload(1)) == 1
            await until(lambda: held.wanted)
            last = [writer.submit(payload(entry)) for entry in range(2, 9)][-1]
            await until(lambda: all(last in bookie.entries for bookie in members[:2]))
            assert [entry for entry, _, _ in late.added] == [0, 1]
            assert late.links[0]._sinks == {}
            held.go.set()
            await writer.wait(last)
            new = spare(cluster, members)
            await until(lambda: last in new.entries)
            assert [entry for entry, _, _ in late.added] == [0, 1]
            writer.abandon()

    simulated(main)


@pytest.mark.parametrize("code", [Code.OK, Code.READ_ONLY, Code.FENCED])
def test_answers_of_a_failed_member_are_ignored_while_it_is_replaced(code: int) -> None:
    """Its acknowledgement does not count, and its error does not cost the new bookie its place."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        config = dataclasses.replace(CONFIG, add_timeout_s=1.0)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client, (3, 3, 3))
            held, late = HeldStore(writer), members[2]
            late.holds_acks = True
            appended = asyncio.ensure_future(writer.append(payload(1)))
            await until(lambda: held.wanted)
            pipeline = writer._session.pipeline
            before = pipeline.outstanding_since(2)
            late.add_error = code
            late.release()
            await asyncio.sleep(0.1)
            assert pipeline.outstanding_since(2) == before is not None
            assert not appended.done()
            held.go.set()
            assert await appended == 1
            [wanted] = held.wanted
            assert (await cluster.stored()).segments == wanted.segments
            assert 1 in cluster[wanted.last_segment.ensemble[2]].entries
            assert writer._session.pool.counters.ensemble_changes == 1
            writer.abandon()

    simulated(main)


def test_the_number_of_ensemble_changes_is_bounded() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        config = dataclasses.replace(CONFIG, max_ensemble_changes=1)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client)
            members[0].die()
            assert await writer.append(payload(1)) == 1
            members[1].die()
            with pytest.raises(WriteError, match="gave up after 1 ensemble changes") as failed:
                await writer.append(payload(2))
            assert not failed.value.outcome_known

    simulated(main)


def test_the_outcome_of_a_sent_entry_is_unknown_whatever_error_ends_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The outcome of UnreadableMetadataError is known by itself, and that of the add is not."""

    async def unreadable(*args: object, **options: object) -> None:
        raise UnreadableMetadataError("the metadata is damaged")

    async def main() -> None:
        assert UnreadableMetadataError.outcome_known
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            monkeypatch.setattr(MemoryStore, "write_ledger", unreadable)
            members[0].die()
            members[1].die()
            with pytest.raises(UnreadableMetadataError) as failed:
                await writer.append(payload(1))
            assert not failed.value.outcome_known

    simulated(main)


# -- confirming -------------------------------------------------------------------------------


def test_rule_15_confirmation_is_in_the_order_of_ids() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client, (4, 2, 2))
            # Entry 1 is on members 1 and 2. Later entries are also on others.
            members[2].holds_acks = True
            entries = [writer.submit(payload(entry)) for entry in range(1, 5)]
            done: list[int] = []
            waiting = [asyncio.ensure_future(writer.wait(entry)) for entry in entries]
            for entry, future in zip(entries, waiting):
                future.add_done_callback(lambda _, entry=entry: done.append(entry))
            await until(lambda: 3 in members[3].entries and 4 in members[0].entries)
            await asyncio.sleep(0.1)
            assert (done, writer.last_add_confirmed) == ([], 0)
            members[2].release()
            await asyncio.gather(*waiting)
            assert done == entries
            writer.abandon()

    simulated(main)


@pytest.mark.parametrize("late", range(4))
def test_rule_15_each_entry_of_a_striped_ledger_waits_for_its_own_write_set(late: int) -> None:
    """Members 0 to 3 have the entries of two residues each. One acknowledgement is missing."""
    pipeline = AddPipeline(4, 2, 2)
    pipeline.push(Block(0, 3, [], 0, 0, 0.0))
    for member in range(4):
        stripe = pipeline.stripe(member, 0, 3)
        pipeline.acked(member, [one for one in stripe if (member, one) != (late, late)])
    pipeline.confirm()
    assert pipeline.last_confirmed == late - 1
    pipeline.acked(late, [late])
    pipeline.confirm()
    assert pipeline.last_confirmed == 3


def test_rule_44_callbacks_run_after_the_confirmation_not_inside_it() -> None:
    """A callback that appends never sees a half-finished confirmation."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer, _ = await writing(cluster, client)
            session, told = writer._session, []
            inside = 0
            real = session.pipeline.confirm

            def appended(future: asyncio.Future[int]) -> None:
                assert inside == 0
                told.append(future.result())
                if len(told) < 50:
                    session.push([payload(len(told) + 1)])
                    session.wait_for(session.pipeline.last_pushed).add_done_callback(appended)
                    session.after_acks()

            class Watched(type(session.pipeline)):  # type: ignore[misc]
                __slots__ = ()

                def confirm(self) -> bool:
                    nonlocal inside
                    inside += 1
                    try:
                        return bool(real.__func__(self))  # type: ignore[attr-defined]
                    finally:
                        inside -= 1

            session.pipeline.__class__ = Watched
            session.push([payload(1)])
            session.wait_for(1).add_done_callback(appended)
            await until(lambda: len(told) == 50)
            assert told == list(range(1, 51))
            writer.abandon()

    simulated(main)


# -- the end of a writer ----------------------------------------------------------------------


def test_rule_16_a_fenced_writer_stays_fenced() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            before = await cluster.stored()
            members[1].fenced = True
            writer.submit(b"more")
            await until(lambda: writer._session.failure is not None)
            members[1].fenced = False
            added = [len(bookie.added) for bookie in cluster.bookies.values()]
            for _ in range(3):
                with pytest.raises((LedgerFencedError, LedgerClosedError)):
                    await writer.append(b"too late")
            await asyncio.sleep(60)
            assert [len(bookie.added) for bookie in cluster.bookies.values()] == added
            assert (await cluster.stored()) == before
            with pytest.raises(LedgerFencedError):
                await writer.close()
            assert (await cluster.stored()).state is LedgerState.OPEN

    simulated(main)


@pytest.mark.parametrize("how", ["fenced", "no bookies", "closed", "quorum time-out", "refused"])
def test_rule_17_the_outcome_of_a_failed_append_is_unknown(how: str) -> None:
    """A recovery finds failed entries even if only one bookie has them."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        config = dataclasses.replace(
            CONFIG, add_quorum_timeout_s=2.0 if how == "quorum time-out" else 0.0
        )
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client)
            cluster.codec = writer._session._encoder.codec  # type: ignore[attr-defined]
            if how == "fenced":
                members[1].fenced = members[2].fenced = True
            elif how == "closed":
                await change(cluster, lambda now: now.with_close(0, len(payload(0))))
                members[1].die()
                members[2].die()
            elif how == "no bookies":
                members[1].die()
                members[2].die()
            elif how == "refused":
                members[1].holds_acks = True
                members[2].add_error = Code.UNAUTHORIZED
            else:
                members[1].holds_acks = members[2].holds_acks = True
            with pytest.raises(QuireError) as failed:
                await writer.append(payload(1))
            assert not failed.value.outcome_known
            assert 1 in members[0].entries
            if how != "closed":
                for bookie in members:
                    bookie.down = False
                    bookie.holds_acks = False
                    bookie.add_error = Code.OK
                reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
                assert reader.last_add_confirmed == 1

    simulated(main)


def test_rule_19_a_writer_changes_nothing_in_a_ledger_that_is_not_open() -> None:
    async def main() -> None:
        for how, error in (
            (lambda now: now.with_state(LedgerState.IN_RECOVERY), LedgerFencedError),
            (lambda now: now.with_close(0, 9), LedgerClosedError),
        ):
            cluster = await FakeCluster.made(4)
            async with cluster.client() as client:
                writer, members = await writing(cluster, client)
                await change(cluster, how)
                before = await cluster.stored()
                members[0].die()
                members[1].die()
                with pytest.raises(error):
                    await writer.append(payload(1))
                assert await cluster.stored() == before
                assert spare(cluster, members).added == []

    simulated(main)


def test_rule_18_an_ensemble_change_that_conflicts_is_decided_again() -> None:
    """A re-replication has replaced two members, one of them the one that failed."""

    async def main() -> None:
        cluster = await FakeCluster.made(6)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            others = [b for b in cluster.bookies.values() if b not in members]
            moved = (others[0].name, others[1].name, members[2].name)
            await change(cluster, lambda now: now.with_ensemble_from(0, moved))
            members[0].die()
            assert await writer.append(payload(1)) == 1
            stored = await cluster.stored()
            assert stored.segments == (Segment(0, moved),)  # nothing was left to change
            await until(lambda: all(1 in cluster[name].entries for name in moved))
            writer.abandon()

    simulated(main)


def test_rule_37_a_writer_that_watches_its_ledger_stops_at_once() -> None:
    """Its bookies were replaced by empty ones with the same ids, so no fence stops it."""

    async def main() -> None:
        async def deleted(cluster: FakeCluster) -> None:
            await cluster.store.delete_ledger(LEDGER)

        async def recovered(cluster: FakeCluster) -> None:
            await change(cluster, lambda now: now.with_state(LedgerState.IN_RECOVERY))

        async def closed(cluster: FakeCluster) -> None:
            await change(cluster, lambda now: now.with_close(0, 9))

        for what, error in (
            (deleted, NoSuchLedgerError),
            (recovered, LedgerFencedError),
            (closed, LedgerClosedError),
        ):
            cluster = await FakeCluster.made(3)
            config = dataclasses.replace(CONFIG, watch_written_ledgers=True)
            async with cluster.client(config) as client:
                writer, _ = await writing(cluster, client)
                assert await writer.append(payload(1)) == 1
                await what(cluster)
                session = writer._session
                await until(lambda session=session: session.failure is not None)
                with pytest.raises((error, LedgerClosedError)):
                    await writer.append(payload(2))
                assert isinstance(session.failure, error)

    simulated(main)


def test_a_writer_that_watches_its_ledger_closes_it_normally() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        config = dataclasses.replace(CONFIG, watch_written_ledgers=True)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client)
            members[0].die()
            assert await writer.append(payload(1)) == 1
            assert await writer.close() == 1
            assert (await cluster.stored()).last_entry_id == 1

    simulated(main)


@pytest.mark.parametrize("end", ["fenced", "abandoned", "closed"])
def test_the_watch_of_a_writer_ends_with_it(end: str) -> None:
    """The watch keeps the handle and its unconfirmed entries in memory."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        config = dataclasses.replace(CONFIG, watch_written_ledgers=True)
        async with cluster.client(config) as client:
            store: Any = client.metadata
            watch_ledger, watches = store.watch_ledger, []

            def kept(*how: Any) -> Any:
                watches.append(watch_ledger(*how))
                return watches[-1]

            store.watch_ledger = kept
            writer, _ = await writing(cluster, client)
            [watch] = watches
            assert not watch.closed
            if end == "fenced":
                for bookie in cluster.bookies.values():
                    bookie.fenced = True
                with pytest.raises(LedgerFencedError):
                    await writer.append(payload(1))
            elif end == "abandoned":
                writer.abandon()
            else:
                await writer.close()
            assert watch.closed

    simulated(main)


def test_calls_of_a_failed_writer_keep_no_payloads_of_earlier_calls() -> None:
    """All calls raise one error, whose traceback once grew with each call and kept payloads."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            for bookie in members:
                bookie.fenced = True
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: writer.append(payload(1)),
                lambda: writer.append_many([payload(1)]),
                lambda: writer.wait(1),
                lambda: writer.wait(99),
                writer.flush,
                writer.force,
                writer.room,
            ]
            lengths = []
            for _ in range(20):
                for call in calls:
                    with pytest.raises(LedgerFencedError) as caught:
                        await call()
                    lengths.append(len(list(traceback.walk_tb(caught.value.__traceback__))))
            assert max(lengths[-len(calls) :]) < 10
            with pytest.raises(LedgerFencedError):
                await writer.close()

    simulated(main)


# -- time-outs --------------------------------------------------------------------------------


def test_an_append_without_an_ack_quorum_in_time_ends_its_writer() -> None:
    """Replacing members does not help, because the new ones are silent as well."""

    async def main() -> None:
        cluster = await FakeCluster.made(9)
        config = dataclasses.replace(CONFIG, add_timeout_s=1.0, add_quorum_timeout_s=2.5)
        async with cluster.client(config) as client:
            writer, _ = await writing(cluster, client)
            for bookie in cluster.bookies.values():
                bookie.holds_acks = True
            began = asyncio.get_running_loop().time()
            with pytest.raises(AddQuorumTimeoutError, match=r"entry 1 .* by 2 bookies") as failed:
                await writer.append(payload(1))
            assert failed.value.code == -21
            assert failed.value.causes
            assert 2.5 <= asyncio.get_running_loop().time() - began < 3
            assert len((await cluster.stored()).segments) > 1

    simulated(main)


def test_without_that_limit_a_writer_keeps_replacing_members() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(6)
        config = dataclasses.replace(CONFIG, add_timeout_s=1.0)
        async with cluster.client(config) as client:
            writer, members = await writing(cluster, client)
            for bookie in members:
                bookie.holds_acks = True
            assert await writer.append(payload(1)) == 1
            writer.abandon()

    simulated(main)


# -- closing ----------------------------------------------------------------------------------


def test_rule_41_an_equal_close_by_another_client_is_success() -> None:
    async def main() -> None:
        ends = ((0, len(payload(0)), True), (-1, 0, False), (1, 2 * len(payload(0)), False))
        for last, length, good in ends:
            cluster = await FakeCluster.made(3)
            async with cluster.client() as client:
                writer, _ = await writing(cluster, client)
                await change(cluster, lambda now, a=last, b=length: now.with_close(a, b))
                if good:
                    assert await writer.close() == 0
                else:
                    end = "has no entries" if last < 0 else f"ends at entry {last}"
                    with pytest.raises(LedgerClosedError, match=f"{end}, but") as failed:
                        await writer.close()
                    assert not failed.value.outcome_known

    simulated(main)


def test_rule_41_a_close_whose_answer_was_lost_has_an_unknown_outcome() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer, _ = await writing(cluster, client)
            store = writer._store
            real = store.write_ledger

            async def lost(*how: Any) -> Versioned[LedgerMetadata]:
                await real(*how)
                raise MetadataUnavailableError("the answer was lost")

            store.write_ledger = lost  # type: ignore[method-assign]
            with pytest.raises(MetadataUnavailableError) as failed:
                await writer.close()
            assert not failed.value.outcome_known
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 0
            assert reader.metadata.length == len(payload(0))

    simulated(main)


@pytest.mark.parametrize("acks", [False, True])
def test_a_cancelled_close_leaves_nothing_behind(acks: bool) -> None:
    """The close waits for acknowledgements or for the metadata when it is cancelled.

    Another caller's close was once cancelled too, and the session lived as long as the client.
    """

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await client.create_ledger(password=PASSWORD, ledger_id=LEDGER)
            for bookie in cluster.bookies.values():
                bookie.holds_acks = not acks
            appended = asyncio.ensure_future(writer.append(payload(0)))
            write = client.metadata.write_ledger
            client.metadata.write_ledger = never  # type: ignore[assignment]
            first = asyncio.ensure_future(writer.close())
            await asyncio.sleep(0.1)
            second = asyncio.ensure_future(writer.close())
            await asyncio.sleep(0.1)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            client.metadata.write_ledger = write  # type: ignore[method-assign]
            for closing in (second, writer.close()):
                with pytest.raises(LedgerClosedError, match="may or may not be closed") as cut:
                    await closing
                assert not cut.value.outcome_known
            assert writer._session.failure is not None
            assert not any(bookie.links[0]._sinks for bookie in cluster.bookies.values())
            if acks:
                assert await appended == 0
            else:
                with pytest.raises(LedgerClosedError):
                    await appended
            for bookie in cluster.bookies.values():
                bookie.release()
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 0

    async def never(*how: object) -> None:
        await asyncio.Event().wait()

    simulated(main)


def test_a_refused_add_replaces_the_bookie_and_is_not_repeated_to_it() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            members[1].add_error = Code.READ_ONLY
            assert await writer.append(payload(1)) == 1
            await until(lambda: 1 in spare(cluster, members).entries)
            assert [entry for entry, _, _ in members[1].added] == [0, 1]
            writer.abandon()

    simulated(main)


def test_a_writer_fails_if_no_bookie_is_left() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer, members = await writing(cluster, client)
            members[0].die()
            members[1].die()
            with pytest.raises(NotEnoughBookiesError):
                await writer.append(payload(1))

    simulated(main)
