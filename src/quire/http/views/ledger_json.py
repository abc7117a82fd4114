"""Ledgers as JSON, for the command line and for HTTP."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.codec.metadata.ledger_metadata import LedgerMetadata
    from quire.metadata.interface import MetadataStore
    from quire.metadata.ledgers.unreadable import Unread

TIME_MAX_MS = 253_402_300_799_999
"""The last Unix time in milliseconds whose year has four digits."""


def ledger_as_json(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """Return a ledger as `quire ledger show --json` and `quire ledger list --json` print it."""
    custom, not_text = _texts(metadata.custom)
    last_of: list[int | None] = [segment.first_entry_id - 1 for segment in metadata.segments[1:]]
    last_of.append(metadata.last_entry_id if metadata.closed else None)
    described: dict[str, Any] = {
        "ledger_id": ledger_id,
        "state": metadata.state.name,
        "last_entry_id": metadata.last_entry_id if metadata.closed else None,
        "length": metadata.length if metadata.closed else None,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": metadata.digest.name if metadata.digest is not None else None,
        "ctime_ms": metadata.ctime_ms if metadata.ctime_ms >= 0 else None,
        "ctime": time_text(metadata.ctime_ms),
        "format_version": metadata.format_version,
        "custom": custom,
        "segments": [
            {
                "first_entry_id": segment.first_entry_id,
                "last_entry_id": last,
                "bookies": list(segment.ensemble),
            }
            for segment, last in zip(metadata.segments, last_of, strict=True)
        ],
    }
    if not_text:
        described["custom_base64"] = not_text
    return described


async def described_or_error(
    store: MetadataStore,
    ledger_id: int,
    shape: Callable[[int, LedgerMetadata], dict[str, Any]],
    unread: Unread | None = None,
) -> dict[str, Any] | None:
    """Return one item of a list of ledgers, as the function `shape` of this module describes it.

    The result is None for a ledger that was deleted since it was listed. A ledger whose metadata
    cannot be read becomes an item with `ledger_id` and `error`, and is recorded in `unread` if that
    is given; it does not end the list. Raises MetadataError if the store does not answer.
    """
    from quire.metadata.ledgers.unreadable import Unread, read_or_skip

    unread = unread if unread is not None else Unread()
    found = await read_or_skip(store, ledger_id, unread)
    if found is not None:
        return shape(ledger_id, found.value)
    if ledger_id not in unread:
        return None
    why = unread.named.get(ledger_id, "its metadata cannot be read")
    return {"ledger_id": ledger_id, "error": why}


def time_text(milliseconds: int) -> str | None:
    """Return a Unix time as ISO 8601 text in UTC.

    The result is None for a negative (unknown) time, and for one after the year 9999.
    """
    if not 0 <= milliseconds <= TIME_MAX_MS:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _texts(values: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values that are UTF-8 text, and all others in base64."""
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for key, value in values.items():
        try:
            texts[key] = value.decode()
        except UnicodeDecodeError:
            others[key] = b64encode(value).decode()
    return texts, others


def ledger_as_apache(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """Return a ledger as the Java server shows it, but without the password."""
    closed = metadata.closed
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length if closed else 0,
        "lastEntryId": metadata.last_entry_id if closed else -1,
        "ctime": metadata.ctime_ms,
        "digestType": metadata.digest.name if metadata.digest is not None else None,
        "customMetadata": {
            key: b64encode(value).decode() for key, value in metadata.custom.items()
        },
        "allEnsembles": {
            str(segment.first_entry_id): list(segment.ensemble) for segment in metadata.segments
        },
        "closed": closed,
    }
