"""The size, rate, lag and last write of streams, for lists of streams.

To learn them, the server reads the metadata of a stream and asks the bookies of its last segment.
This takes too long for a page of streams, so it happens in the background while somebody looks at
the page, and all viewers share it. A completed ledger never changes, so its size is read once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import MetadataError, NoSuchStreamError, QuireError
from quire.http.views.stream_statistics import StreamStatistics, subscription_lags
from quire.http.watch.observations import LOOK_SHARE, LOOK_WAIT_S, BackgroundObservation
from quire.streams import Namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.read.positions import oldest_position
from quire.streams.read.statistics import SegmentStatistics, records_from, segment_statistics

T = TypeVar("T")

FIGURES_INTERVAL_S = 2.0
"""The least number of seconds between two observations of streams."""
FIGURES_AGE_MAX_S = 60.0
"""The age in seconds of the oldest observation of a stream that is compared with a new one. A rate
over a longer time would not be current."""
STREAMS_KEPT_MAX = 2_000
"""The largest number of streams whose figures are kept."""
LEDGERS_KEPT_MAX = 20_000
"""The largest number of completed ledgers whose sizes are kept."""
SEGMENTS_LOOKED_AT_MAX = 200
"""The largest number of segments of a stream, the newest ones, that are looked at. In a stream with
as many or more, the numbers of records and bytes count as lower bounds."""
SUBSCRIPTIONS_COUNTED_MAX = 20
"""The largest number of subscriptions of a stream whose lag is counted for a list."""
STREAMS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """The result of one observation of a stream."""

    at_s: float
    """When the observation was made, in seconds of the monotonic clock."""
    whole: bool = True
    """Whether all segments were looked at. If not, `records` and `bytes` are lower bounds."""
    segments: int = 0
    records: int = 0
    bytes: int = 0
    last: str | None = None
    """The position of the last record."""
    last_time: str | None = None
    """The time of the last record, or None if it is not known."""
    ended: bool = False
    lag: int | None = None
    """The number of records that the slowest subscription has still to read, or None if the stream
    has no subscription."""
    slowest: str | None = None
    """The name of the subscription that has the most records still to read, or None."""
    subscriptions: int = 0
    error: str = ""
    """The reason why the stream could not be read, or '' if it could."""
    written: int | None = None
    """The number of records that were ever written, or None if it is not known."""
    sizes: Mapping[int, int] = field(default_factory=dict)
    """The size in bytes of each segment that was looked at, by the number of the segment."""
    progress: Sequence[Mapping[str, Any]] = ()
    """The progress of each counted subscription, as `subscription_lags` returns it."""

    @property
    def lags(self) -> dict[str, int]:
        """The number of records that each counted subscription has still to read, by its name."""
        return {one["name"]: one["records"] for one in self.progress if one["records"] is not None}

    def as_json(self, before: StreamFigures | None, now_s: float) -> dict[str, Any]:
        """Return the figures as JSON, with the rates since the observation `before`.

        A rate is None without an earlier observation that is recent enough. `now_s` is the present
        time of the monotonic clock.
        """
        records_per_s, bytes_per_s = self._rates(before)
        return {
            "segments": self.segments,
            "records": self.records,
            "bytes": self.bytes,
            "whole": self.whole,
            "last": self.last,
            "last_time": self.last_time,
            "ended": self.ended,
            "records_per_s": records_per_s,
            "bytes_per_s": bytes_per_s,
            "lag": self.lag,
            "slowest": self.slowest,
            "subscriptions": self.subscriptions,
            "age_s": max(0.0, now_s - self.at_s),
            "error": self.error,
        }

    def _rates(self, before: StreamFigures | None) -> tuple[float | None, float | None]:
        if before is None or before.error or self.error:
            return None, None
        passed_s = self.at_s - before.at_s
        if not 0 < passed_s <= FIGURES_AGE_MAX_S:
            return None, None
        records = None
        if self.written is not None and before.written is not None:
            records = self.written - before.written
        newest = max(before.sizes, default=0)
        size = sum(size for number, size in self.sizes.items() if number >= newest)
        size -= before.sizes.get(newest, 0)
        if size < 0 or (records is not None and records < 0):
            return None, None  # another stream has the name now
        return None if records is None else records / passed_s, size / passed_s


def _slowest(lags: Mapping[str, int]) -> tuple[int | None, str | None]:
    """Return the largest lag and the name of its subscription, or None for both."""
    return max(((lag, name) for name, lag in lags.items()), default=(None, None))


def topic_as_json(
    partitions: Sequence[tuple[StreamFigures, StreamFigures | None]], now_s: float
) -> dict[str, Any]:
    """Return the figures of a topic as JSON: the sums over its partitions.

    The lag of a subscription is the sum of its lags in all partitions. There is no last position,
    because a position belongs to one partition. A rate is None until that of each partition is
    known.

    Args:
        partitions: The last observation of each partition, and the one before it.
        now_s: The present time of the monotonic clock.
    """
    shown = [one.as_json(before, now_s) for one, before in partitions]
    lags: dict[str, int] = {}
    for one, _ in partitions:
        for name, records in one.lags.items():
            lags[name] = lags.get(name, 0) + records
    lag, slowest = _slowest(lags)

    def total(key: str) -> Any:
        values = [one[key] for one in shown]
        return None if None in values else sum(values)

    times = [one["last_time"] for one in shown if one["last_time"] is not None]
    errors = [f"partition {at}: {one['error']}" for at, one in enumerate(shown) if one["error"]]
    return {
        **{key: total(key) for key in ("segments", "records", "bytes")},
        "whole": all(one["whole"] and not one["error"] for one in shown),
        "last": None,
        "last_time": max(times, default=None),
        "ended": all(one["ended"] for one in shown),
        "records_per_s": total("records_per_s"),
        "bytes_per_s": total("bytes_per_s"),
        "lag": lag,
        "slowest": slowest,
        "subscriptions": max(len(lags), *(one["subscriptions"] for one in shown)),
        "age_s": max(one["age_s"] for one in shown),
        "error": "; ".join(errors),
    }


def subscriptions_as_json(
    partitions: Sequence[StreamFigures | None],
) -> list[dict[str, Any]]:
    """Return the progress of the subscriptions of a topic as JSON, by name.

    `records` is the sum over the partitions that were looked at, and `whole` says whether these are
    all that have the subscription. `missed` says whether, in one of them, records that the
    subscription had still to read were truncated. A partition without the subscription has no row
    in `partitions`: nothing of it was committed there.

    Args:
        partitions: The last observation of each partition, or None if there was none yet.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for number, one in enumerate(partitions):
        for row in () if one is None else one.progress:
            told = {name: value for name, value in row.items() if name != "name"}
            found.setdefault(row["name"], []).append({"partition": number, **told})
    known = all(one is not None and not one.error for one in partitions)
    return [
        {
            "name": name,
            "records": sum(row["records"] for row in rows if row["records"] is not None),
            "whole": known and all(row["records"] is not None for row in rows),
            "missed": any(row["missed"] for row in rows),
            "partitions": rows,
        }
        for name, rows in sorted(found.items())
    ]


class WantedStreams(BackgroundObservation, Generic[T]):
    """An observation of the streams that somebody looks at.

    Subclasses say what is found out about one stream (`_look_at`).
    """

    share = LOOK_SHARE

    def __init__(self, monotonic: Callable[[], float], interval_s: float, wait_s: float) -> None:
        super().__init__(monotonic, interval_s, wait_s)
        self._wanted: dict[tuple[str, str], None] = {}
        self._found: OrderedDict[tuple[str, str], T] = OrderedDict()
        """What was found out about each stream, by namespace and name."""

    def _want(self, namespace: str, names: Sequence[str]) -> None:
        """Have the next observation look at these streams first."""
        self._wanted = dict.fromkeys((namespace, name) for name in names) | self._wanted

    async def _look(self, client: Client) -> None:
        """Look at all wanted streams. Raises MetadataError."""
        while self._wanted:
            some, self._wanted = list(self._wanted)[:STREAMS_KEPT_MAX], {}
            by_namespace: dict[str, list[str]] = {}
            for namespace, name in some:
                by_namespace.setdefault(namespace, []).append(name)
            for namespace, names in by_namespace.items():
                try:
                    async with await open_namespace(client, namespace) as opened:
                        await each(names, lambda n: self._look_at(opened, n), STREAMS_AT_ONCE)
                except MetadataError:
                    raise  # every other namespace is in the same store
                except QuireError:
                    continue  # the namespace was deleted meanwhile

    async def _look_at(self, opened: Namespace, name: str) -> None:
        raise NotImplementedError

    def _keep(self, key: tuple[str, str], found: T) -> None:
        """Replace what is known of a stream. The streams looked at longest ago are forgotten."""
        self._found.pop(key, None)
        self._found[key] = found
        while len(self._found) > STREAMS_KEPT_MAX:
            self._found.popitem(last=False)


class StreamWatch(WantedStreams[tuple[StreamFigures, StreamFigures | None]]):
    """The observation, in the background, of the figures of streams.

    It keeps the last observation of each stream and the one before it.
    """

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, FIGURES_INTERVAL_S, wait_s)
        self._sizes: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """The length in bytes and the creation time of completed ledgers, by ledger id."""

    async def of(
        self, client: Client, namespace: str, names: Sequence[str]
    ) -> dict[str, dict[str, Any] | None]:
        """Return the figures of these streams as JSON, by name.

        They are None for a stream that was not looked at yet.
        """
        self._want(namespace, names)
        await self.refresh(lambda: self._look(client))
        now_s = self._monotonic()
        found: dict[str, dict[str, Any] | None] = {}
        for name in names:
            known = self._found.get((namespace, name))
            found[name] = None if known is None else known[0].as_json(known[1], now_s)
        return found

    def of_topics(
        self, namespace: str, topics: Mapping[str, Sequence[str]]
    ) -> dict[str, dict[str, Any] | None]:
        """Return the figures of topics as JSON, by name, from those of their partitions.

        Call `of` with the partitions first. The figures of a topic are None while those of one of
        its partitions are. `topics` has the streams of each topic.
        """
        now_s = self._monotonic()
        found: dict[str, dict[str, Any] | None] = {}
        for name, streams in topics.items():
            known = [self._found.get((namespace, stream)) for stream in streams]
            looked_at = [one for one in known if one is not None]
            whole = len(looked_at) == len(known)
            found[name] = topic_as_json(looked_at, now_s) if whole else None
        return found

    def subscriptions(self, namespace: str, streams: Sequence[str]) -> list[dict[str, Any]]:
        """Return the progress of a topic's subscriptions as JSON, by name.

        Call `of` with the partitions first. `streams` has the stream of each partition, in order.
        Of each partition, the first `SUBSCRIPTIONS_COUNTED_MAX` subscriptions are counted.
        """
        known = [self._found.get((namespace, stream)) for stream in streams]
        return subscriptions_as_json([None if one is None else one[0] for one in known])

    async def _look_at(self, opened: Namespace, name: str) -> None:
        key = (opened.path, name)
        try:
            figures = await self._figures(opened, name)
        except NoSuchStreamError:
            self._found.pop(key, None)
            return
        except QuireError as error:
            figures = StreamFigures(self._monotonic(), error=str(error.args[0]))
        known = self._found.get(key)
        self._keep(key, (figures, None if known is None else known[0]))

    async def _figures(self, opened: Namespace, name: str) -> StreamFigures:
        metadata = opened.metadata(name)
        segments = await metadata.segments(SEGMENTS_LOOKED_AT_MAX)
        whole = len(segments) < SEGMENTS_LOOKED_AT_MAX
        at_s = self._monotonic()
        facts = await each(segments, lambda one: self._segment(opened.client, one))
        settings = await opened.stream_settings(name)
        oldest = oldest_position(segments)
        records = await records_from(opened.client, facts, oldest)
        found = StreamStatistics(name, settings, facts, records, oldest)
        lags = await subscription_lags(opened, found, b"", SUBSCRIPTIONS_COUNTED_MAX)
        told = found.as_json()
        newest = facts[-1] if facts else None
        written = 0 if newest is None else newest.segment.first_sequence_id + newest.records
        looked_at = StreamFigures(
            at_s,
            whole,
            told["segments"],
            records,
            told["bytes"],
            told["last"],
            told["last_time"],
            told["ended"],
            None,
            None,
            len(await opened.subscriptions(name)),
            "",
            written if written >= 0 else None,
            {one.segment.lssn: one.size_bytes for one in facts},
            lags,
        )
        lag, slowest = _slowest(looked_at.lags)
        return replace(looked_at, lag=lag, slowest=slowest)

    async def _segment(self, client: Client, segment: StreamSegment) -> SegmentStatistics:
        """Return the statistics of a segment. The size of a completed ledger is read once."""
        known = self._sizes.get(segment.ledger_id)
        if known is None or segment.in_progress or segment.lost:
            (found,) = await segment_statistics(client, [segment])
            if not segment.in_progress and not found.lost and found.ctime_ms >= 0:
                self._sizes[segment.ledger_id] = (found.size_bytes, found.ctime_ms)
                while len(self._sizes) > LEDGERS_KEPT_MAX:
                    self._sizes.popitem(last=False)
            return found
        self._sizes.move_to_end(segment.ledger_id)
        size_bytes, ctime_ms = known
        empty = not segment.known_records
        return SegmentStatistics(
            segment,
            segment.known_records,
            size_bytes,
            None if empty else segment.last_dlsn,
            None if empty else segment.last_txid,
            ctime_ms,
        )
