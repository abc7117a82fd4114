"""The copies of one entry: what each bookie has of it, and what is wrong with it.

Nothing is changed, and no ledger is recovered or fenced.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire._runtime.tasks import each
from quire._runtime.units import acknowledged_text, end_text
from quire.client import Client
from quire.client.client import pool_of
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import BadEntryError, EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.append.quorum import write_set
from quire.errors import (
    BookieIOError,
    DataUnknownError,
    NoSuchEntryError,
    QuireError,
    ReadError,
    UnauthorizedError,
)
from quire.net.answer_codes import NoEntryAnswer

GOOD = "good"


@dataclass(frozen=True, slots=True)
class EntryCopy:
    """The copy of an entry on one bookie."""

    bookie: str
    registered: str
    """"writable", "read-only", or "gone" if the bookie is not registered."""
    state: str
    """"good", "missing" (the bookie says that it does not have the entry), "damaged", "different"
    (other bookies have other bytes, whose digest is right too) or "unreachable"."""
    detail: str = ""
    """The reason for the state. Empty for a good copy."""
    payload: bytes | None = None
    """The payload as the bookie sent it, or None if it sent none. If the copy is damaged, the bytes
    are not those that were written."""


@dataclass(frozen=True, slots=True)
class EntryCopies:
    """All copies of an entry."""

    ledger_id: int
    entry_id: int
    write_quorum: int
    copies: tuple[EntryCopy, ...]
    """The copies, in the order of the write set."""

    @property
    def good(self) -> EntryCopy | None:
        """A good copy, or None if there is none."""
        return next((one for one in self.copies if one.state == GOOD), None)


async def entry_copies(
    client: Client, ledger_id: int, entry_id: int, *, password: bytes = b""
) -> EntryCopies:
    """Read an acknowledged entry from every bookie that should have it.

    Cancel-safe.

    Raises:
        NoSuchLedgerError: The ledger does not exist.
        NoSuchEntryError: The entry is after the end of the closed ledger.
        ReadError: The entry is not known to be acknowledged, or too few bookies answer.
        UnauthorizedError: The password is wrong.
        MetadataError: The metadata store does not answer.
    """
    async with await client.open_ledger(ledger_id, password=password) as reader:
        metadata, last, closed = reader.metadata, reader.last_add_confirmed, reader.ledger_closed
    if not 0 <= entry_id <= last:
        raise _beyond(ledger_id, entry_id, last, closed=closed)
    codec = EntryCodec(ledger_id, metadata.digest or DigestType.CRC32, password)
    bookies = await client.bookies()

    async def copy(bookie: str) -> EntryCopy:
        found = await _copy(client, codec, bookie, entry_id)
        if bookies.find(bookie) is None:
            return found
        return replace(found, registered="writable" if bookie in bookies.writable else "read-only")

    copies = await each(_members(metadata, entry_id), copy)
    return EntryCopies(ledger_id, entry_id, metadata.write_quorum, tuple(_compared(copies)))


def _members(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    ensemble = metadata.segment_of(entry_id).ensemble
    return [
        ensemble[index]
        for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
    ]


async def _copy(client: Client, codec: EntryCodec, bookie: str, entry_id: int) -> EntryCopy:
    limit_s = client.config.read_timeout_s

    def without(state: str, detail: str) -> EntryCopy:
        return EntryCopy(bookie, "gone", state, detail)

    try:
        async with asyncio.timeout(limit_s):
            data = await pool_of(client).ask(
                bookie, lambda channel: channel.read(codec.ledger_id, entry_id)
            )
    except NoEntryAnswer:
        return without("missing", "the bookie says that it does not have the entry")
    except DataUnknownError:
        return without("damaged", "the bookie lost data, and does not know which entries")
    except UnauthorizedError:
        return without(
            "unreachable",
            "the bookie refuses to serve this client: check the password and the TLS settings",
        )
    except BookieIOError as error:
        return without("damaged", f"the bookie cannot read the entry: {error.args[0]}")
    except QuireError as error:  # also of a busy bookie, which says nothing about the entry
        return without("unreachable", str(error.args[0]))
    except TimeoutError:
        return without("unreachable", f"the bookie did not answer within {limit_s:g} s")
    try:
        return EntryCopy(bookie, "gone", GOOD, "", codec.unpack(data, entry_id).payload)
    except BadEntryError as error:
        return EntryCopy(bookie, "gone", "damaged", str(error), bytes(data[codec.head_bytes :]))


def _compared(copies: Sequence[EntryCopy]) -> list[EntryCopy]:
    """Return the copies, with those called different whose bytes fewer bookies have."""
    counts = Counter(one.payload for one in copies if one.state == GOOD)
    if len(counts) < 2:
        return list(copies)
    most, _ = counts.most_common(1)[0]
    detail = "its digest is right, but more bookies, or earlier ones, have other bytes"
    return [
        replace(one, state="different", detail=detail)
        if one.state == GOOD and one.payload != most
        else one
        for one in copies
    ]


def _beyond(ledger_id: int, entry_id: int, last: int, *, closed: bool) -> ReadError:
    what = f"entry {entry_id} of ledger {ledger_id} cannot be read: "
    if closed:
        return NoSuchEntryError(
            f"{what}the ledger is closed and {end_text(last)}",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )
    return ReadError(
        what + acknowledged_text(last),
        ledger_id=ledger_id,
        entry_id=entry_id,
        remedy="Wait for the writer",
    )
