"""Ledgers whose metadata cannot be read, found by a pass over many ledgers.

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
"""The errors that concern only one ledger, mark or node. The store itself answers."""
NAMED_MAX = 20
"""The largest number of ledgers whose reasons one `Unread` keeps. It counts all of them."""
TOLD_MAX = 5
"""The largest number of ledgers that a message names."""
REASON_CHARS_MAX = 300
"""The largest number of characters of a reason. The rest is cut off."""
REMEDY = (
    "No bookie deletes entries of such a ledger meanwhile. If a later version wrote the metadata, "
    "install that version. If it is damaged, restore it from a backup (`quire shell ledgermetadata "
    "-restorefromfile FILE -update`)"
)


class Unread:
    """The ledgers that one pass could not read, and why."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self.named: dict[int, str] = {}
        """Why each of the first `NAMED_MAX` ledgers could not be read, by ledger id."""

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
        """The reason why the first recorded ledger could not be read, or '' if there is none."""
        return next(iter(self.named.values()), "")


def reason_of(why: object) -> str:
    """Return what an error, or another reason, says happened, without the error's advice.

    The text has at most `REASON_CHARS_MAX` characters.
    """
    text = why
    if isinstance(why, UnreadableMetadataError):
        text = why.reason
    elif isinstance(why, QuireError) and why.args:
        text = why.args[0]
    return str(text)[:REASON_CHARS_MAX]


def named_ledgers(named: Mapping[int, str], count: int) -> str:
    """Return ledgers as a noun phrase: `ledger 7`, or `3 ledgers (7, 9, 12)`.

    `count` is the number of all ledgers. The phrase has the ids of the first `TOLD_MAX` in `named`.
    """
    some = ", ".join(str(one) for one in list(named)[:TOLD_MAX])
    more = ", ..." if count > TOLD_MAX else ""
    return f"ledger {some}" if count == 1 else f"{count} ledgers ({some}{more})"


async def read_or_skip(
    store: MetadataStore, ledger_id: int, unread: Unread
) -> Versioned[LedgerMetadata] | None:
    """Return the metadata of a ledger, or None if a pass over many ledgers must skip it.

    The result is None if the ledger no longer exists, or if its metadata cannot be read. In the
    second case the ledger is recorded in `unread`. Cancel-safe.

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
            remedy=f"{error.remedy}. No bookie deletes entries of the ledger meanwhile",
        ) from None
    except UnreadableMetadataError as error:
        raise UnreadableMetadataError(
            f"the metadata of ledger {ledger_id} cannot be read: {error}",
            ledger_id=ledger_id,
            version=version,
            reason=str(error),
            remedy=REMEDY,
        ) from None
