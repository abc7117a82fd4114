"""Findings about the replicas of a ledger, from the answers of each bookie.

Every bookie is asked for all entries that it should hold (`fragments.stored_by`), so unreadable
entries are known at once. Checksums, called *sums* here, show whether replicas are *equal*. There
is one sum over the payloads, their sizes and the cumulative lengths for each block of entries, and
within it for each set of entries with the same write set. LAC and digest are not included: they may
differ for a good reason, if recovery wrote an entry again.

An entry that a member denies is MISSING or SHORT. Writers and recovery promise only an ack quorum
of copies (rule 40 of docs/internals/replication-rules.md). A member that was away when the end of a
segment was written never got it, and nothing is wrong with that bookie. Entries are SHORT if they
are missing up to the end of a member's part of a closed segment, the member has the entries before,
and an ack quorum of the others have the entries. All others are MISSING: there are fewer copies
than were acknowledged, there is a hole, or the member has nothing of the segment.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quire.codec.entry.digest import crc32c, crc32c_of
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.append.quorum import write_set
from quire.core.fragments import Fragment, last_stored, next_stored

BLOCK_ENTRIES = 4_096
"""The number of entry ids in a block, over which one checksum is computed. Blocks begin at
multiples of it."""


class Kind(enum.StrEnum):
    """The kind of problem with the copies of entries on one bookie."""

    MISSING = "missing"
    """The bookie denies the entries, and they are not SHORT: too few other bookies have them, the
    bookie has later ones, or it has nothing of the segment."""
    SHORT = "short"
    """The bookie denies the last entries of its part of a closed segment, which an ack quorum of
    the others has. So the bookie may never have got them."""
    DAMAGED = "damaged"
    """The digest is wrong, the read failed, or the bookie has lost data and does not know whether
    it had the entries."""
    DIFFERENT = "different"
    """The digest is right, but the other replicas have another content."""
    UNREACHABLE = "unreachable"
    """The bookie did not answer, so nothing is known about the entries there."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A range of entries whose copies on one bookie are missing, unreadable or different.

    The range first..last includes both ends. Entries in it that the bookie should not hold do not
    count.
    """

    first: int
    last: int
    kind: Kind
    detail: str = ""
    """More about the problem, as text. It may be empty."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with the copies that one bookie should hold of the entries first..last of a ledger.

    Both ends are included.
    """

    ledger: int
    """The id of the ledger."""
    first: int
    """The id of the first entry."""
    last: int
    """The id of the last entry."""
    bookie: str
    """The id of the bookie."""
    kind: Kind
    """The kind of problem."""
    detail: str = ""
    """More about the problem, as text. It may be empty."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Entries of one ledger that one bookie returned, with correct digests."""

    ids: Sequence[int]
    """The entry ids, ascending."""
    payloads: Sequence[bytes]
    """The payload of each entry."""
    lengths: Sequence[int]
    """The cumulative length of the ledger at each entry, in bytes."""

    @property
    def size_bytes(self) -> int:
        """The number of payload bytes of all entries."""
        return sum(map(len, self.payloads))


Sums = dict[tuple[int, int], tuple[int, int]]
"""The number of entries, and the checksum over them, for each (block, class).

The block is the entry id divided by `BLOCK_ENTRIES`. The class is the entry id modulo the ensemble
size if entries are striped, and otherwise 0. Entries of one class have the same write set.
"""


class Summing:
    """A computation of checksums over the entries of a ledger that one bookie has.

    Entries are added in order. The checksums do not depend on how the reads were divided.
    """

    def __init__(self, ensemble_size: int, write_quorum: int) -> None:
        self._classes = ensemble_size if ensemble_size != write_quorum else 1
        self._crcs: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        """The number of entries, and the CRCs over their payloads, sizes and cumulative lengths, by
        block and class."""

    def add(self, copies: Copies) -> None:
        """Include entries in the checksums. They must follow the entries that were added before."""
        classes = self._classes
        if classes == 1:
            self._add(0, copies.ids, copies.payloads, copies.lengths)
            return
        for residue in range(classes):
            at = [n for n, entry in enumerate(copies.ids) if entry % classes == residue]
            self._add(
                residue,
                [copies.ids[n] for n in at],
                [copies.payloads[n] for n in at],
                [copies.lengths[n] for n in at],
            )

    def _add(
        self, residue: int, ids: Sequence[int], payloads: Sequence[bytes], lengths: Sequence[int]
    ) -> None:
        start = 0
        while start < len(ids):
            block = ids[start] // BLOCK_ENTRIES
            end = bisect_left(ids, (block + 1) * BLOCK_ENTRIES, start)
            part = slice(start, end)
            count, crc, sizes_crc, lengths_crc = self._crcs.get((block, residue), (0, 0, 0, 0))
            for payload in payloads[part]:
                crc = crc32c_of(payload, crc)
            sizes = array("Q", map(len, payloads[part]))
            self._crcs[block, residue] = (
                count + end - start,
                crc,
                crc32c(sizes.tobytes(), sizes_crc),
                crc32c(array("q", lengths[part]).tobytes(), lengths_crc),
            )
            start = end

    def sums(self) -> Sums:
        """Return the checksums over the entries that were added so far."""
        return {
            key: (count, crc << 64 | sizes << 32 | lengths)
            for key, (count, crc, sizes, lengths) in self._crcs.items()
        }


def suspicious(metadata: LedgerMetadata, sums: Mapping[int, Sums]) -> list[tuple[int, int]]:
    """Return the (block, class) pairs whose checksums differ between members, ascending.

    The entries of these pairs must be compared one by one. `sums` has the checksums of each member
    of a fragment, by ensemble index. Members without entries of a block are ignored for that block.
    """
    found = []
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    for key in sorted({key for one in sums.values() for key in one}):
        who = write_set(key[1], size, quorum)
        member_sums = [sums[index][key] for index in who if key in sums.get(index, {})]
        if len(member_sums) > 1 and len(set(member_sums)) > 1:
            found.append(key)
    return found


def differing_copies(
    copies: Mapping[int, Mapping[int, tuple[int, int, int]]],
) -> dict[int, list[int]]:
    """Return, by ensemble index, the entry ids whose copy differs from that of most members.

    `copies` has the (cumulative length, size, checksum) of each copy, by ensemble index and entry
    id. Only members that have an entry are compared. If no value is that of more than half of them,
    the entry is returned for every member that has it.
    """
    found: dict[int, list[int]] = {}
    for entry in sorted({entry for member in copies.values() for entry in member}):
        values = {index: member[entry] for index, member in copies.items() if entry in member}
        if len(set(values.values())) < 2:
            continue
        votes = list(values.values())
        most = max(votes, key=votes.count)
        majority = 2 * votes.count(most) > len(votes)
        for index, value in values.items():
            if not majority or value != most:
                found.setdefault(index, []).append(entry)
    return found


def coalesced(metadata: LedgerMetadata, index: int, found: Iterable[Bad]) -> list[Bad]:
    """Return ranges of bad entries at one member, with adjacent ranges merged, in entry order.

    Ranges are merged if they have the same kind and detail, and if the member at ensemble `index`
    should hold no entry between them.
    """
    merged: list[Bad] = []
    for bad in sorted(found, key=lambda bad: bad.first):
        add_bad(metadata, index, merged, bad)
    return merged


def add_bad(metadata: LedgerMetadata, index: int, found: list[Bad], bad: Bad) -> None:
    """Add a range to the ranges of one member, which all begin before it, as `coalesced` does."""
    before = found[-1] if found else None
    if (
        before is not None
        and (before.kind, before.detail) == (bad.kind, bad.detail)
        and next_stored(metadata, index, before.last + 1) >= bad.first
    ):
        found[-1] = Bad(before.first, max(before.last, bad.last), bad.kind, bad.detail)
    else:
        found.append(bad)


def findings(
    ledger_id: int,
    metadata: LedgerMetadata,
    fragment: Fragment,
    found: Mapping[int, Sequence[Bad]],
) -> list[Finding]:
    """Return the problems with the copies of a fragment, in the order of members and entries.

    `found` has the bad entries at each member, by ensemble index. Entries of kind MISSING are
    classified as MISSING or SHORT. If the fragment is not closed, missing entries that an ack
    quorum has are left out, because the writer may still be sending them.
    """
    merged = {index: coalesced(metadata, index, bad) for index, bad in found.items()}
    judged = _judged(metadata, fragment, merged)
    return [
        Finding(ledger_id, bad.first, bad.last, fragment.ensemble[index], bad.kind, bad.detail)
        for index in sorted(judged)
        for bad in coalesced(metadata, index, judged[index])
    ]


def _judged(
    metadata: LedgerMetadata, fragment: Fragment, found: Mapping[int, Sequence[Bad]]
) -> dict[int, list[Bad]]:
    """Return the bad entries of each member, with missing ones classified as MISSING or SHORT.

    Ranges of missing entries are divided where the set of members without a copy changes.
    """
    cuts: list[tuple[int, bool, int]] = []
    for index, bads in found.items():
        for bad in bads:
            if bad.kind in (Kind.MISSING, Kind.DAMAGED):
                cuts += ((bad.first, True, index), (bad.last + 1, False, index))
    cuts.sort()
    parts: dict[int, list[tuple[int, int, frozenset[int]]]] = {}
    lost: set[int] = set()
    before = 0
    for entry, begins, index in cuts:
        if entry > before and lost:
            for member in lost:
                parts.setdefault(member, []).append((before, entry - 1, frozenset(lost)))
        before = entry
        (lost.add if begins else lost.discard)(index)
    judged: dict[int, list[Bad]] = {}
    for index, bads in found.items():
        for bad in bads:
            if bad.kind is not Kind.MISSING:
                judged.setdefault(index, []).append(bad)
                continue
            for first, last, without in parts[index]:
                first, last = max(first, bad.first), min(last, bad.last)
                # The member may store no entry of this part.
                if next_stored(metadata, index, first) <= last:
                    one = _missing(metadata, fragment, index, bad, (first, last), without)
                    judged.setdefault(index, []).extend(one)
    return judged


def _missing(
    metadata: LedgerMetadata,
    fragment: Fragment,
    index: int,
    whole: Bad,
    part: tuple[int, int],
    lost: frozenset[int],
) -> list[Bad]:
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    first = next_stored(metadata, index, part[0])
    last = last_stored(metadata, index, part[1])
    rows = range(first, min(last, first + size - 1) + 1)
    copies = min(
        quorum - len(lost.intersection(write_set(entry, size, quorum)))
        for entry in rows
        if index in write_set(entry, size, quorum)
    )
    enough = copies >= metadata.ack_quorum
    if not fragment.closed and enough:
        return []  # the writer may be sending them
    at_start = whole.first <= next_stored(metadata, index, fragment.first)
    at_end = whole.last >= last_stored(metadata, index, fragment.last)
    kind = Kind.SHORT if enough and at_end and not at_start else Kind.MISSING
    return [Bad(first, last, kind, f"at most {copies} of {quorum} copies")]
