"""Finding ledgers that were deleted in the metadata store (metadata spec, 3.2; rules 30 and 45).

An empty, foreign or unreachable store never means "delete everything": a pass first matches the
cluster's identity, aborts on any error, and asks once more for every ledger before it drops it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from quire.bookie.service import EventLog
from quire.errors import CookieError, MetadataError, NoSuchLedgerError
from quire.metadata.base import MetadataStore
from quire.storage.store import LedgerStore


async def collect_garbage(
    store: LedgerStore, metadata: MetadataStore, instance_id: str, log: EventLog
) -> list[int]:
    """One pass. Returns the ledgers that were dropped. Raises MetadataError or CookieError when the
    store cannot be trusted; nothing is dropped then."""
    # Before looking at the metadata: a ledger created after this is not in the list.
    local = sorted(store.ledger_ids())
    if not local:
        return []
    found = await metadata.instance_id()
    if found != instance_id:
        raise CookieError(
            f"the metadata store holds cluster {found or '(none)'}, this bookie belongs to "
            f"{instance_id or '(none)'}: nothing was deleted",
            remedy="Check the metadata URI",
        )
    gone: list[int] = []
    upcoming = 0
    async for span in metadata.list_ledgers():
        if span.first != upcoming:
            raise MetadataError(f"the list of ledgers has a gap before {span.first}")
        here = local[bisect_left(local, span.first) : bisect_right(local, span.last)]
        if here:
            alive = set(span.ledger_ids)
            gone.extend(ledger for ledger in here if ledger not in alive)
        upcoming = span.last + 1
    if upcoming != 2**63:
        raise MetadataError(f"the list of ledgers ends at {upcoming - 1}")
    dead = [ledger for ledger in gone if await _is_gone(metadata, ledger)]
    if dead:
        store.drop_ledgers(dead)
        log("ledgers_dropped", count=len(dead), first=dead[0], last=dead[-1])
    return dead


async def _is_gone(metadata: MetadataStore, ledger_id: int) -> bool:
    try:
        await metadata.read_ledger(ledger_id)
    except NoSuchLedgerError:
        return True
    return False
