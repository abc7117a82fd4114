"""Record what happened in a run as its clients saw it, ordered by time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quire_simulator.machine.trace import Trace


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    time_s: float
    client: str
    kind: str
    """For instance create, append, acked, observe (an LAC), read, closed, recovered, delete or
    denied.
    """
    ledger_id: int
    first: int = -1
    last: int = -1
    note: str = ""

    def __str__(self) -> str:
        entries = "" if self.last < 0 else f" {self.first}..{self.last}"
        note = f" ({self.note})" if self.note else ""
        ledger = "" if self.ledger_id < 0 else f" ledger {self.ledger_id}"
        return f"{self.time_s:10.4f} {self.client:12} {self.kind}{ledger}{entries}{note}"


@dataclass
class RunHistory:
    """All records of a run. `listener` is called with each new record."""

    time: Callable[[], float]
    trace: Trace
    records: list[HistoryRecord] = field(default_factory=list)
    listener: Callable[[HistoryRecord], None] = lambda record: None

    def add(
        self,
        client: str,
        kind: str,
        ledger_id: int = -1,
        first: int = -1,
        last: int = -1,
        note: str = "",
    ) -> None:
        record = HistoryRecord(self.time(), client, kind, ledger_id, first, last, note)
        self.records.append(record)
        self.trace.record(client, kind, ledger=ledger_id, first=first, last=last, note=note)
        self.listener(record)


REPETITIONS_MAX = 23
PAYLOAD_MAX_BYTES = 12 * REPETITIONS_MAX
"""The largest payload at scale 1, for ids with up to five digits."""


def payload(ledger_id: int, entry_id: int, scale: int = 1) -> bytes:
    """Return the payload of this entry. It contains the ids, so that any reader can check it.

    At scale 0, all payloads have the same size.
    """
    if scale == 0:
        return b"%06d/%06d." % (ledger_id, entry_id)
    repetitions = 1 + (7 * ledger_id + entry_id) % REPETITIONS_MAX
    return b"%d/%d." % (ledger_id, entry_id) * (repetitions * scale)
