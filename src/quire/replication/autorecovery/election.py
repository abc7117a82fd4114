"""Who is the auditor: one process of the cluster, Java's or ours (metadata spec, 1.9).

Each candidate has an ephemeral, sequential node, its vote. The lowest one is the auditor; every
other candidate watches the vote before its own, so that an end wakes one. Two may believe to be the
auditor for a moment: all that an auditor does may be done twice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from quire._runtime.clock import Clock
from quire.codec.metadata.registration import check_bookie_id
from quire.codec.metadata.underreplication import ELECTION, VOTE_PREFIX, LockHolder, vote_number
from quire.errors import MetadataError, NoSuchKeyError
from quire.metadata.interface import MetadataStore, Versioned, Watch
from quire.metadata.tree import Create, Delete, Put
from quire.replication.marks.locks import replication_root

_numbers = itertools.count(1)
"""Tells the votes of one session apart."""


class Election:
    def __init__(self, store: MetadataStore, owner: str, clock: Clock) -> None:
        """`owner`: by which others name us; Java's tools take it for a bookie's id. UsageError."""
        check_bookie_id(owner)
        self.root = f"{replication_root(store.uri)}/{ELECTION}"
        self._tree = store.tree
        self._owner = owner
        self._clock = clock
        self._tag = f"{owner.replace(':', '.')}/{self._tree.session_id:x}/{next(_numbers)}"

    @asynccontextmanager
    async def won(self) -> AsyncGenerator[asyncio.Event, None]:
        """Stand for election and wait until we are the auditor: the block is its time in office.
        The event is set when our vote is gone: somebody else may be in office. Leaving the block,
        or a cancellation while waiting, takes the vote back; where the store does not answer, it
        goes with the session or at the next candidature. MetadataError."""
        lost = asyncio.Event()
        watch: Watch | None = None
        try:
            vote = await self._win()
            watch = self._when_gone(vote, lost)
            yield lost
        finally:
            if watch is not None:
                watch.close()
            try:
                await self._withdraw()
            except MetadataError:
                pass

    async def _win(self) -> str:
        await self._tree.make_path(self.root)
        await self._withdraw()  # what an unanswered call of before may have left
        vote = await self._stand()
        while True:
            names = await self._votes()
            if vote not in names:
                vote = await self._stand()  # its session has ended
                continue
            before = names[: names.index(vote)]
            if not before:
                break
            gone = asyncio.Event()
            watch = self._when_gone(before[-1], gone)
            try:
                await gone.wait()
            finally:
                watch.close()
        # For whoever looks; it may be out of date at once.
        await self._tree.commit(Put(self.root, LockHolder(self._owner).encode()))
        return vote

    async def _stand(self) -> str:
        value = LockHolder(self._owner, self._clock.now_ms(), self._tag).encode()
        create = Create(f"{self.root}/{VOTE_PREFIX}", value, ephemeral=True, sequential=True)
        [made] = await self._tree.commit(create)
        return str(made).rpartition("/")[2]

    async def _votes(self) -> list[str]:
        """In the order in which they count."""
        names = await self._tree.children(self.root)
        numbers = {name: vote_number(name) for name in names}
        return sorted(
            (name for name in names if numbers[name] is not None),
            key=lambda name: numbers[name] or 0,
        )

    def _when_gone(self, vote: str, gone: asyncio.Event) -> Watch:
        def look(value: Versioned[bytes] | None) -> None:
            if value is None:
                gone.set()

        return self._tree.watch_value(f"{self.root}/{vote}", look)

    async def _withdraw(self) -> None:
        """All votes of ours: an answer that was lost may have made one that we do not know."""
        try:
            for name in await self._votes():
                path = f"{self.root}/{name}"
                try:
                    if LockHolder.decode((await self._tree.read(path)).value).tag == self._tag:
                        await self._tree.commit(Delete(path))
                except (NoSuchKeyError, ValueError):
                    pass
        except NoSuchKeyError:
            pass


async def auditor_of(store: MetadataStore) -> LockHolder | None:
    """Who is the auditor now; None: nobody. MetadataError."""
    root = f"{replication_root(store.uri)}/{ELECTION}"
    try:
        names = await store.tree.children(root)
    except NoSuchKeyError:
        return None
    votes = sorted((n, name) for name in names if (n := vote_number(name)) is not None)
    for _, name in votes:
        try:
            return LockHolder.decode((await store.tree.read(f"{root}/{name}")).value)
        except NoSuchKeyError:
            continue
        except ValueError:
            return LockHolder(f"the holder of {root}/{name}, which cannot be understood")
    return None
