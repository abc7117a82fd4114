"""Turns closed segments into sealed ones: the footer is written off the event loop, and then takes
the place of the index in memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial

from quire.storage.cache import SegmentFiles
from quire.storage.catalogue import Catalogue
from quire.storage.maintenance import Maintenance
from quire.storage.sealing import Sealed, SealInput, mentioned, write_footer
from quire.storage.seams import Disk
from quire.storage.segment import Segment, SegmentState
from quire.storage.spares import is_full


class Sealer:
    """Used on the event loop."""

    def __init__(
        self,
        disk: Disk,
        directory_id: bytes,
        catalogue: Catalogue,
        files: SegmentFiles,
        maintenance: Maintenance,
        sealed: Callable[[], None],
        broken: Callable[[Exception], None],
    ) -> None:
        """`sealed` is called after each seal; `broken` when one failed for another reason than
        space."""
        self._disk = disk
        self._directory_id = directory_id
        self._catalogue = catalogue
        self._files = files
        self._maintenance = maintenance
        self._sealed = sealed
        self._broken = broken
        self._postponed: list[Segment] = []
        """For lack of space."""
        self.waiting = 0
        """Closed segments that wait for their footer."""
        self.error: str | None = None
        """Why the last seal failed. A segment that is not sealed stays readable."""

    def seal(self, segment: Segment) -> None:
        """All groups of the segment are synced, and it takes no more. Where groups of it were lost
        nothing is written over what may be left of them."""
        if segment.lost_groups:
            return
        ledgers = self._catalogue.ledgers
        parts = [
            (ledger_id, part.runs, part.span, ledgers[ledger_id].last_add_confirmed)
            for ledger_id, part in sorted(segment.parts.items())
        ]
        job = SealInput(self._directory_id, segment, parts, list(segment.records))
        self.waiting += 1
        self._maintenance.run(partial(write_footer, job), partial(self._on_written, job))

    def retry(self) -> None:
        """There may be space again."""
        postponed, self._postponed = self._postponed, []
        for segment in postponed:
            self.seal(segment)

    def _on_written(self, job: SealInput, sealed: Sealed | None, error: Exception | None) -> None:
        self.waiting -= 1
        if sealed is None:
            assert error is not None
            self.error = str(error)
            if is_full(error):
                self._postponed.append(job.segment)
            else:
                self._broken(error)
            return
        segment = job.segment
        ledgers = self._catalogue.ledgers
        segment.trailer = sealed.trailer
        segment.state = SegmentState.SEALED
        segment.mentions = mentioned([x.ledger_id for x in sealed.ledgers], job.records)
        segment.live_bytes = 0
        for summary in sealed.ledgers:
            # A ledger that was dropped meanwhile is in the footer, but not here any more.
            part = segment.parts.pop(summary.ledger_id, None)
            if part is None:
                continue
            info = ledgers[summary.ledger_id]
            info.open_parts.remove(part)
            if info.tail is part:
                info.tail = None
            info.add_sealed(segment.number, summary.first, summary.last, summary.size_bytes)
            segment.live_bytes += summary.size_bytes
        for ledger_id, empty in segment.parts.items():
            ledgers[ledger_id].open_parts.remove(empty)
            segment.live_ledgers -= 1
        segment.parts = {}
        segment.records = []
        segment.checksums = array("I")
        segment.run_count = 0
        if segment.file is not None:
            self._files.get(segment)
        self._sealed()
