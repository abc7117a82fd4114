"""The election of the auditor among the processes of the cluster, Java's included.

Each candidate has an ephemeral, sequential node, its vote. The candidate with the lowest vote is
the auditor. Every other candidate watches the vote before its own, so that the end of one candidate
wakes only one other. For a moment, two processes may believe that they are the auditor, so
everything that an auditor does may be done twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from quire._runtime.clock import Clock
from quire._runtime.names.process_numbers import process_number
from quire.codec.metadata.registration import check_bookie_id
from quire.codec.metadata.underreplication import ELECTION, VOTE_PREFIX, LockHolder, vote_number
from quire.errors import MetadataError, NoSuchKeyError
from quire.metadata.interface import MetadataStore, Versioned, Watch
from quire.metadata.tree import Create, Delete, Put
from quire.replication.marks.locks import replication_root


class Election:
    """One candidate in the election of the auditor."""

    def __init__(self, store: MetadataStore, owner: str, clock: Clock) -> None:
        """Prepare a candidate under the name `owner`, which Java's tools read as a bookie id.

        Raises UsageError if `owner` cannot be a bookie id.
        """
        check_bookie_id(owner)
        self.root = f"{replication_root(store.uri)}/{ELECTION}"
        self._tree = store.tree
        self._owner = owner
        self._clock = clock
        # A tag has no other characters, but the name may, as in "[::1]:3181".
        name = re.sub("[^a-zA-Z0-9_./-]", ".", owner)
        self._tag = f"{name}/{self._tree.session_id:x}/{process_number()}"
        self._made: set[tuple[int, str]] = set()
        """The votes that this candidate has created and not deleted: the session of each, and the
        name."""
        self._in_doubt = False
        """Whether a vote may have been created whose name is not known."""

    @asynccontextmanager
    async def won(self) -> AsyncGenerator[asyncio.Event, None]:
        """Wait until this process is elected, and be the auditor during the block.

        The event that is yielded is set when the vote is gone, because another process may be the
        auditor then. Leaving the block, or a cancellation while waiting, withdraws the vote. If the
        store does not answer, the vote disappears with the session or at the next candidacy. Raises
        MetadataError.
        """
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
        await self._withdraw()  # votes that earlier, unanswered calls may have left
        vote = await self._stand()
        while True:
            names = await self._votes()
            if vote not in names:
                vote = await self._stand()  # the session of the vote has ended
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
        # This is only for people and tools; it may be outdated at once.
        await self._tree.commit(Put(self.root, LockHolder(self._owner).encode()))
        return vote

    async def _stand(self) -> str:
        value = LockHolder(self._owner, self._clock.now_ms(), self._tag).encode()
        create = Create(f"{self.root}/{VOTE_PREFIX}", value, ephemeral=True, sequential=True)
        session = self._tree.session_id
        in_doubt, self._in_doubt = self._in_doubt, True  # until the answer is here
        [made] = await self._tree.commit(create)
        # If the session has ended meanwhile, either of the two may have made the vote.
        self._in_doubt = in_doubt or session != self._tree.session_id
        vote = str(made).rpartition("/")[2]
        self._made.add((session, vote))
        return vote

    async def _votes(self) -> list[str]:
        """Return the names of all votes, in the order of the election."""
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
        """Delete all votes of this candidate, including one whose creation was not confirmed.

        Only then are the votes of all candidates read. If each candidate always read them, the
        start of a cluster would cost the square of its processes.
        """
        for session, name in sorted(self._made):
            # A vote of an earlier session is gone. Its name may be that of another process by now,
            # if the tree of marks was created again.
            if session == self._tree.session_id:
                try:
                    await self._tree.commit(Delete(f"{self.root}/{name}"))
                except NoSuchKeyError:
                    pass
            self._made.discard((session, name))
        if self._in_doubt:
            await self._withdraw_unknown()
            self._in_doubt = False

    async def _withdraw_unknown(self) -> None:
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
    """Return the present auditor, or None if there is none.

    If its vote cannot be decoded, `owner` is a text that says so. Raises MetadataError.
    """
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
            return LockHolder(f"the holder of {root}/{name}, which cannot be decoded")
    return None
