"""Ledgers that violate the placement policy: which members of a segment to replace, and the
replacement.

Only complete segments are moved, and only if there are bookies with which the segment follows the
policy. A move that does not achieve this costs more than it is worth.
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
"""The largest number of sets of members of one segment for which replacements are tried."""


def keeps_to_policy(client: Client, metadata: LedgerMetadata) -> bool:
    """Return whether all segments of a ledger follow the client's placement policy.

    Soft adherence suffices: the policy accepts the ensemble, but would prefer another one.
    """
    quorums = metadata.write_quorum, metadata.ack_quorum
    return all(client.placement.adherence(one.ensemble, *quorums) for one in metadata.segments)


@dataclass(frozen=True, slots=True)
class MisplacedResult:
    """The result of a move of misplaced segments."""

    fragments: int = 0
    """The number of segments that were moved."""
    entries: int = 0
    size_bytes: int = 0
    why: str = ""
    """The reason why not all segments were moved, or '' if no move failed."""


def better_members(
    client: Client, metadata: LedgerMetadata, fragment: Fragment
) -> dict[int, str] | None:
    """Return the bookies that replace members of a segment so that it follows the placement policy.

    The keys are indexes of the ensemble, as few as possible. The result is empty if the segment
    follows the policy already, at least softly. It is None if none of the first `CHOICES_MAX` sets
    of members can be replaced so that it does.
    """
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
    """Return the members of a closed ledger that `put_right` would replace, sorted."""
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

    Segments that are still being written, and those with an unregistered member, are skipped: the
    location of such a member is unknown, and it is replaced as a lost bookie. An error ends the
    move and is in `why` of the result. `budget` limits the rate of the copies. Cancel-safe, like
    `CopyBatch`.
    """
    done = MisplacedResult()
    await client.placement.settle(asyncio.get_running_loop().time() + client.config.bookies_wait_s)
    await pool_of(client).know_addresses()
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
    """Return the result `done` with the counts and the first error of a batch added."""
    why = done.why or next((str(error) for error in copied.broken.values()), "")
    return MisplacedResult(
        done.fragments + len(copied.named),
        done.entries + copied.entries,
        done.size_bytes + copied.size_bytes,
        why,
    )
