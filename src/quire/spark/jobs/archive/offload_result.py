"""What `offload` tells of what it has done. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.errors import QuireError


@dataclass(frozen=True, slots=True)
class StreamOffload:
    """What was done for one stream."""

    stream: str
    behind: str
    """The position up to before which it is offloaded now."""
    records: int
    files: int
    size_bytes: int
    """Of these files."""
    ledger_bytes: int
    """What these records take in ledgers (each replica)."""
    freed_ledgers: tuple[int, ...]
    total_records: int
    """Offloaded now and before."""

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "behind": self.behind,
            "records": self.records,
            "files": self.files,
            "bytes": self.size_bytes,
            "ledger_bytes": self.ledger_bytes,
            "freed_ledgers": list(self.freed_ledgers),
            "total_records": self.total_records,
        }


@dataclass(frozen=True, slots=True)
class OffloadResult:
    streams: tuple[StreamOffload, ...]
    failed: Mapping[str, QuireError] = field(default_factory=dict)
    """By stream. What they had before, they have still."""
    seconds: float = 0.0

    @property
    def records(self) -> int:
        return sum(one.records for one in self.streams)

    @property
    def files(self) -> int:
        return sum(one.files for one in self.streams)

    @property
    def freed_ledgers(self) -> int:
        return sum(len(one.freed_ledgers) for one in self.streams)

    @property
    def ledger_bytes(self) -> int:
        return sum(one.ledger_bytes for one in self.streams)

    def as_json(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "files": self.files,
            "ledger_bytes": self.ledger_bytes,
            "freed_ledgers": self.freed_ledgers,
            "seconds": round(self.seconds, 3),
            "streams": [one.as_json() for one in self.streams],
            "failed": {name: str(error) for name, error in self.failed.items()},
        }
