"""Ledgers that a pass over many of them cannot read.

One ledger whose metadata is damaged must not stop a pass that looks at all ledgers. The pass
records the ledger in an `Unread`, continues, and reports at its end which ledgers it could not
read. A pass that ends with a final step, such as removing a cookie, treats each of them as a ledger
that may still need what the step would take away.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_metadata_format import decode
from quire.errors import (
    LaterMetadataError,
    MetadataDeniedError,
    NoSuchLedgerError,
    QuireError,
    UnreadableMetadataError,
)
from quire.metadata.interface import MetadataStore, Versioned

UNREADABLE = (UnreadableMetadataError, MetadataDeniedError)
"""The errors that are about one ledger, mark or node: the store itself answers."""
NAMED_MAX = 20
"""The number of ledgers that one `Unread` keeps with their reasons. It counts all of them."""
TOLD_MAX = 5
"""The number of ledgers that a message names."""
REASON_CHARS_MAX = 300
"""The length at which a reason is cut off."""
REMEDY = (
    "No bookie deletes its entries meanwhile. If a later version wrote the metadata, install that "
    "version. If it is damaged, restore it from a backup (`quire shell ledgermetadata "
    "-restorefromfile FILE -update`)"
)


class Unread:
    """The ledgers that one pass could not read, and why."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self.named: dict[int, str] = {}
        """The reasons of the first `NAMED_MAX` ledgers, by ledger."""

    def add(self, ledger_id: int, why: object) -> None:
        """Record a ledger. A ledger that is recorded twice counts once."""
        self._ids.add(ledger_id)
        if ledger_id in self.named or len(self.named) < NAMED_MAX:
            self.named[ledger_id] = reason_of(why)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._ids

    def __str__(self) -> str:
        return named_ledgers(self.named, len(self))

    @property
    def why(self) -> str:
        """The reason for the first ledger, or '' if all could be read."""
        return next(iter(self.named.values()), "")


def reason_of(why: object) -> str:
    """Return what happened in one sentence, without the advice that an error adds to it."""
    text = why
    if isinstance(why, UnreadableMetadataError):
        text = why.reason
    elif isinstance(why, QuireError) and why.args:
        text = why.args[0]
    return str(text)[:REASON_CHARS_MAX]


def named_ledgers(named: Mapping[int, str], count: int) -> str:
    """Return the ledgers as a noun phrase: `ledger 7`, or `3 ledgers (7, 9, 12)`."""
    some = ", ".join(str(one) for one in list(named)[:TOLD_MAX])
    more = ", ..." if count > TOLD_MAX else ""
    return f"ledger {some}" if count == 1 else f"{count} ledgers ({some}{more})"


async def read_or_skip(
    store: MetadataStore, ledger_id: int, unread: Unread
) -> Versioned[LedgerMetadata] | None:
    """Return the metadata of a ledger, or None for one that a pass skips.

    A ledger that does not exist any more is skipped silently. One whose metadata cannot be read is
    recorded in `unread`. Cancel-safe.

    Raises:
        MetadataError: The store does not answer.
    """
    try:
        return await store.read_ledger(ledger_id)
    except NoSuchLedgerError:
        return None
    except UNREADABLE as error:
        unread.add(ledger_id, error)
        return None


def decode_ledger(ledger_id: int, data: bytes, ctime_ms: int, version: int) -> LedgerMetadata:
    """Decode the stored metadata of a ledger.

    Raises:
        LaterMetadataError: A later version of Quire or of BookKeeper wrote it.
        UnreadableMetadataError: It is damaged. Both errors have the ledger's id and the version of
            the value.
    """
    try:
        return decode(data, ctime_ms)
    except LaterMetadataError as error:
        raise LaterMetadataError(
            f"the metadata of ledger {ledger_id} cannot be read: {error.args[0]}",
            ledger_id=ledger_id,
            version=version,
            reason=str(error.args[0]),
            remedy=f"{error.remedy}. No bookie deletes its entries meanwhile",
        ) from None
    except UnreadableMetadataError as error:
        raise UnreadableMetadataError(
            f"the metadata of ledger {ledger_id} cannot be read: {error}",
            ledger_id=ledger_id,
            version=version,
            reason=str(error),
            remedy=REMEDY,
        ) from None
