"""Ledgers that lie otherwise than the placement policy wants: which members of a segment would have
to be replaced, and the replacing.

Only a segment that gets no more entries is moved, and only where there are bookies with which it
keeps to the policy: a move that does not help costs more than it is worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import combinations

from quire.client import Client
from quire.client.client import pool_of
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.fragments import Fragment, fragments
from quire.core.placement import Wanted
from quire.errors import NoSuchLedgerError, QuireError
from quire.replication.budget import UNBOUNDED, Budget
from quire.replication.repair.fragment import CopyBatch, CopyResult
from quire.replication.repair.opened_ledger import OpenedLedger

CHOICES_MAX = 128
"""Sets of members of one segment for which others are looked for."""


def keeps_to_policy(client: Client, metadata: LedgerMetadata) -> bool:
    """Whether all segments keep to the client's placement policy, softly or strictly."""
    quorums = metadata.write_quorum, metadata.ack_quorum
    return all(client.placement.adherence(one.ensemble, *quorums) for one in metadata.segments)


@dataclass(frozen=True, slots=True)
class MisplacedResult:
    fragments: int = 0
    entries: int = 0
    size_bytes: int = 0
    why: str = ""
    """It could not be finished."""


def better_members(
    client: Client, metadata: LedgerMetadata, fragment: Fragment
) -> dict[int, str] | None:
    """index -> new bookie for as few members of a segment as will do. Empty where it is placed as
    it should be (softly is enough); None where no bookies are there with which it would be."""
    ensemble, quorums = fragment.ensemble, (metadata.write_quorum, metadata.ack_quorum)
    if client.placement.adherence(ensemble, *quorums):
        return {}
    looked = 0
    for count in range(1, len(ensemble) + 1):
        for indexes in combinations(range(len(ensemble)), count):
            looked += 1
            if looked > CHOICES_MAX:
                return None
            gone = {index: ensemble[index] for index in indexes}
            wanted = Wanted.replacing(ensemble, gone, *quorums)
            chosen = pool_of(client).pick_now(wanted)
            changed = tuple(chosen.get(index, bookie) for index, bookie in enumerate(ensemble))
            if len(chosen) == count and client.placement.adherence(changed, *quorums):
                return chosen
    return None


def to_move(client: Client, metadata: LedgerMetadata) -> list[str]:
    """The members of a closed ledger that others would replace; none where that would not help."""
    found = set()
    for fragment in fragments(metadata, metadata.last_entry_id):
        for index in better_members(client, metadata, fragment) or ():
            found.add(fragment.ensemble[index])
    return sorted(found)


async def put_right(
    client: Client,
    ledger: OpenedLedger,
    registered: Collection[str],
    *,
    budget: Budget = UNBOUNDED,
) -> MisplacedResult:
    """Move the misplaced segments of a ledger that can be placed better.

    Segments with an unregistered member are skipped: its location is unknown, and it is replaced as
    a lost one. Errors are in the result. Cancel-safe, like `CopyBatch`.
    """
    done = MisplacedResult()
    await client.placement.settle(asyncio.get_running_loop().time() + client.config.bookies_wait_s)
    async with CopyBatch(client, ledger, budget=budget, living=True) as batch:
        try:
            for fragment in ledger.fragments():
                if not fragment.closed or not set(fragment.ensemble) <= set(registered):
                    continue
                replacements = better_members(client, ledger.metadata, fragment)
                if not replacements:
                    continue
                try:
                    await batch.copy(fragment, replacements)
                except NoSuchLedgerError:
                    raise
                except QuireError as error:
                    done = replace(done, why=str(error))
                    break
                if batch.full:
                    done = _counted(done, await batch.name())
            done = _counted(done, await batch.name())
        except NoSuchLedgerError:
            pass
        except QuireError as error:
            done = replace(done, why=str(error))
    return done


def _counted(done: MisplacedResult, copied: CopyResult) -> MisplacedResult:
    """Return the sum of the earlier results and those of a batch."""
    why = done.why or next((str(error) for error in copied.broken.values()), "")
    return MisplacedResult(
        done.fragments + len(copied.named),
        done.entries + copied.entries,
        done.size_bytes + copied.size_bytes,
        why,
    )
