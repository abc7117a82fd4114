"""Bugs of streams that the simulator found, reproduced without a seed."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchStreamError,
    StreamClosedError,
    StreamConditionError,
    StreamEndedError,
    StreamFencedError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.interface import Versioned
from quire.metadata.tree import Create, Delete, Operation, Put, Result
from quire.statemachine import Dictionary
from quire.streams.namespace import namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import free, remove, retain, truncate
from quire.streams.read.positions import AtTime, AtTxid, find
from quire.streams.read.records import Gap
from quire.streams.read.segment_list import SegmentList
from quire.streams.statemachine.durable_dict import open_dict
from quire.streams.statemachine.state_machine import BUCKET, Objects, follow
from quire.streams.write import producers
from quire.streams.write.producers import ControlState, read_marks
from quire.streams.write.segments import Segments
from quire.streams.write.takeover import take_over
from quire.streams.write.writer import StreamWriter
from tests.support.streams import Bench, run

SMALL = {"roll_bytes": 300, "entry_bytes": 1_024}


async def fill(b: Bench, name: str, segments: int) -> None:
    """Write this number of segments of one record."""
    for number in range(segments):
        async with await b.streams.open_writer(name, create=True) as writer:
            await writer.append(b"%d" % number)


def fails_once(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    calls = 0

    async def work(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MetadataUnavailableError("lost")
        return await call(*arguments)

    return work


def test_a_freed_segment_is_reported_once() -> None:
    """The node of the newest truncated segment stays, so the next call meets it again."""

    async def scene(b: Bench) -> None:
        await fill(b, "s", 5)
        whole = await b.read("s")
        freed: list[int] = []
        for number in (1, 2, 3):
            before = whole[number].position
            planned = await b.streams.truncate("s", before, dry_run=True)
            done = await b.streams.truncate("s", before)
            assert [one.lssn for one in done] == [one.lssn for one in planned]
            freed += [one.lssn for one in done]
        assert freed == [1, 2, 3]
        assert await b.streams.truncate("s", whole[3].position) == []

    run(scene)


def test_a_reader_at_the_end_of_a_truncated_segment_gets_no_gap_error() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, "s", 3)
        whole = await b.read("s")
        behind = whole[1].position.next_slot()
        await b.streams.truncate("s", behind)
        assert [r.payload for r in await b.read("s", start=behind)] == [b"2"]
        assert [r.payload for r in await b.read("s", start=DLSN(2, 1, 0))] == [b"2"]
        # Its ledger is deleted nevertheless, and the segments before it are gone.
        first, last = await b.streams.segments("s")
        assert (first.lssn, first.truncation) == (2, Truncation.TRUNCATED)
        assert first.ledger_id not in await b.ledgers()
        # A reader that was further behind gets one gap.
        reader = await b.streams.open_reader("s", start=whole[0].position, on_gap="deliver")
        async with aclosing(reader.batches()) as batches:
            got = [batch async for batch in batches]
        assert got[0] == Gap("truncated", whole[0].position, last.first_dlsn)
        assert await b.streams.retain("s") == []

    run(scene)


def test_a_reader_resumed_at_the_end_of_an_ended_stream_ends_again() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"x")
        await writer.end_stream()
        reader = await b.streams.open_reader("s", follow=True)
        assert [r.payload async for r in reader] == [b"x"]
        again = await b.streams.open_reader("s", start=reader.position, follow=True)
        assert [r async for r in again] == []
        assert again.ended
        [segment] = await b.streams.segments("s")
        await b.streams.truncate("s", segment.first_dlsn.next_segment())
        late = await b.streams.open_reader("s", follow=True)
        assert [r async for r in late] == []
        assert late.ended

    run(scene)


def test_a_read_to_the_beginning_of_an_entry_includes_the_entry_before() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            for number in range(3):
                await writer.append(b"%d" % number)
        assert [r.payload for r in await b.read("s", end=DLSN(1, 1, 0))] == [b"0"]
        assert [r.payload for r in await b.read("s", end=DLSN(1, 2, 0))] == [b"0", b"1"]

    run(scene)


def test_a_late_truncation_does_not_restore_deleted_segments() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, "s", 4)
        metadata = b.streams.metadata("s")
        known, segments = await metadata.life(), await metadata.segments()
        before = segments[2].first_dlsn
        await truncate(metadata, before)
        with pytest.raises(VersionConflictError):
            await metadata.mark_truncated(known, segments[:1])
        assert await truncate(metadata, segments[1].first_dlsn) == []
        truncated = [s.truncation is Truncation.TRUNCATED for s in await metadata.segments()]
        assert truncated == [True, True, False, False]
        assert len(await free(b.client, metadata)) == 2

    run(scene)


def test_producers_and_tokens_survive_the_truncation_of_all_records() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await (await writer.producer("p")).append_many([b"0", b"1"], 0)
            await writer.set_fencing_token("mine")
        [segment] = await b.streams.segments("s")
        await b.streams.truncate("s", segment.first_dlsn.next_segment())
        async with await b.streams.open_writer("s") as writer:
            producer = await writer.producer("p")
            assert await producer.append(b"1", 1, token="mine") is None
            await producer.append(b"2", 2, token="mine")
        assert [r.payload for r in await b.read("s")] == [b"2"]

    run(scene)


def test_a_writer_of_a_deleted_stream_cannot_write_to_its_successor() -> None:
    async def scene(b: Bench) -> None:
        old = await b.streams.open_writer("s", create=True)
        await asyncio.sleep(1)  # its next ledger is made and noted
        await b.streams.delete_stream("s")
        new = await b.streams.open_writer("s", create=True)
        await asyncio.sleep(1)
        with pytest.raises(StreamFencedError):
            await old.append(b"old")
        await new.append(b"new")
        await new.close()
        assert [r.payload for r in await b.read("s")] == [b"new"]

    run(scene)


def test_a_writer_of_a_renamed_stream_cannot_write_under_its_former_name() -> None:
    async def scene(b: Bench) -> None:
        old = await b.streams.open_writer("s", create=True)
        await asyncio.sleep(1)
        await b.streams.rename_stream("s", "t")
        await b.streams.rename_stream("t", "s")
        new = await b.streams.open_writer("s")
        await asyncio.sleep(1)
        with pytest.raises(StreamFencedError):
            await old.append(b"old")
        await new.append(b"new")
        await new.close()

    run(scene)


def test_a_stream_with_too_many_nodes_to_be_renamed_keeps_its_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them move in one transaction. The writer was fenced before that was known."""

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"1")
            monkeypatch.setattr(namespace, "COMMIT_OPERATIONS_MAX", 10)
            with pytest.raises(UsageError, match="operations"):
                await b.streams.rename_stream("s", "t")
            monkeypatch.undo()
            await writer.append(b"2")
        assert [r.payload for r in await b.read("s")] == [b"1", b"2"]

    run(scene)


def test_a_stream_that_is_just_too_large_to_be_renamed_keeps_its_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nodes of the stream would fit, but not the operations on its life."""

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"1")
            metadata, target = b.streams.metadata("s"), b.streams.metadata("t")
            moved = await b.streams._moves(metadata.paths, target.paths.root)
            monkeypatch.setattr(namespace, "COMMIT_OPERATIONS_MAX", sum(map(len, moved)))
            with pytest.raises(UsageError, match="stream s was not renamed") as refused:
                await b.streams.rename_stream("s", "t")
            [limit, needed] = re.findall(r"(\d+) operations", str(refused.value))
            assert int(needed) > int(limit)
            assert "or delete subscriptions that nobody uses" in str(refused.value.remedy)
            monkeypatch.undo()
            await writer.append(b"2")
        assert [r.payload for r in await b.read("s")] == [b"1", b"2"]

    run(scene)


def test_a_rename_that_keeps_conflicting_reports_the_conflict() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append_many([bytes([n]) for n in range(20)])
        real = b.streams._moves
        positions = [record.position for record in await b.read("s")]

        async def moves(*what: Any) -> Any:
            found = await real(*what)
            if len(what) == 2:
                await b.streams.truncate("s", positions.pop(0))
            return found

        b.streams._moves = moves  # type: ignore[method-assign]
        with pytest.raises(MetadataError, match="during 5 attempts"):
            await b.streams.rename_stream("s", "t")
        assert await b.streams.streams() == ["s"]

    run(scene)


@pytest.mark.parametrize("repeats", ["the store", "the caller"])
def test_a_rename_with_a_lost_reply_does_not_claim_that_nothing_was_renamed(
    repeats: str,
) -> None:
    """It said that stream s was not renamed, because stream t existed already."""

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"0")
        tree = b.client.metadata.tree
        real = tree.commit
        lost = MetadataUnavailableError("no answer") if repeats == "the caller" else None

        async def commit(*operations: Any) -> Any:
            answer = await real(*operations)
            if len(operations) > 3 and any("/t/" in one.path for one in operations):
                tree.commit = real  # type: ignore[method-assign]
                if lost is not None:
                    raise lost
                return await real(*operations)  # It finds the first attempt's changes.
            return answer

        tree.commit = commit  # type: ignore[method-assign]
        if lost is not None:
            with pytest.raises(MetadataUnavailableError):
                await b.streams.rename_stream("s", "t")
            with pytest.raises(NoSuchStreamError, match=r"stream t exists.*may have succeeded"):
                await b.streams.rename_stream("s", "t")
        else:
            await b.streams.rename_stream("s", "t")
        assert tree.commit == real
        assert await b.streams.streams() == ["t"]

    run(scene)


def test_a_change_by_another_client_is_not_mistaken_for_ones_own() -> None:
    """Deleting a stream removes its segments.

    A writer that wanted to drop an empty segment found it gone, and took that for a lost answer.
    """

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"x")
        segments = writer._segments
        assert segments.open is not None
        other = b.streams.metadata("s")
        claim = await other.claim()
        await remove(b.client, other, segments.open.segment, claim.life)
        with pytest.raises(StreamFencedError):
            await segments.metadata.change(segments.taken.claim, drop=segments.open.segment)
        writer.abandon()

    run(scene)


def loses_an_answer(metadata: StreamMetadata, meanwhile: Callable[[], Awaitable[object]]) -> None:
    """Execute the next transaction, lose its answer, and run `meanwhile` before the retry."""
    tree, real = metadata.tree, metadata.tree.commit

    async def commit(*operations: Operation) -> None:
        tree.commit = real  # type: ignore[method-assign]
        await real(*operations)
        await meanwhile()
        raise MetadataUnavailableError("the answer was lost")

    tree.commit = commit  # type: ignore[assignment, method-assign]


def loses_answers(metadata: StreamMetadata, seconds: float) -> None:
    """Execute transactions, and lose all answers for so long."""
    tree, real = metadata.tree, metadata.tree.commit
    until_s = asyncio.get_running_loop().time() + seconds

    async def commit(*operations: Operation) -> list[Result]:
        lost = asyncio.get_running_loop().time() < until_s
        try:
            return await real(*operations)
        finally:
            if lost:
                raise MetadataUnavailableError("the answer was lost")

    tree.commit = commit  # type: ignore[method-assign]


def test_a_writer_survives_lost_replies_for_a_while() -> None:
    """It gave up after ten attempts, tried a change of other values, and took itself for fenced."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"0")
        loses_answers(writer._segments.metadata, 40.0)
        await writer.roll()
        await writer.append(b"1")
        await writer.close()
        assert [r.payload for r in await b.read("s")] == [b"0", b"1"]

    run(scene)


def test_a_writer_whose_replies_stay_lost_is_not_reported_as_fenced() -> None:
    """No other client has taken over, so the error must not say that the writer is fenced."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"0")
        # It ends while it mends the segment, whose node it then finds changed by itself.
        loses_answers(writer._segments.metadata, 75.0)
        with pytest.raises(MetadataUnavailableError, match="could not be written for 60 s"):
            await writer.roll()
        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"1")
        assert [r.payload for r in await b.read("s")] == [b"0", b"1"]

    run(scene)


def test_a_roll_completes_the_segment_of_records_that_were_only_submitted() -> None:
    """They went to the next segment, unacknowledged, although they were appended before."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.submit_many([b"0"])
        await writer.roll()  # There was no segment yet, so it returned at once.
        await writer.submit_many([b"1"])
        await writer.roll()
        segments = await b.streams.segments("s")
        assert [(s.lssn, s.in_progress, s.record_count) for s in segments] == [
            (1, False, 1), (2, False, 1),
        ]  # fmt: skip
        await writer.close()

    run(scene)


@pytest.mark.parametrize("slots", [0, 1], ids=["whole", "part"])
def test_a_segment_truncated_at_once_counts_as_completed(slots: int) -> None:
    """The writer found another node than the one it had wanted, and took itself for fenced."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append_many([b"0", b"1"])
        other = b.streams.metadata("s")
        until = DLSN(1, 0, 1) if slots else DLSN(2, 0, 0)
        loses_an_answer(writer._segments.metadata, lambda: truncate(other, until))
        await writer.roll()
        await writer.append(b"2")
        await writer.close()
        assert await b.numbers("s") == [1, 2]
        assert [r.payload for r in await b.read("s")] == [b"1", b"2"][not slots :]

    run(scene)


def test_segments_freed_at_once_count_as_published() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        metadata, other = b.streams.metadata("s"), b.streams.metadata("s")
        claim = await metadata.claim()
        copies = [
            StreamSegment(lssn, 1_000 + lssn, 1).completed(
                last_txid=1, record_count=1, last_entry_id=0, last_slot_id=0,
                completion_time_ms=1, start_sequence_id=lssn,
            )
            for lssn in range(1, 5)
        ]  # fmt: skip
        after: dict[str, bytes | None] = {
            metadata.paths.segment(one.name): one.to_bytes() for one in copies
        }

        async def meanwhile() -> None:
            await truncate(other, DLSN(4, 0, 0))
            await free(b.client, other)

        loses_an_answer(metadata, meanwhile)
        await metadata.publish(claim, copies, [], after)
        assert await b.numbers("s") == [3, 4]
        await metadata.free_allocation(claim)  # it has the claim, at its version

    run(scene)


def test_a_transaction_that_did_not_happen_is_not_mistaken_for_done_and_freed() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        metadata = b.streams.metadata("s")
        claim = await metadata.claim()
        one = StreamSegment(1, 1_001, 1)
        done = one.completed(
            last_txid=1, record_count=1, last_entry_id=0, last_slot_id=0,
            completion_time_ms=1, start_sequence_id=0,
        )  # fmt: skip
        # The segment in progress is not there, so its completion cannot be.
        with pytest.raises(StreamFencedError):
            await metadata.change(claim, complete=done)
        assert await b.numbers("s") == []

    run(scene)


def test_a_segment_completed_by_distributedlog_is_not_mistaken_for_ones_own() -> None:
    """It takes over without a claim as ours does, so only the nodes show it."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append_many([b"0", b"1"])
        segments = writer._segments
        assert segments.open is not None
        metadata, claim = segments.metadata, segments.taken.claim
        mine = segments.open.completed(2)
        theirs = dataclasses.replace(mine, record_count=1, last_slot_id=0, completion_time_ms=1)
        paths = metadata.paths
        await metadata.tree.commit(
            Create(paths.segment(theirs.name), theirs.to_bytes()),
            Delete(metadata.node(theirs.lssn, in_progress=True)),
            Put(paths.segments, b"1", claim.ledgers_version),
        )
        with pytest.raises(StreamFencedError):
            await metadata.change(claim, complete=mine)
        writer.abandon()

    run(scene)


def is_away_after(metadata: StreamMetadata, number: int, seconds: float) -> list[float]:
    """Lose the answer to one transaction, and raise for all that come within this time after it.

    Returns a list that has the end of that time as soon as it has begun.
    """
    tree, real = metadata.tree, metadata.tree.commit
    loop, left, end_s = asyncio.get_running_loop(), number, list[float]()

    async def commit(*operations: Operation) -> None:
        nonlocal left
        if not end_s or loop.time() >= end_s[0]:
            await real(*operations)
            left -= 1
        if left == -1 and not end_s:
            end_s.append(loop.time() + seconds)
        if end_s and loop.time() < end_s[0]:
            raise MetadataUnavailableError("the answer was lost")

    tree.commit = commit  # type: ignore[assignment, method-assign]
    return end_s


@pytest.mark.parametrize("number", range(12))
def test_a_writer_survives_an_outage_in_which_an_answer_was_lost(number: int) -> None:
    """A transaction was done, and nobody learned of it for longer than its attempts took.

    The next transaction then named versions of the past, and the writer took itself for fenced.
    """

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings=SMALL)
        writer = await b.streams.open_writer("s")
        segments, sent = writer._segments, list[bytes]()
        end_s = is_away_after(segments.metadata, number, 20.0)

        async def append(size: int) -> None:
            sent.append(b"%d" % len(sent) * size)
            await writer.append(sent[-1])

        await append(400)  # begins a segment
        await append(1)  # rolls
        assert segments.open is not None
        await b.client.open_ledger(segments.open.segment.ledger_id, recover=True)
        await append(1)  # mends
        await writer.roll()  # completes
        while segments._spare is None:
            segments.prepare()
            await asyncio.sleep(1)
        await b.client.open_ledger(segments._spare.ledger_id, recover=True)
        await append(1)  # begins and drops
        await writer.close()
        assert end_s
        assert [record.payload for record in await b.read("s")] == sent
        assert await b.ledgers() == [s.ledger_id for s in await b.streams.segments("s")]

    run(scene)


def test_a_ledger_is_noted_while_a_segment_is_completed() -> None:
    """The next ledger is made in the background: a writer that was closed in that moment took
    itself for fenced."""

    async def scene(b: Bench) -> None:
        b.world.metadata_delay_s = 0.01
        for number in range(20):
            name = f"s{number}"
            writer = await b.streams.open_writer(name, create=True)
            await writer.append(b"x")
            segments = writer._segments
            assert segments.open is not None
            metadata, claim = segments.metadata, segments.taken.claim
            await asyncio.gather(
                metadata.change(claim, complete=segments.open.completed(1)),
                metadata.allocate(claim, 1_000),
            )
            await metadata.free_allocation(claim)
            assert await b.numbers(name) == [1]
            writer.abandon()

    run(scene)


def test_a_segment_accepts_a_record_after_producer_facts_of_any_size() -> None:
    """Each segment begins with the facts about producers.

    When they were as long as `roll_bytes`, the writer rolled forever and never wrote a record.
    """

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"roll_bytes": 1, "roll_interval_s": 0.001})
        async with await b.streams.open_writer("s") as writer:
            producer = await writer.producer("p")
            async with asyncio.timeout(10.0):
                for number in range(3):
                    await producer.append(b"%d" % number, number)
        assert [r.payload for r in await b.read("s")] == [b"0", b"1", b"2"]
        assert await b.numbers("s") == [1, 2, 3]

    run(scene)


def test_an_overtaken_takeover_does_not_touch_its_successors_ledger() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, "s", 1)
        slow, late = b.streams.metadata("s"), []
        real = slow.tree.read

        async def read(path: str) -> Any:
            if path == slow.paths.allocation:
                slow.tree.read = real  # type: ignore[method-assign]
                late.append(await b.streams.open_writer("s"))
                await asyncio.sleep(1)  # it has made its next ledger, and noted it
            return await real(path)

        slow.tree.read = read  # type: ignore[method-assign]
        with pytest.raises(StreamFencedError):
            await take_over(b.client, slow, b"")
        await late[0].append(b"late")
        await late[0].close()
        assert [r.payload for r in await b.read("s")] == [b"0", b"late"]

    run(scene)


def test_a_rename_does_not_restore_segments_truncated_meanwhile() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append_many([b"0", b"1", b"2"])
        real = b.streams._moves
        positions = [record.position for record in await b.read("s")]
        before, calls = [positions[1]], list[int]()

        async def moves(*what: Any) -> Any:
            found = await real(*what)
            calls.append(1) if len(what) == 2 else None
            if before and len(calls) == 2:  # what is to be committed is read
                await b.streams.truncate("s", before.pop(0))
            return found

        b.streams._moves = moves  # type: ignore[method-assign]
        await b.streams.truncate("s", positions[0])
        await b.streams.rename_stream("s", "t")  # the first attempt conflicts with the truncation
        assert not before
        assert [r.payload for r in await b.read("t")] == [b"1", b"2"]

    run(scene)


def test_a_deletion_fences_a_writer_that_was_opened_meanwhile() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, "s", 2)
        late = []
        real = b.client.delete_ledger

        async def delete_ledger(ledger_id: int) -> None:
            if not late:
                late.append(await b.streams.open_writer("s"))
                await late[0].append(b"late")
            await real(ledger_id)

        b.client.delete_ledger = delete_ledger  # type: ignore[method-assign]
        await b.streams.delete_stream("s")
        with pytest.raises(StreamFencedError):
            await late[0].append(b"later")
        assert not await b.streams.exists("s")
        assert await b.ledgers() == []

    run(scene)


def test_no_call_partly_recreates_a_deleted_stream() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        metadata = b.streams.metadata("s")
        await b.streams.delete_stream("s")
        for work in (metadata.ensure_writable, metadata.claim, metadata.note_marks):
            with pytest.raises(NoSuchStreamError):
                await work()
        with pytest.raises(NoSuchStreamError):
            await writer.producer("p")
        with pytest.raises(NoSuchStreamError):
            await b.streams.subscription("s", "mine").commit(DLSN(1, 0, 0))
        with pytest.raises(NoSuchStreamError):
            await b.streams.configure_stream("s", {"ack_quorum": 2})
        assert not await metadata.tree.exists(metadata.paths.stream)
        writer.abandon()

    run(scene)


def test_a_stream_is_created_with_its_settings() -> None:
    async def scene(b: Bench) -> None:
        metadata = b.streams.metadata("s")
        real, seen = metadata.tree.commit, []

        async def commit(*operations: Any) -> Any:
            results = await real(*operations)
            if await metadata.exists():
                seen.append(await b.streams.own_stream_settings("s"))
            return results

        metadata.tree.commit = commit  # type: ignore[method-assign]
        await b.streams.create_stream("s", settings={"txids": "given"})
        assert seen == [{"txids": "given"}]

    run(scene)


def test_an_empty_segment_is_dropped_even_if_its_ledger_cannot_be_deleted_at_once() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await asyncio.sleep(1)
        metadata = b.streams.metadata("s")
        allocated = int((await metadata.tree.read(metadata.paths.allocation)).value)
        # Another client recovers the ledger before its first record, so the segment is empty.
        await b.client.open_ledger(allocated, recover=True)
        b.client.delete_ledger = fails_once(b.client.delete_ledger)  # type: ignore[method-assign]
        await writer.append(b"x")
        await writer.close()
        assert [r.payload for r in await b.read("s")] == [b"x"]
        assert await b.ledgers() == [s.ledger_id for s in await b.streams.segments("s")]

    run(scene)


def test_a_ledger_that_could_not_be_noted_is_used_by_the_next_attempt() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        segments: Segments = writer._segments
        metadata = segments.metadata
        metadata.allocate = fails_once(metadata.allocate)  # type: ignore[method-assign]
        await writer.append(b"x")
        await writer.close()
        assert await b.ledgers() == [s.ledger_id for s in await b.streams.segments("s")]

    run(scene)


def test_a_closed_namespace_leaves_no_unnamed_ledger() -> None:
    async def scene(b: Bench) -> None:
        b.world.metadata_delay_s = 0.01
        real, made = b.client.create_ledger, set()

        async def create_ledger(**how: Any) -> Any:
            ledger = await real(**how)
            made.add(ledger.ledger_id)
            return ledger

        b.client.create_ledger = create_ledger  # type: ignore[method-assign]
        named = set()
        for number in range(40):
            streams = await open_namespace(b.client, b.streams.path)
            await streams.open_writer(f"s{number}", create=True)
            await asyncio.sleep(0.0005 * number)
            await streams.close()
            paths = streams.metadata(f"s{number}").paths
            value = (await b.client.metadata.tree.read(paths.allocation)).value
            named |= {int(value)} if value else set()
        assert made & set(await b.ledgers()) <= named
        assert made - named
        assert made & named

    run(scene)


def test_closing_a_namespace_ends_the_writers_that_are_being_opened() -> None:
    """They were opened all the same, and nobody ended them before the client."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        b.world.metadata_delay_s = 0.01
        for number in range(12):
            streams = await open_namespace(b.client, b.streams.path)
            lock = 60.0 if number % 2 else None
            opening = asyncio.ensure_future(streams.open_writer("s", lock=lock).__aenter__())
            await asyncio.sleep(0.02 * number)
            await streams.close()
            [found] = await asyncio.gather(opening, return_exceptions=True)
            assert isinstance(found, StreamClosedError) or found.closed
            with pytest.raises(StreamClosedError, match="namespace /acme/test is closed"):
                await streams.open_writer("s")
            async with b.streams.open_writer("s", lock=1.0) as writer:  # it is free
                await writer.append(b"0")

    run(scene)


def test_an_old_leader_s_snapshot_does_not_replace_a_later_one() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings=SMALL)
        old = await open_dict(b.streams, "d")
        await old.set("a", 1)
        real = old.leader.confirm

        async def confirm() -> None:  # and then it sleeps, while another takes over
            await real()
            async with await open_dict(b.streams, "d") as new:
                for number in range(20):
                    await new.set("b", number)
                await new.leader.snapshot()

        old.leader.confirm = confirm  # type: ignore[method-assign]
        with pytest.raises(StreamFencedError):
            await old.leader.snapshot()
        async with await open_dict(b.streams, "d") as again:
            assert dict(again) == {"a": 1, "b": 19}

    run(scene)


def test_a_machine_starts_at_the_first_command_or_at_a_snapshot() -> None:
    """It does not begin at the oldest remaining record, if both came just in between."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings=SMALL)
        leader = await open_dict(b.streams, "d")
        for number in range(20):
            await leader.set(str(number), number)
        real = b.streams.open_reader
        done = []

        async def open_reader(*what: Any, **how: Any) -> Any:
            if not done:
                done.append(1)
                await leader.leader.snapshot()
            return await real(*what, **how)

        b.streams.open_reader = open_reader  # type: ignore[method-assign]
        machine = Dictionary()
        async with await follow(b.streams, "d", machine) as follower:
            await follower.wait_applied(20)
        assert machine.items == dict(leader)
        await leader.close()

    run(scene)


def test_a_follower_that_applied_everything_continues_after_a_snapshot() -> None:
    """The records that it had not read contained no command."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings=SMALL)
        leader = await open_dict(b.streams, "d")
        machine = Dictionary()
        await leader.set("a", 1)
        follower = await follow(b.streams, "d", machine)
        await follower.wait_applied(1)
        await follower._tasks.close()  # It has stopped.
        await leader.leader.snapshot()
        await leader.close()
        await fill_dictionary(b)
        follower._tasks.start(follower._run())
        await follower.wait_applied(31)
        assert machine.items["b"] == 29
        await follower.close()

    async def fill_dictionary(b: Bench) -> None:
        async with await open_dict(b.streams, "d") as again:
            for number in range(30):
                await again.set("b", number)
            await b.streams.truncate("d", DLSN(1, 1 << 30, 0))

    run(scene)


def test_a_snapshot_replaced_during_its_read_is_read_again() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("d", settings=SMALL)
        leader = await open_dict(b.streams, "d")
        for number in range(10):
            await leader.set("a", number)
        await leader.leader.snapshot()
        real = Objects.get

        async def get(self: Objects, name: str) -> Any:
            found = await real(self, name)
            if self.bucket == BUCKET and not late:
                late.append(1)
                await leader.set("a", 10)
                await leader.leader.snapshot()
                for bookie in b.world.bookies.values():
                    await bookie.collect_garbage()
            return found

        late: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Objects, "get", get)
            machine = Dictionary()
            async with await follow(b.streams, "d", machine) as follower:
                await follower.wait_applied(11)
        assert machine.items == {"a": 10}
        await leader.close()

    run(scene)


def test_setting_a_token_fails_if_the_writer_ends_meanwhile() -> None:
    """The writer once waited forever for a mark that nobody sent any more (seed 531276781)."""

    async def scene(b: Bench) -> None:
        for ends in ("fenced", "abandoned"):
            writer = await b.streams.open_writer(ends, create=True)
            await writer.append(b"0")
            metadata = writer._segments.metadata
            note_marks = metadata.note_marks

            async def ended(
                note: Callable[[], Awaitable[Any]] = note_marks,
                task: Any = writer._writer_task,
                ends: str = ends,
            ) -> Any:
                noted = await note()
                if ends == "fenced":
                    task._fail(StreamFencedError("taken over"))
                else:
                    task.abandon()
                return noted

            metadata.note_marks = ended  # type: ignore[method-assign]
            async with asyncio.timeout(60):
                with pytest.raises((StreamFencedError, StreamClosedError)):
                    await writer.set_fencing_token("mine")

    run(scene)


def test_retention_reads_only_the_segments_that_it_deletes() -> None:
    """A stream may have very many segments, and a writer applies retention after each one."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_s": 150})
        for _ in range(8):
            async with await b.streams.open_writer("s") as writer:
                await writer.append(b"0")
            await asyncio.sleep(20)
        metadata, settings = b.streams.metadata("s"), await b.streams.stream_settings("s")
        life, read, nodes = (await metadata.life()).path, metadata.tree.read, []

        async def counted(path: str) -> Versioned[bytes]:
            nodes.append(path)
            return await read(path)

        metadata.tree.read = counted  # type: ignore[method-assign]
        assert [one.lssn for one in await retain(b.client, metadata, settings, life=life)] == [1]
        named = [path for path in nodes if path.startswith(f"{metadata.paths.segments}/")]
        # The newest one shows that the stream is still the same. The second one is kept.
        assert sorted(map(int, (path[-18:] for path in named))) == [1, 2, 8]

    run(scene)


def test_retention_of_a_former_stream_does_not_touch_the_new_one() -> None:
    """Its settings and the ages of its segments say nothing about another stream of its name."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_bytes": 1})
        await fill(b, "s", 1)
        former, metadata = await b.streams.open_writer("s"), b.streams.metadata("s")
        settings, life = await b.streams.stream_settings("s"), await metadata.life()
        await b.streams.delete_stream("s")
        await fill(b, "s", 4)
        with pytest.raises(NoSuchStreamError, match="was not truncated"):
            await retain(b.client, metadata, settings, life=life.path)
        former._segments.retain()
        await asyncio.sleep(1)
        assert [r.payload for r in await b.read("s")] == [b"0", b"1", b"2", b"3"]

    run(scene)


def test_retention_does_not_mix_the_settings_of_two_streams() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_bytes": 1})
        former = b.streams.stream_settings

        async def late(name: str) -> StreamSettings:
            settings = await former(name)
            b.streams.stream_settings = former  # type: ignore[method-assign]
            await b.streams.delete_stream("s")
            await fill(b, "s", 3)
            return settings

        b.streams.stream_settings = late  # type: ignore[method-assign]
        with pytest.raises(NoSuchStreamError, match="another stream has its name"):
            await b.streams.retain("s")
        assert len(await b.read("s")) == 3
        await b.streams.configure_stream("s", {"retention_bytes": 1})
        b.streams.stream_settings = late  # type: ignore[method-assign]
        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"3")
            await writer.roll()
            await asyncio.sleep(1)
        assert len(await b.read("s")) == 4

    run(scene)


def test_the_producer_that_was_idle_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its retries would create duplicates, so it must not be one that is at work."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    state = ControlState()
    for number, name in enumerate("abcad"):
        state.sent(name, number, DLSN(1, number, 0))
    assert list(state.producers) == ["c", "a", "d"]
    assert state.last_sequence("a") == 3
    assert state.last_sequence("b") == -1
    copy = state.copy()
    copy.sent("e", 5, DLSN(1, 5, 0))
    assert list(copy.producers) == ["a", "d", "e"]
    assert list(state.producers) == ["c", "a", "d"]


@pytest.mark.parametrize("order", ["abcd", "dcba", "bdac", "cabdca"])
@pytest.mark.parametrize("reopened", [1, 2, 4])
def test_a_takeover_does_not_change_which_producer_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, order: str, reopened: int
) -> None:
    """A segment begins with the producers in the order of their ids, not of their records."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 4)

    async def scene(b: Bench) -> None:
        sent = dict.fromkeys("abcde", 0)

        async def append(writer: StreamWriter, name: str) -> None:
            producer = await writer.producer(name)
            await producer.append(name.encode(), sent[name])
            sent[name] += 1

        async with b.streams.open_writer("s", create=True) as writer:
            for name in order:
                await append(writer, name)
        expected = list(dict.fromkeys(reversed(order)))[::-1]  # the one that was silent longest
        for _ in range(reopened - 1):
            async with b.streams.open_writer("s"):
                pass
        async with b.streams.open_writer("s") as writer:
            await append(writer, "e")
        segments = await b.streams.segments("s")
        marks = await read_marks(b.client, segments, b"")
        assert list(marks.producers) == [*expected[1:], "e"]

    run(scene)


def test_a_position_is_not_stored_in_a_stream_that_took_the_name_meanwhile() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, "s", 2)
        subscription = await b.streams.subscription("s", "reader")
        assert await subscription.commit(DLSN(1, 0, 0))
        tree, real = b.streams.metadata("s").tree, b.streams.metadata("s").tree.commit

        async def late(*operations: Operation) -> list[Result]:
            tree.commit = real  # type: ignore[method-assign]
            await b.streams.delete_stream("s")
            await fill(b, "s", 1)
            other = await b.streams.subscription("s", "reader")
            assert await other.commit(DLSN(1, 0, 0))
            return await real(*operations)

        tree.commit = late  # type: ignore[method-assign]
        with pytest.raises(NoSuchStreamError):
            await subscription.commit(DLSN(2, 0, 0))
        assert tree.commit == real
        again = await b.streams.subscription("s", "reader")
        assert await again.position() == DLSN(1, 0, 0)

    run(scene)


def test_the_token_in_force_is_that_of_the_newest_segment() -> None:
    """The next writer reads back to the state at the beginning of that segment, and no further."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        producer = await writer.producer("p")
        await producer.append(b"0", 0)
        for number, token in ((1, "first"), (2, "second"), (3, "")):
            before = "" if number == 1 else ("first" if number == 2 else "second")
            await writer.set_fencing_token(token, expect=before)
            await writer.roll()
            await producer.append(b"%d" % number, number, token=token)
            await writer.close()
            writer = await b.streams.open_writer("s")
            if token:
                with pytest.raises(StreamConditionError):
                    await writer.append(b"x")
            producer = await writer.producer("p")
            assert producer.last_sequence == number
            assert await producer.append(b"x", number, token=token) is None
        await writer.close()
        assert [record.payload for record in await b.read("s")] == [b"0", b"1", b"2", b"3"]

    run(scene)


def test_a_stream_whose_end_is_in_an_open_segment_is_not_reopened() -> None:
    """Its writer died when the end was acknowledged, and the segment was not completed."""

    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"0")
        with pytest.MonkeyPatch.context() as patch:

            async def dies(self: Segments) -> None:
                await asyncio.Event().wait()

            patch.setattr(Segments, "complete", dies)
            ending = asyncio.ensure_future(writer.end_stream())
            await asyncio.sleep(1)
            writer.abandon()
            await asyncio.gather(ending, return_exceptions=True)
        assert await b.numbers("s") == [-1]
        for _ in range(2):
            with pytest.raises(StreamEndedError):
                await b.streams.open_writer("s")
            assert await b.numbers("s") == [1]
        assert [record.payload for record in await b.read("s", follow=True)] == [b"0"]

    run(scene)


def test_a_record_of_the_time_at_which_its_segment_was_completed_is_found() -> None:
    async def scene(b: Bench) -> None:
        await fill(b, "s", 3)
        segments = [dataclasses.replace(s, completion_time_ms=s.last_txid) for s in
                    await b.streams.segments("s")]  # fmt: skip
        records = await b.read("s")
        assert len({record.txid for record in records}) == 3
        for record in records:
            for start in (AtTime(record.txid), AtTxid(record.txid)):
                found = await find(b.client, segments, start, b"")
                at, *_ = await b.read("s", start=found)
                assert at.position == record.position

    run(scene)


def test_a_claim_is_not_taken_from_a_writer_that_came_since() -> None:
    """A sink looked at the stream before, and would fence a writer that it may not fence."""

    async def scene(b: Bench) -> None:
        await fill(b, "s", 1)
        metadata = b.streams.metadata("s")
        seen = await metadata.shared_claim()
        writer = await b.streams.open_writer("s")
        with pytest.raises(StreamFencedError):
            await metadata.claim("job/j", seen.ledgers_version)
        await writer.append(b"1")
        await writer.close()
        now = await metadata.shared_claim()
        taken = await metadata.claim("job/j", now.ledgers_version)
        assert taken.ledgers_version == now.ledgers_version + 1
        assert [record.payload for record in await b.read("s")] == [b"0", b"1"]

    run(scene)


def test_a_gap_that_a_second_listing_does_not_show_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nodes of segments are not listed at one moment: one may be completed meanwhile."""

    async def scene(b: Bench) -> None:
        await fill(b, "s", 3)
        real, looks = SegmentList.look, list[bool]()

        async def look(self: SegmentList, *, anew: bool = False) -> Sequence[StreamSegment]:
            found = await real(self, anew=anew)
            looks.append(anew)
            if len(looks) == 1:
                found = self.segments = [one for one in found if one.lssn != 2]
            return found

        monkeypatch.setattr(SegmentList, "look", look)
        assert [record.payload for record in await b.read("s")] == [b"0", b"1", b"2"]
        assert looks == [False, True, False]  # the last one at the end of the list

    run(scene)
