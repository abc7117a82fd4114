"""Replicating a fragment: copy what members of a segment should hold to other bookies, wait until
it is durable there, then name them in the metadata (replication spec, 12.4).

Each new bookie gets what its place should hold and nothing else: striping is respected. Before the
compare-and-swap nothing changes for readers, so that a copy may be given up, or done twice, at any
moment; what was copied in vain is garbage that the bookie collects.

Before it drops such a copy the bookie writes the metadata, as it is (`bookie.over_replicated`). So
what is named must rest on the version that was read before the copy was begun: after a conflict the
copy may be gone, whoever has made the change, and is made again.
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
from quire.errors import LedgerRecreatedError, UsageError, VersionConflictError
from quire.metadata.base import Versioned
from quire.metadata.creation import same_creation
from quire.metadata.ledger_size import encode_change
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
    """Somebody else changed the ledger, or created it anew: look again. What was copied is
    garbage."""


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
    no good replica left, what a new bookie answers, NoSuchLedgerError, MetadataTooLargeError (the
    names of the new bookies do not fit; nothing was copied), MetadataUnavailableError (then the
    swap may have been done: look again). Cancel-safe in the same sense: nothing is lost,
    whenever it ends.
    """
    if not fragment.closed:
        raise UsageError(
            f"segment {fragment.segment_first} of ledger {ledger.ledger_id} is still written: only "
            "what is complete can be copied"
        )
    old = {index: fragment.ensemble[index] for index in replacements}
    stored = await client.metadata.read_ledger(ledger.ledger_id)
    if not same_creation(ledger.stored, stored):
        return Copied(Outcome.CONFLICT)
    wanted = _with(stored.value, fragment, replacements)
    if wanted is None:
        return Copied(Outcome.CONFLICT)
    encode_change(wanted)  # refused before anything is copied
    source = Source(client, ledger, last=() if living else tuple(old.values()))
    entries = size_bytes = 0
    if not fragment.empty:
        async with AsyncExitStack() as stack:
            adds: dict[int, RecoveryAdds] = {}
            for index, bookie in replacements.items():
                one = RecoveryAdds(client, ledger, bookie, budget=budget)
                adds[index] = await stack.enter_async_context(one)
            await _copy(ledger, fragment, source, adds, window_entries(ledger.metadata, budget))
        entries = sum(one.entries for one in adds.values())
        size_bytes = sum(one.size_bytes for one in adds.values())
    done = await _name(client, ledger.ledger_id, stored, wanted)
    return Copied(Outcome.DONE if done else Outcome.CONFLICT, entries, size_bytes)


async def _copy(
    ledger: OpenedLedger,
    fragment: Fragment,
    source: Source,
    adds: Mapping[int, RecoveryAdds],
    step: int,
) -> None:
    metadata = ledger.metadata
    first = fragment.first
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


def window_entries(metadata: LedgerMetadata, budget: Budget) -> int:
    """How many entries to copy at a time."""
    mean = entry_bytes(metadata)
    if not mean:
        return COPY_WINDOW_ENTRIES
    count = int(budget.slice_bytes(COPY_WINDOW_BYTES) / mean)
    return min(max(count, 1), COPY_WINDOW_ENTRIES_MAX)


def part_of(copies: Copies, ids: Sequence[int]) -> Copies:
    """Only these entries of the copies."""
    if len(ids) == len(copies.ids):
        return copies
    at = {entry: n for n, entry in enumerate(copies.ids)}
    rows = [at[entry] for entry in ids]
    return Copies(ids, [copies.payloads[n] for n in rows], [copies.lengths[n] for n in rows])


def _with(
    now: LedgerMetadata, fragment: Fragment, replacements: Mapping[int, str]
) -> LedgerMetadata | None:
    """The metadata with these bookies; None where the segment is not what it was."""
    first = fragment.segment_first
    there = next((one for one in now.segments if one.first_entry_id == first), None)
    if there is None or there.ensemble != fragment.ensemble:
        return None
    # What is copied is the whole segment only if that has not changed its end meanwhile.
    if now.segment_end(there, now.last_entry_id if now.closed else fragment.last) != fragment.last:
        return None
    changes = {index: (fragment.ensemble[index], new) for index, new in replacements.items()}
    return with_members(now, first, changes)


async def _name(
    client: Client,
    ledger_id: int,
    known: Versioned[LedgerMetadata],
    wanted: LedgerMetadata,
) -> bool:
    """Return whether the metadata store has `wanted` now."""
    try:
        await client.metadata.write_ledger(ledger_id, wanted, known.version, known)
    except VersionConflictError:
        # Our own write may be in the way, if its answer was lost.
        stored = await client.metadata.read_ledger(ledger_id)
        return same_creation(known, stored) and stored.value == wanted
    except LedgerRecreatedError as error:
        if not error.outcome_known:
            raise
        return False
    return True
