"""Quorum arithmetic: who stores an entry, and when enough have answered (replication spec, 1-6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """The ensemble indexes that store `entry_id`, in order. The mathematical modulo: Java's add
    path truncates to 32 bits first (replication spec, 3.2)."""
    return tuple((entry_id + k) % ensemble_size for k in range(write_quorum))


def in_write_set(index: int, entry_id: int, ensemble_size: int, write_quorum: int) -> bool:
    return (index - entry_id) % ensemble_size < write_quorum


def stripe(
    index: int, first: int, last: int, ensemble_size: int, write_quorum: int
) -> Sequence[int]:
    """The entries in [first, last] that ensemble index `index` stores, ascending."""
    if ensemble_size == write_quorum:
        return range(first, last + 1)
    return [
        entry for entry in range(first, last + 1) if (index - entry) % ensemble_size < write_quorum
    ]


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """So many "no such entry" of an entry's write set prove that it was never acknowledged
    (rule 3)."""
    return write_quorum - ack_quorum + 1


def covered(known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Whether the bookies that answered (by index) include one of every possible ack quorum: each
    window of `write_quorum` neighbours has fewer than `ack_quorum` unknown (rule 4)."""
    for start in range(ensemble_size):
        unknown = sum((start + k) % ensemble_size not in known for k in range(write_quorum))
        if unknown >= ack_quorum:
            return False
    return True


def bearable(
    absent: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int
) -> bool:
    """Whether every write set still has an ack quorum without the `absent` members."""
    for start in range(ensemble_size):
        left = sum((start + k) % ensemble_size not in absent for k in range(write_quorum))
        if left < ack_quorum:
            return False
    return True
