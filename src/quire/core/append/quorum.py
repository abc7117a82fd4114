"""Quorum arithmetic: which bookies store an entry, and when enough of them have answered.

See rules 3 and 4 of docs/internals/replication-rules.md, which defines the terms.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the ensemble indexes of the members that store an entry, in order.

    The first is the entry id modulo the ensemble size. Java's add path truncates the id to 32 bits
    before it divides.
    """
    return tuple((entry_id + k) % ensemble_size for k in range(write_quorum))


def in_write_set(index: int, entry_id: int, ensemble_size: int, write_quorum: int) -> bool:
    """Return whether the member with this index stores the entry."""
    return (index - entry_id) % ensemble_size < write_quorum


def stripe(
    index: int, first: int, last: int, ensemble_size: int, write_quorum: int
) -> Sequence[int]:
    """Return the entry ids from `first` to `last`, both included, that member `index` stores."""
    if ensemble_size == write_quorum:
        return range(first, last + 1)
    return [
        entry for entry in range(first, last + 1) if (index - entry) % ensemble_size < write_quorum
    ]


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """Return how many "no such entry" answers prove that an entry was never acknowledged (rule 3).

    The answers must come from the write set of the entry.
    """
    return write_quorum - ack_quorum + 1


def covered(known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Return whether the bookies that answered include a member of every possible ack quorum.

    That is the case if each window of `write_quorum` neighbours has fewer than `ack_quorum` members
    without an answer (rule 4). `known` has the indexes of those that answered.
    """
    for start in range(ensemble_size):
        unknown = sum((start + k) % ensemble_size not in known for k in range(write_quorum))
        if unknown >= ack_quorum:
            return False
    return True


def bearable(
    absent: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int
) -> bool:
    """Return whether every write set still has an ack quorum without the `absent` members.

    `absent` has their ensemble indexes.
    """
    for start in range(ensemble_size):
        left = sum((start + k) % ensemble_size not in absent for k in range(write_quorum))
        if left < ack_quorum:
            return False
    return True
