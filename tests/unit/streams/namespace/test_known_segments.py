"""Readers that look at the segments of a stream again and again read only what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from quire.codec.distributedlog.segment import Truncation
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.metadata.interface import Versioned
from quire.metadata.tree import Create, Delete
from quire.streams import StreamSegment
from quire.streams.namespace import known_segments, truncation
from quire.streams.namespace.known_segments import DOUBTED_MIN, READ_ANEW_S, KnownSegments
from quire.streams.namespace.known_sizes import known_sizes
from quire.streams.namespace.stream_life import StreamLife
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import truncate
from quire.streams.read.segment_list import LIST_AGAIN_S, SegmentList
from tests.support.streams import Bench, run

SEGMENTS = 12


async def add_segments(b: Bench, count: int) -> None:
    async with await b.streams.open_writer("s", create=True) as writer:
        for number in range(count):
            await writer.append(b"%d" % number)
            await writer.roll()


class NodesRead:
    """The names of the segments' nodes that this metadata object reads."""

    def __init__(self, metadata: StreamMetadata) -> None:
        self._read, self._directory = metadata.tree.read, f"{metadata.paths.segments}/"
        self.names: list[str] = []
        metadata.tree.read = self._counted  # type: ignore[method-assign]

    async def _counted(self, path: str) -> Versioned[bytes]:
        if path.startswith(self._directory):
            self.names.append(path.removeprefix(self._directory))
        return await self._read(path)

    def taken(self) -> list[str]:
        names, self.names = self.names, []
        return names


def test_a_second_look_reads_only_new_segment_nodes() -> None:
    async def scene(b: Bench) -> None:
        await add_segments(b, SEGMENTS)
        metadata = b.streams.metadata("s")
        known, nodes = KnownSegments(metadata), NodesRead(metadata)
        await known.look()
        nodes.taken()
        before = (await known.look())[1]
        assert len(nodes.taken()) <= 1, "only the newest one is read again"
        life, segments = await known.look()
        assert segments == before == await b.streams.segments("s")
        assert life == await metadata.life_id()

        # A sink adds segments under a claim that it shares, and claims nothing.
        last = segments[-1]
        added = StreamSegment.from_bytes(last.to_bytes())
        object.__setattr__(added, "lssn", last.lssn + 1)
        await metadata.tree.commit(Create(metadata.paths.segment(added.name), added.to_bytes()))
        nodes.taken()
        segments = (await known.look())[1]
        assert len(nodes.taken()) <= 2
        assert [segment.lssn for segment in segments] == [*range(1, last.lssn + 2)]

    run(scene)


def test_a_truncation_is_seen_at_the_next_look() -> None:
    async def scene(b: Bench) -> None:
        await add_segments(b, SEGMENTS)
        known = KnownSegments(b.streams.metadata("s"))
        segments = (await known.look())[1]
        await truncate(b.streams.metadata("s"), segments[3].first_dlsn)
        after = (await known.look())[1]
        assert after == await b.streams.segments("s") != segments
        await b.streams.truncate("s", segments[5].first_dlsn)
        after = (await known.look())[1]
        assert after == await b.streams.segments("s")
        assert len(after) < len(segments), "nodes of truncated segments are deleted"

    run(scene)


def test_after_a_truncation_only_the_oldest_segments_are_read_again() -> None:
    async def scene(b: Bench) -> None:
        await add_segments(b, 5 * DOUBTED_MIN)
        metadata = b.streams.metadata("s")
        known, nodes = KnownSegments(metadata), NodesRead(metadata)
        segments = (await known.look())[1]
        for truncated in (1, 3, 2 * DOUBTED_MIN):
            await b.streams.truncate("s", segments[truncated].first_dlsn)
            nodes.taken()
            assert (await known.look())[1] == await b.streams.segments("s")
            nodes.taken()
            await known.look()
            assert len(nodes.taken()) <= 1
        # Only some of the oldest ones are read, although something was truncated.
        await b.streams.truncate("s", segments[2 * DOUBTED_MIN + 1].first_dlsn)
        nodes.taken()
        await known.look()
        assert len(nodes.taken()) <= DOUBTED_MIN + 2

    run(scene)


def test_a_truncation_of_more_than_the_attempts_reach_is_no_other_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look failed, and so did all later ones: the stream "was deleted and created again"."""
    monkeypatch.setattr(known_segments, "LIST_ATTEMPTS", 3)
    monkeypatch.setattr(known_segments, "DOUBTED_MIN", 1)

    async def scene(b: Bench) -> None:
        await add_segments(b, SEGMENTS)
        known = KnownSegments(b.streams.metadata("s"))
        segments = (await known.look())[1]
        await truncate(b.streams.metadata("s"), segments[-2].first_dlsn)
        assert (await known.look())[1] == await b.streams.segments("s") != segments

    run(scene)


@pytest.mark.parametrize("disturbed", [None, 0, 1, 2, 5])
@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 6, 7])
def test_a_truncation_of_many_segments_is_made_in_parts_and_reported_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, at_once: int, disturbed: int | None
) -> None:
    """Another client may change the stream before any of the parts. No other part is repeated."""
    monkeypatch.setattr(truncation, "SEGMENTS_PER_COMMIT", at_once)

    async def scene(b: Bench) -> None:
        await add_segments(b, 8)
        segments = await b.streams.segments("s")
        metadata, other = (
            b.streams.metadata("s"),
            StreamMetadata(b.client, b.streams.metadata("s").paths),
        )
        mark, parts = metadata.mark_truncated, list[int]()

        attempts = 0

        async def marked(known: StreamLife, part: Sequence[StreamSegment]) -> StreamLife:
            nonlocal attempts
            attempts += 1
            if len(parts) == disturbed:
                # It truncates the last of them, and whatever is before it.
                await other.mark_truncated(await other.life(), [segments[5].truncated()])
                parts.append(0)
            done = await mark(known, part)
            parts.append(len(part))
            return done

        monkeypatch.setattr(metadata, "mark_truncated", marked)
        changed = await truncate(metadata, segments[6].first_dlsn)
        assert [one.truncation for one in await metadata.segments()] == [
            *[Truncation.TRUNCATED] * 6, *[Truncation.ACTIVE] * 2,
        ]  # fmt: skip
        ours = [one for one in parts if one]
        expected = 6
        if disturbed is not None and disturbed * at_once < 6:
            expected = 5  # the other client has changed one
        assert [one.lssn for one in changed] == list(range(1, expected + 1))
        assert sum(ours) == expected
        assert attempts <= -(-6 // at_once) + (disturbed is not None)

    run(scene)


def test_a_truncation_by_distributedlog_is_seen_after_a_while() -> None:
    """DistributedLog does not know the node that says that something was truncated."""

    async def scene(b: Bench) -> None:
        await add_segments(b, SEGMENTS)
        metadata = b.streams.metadata("s")
        known = KnownSegments(metadata)
        first = (await known.look())[1][0]
        path = metadata.paths.segment(first.name)
        await metadata.tree.commit(Delete(path), Create(path, first.truncated().to_bytes()))
        known.forget()
        assert (await known.look())[1][0] == first.truncated()
        await metadata.tree.commit(Delete(path), Create(path, first.to_bytes()))
        await asyncio.sleep(READ_ANEW_S + 1)
        assert (await known.look())[1][0] == first

    run(scene)


def test_a_recreated_stream_with_the_same_life_is_noticed() -> None:
    """DistributedLog deletes and creates streams without a change of their lives."""

    async def scene(b: Bench) -> None:
        await add_segments(b, SEGMENTS)
        metadata = b.streams.metadata("s")
        known = KnownSegments(metadata)
        former = (await known.look())[1]
        for segment in former:
            path = metadata.paths.segment(segment.name)
            other = StreamSegment.from_bytes(segment.to_bytes())
            object.__setattr__(other, "ledger_id", segment.ledger_id + 1_000)
            await metadata.tree.commit(Delete(path), Create(path, other.to_bytes()))
        present = (await known.look())[1]
        assert [s.ledger_id for s in present] == [s.ledger_id + 1_000 for s in former]

    run(scene)


def test_a_segment_that_is_completed_is_listed_once() -> None:
    async def scene(b: Bench) -> None:
        known = KnownSegments(b.streams.metadata("s"))
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"0")
            assert [segment.in_progress for segment in (await known.look())[1]] == [True]
            await writer.roll()
            await writer.append(b"1")
            segments = (await known.look())[1]
            assert [segment.in_progress for segment in segments] == [False, True]
            assert segments == await b.streams.segments("s")

    run(scene)


def test_a_look_succeeds_after_all_known_segments_changed() -> None:
    """Each look once gave up after 20 attempts, and retention did nothing any more."""

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            for number in range(SEGMENTS):
                await writer.append(b"%d" % number)
                await writer.roll()
            await writer.append(b"in progress")
            known = KnownSegments(b.streams.metadata("s"))
            segments = (await known.look())[1]
            await truncate(b.streams.metadata("s"), segments[4].first_dlsn)
            assert (await known.look())[1] == await b.streams.segments("s")
            await truncate(b.streams.metadata("s"), segments[-1].first_dlsn)
            await writer.roll()
            assert (await known.look())[1] == await b.streams.segments("s")

    run(scene)


# -- a list that follows the stream -----------------------------------------------------------


@pytest.mark.parametrize("moment", range(12))
def test_a_change_during_a_look_is_seen_at_once(moment: int) -> None:
    """The list does not wait for `LIST_AGAIN_S`, whenever the watch reports the change."""

    async def scene(b: Bench) -> None:
        await add_segments(b, 2)
        metadata = b.streams.metadata("s")
        async with SegmentList(metadata) as listed:
            await asyncio.sleep(1)  # the watch has reported the beginning
            await listed.look()
            operations = 0
            tree = metadata.tree
            read, children = tree.read, tree.children

            def leave() -> None:
                tree.read, tree.children = read, children  # type: ignore[method-assign]

            async def interrupted(call: Callable[..., Awaitable[Any]], path: str) -> Any:
                """Add a segment before the operation, or after it if `moment` is odd."""
                nonlocal operations
                operations += 1
                if operations <= moment // 2:
                    return await call(path)
                leave()
                if moment % 2:
                    found = await call(path)
                    await append(b)
                    return found
                await append(b)
                return await call(path)

            tree.read = partial(interrupted, read)  # type: ignore[method-assign]
            tree.children = partial(interrupted, children)  # type: ignore[method-assign]
            await listed.look()
            leave()
            if operations <= moment // 2:
                await append(b)  # the look makes fewer operations
            async with asyncio.timeout(LIST_AGAIN_S / 2):
                while len(listed.segments) < 3:
                    await listed.changed()

    async def append(b: Bench) -> None:
        last = (await b.streams.segments("s"))[-1]
        added = replace(last, lssn=last.lssn + 1)
        await b.client.metadata.tree.commit(
            Create(b.streams.metadata("s").paths.segment(added.name), added.to_bytes())
        )
        await asyncio.sleep(0.01)  # the watch reports it

    run(scene)


# -- sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", [0, 1, 2])
@pytest.mark.parametrize("completed", [False, True])
def test_the_size_of_a_ledger_is_remembered_once_it_is_closed(completed: bool, looks: int) -> None:
    """A writer may complete a segment and die before it closes the ledger."""

    async def scene(b: Bench) -> None:
        await add_segments(b, 1)
        metadata = b.streams.metadata("s")
        sizes = known_sizes(metadata)
        writer = await b.client.create_ledger()
        await writer.append(b"0123456789")
        segment = StreamSegment(2, writer.ledger_id, 1)
        if completed:
            segment = segment.completed(
                last_txid=1, record_count=1, last_entry_id=0, last_slot_id=0,
                completion_time_ms=1, start_sequence_id=1,
            )  # fmt: skip
        for _ in range(looks):
            assert await sizes.of([segment]) == [0]
        await writer.close()
        assert await sizes.of([segment]) == [10]
        reads = 0

        async def read(ledger_id: int) -> LedgerMetadata:
            nonlocal reads
            reads += 1
            return await ledger_metadata(ledger_id)

        ledger_metadata = b.client.ledger_metadata
        b.client.ledger_metadata = read  # type: ignore[method-assign]
        assert await sizes.of([segment]) == [10]
        assert reads == 0
        await b.client.delete_ledger(segment.ledger_id)
        assert await sizes.of([segment]) == [10]
        assert await sizes.of([segment.truncated()] if completed else []) == [0] * completed

    run(scene)
