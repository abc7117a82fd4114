"""Payloads as JSON: entries, records and copies, cut to what one answer may contain.

A payload may be any bytes, so it travels in base64. The page, or whoever asked, decides how to show
it.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from itertools import islice
from typing import Any

from quire.codec.entry.entry import Entry
from quire.errors import QuireError, ReadError
from quire.http.server.error_responses import error_body
from quire.http.views.ledger_json import time_text
from quire.replication.explain.entry import EntryCopies
from quire.streams.read.peek import Peeked, UnreadableEntry
from quire.streams.read.records import Gap, KeyedRecord, Record

SHOWN_BYTES = 4 * 1024
"""The number of bytes of each payload that an answer contains by default."""
SHOWN_BYTES_MAX = 64 * 1024
"""The largest number of bytes of each payload that an answer contains."""
ANSWER_BYTES_MAX = 1024 * 1024
"""The number of payload bytes, before base64, after which an answer ends."""
READ_BYTES_MAX = 16 * 1024 * 1024
"""The number of bytes read from bookies after which an answer ends. Each entry is read whole."""
HEADERS_SHOWN_MAX = 100
"""The largest number of headers of a record that an answer contains."""
HEADER_NAME_CHARS = 256
"""The largest number of characters of a header's name that an answer contains."""


@dataclass(slots=True)
class PayloadBudget:
    """The number of bytes that one answer contains so far, and its limits."""

    each_bytes: int = SHOWN_BYTES
    shown_bytes: int = 0
    read_bytes: int = 0

    @property
    def used_up(self) -> bool:
        return self.shown_bytes >= ANSWER_BYTES_MAX or self.read_bytes >= READ_BYTES_MAX

    def add(self, other: PayloadBudget) -> None:
        """Add the bytes of a part of the answer."""
        self.shown_bytes += other.shown_bytes
        self.read_bytes += other.read_bytes

    def payload(self, data: bytes, offset: int = 0) -> dict[str, Any]:
        """Return a payload as JSON, from the byte `offset` on, cut to `each_bytes` bytes.

        Its bytes are added to those of the answer.
        """
        shown = data[offset : offset + self.each_bytes]
        self.read_bytes += len(data)
        self.shown_bytes += len(shown)
        return {
            "bytes": len(data),
            "offset": min(offset, len(data)),
            "shown_bytes": len(shown),
            "payload": b64encode(shown).decode("ascii"),
        }


def entry_json(entry_id: int, found: Entry | ReadError, budget: PayloadBudget) -> dict[str, Any]:
    """Return an entry as JSON, and count its bytes in `budget`.

    If the entry could not be read, `error` says why.
    """
    if isinstance(found, ReadError):
        return {"entry_id": entry_id, "error": error_json(found)}
    return {"entry_id": entry_id, **budget.payload(bytes(found.payload))}


def item_json(item: Peeked, budget: PayloadBudget, *, times: bool) -> dict[str, Any]:
    """Return an item of a stream as JSON: a record, a gap, or an entry that cannot be read.

    `kind` says which of them it is. The bytes are counted in `budget`. Set `times` if the
    transaction ids of the stream are times.
    """
    if isinstance(item, Record):
        return {
            "kind": "record",
            "position": str(item.position),
            "txid": item.txid,
            "time": time_text(item.txid) if times else None,
            "sequence": item.sequence if item.sequence >= 0 else None,
            **(_envelope_json(item, budget) if isinstance(item, KeyedRecord) else {}),
            **budget.payload(item.payload),
        }
    if isinstance(item, Gap):
        return {
            "kind": "gap",
            "position": str(item.first),
            "why": item.kind,
            "behind": str(item.behind),
        }
    assert isinstance(item, UnreadableEntry)
    return {
        "kind": "unreadable",
        "position": str(item.position),
        "error": error_json(item.error),
    }


def _envelope_json(record: KeyedRecord, budget: PayloadBudget) -> dict[str, Any]:
    """Return the key, the headers and the event time of a record as JSON."""
    time = record.event_time
    return {
        "key": None if record.key is None else budget.payload(record.key),
        "headers": [
            {"name": name[:HEADER_NAME_CHARS], **budget.payload(value)}
            for name, value in islice(record.headers.items(), HEADERS_SHOWN_MAX)
        ],
        "headers_count": len(record.headers),
        "event_time": None if time is None else time.isoformat().replace("+00:00", "Z"),
    }


def copies_json(
    found: EntryCopies, chosen: str | None, offset: int, budget: PayloadBudget
) -> dict[str, Any]:
    """Return an entry as JSON, with the state of each copy, and the bytes of one copy.

    The bytes are those of the bookie `chosen`, or of a good copy if it is None. They begin at the
    byte `offset` of the payload, and are counted in `budget`.
    """
    copies = []
    for one in found.copies:
        size = None if one.payload is None else len(one.payload)
        copies.append(
            {
                "bookie": one.bookie,
                "registered": one.registered,
                "state": one.state,
                "detail": one.detail,
                "bytes": size,
            }
        )
    shown = found.good
    if chosen is not None:
        shown = next((one for one in found.copies if one.bookie == chosen), None)
    described: dict[str, Any] = {
        "ledger_id": found.ledger_id,
        "entry_id": found.entry_id,
        "write_quorum": found.write_quorum,
        "copies": copies,
        "from": None,
        "verified": False,
    }
    if shown is not None and shown.payload is not None:
        described |= {"from": shown.bookie, "verified": shown.state == "good"}
        described |= budget.payload(shown.payload, offset)
    return described


def error_json(error: QuireError) -> dict[str, Any]:
    """Return an error as JSON, in the form of the `error` in the body of an HTTP error."""
    said: dict[str, Any] = error_body(error)["error"]
    return said
