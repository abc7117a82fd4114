"""Tests of whether two values, or an answer and a ledger, belong to one creation of the ledger.

A ledger id may be used again: somebody deletes the ledger and creates another one with the same id.
Versions then begin at 0 again, so a compare-and-swap on the version alone would change the new
ledger by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import LedgerRecreatedError, UnreadableMetadataError
from quire.metadata.interface import UNKNOWN_CREATION, MetadataStore, Versioned


def same_creation(known: Versioned[LedgerMetadata], stored: Versioned[LedgerMetadata]) -> bool:
    """Return whether both values belong to one creation of the ledger.

    If both values have a creation token, the tokens decide. Java drops it when it rewrites the
    metadata, and formats 1 and 2 have none. Without tokens, values with another digest, password or
    quorums belong to another creation. Otherwise the store's own identification of the creation
    decides: the transaction that created the node (ZooKeeper), or the time of creation (the other
    stores). If that is unknown too, the creation times in the metadata decide, if both values have
    one. If nothing distinguishes the values, they count as one creation.
    """
    one, other = known.value, stored.value
    if one.ctoken and other.ctoken:
        return one.ctoken == other.ctoken
    if _fixed(one) != _fixed(other):
        return False
    if UNKNOWN_CREATION not in (known.created, stored.created):
        return known.created == stored.created
    return one.ctime_ms < 0 or other.ctime_ms < 0 or one.ctime_ms == other.ctime_ms


def check_same_creation(
    ledger_id: int, known: Versioned[LedgerMetadata], stored: Versioned[LedgerMetadata]
) -> None:
    """Raise LedgerRecreatedError unless both values belong to one creation of the ledger."""
    if not same_creation(known, stored):
        raise recreated(ledger_id)


def recreated(ledger_id: int) -> LedgerRecreatedError:
    """Return the error for a ledger whose id belongs to another ledger by now."""
    return LedgerRecreatedError(
        f"ledger {ledger_id} was deleted, and another client created a new ledger with its id. "
        "The metadata of the new ledger was not changed",
        ledger_id=ledger_id,
    )


@dataclass(frozen=True, slots=True)
class SeenLedger:
    """A ledger as it was when somebody was asked whether to delete it."""

    ledger_id: int
    stored: Versioned[LedgerMetadata] | None
    """The metadata, or None if it could not be read."""
    unreadable_version: int | None = None
    """The version of metadata that could not be read."""


async def see_ledger(
    store: MetadataStore, ledger_id: int, *, unreadable: bool = False
) -> SeenLedger:
    """Return the ledger as it is now, for `check_seen` before its deletion.

    With `unreadable`, the ledger may have metadata that cannot be read.

    Raises:
        NoSuchLedgerError: The ledger does not exist.
        UnreadableMetadataError: Its metadata cannot be read, and `unreadable` is False.
        MetadataError: The store fails.
    """
    try:
        return SeenLedger(ledger_id, await store.read_ledger(ledger_id))
    except UnreadableMetadataError as error:
        if not unreadable:
            raise
        return SeenLedger(ledger_id, None, error.version)


async def check_seen(store: MetadataStore, seen: SeenLedger) -> None:
    """Check that no other ledger has taken the id since `see_ledger`.

    A question or a search may take minutes, and a deletion goes by the id.

    Raises:
        LedgerRecreatedError: Another ledger has the id, or unreadable metadata was replaced.
        NoSuchLedgerError: The ledger does not exist any more.
        UnreadableMetadataError: The metadata could be read by `see_ledger`, and cannot be read now.
        MetadataError: The store fails.
    """
    await store.tree.sync()  # the server may lag behind the process that took the id
    now = await see_ledger(store, seen.ledger_id, unreadable=seen.stored is None)
    if seen.stored is None or now.stored is None:
        same = now == seen
    else:
        same = same_creation(seen.stored, now.stored)
    if not same:
        raise LedgerRecreatedError(
            f"ledger {seen.ledger_id} was deleted and created again, or its unreadable metadata "
            "was replaced, before this deletion. It was not deleted",
            ledger_id=seen.ledger_id,
            remedy="Look at the present ledger, and repeat the request if you mean that one",
        )


def _fixed(metadata: LedgerMetadata) -> tuple[object, ...]:
    """Return the fields that no change of a ledger's metadata touches."""
    return (
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        metadata.digest,
        metadata.password,
    )
