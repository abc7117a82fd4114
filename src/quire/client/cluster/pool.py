"""A client's connections to bookies: at most one of each protocol (v2 and v3) to each bookie.

There are more only if several handles of the client add to the same ledger. The pool also knows the
registered bookies and their addresses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from quire._runtime.metrics import Metric
from quire._runtime.tasks import AtOnce, TaskSet, came
from quire._runtime.units import host_port
from quire.client.cluster.health import BookieHealth
from quire.client.cluster.link_watch import Links, LinkWatch
from quire.client.cluster.placement import Placement
from quire.client.observability.metrics import ClientCounters, client_metrics
from quire.client.observability.tracing import Tracing
from quire.config import ClientConfig
from quire.core.placement import Standing, Wanted, read_order
from quire.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    MetadataError,
    QuireError,
    SilentConnectionError,
)
from quire.metadata.bookies.start_commands import read_start_command
from quire.metadata.common import assumed_address
from quire.metadata.interface import BookieAddress, Bookies, MetadataStore
from quire.net.certificates import CertificateFile
from quire.net.channel import BookieChannel
from quire.net.control import ControlChannel
from quire.net.handshake import Dialer
from quire.net.link import CLOSE_DRAIN_S, Link
from quire.net.network import Network
from quire.net.port_probe import ProbeResult, probe_port

L = TypeVar("L", bound=Link)
T = TypeVar("T")

REST_S = 0.25
"""Seconds after a failure within which a bookie is not chosen as a replacement. Bookies that are
gone stay registered until their sessions expire. Without this pause an ensemble would change from
one gone bookie to the next as fast as connections are refused and metadata is written."""
OPENS_AT_ONCE_MAX = 128
"""The number of ledgers that one client opens at once without recovery, or whose last entry it asks
for. Further calls wait, and their time-outs begin only afterwards. Without this limit, bookies
could not answer thousands of them within `read_timeout_s`."""
RECOVERIES_AT_ONCE_MAX = 128
"""The number of ledgers that one client recovers at once. See `OPENS_AT_ONCE_MAX`. It is a limit of
its own, so that recoveries which wait for bookies do not hold up readers."""


class BookiePool:
    """The connections of one client to bookies, and its knowledge of registration and health."""

    def __init__(
        self,
        metadata: MetadataStore,
        network: Network,
        config: ClientConfig,
        rng: random.Random,
        tasks: TaskSet,
        tracing: Tracing | None = None,
        *,
        lazy_addresses: bool = False,
    ) -> None:
        """Make a pool without connections, and watch the registered bookies.

        With `lazy_addresses`, the address of a bookie is read when the bookie is first used, if its
        id is of the form host:port and the placement permits it (`Placement.needs_addresses`). A
        pool that has not used a bookie yet cannot reach it while the metadata store is away.
        """
        self._metadata = metadata
        self._network = network
        self._dialer = Dialer(network, config)
        self._config = config
        self.rng = rng
        self._tasks = tasks
        self._bookies = Bookies({}, {})
        self._bookies_heard = False
        """Whether the metadata store has said at least once which bookies are registered."""
        self._last_known: dict[str, BookieAddress] = {}
        self._changed = asyncio.Event()
        self._channels = Links(BookieChannel)
        self._controls = Links(ControlChannel)
        self._failed_at: dict[str, float] = {}
        self.counters = ClientCounters()
        self.opens = AtOnce(OPENS_AT_ONCE_MAX)
        """The opens of ledgers without recovery, and the questions for their last entry."""
        self.recoveries = AtOnce(RECOVERIES_AT_ONCE_MAX)
        """The opens of ledgers with recovery."""
        self._links_watch = LinkWatch(config, self._connect, tasks, self.counters)
        self.tracing = tracing or Tracing()
        # Metrics are collected from any thread, which may have no event loop.
        self.health = BookieHealth(config, asyncio.get_running_loop().time, tasks)
        self.placement = Placement(
            config.placement, metadata, rng, tasks, self._free_bytes, self._failed_s
        )
        self._lazy = lazy_addresses and not self.placement.needs_addresses
        self._watch = metadata.watch_bookies(self._on_bookies, addresses=not self._lazy)
        self.closed = False

    async def close(self) -> None:
        """Close all connections.

        The call waits until the bookies have read everything that writers sent. Whatever a bookie
        has not read after `CLOSE_DRAIN_S` seconds is dropped. No error is raised. If the call is
        cancelled, it drops everything that is left.
        """
        self.closed = True
        self._watch.close()
        self._links_watch.close()
        self.placement.close()
        deadline = asyncio.get_running_loop().time() + CLOSE_DRAIN_S
        links = (*self._channels.close(), *self._controls.close())
        try:
            for link in links:
                await link.drained(deadline)
        except asyncio.CancelledError:
            for link in links:
                link.abort("the client was closed")
            raise

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the client that has this pool. Any thread may ask."""
        return client_metrics(
            self.counters,
            self.health.unhealthy_count,
            self.health.lagged,
            self.opens.waiting,
            self.recoveries.waiting,
            [(one.bookie, one.kind.value, one.count) for one in self.health.unhealthy()],
            [(bookie, reason.value) for bookie, reason in self.health.avoided()],
        )

    # -- placement ----------------------------------------------------------------------------

    def mark_failed(self, bookie_id: str) -> None:
        """Record that a bookie has failed.

        For `avoid_failed_bookie_s` it is chosen for an ensemble only if too few others are left.
        """
        self._failed_at[bookie_id] = asyncio.get_running_loop().time()
        self.counters.bookie_failures += 1
        self.health.error(bookie_id)

    def failed_lately(self, bookie_id: str) -> bool:
        """Return whether a bookie failed within the last `avoid_failed_bookie_s` seconds."""
        horizon = asyncio.get_running_loop().time() - self._config.avoid_failed_bookie_s
        return self._failed_at.get(bookie_id, horizon) > horizon

    def read_order(self, bookies: Sequence[str], near: str | None = None) -> list[str]:
        """Return the bookies in the order in which a reader should ask them.

        The policy's order applies, but `near` comes first. If one of the bookies is slow, in
        quarantine or unavailable, all of them, `near` included, are sorted by their standing first.
        """
        order = list(bookies)
        if self.placement.orders_reads:
            order = self.placement.read_order(order)
        if near in order:
            order.remove(near)
            order.insert(0, near)
        return read_order(order, self.standing)

    def standing(self, bookie_id: str) -> Standing:
        """Return the standing of a bookie, which decides when a reader asks it."""
        if bookie_id not in self._bookies.writable:
            if bookie_id not in self._bookies.readonly:
                return Standing.UNAVAILABLE
            usual = Standing.READONLY
        else:
            usual = Standing.FAILED if self.failed_lately(bookie_id) else Standing.GOOD
        if self.health.quarantined(bookie_id):
            return Standing.QUARANTINED
        return Standing.SLOW if self.health.slow(bookie_id) else usual

    async def pick(
        self, wanted: Wanted, *, rested: bool = False, wait: bool = True
    ) -> dict[int, str]:
        """Choose bookies as `pick_now` does, but wait until there are enough.

        It waits up to `bookies_wait_s` for bookies to register, for their locations, and with
        `rested` for the end of the `REST_S` after a failure. If there are still too few then,
        the result has fewer bookies. Without `wait`, it waits for none of these, and only reads
        the addresses that tell where the chosen bookies are.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._config.bookies_wait_s if wait else 0.0)
        while True:
            if wait:
                await self.placement.settle(deadline)
            chosen = self.pick_now(wanted, rested=rested)
            if self._lazy and await self._differs(wanted, chosen):
                continue
            if len(chosen) == len(wanted.holes) or loop.time() >= deadline:
                return chosen
            await self.changed(min(deadline, loop.time() + REST_S) if rested else deadline)

    async def _differs(self, wanted: Wanted, chosen: Mapping[int, str]) -> bool:
        """Read the addresses on which a choice depends, and return whether one was not as assumed.

        They are the addresses of the chosen bookies and of the members that stay, and those of
        bookies whose location is not known. If too few bookies were chosen, they are the addresses
        of all. If the metadata store does not answer, the result is False.
        """
        if len(chosen) < len(wanted.holes):
            ids = set(self._bookies.writable)
        else:
            ids = {*chosen.values(), *self.placement.unplaced()}
        ids.update(one for one in wanted.members if one is not None)
        try:
            return await self._learn(ids)
        except MetadataError:
            return False

    async def know_addresses(self) -> None:
        """Read the addresses of all registered bookies that were not read before.

        Call this before you judge the placement of ledgers, or choose with `pick_now`. If the
        metadata store does not answer, assumed addresses stay, and no error is raised. Cancel-safe.
        """
        if not self._lazy:
            return
        try:
            await self._learn({*self._bookies.writable, *self._bookies.readonly})
        except MetadataError:
            pass

    async def changed(self, deadline: float) -> bool:
        """Wait for a change of the registered bookies until `deadline` (loop time).

        Returns whether there was a change. Cancel-safe.
        """
        return await came(self._changed, asyncio.timeout_at(deadline))

    def pick_now(self, wanted: Wanted, *, rested: bool = False) -> dict[int, str]:
        """Choose writable bookies for the open places of an ensemble, with the placement policy.

        Returns the bookie ids by ensemble index, and fewer or none if there are not enough. With
        `rested`, bookies that failed within the last `REST_S` are not chosen.
        """
        out: frozenset[str] = frozenset()
        if rested:
            horizon = asyncio.get_running_loop().time() - REST_S
            out = frozenset(b for b, at in self._failed_at.items() if at > horizon)
        return self.placement.fill(wanted, self.placement.view(out))

    def _failed_s(self) -> dict[str, float]:
        """Return the ids of the bookies that are chosen only if no other is left.

        The value is the number of seconds since the bookie failed. It is -1 if the bookie is in
        quarantine and has not failed recently.
        """
        now = asyncio.get_running_loop().time()
        horizon = now - self._config.avoid_failed_bookie_s
        self._failed_at = {b: at for b, at in self._failed_at.items() if at > horizon}
        failed = {bookie: now - at for bookie, at in self._failed_at.items()}
        return {**dict.fromkeys(self.health.in_quarantine(), -1.0), **failed}

    async def new_ensemble(
        self, size: int, write_quorum: int = 0, ack_quorum: int = 0
    ) -> tuple[str, ...]:
        """Choose the bookies of a new ensemble of `size` members, and return their ids.

        Raises NotEnoughBookiesError, which says what is missing, UsageError if the policy can never
        be satisfied with these quorums, and MetadataUnavailableError if the metadata store has not
        said yet which bookies there are.
        """
        wanted = Wanted.new(size, write_quorum, ack_quorum)
        self.placement.check(size, wanted.write_quorum, wanted.ack_quorum)
        chosen = await self.pick(wanted)
        if len(chosen) < size and not self._bookies_heard:
            # The store is slow or away. Without its answer nothing can be said about the bookies.
            found = await self._metadata.bookies()
            if not self._bookies_heard:
                self._on_bookies(found)
            chosen = self.pick_now(wanted)
        if len(chosen) < size:
            error = self.placement.too_few(wanted)
            error.outcome_known = True  # nothing was created (a writer may have sent appends)
            raise error
        return tuple(chosen[index] for index in range(size))

    def any_index(self, count: int) -> int:
        """Return a random index below `count`, so that the readers of a ledger ask different
        bookies."""
        return self.rng.randrange(count)

    async def _free_bytes(self, bookie_id: str) -> int:
        """Return the free disk space that a bookie reports, in bytes."""
        limit = self._config.read_timeout_s
        try:
            async with asyncio.timeout(limit):
                found = await self.ask_control(bookie_id, lambda channel: channel.bookie_info())
                return found.free_bytes
        except QuireError:
            raise
        except TimeoutError:
            raise BookieTimeoutError(
                f"bookie {bookie_id} did not report its free space within {limit:g} s"
            ) from None

    # -- channels -----------------------------------------------------------------------------

    async def channel(self, bookie_id: str, adds_of: int | None = None) -> BookieChannel:
        """Return a protocol v2 connection to a bookie, and connect first if there is none.

        With `adds_of`, a ledger id, no other handle adds to that ledger over the connection. Raises
        BookieUnavailableError, and MetadataError if the address of the bookie has to be read and
        the metadata store does not return it. Cancel-safe.
        """
        found = self._channels.find(bookie_id, adds_of)
        return found or await self._link(self._channels, bookie_id, adds_of)

    def channel_now(self, bookie_id: str, adds_of: int) -> BookieChannel | None:
        """Return the channel that `channel` would return without waiting, or None."""
        return self._channels.find(bookie_id, adds_of)

    def received_bytes(self, bookie_id: str) -> int:
        """Return the number of bytes that the v2 connections to a bookie have received so far.

        It grows while the bookie answers any request of this client over protocol v2.
        """
        return self._channels.received_bytes(bookie_id)

    async def control(self, bookie_id: str, adds_of: int | None = None) -> ControlChannel:
        """Return a protocol v3 connection to a bookie, with the arguments and errors of `channel`.

        Cancel-safe.
        """
        found = self._controls.find(bookie_id, adds_of)
        return found or await self._link(self._controls, bookie_id, adds_of)

    def control_now(self, bookie_id: str, adds_of: int) -> ControlChannel | None:
        """Return the channel that `control` would return without waiting, or None."""
        return self._controls.find(bookie_id, adds_of)

    async def ask(self, bookie_id: str, call: Callable[[BookieChannel], Awaitable[T]]) -> T:
        """Make a request to a bookie that is safe to repeat, and return its result.

        `call` sends the request over the connection that it receives. It is called once more, with
        a new connection, if the first one turns out to be dead while it waits. Raises the errors of
        `call` and of `channel`. Cancel-safe.
        """
        try:
            return await call(await self.channel(bookie_id))
        except SilentConnectionError:
            return await call(await self.channel(bookie_id))

    async def ask_many(
        self, bookie_id: str, ledger_id: int, entries: list[int], flags: int = 0, key: bytes = b""
    ) -> list[bytes | BaseException]:
        """Read entries as `BookieChannel.read_many` does, with the retry and errors of `ask`."""

        async def read(channel: BookieChannel) -> list[bytes | BaseException]:
            answers = await channel.read_many(ledger_id, entries, flags, key)
            for answer in answers:
                if isinstance(answer, SilentConnectionError):
                    raise answer
            return answers

        return await self.ask(bookie_id, read)

    async def ask_control(
        self, bookie_id: str, call: Callable[[ControlChannel], Awaitable[T]]
    ) -> T:
        """Make a request as `ask` does, with its errors, but over a protocol v3 connection."""
        try:
            return await call(await self.control(bookie_id))
        except SilentConnectionError:
            return await call(await self.control(bookie_id))

    def examine_links(self, bookie_id: str) -> None:
        """Examine the connections to this bookie, because a request was not answered in time."""
        for links in (self._channels, self._controls):
            for link in links.of(bookie_id):
                self._links_watch.examine(link)

    async def answers_anew(self, bookie_id: str, timeout_s: float) -> bool:
        """Return whether a bookie answers a probe over a new connection within `timeout_s`.

        If it does, the old connections to it are examined. Cancel-safe.
        """
        link: BookieChannel | None = None
        try:
            async with asyncio.timeout(timeout_s):
                link = await self._connect(bookie_id, BookieChannel)
                await link.probe()
        except (QuireError, TimeoutError):
            return False
        finally:
            if link is not None:
                link.close()
        self.examine_links(bookie_id)
        return True

    async def ask_anew(
        self, bookie_id: str, call: Callable[[ControlChannel], Awaitable[T]], timeout_s: float
    ) -> T:
        """Make a request over a new protocol v3 connection, and return its result.

        `call` sends the request over the connection, which is closed afterwards. The result shows
        what a new client would get, whatever the state of older connections is. Raises the errors
        of `call` and of `channel`, and BookieTimeoutError if the bookie accepts the connection and
        does not answer within `timeout_s` seconds. Cancel-safe.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        link = await self._connect(bookie_id, ControlChannel, timeout_s)
        try:
            async with asyncio.timeout_at(deadline):
                return await call(link)
        except QuireError:
            raise
        except TimeoutError:
            raise BookieTimeoutError(
                f"bookie {bookie_id} accepts connections, but did not answer a request within "
                f"{timeout_s:g} s"
            ) from None
        finally:
            link.close()

    async def certificate_until_ms(self, bookie_id: str, timeout_s: float) -> int | None:
        """Return the Unix time in milliseconds at which the certificate of a bookie expires.

        The certificate is presented over a new connection and not verified. The result is None if
        the bookie presents none within `timeout_s`. Raises no QuireError. Cancel-safe.
        """
        if self._bookies.find(bookie_id) is None:
            return None
        try:
            address = await self._address(bookie_id)
        except BookieUnavailableError:
            return None
        return await self._dialer.presented_until_ms(
            bookie_id, address.host, address.port, timeout_s
        )

    async def probe_port(self, bookie_id: str, timeout_s: float) -> ProbeResult | None:
        """Return how the address of a bookie answers to a new connection.

        The bookie need not be registered. The address is that in its id. If the id is no address,
        it is the one that the bookie wrote with its start command. The result is None if there is
        none. Raises no QuireError. Cancel-safe.
        """
        address = assumed_address(bookie_id)
        if address is None:
            try:
                started = await read_start_command(self._metadata, bookie_id)
            except MetadataError:
                return None
            address = None if started is None else assumed_address(started.address)
        if address is None:
            return None
        return await probe_port(self._network, address.host, address.port, timeout_s)

    def certificates(self) -> tuple[CertificateFile, ...]:
        """Return the expiry dates of the certificates in the client's TLS files, if there are any.

        There is one value for each file.
        """
        return self._dialer.certificates()

    async def _link(self, links: Links[L], bookie_id: str, adds_of: int | None) -> L:
        lock = links.connecting.setdefault(bookie_id, asyncio.Lock())
        async with lock:
            found = links.find(bookie_id, adds_of)
            while found is None and (link := links.find_untrusted(bookie_id, adds_of)) is not None:
                await self._links_watch.examined(link)
                found = links.find(bookie_id, adds_of)
            if found is None:
                found = await self._connect(bookie_id, links.make)
                self._links_watch.add(found, links)
            return found

    async def _connect(
        self, bookie_id: str, make: Callable[[str], L], timeout_s: float | None = None
    ) -> L:
        address = await self._address(bookie_id)
        link = await self._dialer.connect(
            bookie_id, address.host, address.port, make(bookie_id), timeout_s
        )
        link.address = address.host, address.port
        if self.closed:
            link.close()
            raise BookieUnavailableError(
                f"the client was closed while it connected to bookie {bookie_id}",
                remedy="Connect again",
            )
        return link

    # -- the bookies there are ----------------------------------------------------------------

    @property
    def bookies(self) -> Bookies:
        """The registered bookies, writable and read-only, as far as this client knows.

        There are none before the metadata store has listed them for the first time.
        """
        return self._bookies

    async def _address(self, bookie_id: str) -> BookieAddress:
        """Return the address at which a bookie is or was registered. Read it if it is not known.

        Raises BookieUnavailableError.
        """
        known = self._bookies.find(bookie_id) or self._last_known.get(bookie_id)
        if known is not None and not known.assumed:
            return known
        if not self._lazy:
            listed = await self._metadata.bookies()
            # The watch may have reported a newer list meanwhile, and does not report it again.
            if not self._bookies_heard:
                self._on_bookies(listed)
            found = self._bookies.find(bookie_id) or listed.find(bookie_id)
            if found is not None:
                self._last_known.setdefault(bookie_id, found)
        else:
            try:
                found = (await self._metadata.learn_bookies([bookie_id])).get(bookie_id)
            except MetadataError as error:
                raise BookieUnavailableError(
                    f"bookie {bookie_id} cannot be reached, because its address could not be read: "
                    f"{error}"
                ) from error
            self._merge([bookie_id], {} if found is None else {bookie_id: found})
            found = self._bookies.find(bookie_id) or found
        if found is None:
            raise BookieUnavailableError(
                f"bookie {bookie_id} is not registered in the metadata store, so it cannot be "
                "reached: it is not running, or it has lost its session"
            )
        return found

    async def _learn(self, bookie_ids: Collection[str]) -> bool:
        """Read the addresses that are only assumed, and return whether one of them was wrong.

        It was wrong if the bookie is on another host, or is no longer registered.
        """
        before = {id_: one for id_ in bookie_ids if (one := self._bookies.find(id_)) is not None}
        unread = sorted(id_ for id_, one in before.items() if one.assumed)
        if not unread:
            return False
        found = await self._metadata.learn_bookies(unread)
        self._merge(unread, found)
        return any(id_ not in found or found[id_].host != before[id_].host for id_ in unread)

    def _merge(self, asked: Collection[str], found: Mapping[str, BookieAddress]) -> None:
        """Use the addresses that were found. Bookies that were asked for and not found are gone.

        An address that the watch has reported meanwhile is not older than these, and stays.
        """
        gone = set(asked) - found.keys()

        def merged(some: Mapping[str, BookieAddress]) -> dict[str, BookieAddress]:
            return {
                id_: found.get(id_, one) if one.assumed else one
                for id_, one in some.items()
                if id_ not in gone or not one.assumed
            }

        self._on_bookies(Bookies(merged(self._bookies.writable), merged(self._bookies.readonly)))

    def _on_bookies(self, bookies: Bookies) -> None:
        before, self._bookies, self._bookies_heard = self._bookies, bookies, True
        self._leave_old_addresses(before)
        for some in (bookies.readonly, bookies.writable):
            if self._lazy:
                # An assumed address does not replace one that was read.
                read = self._last_known
                some = {i: one for i, one in some.items() if not one.assumed or i not in read}
            self._last_known.update(some)
        self.placement.on_bookies(bookies, self._last_known)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _leave_old_addresses(self, before: Bookies) -> None:
        """Give up connections to former addresses of bookies, and examine others if necessary.

        Those to bookies that have registered again are examined, because the process may be a new
        one. `before` has the bookies that were registered until now.
        """
        for links in (self._channels, self._controls):
            for bookie_id in links.bookies():
                now = self._bookies.find(bookie_id)
                if now is None or now.assumed:
                    continue
                returned = before.find(bookie_id) is None
                for link in links.of(bookie_id):
                    if link.address not in (None, (now.host, now.port)):
                        link.give_up(f"the bookie has moved to {host_port(now.host, now.port)}")
                    elif returned:
                        self._links_watch.examine(link)
