"""Limits on the size of the metadata of a ledger.

A ledger whose metadata fills its node can be neither recovered nor closed, because both write more
bytes. So the limit depends on the ledger's state, and each state leaves room for what must follow:

| write                                         | limit                                      |
|-----------------------------------------------|--------------------------------------------|
| creation                                      | `NODE_BYTES_MAX`, less the bytes of        |
|                                               | `ENSEMBLE_CHANGES_RESERVED` more segments  |
| ensemble changes of a writer, re-replication  | `NODE_BYTES_MAX`                           |
| recovery, closing, changes of a closed ledger | `NODE_BYTES_MAX` + `CLOSING_BYTES`         |

All three drivers check through this module. The sum of the two constants stays below ZooKeeper's
default `jute.maxbuffer` (1,048,575 bytes) by 8 KB, which holds the rest of the request.
"""

from __future__ import annotations

from dataclasses import replace

from quire._runtime.units import counted
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import encode
from quire.errors import MetadataTooLargeError, UsageError
from quire.metadata.common import NODE_BYTES_MAX

CLOSING_BYTES = 40_000
"""Bytes that only recovery and closing may use. The close itself takes fewer than 64; the rest is
for bookies that recovery has to replace while it writes entries back."""

ENSEMBLE_CHANGES_RESERVED = 100
"""The number of ensemble changes for which a new ledger must have room, beyond its own metadata
and `CLOSING_BYTES`."""

_ENTRY_ID_MAX = 2**63 - 1


def ledger_bytes_max(state: LedgerState) -> int:
    """Return the largest size, in bytes, of the metadata of a ledger in this state."""
    return NODE_BYTES_MAX if state is LedgerState.OPEN else NODE_BYTES_MAX + CLOSING_BYTES


def encode_new(metadata: LedgerMetadata) -> bytes:
    """Return the bytes to store for a ledger that is about to be created.

    Raises:
        UsageError: The metadata leaves too little room for ensemble changes, or cannot be encoded.
        MetadataTooLargeError: The ledger is not open, and its metadata is too large.
    """
    if metadata.state is not LedgerState.OPEN:
        return encode_change(metadata)  # restored from a copy: there is nothing to leave room for
    data = encode(metadata)
    reserved = ENSEMBLE_CHANGES_RESERVED * _segment_bytes(metadata, len(data))
    if len(data) + reserved > NODE_BYTES_MAX:
        custom = sum(len(key.encode()) + len(value) for key, value in metadata.custom.items())
        raise UsageError(
            "the ledger was not created, because its metadata is too large: it takes "
            f"{len(data):,} bytes, of which {custom:,} are custom metadata, and {reserved:,} "
            f"bytes must stay free for {ENSEMBLE_CHANGES_RESERVED} ensemble changes. The limit "
            f"of the metadata store is {NODE_BYTES_MAX:,} bytes",
            remedy="Shrink the custom metadata, for example by writing the data as an entry of a "
            "ledger and storing only its ledger id here, or use a smaller ensemble",
        )
    return data


def encode_change(metadata: LedgerMetadata, ledger_id: int | None = None) -> bytes:
    """Return the bytes to store for a ledger that exists. The error names it by `ledger_id`.

    Raises:
        MetadataTooLargeError: They exceed the limit of the ledger's state. Nothing was written.
        UsageError: The metadata's format cannot store them.
    """
    data = encode(metadata)
    limit = ledger_bytes_max(metadata.state)
    if len(data) > limit:
        name = "the ledger" if ledger_id is None else f"ledger {ledger_id}"
        raise MetadataTooLargeError(
            f"the metadata of {name} would become too large: with "
            f"{counted(len(metadata.segments), 'segment')} it takes {len(data):,} bytes, but a "
            f"ledger in state {metadata.state.name} may have only {limit:,} bytes. Nothing was "
            "changed"
        )
    return data


def check_close(metadata: LedgerMetadata) -> None:
    """Check that a ledger with this metadata could still be closed.

    Raises:
        MetadataTooLargeError: It could not.
    """
    encode_change(metadata.with_close(_ENTRY_ID_MAX, _ENTRY_ID_MAX))


def _segment_bytes(metadata: LedgerMetadata, encoded: int) -> int:
    """Return the bytes that one more segment with the same bookies takes."""
    more = Segment(_ENTRY_ID_MAX, metadata.last_segment.ensemble)
    return len(encode(replace(metadata, segments=(*metadata.segments, more)))) - encoded
