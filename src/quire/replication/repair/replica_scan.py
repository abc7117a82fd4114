"""Verification of what bookies really have, by reading one replica or comparing several.

Checksums over payloads are computed where they are read, so that a result has only a few numbers
for each block of entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from quire.client import Client
from quire.codec.entry.digest import crc32c
from quire.core.append.quorum import write_set
from quire.core.fragments import Fragment
from quire.core.replicas import (
    BLOCK_ENTRIES,
    Bad,
    Copies,
    Kind,
    Summing,
    Sums,
    add_bad,
    differing_copies,
)
from quire.replication.budget import UNBOUNDED, Budget
from quire.replication.repair.opened_ledger import OpenedLedger
from quire.replication.repair.replica_reader import Part, ReplicaReader, Unreachable

Value = tuple[int, int, int]
"""The ledger length, the payload size and the checksum of an entry."""

DIFFERENT = "its digest is right, but other replicas have another entry under this id"


@dataclass(slots=True)
class ReplicaScan:
    """The result of reading one replica."""

    bad: list[Bad] = field(default_factory=list)
    """The ranges of entries with problems. Adjacent ones of one kind are merged."""
    sums: Sums = field(default_factory=dict)
    """The checksums of the good entries, by block and class of entries (`quire.core.replicas`)."""
    entries: int = 0
    """The number of entries that were read and verified."""
    size_bytes: int = 0

    @property
    def silent(self) -> bool:
        return any(bad.kind is Kind.UNREACHABLE for bad in self.bad)


async def scan(
    client: Client,
    ledger: OpenedLedger,
    fragment: Fragment,
    index: int,
    first: int,
    last: int,
    *,
    budget: Budget = UNBOUNDED,
) -> ReplicaScan:
    """Read all entries from `first` to `last` that the member `index` of a fragment should hold.

    Both ends are included. `budget` limits the rate of the reads. Problems are in the result, and
    are not raised. Cancel-safe.
    """
    metadata = ledger.metadata
    reader = ReplicaReader(
        client, ledger.ledger_id, metadata, ledger.codec, fragment.ensemble[index], budget=budget
    )
    result = ReplicaScan()
    summing = Summing(metadata.ensemble_size, metadata.write_quorum)
    async for part in reader.parts(index, first, last):
        if isinstance(part, Bad):
            add_bad(metadata, index, result.bad, part)
            continue
        summing.add(part)
        result.entries += len(part.ids)
        result.size_bytes += part.size_bytes
    result.sums = summing.sums()
    return result


async def compare(
    client: Client,
    ledger: OpenedLedger,
    fragment: Fragment,
    block: int,
    residue: int,
    *,
    without: Collection[str] = (),
    budget: Budget = UNBOUNDED,
) -> dict[int, list[Bad]]:
    """Read one block from all members, compare the replicas, and return the differences.

    The result has the bad entries by member index. If entries are striped, only those are compared
    whose id modulo the ensemble size is `residue`. Entries that cannot be read are left out, and no
    error is raised for them. Bookies in `without` are not asked. `budget` limits the rate of the
    reads. Cancel-safe.
    """
    metadata = ledger.metadata
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    first = max(block * BLOCK_ENTRIES, fragment.first)
    last = min((block + 1) * BLOCK_ENTRIES - 1, fragment.last)
    striped = size != quorum
    readers: dict[int, ReplicaReader] = {}
    found: dict[int, dict[int, Value]] = {}
    for index in write_set(residue, size, quorum) if striped else range(size):
        bookie = fragment.ensemble[index]
        if bookie in without:
            continue
        reader = ReplicaReader(
            client, ledger.ledger_id, metadata, ledger.codec, bookie, budget=budget
        )
        readers[index] = reader
        mine = found.setdefault(index, {})
        async for part in reader.parts(index, first, last):
            for entry, value in _values(part):
                if not striped or entry % size == residue:
                    mine[entry] = value
    # A bookie that was repaired has two copies of an entry. Up to version 0.2.0, a long read may
    # return the older one. A single read returns the newest.
    suspects = sorted({entry for entries in differing_copies(found).values() for entry in entries})
    newest = {index: await _newest(readers[index], found[index], suspects) for index in found}
    return {
        index: [Bad(entry, entry, Kind.DIFFERENT, DIFFERENT) for entry in entries]
        for index, entries in differing_copies(newest).items()
    }


async def _newest(
    reader: ReplicaReader, read: Mapping[int, Value], entries: Iterable[int]
) -> dict[int, Value]:
    found: dict[int, Value] = {}
    for entry in entries:
        if entry in read:
            try:
                for part in await reader.read((entry,)):
                    found.update(_values(part))
            except Unreachable:
                break
    return found


def _values(part: Part) -> Iterator[tuple[int, Value]]:
    if isinstance(part, Copies):
        for entry, payload, length in zip(part.ids, part.payloads, part.lengths):
            yield entry, (length, len(payload), crc32c(payload))
