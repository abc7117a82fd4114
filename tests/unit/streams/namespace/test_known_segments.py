"""Readers that look at the segments of a stream again and again read only what is new."""

from __future__ import annotations

import asyncio

import pytest

from quire.metadata.interface import Versioned
from quire.metadata.tree import Create, Delete
from quire.streams import StreamSegment
from quire.streams.namespace import known_segments
from quire.streams.namespace.known_segments import DOUBTED_MIN, READ_ANEW_S, KnownSegments
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.namespace.truncation import truncate
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
