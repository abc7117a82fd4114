"""Replace members in one fragment, for tests that need no job around it."""

from __future__ import annotations

from collections.abc import Mapping

from quire.client import Client
from quire.core.fragments import Fragment
from quire.replication.repair.fragment import CopyBatch, CopyOutcome, CopyResult
from quire.replication.repair.opened_ledger import OpenedLedger


async def replicate_fragment(
    client: Client, ledger: OpenedLedger, fragment: Fragment, replacements: Mapping[int, str]
) -> CopyResult:
    """Replace the members at these indexes: copy, wait for the disks, compare-and-swap."""
    async with CopyBatch(client, ledger) as batch:
        if not await batch.copy(fragment, replacements):
            return CopyResult(CopyOutcome.CONFLICT)
        done = await batch.name()
    for error in done.broken.values():
        raise error
    return done
