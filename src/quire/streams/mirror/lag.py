"""The lag of a copy of a stream behind its source."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.limits import MAX_POSITION
from quire.codec.distributedlog.segment import Truncation
from quire.streams.mirror.mirror import Mirror
from quire.streams.read.statistics import segment_statistics

OBSERVATIONS_MAX = 3_600
"""The largest number of past ends of the source that are remembered to compute the lag in seconds.

If there would be more, every second one is forgotten, so that the oldest one stays. A long lag is
then measured less exactly.
"""


class Lag:
    """The measurement of how far one copy is behind its source.

    Call `measure` regularly. A record's lag in seconds is counted from the first call that saw the
    record in the source.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._seen: deque[tuple[float, DLSN]] = deque()
        """The event loop's times of earlier measurements, each with the source's last position at
        that time.

        Measurements whose position the copy has reached are removed.
        """

    async def measure(self) -> tuple[int, int, float]:
        """Return the lag in records, bytes and seconds. Lost segments are not counted."""
        mirror = self._mirror
        # Measure the copy first. It can only have advanced by the time the source is measured.
        reached, records, size_bytes = await self._copy()
        segments = await mirror.source.segments(mirror.name)
        missing = [
            segment
            for segment in segments
            if segment.lssn >= reached.lssn and segment.truncation is not Truncation.TRUNCATED
        ]
        client, password = mirror.source.client, mirror.source.password
        facts = [f for f in await segment_statistics(client, missing, password) if not f.lost]
        behind = [fact for fact in facts if fact.last is not None and fact.last > reached]
        now = asyncio.get_running_loop().time()
        if behind and behind[-1].last is not None:
            self._note(now, behind[-1].last)
        while self._seen and self._seen[0][1] <= reached:
            self._seen.popleft()
        left = sum(fact.records for fact in behind)
        left_bytes = sum(fact.size_bytes for fact in behind)
        if behind and behind[0].segment.lssn == reached.lssn:
            left -= records
            left_bytes -= size_bytes
        seconds = now - self._seen[0][0] if self._seen else 0.0
        return max(left, 0), max(left_bytes, 0), seconds

    def _note(self, now_s: float, last: DLSN) -> None:
        """Remember when the source first ended at this position."""
        if self._seen and self._seen[-1][1] == last:
            return
        if len(self._seen) >= OBSERVATIONS_MAX:
            self._seen = deque(islice(self._seen, 0, None, 2))
        self._seen.append((now_s, last))

    async def _copy(self) -> tuple[DLSN, int, int]:
        """Return the copy's last position, and the numbers of records and of bytes in that segment.

        Both numbers are 0 if no segment of the copy is in progress.
        """
        mirror = self._mirror
        tail = mirror.tail
        if tail is not None and tail.named:
            position = DLSN(tail.segment.lssn, tail.entries - 1, MAX_POSITION)
            return position, tail.records, tail.size_bytes
        if mirror.partial is not None:
            found = await segment_statistics(
                mirror.target.client, [mirror.partial], mirror.target.password
            )
            last = found[0].last
            if last is not None:
                return last, found[0].records, found[0].size_bytes
        return DLSN(mirror.last, MAX_POSITION, MAX_POSITION), 0, 0
