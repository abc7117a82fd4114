"""Statistics of a stream, for `quire stream list --long`, `quire stream show` and HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from quire._runtime.tasks import each
from quire.codec.distributedlog.limits import MAX_TXID
from quire.errors import MetadataUnavailableError, NoSuchStreamError, QuireError
from quire.http.views.ledger_json import time_text
from quire.replication.explain.copies import of_copies
from quire.replication.marks.copy_notes import CopyNote, copy_notes
from quire.streams.ownership.named_ledgers import segment_words
from quire.streams.read.positions import oldest_position
from quire.streams.read.statistics import SegmentStatistics, records_from, segment_statistics

if TYPE_CHECKING:
    from quire.codec.distributedlog.dlsn import DLSN
    from quire.streams import Namespace
    from quire.streams.namespace.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """Statistics of a stream and its segments."""

    name: str
    settings: StreamSettings
    facts: list[SegmentStatistics]
    """The statistics of each segment, the oldest first."""
    records: int
    """The number of records that can be read."""
    oldest: DLSN
    """The position of the oldest record that is not truncated."""

    @property
    def active(self) -> list[SegmentStatistics]:
        return [fact for fact in self.facts if not fact.truncated]

    @property
    def ended(self) -> bool:
        return any(fact.ended for fact in self.facts)

    @property
    def last(self) -> DLSN | None:
        return next((fact.last for fact in reversed(self.active) if fact.last), None)

    def has_truncated_from(self, position: DLSN) -> bool:
        """Return whether records at or after this position are known to be truncated.

        Segments that are no longer listed do not count, because nothing tells what they had.
        """
        if any(
            fact.last is not None and fact.last >= position for fact in self.facts if fact.truncated
        ):
            return True
        if position >= self.oldest:
            return False
        if position.lssn != self.oldest.lssn:
            return any(
                fact.segment.first_dlsn < self.oldest
                for fact in self.active
                if fact.segment.lssn == self.oldest.lssn
            )
        # The position may be after the last record of the entry before the oldest one.
        return position.slot_id == 0 or position.entry_id + 1 != self.oldest.entry_id

    def as_json(self) -> dict[str, Any]:
        """Return the statistics of the whole stream, without its segments."""
        return {
            "name": self.name,
            "ended": self.ended,
            "segments": len(self.active),
            "records": self.records,
            "bytes": sum(fact.size_bytes for fact in self.facts),
            "first": str(self.oldest) if self.records else None,
            "first_time": time_text(self._first_ms()) if self.records else None,
            "last": str(self.last) if self.records and self.last else None,
            "last_time": time_text(self._last_ms()) if self.records else None,
        }

    def lost_as_json(self) -> list[dict[str, Any]]:
        """Return the segments whose ledger no longer exists, as JSON.

        `what` describes the segment and its positions in words.
        """
        return [
            {
                "number": fact.segment.lssn,
                "ledger_id": fact.segment.ledger_id,
                "what": segment_words(fact.segment),
            }
            for fact in self.facts
            if fact.lost
        ]

    def _first_ms(self) -> int:
        """Return the time of the first record as Unix milliseconds, or -1 if it is not known."""
        if not self.active or self.settings.txids != "time":
            return -1
        return self.active[0].segment.first_txid

    def _last_ms(self) -> int:
        """Return the time of the last record as Unix milliseconds, or -1 if it is not known."""
        for fact in reversed(self.active):
            if fact.last is None or fact.last_txid is None:
                continue
            if self.settings.txids == "time" and fact.last_txid != MAX_TXID:
                return fact.last_txid
            return -1 if fact.segment.in_progress else fact.segment.completion_time_ms
        return -1


async def stream_statistics(opened: Namespace, name: str, password: bytes) -> StreamStatistics:
    """Return the statistics of a stream.

    `password` is that of the stream's ledgers. Raises NoSuchStreamError, MetadataError if a segment
    cannot be decoded, and the errors of reading ledgers.
    """
    segments = await opened.segments(name)
    facts = await segment_statistics(opened.client, segments, password)
    oldest = oldest_position(segments)
    count = await records_from(opened.client, facts, oldest, password)
    return StreamStatistics(name, await opened.stream_settings(name), facts, count, oldest)


LAGS_MAX = 100
"""The largest number of subscriptions whose lag is counted."""


async def subscription_lags(
    opened: Namespace, facts: StreamStatistics, password: bytes, most: int = LAGS_MAX
) -> list[dict[str, Any]]:
    """Return the progress of the first `most` subscriptions.

    Each has its `position`, which is the first record still to be read (None if nothing was ever
    committed), and `records`, the number of records from there on. `missed` says whether records
    from there on were truncated, so that the subscription can no longer read them. If the
    subscription cannot be decoded, or the entry at its position cannot be read, what is not known
    is None, and `error` is the reason.

    `facts` are the statistics of the stream, and `password` is that of its ledgers. Raises
    NoSuchStreamError, and MetadataUnavailableError if the store does not answer.
    """

    async def lag(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": name, "position": None, "records": None, "missed": False
        }  # fmt: skip
        try:
            position = await opened.subscription(facts.name, name).position()
            if position is None:
                return {**found, "records": facts.records}
            found["position"] = str(position)
            found["missed"] = facts.has_truncated_from(position)
            found["records"] = await records_from(opened.client, facts.facts, position, password)
        except (MetadataUnavailableError, NoSuchStreamError):
            raise
        except QuireError as error:
            found["error"] = str(error)
        return found

    return await each((await opened.subscriptions(facts.name))[:most], lag)


async def copies_of_streams(
    opened: Namespace, names: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the continuous copies from or to each stream, as `CopyNote.as_json` has them.

    Each copy has the `lag` of this stream, or None if it is unknown, and the `problem` of the copy
    that concerns this stream, or None. Raises MetadataError.
    """
    store, now_ms = opened.client.metadata, opened.client.clock.now_ms()
    own_id, notes = await store.instance_id(), await copy_notes(store)
    return {name: _copies_of(opened, name, notes, own_id, now_ms) for name in names}


def _copies_of(
    opened: Namespace, name: str, notes: Sequence[CopyNote], own_id: str, now_ms: int
) -> list[dict[str, Any]]:
    found = []
    for one in notes:
        known = one.name_of(own_id, opened.metadata(name).paths.stream)
        if known is None:
            continue
        lag = one.of_stream(known)
        problem = next(of_copies([one.only(known)], own_id, now_ms), None)
        found.append(
            {
                **one.as_json(now_ms, own_id),
                "lags": [],
                "lag": None if lag is None else asdict(lag),
                "problem": None if problem is None else asdict(problem),
            }
        )
    return found


async def copies_of_topic(opened: Namespace, streams: Sequence[str]) -> list[dict[str, Any]]:
    """Return the continuous copies from or to the partitions of a topic.

    They are as `copies_of_streams` has them, with the `lag` and the `problem` of all partitions
    together. `partitions` is the number of partitions that are copied. Raises MetadataError.
    """
    store, now_ms = opened.client.metadata, opened.client.clock.now_ms()
    own_id = await store.instance_id()
    found = []
    for one in await copy_notes(store):
        names = (one.name_of(own_id, opened.metadata(name).paths.stream) for name in streams)
        known = [name for name in names if name is not None]
        if not known:
            continue
        part = one.only(*known)
        worst = sorted(part.lags, key=lambda lag: (not lag.error, -(lag.records or 0)))
        late = tuple(lag for lag in worst if lag.error or lag.records)
        problem = next(of_copies([replace(part, lags=late)], own_id, now_ms), None)
        found.append(
            {
                **one.as_json(now_ms, own_id),
                "lags": [],
                "lag": {"records": part.records, "seconds": part.seconds, "error": ""},
                "problem": None if problem is None else asdict(problem),
                "partitions": len(known),
            }
        )
    return found


def segment_as_json(fact: SegmentStatistics) -> dict[str, Any]:
    segment = fact.segment
    return {
        "number": segment.lssn,
        "ledger_id": segment.ledger_id,
        **fact.described(),
        "created": time_text(fact.ctime_ms),
        "completed": time_text(segment.completion_time_ms) if not segment.in_progress else None,
    }
