"""Run the scrub in the background: decide which segment is next, and at what pace.

`scrub` has the checks of one segment, and this module has the schedule. A round checks every
segment once, the oldest first. A round begins `scrub_interval_s` after the previous round has
begun. Segments in which a read, a compaction or a start has found damage come first. The progress
of the round is stored in `current/SCRUB`. Without that file, the round begins again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from quire.codec.log.state_records import BLOCK_BYTES
from quire.errors import StorageError
from quire.storage.background.job import JobContext, PacedJob
from quire.storage.background.quarantine import Quarantine
from quire.storage.background.scrub import Findings, ScrubTarget, SegmentScrub
from quire.storage.directory import CURRENT_DIRECTORY, read_small_file, write_small_file
from quire.storage.log.preallocation import may_pass
from quire.storage.segment.segment import LogSegment, SegmentState

SCRUB_NAME = f"{CURRENT_DIRECTORY}/SCRUB"
FIRST_DELAY_S = 600.0
"""Seconds after a start before a round may begin or continue, because a start has other work to do.
If `scrub_interval_s` is shorter, it is used instead."""
SAVE_INTERVAL_S = 60.0
"""Seconds between two writes of the progress of the scrub."""
SUSPECT_AGAIN_S = 60.0
"""Seconds between two checks of a segment in which reads find damage again and again."""


@dataclass(frozen=True, slots=True)
class Round:
    """The progress of a round, in which the scrub checks every segment once."""

    began_ms: int
    """The Unix time in milliseconds at which the round began."""
    upcoming: int
    """The lowest segment number that the round has not reached, or -1 if the round is over. The
    segment with this number and all newer ones are still to be checked."""

    def encode(self) -> bytes:
        return f"format: 1\nbegan_ms: {self.began_ms}\nnext: {self.upcoming}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> Round | None:
        pairs = (line.partition(": ") for line in data.decode("ascii", "replace").splitlines())
        fields = {name: value for name, _, value in pairs}
        try:
            if fields["format"] == "1":
                return cls(int(fields["began_ms"]), int(fields["next"]))
        except (KeyError, ValueError):
            pass
        return None


class Scrubber(PacedJob):
    """The background job that checks all segments of one store, one after the other, in rounds."""

    def __init__(self, context: JobContext, quarantine: Quarantine) -> None:
        super().__init__(context)
        self._quarantine = quarantine
        self._rate = context.config.scrub_bytes_per_s
        self._interval_s = context.config.scrub_interval_s
        started_s = self._monotonic()
        self._begin_s = started_s + min(FIRST_DELAY_S, self._interval_s)
        self._saved_s = started_s
        self._saving = False
        self._round = Round(0, -1)
        self._suspects: dict[int, None] = {}
        self._looked_s: dict[int, float] = {}
        """The monotonic time in seconds when each segment with suspected damage was last checked,
        by segment number."""
        self._at_work: LogSegment | None = None
        self._is_suspect = False
        self.bytes_read = 0
        self.segments = 0
        """The number of checks of a whole segment since the start."""
        self.rounds = 0
        """The number of rounds completed since the start."""
        quarantine.suspect = self.suspect

    @property
    def upcoming(self) -> int:
        """The lowest segment number that this round has not reached, or -1 between two rounds."""
        return self._round.upcoming

    def load(self) -> None:
        """Load the progress of the round from the data directory. This blocks.

        If it cannot be read, the round begins again.
        """
        try:
            found = Round.decode(read_small_file(self._disk, SCRUB_NAME) or b"")
        except (OSError, StorageError):
            return  # The file is damaged, which is no reason not to serve the rest.
        if found is not None:
            self._round = found

    def suspect(self, number: int) -> None:
        """Have the whole segment checked soon, because something in it was damaged."""
        self._suspects[number] = None

    def tick(self) -> None:
        """Begin to check a segment if one is due. The store calls this every few seconds."""
        if self._at_work is None and not self.closed:
            self._next()

    # -- what is next ---------------------------------------------------------------------------

    def _next(self) -> None:
        """Begin to check the next segment that is due, if any, or end the round."""
        now_s = self._monotonic()
        for number in list(self._suspects):
            last_s = self._looked_s.get(number)
            if last_s is not None and now_s - last_s < SUSPECT_AGAIN_S:
                continue
            del self._suspects[number]
            self._looked_s[number] = now_s
            if (segment := self._catalogue.segments.get(number)) is not None:
                self._begin(segment, suspect=True)
                return
        if self._monotonic() < self._begin_s or not self._interval_s:
            return
        if self._round.upcoming < 0:
            # If the calendar was set back, begin a round anyway.
            since_s = (self._now_ms() - self._round.began_ms) / 1000
            if 0 <= since_s < self._interval_s:
                return
            self._round = Round(self._now_ms(), 0)
        numbers = [n for n in self._catalogue.segments if n >= self._round.upcoming]
        if numbers:
            self._begin(self._catalogue.segments[min(numbers)], suspect=False)
        else:
            self._round = Round(self._round.began_ms, -1)
            self.rounds += 1
            self._looked_s = {
                n: at_s for n, at_s in self._looked_s.items() if n in self._catalogue.segments
            }
            self._save(now=True)

    def _begin(self, segment: LogSegment, *, suspect: bool) -> None:
        self._at_work, self._is_suspect = segment, suspect
        if segment.state in (SegmentState.PREPARED, SegmentState.RETIRED):
            self._passed(segment)
            return
        if segment.in_flight and segment.end == segment.groups_at:
            self._passed(segment)  # The log has not begun this segment yet.
            return
        target = target_of(segment)
        try:
            file = self._files.borrow(segment)
        except OSError as error:
            if may_pass(error):
                self._looked_s[segment.number] = self._monotonic()
                self.suspect(segment.number)  # Try again later.
                self._passed(segment)
                return
            # Nothing of the segment can be read, so everything counts as damaged.
            everything = [(0, max(0, target.end // BLOCK_BYTES - 1))]
            found = Findings(everything, True, "the file cannot be opened", 1, extent_known=False)
            self._conclude(segment, target, found)
            return
        self._step(segment, target, SegmentScrub(file, self._directory_id, target))

    def _step(self, segment: LogSegment, target: ScrubTarget, scrub: SegmentScrub) -> None:
        self._timer = None
        self._jobs.run(scrub.step, partial(self._on_step, segment, target, scrub))

    def _on_step(
        self,
        segment: LogSegment,
        target: ScrubTarget,
        scrub: SegmentScrub,
        size: int | None,
        error: Exception | None,
    ) -> None:
        if size and not self.closed:
            self.bytes_read += size
            step = partial(self._step, segment, target, scrub)
            if self._rate:
                self._timer = self._schedule(size / self._rate, step)
            else:
                step()
            return
        self._files.give_back(segment)
        if size is None:
            # A later version wrote the segment, so it cannot be checked. Other errors were reported
            # by the worker.
            self._passed(segment)
        elif not self.closed:
            self._conclude(segment, target, scrub.found)

    def _conclude(self, segment: LogSegment, target: ScrubTarget, found: Findings) -> None:
        number = segment.number
        self.segments += 1
        if self._catalogue.segments.get(number) is not segment:
            pass  # The segment is gone, or another file has replaced it.
        elif (segment.trailer is None) != (target.trailer is None) and not found.clean:
            # It was sealed in the meantime, so check it again with its footer.
            self._looked_s.pop(number, None)
            self.suspect(number)
        else:
            self._quarantine.take(segment, found)
        self._passed(segment)

    def _passed(self, segment: LogSegment) -> None:
        self._at_work = None
        if not self._is_suspect:
            self._round = Round(self._round.began_ms, segment.number + 1)
            self._save()
        self._timer = self._schedule(0.0, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.tick()

    # -- where the round is ---------------------------------------------------------------------

    def _save(self, *, now: bool = False) -> None:
        due = now or self._monotonic() - self._saved_s >= SAVE_INTERVAL_S
        if due and not self._saving and not self.closed:
            self._saving = True
            self._saved_s = self._monotonic()
            work = partial(write_small_file, self._disk, SCRUB_NAME, self._round.encode())
            self._jobs.run(work, self._on_saved)

    def _on_saved(self, _: None, error: Exception | None) -> None:
        self._saving = False
        self._look_at(error)

    def cancel(self) -> None:
        """Stop beginning scrubs, and release the file that a waiting scrub has open."""
        if self._timer is not None and self._at_work is not None:
            self._files.give_back(self._at_work)  # A queued job does this at its end.
            self._at_work = None
        super().cancel()


def target_of(segment: LogSegment) -> ScrubTarget:
    """Return what a scrub must know about the segment, as it is synced now."""
    checksums = segment.checksums[:] if segment.trailer is None else ()
    end = segment.end if segment.trailer is None else segment.trailer.footer_at
    return ScrubTarget(segment.number, segment.groups_at, end, segment.trailer, checksums)
