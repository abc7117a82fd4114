"""The changes that a writer and a recovery make to the metadata of a ledger.

Each function receives the newest known metadata and returns the value to store, or None if nothing
may be written. `quire.metadata.ledgers.update.update_ledger` stores it by compare-and-swap. After a
conflict it calls the function again with the metadata that somebody else has stored.

See rules 6, 18, 19 and 20 of docs/internals/replication-rules.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState

PrivateSegment = tuple[int, tuple[str, ...]]
"""The first entry and the ensemble of a segment that a recovery has not published yet."""


def changed_ensemble(
    now: LedgerMetadata, failed: Mapping[int, str], replacements: Mapping[int, str], first: int
) -> LedgerMetadata | None:
    """Return the metadata of an open ledger after its writer has replaced failed members.

    Args:
        now: The newest known metadata.
        failed: The bookies to replace, by their index in the ensemble.
        replacements: The new bookie of each of these indexes.
        first: The first entry that the new ensemble stores.

    Returns:
        The new metadata. None if the ledger is no longer open, or if none of the failed bookies is
        at its index any more.
    """
    if now.state is not LedgerState.OPEN:
        return None
    ensemble = list(now.last_segment.ensemble)
    hit = [index for index, bookie in failed.items() if ensemble[index] == bookie]
    if not hit:
        return None
    for index in hit:
        ensemble[index] = replacements[index]
    return now.with_ensemble_from(first, tuple(ensemble))


def closed_by_writer(now: LedgerMetadata, last: int, length: int) -> LedgerMetadata | None:
    """Return the metadata after its writer has closed the ledger, or None if it is closed already.

    A writer may close a ledger that is in recovery, because all entries up to `last` are
    acknowledged. `length` is the number of payload bytes of these entries.
    """
    return None if now.closed else now.with_close(last, length)


def marked_in_recovery(now: LedgerMetadata) -> LedgerMetadata | None:
    """Return the metadata with the state IN_RECOVERY, or None if the ledger is not open."""
    return now.with_state(LedgerState.IN_RECOVERY) if now.state is LedgerState.OPEN else None


def private_change(
    snapshot: LedgerMetadata,
    segments: Sequence[PrivateSegment],
    replacements: Mapping[int, str],
    first: int,
) -> list[PrivateSegment]:
    """Return the private segments of a recovery after it has replaced members (rule 6).

    Args:
        snapshot: The metadata with which the recovery began.
        segments: The private segments so far.
        replacements: The new bookies, by their index in the ensemble.
        first: The first entry that the new ensemble stores.
    """
    ensemble = list(segments[-1][1] if segments else snapshot.last_segment.ensemble)
    for index, bookie in replacements.items():
        ensemble[index] = bookie
    kept = [segment for segment in segments if segment[0] != first]
    return [*kept, (first, tuple(ensemble))]


def with_private(now: LedgerMetadata, segments: Sequence[PrivateSegment]) -> LedgerMetadata:
    """Return the metadata with the private segments of a recovery added, in order."""
    for first, ensemble in segments:
        now = now.with_ensemble_from(first, ensemble)
    return now


def closed_by_recovery(
    now: LedgerMetadata, segments: Sequence[PrivateSegment], last: int, length: int
) -> LedgerMetadata | None:
    """Return the metadata after a recovery has closed the ledger.

    Returns None, so that nothing is written, if the ledger is not in recovery. A ledger that is
    closed already keeps its end: the first close counts.

    Args:
        now: The newest known metadata.
        segments: The segments that this recovery chose and has not published yet.
        last: The last entry of the ledger.
        length: The number of payload bytes of the ledger.
    """
    if now.state is not LedgerState.IN_RECOVERY:
        return None
    return with_private(now, segments).with_close(last, length)
