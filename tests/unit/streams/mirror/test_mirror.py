"""Copies of streams: what is copied, truncated, deleted and refused, and how far a copy is behind.

`tests/sim/streams/test_mirror.py` kills and overtakes the processes that copy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire.client import Client
from quire.client.read import engine
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import UNASSIGNED_SEQUENCE_ID
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.codec.entry.entry import EntryRun
from quire.errors import (
    BookieUnavailableError,
    LaterMetadataError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchStreamError,
    QuireError,
    ReadError,
    StreamDamagedError,
    StreamDivergedError,
    StreamExistsError,
    StreamFencedError,
    StreamGapError,
    UnauthorizedError,
)
from quire.metadata.tree import Operation, Put
from quire.spark.streams.view import StreamView
from quire.streams.mirror import lag as lag_module
from quire.streams.mirror import mirror as mirrors
from quire.streams.mirror.check import (
    MARKER,
    carry_settings,
    check_gap,
    check_segments,
    copy_of,
    lacking,
    last_shown,
    source_of,
)
from quire.streams.mirror.copy import JOB, SOURCE_KEY, Piece, copy_ledger
from quire.streams.mirror.lag import Lag
from quire.streams.mirror.leftovers import Leftovers
from quire.streams.mirror.mirror import FollowedLedger, Mirror
from quire.streams.namespace.job_plans import job_plans
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.namespace.stored_settings import inherited_settings
from quire.streams.ownership import orphans
from quire.streams.publish.segment_builder import JOB_KEY, LIFE_KEY
from quire.streams.read.records import Record
from quire.streams.write.writer import StreamWriter
from quire_simulator.world.world import CLIENT_CONFIG
from tests.support.streams import Bench, run

NAME = "events"
PATIENCE_S = 30.0
EXPLICIT_LAC_S = 0.1
LAC_KNOWN_S = 1.0
"""Seconds (simulated) until bookies know that the last entry of an open ledger is acknowledged."""


@dataclass
class Scene:
    """A namespace, and another one on the same bookies that receives the copy of a stream."""

    bench: Bench
    source: Namespace
    target: Namespace
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    pieces: list[Piece] = field(default_factory=list)
    """What was given to the function that copies ledgers outside this process."""

    def mirror(self, *, stop: asyncio.Event | None = None, **how: Any) -> Mirror:
        client = self.bench.client

        async def copy(pieces: Sequence[Piece]) -> list[Piece]:
            self.pieces.extend(pieces)
            return [await copy_ledger(client, client, piece, b"", b"") for piece in pieces]

        given = {
            "overrides": {}, "truncation": False, "on_gap": "raise", "patience_s": PATIENCE_S,
            "copy": copy, "leftovers": Leftovers(client), **how,
        }  # fmt: skip
        return Mirror(
            self.source, self.target, NAME, given.pop("copy"), given.pop("leftovers"),
            stop=stop or self.stop, **given,
        )  # fmt: skip

    async def once(self, **how: Any) -> Mirror:
        """Copy what exists now."""
        stop = asyncio.Event()
        stop.set()
        mirror = self.mirror(stop=stop, **how)
        await mirror.run()
        await mirror.close()
        return mirror

    @asynccontextmanager
    async def following(self, **how: Any) -> AsyncIterator[Mirror]:
        """Copy until the end of the context, and raise the error of the replication there."""
        mirror = self.mirror(**how)
        work = asyncio.ensure_future(mirror.run())
        try:
            yield mirror
            self.stop.set()
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        await mirror.close()

    async def write(self, *numbers: int, open_: bool = False) -> StreamWriter:
        """Append one segment with one entry for each number."""
        writer = await self.source.open_writer(NAME)
        for number in numbers:
            await writer.append(b"%d" % number)
        if open_:
            await asyncio.sleep(LAC_KNOWN_S)
        else:
            await writer.close()
        return writer

    async def numbers(self, streams: Namespace) -> list[int]:
        reader = await streams.open_reader(NAME, on_gap="deliver")
        return [int(item.payload) async for item in reader if isinstance(item, Record)]

    async def shape(self, streams: Namespace) -> list[tuple[int, bool, str]]:
        segments = await streams.segments(NAME)
        return [(s.lssn, s.in_progress, s.truncation.name) for s in segments]

    async def ledgers_of(self, streams: Namespace) -> set[int]:
        return {segment.ledger_id for segment in await streams.segments(NAME)}

    async def marker(self, value: bytes) -> str:
        """Replace what the copy says it is a copy of, and return the path of that node."""
        metadata = self.target.metadata(NAME)
        path = f"{metadata.paths.root}/{MARKER}"
        found = await metadata.tree.read(path)
        await metadata.tree.commit(Put(path, value, found.version))
        return path


def scene(play: Callable[[Scene], Awaitable[None]]) -> None:
    async def main(b: Bench) -> None:
        # As in `quire pipeline replicate`, readers see the last entries of a ledger that is open.
        config = replace(CLIENT_CONFIG, explicit_lac_interval_s=EXPLICIT_LAC_S)
        async with (
            b.world.client("driver", config) as client,
            await open_namespace(client, "/acme/test") as source,
            await open_namespace(client, "/acme/copy", create=True) as target,
        ):
            await source.create_stream(NAME)
            await play(Scene(Bench(b.world, client, source), source, target))

    run(main)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):  # simulated
        while not await holds():
            await asyncio.sleep(0.02)


# -- what is copied ---------------------------------------------------------------------------


def test_completed_segments_are_copied_by_jobs_and_counted() -> None:
    async def play(s: Scene) -> None:
        await s.write(1, 2, 3)
        await s.write(4)
        mirror = await s.once()
        assert await s.numbers(s.target) == [1, 2, 3, 4]
        assert [piece["ledger"] for piece in s.pieces] == sorted(await s.ledgers_of(s.source))
        copies = await s.target.segments(NAME)
        originals = await s.source.segments(NAME)
        assert [replace(c, ledger_id=0) for c in copies] == [
            replace(o, ledger_id=0) for o in originals
        ]
        ledgers = [await s.bench.client.ledger_metadata(one.ledger_id) for one in originals]
        entries = sum(one.last_entry_id + 1 for one in ledgers)
        assert (mirror.copied.segments, mirror.copied.entries) == (2, entries)
        assert (mirror.last, mirror.partial, mirror.tail) == (2, None, None)
        size_bytes = 0
        for copy, original in zip(copies, originals, strict=True):
            made = await s.bench.client.ledger_metadata(copy.ledger_id)
            size_bytes += made.length
            assert made.custom[JOB_KEY] == JOB
            assert made.custom[SOURCE_KEY] == b"%d" % original.ledger_id
            assert made.custom["stream"] == s.target.metadata(NAME).paths.stream.encode()
            assert made.custom[LIFE_KEY] == (await s.target.metadata(NAME).life_id()).encode()
        assert mirror.copied.size_bytes == size_bytes
        again = await s.once()  # There is nothing left to copy.
        assert (again.copied.segments, again.copied.entries, len(s.pieces)) == (0, 0, 2)
        assert await s.target.segments(NAME) == copies

    scene(play)


def test_many_segments_are_published_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "SEGMENTS_AT_ONCE", 2)

    async def play(s: Scene) -> None:
        for number in range(5):
            await s.write(number)
        assert (await s.once()).copied.segments == 5
        assert await s.numbers(s.target) == list(range(5))

    scene(play)


def test_entries_of_a_segment_in_progress_appear_in_the_copy_immediately() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        writer = await s.write(2, 3, open_=True)
        async with s.following() as mirror:
            lag = Lag(mirror)

            async def caught_up() -> bool:
                return mirror.last > 0 and (await lag.measure())[0] == 0

            await until(caught_up)
            assert mirror.tail is not None
            assert mirror.tail.named
            await until(lambda: _is(mirror.tail is not None and mirror.tail.records == 2))
            entries, size_bytes = mirror.tail.entries, mirror.tail.size_bytes
            assert entries == mirror.tail.writer.last_add_confirmed + 1
            assert size_bytes == mirror.tail.writer.length
            assert await s.shape(s.target) == [(1, False, "ACTIVE"), (2, True, "ACTIVE")]
            assert (await lag.measure())[:2] == (0, 0)
            await writer.append(b"4")
            await until(lambda: _is(mirror.tail is not None and mirror.tail.records == 3))
            assert mirror.tail.entries > entries
            followed = mirror.tail.writer.ledger_id
            await writer.close()
            await until(lambda: _is(mirror.last == 2))
            # The followed ledger is the copy's ledger: nothing is copied again.
            assert (await s.target.segments(NAME))[-1].ledger_id == followed
            assert [mirror.partial, mirror.tail] == [None, None]
            await s.write(5)  # A small one, which the process copies itself.
            await until(lambda: _is(mirror.last == 3))
            assert s.pieces == []
            assert mirror.copied.segments == 3
        assert await s.numbers(s.target) == [1, 2, 3, 4, 5]

    scene(play)


async def _is(value: bool) -> bool:
    return value


def test_the_next_run_replaces_the_ledger_of_a_segment_in_progress() -> None:
    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        first = await s.once()
        assert (first.last, first.copied.segments) == (0, 0)
        assert await s.numbers(s.target) == [1, 2]
        (old,) = await s.target.segments(NAME)
        assert old.in_progress
        (original,) = await s.source.segments(NAME)
        assert await last_shown(s.target, old, original) >= 1
        # Without new records, the next run begins no other ledger.
        await s.once()
        assert await s.target.segments(NAME) == [old]
        await writer.append(b"3")
        await asyncio.sleep(LAC_KNOWN_S)
        await s.once()
        (new,) = await s.target.segments(NAME)
        assert (new.in_progress, new.ledger_id != old.ledger_id) == (True, True)
        with pytest.raises(NoSuchLedgerError):
            await s.bench.client.ledger_metadata(old.ledger_id)
        assert await s.numbers(s.target) == [1, 2, 3]
        # Once the source is completed, the whole segment is copied instead.
        await writer.close()
        last = await s.once()
        (done,) = await s.target.segments(NAME)
        assert (done.in_progress, last.copied.segments, last.partial) == (False, 1, None)
        with pytest.raises(NoSuchLedgerError):
            await s.bench.client.ledger_metadata(new.ledger_id)
        assert await s.numbers(s.target) == [1, 2, 3]
        named = await s.ledgers_of(s.source) | await s.ledgers_of(s.target)
        assert set(await s.bench.ledgers()) == named

    scene(play)


def test_a_stop_within_a_ledger_that_the_source_has_closed_leaves_the_copy_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy was closed after the entries that it had, and readers took that for its end."""
    monkeypatch.setattr(engine, "MAX_WINDOW_ENTRIES", 2)

    async def play(s: Scene) -> None:
        writer = await s.write(*range(20), open_=True)
        next_run = Mirror._next

        async def then_stop(self: Mirror, *which: Any) -> EntryRun | None:
            run = await next_run(self, *which)
            if run is not None and run.first == 0:
                for number in range(20, 80):
                    await writer.append(b"%d" % number)
                await writer.close()
                await asyncio.sleep(LAC_KNOWN_S)
            if run is not None and run.first >= 30:
                s.stop.set()
            return run

        monkeypatch.setattr(Mirror, "_next", then_stop)
        async with s.following() as mirror:
            await s.stop.wait()
        assert mirror.last == 0
        (copied,) = await s.target.segments(NAME)
        assert copied.in_progress
        assert not (await s.bench.client.ledger_metadata(copied.ledger_id)).closed
        reader = await s.target.open_reader(NAME)
        some = [int(record.payload) async for record in reader]
        assert some == list(range(len(some)))
        await s.once()
        some += [int(record.payload) async for record in reader]
        assert some == list(range(80))

    scene(play)


async def close_too_early(s: Scene) -> None:
    """Close the ledger of the copy's segment in progress, as autorecovery does without a writer."""
    (partial,) = await s.target.segments(NAME)
    async with await s.bench.client.open_ledger(partial.ledger_id, recover=True) as ledger:
        assert ledger.ledger_closed


def test_readers_get_the_rest_of_a_copy_whose_ledger_was_closed_too_early() -> None:
    """They took the end of the ledger for the end of the segment, and skipped what came later."""

    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        await s.once()
        followed: list[int] = []

        async def follow() -> None:
            async for record in s.target.open_reader(NAME, follow=True):
                followed.append(int(record.payload))
                if len(followed) == 4:
                    return

        follower = asyncio.ensure_future(follow())
        reader = await s.target.open_reader(NAME)
        some = [int(record.payload) async for record in reader]
        await close_too_early(s)
        await asyncio.sleep(LAC_KNOWN_S)
        some += [int(record.payload) async for record in reader]
        assert some == [1, 2]
        await writer.append(b"3")
        await asyncio.sleep(LAC_KNOWN_S)
        await s.once()
        some += [int(record.payload) async for record in reader]
        assert some == [1, 2, 3]
        await writer.append(b"4")
        await writer.close()
        await s.once()
        some += [int(record.payload) async for record in reader]
        assert some == [1, 2, 3, 4]
        async with asyncio.timeout(PATIENCE_S * 2):
            await follower
        assert followed == some

    scene(play)


def test_a_ledger_that_was_closed_too_early_stays_until_another_one_has_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replication that ended soon after it had begun left a copy with fewer records."""
    monkeypatch.setattr(engine, "MAX_WINDOW_ENTRIES", 2)

    async def play(s: Scene) -> None:
        writer = await s.write(*range(20), open_=True)
        await s.once()
        await close_too_early(s)
        await writer.append(b"20")
        await asyncio.sleep(LAC_KNOWN_S)
        next_run = Mirror._next

        async def then_stop(self: Mirror, *which: Any) -> EntryRun | None:
            run = await next_run(self, *which)
            if run is not None and run.first >= 4:
                s.stop.set()
            return run

        with monkeypatch.context() as patched:
            patched.setattr(Mirror, "_next", then_stop)
            async with s.following():
                await s.stop.wait()
        assert await s.numbers(s.target) == list(range(20))
        await s.once()
        assert await s.numbers(s.target) == list(range(21))
        writer.abandon()

    scene(play)


def test_a_read_goes_on_when_the_ledger_is_replaced_before_it_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read ended there, without a record and without an error."""

    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        await s.once()
        (former,) = await s.target.segments(NAME)
        await writer.append(b"3")
        await asyncio.sleep(LAC_KNOWN_S)
        client, replaced = s.bench.client, False
        open_ledger = client.open_ledger

        async def late(ledger_id: int, **how: Any) -> Any:
            nonlocal replaced
            if ledger_id == former.ledger_id and not replaced:
                replaced = True
                await s.once()
            return await open_ledger(ledger_id, **how)

        monkeypatch.setattr(client, "open_ledger", late)
        assert await s.numbers(s.target) == [1, 2, 3]
        assert replaced
        writer.abandon()

    scene(play)


def test_a_spark_query_continues_after_the_ledger_is_replaced() -> None:
    """The query once mistook the copy for another stream. It failed, or read all records again."""

    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        await s.once()
        view = StreamView(s.target, NAME)
        await view.open()
        reached = view.reached(await view.frontier())
        former = view.segments[-1]
        assert (reached.position, reached.ledger_id) == (DLSN(1, 2, 0), former.ledger_id)

        await writer.append(b"3")
        await asyncio.sleep(LAC_KNOWN_S)
        await s.once()
        await view.look()
        assert view.segments[-1].in_progress
        assert view.segments[-1].ledger_id != former.ledger_id
        assert view.same_stream(reached)
        splits, gaps = await view.splits(reached.position, None, reached.sequence, reached=True)
        assert [split.first for split in splits] == [2]
        assert not gaps

        await writer.close()
        await s.once()
        await view.look()
        assert [segment.in_progress for segment in view.segments] == [False]
        assert view.same_stream(reached)
        # Without its life, only the ledger can identify the stream.
        assert not view.same_stream(replace(reached, life=None))
        view.close()

    scene(play)


def test_last_shown_returns_the_last_entry_that_readers_of_the_copy_see() -> None:
    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        await s.once()
        (partial,) = await s.target.segments(NAME)
        (original,) = await s.source.segments(NAME)
        client = s.bench.client
        assert await last_shown(s.target, None, original) == -1
        assert await last_shown(s.target, partial, replace(original, lssn=2)) == -1
        # The segment in progress has another ledger in the source by now, which is a copy too.
        other = replace(original, ledger_id=original.ledger_id + 1_000)
        assert await last_shown(s.target, partial, other) >= 1
        assert await source_of(client, NAME, partial) == original.ledger_id
        assert await last_shown(s.target, partial, original) >= 1
        async with await client.open_ledger(partial.ledger_id, recover=True):
            pass
        assert await last_shown(s.target, partial, original) >= 1  # It is closed.
        await client.delete_ledger(partial.ledger_id)
        assert await source_of(client, NAME, partial) is None
        assert await last_shown(s.target, partial, original) == -1
        writer.abandon()

    scene(play)


def test_settings_are_copied_and_can_be_overridden() -> None:
    async def play(s: Scene) -> None:
        await s.source.configure_stream(NAME, {"retention_s": 5.0, "ack_quorum": 1})
        await s.write(1)
        await s.once(overrides={"write_quorum": 2})
        assert await s.target.own_stream_settings(NAME) == {
            "retention_s": 5.0, "ack_quorum": 1, "write_quorum": 2,
        }  # fmt: skip
        assert (s.pieces[0]["write_quorum"], s.pieces[0]["ack_quorum"]) == (2, 1)
        await s.source.configure_stream(NAME, {"retention_s": None})
        await s.once()
        assert await s.target.own_stream_settings(NAME) == {"ack_quorum": 1}
        metadata = s.target.metadata(NAME)
        await carry_settings(s.target, NAME, {"ack_quorum": 1})  # No change.
        assert await s.target.own_stream_settings(NAME) == {"ack_quorum": 1}
        assert await metadata.exists()

    scene(play)


def test_settings_of_the_nearest_source_namespace_are_copied() -> None:
    """The copy had the retention of the replicated namespace, which would delete its records."""

    async def play(s: Scene) -> None:
        client = s.bench.client
        assert await inherited_settings(client, "/acme/test", below="/acme/test") == {}
        await s.source.configure({"retention_s": 5.0, "write_quorum": 2})
        near = await open_namespace(
            client, "/acme/test/near", create=True, settings={"retention_s": 0.0, "ack_quorum": 1}
        )
        async with near.open_writer("s", create=True) as writer:
            await writer.append(b"1")
        await near.configure_stream("s", {"compression": "lz4"})
        stop = asyncio.Event()
        stop.set()
        mirror = Mirror(
            s.source, s.target, "near/s", s.mirror()._copy, Leftovers(client),
            overrides={"txids": "given"}, truncation=False, on_gap="raise", stop=stop,
            patience_s=PATIENCE_S,
        )  # fmt: skip
        await mirror.run()
        await mirror.close()
        assert await s.target.own_stream_settings("near/s") == {
            "retention_s": 0.0, "ack_quorum": 1, "compression": "lz4", "txids": "given",
        }  # fmt: skip
        await near.close()

    scene(play)


def test_producer_marks_are_copied_before_the_entries() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        await s.once()
        assert not await s.target.metadata(NAME).has_marks()
        await s.source.metadata(NAME).note_marks()
        await s.write(2)
        await s.once()
        assert await s.target.metadata(NAME).has_marks()

    scene(play)


# -- what the source truncated ----------------------------------------------------------------


def test_producers_survive_in_the_copy_of_a_stream_that_is_truncated_to_its_end() -> None:
    """The newest segment was copied without entries, and with it the numbers of the producers."""

    async def play(s: Scene) -> None:
        async with s.source.open_writer(NAME) as writer:
            producer = await writer.producer("p")
            for number in range(3):
                await producer.append(b"%d" % number, number)
            await writer.set_fencing_token("mine")
        await s.source.truncate(NAME, DLSN(2, 0, 0))
        await s.once()
        assert await s.shape(s.target) == [(1, False, "TRUNCATED")]
        async with s.target.open_writer(NAME) as writer:
            producer = await writer.producer("p")
            assert producer.last_sequence == 2
            assert await producer.append(b"2", 2, token="mine") is None
        assert await s.numbers(s.target) == []

    scene(play)


def test_the_copy_is_truncated_like_the_source() -> None:
    async def play(s: Scene) -> None:
        for number in (1, 2, 3):
            await s.write(number)
        await s.once(truncation=True)
        first = (await s.target.segments(NAME))[0].ledger_id
        await s.source.truncate(NAME, DLSN(2, 0, 0))
        await s.once(truncation=True)
        assert await s.shape(s.target) == await s.shape(s.source)
        with pytest.raises(NoSuchLedgerError):
            await s.bench.client.ledger_metadata(first)
        assert await s.numbers(s.target) == [2, 3]

    scene(play)


def test_a_copy_without_truncation_keeps_segments_that_the_source_truncated() -> None:
    async def play(s: Scene) -> None:
        for number in (1, 2, 3):
            await s.write(number)
        await s.once()
        await s.source.truncate(NAME, DLSN(3, 0, 0))
        mirror = await s.once()
        assert await s.numbers(s.target) == [1, 2, 3]
        await mirror.keep()
        assert await s.numbers(s.target) == [1, 2, 3]

    scene(play)


def test_segments_that_were_truncated_before_they_were_copied_are_a_gap() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        await s.once()
        for number in (2, 3, 4):
            await s.write(number)
        await s.source.truncate(NAME, DLSN(4, 0, 0))
        with pytest.raises(StreamGapError, match="truncated segments 2 to 3") as raised:
            await s.once()
        assert "--skip-gaps" in str(raised.value.remedy)
        assert await s.shape(s.target) == [(1, False, "ACTIVE")]
        await s.once(on_gap="skip")
        assert await s.numbers(s.target) == [1, 4]
        # Only the newest truncated segment has a node in the copy, with an empty ledger.
        shape = await s.shape(s.target)
        assert shape == [(1, False, "ACTIVE"), (3, False, "TRUNCATED"), (4, False, "ACTIVE")]
        empty = (await s.target.segments(NAME))[1]
        assert (await s.bench.client.ledger_metadata(empty.ledger_id)).last_entry_id == -1

    scene(play)


def test_a_copy_without_truncation_keeps_a_partial_segment_that_the_source_truncated() -> None:
    """A copy without a completed segment was said to have no gap, and its records were dropped."""

    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        await s.once()
        await writer.append(b"0")
        await writer.close()
        await s.write(3)
        await s.source.truncate(NAME, DLSN(2, 0, 0))
        with pytest.raises(StreamGapError, match="truncated segments 1 to 1") as raised:
            await s.once()
        assert "keeps what it has of segment 1" in str(raised.value.remedy)
        assert await s.numbers(s.target) == [1, 2]
        await s.once(on_gap="skip")
        assert await s.numbers(s.target) == [1, 2, 3]
        await s.write(4)
        await s.once()
        assert await s.numbers(s.target) == [1, 2, 3, 4]

    scene(play)


def test_a_copy_without_truncation_keeps_the_beginning_of_a_segment_that_it_had() -> None:
    """The copy of the completed segment was truncated like that of the source."""

    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        third = await writer.append(b"3")
        await asyncio.sleep(LAC_KNOWN_S)
        await s.once()
        await writer.close()
        await s.source.truncate(NAME, third)
        assert await s.numbers(s.source) == [3]
        await s.once()
        assert await s.numbers(s.target) == [1, 2, 3]
        await s.once()
        assert await s.numbers(s.target) == [1, 2, 3]

    scene(play)


def test_a_copy_is_not_truncated_like_another_stream_that_just_got_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(s: Scene) -> None:
        for number in (1, 2, 3):
            await s.write(number)
        mirror = await s.once(truncation=True)
        segments = mirror._from.segments

        async def of_another(*which: Any) -> list[StreamSegment]:
            await s.source.delete_stream(NAME)
            await s.source.create_stream(NAME)
            for number in (4, 5, 6):
                await s.write(number)
            await s.source.truncate(NAME, DLSN(3, 0, 0))
            return await segments(*which)

        monkeypatch.setattr(mirror._from, "segments", of_another)
        with pytest.raises(StreamDivergedError):
            await mirror.keep()
        assert await s.numbers(s.target) == [1, 2, 3]

    scene(play)


def test_a_segment_in_progress_that_the_source_truncated_is_dropped_in_the_copy() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        writer = await s.write(2, open_=True)
        await s.once()
        (_, partial) = await s.target.segments(NAME)
        await writer.close()
        await s.write(3)
        await s.write(4)
        await s.source.truncate(NAME, DLSN(4, 0, 0))
        assert [one.lssn for one in await s.source.segments(NAME)] == [3, 4]
        mirror = await s.once(truncation=True)
        assert mirror.partial is None
        assert (await s.shape(s.target))[1:] == [(3, False, "TRUNCATED"), (4, False, "ACTIVE")]
        with pytest.raises(NoSuchLedgerError):
            await s.bench.client.ledger_metadata(partial.ledger_id)

    scene(play)


async def restore_before_newest(s: Scene) -> None:
    """Give the source the metadata that it had before its segment in progress began."""
    metadata = s.source.metadata(NAME)
    claim = await metadata.claim()
    await metadata.change(claim, drop=(await s.source.segments(NAME))[-1])


def test_a_copy_keeps_records_that_a_restored_source_lacks() -> None:
    """The copy's segment in progress was dropped, and nobody had its records any more."""

    async def play(s: Scene) -> None:
        await s.write(1)
        writer = await s.write(2, open_=True)
        await s.once()
        await restore_before_newest(s)
        writer.abandon()
        for truncation in (False, True):
            with pytest.raises(StreamDivergedError, match="the source ends with segment 1"):
                await s.once(truncation=truncation)
            assert await s.numbers(s.target) == [1, 2]

        # The source goes on with another segment of the same number.
        writer = await s.write(7, 8, 9, open_=True)
        with pytest.raises(StreamDivergedError, match="the source has another one of that number"):
            await s.once()
        assert await s.numbers(s.target) == [1, 2]
        await writer.close()
        with pytest.raises(StreamDivergedError, match="restored from a backup"):
            await s.once()
        assert await s.numbers(s.target) == [1, 2]

    scene(play)


def test_a_segment_number_without_records_may_be_used_again_in_the_source() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        writer = await s.source.open_writer(NAME)
        await writer.set_fencing_token("a")
        await asyncio.sleep(LAC_KNOWN_S)
        await s.once()
        assert await s.shape(s.target) == [(1, False, "ACTIVE"), (2, True, "ACTIVE")]
        await restore_before_newest(s)
        writer.abandon()
        await s.once()
        await s.write(2)
        await s.once()
        assert await s.numbers(s.target) == [1, 2]

    scene(play)


def test_the_copy_of_a_copy_stays_until_another_ledger_has_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A short run took the records of the source's former ledger from the readers of the copy."""
    monkeypatch.setattr(engine, "MAX_WINDOW_ENTRIES", 2)

    async def play(s: Scene) -> None:
        writer = await s.write(*range(20), open_=True)
        await s.once()
        async with await open_namespace(s.bench.client, "/acme/third", create=True) as third:
            further = Scene(s.bench, s.target, third)
            await further.once()
            assert await s.numbers(third) == list(range(20))
            await writer.append(b"20")
            await asyncio.sleep(LAC_KNOWN_S)
            await s.once()
            next_run = Mirror._next

            async def then_stop(self: Mirror, *which: Any) -> EntryRun | None:
                run = await next_run(self, *which)
                if run is not None and run.first >= 4:
                    further.stop.set()
                return run

            with monkeypatch.context() as patched:
                patched.setattr(Mirror, "_next", then_stop)
                async with further.following():
                    await further.stop.wait()
            assert await s.numbers(third) == list(range(20))
            await further.once()
            assert await s.numbers(third) == list(range(21))
            await writer.close()
            await s.once()
            await further.once()
            assert await s.shape(third) == [(1, False, "ACTIVE")]
            assert await s.numbers(third) == list(range(21))

    scene(play)


def segment(lssn: int, **more: Any) -> StreamSegment:
    return StreamSegment(lssn, 100 + lssn, 0, in_progress=False, completion_time_ms=1, **more)


def test_the_segments_that_a_copy_lacks_are_found() -> None:
    gone = {"status": Truncation.TRUNCATED.value}
    segments = [segment(1, **gone), segment(2, **gone), segment(3), segment(4)]
    assert [s.lssn for s in lacking(segments, 0)] == [2, 3, 4]
    assert [s.lssn for s in lacking(segments, 2)] == [3, 4]
    assert lacking(segments, 4) == []
    check_gap(NAME, segments, 0)  # A copy without a segment has no gap.
    check_gap(NAME, segments, 2)
    with pytest.raises(StreamGapError, match="segments 2 to 2 before"):
        check_gap(NAME, segments, 1)
    check_gap(NAME, segments[:2], 1)


# -- copies that are none ---------------------------------------------------------------------


def test_a_segment_in_progress_has_no_sequence_id_in_the_copy() -> None:
    open_ = StreamSegment(3, 7, 0, start_sequence_id=50)
    assert copy_of(open_, 9) == replace(
        open_, ledger_id=9, start_sequence_id=UNASSIGNED_SEQUENCE_ID
    )
    done = replace(segment(3), start_sequence_id=50)
    assert copy_of(done, 9) == replace(done, ledger_id=9)


def test_segments_that_contradict_the_source_are_refused() -> None:
    source = [segment(2), segment(3)]
    other_ledger = replace(source[0], ledger_id=9, status=Truncation.TRUNCATED.value)
    check_segments(NAME, [segment(1), other_ledger], source)  # The source deleted segment 1.
    check_segments(NAME, [StreamSegment(4, 9, 0)], source)
    check_segments(NAME, [StreamSegment(3, 9, 0)], source)
    check_segments(NAME, [], [])
    with pytest.raises(StreamDivergedError, match="has segment 4, but the source ends with seg"):
        check_segments(NAME, [segment(4)], source)
    with pytest.raises(StreamDivergedError, match="source ends with segment 0"):
        check_segments(NAME, [segment(1)], [])
    with pytest.raises(StreamDivergedError, match="continues in the source"):
        check_segments(NAME, [segment(3)], [StreamSegment(3, 9, 0)])
    with pytest.raises(StreamDivergedError, match="segment 3 of stream events differs"):
        check_segments(NAME, [replace(segment(3), last_entry_id=8)], source)


def test_a_stream_that_no_replication_made_is_not_touched() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        await s.target.create_stream(NAME)
        with pytest.raises(StreamDivergedError, match="was not made by replication"):
            await s.once()
        assert await s.target.segments(NAME) == []

    scene(play)


def test_a_stream_is_not_copied_to_the_name_of_a_topic() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        await s.target.create_topic(NAME, 2)
        with pytest.raises(StreamExistsError, match="a topic has this name"):
            await s.once()
        assert not await s.target.exists(NAME)

    scene(play)


def test_a_copy_of_something_else_is_not_touched() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        mirror = await s.once()
        marker = dict(mirror._origin)
        for change, words in (
            ({"stream": "/else"}, "is a copy of stream /else in cluster"),
            ({"cluster": "elsewhere"}, "in cluster elsewhere, not of"),
            ({"life": "other"}, "a copy of a former stream"),
        ):
            await s.marker(json.dumps({**marker, **change}).encode())
            with pytest.raises(StreamDivergedError, match=words) as raised:
                await s.once()
            assert "delete that stream to start over" in str(raised.value.remedy)
            with pytest.raises(StreamDivergedError, match=words):
                await mirror.keep()
        damaged = {**marker, "format": 0}, {"format": 1, "cluster": marker["cluster"]}
        for value in (b"not json", b"[1]", *(json.dumps(one).encode() for one in damaged)):
            path = await s.marker(value)
            with pytest.raises(MetadataError, match=f"node {path} of the target .* cannot be dec"):
                await s.once()
        await s.marker(json.dumps({**marker, "format": 2}).encode())
        with pytest.raises(LaterMetadataError):
            await s.once()
        await s.marker(json.dumps(marker).encode())
        await s.once()

    scene(play)


def test_a_recreated_source_is_treated_as_another_stream() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        await s.once()
        await s.source.delete_stream(NAME)
        with pytest.raises(NoSuchStreamError):
            await s.once()
        await s.source.create_stream(NAME)
        await s.write(7)
        with pytest.raises(StreamDivergedError, match="which was deleted or renamed"):
            await s.once()
        assert await s.numbers(s.target) == [1]

    scene(play)


def test_a_source_recreated_during_an_outage_does_not_replace_the_copy() -> None:
    """If no segment of the copy was completed, its records were replaced by those of the other."""

    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        mirror = s.mirror()
        work = asyncio.ensure_future(mirror.run())
        await until(lambda: _is(mirror.tail is not None and mirror.tail.records == 2))
        assert mirror.tail is not None
        await asyncio.sleep(LAC_KNOWN_S)
        mirror.tail.writer.abandon()  # the next entry cannot be written, so the run begins again
        take = mirror._take

        async def after_an_outage() -> None:
            await s.source.delete_stream(NAME)
            await s.source.create_stream(NAME)
            await s.write(7, 8, 9, open_=True)
            await take()

        mirror._take = after_an_outage  # type: ignore[method-assign]
        await writer.append(b"3")
        with pytest.raises(StreamDivergedError, match="which was deleted or renamed"):
            await work
        await mirror.close()
        assert await s.numbers(s.target) == [1, 2]

    scene(play)


def test_another_writer_of_the_copy_ends_the_replication() -> None:
    async def play(s: Scene) -> None:
        source = await s.write(1, open_=True)
        mirror = s.mirror()
        work = asyncio.ensure_future(mirror.run())
        await until(lambda: _is(mirror.tail is not None and mirror.tail.named))
        other = await s.target.open_writer(NAME)
        await other.append(b"77")
        await source.append(b"2")
        await source.close()
        with pytest.raises(StreamFencedError, match="was taken over by another writer"):
            await work
        # And its segment in progress is no copy.
        with pytest.raises(StreamDivergedError):
            await s.once()
        await other.close()
        with pytest.raises(StreamDivergedError):
            await s.once()

    scene(play)


def test_a_claim_with_a_lost_reply_is_not_mistaken_for_another_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replication once ended with an error about another writer."""

    async def play(s: Scene) -> None:
        await s.write(1)
        stop = asyncio.Event()
        stop.set()
        mirror = s.mirror(stop=stop)
        failures = [BookieUnavailableError("gone") for _ in range(4)]
        copy, commit, lost = mirror._copy, mirror._to.tree.commit, list[str]()

        async def failing(pieces: Sequence[Piece]) -> list[Piece]:
            if failures:
                raise failures.pop()
            return await copy(pieces)

        async def committed(*operations: Operation) -> list[Any]:
            done = await commit(*operations)
            claims = operations[-1].path == mirror._to.paths.segments and len(operations) == 2
            if claims and len(failures) < 4 and len(lost) < 3:
                lost.append(operations[0].path)
                raise MetadataUnavailableError("the answer was lost")
            return done

        mirror._copy = failing
        monkeypatch.setattr(mirror._to.tree, "commit", committed)
        await mirror.run()
        await mirror.close()
        assert len(lost) == 3
        assert await s.numbers(s.target) == [1]

    scene(play)


def test_a_ledger_of_another_writer_in_the_copy_is_detected() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        await s.once()
        other = await s.target.open_writer(NAME)
        await other.append(b"77")
        newest = (await s.target.segments(NAME))[-1]
        with pytest.raises(StreamDivergedError, match="another writer is writing segment 2"):
            await source_of(s.bench.client, NAME, newest)
        with pytest.raises(StreamDivergedError, match="another writer is writing segment 2"):
            await s.once()
        await other.close()

    scene(play)


# -- failures ---------------------------------------------------------------------------------


def test_a_lost_ledger_of_the_source_is_a_gap() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        await s.write(2)
        lost = (await s.source.segments(NAME))[1].ledger_id
        await s.once()
        await s.write(3)
        lost = (await s.source.segments(NAME))[2].ledger_id
        await s.bench.client.delete_ledger(lost)
        with pytest.raises(StreamGapError, match="a ledger of the source is lost") as raised:
            await s.once()
        assert "truncate the source" in str(raised.value.remedy)
        assert len(s.pieces) == 2 + mirrors.LOOKS_MAX
        assert await s.numbers(s.target) == [1, 2]

    scene(play)


def test_a_segment_that_was_not_copied_completely_is_not_published() -> None:
    async def play(s: Scene) -> None:
        await s.write(1, 2, 3)

        async def short(pieces: Sequence[Piece]) -> list[Piece]:
            client = s.bench.client
            return [
                await copy_ledger(client, client, {**piece, "empty": True}, b"", b"")
                for piece in pieces
            ]

        with pytest.raises(StreamDamagedError, match="the copy has no entries, but") as raised:
            await s.once(copy=short)
        assert "2:0:0" in str(raised.value.remedy)
        assert await s.target.segments(NAME) == []
        await s.once()  # The next run deletes the useless ledger.
        named = await s.ledgers_of(s.source) | await s.ledgers_of(s.target)
        assert set(await s.bench.ledgers()) == named

    scene(play)


def test_transient_errors_are_retried_until_the_patience_ends() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        failures = 3
        asked: list[float] = []
        client = s.bench.client
        loop = asyncio.get_running_loop()

        async def copy(pieces: Sequence[Piece]) -> list[Piece]:
            asked.append(loop.time())
            if len(asked) <= failures:
                raise BookieUnavailableError("a bookie is away")
            return [await copy_ledger(client, client, piece, b"", b"") for piece in pieces]

        assert (await s.once(copy=copy)).copied.segments == 1
        assert len(asked) == failures + 1
        await s.write(2)
        asked.clear()
        failures = 1_000
        with pytest.raises(BookieUnavailableError):
            await s.once(copy=copy)
        assert PATIENCE_S < asked[-1] - asked[0] < PATIENCE_S + 10
        for error in (UnauthorizedError("no"), ValueError("a fault")):
            asked.clear()

            async def fail(pieces: Sequence[Piece], error: Exception = error) -> list[Piece]:
                asked.append(0)
                raise error

            with pytest.raises(type(error)):
                await s.once(copy=fail)
            assert len(asked) == 1

    scene(play)


@pytest.mark.parametrize("following", [False, True])
def test_entries_that_are_copied_again_do_not_count_as_progress(
    following: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run copied the entries before an unreadable one again and again, and never ended."""
    monkeypatch.setattr(engine, "MAX_WINDOW_ENTRIES", 2)

    async def play(s: Scene) -> None:
        writer = await s.write(*range(20), open_=True)
        next_run = Mirror._next
        broken = 10

        async def fail(self: Mirror, *which: Any) -> EntryRun | None:
            run = await next_run(self, *which)
            if run is not None and run.last >= broken:
                raise ReadError(f"entry {broken} cannot be read")
            return run

        if not following:
            s.stop.set()
        with monkeypatch.context() as patched:
            patched.setattr(Mirror, "_next", fail)
            async with asyncio.timeout(4 * PATIENCE_S):  # simulated
                with pytest.raises(ReadError, match="entry 10 cannot be read"):
                    await s.mirror().run()
        assert (await s.numbers(s.target))[:3] == [0, 1, 2]
        await s.once()
        assert await s.numbers(s.target) == list(range(20))
        writer.abandon()

    scene(play)


def test_each_entry_that_is_copied_further_counts_as_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MAX_WINDOW_ENTRIES", 2)

    async def play(s: Scene) -> None:
        writer = await s.write(*range(20), open_=True)
        next_run = Mirror._next
        reached = 0

        async def fail_later(self: Mirror, *which: Any) -> EntryRun | None:
            nonlocal reached
            run = await next_run(self, *which)
            if run is not None and run.last > reached:
                reached = run.last
                await asyncio.sleep(PATIENCE_S)
                raise ReadError("another entry cannot be read")
            return run

        monkeypatch.setattr(Mirror, "_next", fail_later)
        await s.once()
        assert await s.numbers(s.target) == list(range(20))
        writer.abandon()

    scene(play)


def test_a_copy_that_fails_leaves_no_ledger() -> None:
    async def play(s: Scene) -> None:
        await s.write(*range(5))
        await s.once()
        client, piece = s.bench.client, s.pieces[0]
        before = await s.bench.ledgers()
        copied = await copy_ledger(client, client, piece, b"", b"")
        made = await client.ledger_metadata(copied["ledger"])
        assert (copied["last"], copied["bytes"]) == (made.last_entry_id, made.length)
        empty = await copy_ledger(client, client, {**piece, "empty": True}, b"", b"")
        assert (empty["last"], empty["bytes"]) == (-1, 0)
        for ledger_id in (copied["ledger"], empty["ledger"]):
            await client.delete_ledger(ledger_id)
        for name in list(s.bench.world.bookies)[1:]:
            await s.bench.world.stop(name)  # Too few bookies for another ledger.
        with pytest.raises(QuireError):
            await copy_ledger(client, client, piece, b"", b"")
        assert await s.bench.ledgers() == before

    scene(play)


def test_a_ledger_that_was_named_without_an_answer_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a run that never reached the store again deleted it as unused."""

    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        stop = asyncio.Event()
        stop.set()
        mirror = s.mirror(stop=stop, patience_s=0.0)
        tree, down = mirror._to.tree, False
        commit = tree.commit

        async def committed(*operations: Operation) -> list[Any]:
            nonlocal down
            if not down:
                done = await commit(*operations)
                down = any("inprogress" in operation.path for operation in operations)
                if not down:
                    return done
            raise MetadataUnavailableError("the answer was lost")

        monkeypatch.setattr(tree, "commit", committed)
        with pytest.raises(MetadataUnavailableError):
            await mirror.run()
        assert down
        monkeypatch.setattr(tree, "commit", commit)
        await mirror.close()
        assert await s.numbers(s.target) == [1, 2]
        await writer.append(b"3")
        await asyncio.sleep(LAC_KNOWN_S)
        await s.once()
        assert await s.numbers(s.target) == [1, 2, 3]
        writer.abandon()

    scene(play)


def test_a_ledger_that_was_created_for_a_lost_claim_is_deleted() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        client = s.bench.client
        kept = await s.bench.ledgers()

        async def overtaken(pieces: Sequence[Piece]) -> list[Piece]:
            answers = [await copy_ledger(client, client, piece, b"", b"") for piece in pieces]
            await s.target.metadata(NAME).claim()
            return answers

        with pytest.raises(StreamFencedError, match="taken over"):
            await s.once(copy=overtaken)
        assert await s.bench.ledgers() == kept

    scene(play)


# -- leftovers --------------------------------------------------------------------------------


def test_only_unreferenced_ledgers_of_this_copy_are_deleted() -> None:
    async def play(s: Scene) -> None:
        await s.write(1)
        await s.once()
        client, piece = s.bench.client, s.pieces[0]
        left = (await copy_ledger(client, client, piece, b"", b""))["ledger"]
        other = (await copy_ledger(client, client, {**piece, "life": "b-1"}, b"", b""))["ledger"]
        foreign = await client.create_ledger(custom={"stream": piece["path"].encode()})
        await foreign.close()
        metadata = s.target.metadata(NAME)
        leftovers = Leftovers(client)
        stale = await metadata.claim()
        claim = await metadata.claim()
        with pytest.raises(StreamFencedError):
            await leftovers.sweep(metadata, stale)
        assert left in await s.bench.ledgers()
        assert await leftovers.sweep(metadata, claim) == [left]
        assert await leftovers.sweep(metadata, claim) == []
        there = set(await s.bench.ledgers())
        assert {other, foreign.ledger_id} <= there
        assert await s.ledgers_of(s.target) <= there
        # The ledger that was allocated for the next segment is in use.
        allocated = (await copy_ledger(client, client, piece, b"", b""))["ledger"]
        await metadata.allocate(claim, allocated)
        assert await leftovers.sweep(metadata, claim) == []
        assert allocated in await s.bench.ledgers()

    scene(play)


def test_a_deletion_of_orphans_never_deletes_a_ledger_that_the_copy_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The age limit of the deletion was shorter than the copy of the segments took."""

    async def play(s: Scene) -> None:
        await s.write(1, 2)
        await s.write(3)
        looked, published = asyncio.Event(), asyncio.Event()
        in_datasets, publish = orphans._in_datasets, Mirror._publish
        deletions: list[asyncio.Task[Any]] = []

        async def after_the_publication(client: Client) -> Any:
            looked.set()
            await published.wait()
            return await in_datasets(client)

        async def after_the_look(self: Mirror, *given: Any) -> None:
            if not deletions:
                monkeypatch.setattr(orphans, "_in_datasets", in_datasets)
                found = await orphans.find_orphans(s.bench.client, 0)
                assert len(found) == 2
                monkeypatch.setattr(orphans, "_in_datasets", after_the_publication)
                work = orphans.delete_orphans(s.bench.client, found)
                deletions.append(asyncio.ensure_future(work))
                await looked.wait()
            try:
                await publish(self, *given)
            finally:
                published.set()
                await deletions[0]

        monkeypatch.setattr(Mirror, "_publish", after_the_look)
        mirror = await s.once()
        assert deletions[0].done()
        assert mirror.copied.segments == 2
        assert await s.numbers(s.target) == [1, 2, 3]
        metadata = s.target.metadata(NAME)
        assert await job_plans(metadata.tree, metadata.paths.root) == []

    scene(play)


def test_a_new_copy_spares_the_ledgers_of_a_renamed_one() -> None:
    # The ledgers of a renamed stream still have the path of its former name in their metadata.
    async def play(s: Scene) -> None:
        await s.write(1, 2)
        await s.write(3)
        former = await s.once()
        await s.target.rename_stream(NAME, "kept")
        kept = {segment.ledger_id for segment in await s.target.segments("kept")}
        await s.once()
        await former._delete_unnamed(sorted(kept))  # as if its last reply had been lost
        assert kept <= set(await s.bench.ledgers())
        reader = await s.target.open_reader("kept")
        assert [int(record.payload) async for record in reader] == [1, 2, 3]
        assert await s.numbers(s.target) == [1, 2, 3]

    scene(play)


# -- lag --------------------------------------------------------------------------------------


def test_the_lag_of_a_copy_is_measured() -> None:
    async def play(s: Scene) -> None:
        await s.write(1, 2)
        mirror = await s.once()
        lag = Lag(mirror)
        assert await lag.measure() == (0, 0, 0.0)
        await s.write(3, 4, 5)
        records, size_bytes, seconds = await lag.measure()
        behind = (await s.source.segments(NAME))[1]
        length = (await s.bench.client.ledger_metadata(behind.ledger_id)).length
        assert (records, size_bytes, seconds) == (3, length, 0.0)
        await asyncio.sleep(7)
        records, size_bytes, seconds = await lag.measure()
        assert (records, size_bytes) == (3, length)
        assert 7 <= seconds < 8
        writer = await s.write(6, open_=True)
        await until(lambda: _more(lag, 4))
        # A truncated segment is not lacking, and neither is a lost one.
        await s.bench.client.delete_ledger(behind.ledger_id)
        assert (await lag.measure())[0] == 1
        await writer.close()

    scene(play)


def test_the_lag_in_seconds_is_not_limited_by_the_remembered_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lag once never exceeded the time span of the remembered measurements."""
    monkeypatch.setattr(lag_module, "OBSERVATIONS_MAX", 4)

    async def play(s: Scene) -> None:
        await s.write(1)
        lag = Lag(await s.once())
        for number in range(10):
            await s.write(number)
            _, _, seconds = await lag.measure()
            assert 10 * number <= seconds < 10 * number + 1
            await asyncio.sleep(10)
        for _ in range(10):  # the source is idle
            await lag.measure()
            await asyncio.sleep(10)
        assert 200 <= (await lag.measure())[2] < 202
        await s.once()
        lag._mirror.last = 11
        assert await lag.measure() == (0, 0, 0.0)

    scene(play)


async def _more(lag: Lag, records: int) -> bool:
    return (await lag.measure())[0] == records


def test_the_lag_within_a_segment_in_progress() -> None:
    async def play(s: Scene) -> None:
        writer = await s.write(1, 2, open_=True)
        mirror = await s.once()
        mirror.partial = (await s.target.segments(NAME))[0]
        lag = Lag(mirror)
        assert await lag.measure() == (0, 0, 0.0)
        await writer.append(b"3")
        await asyncio.sleep(LAC_KNOWN_S)
        await until(lambda: _more(lag, 1))
        _, size_bytes, _ = await lag.measure()
        await s.bench.client.delete_ledger(mirror.partial.ledger_id)  # Nothing is left to see.
        records, all_bytes, _ = await lag.measure()
        assert records == 3
        assert 0 < size_bytes < all_bytes
        await writer.close()

    scene(play)


def test_a_followed_ledger_counts_records_by_their_sequence_numbers() -> None:
    async def play(s: Scene) -> None:
        writer = await s.source.open_writer(NAME)
        await writer.append_many([b"a", b"b", b"c"])
        await writer.close()
        (done,) = await s.source.segments(NAME)
        async with await s.bench.client.open_ledger(done.ledger_id) as reader:
            payloads = [bytes(e.payload) async for e in reader.read(0, reader.last_add_confirmed)]
        tail = FollowedLedger(done, writer=None)  # type: ignore[arg-type]
        tail.count_records(0, payloads)
        assert tail.records == 3
        tail.count_records(len(payloads) - 1, payloads[-1:])  # A control record changes nothing.
        assert tail.records == 3

    scene(play)
