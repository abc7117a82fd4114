"""The driver's side of a streaming query.

It finds what is new, decides how much of it a trigger reads, and measures how far the query is
behind. It runs on the event loop of the client, without Spark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from quire._runtime.tasks import TaskSet, came, each
from quire.client import Client
from quire.errors import (
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchStreamError,
    ReadError,
    StreamError,
    StreamGapError,
    UsageError,
)
from quire.spark.streams.follower import StreamFollower
from quire.spark.streams.offsets import Offsets, StreamOffset
from quire.spark.streams.options import STREAMS_MAX, StreamReadOptions
from quire.spark.streams.plan import StreamSplit
from quire.spark.streams.view import CountedPosition, StreamView, another_stream, lost
from quire.streams import EARLIEST, LATEST, Namespace
from quire.streams.namespace.namespace import open_namespace

POLL_S = 1.0
"""Seconds that an idle query waits for new records before it tells Spark that there are none."""
DISCOVERY_INTERVAL_S = 10.0
"""Seconds between two searches for new streams that match a pattern."""

PATIENCE_S = 60.0
"""Seconds for which a stream may be unreadable before the query fails.

A stream is unreadable while its bookies, or the metadata store, do not answer.
"""

logger = logging.getLogger("quire.spark")


@dataclass(slots=True)
class _Followed:
    """The state of one stream of the query."""

    view: StreamView
    follower: StreamFollower | None = None
    frontier: CountedPosition | None = None
    """The end of the stream when it was last read, or None if it was not read yet."""
    done: CountedPosition | None = None
    """The counted position of the offset `done_for`, which saves reading it again, or None."""
    done_for: StreamOffset | None = None
    first_life: str | None = None
    """The id of the stream's life when the query opened the stream, for old offsets without an id.
    """
    abandoned: StreamOffset | None = None
    """The offset in a former stream of this name whose loss was already reported, or None."""
    stale: bool = True
    """Whether there may be records after `frontier`, so that the stream must be read again."""
    relist: bool = False
    """Whether segments may have been added or changed, so that their list must be read again."""
    failing_since_s: float | None = None
    """The event loop's time since which the stream could not be read, or None if it can be read."""


class StreamQuery:
    """The driver's part of one streaming query, which may read several streams.

    Calls must not overlap. Call `close` at the end.
    """

    def __init__(self, client: Client, options: StreamReadOptions) -> None:
        self.client = client
        self._options = options
        self._streams: Namespace | None = None
        self._cluster = ""
        self._tasks = TaskSet()
        self._followed: dict[str, _Followed] = {}
        self._news = asyncio.Event()
        self._discovered_s = float("-inf")
        self._search_fails_since_s: float | None = None
        """The event loop's time since which searches for streams fail, or None if they succeed."""
        self._target: dict[str, CountedPosition] | None = None
        """The ends at which a query with the trigger availableNow stops, by stream, or None."""
        self._held_since_s: float | None = None
        self._reported: Any = None
        """The state of the streams that `report` describes, so that it is made again only after a
        change.
        """
        self.report: dict[str, Any] | None = None
        """The answer to Spark's `reportLatestOffset`: the newest offsets and the lag of each
        stream.
        """

    async def open(self) -> None:
        """Open the namespace. Raises NoSuchNamespaceError if it does not exist."""
        options = self._options
        self._streams = await open_namespace(
            self.client, options.namespace, password=options.password
        )
        self._cluster = await self.client.metadata.instance_id()
        # The checkpoint may be newer than what this session's server of the store knows. The stream
        # would then seem to be another one, which has not reached the positions of the checkpoint.
        await self.client.metadata.tree.sync()

    async def close(self) -> None:
        """Stop following the streams, and close the namespace."""
        await self._tasks.close()
        for followed in self._followed.values():
            followed.view.close()
        if self._streams is not None:
            await self._streams.close()

    @property
    def streams(self) -> Namespace:
        """The open namespace."""
        assert self._streams is not None
        return self._streams

    # -- which streams ------------------------------------------------------------------------

    async def names(self) -> list[str]:
        """Return the names of the streams that the options select, as `stream_names` does."""
        return await stream_names(self.streams, self._options)

    async def _discover(self, known: Iterable[str] = ()) -> None:
        """Open streams that are new and close those that are gone.

        Does nothing within `DISCOVERY_INTERVAL_S` after the last search. Once the query follows
        streams, it continues with these for up to `PATIENCE_S` while a search fails, because the
        metadata store or the bookies do not answer. Raises NoSuchStreamError if a stream that was
        named does not exist.
        """
        now_s = asyncio.get_running_loop().time()
        if self._followed and now_s - self._discovered_s < DISCOVERY_INTERVAL_S:
            return
        self._discovered_s = now_s
        began = bool(self._followed)
        try:
            await self._search()
        except (MetadataUnavailableError, ReadError) as error:
            now_s = asyncio.get_running_loop().time()
            if self._search_fails_since_s is None:
                self._search_fails_since_s = now_s
                logger.warning("waiting to search for new streams: %s", error)
            if not began or now_s - self._search_fails_since_s >= PATIENCE_S:
                raise
        else:
            self._search_fails_since_s = None

    async def _search(self) -> None:
        names = await self.names()
        for name in [*self._followed]:
            if name not in names:
                gone = self._followed.pop(name)
                if gone.follower is not None:
                    gone.follower.stop()
                gone.view.close()

        async def opened(name: str) -> None:
            view = StreamView(self.streams, name)
            try:
                await view.open()
            except NoSuchStreamError:
                view.close()
                if self._options.pattern is None:
                    raise
                return  # deleted since the search
            except BaseException:
                view.close()
                raise
            self._followed[name] = _Followed(view, first_life=view.life or None)

        await each([name for name in names if name not in self._followed], opened)
        # Keep the order of the names, whichever stream answered first.
        self._followed = {name: self._followed[name] for name in names if name in self._followed}

    # -- offsets ------------------------------------------------------------------------------

    async def initial(self) -> Offsets:
        """Return the offsets at which the query begins.

        They have `begins` if a stream is read from `latest`, because Spark asks again if the query
        dies before its first micro-batch is committed, and the answer would be a later place.
        Raises NoSuchStreamError if a stream that was named does not exist, UsageError if a start
        does not fit its stream, and the errors of reading the stream.
        """
        await self._discover()
        reached: dict[str, StreamOffset] = {}
        begins = False
        for name, followed in self._followed.items():
            start = self._options.start.of(name) or EARLIEST
            begins = begins or start == LATEST
            position = await followed.view.find(start)
            done = await followed.view.mark(position)
            at = followed.view.reached(done)
            # Keep a place that was truncated: reading it reports the gap.
            known = at if at.position == position else StreamOffset(position, life=at.life)
            followed.done, followed.done_for = done, known
            reached[name] = known
        return Offsets(self._cluster, self.streams.path, reached, begins=begins)

    async def prepare_available_now(self) -> None:
        """Note the present ends of the streams, at which the query stops.

        Raises NoSuchStreamError, and the errors of reading a stream.
        """
        await self._discover()
        self._target = {}
        for name, followed in self._followed.items():
            await followed.view.look()
            self._target[name] = await followed.view.frontier()

    async def latest(self, start: Offsets, *, limited: bool, wait: bool) -> Offsets | None:
        """Return the offsets at which the next trigger ends, or None if there is nothing to read.

        With `limited` the options that limit a trigger apply. With `wait` the call waits for new
        records, for at most `POLL_S` seconds. If `start` has `begins`, the result is `start`
        without it, at once, so that the checkpoint stores the offsets before anything is read.

        Raises UsageError if the offsets belong to another cluster, namespace or query. Raises
        NoSuchStreamError if a stream was deleted, and StreamGapError if another stream has its name
        now. With the option `failOnDataLoss` set to false, a loss is only logged. Raises
        MetadataUnavailableError, ReadError, and StreamGapError for a ledger that is gone, once the
        failure has lasted for `PATIENCE_S`.
        """
        start.check(self._cluster, self.streams.path)
        if start.begins:
            return replace(start, begins=False)
        await self._discover()
        if self._target is None:
            self._follow()
        self._check_deleted(start)
        start = self._with_lives(start)
        marks = await self._starts(start)
        until_s = asyncio.get_running_loop().time() + (POLL_S if wait else 0.0)
        while True:
            self._news.clear()
            await self._look(start, marks)
            ends = (await self._admitted(marks)) if limited else self._frontiers(marks)
            moved = any(self._moved(name, start, mark, ends[name]) for name, mark in marks.items())
            if moved or self._target is not None or not await self._wait_for_news(until_s):
                break
        await self._report(marks, ends)
        if not moved:
            return None
        self._held_since_s = None
        return Offsets(self._cluster, self.streams.path, self._next_offsets(start, marks, ends))

    def _moved(
        self, name: str, start: Offsets, mark: CountedPosition, end: CountedPosition
    ) -> bool:
        """Return whether this stream requires a trigger.

        A stream requires one if it has records between `mark`, where the trigger begins, and `end`,
        or if the stream that the offset belongs to was replaced by another one of the same name.
        """
        reached = start.streams.get(name)
        restarted = reached is not None and self._followed[name].abandoned == reached
        return restarted or end.position > mark.position

    def _with_lives(self, start: Offsets) -> Offsets:
        """Return the offsets with the life of each stream.

        An earlier version stored offsets without it. The life tells a stream from an earlier one
        with the same name (`quire.streams.namespace.stream_life`).
        """
        return replace(start, streams={
            name: self._with_life(name, reached) for name, reached in start.streams.items()
        })  # fmt: skip

    def _with_life(self, name: str, reached: StreamOffset) -> StreamOffset:
        followed = self._followed.get(name)
        if reached.life is not None or followed is None:
            return reached
        return replace(reached, life=followed.first_life)

    async def _wait_for_news(self, until_s: float) -> bool:
        """Wait until a stream may have changed, and return whether that was before `until_s`.

        `until_s` is a time of the event loop.
        """
        return await came(self._news, asyncio.timeout_at(until_s))

    def _next_offsets(
        self,
        start: Offsets,
        marks: Mapping[str, CountedPosition],
        ends: Mapping[str, CountedPosition],
    ) -> dict[str, StreamOffset]:
        given: dict[str, StreamOffset] = {}
        for name, followed in self._followed.items():
            end = ends[name]
            if name not in start.streams or self._moved(name, start, marks[name], end):
                given[name] = followed.view.reached(end)
                followed.done, followed.done_for = end, given[name]
            else:
                given[name] = start.streams[name]
        return given

    def _follow(self) -> None:
        for name, followed in self._followed.items():
            if followed.follower is None:
                followed.follower = StreamFollower(self.streams, name, self._tasks, self._on_news)

    def _on_news(self, name: str, segments: bool) -> None:
        followed = self._followed.get(name)
        if followed is not None:
            followed.stale = True
            followed.relist |= segments
            self._news.set()

    def _check_deleted(self, start: Offsets) -> None:
        gone = [name for name in start.streams if name not in self._followed]
        if not gone:
            return
        if self._options.pattern is None:
            raise UsageError(
                f"the query's checkpoint has positions in {', '.join(sorted(start.streams))}, "
                f"but the query does not read {', '.join(gone)}",
                remedy="Use the options that the query was started with, or another checkpoint "
                "location",
            )
        self._report_loss(NoSuchStreamError(
            f"the query has read {', '.join(gone)}, but no such stream exists any more",
            remedy=("Restart the query with the option failOnDataLoss set to false to continue "
                    "with the other streams"),
        ))  # fmt: skip

    def _report_loss(self, error: StreamError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        logger.warning("continuing without lost records: %s", error)

    async def _starts(self, start: Offsets) -> dict[str, CountedPosition]:
        async def mark(name: str) -> tuple[str, CountedPosition]:
            return name, await self._start_of(name, start.streams.get(name))

        return dict(await each(self._followed, mark))

    async def _start_of(self, name: str, reached: StreamOffset | None) -> CountedPosition:
        """Return the position at which a trigger begins in a stream.

        If the offset belongs to another stream of this name, raise an error. If data loss is
        allowed, begin at the start of the present stream instead.
        """
        followed = self._followed[name]
        view, done = followed.view, followed.done
        if reached is None:
            return await view.mark(view.oldest)
        if not view.same_stream(reached):
            if followed.abandoned != reached:
                self._report_loss(another_stream(name, reached.position))
                followed.abandoned = reached
                followed.frontier, followed.stale = None, True
                if self._target is not None:
                    self._target[name] = await view.frontier()
            return await view.mark(view.oldest)
        if done is None or followed.done_for != reached or not view.knows(done):
            done = await view.mark(reached.position)
            followed.done, followed.done_for = done, reached
        return done

    # -- new records --------------------------------------------------------------------------

    async def _look(self, start: Offsets, marks: dict[str, CountedPosition]) -> None:
        """Read the ends of the streams that may have new records.

        `marks` has the position at which the trigger begins, by stream. If another stream has the
        name now, its mark is replaced.
        """
        await each(
            [name for name, followed in self._followed.items() if followed.stale],
            lambda name: self._look_at(name, start.streams.get(name), marks),
        )

    async def _look_at(
        self, name: str, reached: StreamOffset | None, marks: dict[str, CountedPosition]
    ) -> None:
        followed, mark = self._followed[name], marks[name]
        if self._target is not None:
            followed.frontier = self._target.get(name, mark)
            return
        relist = followed.relist
        followed.stale = followed.relist = False  # reset first: later changes must set it again
        try:
            if relist:
                life = followed.view.life
                await followed.view.look()
                if followed.view.life != life:
                    followed.frontier = None
                marks[name] = mark = await self._start_of(name, reached)
            found = await followed.view.frontier(mark.position)
        except NoSuchLedgerError as error:
            # The segment may have been truncated, or the next writer may have completed it as lost.
            followed.stale = followed.relist = True
            followed.view.forget()
            gone = StreamGapError(
                f"stream {name} cannot be read further, because the ledger of its last segment "
                f"is gone: {error}",
                remedy=(
                    "Open the stream for writing once, which completes the segment as lost. "
                    "Then restart the query with the option failOnDataLoss set to false to "
                    "continue after it"
                ),
            )
            if not self._is_patient(followed, gone):
                raise gone from error
            return
        except BaseException as error:
            followed.stale, followed.relist = True, relist
            if not self._tolerates(followed, error):
                raise
            return
        followed.failing_since_s = None
        frontier = followed.frontier
        if frontier is None or found.position > frontier.position:
            # The end of a segment, or control records alone, do not require a trigger.
            empty = followed.view.records_between(mark, found) == 0
            followed.frontier = mark if empty else found
        if followed.follower is not None:
            followed.follower.take()

    def _tolerates(self, followed: _Followed, error: BaseException) -> bool:
        """Return whether the query continues although reading this stream has raised `error`."""
        if isinstance(error, NoSuchStreamError) and self._options.pattern is not None:
            self._report_loss(error)
            self._discovered_s = float("-inf")  # search again: the stream will not be found
            return True
        return isinstance(error, ReadError | MetadataUnavailableError) and self._is_patient(
            followed, error
        )

    def _is_patient(self, followed: _Followed, error: Exception) -> bool:
        """Return whether the query has waited for this stream for less than `PATIENCE_S`."""
        now_s = asyncio.get_running_loop().time()
        if followed.failing_since_s is None:
            followed.failing_since_s = now_s
            logger.warning("waiting for news of stream %s: %s", followed.view.name, error)
        return now_s - followed.failing_since_s < PATIENCE_S

    def _frontiers(self, marks: Mapping[str, CountedPosition]) -> dict[str, CountedPosition]:
        found: dict[str, CountedPosition] = {}
        for name, mark in marks.items():
            frontier = self._followed[name].frontier
            found[name] = mark if frontier is None else max(frontier, mark, key=_position)
        return found

    # -- limits -------------------------------------------------------------------------------

    async def _admitted(self, marks: Mapping[str, CountedPosition]) -> dict[str, CountedPosition]:
        """Return where a trigger ends in each stream, within the limits of the options.

        While too few records are waiting, it ends where it begins.
        """
        options, ends = self._options, self._frontiers(marks)
        waiting = {
            name: self._followed[name].view.records_between(marks[name], end)
            for name, end in ends.items()
        }
        if self._target is None and self._too_few(sum(waiting.values())):
            return dict(marks)
        if options.records_max is not None:
            for name, limit in shares(waiting, options.records_max).items():
                view = self._followed[name].view
                ends[name] = await view.after_records(marks[name], limit, ends[name])
        if options.bytes_max is not None:
            ends = await self._within_bytes(marks, ends, options.bytes_max)
        return ends

    async def _within_bytes(
        self, marks: Mapping[str, CountedPosition], ends: Mapping[str, CountedPosition], limit: int
    ) -> dict[str, CountedPosition]:
        sizes = {
            name: await self._followed[name].view.bytes_between(marks[name], end)
            for name, end in ends.items()
        }
        found: dict[str, CountedPosition] = {}
        for name, share in shares(sizes, limit).items():
            view = self._followed[name].view
            found[name] = await view.after_bytes(marks[name], share, ends[name], least=False)
        moved = any(found[name].position > marks[name].position for name in found)
        for name, end in ends.items() if not moved else ():
            if end.position > marks[name].position:
                # One entry is larger than the limit: read it alone.
                view = self._followed[name].view
                found[name] = await view.after_bytes(marks[name], 0, end, least=True)
                break
        return found

    def _too_few(self, waiting: int) -> bool:
        if not 0 < waiting < self._options.records_min:
            return False
        now_s = asyncio.get_running_loop().time()
        if self._held_since_s is None:
            self._held_since_s = now_s
        return now_s - self._held_since_s < self._options.trigger_delay_s

    # -- lag ----------------------------------------------------------------------------------

    async def _report(
        self, marks: Mapping[str, CountedPosition], ends: Mapping[str, CountedPosition]
    ) -> None:
        frontiers = self._frontiers(marks)
        state = ({n: m.position for n, m in ends.items()}, frontiers)
        if state == self._reported:
            return
        self._reported = state
        lags: dict[str, dict[str, Any]] = {}
        for name, end in ends.items():
            lags[name] = await lag(self._followed[name].view, end, frontiers[name])
        newest = {name: self._followed[name].view.reached(mark) for name, mark in frontiers.items()}
        self.report = {
            **Offsets(self._cluster, self.streams.path, newest).to_json(),
            "lag": lags,
        }

    # -- reading ------------------------------------------------------------------------------

    async def splits(
        self, start: Offsets, end: Offsets, *, counts: bool
    ) -> list[list[StreamSplit]]:
        """Return what is to be read of each stream, in order.

        Raises StreamError if records are gone, unless data loss is allowed.
        """
        end.check(self._cluster, self.streams.path)

        async def of(name: str) -> list[StreamSplit]:
            followed = self._followed.get(name)
            view = followed.view if followed else StreamView(self.streams, name)
            try:
                if followed is None:
                    await view.open()
                return await self._splits_of(
                    view, start.streams.get(name), end.streams[name], counts
                )
            except NoSuchStreamError as error:
                self._report_loss(error)
                return []
            finally:
                if followed is None:
                    view.close()

        return await each(end.streams, of)

    async def _splits_of(
        self, view: StreamView, start: StreamOffset | None, end: StreamOffset, counts: bool
    ) -> list[StreamSplit]:
        if start == end:
            return []
        if self._followed.get(view.name) is None or self._target is not None:
            await view.look()
        if not view.same_stream(end):
            # The stream that the batch was planned for is gone. The next batch finds its successor.
            self._report_loss(another_stream(view.name, end.position))
            return []
        if start is not None:
            start = self._with_life(view.name, start)
            if not view.same_stream(start):
                self._report_loss(another_stream(view.name, start.position))
                start = None
        if start is not None and start.position >= end.position:
            return []
        first = view.oldest if start is None else start.position
        sequence = None if start is None else start.sequence
        try:
            splits, gaps = await view.splits(
                first, end.position, sequence, reached=True, counts=counts
            )
        except StreamGapError as error:
            if view.same_stream(end):
                raise
            self._report_loss(error)
            return []
        if gaps:
            self._report_loss(lost(view.name, gaps))
        return splits

    async def commit(self, end: Offsets) -> None:
        """Store the positions under the subscription's name, if there is one.

        A position that cannot be stored because of an error of its stream, or because the metadata
        store does not answer, is only logged. The next micro-batch stores a later one.
        """
        if self._options.subscription is None:
            return
        name = self._options.subscription

        async def store(stream: str) -> None:
            try:
                reached = end.streams[stream]
                followed = self._followed.get(stream)
                if followed is not None and not followed.view.same_stream(reached):
                    return  # the position belongs to a former stream of this name
                position = reached.position
                await self.streams.subscription(stream, name).commit(position)
            except (StreamError, MetadataUnavailableError) as error:
                logger.warning(
                    "subscription %s of stream %s was not moved: %s", name, stream, error
                )

        await each(end.streams, store)


async def stream_names(streams: Namespace, options: StreamReadOptions) -> list[str]:
    """Return the names that the options select.

    For a pattern these are the streams that exist now, and for a topic its partitions. Raises
    NoSuchStreamError if there is no such topic, and UsageError if the topic lacks a partition or
    more than `STREAMS_MAX` streams match the pattern.
    """
    if options.topic is not None:
        topic = await streams.topic(options.topic)
        wanted = range(topic.partitions) if options.partitions is None else options.partitions
        return [topic.stream(partition) for partition in wanted]
    if options.pattern is None:
        return list(options.streams)
    pattern = options.pattern
    names = [name for name in await streams.streams() if fnmatchcase(name, pattern)]
    if len(names) > STREAMS_MAX:
        raise UsageError(
            f"{len(names)} streams of namespace {streams.path} match the option streamPattern "
            f"{pattern!r}, but at most {STREAMS_MAX} can be read at once",
            remedy="Use a narrower pattern, or several queries",
        )
    return names


async def lag(view: StreamView, at: CountedPosition, frontier: CountedPosition) -> dict[str, Any]:
    """Return how far a reader at `at` is behind.

    The lag is the number of records and of stored bytes that it has not read, and the seconds for
    which the oldest of them has been waiting (None if that is unknown).
    """
    records = view.records_between(at, frontier)
    if not records:
        return {"records": 0, "bytes": 0, "seconds": 0.0}
    size_bytes = await view.bytes_between(at, frontier)
    seconds: float | None = None
    if at.next_ms is None:
        at = await view.mark(at.position)
    if at.next_ms is not None:
        seconds = max(view.now_ms() - at.next_ms, 0) / 1_000
    return {"records": records, "bytes": size_bytes, "seconds": seconds}


def shares(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide `limit` in proportion to the wanted amounts, without a remainder.

    If the limit is enough for all, each gets its wanted amount. Nothing gets more than that.
    """
    total = sum(wanted.values())
    if total <= limit:
        return dict(wanted)
    given = {name: limit * amount // total for name, amount in wanted.items()}
    left = limit - sum(given.values())
    for name, amount in wanted.items():
        more = min(left, amount - given[name])
        given[name] += more
        left -= more
    return given


def _position(mark: CountedPosition) -> Any:
    return mark.position
