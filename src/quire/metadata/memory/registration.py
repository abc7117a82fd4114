"""A bookie's presence in an in-memory cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quire.errors import ClientClosedError, KeyExistsError
from quire.metadata.common import bookie_exists
from quire.metadata.memory.cluster import Presence

if TYPE_CHECKING:
    from quire.metadata.memory.store import MemoryStore


class MemoryRegistration:
    def __init__(self, store: MemoryStore, bookie_id: str, payload: bytes, readonly: bool) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._payload = payload
        self._readonly = readonly
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._giving_up: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[KeyExistsError] = self._loop.create_future()
        self._watch = store.watch_bookies(lambda bookies: self.ensure())

    def ensure(self) -> None:
        """Be registered as wished, unless another session took the id meanwhile: then once that
        has gone (the watch looks after it), or never if it stays."""
        cluster = self._store.cluster
        there = cluster.presences.get(self._bookie_id)
        if there is not None and there.owner is not self._store:
            if self._giving_up is None:
                timeout_s = self._store.session_timeout_ms / 1000
                self._giving_up = self._loop.call_later(timeout_s, self._lose)
            return
        self._keep_trying()
        wanted = Presence(self._store, self._payload, self._readonly)
        if wanted != there:
            cluster.presences[self._bookie_id] = wanted
            cluster.bookies_changed()

    def _lose(self) -> None:
        self._end()
        self.lost.set_result(bookie_exists(self._bookie_id, self._store.session_timeout_ms))

    def _keep_trying(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    async def set_readonly(self, readonly: bool) -> None:
        def work() -> None:
            self._readonly = readonly
            self.ensure()

        if self.lost.done():
            raise self.lost.result()
        if self._closed:
            raise ClientClosedError(f"the registration of bookie {self._bookie_id} is closed")
        await self._store.call("set_readonly", work)

    async def close(self) -> None:
        self._end()
        cluster = self._store.cluster
        there = cluster.presences.get(self._bookie_id)
        if there is not None and there.owner is self._store:
            del cluster.presences[self._bookie_id]
            cluster.bookies_changed()

    def abandon(self) -> None:
        """The session is over, and the presence with it."""
        self._end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._keep_trying()
            self._watch.close()
            self._store.registration_closed(self._bookie_id)
