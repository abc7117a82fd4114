"""A walkthrough of the limits of answers: clients that receive slowly, or ask for very much."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from quire.bookie.protocol import answer_budget, connection_limits
from quire.bookie.protocol import connection as connections
from quire.codec.wire import v2
from quire.config import BookieConfig
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.actors.walkthroughs.wire.checks import check_answers
from quire_simulator.actors.walkthroughs.wire.driven_bookie import (
    GC_INTERVAL_S,
    ROOM_BYTES,
    DrivenBookie,
)
from quire_simulator.actors.walkthroughs.wire.known_bookie import Expected, KnownBookie
from quire_simulator.actors.walkthroughs.wire.raw_client import RawClient
from quire_simulator.actors.walkthroughs.wire.requests import Drawn, Requests
from quire_simulator.machine import transport

KIB = 1024
LEDGER_ID = 5
ENTRIES = 24
ENTRY_BYTES = 8 * KIB
STEPS = 5
LONG_S = 120.0
"""Seconds within which everything is answered, however small the limits are."""
PROMPT_S = 1.0
"""Seconds within which a polite client is answered, although others receive nothing."""
PRESSED_S = 5.0
"""The same, if the slow clients use up the memory of the bookie until they are closed."""


async def walk_answers(walk: Walk) -> None:
    """Ask for more than the bookie may hold, and compare what it holds, answers and closes."""
    await _AnswersWalk(walk).run()


def _config(walk: Walk, chance: random.Random) -> BookieConfig:
    share = chance.choice([9, 40, 200]) * KIB
    return replace(
        walk.stage.plan.bookie_config,
        max_frame_bytes=16 * KIB,
        segment_bytes=chance.choice([64 * KIB, 1024 * KIB]),
        min_free_bytes=0,
        max_unsent_bytes=share,
        max_answer_bytes=chance.choice([share, 3 * share, 2048 * KIB]),
        unsent_timeout_s=chance.choice([0.0, 2.5, 6.0]),
        max_batch_read_bytes=5 << 20,
        max_partial_bytes=ROOM_BYTES,
        max_long_polls=65_536,
        max_long_poll_s=60.0,
        log_cache_bytes=chance.choice([1, ROOM_BYTES]),
        first_request_timeout_s=60.0,
        gc_interval_s=GC_INTERVAL_S,
    )


class _AnswersWalk:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.chance = chance = walk.chance
        self.config = _config(walk, chance)
        self.box = DrivenBookie(walk, self.config, cold=chance.choice([0.0, 0.3, 1.0]))
        self.known = KnownBookie()
        self.requests = Requests(chance, self.known, self.box)
        self.exact = not walk.stage.plan.knobs
        self.clients: list[RawClient] = []
        self.stalled = 0
        self.dropped: tuple[int, int] | None = (0, 0)
        """The least and the most requests that were dropped, or None if that is not known."""
        self.network = walk.stage.world.network

    @property
    def now_s(self) -> float:
        return self.walk.stage.world.loop.time()

    async def run(self) -> None:
        await self.box.start()
        self.polite = await self._connect()
        await self._fill()
        steps = [self._slow, self._slow, self._crowd, self._polls, self._pipeline]
        for _ in range(STEPS):
            step = self.chance.choice(steps)
            self.walk.stage.history.add(self.walk.name, "answers", note=step.__name__)
            await step()
            await self._compare()
        await self.box.stop()

    async def _connect(self) -> RawClient:
        client = await RawClient.connect(self.walk, len(self.clients) + 1, self.box.name)
        self.clients.append(client)
        return client

    async def _fill(self) -> None:
        requests, known = self.requests, self.known
        requests.begin(self.now_s)
        key, bodies = requests.key_of(LEDGER_ID), []
        for number in range(ENTRIES):
            size = self.chance.choice([ENTRY_BYTES, ENTRY_BYTES, 100])
            bodies.append(requests.body(LEDGER_ID, number, number - 1, size))
        for body in bodies:
            known.open.append(requests.added_v2(self.polite, LEDGER_ID, key, body))
            self.polite.write(v2.add_request(key, body))
        await self._answered(self.polite)
        await asyncio.sleep(1.0)

    async def _answered(self, *clients: RawClient, seconds: float = LONG_S) -> None:
        await check_answers(self.walk, self.known, clients, seconds)

    def _draw(self, client: RawClient, count: int) -> list[Drawn]:
        """Draw reads of entries that are there, single ones and batches."""
        drawn = []
        batches = self.chance.random() < 0.4
        for _ in range(count):
            entry = self.chance.randrange(ENTRIES)
            if batches:
                size = self.chance.choice([100, 20_000, 100_000])
                drawn.append(self.requests.batch(client, LEDGER_ID, entry, 0, size))
            else:
                drawn.append(self.requests.single(client, LEDGER_ID, entry))
        return drawn

    async def _ask(self, client: RawClient, drawn: Sequence[Drawn]) -> list[Expected]:
        expected = [one for of in drawn for one in of.expected]
        self.known.open += expected
        client.write(b"".join(one.data for one in drawn))
        return expected

    def _largest(self, expected: Sequence[Expected]) -> int:
        return max(len(data) for one in expected for data in one.allowed)

    # -- steps --------------------------------------------------------------------------------

    async def _slow(self) -> None:
        """Receive nothing for a while, or until the bookie closes the connection."""
        client = await self._connect()
        client.transport.pause_reading()
        begin_s = self.now_s
        drawn = self._draw(client, self.chance.choice([3, 60, 90, 300]))
        expected = await self._ask(client, drawn)
        whole = sum(len(next(iter(one.allowed))) for one in expected)
        await asyncio.sleep(1.0)
        held = self.box.values()["quire_bookie_answer_bytes"]
        most = self.config.max_unsent_bytes + self._largest(expected) + 2 * KIB
        self.walk.between("bytes of answers of a slow client", held, 0, most)
        stuck = whole > transport.WINDOW_BYTES
        if stuck and self.exact:
            self.walk.between("bytes of answers that wait", held, 1, most)
        pressed = 2 * (held + self._largest(expected)) >= self.config.max_answer_bytes
        await self._polite(PRESSED_S + answer_budget.PRESSED_STALL_S if pressed else PROMPT_S)
        way = self.chance.choice(["receives", "receives", "leaves", "stays"])
        limit_s = self.config.unsent_timeout_s
        if way == "stays" and stuck and limit_s and self.exact and not self._closed():
            await client.until(self._closed, limit_s + connection_limits.SWEEP_S + 4.0)
            self._ended(begin_s, limit_s)
            self._drop(len(expected))
        elif way == "stays" and stuck and not limit_s:
            await asyncio.sleep(15.0)
        closed = self._closed()
        if closed and self.exact:
            # Its end is behind the answers that the client has not received.
            may = pressed or (limit_s and self.now_s > begin_s + limit_s - 0.1)
            self.walk.true("a slow client was closed without need", may)
        for one in expected:
            one.optional = closed > 0 or way == "leaves"
        if way == "leaves":
            if not closed:
                self._drop(len(expected))
            client.transport.abort()
            await client.ended("a close by the client")
        client.transport.resume_reading()
        if closed:
            self.stalled += closed
            if pressed:
                self.dropped = None
            await client.ended("a client that received nothing", 5.0)
        await self._answered(client, self.polite)

    def _closed(self) -> int:
        """Return how many more clients the bookie has closed because they receive nothing."""
        told = self.box.values()["quire_bookie_connections_stalled_total"]
        return int(told) - self.stalled

    def _drop(self, most: int) -> None:
        """Note that at most so many requests are dropped. Others were answered before that."""
        if self.dropped is not None:
            self.dropped = self.dropped[0], self.dropped[1] + most

    def _ended(self, begin_s: float, limit_s: float) -> None:
        """Check that a client that receives nothing was closed neither early nor late."""
        if not self._closed():
            self.walk.fail("connections_end_in_time", "a client that receives nothing stays")
            return
        took_s = self.now_s - begin_s
        self.walk.between("seconds of a client that receives nothing", took_s, limit_s,
                          limit_s + 2 * connection_limits.SWEEP_S + 1.0)  # fmt: skip

    async def _polite(self, seconds: float) -> None:
        """Check that a client that receives its answers gets them in time."""
        begin_s = self.now_s
        drawn = self.requests.single(self.polite, LEDGER_ID, self.chance.randrange(ENTRIES))
        await self._ask(self.polite, [drawn])
        here = [one for one in self.known.open if one.key[0] != self.polite.number]
        self.known.open = [one for one in self.known.open if one.key[0] == self.polite.number]
        await self._answered(self.polite, seconds=LONG_S)
        self.known.open += here
        if self.exact:
            took_s = self.now_s - begin_s
            self.walk.between("seconds of a polite client", took_s, 0, seconds)

    async def _leave(self, client: RawClient) -> None:
        client.transport.abort()
        await client.ended("a close by the client")

    async def _crowd(self) -> None:
        """Let several clients ask for more than the bookie may hold together."""
        count = self.chance.choice([2, 4, 8])
        slow = [await self._connect() for _ in range(count)]
        expected: list[Expected] = []
        for client in slow:
            client.transport.pause_reading()
            expected += await self._ask(client, self._draw(client, self.chance.choice([50, 120])))
        peak = 0.0
        for _ in range(10):
            await asyncio.sleep(0.1)
            peak = max(peak, self.box.values()["quire_bookie_answer_bytes"])
        config = self.config
        most = max(config.max_answer_bytes, config.max_unsent_bytes) + self._largest(expected)
        self.walk.between("bytes of all answers", peak, 0, most + 4 * KIB)
        await self._polite(PRESSED_S + answer_budget.PRESSED_STALL_S)
        if self.chance.random() < 0.5:
            for client in slow:
                client.transport.resume_reading()
            await asyncio.sleep(5.0)
        closed = self._closed()
        self.stalled += closed
        for client in slow:
            client.transport.resume_reading()
        await asyncio.sleep(2.0 if closed else 0.0)
        if closed:
            for one in expected:
                one.optional = True  # The clients that were closed are those that end now.
        self.dropped = None
        await self._answered(*slow, self.polite)
        for client in slow:
            if not client.lost:
                await self._leave(client)

    async def _polls(self) -> None:
        """Send many reads that wait at once, and wake all of them with one add."""
        client = await self._connect()
        count = min(self.chance.choice([20, 300, 700]), connections.MAX_POLLS)
        known, requests = self.known, self.requests
        lac = known.ledgers[LEDGER_ID].lac
        requests.begin(self.now_s)
        data = []
        for _ in range(count):
            drawn = requests.waiting(client, LEDGER_ID, lac)
            known.open += drawn.expected
            data.append(drawn.data)
        client.write(b"".join(data))
        await asyncio.sleep(0.5 if self.exact else 5.0)
        values = self.box.values()
        self.walk.same("waiting reads", values["quire_bookie_long_polls"], len(known.polls))
        await self._polite(PROMPT_S)
        if self.chance.random() < 0.3:
            known.open = [one for one in known.open if one.key[0] != client.number]
            known.polls = [one for one in known.polls if one.connection != client.number]
            await self._leave(client)
            await asyncio.sleep(0.1)
            self.walk.same("waiting reads of a client that is gone",
                           self.box.values()["quire_bookie_long_polls"], 0)  # fmt: skip
            return
        key, last = requests.key_of(LEDGER_ID), known.ledgers[LEDGER_ID].last
        body = requests.body(LEDGER_ID, last + 1, lac + 1, 100)
        known.open.append(requests.added_v2(self.polite, LEDGER_ID, key, body))
        self.polite.write(v2.add_request(key, body))
        await self._answered(client, self.polite)
        await self._leave(client)

    async def _pipeline(self) -> None:
        """Send thousands of small requests in one write, and receive all answers."""
        client = await self._connect()
        count = self.chance.choice([300, 1_500, 2_500])
        drawn = []
        for number in range(count):
            if number % 3 == 0 and not client.only_v2:
                drawn.append(self.requests.read_lac(client, LEDGER_ID + number % 2))
            else:
                drawn.append(self.requests.single(client, LEDGER_ID, number % (2 * ENTRIES)))
        await self._ask(client, drawn)
        await self._polite(LONG_S)
        await self._answered(client, self.polite)
        await self._leave(client)

    # -- checks -------------------------------------------------------------------------------

    async def _compare(self) -> None:
        """Check that nothing is held or waits any more, and what was counted."""
        await asyncio.sleep(0.5)
        for client in self.clients[1:]:
            if not client.lost:
                await self._leave(client)
        self.clients = [one for one in self.clients if one is self.polite or not one.lost]
        await asyncio.sleep(0.2)
        values = self.box.values()
        for name in (
            "answer_bytes", "waiting_requests", "waiting_connections", "long_polls",
            "partial_bytes", "background_errors_total",
        ):  # fmt: skip
            self.walk.same(name, values[f"quire_bookie_{name}"], 0)
        self.walk.same("connections", values["quire_bookie_connections"], 1)
        waited = values["quire_bookie_requests_waited_total"]
        dropped = values["quire_bookie_requests_dropped_total"]
        self.walk.between("requests that waited", waited, dropped, 1 << 40)
        if self.exact and self.dropped is not None:
            self.walk.between("dropped requests", dropped, *self.dropped)
        self.dropped = int(dropped), int(dropped)
        stalled = values["quire_bookie_connections_stalled_total"]
        if self.exact:
            self.walk.same("stalled connections", stalled, self.stalled)
