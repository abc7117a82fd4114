"""The independent log of acknowledgements: what the clients of a run were promised.

Each client program appends lines to a file of its own, outside of the cluster that is under test:

    TIME created LEDGER
    TIME acked LEDGER LAST                     entries 0 to LAST are acknowledged
    TIME closed LEDGER LAST                    a close or a recovery reported this end
    TIME deleting LEDGER                       a delete begins: from now on it may be gone
    TIME sent STREAM PRODUCER LAST             records 0 to LAST of the producer are acknowledged
    TIME truncating STREAM PRODUCER FIRST      records before FIRST were read, and may be gone soon
    TIME counted WHAT NUMBER                   a figure for the report
    TIME wrong WORDS...                        a broken promise that the client saw itself

A promise is written after the call returned. A program that is killed in between loses the line,
which makes the log weaker but never wrong. What a call may remove is written before the call.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

SUFFIX = ".journal"


class Journal:
    """The journal of one program. Each line is one write, so a kill leaves no half line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, *words: object) -> None:
        line = " ".join(map(str, (f"{time.monotonic():.3f}", *words)))
        os.write(self._file, line.replace("\n", " ").encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


@dataclass
class LedgerPromise:
    """The promises about one ledger, which later reads must confirm."""

    acked: int = -1
    """The id of the last acknowledged entry, or -1 if there is none."""
    ends: set[int] = field(default_factory=set)
    """The last entry ids that closes and recoveries of the ledger reported. There may be only one.
    """
    deleting: bool = False
    changed_s: float = 0.0
    """The monotonic time in seconds of the last line about the ledger."""


@dataclass
class ProducerPromise:
    """The promises about the records of one producer in one stream."""

    acked: int = -1
    truncated: int = 0
    """The number of the first record that must still exist. The records before it may be gone."""


@dataclass
class Promises:
    """The promises in all journals of a run."""

    ledgers: dict[int, LedgerPromise] = field(default_factory=dict)
    streams: dict[str, dict[str, ProducerPromise]] = field(default_factory=dict)
    figures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    acked_s: list[float] = field(default_factory=list)
    """The monotonic times in seconds of all acknowledgements."""
    _read_bytes: dict[Path, int] = field(default_factory=dict)

    def update(self, directory: Path) -> None:
        """Read the lines that were added to the journals in `directory` since the last call."""
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(data)
            for line in data.decode().splitlines():
                self._add(path.stem, line.split(" "))

    def live(self) -> dict[int, LedgerPromise]:
        return {number: one for number, one in self.ledgers.items() if not one.deleting}

    def producers(self, stream: str) -> dict[str, ProducerPromise]:
        return self.streams.setdefault(stream, {})

    def _add(self, program: str, words: list[str]) -> None:
        at_s, kind, *rest = words
        if kind in ("created", "acked", "closed", "deleting"):
            ledger = self.ledgers.setdefault(int(rest[0]), LedgerPromise())
            ledger.changed_s = max(ledger.changed_s, float(at_s))
            if kind == "acked":
                ledger.acked = max(ledger.acked, int(rest[1]))
                self.acked_s.append(float(at_s))
            elif kind == "closed":
                ledger.ends.add(int(rest[1]))
            elif kind == "deleting":
                ledger.deleting = True
        elif kind in ("sent", "truncating"):
            producer = self.producers(rest[0]).setdefault(rest[1], ProducerPromise())
            if kind == "sent":
                producer.acked = max(producer.acked, int(rest[2]))
                self.acked_s.append(float(at_s))
            else:
                producer.truncated = max(producer.truncated, int(rest[2]))
        elif kind == "counted":
            self.figures[rest[0]] += int(rest[1])
        else:
            assert kind == "wrong", words
            self.wrong.append(f"{program}: {' '.join(rest)}")


def longest_pause(times_s: list[float]) -> float:
    """Return the longest time between two acknowledgements, in seconds."""
    ordered = sorted(times_s)
    return max((after - before for before, after in pairwise(ordered)), default=0.0)


# -- payloads ---------------------------------------------------------------------------------


def entry_payload(ledger_id: int, entry_id: int) -> bytes:
    """Return the payload of an entry, which is different for every entry of the cluster."""
    text = b"%d:%d;" % (ledger_id, entry_id)
    return (text * 400)[: 1 + (ledger_id * 7919 + entry_id * 104_729) % 2_500]


def record_payload(producer: str, number: int) -> bytes:
    return f"{producer}:{number};".encode() * (1 + number % 29)


def record_of(payload: bytes) -> tuple[str, int] | None:
    """Return the producer and the number of a record, or None if its bytes are wrong."""
    name, colon, rest = payload.partition(b":")
    number = rest.partition(b";")[0]
    if not colon or not number.isdigit():
        return None
    found = name.decode(errors="replace"), int(number)
    return found if payload == record_payload(*found) else None


def check_ledger(
    ledger_id: int, promise: LedgerPromise, end: int, payloads: list[bytes]
) -> Iterator[str]:
    """Yield a text for every promise that a closed ledger with this content breaks."""
    if end < promise.acked:
        yield f"ledger {ledger_id} ends at {end}, but entry {promise.acked} was acknowledged"
    if other := promise.ends - {end}:
        yield f"ledger {ledger_id} ends at {end}, but {sorted(other)} was reported as well"
    if len(payloads) != end + 1:
        yield f"ledger {ledger_id} ends at {end}, but {len(payloads)} entries were read"
    for entry_id, payload in enumerate(payloads):
        if payload != entry_payload(ledger_id, entry_id):
            yield f"ledger {ledger_id}: entry {entry_id} is not what was appended"
            return


def check_stream(
    stream: str, promises: dict[str, ProducerPromise], payloads: list[bytes]
) -> Iterator[str]:
    """Yield a text for every promise that a stream with these records breaks."""
    seen: dict[str, list[int]] = {name: [] for name in promises}
    for payload in payloads:
        found = record_of(payload)
        if found is None:
            yield f"stream {stream}: a record is not what was appended: {payload[:40]!r}"
            return
        seen.setdefault(found[0], []).append(found[1])
    for name, numbers in seen.items():
        promise = promises.get(name, ProducerPromise())
        first = numbers[0] if numbers else promise.acked + 1
        if numbers != list(range(first, first + len(numbers))):
            yield f"stream {stream}: records of {name} are missing, doubled or out of order"
        if first > promise.truncated:
            yield (
                f"stream {stream}: {name} begins at {first}, but only the records before "
                f"{promise.truncated} were truncated"
            )
        if max(numbers, default=first - 1) < promise.acked:
            yield f"stream {stream}: record {promise.acked} of {name} was acknowledged and is gone"
