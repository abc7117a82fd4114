"""A walkthrough of all requests of both protocols, good and bad, against an exact model."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from quire.bookie.background import garbage
from quire.codec.wire import v2, v3
from quire.codec.wire.messages_pb2 import Request
from quire.codec.wire.v3 import Op
from quire.config import BookieConfig
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.actors.walkthroughs.wire.checks import check_answers, check_counters
from quire_simulator.actors.walkthroughs.wire.driven_bookie import (
    GC_INTERVAL_S,
    ROOM_BYTES,
    DrivenBookie,
)
from quire_simulator.actors.walkthroughs.wire.known_bookie import Counts, KnownBookie
from quire_simulator.actors.walkthroughs.wire.raw_client import RawClient
from quire_simulator.actors.walkthroughs.wire.requests import (
    ABSENT_IDS,
    SLACK_S,
    Drawn,
    Requests,
)

KIB = 1024
STEPS = 26
CLIENTS = 4
CUT_EVERYWHERE_BYTES = 50
"""The largest burst that is cut at every byte."""
NEAR_S = 3.0
"""A read whose wait ends within this time is awaited before other requests are sent."""
DURABLE_S = 1.0
"""Seconds after which everything that a bookie has accepted is durable."""
ANSWERED_S = 5.0
ANSWERED_WITH_KNOBS_S = 60.0
"""Seconds within which a bookie answers a burst, unless it has limits that were drawn as knobs."""


async def walk_requests(walk: Walk) -> None:
    """Send requests of every kind, and compare all answers and counters."""
    await RequestsWalk(walk).run()


def draw_config(walk: Walk, chance: random.Random) -> BookieConfig:
    """Return the settings of a bookie with room for everything that honest clients send."""
    frame_bytes = chance.choice([16, 16, 64]) * KIB
    return replace(
        walk.stage.plan.bookie_config,
        max_frame_bytes=frame_bytes,
        segment_bytes=chance.choice([4, 16]) * frame_bytes,
        min_free_bytes=0,
        max_partial_bytes=ROOM_BYTES,
        max_batch_read_bytes=chance.choice([5 << 20, 500]),
        max_long_polls=chance.choice([2, 5, 65_536]),
        max_long_poll_s=chance.choice([60.0, 8.0, 0.2]),
        unsent_timeout_s=60.0,
        first_request_timeout_s=0.0,
        damage_report_interval_s=0.0,
        gc_over_replicated_interval_s=0.0,
        compact_minor_ratio=0.0,
        compact_major_ratio=0.0,
        scrub_interval_s=0.0,
        gc_interval_s=GC_INTERVAL_S,
    )


class RequestsWalk:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.chance = chance = walk.chance
        self.cold = chance.choice([0.0, 0.0, 0.3, 1.0])
        self.config = draw_config(walk, chance)
        self.box = DrivenBookie(walk, self.config, cold=self.cold)
        self.known = KnownBookie()
        self.requests = Requests(chance, self.known, self.box)
        self.clients: list[RawClient] = []
        self.exact = not walk.stage.plan.knobs
        self._made = 0

    async def run(self) -> None:
        await self.box.start()
        for _ in range(CLIENTS):
            await self._connect()
        steps = [
            (self._burst, 14), (self._in_turn, 3), (self._hold, 2), (self._restart, 1.5),
            (self._delete, 2), (self._violate, 2), (self._disconnect, 1), (self._rest, 2),
            (self._largest, 1), (self._load, 1), (self._unsecured, 1),
        ]  # fmt: skip
        for _ in range(STEPS):
            (step,) = self.chance.choices([one for one, _ in steps], [one for _, one in steps])
            await step()
        await self._hold(False)
        await self._settle(1_000.0)
        await self._check_all()
        await self._stop()

    # -- connections --------------------------------------------------------------------------

    async def _connect(self) -> RawClient:
        self._made += 1
        client = await RawClient.connect(self.walk, self._made, self.box.name)
        self.known.counts.add("connections")
        self.clients.append(client)
        return client

    async def _reconnect(self) -> None:
        """Replace the connections that have ended, and those that speak only v2 now and then."""
        for client in list(self.clients):
            if client.lost:
                self.clients.remove(client)
        while len(self.clients) < CLIENTS:
            await self._connect()

    # -- bursts -------------------------------------------------------------------------------

    def _record(self, client: RawClient, text: str) -> None:
        self.walk.stage.history.add(self.walk.name, "sends", note=f"{client.number}: {text}")

    async def _burst(self) -> None:
        """Send requests on one or several connections, pipelined and cut anywhere."""
        await self._settle(NEAR_S)
        chance, requests = self.chance, self.requests
        await self._renew()
        some = chance.sample(self.clients, chance.choice([1, 1, 2, 3]))
        ids = [one for one in requests.ids if one >= 0]
        chance.shuffle(ids)
        requests.begin(some[0].now_s, connections=len(some))
        sending = []
        for index, client in enumerate(some):
            own = ids[index :: len(some)][: chance.choice([1, 2, 5])]
            before = list(self.known.polls)
            drawn = [requests.draw(client, own) for _ in range(chance.choice([1, 2, 4, 12, 40]))]
            if any(poll not in before for poll in self.known.polls):
                # Its answer shows that the reads which wait have arrived. If they did not, the
                # next burst could overtake them on another connection.
                drawn.append(requests.last(client))
            sending.append((client, drawn))
        await self._exchange(sending)

    async def _renew(self) -> None:
        """Replace ledgers that were used long enough."""
        ids = self.requests.ids
        for index, ledger_id in enumerate(ids):
            ledger = self.known.ledgers.get(ledger_id)
            done = ledger_id in self.known.refused or (ledger is not None and ledger.fenced)
            if done and self.chance.random() < 0.15:
                ids[index] = self.requests.fresh_id()

    async def _in_turn(self) -> None:
        """Send adds of several ledgers in turn."""
        await self._settle(NEAR_S)
        client = self.chance.choice(self.clients)
        ids = self.chance.sample(self.requests.ids, self.chance.choice([2, 3, 6]))
        self.requests.begin(client.now_s)
        drawn = [self.requests.adds_in_turn(client, ids)]
        if self.chance.random() < 0.5:
            drawn.append(self.requests.adds_in_turn(client, ids[:2]))
        await self._exchange([(client, drawn)])

    async def _exchange(
        self, sending: list[tuple[RawClient, list[Drawn]]], more: bytes = b""
    ) -> None:
        """Send the drawn requests, and then `more`, and check the answers."""
        writing = []
        for client, drawn in sending:
            for one in drawn:
                self._record(client, one.text)
            data = b"".join(one.data for one in drawn) + more
            writing.append(client.write_pieces(data, self._cuts(len(data))))
        await asyncio.gather(*writing)
        await self._answered()

    def _cuts(self, size: int) -> list[int]:
        chance = self.chance
        if size < 2 or chance.random() < 0.4:
            return []
        if size <= CUT_EVERYWHERE_BYTES:
            return list(range(1, size))
        return sorted(chance.sample(range(1, size), min(size - 1, chance.randint(1, 6))))

    async def _answered(self, *, seconds: float | None = None) -> None:
        """Wait for the answers of all requests that do not wait themselves."""
        if seconds is None:
            seconds = ANSWERED_S if self.exact else ANSWERED_WITH_KNOBS_S
        await check_answers(self.walk, self.known, self.clients, seconds)

    async def _settle(self, near_s: float) -> None:
        """Wait for the reads whose wait ends within this time."""
        known = self.known
        while True:
            now_s = self.walk.stage.world.loop.time()
            due = [one for one in known.polls if one.deadline_s < now_s + near_s]
            if not due:
                return
            poll = min(due, key=lambda one: one.deadline_s)
            await asyncio.sleep(max(0.0, poll.deadline_s - now_s - SLACK_S))
            known.polls.remove(poll)
            poll.expected.begin_anew()
            poll.expected.allow()
            await self._answered(seconds=2 * SLACK_S + 1.0)

    # -- other steps --------------------------------------------------------------------------

    async def _hold(self, held: bool | None = None) -> None:
        """Make the bookie read-only, or writable again."""
        await self._settle(NEAR_S)
        self.known.readonly = not self.known.readonly if held is None else held
        self.walk.stage.history.add(self.walk.name, "holds", note=str(self.known.readonly))
        self.box.bookie.hold_readonly(self.known.readonly)
        await asyncio.sleep(0.1)
        self.walk.same("writable", self.box.bookie.writable, not self.known.readonly)
        self.walk.same("status", self.box.bookie.status, int(not self.known.readonly))

    async def _rest(self) -> None:
        await self._settle(1_000.0 if self.chance.random() < 0.5 else 6.0)

    async def _delete(self) -> None:
        """Delete a ledger. What waits for it is answered."""
        await self._settle(NEAR_S)
        known = self.known
        await asyncio.sleep(DURABLE_S)
        if not 0 < len(known.ledgers) < garbage.MASS_LEDGERS_MIN:
            return
        for ledger_id in known.ledgers:
            await self.box.know(ledger_id)
        ledger_id = self.chance.choice(sorted(known.ledgers))
        self.walk.stage.history.add(self.walk.name, "deletes", note=str(ledger_id))
        known.changed.clear()
        known.delete(ledger_id)
        await self.box.delete(ledger_id)
        await self._answered()
        self.walk.same("ledgers", sorted(self.box.bookie.store.ledgers), sorted(known.ledgers))

    async def _stop(self) -> None:
        """Stop the bookie, which answers everything that waits before it closes."""
        self.known.changed.clear()
        await asyncio.sleep(DURABLE_S)
        self._check_counters()
        self.walk.stage.history.add(self.walk.name, "stops")
        self.known.end_polls()
        for one in self.known.open:
            one.earliest_s = one.latest_s = 0.0
            one.optional = self.cold > 0  # Reads that wait for the disk are dropped.
        await self.box.stop()
        await self._answered()
        for client in self.clients:
            await client.ended("a stop")

    async def _restart(self) -> None:
        """Stop the bookie or kill it, and start it again."""
        await self._settle(NEAR_S)
        if self.chance.random() < 0.6:
            await self._stop()
        else:
            await asyncio.sleep(DURABLE_S)
            self._check_counters()
            self.walk.stage.history.add(self.walk.name, "kills")
            self._forget_polls()
            self.box.kill()
        self._begin_life()
        await self.box.start()
        await self._begun()

    def _begin_life(self) -> None:
        self.known.counts = Counts()
        self.known.readonly = False
        self.clients.clear()

    async def _begun(self) -> None:
        """Compare the ledgers after a start. The LACs may be lower than before."""
        known, found = self.known, self.box.bookie.store.ledgers
        self.walk.same("ledgers after a start", sorted(found), sorted(known.ledgers))
        for ledger_id, ledger in known.ledgers.items():
            lac = found[ledger_id].last_add_confirmed
            self.walk.between(
                f"LAC of ledger {ledger_id} after a start", lac, -1, ledger.highest_lac
            )
            ledger.lac = lac
        await self._reconnect()

    def _forget_polls(self, client: RawClient | None = None) -> None:
        """Forget the reads that wait on a connection that has ended, or on all of them."""
        gone = [
            one for one in self.known.polls if client is None or one.connection == client.number
        ]
        for poll in gone:
            self.known.polls.remove(poll)
            self.known.open.remove(poll.expected)

    async def _disconnect(self) -> None:
        """Close a connection, whose waiting reads end with it."""
        await self._settle(NEAR_S)
        client = self.chance.choice(self.clients)
        self._record(client, "closes")
        if self.chance.random() < 0.5:
            client.transport.close()
        else:
            client.transport.abort()
        self._forget_polls(client)
        await client.ended("a close by the client")
        await asyncio.sleep(0.1)
        await self._reconnect()

    async def _largest(self) -> None:
        """Add the largest entry, and one that is larger by a byte."""
        await self._settle(NEAR_S)
        chance, requests, most = self.chance, self.requests, self.config.max_frame_bytes
        client = chance.choice(self.clients)
        ledger_id = chance.choice(requests.ids)
        requests.begin(client.now_s)
        drawn = requests.add_large(client, ledger_id, most)
        self.known.open += drawn.expected
        await self._exchange([(client, [drawn])])
        too_large = (most - 3).to_bytes(4, "big") + bytes([2, 1, 0, 0])
        await self._close_with(client, [], too_large, "a frame that is too large")

    async def _violate(self) -> None:
        """Send what no protocol allows after some good requests."""
        await self._settle(NEAR_S)
        chance = self.chance
        client = chance.choice(self.clients)
        self.requests.begin(client.now_s)
        ids = chance.sample(self.requests.ids, 2)
        drawn = [self.requests.draw(client, ids) for _ in range(chance.choice([0, 1, 5]))]
        bad, what = self._bad(client)
        await self._close_with(client, drawn, bad, what)

    def _bad(self, client: RawClient) -> tuple[bytes, str]:
        """Return bytes that end a connection, and what they are."""
        chance = self.chance
        ways: list[tuple[bytes, str]] = [
            ((chance.choice([0, 1, 3])).to_bytes(4, "big") + b"\x02\x02\x00\x00", "a short frame"),
            (b"\xff\xff\xff\xff\x02\x02\x00\x00", "a frame of 4 GiB"),
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
            (_v2_frame(chance.choice([4, 5, 6, 8, 99]), 40), "an unknown operation"),
            (_v2_frame(1, 35), "a short add"),
            (_v2_frame(2, 15), "a short read"),
            (_v2_frame(7, 39), "a short batch read"),
            (_v2_frame(2, 39, 1), "a fence with a short key"),
            (_v2_frame(2, 20, 1), "a fence without a key"),
            (_v2_frame(7, 40, 1), "a batch read that fences without a key"),
        ]
        if client.only_v2:
            ways.append((v3.read_lac_request(1, 1), "protocol v3 after v2"))
        else:
            odd = Request(header=v3.header(Op.READ, 7))
            data = odd.SerializePartialToString()
            wrong = data.replace(b"\x10\x01", b"\x10\x63")
            ways += [
                (len(wrong).to_bytes(4, "big") + wrong, "operation 99"),
                (b"\x00\x00\x00\x06\x0a\x04\x08\x03\x10\x01", "a request without a number"),
                (b"\x00\x00\x00\x08\x0a\xff\xff\xff\xff\xff\xff\xff", "a message that is none"),
            ]
        return chance.choice(ways)

    async def _close_with(
        self, client: RawClient, drawn: list[Drawn], bad: bytes, what: str
    ) -> None:
        """Send good requests and then bad bytes, after which the connection ends."""
        for one in drawn:
            self._record(client, one.text)
        self._record(client, what)
        for waiting in self.known.open:
            if waiting.key[0] == client.number:
                soon = self.exact and waiting.timed and waiting.key[1] != "batch" and not self.cold
                polls = any(poll.expected is waiting for poll in self.known.polls)
                waiting.optional = not soon or polls
        self.known.polls = [p for p in self.known.polls if p.connection != client.number]
        data = b"".join(one.data for one in drawn) + bad
        cuts = [] if len(bad) < 8 else self._cuts(len(data))
        await client.write_pieces(data, cuts)
        await client.ended(what)
        await self._answered()
        await self._reconnect()

    async def _load(self) -> None:
        """Send requests to a bookie that loads its log."""
        await self._settle(1_000.0)
        await self._stop()
        self._begin_life()
        await self.box.load(self._early)
        await self._begun()

    async def _early(self) -> None:
        """Ask a bookie that is still loading, whose answers promise nothing."""
        client = await self._connect()
        self.requests.begin(client.now_s)
        drawn = self.requests.while_loading(client)
        self.known.open += drawn.expected
        await self._exchange([(client, [drawn])])

    async def _unsecured(self) -> None:
        """Be refused, as a client without TLS by a bookie that requires it."""
        await self._settle(NEAR_S)
        await self._reconnect()
        security = self.box.bookie.service.security
        security.clear_text_served = False
        client = await self._connect()
        try:
            self.requests.begin(client.now_s)
            drawn = self.requests.while_refused(client)
            self.known.open += drawn.expected
            await self._exchange([(client, [drawn])])
            self.walk.same("lost", client.lost, False)
            if self.chance.random() < 0.5:
                bad = v2.batch_read_request(1, 1, 1, 1, 1)
                await self._close_with(client, [], bad, "a batch read that is refused")
                self.known.counts.add("requests_refused")
        finally:
            security.clear_text_served = True
        if not client.lost:
            client.transport.abort()
            await client.ended("a close by the client")
            await asyncio.sleep(0.1)
        self.clients = [one for one in self.clients if not one.lost]
        await self._reconnect()

    # -- checks -------------------------------------------------------------------------------

    async def _check_all(self) -> None:
        """Read everything."""
        await self._reconnect()
        client = await self._connect()
        self.requests.begin(client.now_s)
        for ledger_id in [*sorted(self.known.ledgers), *ABSENT_IDS]:
            drawn = [self.requests.list_entries(client, ledger_id)]
            drawn.append(self.requests.read_lac(client, ledger_id))
            for one in drawn:
                self.known.open += one.expected
            await self._exchange([(client, drawn)])
        self._check_counters()

    def _check_counters(self) -> None:
        check_counters(self.walk, self.known, self.box, self.clients)


def _v2_frame(opcode: int, size: int, flags: int = 0) -> bytes:
    """Return a frame of protocol v2 whose payload has `size` bytes, all ids of which are 0."""
    word = v2.header_word(opcode, flags).to_bytes(4, "big")
    return size.to_bytes(4, "big") + word + bytes(max(0, size - 4))
