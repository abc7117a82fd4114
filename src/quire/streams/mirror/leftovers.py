"""The deletion of ledgers that failed attempts of `replicate` left.

They come from tasks that ran twice and from drivers that died.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from quire._runtime.tasks import each
from quire.client import Client
from quire.errors import NoSuchLedgerError
from quire.metadata.bookies.collection import may_collect
from quire.streams.mirror.copy import JOB
from quire.streams.namespace.stream_metadata import NO_LEDGER, StreamMetadata, WriterClaim
from quire.streams.publish.segment_builder import JOB_KEY, LIFE_KEY

SWEEP_BEFORE = 1_000
"""The number of ledger ids before the newest ledger of the copy at which the search begins."""
SWEEP_LEDGERS_MAX = 5_000
KNOWN_MAX = 1_000_000
"""The number of ledgers above which `Leftovers` forgets what it has read."""


class Leftovers:
    """The ledgers that failed replications have left in one cluster, for all copies in it.

    The metadata of each ledger is read once, because what a ledger was created for never changes.
    A ledger names the life of its copy, and not only the path: the ledgers of a copy that was
    renamed still have the former path in their metadata.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made_for: dict[int, bytes] = {}
        """The life of the copy that each ledger was created for, or b"" for other ledgers."""
        self._looking = asyncio.Lock()

    async def sweep(self, metadata: StreamMetadata, claim: WriterClaim) -> list[int]:
        """Delete the ledgers that were created for this copy and that it does not name.

        Call this only while no task works on the copy. It reads a bounded number of ledgers, and
        `quire.streams.ownership.orphans` finds the rest, also those that name no life because an
        earlier version of Quire created them. Nothing is deleted while the metadata store forbids
        deletions. Returns the ids of the deleted ledgers.

        Raises StreamFencedError if another writer has the stream and may be at work. Nothing was
        deleted then. Raises also MetadataError.
        """
        if not await may_collect(self._client.metadata):
            return []
        segments = await metadata.segments()
        newest = max((segment.ledger_id for segment in segments), default=0)
        async with self._looking:
            some = await self._look(max(0, newest - SWEEP_BEFORE))
        life = claim.life_id.encode()
        ours = [ledger_id for ledger_id in some if self._made_for.get(ledger_id) == life]
        if not ours:
            return []
        # A writer that claims the stream from now on creates other ledgers than these.
        await metadata.publish(claim, [], [], {})
        named = {segment.ledger_id for segment in await metadata.segments()}
        await metadata.require_claim(claim)  # these segments are not those of another stream
        if claim.allocated != NO_LEDGER:
            named.add(int(claim.allocated))
        left = [ledger_id for ledger_id in ours if ledger_id not in named]
        await each(left, self._client.delete_ledger)
        return left

    async def _look(self, first: int) -> list[int]:
        """Return some ledgers from `first` on, after reading what each was created for."""
        some: list[int] = []
        async with aclosing(self._client.list_ledgers(first)) as ledgers:  # type: ignore[type-var]
            async for ledger_id in ledgers:
                some.append(ledger_id)
                if len(some) == SWEEP_LEDGERS_MAX:
                    break
        if len(self._made_for) > KNOWN_MAX:
            self._made_for.clear()
        await each([one for one in some if one not in self._made_for], self._look_at)
        return some

    async def _look_at(self, ledger_id: int) -> None:
        try:
            custom = (await self._client.ledger_metadata(ledger_id)).custom
        except NoSuchLedgerError:
            return
        ours = custom.get(JOB_KEY) == JOB
        self._made_for[ledger_id] = custom.get(LIFE_KEY, b"") if ours else b""
