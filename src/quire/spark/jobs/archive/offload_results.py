"""The results of `offload`: what it has done, or would do, with each stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from quire.errors import QuireError
from quire.spark.jobs.archive.offload_plan import OffloadPlan, together
from quire.streams import StreamSegment


@dataclass(frozen=True, slots=True)
class StreamPreview:
    """The work that `offload` would do for one stream."""

    stream: str
    """The name of the stream."""
    start: str
    """The position from which it would be offloaded."""
    behind: str
    """The position before which the offloaded part would end."""
    segments: int
    """The number of segments that would be copied, completely or from `start` on."""
    files: int
    """The largest number of files that would be written. Pieces without records have no file.

    With a partition by date there may be more, because a file has the records of one date only.
    """
    ledger_bytes: int
    """The payload bytes of the segments that would be copied, counted for one replica."""
    freed_ledgers: tuple[int, ...]
    """The ledgers that would be deleted with `truncate`, also those that were offloaded before."""
    merged_files: int = 0
    """The number of present files that would be merged. Files that would be written do not count.
    """
    error: str = ""
    """The reason why the stream cannot be offloaded, or "".

    If there is one, all values but `stream` are 0 or empty.
    """

    @classmethod
    def of_failure(cls, stream: str, error: Exception) -> StreamPreview:
        """Return the preview of a stream that cannot be offloaded."""
        return cls(stream, "", "", 0, 0, 0, (), error=str(error))

    def as_json(self) -> dict[str, Any]:
        """Return the preview as the command prints it."""
        return {**asdict(self), "freed_ledgers": list(self.freed_ledgers)}


def preview_of(
    stream: str, plan: OffloadPlan, file_bytes: int, freed: Sequence[StreamSegment]
) -> StreamPreview:
    """Return the preview of a plan."""
    return StreamPreview(
        stream,
        str(plan.start),
        str(plan.behind),
        len({part.segment.lssn for turn in plan.turns for part in turn.parts}),
        sum(len(list(together(turn.parts, file_bytes))) for turn in plan.turns),
        plan.ledger_bytes,
        tuple(segment.ledger_id for segment in freed),
    )


@dataclass(frozen=True, slots=True)
class StreamOffload:
    """The work that was done for one stream."""

    stream: str
    """The name of the stream."""
    behind: str
    """The position before which the stream is offloaded now."""
    records: int
    """The number of records that this run has offloaded."""
    files: int
    """The number of files that this run has written."""
    size_bytes: int
    """The size in bytes of the files that this run has written."""
    ledger_bytes: int
    """The payload bytes of the segments that this run has copied, counted for one replica."""
    freed_ledgers: tuple[int, ...]
    """The ledgers that were deleted."""
    merged_files: int
    """The number of small files that were merged into others."""
    total_records: int
    """The number of records that were offloaded by this and all former runs."""

    def as_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return {
            "stream": self.stream,
            "behind": self.behind,
            "records": self.records,
            "files": self.files,
            "bytes": self.size_bytes,
            "ledger_bytes": self.ledger_bytes,
            "freed_ledgers": list(self.freed_ledgers),
            "merged_files": self.merged_files,
            "total_records": self.total_records,
        }


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """The result of a run of `offload`."""

    streams: tuple[StreamOffload, ...]
    """The streams that were offloaded."""
    failed: Mapping[str, QuireError] = field(default_factory=dict)
    """The error of each stream that was not offloaded completely.

    What the job committed before the error stays offloaded.
    """
    seconds: float = 0.0
    """The duration of the run in seconds."""

    @property
    def records(self) -> int:
        """The number of records of all streams."""
        return sum(one.records for one in self.streams)

    @property
    def files(self) -> int:
        """The number of files of all streams."""
        return sum(one.files for one in self.streams)

    @property
    def freed_ledgers(self) -> int:
        """The number of ledgers that were deleted."""
        return sum(len(one.freed_ledgers) for one in self.streams)

    @property
    def merged_files(self) -> int:
        """The number of small files that were merged into others, of all streams."""
        return sum(one.merged_files for one in self.streams)

    @property
    def ledger_bytes(self) -> int:
        """The payload bytes of the segments that this run has copied, counted for one replica."""
        return sum(one.ledger_bytes for one in self.streams)

    def as_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return {
            "records": self.records,
            "files": self.files,
            "ledger_bytes": self.ledger_bytes,
            "freed_ledgers": self.freed_ledgers,
            "merged_files": self.merged_files,
            "seconds": round(self.seconds, 3),
            "streams": [one.as_json() for one in self.streams],
            "failed": {name: str(error) for name, error in self.failed.items()},
        }
