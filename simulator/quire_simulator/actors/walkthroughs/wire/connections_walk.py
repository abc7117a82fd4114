"""A walkthrough of the limits of connections: who is admitted, who is closed, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from quire.bookie.protocol import connection_limits as limits
from quire.codec.wire import v2
from quire.codec.wire.v2 import Code
from quire.config import BookieConfig
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.actors.walkthroughs.wire.driven_bookie import ROOM_BYTES, DrivenBookie
from quire_simulator.actors.walkthroughs.wire.raw_client import RawClient

STEPS = 30
MARGIN_S = 0.15
"""Seconds by which two moments differ if their order is to be certain."""
BETWEEN_S = 0.2
FLOODS = 6
READ = v2.read_request(7, 1)
DENIED = v2.read_response(Code.NO_LEDGER, 7, 1)


async def walk_connections(walk: Walk) -> None:
    """Reach every limit of connections, and compare who is left."""
    await _ConnectionsWalk(walk).run()


def _config(walk: Walk, chance: random.Random) -> BookieConfig:
    return replace(
        walk.stage.plan.bookie_config,
        max_frame_bytes=64 * 1024,
        segment_bytes=1 << 20,
        min_free_bytes=0,
        max_connections=chance.choice([1, 2, 3, 4, 7]),
        first_request_timeout_s=chance.choice([0.0, 4.0, 9.0]),
        partial_frame_timeout_s=chance.choice([0.0, 3.0, 7.0]),
        idle_timeout_s=chance.choice([0.0, 2.0, 5.0]),
        max_partial_bytes=100_000,
        max_answer_bytes=ROOM_BYTES,
        max_unsent_bytes=ROOM_BYTES,
        max_queued_bytes=ROOM_BYTES,
    )


@dataclass(eq=False)
class _Known:
    """What is known of one connection that the bookie has."""

    client: RawClient
    opened_s: float
    heard_s: float
    proven: bool = False
    begun_s: float = 0.0
    """When its unfinished request began, or 0."""
    rest: bytes = b""
    """The rest of its unfinished request."""
    sent_bytes: int = 0
    """How much of its unfinished request was sent."""

    @property
    def held_bytes(self) -> int:
        """The bytes that count toward `max_partial_bytes`."""
        return self.sent_bytes if self.sent_bytes > limits.FREE_PARTIAL_BYTES else 0


class _ConnectionsWalk:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.chance = walk.chance
        self.config = _config(walk, walk.chance)
        self.box = DrivenBookie(walk, self.config, cold=0.0)
        self.here: list[_Known] = []
        self.made = self.refused = self.displaced = 0
        self.silent = self.unfinished = (0, 0)
        """The least and the most connections that were closed for this reason."""

    @property
    def now_s(self) -> float:
        return self.walk.stage.world.loop.time()

    async def run(self) -> None:
        await self.box.start()
        steps = [
            (self._connect, 8), (self._request, 5), (self._half, 3), (self._finish, 2),
            (self._rest, 4), (self._leave, 1),
        ]  # fmt: skip
        for _ in range(STEPS):
            (step,) = self.chance.choices([one for one, _ in steps], [one for _, one in steps])
            await step()
            await asyncio.sleep(BETWEEN_S)
            await self._expire()
            self._compare()
        for one in list(self.here):
            one.client.transport.abort()
        self.here.clear()
        await asyncio.sleep(BETWEEN_S)
        self._compare()
        await self._flood()
        await self.box.stop()

    def _record(self, what: str) -> None:
        self.walk.stage.history.add(self.walk.name, "connections", note=what)

    # -- steps --------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Make one more connection, and see whom the bookie closes for it."""
        await self._certain()
        victim, admitted = self._place()
        self._record(f"connects, {len(self.here)} are there")
        opened_s = self.now_s
        self.made += 1
        client = await RawClient.connect(self.walk, self.made, self.box.name)
        if not admitted:
            self.refused += 1
            await client.ended("a connection for which there is no place")
            told = [data for _, data in client.frames]
            self.walk.same("the refusal of a connection", told, [v2.CONNECTION_REFUSED])
            return
        self.here.append(_Known(client, opened_s, opened_s))
        if victim is not None:
            self.displaced += 1
            self.here.remove(victim)
            await victim.client.ended("a connection whose place another one needs")

    def _place(self) -> tuple[_Known | None, bool]:
        """Return which connection the next one replaces, if any, and whether it is admitted."""
        config, now_s = self.config, self.now_s
        newcomers = [one for one in self.here if not one.proven]
        many = len(newcomers) + 1 > max(1, config.max_connections // 2)
        oldest = newcomers[0] if newcomers else None
        if oldest is not None and now_s - oldest.opened_s <= limits.NEWCOMER_GRACE_S:
            oldest = None
        if len(self.here) < config.max_connections:
            return (oldest if many else None), True
        if oldest is not None:
            return oldest, True
        idle = [one for one in self.here if now_s - one.heard_s > config.idle_timeout_s > 0]
        if many or not idle:
            return None, False
        return min(idle, key=lambda one: one.heard_s), True

    async def _certain(self) -> None:
        """Wait until no limit is about to be reached, and until idle connections are searched."""
        await asyncio.sleep(limits.SWEEP_S + MARGIN_S)
        await self._expire()
        while True:
            now_s, config = self.now_s, self.config
            times = [one.opened_s + limits.NEWCOMER_GRACE_S for one in self.here]
            times += [one.heard_s + config.idle_timeout_s for one in self.here]
            times += [one.opened_s + config.first_request_timeout_s for one in self.here]
            times += [one.begun_s + config.partial_frame_timeout_s for one in self.here]
            if all(abs(now_s - at_s) > MARGIN_S for at_s in times):
                return
            await asyncio.sleep(MARGIN_S)
            await self._expire()

    def _one(self, wanted: Callable[[_Known], object]) -> _Known | None:
        some = [one for one in self.here if wanted(one)]
        return self.chance.choice(some) if some else None

    async def _request(self) -> None:
        await self._expire()
        one = self._one(lambda one: not one.begun_s and not self._ends_soon(one))
        if one is None:
            return
        self._record(f"{one.client.number} asks")
        one.client.frames.clear()
        one.client.write(READ)
        await self._answered(one)

    async def _answered(self, one: _Known) -> None:
        if not await one.client.until(lambda: one.client.frames, 2.0):
            self.walk.fail("answers_follow_the_protocol", "a read was not answered")
        told = [data for _, data in one.client.frames]
        self.walk.same("the answer to a read", told, [DENIED])
        one.client.frames.clear()
        one.proven, one.heard_s = True, self.now_s

    async def _answered_first(self, client: RawClient) -> None:
        """Let a connection complete a request, so that none takes its place soon."""
        client.write(READ)
        await self._answered(_Known(client, self.now_s, self.now_s))

    async def _half(self) -> None:
        """Send the beginning of a request."""
        await self._expire()
        one = self._one(lambda one: not self._ends_soon(one))
        if one is None or one.rest:
            return
        size = self.chance.choice([1, 3, 4, 7, 10, 20, 16_384, 16_385, 30_000])
        held = sum(one.held_bytes for one in self.here)
        if size > limits.FREE_PARTIAL_BYTES and held + size > self.config.max_partial_bytes:
            return
        whole = READ if size < len(READ) else _long_read(40_000)
        self._record(f"{one.client.number} sends {size} bytes of a request")
        one.client.write(whole[:size])
        one.rest = whole[size:]
        one.begun_s = one.heard_s = self.now_s
        one.sent_bytes = size

    async def _finish(self) -> None:
        """Send the rest of a request."""
        await self._expire()
        one = self._one(lambda one: one.rest and not self._ends_soon(one))
        if one is None:
            return
        self._record(f"{one.client.number} sends the rest")
        one.client.frames.clear()
        if len(one.rest) > 2 and self.chance.random() < 0.4:
            one.client.write(one.rest[:1])
            one.rest = one.rest[1:]
            one.heard_s = self.now_s
            one.sent_bytes += 1
            return
        one.client.write(one.rest)
        one.rest, one.begun_s, one.sent_bytes = b"", 0.0, 0
        await self._answered(one)

    async def _rest(self) -> None:
        await asyncio.sleep(self.chance.choice([0.3, 1.0, 2.0, 4.0, 6.0]))

    async def _leave(self) -> None:
        await self._expire()
        one = self._one(lambda one: not self._ends_soon(one))
        if one is not None:
            self._record(f"{one.client.number} leaves")
            one.client.transport.abort()
            self.here.remove(one)

    # -- time ---------------------------------------------------------------------------------

    def _due(self, one: _Known) -> list[tuple[str, float]]:
        """Return why and when the bookie closes a connection at the earliest, if nothing comes."""
        config, found = self.config, []
        if config.first_request_timeout_s and not one.proven:
            found.append(("silent", one.opened_s + config.first_request_timeout_s))
        if config.partial_frame_timeout_s and one.begun_s:
            found.append(("unfinished", one.begun_s + config.partial_frame_timeout_s))
        return found

    def _ends_soon(self, one: _Known) -> bool:
        return any(at_s < self.now_s + 3 * MARGIN_S for _, at_s in self._due(one))

    async def _expire(self) -> None:
        """Wait for the connections whose time is up, and check that they end in time."""
        for one in list(self.here):
            due = self._due(one)
            if not due:
                continue
            at_s = min(when for _, when in due)
            if at_s > self.now_s + MARGIN_S:
                if one.client.lost:
                    what = f"connection {one.client.number} ended {at_s - self.now_s:.1f} s early"
                    self.walk.fail("connections_end_in_time", what)
                continue
            latest_s = at_s + limits.SWEEP_S + MARGIN_S
            client = one.client
            if not await client.until(partial(getattr, client, "lost"), latest_s - self.now_s):
                what = f"connection {one.client.number} was not closed: {due}"
                self.walk.fail("connections_end_in_time", what)
            if one.client.lost_s < at_s - MARGIN_S:
                what = f"connection {one.client.number} was closed too early: {due}"
                self.walk.fail("connections_end_in_time", what)
            self.here.remove(one)
            near = {why for why, when in due if when <= at_s + limits.SWEEP_S + MARGIN_S}
            sure = len(near) == 1
            if "silent" in near:
                self.silent = self.silent[0] + sure, self.silent[1] + 1
            if "unfinished" in near:
                self.unfinished = self.unfinished[0] + sure, self.unfinished[1] + 1

    # -- checks -------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare who is left, and what the bookie counts."""
        for one in self.here:
            if one.client.lost and not self._ends_soon(one):
                what = f"connection {one.client.number} was closed for no reason"
                self.walk.fail("connections_end_in_time", what)
        if any(self._ends_soon(one) for one in self.here):
            return
        values, same = self.box.values(), self.walk.same
        for name, wanted in {
            "connections": len(self.here),
            "connections_without_request": sum(not one.proven for one in self.here),
            "partial_bytes": sum(one.held_bytes for one in self.here),
            "connections_total": self.made,
            "connections_refused_total": self.refused,
            "connections_displaced_total": self.displaced,
        }.items():
            same(name, values[f"quire_bookie_{name}"], wanted)
        self._between("connections_silent_total", values, self.silent)
        self._between("connections_unfinished_total", values, self.unfinished)

    def _between(self, name: str, values: dict[str, float], bounds: tuple[int, int]) -> None:
        self.walk.between(name, values[f"quire_bookie_{name}"], *bounds)

    # -- memory for unfinished requests -----------------------------------------------------------

    async def _flood(self) -> None:
        """Send the beginnings of large requests on many connections, and then their rests."""
        config, chance = self.config, self.chance
        count = min(FLOODS, config.max_connections)
        some = []
        for _ in range(count):
            self.made += 1
            client = await RawClient.connect(self.walk, self.made, self.box.name)
            await self._answered_first(client)
            some.append(client)
        begin_s = self.now_s
        whole = _long_read(60_000)
        sizes = [chance.choice([10, 16_385, 40_000, 59_000]) for _ in some]
        most, peak = self.config.max_partial_bytes, 0.0
        for client, size in zip(some, sizes, strict=True):
            client.write(whole[:size])
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.02, 0.3]))
            peak = max(peak, self.box.values()["quire_bookie_partial_bytes"])
        await asyncio.sleep(chance.choice([0.1, 0.6, 1.4]))
        peak = max(peak, self.box.values()["quire_bookie_partial_bytes"])
        bound = max(limits.HARD_FACTOR * most, 60_000)
        self.walk.between("bytes of unfinished requests", peak, 0, bound)
        few = sum(size for size in sizes if size > limits.FREE_PARTIAL_BYTES) <= most
        if few and self.now_s < begin_s + 2.5:
            lost = [client.number for client in some if client.lost]
            self.walk.same("connections closed although there is memory", lost, [])
        for client, size in zip(some, sizes, strict=True):
            if not client.lost:
                client.write(whole[size:])
        await asyncio.sleep(limits.SWEEP_S + limits.PARTIAL_GRACE_S + 1.0)
        for client in some:
            told = [data for _, data in client.frames]
            if not client.lost or told:
                self.walk.same("the answer after a flood", told, [DENIED])
        if all(client.lost for client in some):
            self.walk.fail("connections_end_in_time", "no request of a flood was answered")
        values = self.box.values()
        self.walk.same("partial bytes after a flood", values["quire_bookie_partial_bytes"], 0)
        closed = sum(client.lost for client in some)
        least, most_closed = self.unfinished
        told_closed = values["quire_bookie_connections_unfinished_total"]
        self.walk.between("closed floods", told_closed, least + closed, most_closed + closed)


def _long_read(size: int) -> bytes:
    """Return a read with so many bytes at its end that mean nothing."""
    return (size - 4).to_bytes(4, "big") + READ[4:] + bytes(size - len(READ))
