"""Connections to bookies: which exist, where they listen, one channel each (more only where one
ledger has several handles in this client)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from quire.config import ClientConfig
from quire.core.placement import choose
from quire.errors import BookieUnavailableError, NotEnoughBookiesError
from quire.metadata.base import BookieAddress, Bookies, MetadataStore
from quire.net.channel import BookieChannel
from quire.net.network import Network
from quire.tasks import TaskSet


class BookiePool:
    def __init__(
        self,
        metadata: MetadataStore,
        network: Network,
        config: ClientConfig,
        rng: random.Random,
        tasks: TaskSet,
    ) -> None:
        self._metadata = metadata
        self._network = network
        self._config = config
        self._rng = rng
        self._tasks = tasks
        self._bookies = Bookies({}, {})
        self._last_known: dict[str, BookieAddress] = {}
        self._changed = asyncio.Event()
        self._channels: dict[str, list[BookieChannel]] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._failed_at: dict[str, float] = {}
        self._watch = metadata.watch_bookies(self._on_bookies)
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._watch.close()
        for channels in self._channels.values():
            for channel in channels:
                channel.close()
        self._channels.clear()

    # -- placement ----------------------------------------------------------------------------

    def mark_failed(self, bookie_id: str) -> None:
        self._failed_at[bookie_id] = asyncio.get_running_loop().time()

    async def pick(
        self, count: int, exclude: Collection[str] = (), keep: Collection[str] = ()
    ) -> list[str]:
        """As `pick_now`, but waits `bookies_wait_s` for enough to register before it gives
        fewer."""
        chosen = self.pick_now(count, exclude, keep)
        deadline = asyncio.get_running_loop().time() + self._config.bookies_wait_s
        while len(chosen) < count and await self.changed(deadline):
            chosen = self.pick_now(count, exclude, keep)
        return chosen

    async def changed(self, deadline: float) -> bool:
        """Wait for a change of the registered bookies until `deadline` (loop time)."""
        event = self._changed
        try:
            async with asyncio.timeout_at(deadline):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def pick_now(
        self, count: int, exclude: Collection[str] = (), keep: Collection[str] = ()
    ) -> list[str]:
        """Up to `count` writable bookies outside `exclude`, on hosts other than those of `keep`
        where possible."""
        now = asyncio.get_running_loop().time()
        horizon = now - self._config.avoid_failed_bookie_s
        self._failed_at = {b: at for b, at in self._failed_at.items() if at > horizon}
        hosts = {b: address.host for b, address in self._bookies.writable.items()}
        used = [hosts[b] for b in keep if b in hosts]
        return choose(
            hosts, count, self._rng, exclude=exclude, avoid=self._failed_at, used_hosts=used
        )

    async def new_ensemble(self, size: int) -> tuple[str, ...]:
        chosen = await self.pick(size)
        if len(chosen) < size:
            known = ", ".join(sorted(self._bookies.writable)) or "none"
            raise NotEnoughBookiesError(
                f"an ensemble of {size} needs {size} writable bookies, registered are "
                f"{len(self._bookies.writable)} ({known})",
                remedy="Start more bookies or ask for a smaller ensemble",
            )
        return tuple(chosen)

    # -- channels -----------------------------------------------------------------------------

    async def channel(self, bookie_id: str, adds_of: int | None = None) -> BookieChannel:
        """A connected channel; with `adds_of`, one on which no other handle adds to that ledger.

        Raises BookieUnavailableError. Cancel-safe.
        """
        found = self._find(bookie_id, adds_of)
        if found is not None:
            return found
        lock = self._connecting.setdefault(bookie_id, asyncio.Lock())
        async with lock:
            found = self._find(bookie_id, adds_of)
            if found is None:
                found = await self._connect(bookie_id)
            return found

    def _find(self, bookie_id: str, adds_of: int | None) -> BookieChannel | None:
        channels = self._channels.get(bookie_id)
        if not channels:
            return None
        for channel in list(channels):
            if not channel.usable:
                channels.remove(channel)
            elif adds_of is None or adds_of not in channel.adding:
                return channel
        return None

    async def _connect(self, bookie_id: str) -> BookieChannel:
        address = self._bookies.find(bookie_id) or self._last_known.get(bookie_id)
        if address is None:
            await self._refresh()
            address = self._bookies.find(bookie_id)
        if address is None:
            raise BookieUnavailableError(f"bookie {bookie_id} is not registered")
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                channel = await self._network.connect(
                    address.host, address.port, lambda: BookieChannel(bookie_id)
                )
        except TimeoutError as error:
            raise BookieUnavailableError(
                f"bookie {bookie_id} at {address.host}:{address.port} did not accept a connection "
                f"within {self._config.connect_timeout_s:g} s"
            ) from error
        except OSError as error:
            raise BookieUnavailableError(
                f"bookie {bookie_id} at {address.host}:{address.port} cannot be reached: {error}"
            ) from error
        assert isinstance(channel, BookieChannel)
        if self._closed:
            channel.close()
            raise BookieUnavailableError("the client is closed")
        self._channels.setdefault(bookie_id, []).append(channel)
        return channel

    # -- the bookies there are ----------------------------------------------------------------

    @property
    def bookies(self) -> Bookies:
        return self._bookies

    async def _refresh(self) -> None:
        self._on_bookies(await self._metadata.bookies())

    def _on_bookies(self, bookies: Bookies) -> None:
        self._bookies = bookies
        self._last_known.update(bookies.readonly)
        self._last_known.update(bookies.writable)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
