"""The looks that an auditor takes at all ledgers from time to time (replication spec, 12.1, 12.2):
each says of one ledger which bookies lack something.

Bookies that are not registered are left to the look for lost ones, which waits for them; what is
still written changes while it is looked at, and is left out.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.append.quorum import in_write_set
from quire.core.fragments import Fragment, last_stored, next_stored, stored_count
from quire.core.replicas import Bad
from quire.errors import NoSuchEntryError, NoSuchLedgerError, QuireError
from quire.replication.repair.opened import OpenedLedger, open_for_repair
from quire.replication.repair.replica_reader import ReplicaReader, Unreachable

SAMPLES_MAX = 1_000
"""Entries of one replica of a fragment that are read besides the first and the last."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Of one ledger."""

    bookies: tuple[str, ...] = ()
    """That lack something of it."""
    silent: tuple[str, ...] = ()
    """That are registered, and do not answer."""
    entries: int = 0
    """How many are missing on them together, where that was counted."""


async def _opened(client: Client, ledger_id: int) -> OpenedLedger | None:
    try:
        return await open_for_repair(client, ledger_id, ask=False)
    except NoSuchLedgerError:
        return None


def _parts(ledger: OpenedLedger, registered: Collection[str]) -> Iterator[tuple[Fragment, int]]:
    """Each closed fragment with the index of each registered member."""
    for fragment in ledger.fragments():
        if fragment.closed and not fragment.empty:
            for index, bookie in enumerate(fragment.ensemble):
                if bookie in registered:
                    yield fragment, index


async def check_ends(
    client: Client,
    ledger_id: int,
    registered: Collection[str],
    rng: random.Random,
    percent: float = 0.0,
) -> Lacking:
    """Read the first and the last entry of every replica of every fragment, and `percent` of the
    others. MetadataError. Cancel-safe."""
    ledger = await _opened(client, ledger_id)
    if ledger is None:
        return Lacking()
    wanted: dict[str, set[int]] = {}
    for fragment, index in _parts(ledger, registered):
        probes = _probes(ledger.metadata, fragment, index, rng, percent)
        wanted.setdefault(fragment.ensemble[index], set()).update(probes)
    bad, silent = [], []
    for bookie, entries in wanted.items():
        reader = ReplicaReader(client, ledger_id, ledger.metadata, ledger.codec, bookie)
        try:
            parts = await reader.read(sorted(entries)) if entries else []
        except Unreachable:
            silent.append(bookie)
            continue
        if any(isinstance(part, Bad) for part in parts):
            bad.append(bookie)
    return Lacking(tuple(bad), tuple(silent))


def _probes(
    metadata: LedgerMetadata, fragment: Fragment, index: int, rng: random.Random, percent: float
) -> set[int]:
    first = next_stored(metadata, index, fragment.first)
    last = last_stored(metadata, index, fragment.last)
    if first > last:
        return set()
    probes = {first, last}
    if percent:
        count = min(int((last - first + 1) * percent / 100), SAMPLES_MAX)
        for entry in rng.sample(range(first, last + 1), count):
            if in_write_set(index, entry, metadata.ensemble_size, metadata.write_quorum):
                probes.add(entry)
    return probes


async def check_replicas(client: Client, ledger_id: int, registered: Collection[str]) -> Lacking:
    """Ask every bookie which entries it has. One that cannot tell, or does not answer, counts as
    having all. MetadataError. Cancel-safe."""
    ledger = await _opened(client, ledger_id)
    if ledger is None:
        return Lacking()
    lists: dict[str, list[tuple[int, int]] | None] = {}
    missing: dict[str, int] = {}
    for fragment, index in _parts(ledger, registered):
        bookie = fragment.ensemble[index]
        if bookie not in lists:
            lists[bookie] = await _listed(client, bookie, ledger_id)
        found = lists[bookie]
        if found is None:
            continue
        metadata, first, last = ledger.metadata, fragment.first, fragment.last
        count = stored_count(metadata, index, first, last) - sum(
            stored_count(metadata, index, max(first, low), min(last, high)) for low, high in found
        )
        if count > 0:
            missing[bookie] = missing.get(bookie, 0) + count
    return Lacking(tuple(missing), entries=sum(missing.values()))


async def _listed(client: Client, bookie: str, ledger_id: int) -> list[tuple[int, int]] | None:
    try:
        return await client.list_entries(bookie, ledger_id)
    except NoSuchEntryError:
        return []
    except QuireError:
        return None
