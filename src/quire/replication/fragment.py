"""Replicating a fragment: copy what members of a segment should hold to other bookies, wait until
it is durable there, then name them in the metadata (replication spec, 12.4).

Each new bookie gets what its place should hold and nothing else: striping is respected. Before the
compare-and-swap nothing changes for readers, so that a copy may be given up, or done twice, at any
moment; what was copied in vain is garbage that the bookie collects.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from quire.client import Client
from quire.codec.ledger_metadata import LedgerMetadata
from quire.core.fragments import Fragment, entry_bytes, stored_by, with_members
from quire.core.placement import Wanted
from quire.core.replicas import Copies
from quire.errors import UsageError
from quire.metadata.update import update_ledger
from quire.replication.budget import UNBOUNDED, Budget
from quire.replication.opened import OpenedLedger
from quire.replication.recovery_adds import RecoveryAdds
from quire.replication.source import Source

COPY_WINDOW_BYTES = 1024 * 1024
COPY_WINDOW_ENTRIES_MAX = 4_096
COPY_WINDOW_ENTRIES = 256
"""Where the size of entries is not known."""


class Outcome(enum.StrEnum):
    DONE = "done"
    CONFLICT = "conflict"
    """Somebody else changed the segment: look again. What was copied is garbage."""


@dataclass(frozen=True, slots=True)
class Copied:
    outcome: Outcome
    entries: int = 0
    size_bytes: int = 0
    """Payload that was written to new bookies."""


async def choose_replacements(
    client: Client,
    ledger: OpenedLedger,
    fragment: Fragment,
    indexes: Sequence[int],
    lost: Collection[str] = (),
) -> dict[int, str]:
    """index -> new bookie, never one of `lost`. NotEnoughBookiesError where there is none."""
    wanted = Wanted.replacing(
        fragment.ensemble,
        {index: fragment.ensemble[index] for index in indexes},
        ledger.metadata.write_quorum,
        ledger.metadata.ack_quorum,
        frozenset(lost),
    )
    chosen = await client.pool.pick(wanted)
    if len(chosen) < len(indexes):
        raise client.placement.too_few(wanted)
    return chosen


async def replicate_fragment(
    client: Client,
    ledger: OpenedLedger,
    fragment: Fragment,
    replacements: Mapping[int, str],
    *,
    budget: Budget = UNBOUNDED,
    living: bool = False,
) -> Copied:
    """Replace the members at these indexes: copy, wait for the disks, compare-and-swap. They are
    read last, unless they are `living`: then they are as good a source as the others.

    DONE: the metadata names the new bookies, and all that they should hold is durable on them.
    Raises UsageError for a fragment that is still written (rule 24), ReadError where an entry has
    no good replica left, what a new bookie answers, NoSuchLedgerError, MetadataUnavailableError
    (then the swap may have been done: look again). Cancel-safe in the same sense: nothing is lost,
    whenever it ends.
    """
    if not fragment.closed:
        raise UsageError(
            f"segment {fragment.segment_first} of ledger {ledger.ledger_id} is still written: only "
            "what is complete can be copied"
        )
    old = {index: fragment.ensemble[index] for index in replacements}
    source = Source(client, ledger, last=() if living else tuple(old.values()))
    entries = size_bytes = 0
    if not fragment.empty:
        async with AsyncExitStack() as stack:
            adds: dict[int, RecoveryAdds] = {}
            for index, bookie in replacements.items():
                one = RecoveryAdds(client, ledger, bookie, budget=budget)
                adds[index] = await stack.enter_async_context(one)
            await _copy(ledger, fragment, source, adds)
        entries = sum(one.entries for one in adds.values())
        size_bytes = sum(one.size_bytes for one in adds.values())
    done = await _name(client, ledger, fragment, old, replacements)
    return Copied(Outcome.DONE if done else Outcome.CONFLICT, entries, size_bytes)


async def _copy(
    ledger: OpenedLedger, fragment: Fragment, source: Source, adds: Mapping[int, RecoveryAdds]
) -> None:
    metadata = ledger.metadata
    first, step = fragment.first, window_entries(metadata)
    while first <= fragment.last:
        last = min(first + step - 1, fragment.last)
        wanted = {index: stored_by(metadata, index, first, last) for index in adds}
        every = sorted(set().union(*wanted.values()))
        if every:
            copies = await source.read(fragment.ensemble, every)
            for index, ids in wanted.items():
                if ids:
                    await adds[index].write(part_of(copies, ids))
        first = last + 1


def window_entries(metadata: LedgerMetadata) -> int:
    """How many entries to copy at a time."""
    mean = entry_bytes(metadata)
    if not mean:
        return COPY_WINDOW_ENTRIES
    return min(max(int(COPY_WINDOW_BYTES / mean), 1), COPY_WINDOW_ENTRIES_MAX)


def part_of(copies: Copies, ids: Sequence[int]) -> Copies:
    """Only these entries of the copies."""
    if len(ids) == len(copies.ids):
        return copies
    at = {entry: n for n, entry in enumerate(copies.ids)}
    rows = [at[entry] for entry in ids]
    return Copies(ids, [copies.payloads[n] for n in rows], [copies.lengths[n] for n in rows])


async def _name(
    client: Client,
    ledger: OpenedLedger,
    fragment: Fragment,
    old: Mapping[int, str],
    new: Mapping[int, str],
) -> bool:
    """Whether all replacements stand in the metadata now."""
    changes = {index: (old[index], new[index]) for index in new}

    def change(now: LedgerMetadata) -> LedgerMetadata | None:
        # What was copied is the whole segment only if that has not changed its end meanwhile.
        end = fragments_end(now, fragment)
        return None if end != fragment.last else with_members(now, fragment.segment_first, changes)

    stored = await update_ledger(client.metadata, ledger.ledger_id, ledger.stored, change)
    for segment in stored.value.segments:
        if segment.first_entry_id == fragment.segment_first:
            return all(segment.ensemble[index] == bookie for index, bookie in new.items())
    return False


def fragments_end(metadata: LedgerMetadata, fragment: Fragment) -> int:
    """Where the fragment's segment ends by this metadata."""
    for segment in metadata.segments:
        if segment.first_entry_id == fragment.segment_first:
            known = metadata.last_entry_id if metadata.closed else fragment.last
            return metadata.segment_end(segment, known)
    return -1
