"""What a dry run of `offload` tells of a stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quire.spark.jobs.archive.plan import OffloadPlan, together
from quire.streams import StreamSegment


@dataclass(frozen=True, slots=True)
class StreamPreview:
    stream: str
    start: str
    """The position from which on it would be offloaded."""
    behind: str
    """The position up to before which it would be."""
    segments: int
    """That would be copied, whole or from `start` on."""
    files: int
    """That would be written, at most: what holds no records has none."""
    ledger_bytes: int
    """What is copied takes in ledgers (each replica)."""
    freed_ledgers: tuple[int, ...]
    """That would be deleted: with `truncate` what was offloaded before and what would be now."""
    error: str = ""
    """The reason why the stream cannot be offloaded; then the rest is empty."""

    @classmethod
    def of_failure(cls, stream: str, error: Exception) -> StreamPreview:
        return cls(stream, "", "", 0, 0, 0, (), str(error))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "freed_ledgers": list(self.freed_ledgers)}


def preview_of(
    stream: str, plan: OffloadPlan, file_bytes: int, freed: Sequence[StreamSegment]
) -> StreamPreview:
    return StreamPreview(
        stream,
        str(plan.start),
        str(plan.behind),
        len({part.segment.lssn for turn in plan.turns for part in turn.parts}),
        sum(len(list(together(turn.parts, file_bytes))) for turn in plan.turns),
        plan.ledger_bytes,
        tuple(segment.ledger_id for segment in freed),
    )
