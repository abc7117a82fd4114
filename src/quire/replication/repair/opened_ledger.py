"""Opening a ledger for repair: with the password in its metadata, and without recovery."""

from __future__ import annotations

from dataclasses import dataclass

from quire.client import Client
from quire.client.client import pool_of
from quire.client.read.last_confirmed import read_last_confirmed
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.fragments import Fragment, fragments
from quire.errors import ReadError, UnauthorizedError
from quire.metadata.interface import Versioned


@dataclass(frozen=True, slots=True)
class OpenedLedger:
    """A ledger that is opened for repair."""

    ledger_id: int
    stored: Versioned[LedgerMetadata]
    password: bytes
    codec: EntryCodec
    last_add_confirmed: int
    """The id of the last entry that is known to be acknowledged. For a closed ledger it is the last
    entry."""
    not_told: str = ""
    """The reason why the bookies of an open ledger did not tell its last confirmed entry, although
    they were asked. Empty if they did."""

    @property
    def metadata(self) -> LedgerMetadata:
        return self.stored.value

    def fragments(self) -> list[Fragment]:
        return fragments(self.metadata, self.last_add_confirmed)


async def open_for_repair(
    client: Client, ledger_id: int, *, password: bytes = b"", ask: bool = True
) -> OpenedLedger:
    """Open a ledger for repair, without changing it.

    `password` is used if the metadata does not contain one. With `ask`, the bookies of an open
    ledger are asked for its last confirmed entry. If too few of them answer, if one refuses this
    client, or without `ask`, only the entries before its last segment are known. Raises
    NoSuchLedgerError and MetadataError. Cancel-safe.
    """
    stored = await client.metadata.read_ledger(ledger_id)
    value = stored.value
    secret = password if value.password is None else value.password
    codec = EntryCodec(ledger_id, value.digest or DigestType.CRC32, secret)
    lac, not_told = value.last_entry_id, ""
    if not value.closed:
        lac = value.last_segment.first_entry_id - 1
        if ask:
            try:
                timeout_s = client.config.read_timeout_s
                known = await read_last_confirmed(value, codec, pool_of(client), timeout_s)
                lac = max(lac, known.lac)
            except (ReadError, UnauthorizedError) as error:
                not_told = str(error)
    return OpenedLedger(ledger_id, stored, secret, codec, lac, not_told)
