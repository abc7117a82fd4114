"""One request of each kind, with what the bookie must answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from quire.bookie.protocol import connection as connection_limits
from quire.bookie.protocol import v2 as v2_limits
from quire.bookie.protocol import v3 as v3_limits
from quire.codec.wire import v2, v3
from quire.codec.wire.availability import encode_availability
from quire.codec.wire.messages_pb2 import Request, Response
from quire.codec.wire.v2 import Code, Flag
from quire.codec.wire.v3 import Op, RequestedInfo, frame, response
from quire_simulator.actors.walkthroughs.wire.driven_bookie import DrivenBookie
from quire_simulator.actors.walkthroughs.wire.known_bookie import (
    ENTRY_BYTES_MIN,
    ENTRY_HEAD,
    HIGH_PRIORITY,
    KEY_BYTES,
    LAC_PACKET_BYTES,
    PACKET,
    RECOVERY,
    Answer,
    Expected,
    KnownBookie,
    Looked,
    Poll,
)
from quire_simulator.actors.walkthroughs.wire.raw_client import RawClient

SIZES = (24, 24, 32, 60, 100, 100, 700)
"""The choices for the bytes of an entry with its head."""
HUGE = 2**63 - 1
FIRST_IDS = (0, 1, 2, 5, 2**31, 2**40 + 5, HUGE)
ABSENT_IDS = (3, 4, 2**33, HUGE - 1)
"""Ledgers that no request creates."""
BAD_IDS = (-1, -5, -(2**63))
LONG_S = 5.0
"""A read that may wait so long is still waiting when the requests sent with it are answered."""
SLACK_S = 0.3
"""The most seconds between the moment when an answer is due and its arrival."""
AUTH_OFF = v2.auth_message("AuthDisabledPlugin", b"")
FREE_SEGMENTS = 4
"""The free bytes of a disk change by at most so many segments while a request is answered."""


@dataclass(slots=True)
class Drawn:
    """Drawn requests of one kind, and the answers to them."""

    data: bytes
    expected: list[Expected]
    text: str


class Requests:
    """The requests that the clients of one bookie draw."""

    def __init__(self, chance: random.Random, known: KnownBookie, box: DrivenBookie) -> None:
        self.chance = chance
        self.known = known
        self.box = box
        self.ids = list(FIRST_IDS)
        self._keys: dict[int, bytes] = {}
        self._txn = 0
        self._request_id = 0
        self._lacs: dict[int, int] = {}
        """The highest LAC that adds of the burst have named, by ledger. Those that follow name no
        lower one, because a bookie may look at the last one only."""
        self._short_polls = 0
        self._polls_most = 0
        """The most reads that may wait, if those of the burst come before all that ends a wait."""
        self._connections = 1
        self.sent_s = 0.0

    def begin(self, now_s: float, *, connections: int = 1) -> None:
        """Begin another burst of requests on so many connections."""
        self._lacs.clear()
        self._short_polls = 0
        self._polls_most = len(self.known.polls)
        self._connections = connections
        self.sent_s = now_s
        self.known.changed.clear()

    def key_of(self, ledger_id: int) -> bytes:
        if ledger_id not in self._keys:
            self._keys[ledger_id] = self.chance.randbytes(KEY_BYTES)
        return self._keys[ledger_id]

    def fresh_id(self) -> int:
        """Return a ledger id that was never used."""
        while True:
            ledger_id = self.chance.choice([100, 2**31, 2**45]) + self.chance.randrange(10_000)
            if ledger_id not in self._keys:
                return ledger_id

    # -- draws --------------------------------------------------------------------------------

    def draw(self, client: RawClient, ids: Sequence[int]) -> Drawn:
        """Draw a request of a connection that uses these ledgers now."""
        chance = self.chance
        way: Callable[[RawClient, int], Drawn | None]
        if client.only_v2 or (client.number % 2 == 0 and chance.random() < 0.6):
            ways: list[tuple[Callable[[RawClient, int], Drawn | None], int]] = [
                (self.adds_v2, 8), (self.read_one, 5), (self.read_batch, 4), (self.fence_v2, 1),
                (self.wait_batch, 1), (self.auth_v2, 1), (self.old_v2, 2),
            ]  # fmt: skip
        else:
            ways = [
                (self.adds_v3, 8), (self.read_v3, 4), (self.poll, 5), (self.write_lac, 3),
                (self.read_lac, 3), (self.list_entries, 2), (self.fence_v3, 1), (self.force, 1),
                (self.info, 1), (self.other_v3, 2),
            ]  # fmt: skip
        for _ in range(10):
            (way,) = chance.choices([one for one, _ in ways], [one for _, one in ways])
            drawn = way(client, chance.choice(ids))
            if drawn is not None:
                break
        else:
            return self.last(client)
        self.known.open += drawn.expected
        return drawn

    def last(self, client: RawClient) -> Drawn:
        """Return a request that is answered once all before it on its connection have arrived."""
        drawn = self.auth_v2(client, 0) if client.only_v2 else self.info(client, 0)
        self.known.open += drawn.expected
        return drawn

    def _reading(self, ledger_id: int) -> int:
        """Return this ledger, or sometimes one that is not there."""
        draw = self.chance.random()
        if draw < 0.06:
            return self.chance.choice(ABSENT_IDS)
        return self.chance.choice(BAD_IDS) if draw < 0.09 else ledger_id

    def _entry(self, ledger_id: int) -> int:
        """Return an entry id to read."""
        ledger = self.known.ledgers.get(ledger_id)
        draw = self.chance.random()
        if draw < 0.2:
            return -1
        if draw < 0.25:
            return self.chance.choice([-2, -100, HUGE, HUGE - 1, -(2**63)])
        last = 0 if ledger is None else ledger.last
        if ledger is not None and ledger.entries and draw < 0.8:
            return self.chance.choice(sorted(ledger.entries))
        return self.chance.choice([last, min(last + 1, HUGE), max(last - 1, 0), 0])

    def _key(self, ledger_id: int, odd: bool = False) -> bytes:
        """Return the key of the ledger, or sometimes a wrong one. With `odd`, of any length."""
        draw = self.chance.random()
        if draw < 0.06:
            return self.chance.randbytes(KEY_BYTES)
        if odd and draw < 0.1:
            return self.chance.choice([b"", self.key_of(ledger_id)[:-1], bytes(KEY_BYTES + 1)])
        return self.key_of(ledger_id)

    def _bodies(self, ledger_id: int) -> list[bytes]:
        """Return the entries of adds that are sent together."""
        chance = self.chance
        ledger = self.known.ledgers.get(ledger_id)
        last = -1 if ledger is None else ledger.last
        lac = -1 if ledger is None else ledger.lac
        low = self._lacs.get(ledger_id, -1)
        size = chance.choice(SIZES)
        way = chance.choice(["run", "run", "run", "gaps", "again", "descending", "one", "odd"])
        if self.known.failed:
            way, last = "one", min(last, HUGE - 1_000)  # It need not look at an odd id.
        if way == "odd" or last > HUGE - 200:
            if chance.random() < 0.3:
                return [bytes(chance.choice([16, 20, 23]))]  # too short for an entry
            entry = chance.choice([-1, -2, -4096, -(2**63), HUGE, HUGE - 1])
            return [self.body(ledger_id, entry, max(lac, low), 88)]
        count = 1 if way == "one" else chance.choice([1, 2, 3, 5, 12, 40])
        first = last + 1
        if way == "again":
            first = max(0, first - chance.randint(1, 6))
        if chance.random() < 0.02 and not self.known.failed:
            first, count = -2, 6  # Only those with negative ids are refused.
        numbers = list(range(first, first + count))
        if way == "gaps":
            numbers = [number + index for index, number in enumerate(numbers)]
        elif way == "descending":
            numbers.reverse()
        begin = max(low, chance.choice([lac, lac, last, first - 1, lac - 2, -1, last + 1]))
        step = chance.choice([0, 1])
        lacs = [begin + step * index for index in range(count)]
        self._lacs[ledger_id] = lacs[-1]
        if size + 64 > self.box.config.max_frame_bytes:
            size = 24
        return [self.body(ledger_id, *one, size) for one in zip(numbers, lacs, strict=True)]

    def body(self, ledger_id: int, entry_id: int, lac: int, size: int) -> bytes:
        # The LAC of an add may count although a failed disk refuses the entry.
        head = ENTRY_HEAD.pack(ledger_id, entry_id, -1 if self.known.failed else min(lac, HUGE))
        return head + self.chance.randbytes(size - len(head))

    # -- protocol v2 --------------------------------------------------------------------------

    def adds_v2(self, client: RawClient, ledger_id: int) -> Drawn | None:
        flags = self.chance.choice([0, 0, 0, 0, 2, 2, 4, 6, 0x100])
        key = self._key(ledger_id)
        bodies = self._bodies(ledger_id)
        client.only_v2 = True
        return Drawn(
            b"".join(v2.add_request(key, body, flags) for body in bodies),
            [self._added_v2(client, ledger_id, key, body, flags, 2) for body in bodies],
            f"v2 add {_span(bodies)} flags={flags}",
        )

    def _added_v2(
        self, client: RawClient, ledger_id: int, key: bytes, body: bytes, flags: int, version: int
    ) -> Expected:
        told = PACKET.unpack_from(body)
        short = len(body) < ENTRY_BYTES_MIN
        code = Code.BAD_REQUEST if short else self.known.add(flags & 6, key, body)
        what = f"v2 add {told[0]}:{told[1]}"
        expected = self._expect(
            client, what, ("add", *told), v2.add_response(code, told[0], told[1], version)
        )
        if not code:
            expected.order = client.number, 2, ledger_id
        return expected

    def added_v2(self, client: RawClient, ledger_id: int, key: bytes, body: bytes) -> Expected:
        """Return the answer to a plain add."""
        return self._added_v2(client, ledger_id, key, body, 0, 2)

    def failing(self, client: RawClient, ledger_id: int) -> Drawn:
        """Return an add to a new ledger that the disk refuses."""
        key, body = self.key_of(ledger_id), self.body(ledger_id, 0, -1, 100)
        self.known.add(0, key, body)
        client.only_v2 = True
        answer = v2.add_response(Code.IO_ERROR, ledger_id, 0)
        what = f"v2 failing add {ledger_id}:0"
        expected = self._expect(client, what, ("add", ledger_id, 0), answer)
        # The sync of another file may fail before the sync of the log.
        expected.allowed[v2.add_response(Code.OK, ledger_id, 0)] = {None}
        return Drawn(v2.add_request(key, body), [expected], what)

    def single(self, client: RawClient, ledger_id: int, entry: int) -> Drawn:
        """Return a read of one entry."""
        return self._read_one(client, ledger_id, entry, 2, 0)

    def batch(self, client: RawClient, ledger_id: int, first: int, count: int, size: int) -> Drawn:
        """Return a read of several entries."""
        self._request_id += 1
        number, real = self._request_id, min(size, self.box.config.max_batch_read_bytes)
        data = v2.batch_read_request(ledger_id, first, number, count, size)
        again = partial(self.known.read_batch, ledger_id, first, number, count, real)
        what = f"v2 batch {ledger_id}:{first} count={count} size={size}"
        client.only_v2 = True
        expected = self._late(client, what, ("batch", number), again, ledger_id)
        expected.pieced = self.known.pieces(ledger_id, first, number, count, real)
        return Drawn(data, [expected], what)

    def waiting(self, client: RawClient, ledger_id: int, previous: int) -> Drawn:
        """Return a read that waits for a minute until the LAC is above `previous`."""
        txn = self.txn()
        data = v3.long_poll_request(txn, ledger_id, previous, 60_000)
        again = partial(self.known.piggyback, txn, ledger_id, previous)
        what = f"v3 poll {ledger_id} after {previous} txn={txn}"
        name = (int(Op.READ), txn)
        expected = self._late(client, what, name, again, ledger_id, timed=False)
        poll = Poll(client.number, ledger_id, previous, expected, self.sent_s + 60.0, v3=True)
        self.known.polls.append(poll)
        return Drawn(data, [expected], what)

    def adds_in_turn(self, client: RawClient, ids: Sequence[int]) -> Drawn:
        """Draw adds of several ledgers in turn, of one size and with one key.

        A wrong key is that of another ledger.
        """
        chance, known = self.chance, self.known
        key = self.key_of(ids[0])
        for ledger_id in ids:
            if ledger_id not in known.ledgers and ledger_id not in self._keys:
                self._keys[ledger_id] = key
        at: dict[int, int] = {}
        frames, expected = [], []
        flags = chance.choice([0, 0, 0, 2, 4])
        size = chance.choice([24, 40, 100])
        for number in range(chance.randint(4, 40)):
            ledger_id = ids[number % len(ids)]
            ledger = known.ledgers.get(ledger_id)
            entry = at.get(ledger_id, -1 if ledger is None else ledger.last) + 1
            if entry > HUGE - 100:
                continue
            at[ledger_id] = entry
            lac = max(self._lacs.get(ledger_id, -1), entry - 1)
            self._lacs[ledger_id] = lac
            body = self.body(ledger_id, entry, lac, size)
            frames.append(v2.add_request(key, body, flags))
            expected.append(self._added_v2(client, ledger_id, key, body, flags, 2))
        client.only_v2 = True
        known.open += expected
        return Drawn(b"".join(frames), expected, f"v2 adds in turn {list(ids)} flags={flags}")

    def read_one(self, client: RawClient, ledger_id: int) -> Drawn:
        ledger_id = self._reading(ledger_id)
        entry = self._entry(ledger_id)
        return self._read_one(client, ledger_id, entry, 2, self.chance.choice([0, 0, 4, 0x200]))

    def _read_one(
        self, client: RawClient, ledger_id: int, entry: int, version: int, flags: int
    ) -> Drawn:
        data = _versioned(v2.read_request(ledger_id, entry, flags), version, v2.Opcode.READ, flags)
        if self.chance.random() < 0.2:
            data = _longer(data)
        again = partial(self.known.read_v2, version, ledger_id, entry)
        what = f"v{version} read {ledger_id}:{entry}"
        client.only_v2 = True
        expected = self._late(client, what, ("read", ledger_id, entry), again, ledger_id)
        return Drawn(data, [expected], what)

    def fence_v2(self, client: RawClient, ledger_id: int) -> Drawn | None:
        ledger_id = self.chance.choice([ledger_id, self._reading(ledger_id)])
        if ledger_id in ABSENT_IDS:
            ledger_id = -1
        key, entry = self._key(ledger_id), self._entry(ledger_id)
        client.only_v2 = True
        code = self.known.fence(ledger_id, key)
        batch = self.chance.random() < 0.3
        self._request_id += 1
        if batch:
            number = self._request_id
            size = min(4_000, self.box.config.max_batch_read_bytes)
            data = v2.batch_read_request(ledger_id, entry, number, 3, 4_000, Flag.DO_FENCING, key)
            again = partial(self.known.read_batch, ledger_id, entry, number, 3, size)
            name: tuple[object, ...] = "batch", number
            refusal = v2.batch_read_response(code, ledger_id, entry, number)
        else:
            data = v2.read_request(ledger_id, entry, self.chance.choice([1, 5]), key)
            again = partial(self.known.read_v2, 2, ledger_id, entry)
            name = "read", ledger_id, entry
            refusal = v2.read_response(code, ledger_id, entry)
        what = f"v2 fence {ledger_id}:{entry}"
        if code:
            return Drawn(data, [self._expect(client, what, name, refusal)], what)
        return Drawn(data, [self._late(client, what, name, again, ledger_id, timed=False)], what)

    def _batch(self, ledger_id: int) -> tuple[int, int, int, int]:
        """Return the first entry, the count and the size of a batch read, and the real size."""
        chance = self.chance
        first = self._entry(ledger_id)
        count = chance.choice([0, -1, 1, 2, 3, 7, 1_000, 2**31 - 1])
        size = chance.choice([0, -5, 1, 36, 64, 137, 138, 400, 3_000, 60_000, 2**62])
        ledger = self.known.ledgers.get(ledger_id)
        if ledger is not None and first in ledger.entries and chance.random() < 0.4:
            some, at = list[int](), first
            while at in ledger.entries and len(some) < 4:
                some.append(len(ledger.entries[at]) + 4)
                at += 1
            size = 36 + sum(some) + chance.choice([0, -1])  # exactly so many, or one byte too few
        return first, count, size, min(size, self.box.config.max_batch_read_bytes)

    def read_batch(self, client: RawClient, ledger_id: int) -> Drawn:
        ledger_id = self._reading(ledger_id)
        first, count, size, _ = self._batch(ledger_id)
        return self.batch(client, ledger_id, first, count, size)

    def wait_batch(self, client: RawClient, ledger_id: int) -> Drawn | None:
        if self._may_wait(client, 0.0) is None:
            return None
        first, count, size, real = self._batch(ledger_id)
        ledger = self.known.ledgers.get(ledger_id)
        waits = ledger is not None and not ledger.fenced
        if waits and self._may_wait(client, 0.0):
            self._short_polls += 1
            self._polls_most += 1
        self._request_id += 1
        number = self._request_id
        data = v2.batch_read_request(ledger_id, first, number, count, size, Flag.WAIT)
        again = partial(self.known.read_batch, ledger_id, first, number, count, real)
        what = f"v2 waiting batch {ledger_id}:{first} count={count} size={size}"
        client.only_v2 = True
        expected = self._late(client, what, ("batch", number), again, ledger_id, timed=False)
        expected.pieced = self.known.pieces(ledger_id, first, number, count, real)
        expected.latest_s = self.sent_s + v2_limits.BATCH_WAIT_S + 30
        return Drawn(data, [expected], what)

    def auth_v2(self, client: RawClient, ledger_id: int) -> Drawn:
        version = self.chance.choice([1, 2])
        token = self.chance.choice([AUTH_OFF, b"", b"\xff\xff"])
        client.only_v2 = True
        data = v2.auth_frame(AUTH_OFF)
        expected = self._expect(client, "v2 auth", ("auth",), data)
        return Drawn(v2.auth_frame(token, version), [expected], "v2 auth")

    def old_v2(self, client: RawClient, ledger_id: int) -> Drawn | None:
        """Draw a request of a version before 2, or after it."""
        version = self.chance.choice([0, 1, 3, 9, 255])
        client.only_v2 = True
        if self.chance.random() < 0.5:
            if version <= 2:
                flags = 1 if version == 1 and self.chance.random() < 0.3 else 0
                entry = self._entry(ledger_id)
                if flags:
                    data = _versioned(v2.read_request(ledger_id, entry), 1, v2.Opcode.READ, 1)
                    code = Code.IO_ERROR if self.known.failed else Code.UNAUTHORIZED
                    answer = v2.read_response(code, ledger_id, entry, version=1)
                    key = "read", ledger_id, entry
                    what = f"v1 fence {ledger_id}:{entry}"
                    return Drawn(data, [self._expect(client, what, key, answer)], what)
                return self._read_one(client, ledger_id, entry, version, 0)
            entry = self._entry(ledger_id)
            self._request_id += 1
            number = self._request_id
            what = f"v{version} read {ledger_id}:{entry}"
            if self.chance.random() < 0.3:
                data = v2.batch_read_request(ledger_id, entry, number, 1, 100)
                data = _versioned(data, version, v2.Opcode.BATCH_READ, 0)
                answer = v2.batch_read_response(Code.BAD_VERSION, ledger_id, entry, number)
                return Drawn(data, [self._expect(client, what, ("batch", number), answer)], what)
            data = _versioned(v2.read_request(ledger_id, entry), version, v2.Opcode.READ, 0)
            answer = v2.read_response(Code.BAD_VERSION, ledger_id, entry, version=version)
            key = "read", ledger_id, entry
            return Drawn(data, [self._expect(client, what, key, answer)], what)
        body = self._bodies(ledger_id)[0]
        flags = 2 if version == 1 and self.chance.random() < 0.5 else 0
        key_bytes = self._key(ledger_id)
        data = _versioned(v2.add_request(key_bytes, body), version, v2.Opcode.ADD, flags)
        told = PACKET.unpack_from(body)
        what = f"v{version} add {told[0]}:{told[1]}"
        if version > 2:
            answer = v2.add_response(Code.BAD_VERSION, told[0], told[1], version)
            return Drawn(data, [self._expect(client, what, ("add", *told), answer)], what)
        expected = self._added_v2(client, ledger_id, key_bytes, body, flags, version)
        expected.order = None
        return Drawn(data, [expected], what)

    def add_large(self, client: RawClient, ledger_id: int, frame_bytes: int) -> Drawn:
        """Draw an add whose request is as large as the bookie permits."""
        key = self.key_of(ledger_id)
        ledger = self.known.ledgers.get(ledger_id)
        entry = min(0 if ledger is None else ledger.last + 1, HUGE)
        lac = -1 if ledger is None else ledger.lac
        if client.only_v2 or client.number % 2 == 0:
            client.only_v2 = True
            body = self.body(ledger_id, entry, lac, frame_bytes - v2.FRAME_HEADER_BYTES)
            expected = self._added_v2(client, ledger_id, key, body, 0, 2)
            return Drawn(v2.add_request(key, body), [expected], f"v2 large add {ledger_id}:{entry}")
        txn, size = self.txn(), frame_bytes
        while True:
            body = self.body(ledger_id, entry, lac, size)
            data = v3.add_request(txn, key, body, ledger_id, entry)
            if len(data) <= frame_bytes:
                break
            size -= len(data) - frame_bytes
        code = self.known.add(0, key, body)
        what = f"v3 large add {ledger_id}:{entry} txn={txn}"
        answer = _added(txn, code, ledger_id, entry)
        return Drawn(data, [self._expect(client, what, (Op.ADD, txn), answer)], what)

    # -- a bookie that serves nobody, or not everything ------------------------------------------

    def while_refused(self, client: RawClient) -> Drawn:
        """Draw requests of a client that must use TLS, and does not."""
        chance, frames, expected = self.chance, list[bytes](), list[Expected]()

        def one(data: bytes, what: str, name: tuple[object, ...], answer: bytes) -> None:
            frames.append(data)
            expected.append(self._expect(client, f"refused {what}", name, answer))

        def refused() -> None:
            self.known.counts.add("requests_refused")

        for _ in range(chance.randint(0, 6)):
            txn, kind = self.txn(), chance.randrange(5)
            if kind == 0:
                answer = response(Op.AUTH, txn, Code.OK)
                answer.authResponse.authPluginName = "AuthDisabledPlugin"
                answer.authResponse.payload = b""
                data = v3.auth_request(txn, "sasl", b"x")
                one(data, "v3 auth", (int(Op.AUTH), txn), frame(answer))
                continue
            if kind == 1:
                answer = response(Op.START_TLS, txn, Code.BAD_REQUEST)
                one(v3.start_tls_request(txn), "TLS", (int(Op.START_TLS), txn), frame(answer))
                continue
            op = chance.choice([one for one in Op if one != Op.AUTH])
            refused()
            answer = response(op, txn, Code.UNAUTHORIZED)
            data = frame(Request(header=v3.header(op, txn)))
            one(data, f"v3 {op.name}", (int(op), txn), frame(answer))
        for number in range(chance.randint(0, 6)):
            client.only_v2 = True
            version, kind = chance.choice([0, 1, 2, 2, 7]), chance.randrange(3)
            if kind == 0:
                one(v2.auth_frame(AUTH_OFF), "v2 auth", ("auth",), v2.auth_frame(AUTH_OFF))
                continue
            refused()
            ledger_id = chance.choice(self.ids)
            if kind == 1:
                data = _versioned(v2.read_request(ledger_id, number), version, v2.Opcode.READ, 0)
                told = v2.read_response(Code.UNAUTHORIZED, ledger_id, number, version=version)
                one(data, "v2 read", ("read", ledger_id, number), told)
            else:
                body = self.body(ledger_id, number, -1, chance.choice([24, 16 + 24, 100]))
                data = v2.add_request(self.key_of(ledger_id), body)
                data = _versioned(data, version, v2.Opcode.ADD, 0)
                told = v2.add_response(Code.UNAUTHORIZED, ledger_id, number, version)
                one(data, "v2 add", ("add", ledger_id, number), told)
        return Drawn(b"".join(frames), expected, f"{len(frames)} refused requests")

    def while_loading(self, client: RawClient) -> Drawn:
        """Draw requests to a bookie that loads its log, and may have loaded it meanwhile.

        None of them changes anything in either case.
        """
        chance, known = self.chance, self.known
        frames, expected = list[bytes](), list[Expected]()

        def one(data: bytes, what: str, name: tuple[object, ...], answers: Sequence[bytes]) -> None:
            frames.append(data)
            early = self._expect(client, f"early {what}", name, answers[0])
            for more in answers[1:]:
                early.allowed[more] = {None}
            expected.append(early)

        busy = Code.TOO_MANY_REQUESTS
        absent = chance.choice(ABSENT_IDS)
        for kind in chance.choices(range(7), k=chance.randint(1, 10)):
            txn = self.txn()
            if kind == 0:
                both = [_added(txn, code, -1, 5) for code in (Code.READ_ONLY, Code.BAD_REQUEST)]
                body = self.body(-1, 5, -1, 40)
                data = v3.add_request(txn, bytes(KEY_BYTES), body, -1, 5, recovery=kind == 1)
                one(data, "add", (Op.ADD, txn), both)
                known.counts.add("adds_refused", 0, 1)
            elif kind == 1:
                both = [
                    known.answer_read(txn, code, -1, 5, None) for code in (busy, Code.BAD_REQUEST)
                ]
                data = v3.read_request(txn, -1, 5, fence_with=bytes(KEY_BYTES))
                one(data, "fence", (Op.READ, txn), both)
            elif kind == 2:
                answers = []
                for code in (Code.READ_ONLY, Code.BAD_REQUEST):
                    answer = response(Op.WRITE_LAC, txn, code)
                    answer.writeLacResponse.status = answer.status
                    answer.writeLacResponse.ledgerId = -1
                    answers.append(frame(answer))
                data = v3.write_lac_request(txn, -1, 1, bytes(KEY_BYTES), PACKET.pack(-1, 1))
                one(data, "LAC", (Op.WRITE_LAC, txn), answers)
            elif kind == 3:
                answers = []
                for code in (busy, Code.NO_LEDGER):
                    answer = response(Op.LIST_ENTRIES, txn, code)
                    own = answer.getListOfEntriesOfLedgerResponse
                    own.status, own.ledgerId = answer.status, absent
                    answers.append(frame(answer))
                data = v3.list_entries_request(txn, absent)
                one(data, "list", (Op.LIST_ENTRIES, txn), answers)
            elif kind == 4:
                answers = []
                for code in (busy, Code.NO_ENTRY):
                    answer = response(Op.READ_LAC, txn, code)
                    answer.readLacResponse.status = answer.status
                    answer.readLacResponse.ledgerId = absent
                    answers.append(frame(answer))
                one(v3.read_lac_request(txn, absent), "read LAC", (Op.READ_LAC, txn), answers)
                self._count_early()
            elif kind == 5:
                both = [
                    known.answer_read(txn, code, absent, -1, None)
                    for code in (busy, Code.NO_LEDGER)
                ]
                one(v3.long_poll_request(txn, absent, 3, 500), "poll", (Op.READ, txn), both)
            else:
                answers = []
                for code in (Code.IO_ERROR, Code.OK):
                    answer = response(Op.FORCE, txn, code)
                    answer.forceLedgerResponse.status = answer.status
                    answer.forceLedgerResponse.ledgerId = absent
                    answers.append(frame(answer))
                one(v3.force_request(txn, absent), "force", (Op.FORCE, txn), answers)
                known.counts.add("forces")
        for _ in range(chance.randint(1, 10)):
            client.only_v2 = True
            ledger_id = chance.choice([*self.ids, absent])
            entry = self._entry(ledger_id)
            code, body = known.find(ledger_id, entry)
            both = [v2.read_response(code, ledger_id, entry, body)]
            if code != Code.BAD_REQUEST:
                both.append(v2.read_response(busy, ledger_id, entry))
            data = v2.read_request(ledger_id, entry)
            one(data, f"read {ledger_id}:{entry}", ("read", ledger_id, entry), both)
            self._count_early(len(body))
        return Drawn(b"".join(frames), expected, f"{len(frames)} early requests")

    def _count_early(self, size: int = 0) -> None:
        for name, most in (("reads", 1), ("reads_missing", 1), ("reads_failed", 1)):
            self.known.counts.add(name, 0, most)
        self.known.counts.add("read_bytes", 0, size)

    # -- protocol v3 --------------------------------------------------------------------------

    def txn(self) -> int:
        self._txn += self.chance.choice([1, 1, 1, 200])
        return self._txn

    def adds_v3(self, client: RawClient, ledger_id: int) -> Drawn | None:
        chance = self.chance
        recovery, deferred = chance.random() < 0.3, chance.random() < 0.3
        priority = chance.choice([0, 0, 0, 1, 100])
        flags = RECOVERY * recovery | HIGH_PRIORITY * bool(priority)
        key, bodies = self._key(ledger_id, odd=True), self._bodies(ledger_id)
        if chance.random() < 0.05:
            bodies = [chance.choice([b"", bytes(23), bytes(8)])]
        lies = chance.random() < 0.1  # The ids of the message are only repeated.
        frames, expected = [], []
        for body in bodies:
            told = PACKET.unpack_from(body) if len(body) >= PACKET.size else (0, 0)
            shown = (1_000, 55) if lies else told
            txn = self.txn()
            request = Request(header=v3.header(Op.ADD, txn, priority))
            add = request.addRequest
            add.ledgerId, add.entryId = shown
            add.masterKey, add.body = key, body
            if deferred:
                add.writeFlags = chance.choice([1, 3])
            elif chance.random() < 0.05:
                add.writeFlags = 2
            if recovery:
                add.flag = add.RECOVERY_ADD
            frames.append(frame(request))
            if len(body) < ENTRY_BYTES_MIN:
                code = Code.BAD_REQUEST
            elif len(key) != KEY_BYTES:
                code = Code.UNAUTHORIZED
            else:
                code = self.known.add(flags, key, body)
            what = f"v3 add {told[0]}:{told[1]} txn={txn}"
            one = self._expect(client, what, (Op.ADD, txn), _added(txn, code, *shown))
            if not code and not deferred:
                one.order = client.number, 3, ledger_id
            expected.append(one)
        text = f"v3 add {_span(bodies)} flags={flags} deferred={deferred}"
        return Drawn(b"".join(frames), expected, text)

    def read_v3(self, client: RawClient, ledger_id: int) -> Drawn:
        chance = self.chance
        ledger_id = self._reading(ledger_id)
        entry, txn = self._entry(ledger_id), self.txn()
        request = _reading(txn, ledger_id, entry)
        if chance.random() < 0.1:
            request.readRequest.timeOut = 3_000  # It means nothing without a previous LAC.
        if chance.random() < 0.1:
            request.readRequest.flag = request.readRequest.ENTRY_PIGGYBACK
        if chance.random() < 0.1:
            request.readRequest.masterKey = b"any"
        if chance.random() < 0.1:
            request.header.priority = 100
        again = partial(self.known.read_v3, txn, ledger_id, entry)
        what = f"v3 read {ledger_id}:{entry} txn={txn}"
        expected = self._late(client, what, (Op.READ, txn), again, ledger_id)
        return Drawn(frame(request), [expected], what)

    def fence_v3(self, client: RawClient, ledger_id: int) -> Drawn | None:
        ledger_id = self.chance.choice([ledger_id, ledger_id, self.chance.choice(BAD_IDS)])
        key, entry, txn = self._key(ledger_id, odd=True), self._entry(ledger_id), self.txn()
        request = _reading(txn, ledger_id, entry)
        request.readRequest.flag = request.readRequest.FENCE_LEDGER
        if key or self.chance.random() < 0.5:
            request.readRequest.masterKey = key
        if self.chance.random() < 0.2:
            request.readRequest.previousLAC = 3  # A read that fences does not wait.
        code = self.known.fence(ledger_id, key)
        what = f"v3 fence {ledger_id}:{entry} txn={txn}"
        if code:
            refusal = self.known.answer_read(txn, code, ledger_id, entry, None)
            expected = self._expect(client, what, (Op.READ, txn), refusal)
        else:
            again = partial(self.known.read_v3, txn, ledger_id, entry, lac=False)
            expected = self._late(client, what, (Op.READ, txn), again, ledger_id, timed=False)
        return Drawn(frame(request), [expected], what)

    def _may_wait(self, client: RawClient, timeout_s: float) -> bool | None:
        """Return whether one more read may wait, or None if that depends on what ends first."""
        polls = self.known.polls
        own = [one for one in polls if one.connection == client.number]
        most, mine = self.box.config.max_long_polls, connection_limits.MAX_POLLS
        if self._connections > 1:
            # Nobody knows in which order the connections arrive.
            return True if self._polls_most < min(most, mine) else None
        if len(polls) >= most or len(own) >= mine:
            return False
        short = self._short_polls
        # A connection also counts those whose wait has just ended, until they are answered.
        return True if len(polls) + short < most and self._polls_most < mine else None

    def poll(self, client: RawClient, ledger_id: int) -> Drawn | None:
        """Draw a read that waits until the LAC moves."""
        chance, known = self.chance, self.known
        ledger_id = self._reading(ledger_id) if chance.random() < 0.2 else ledger_id
        ledger = known.ledgers.get(ledger_id)
        lac = known.lac_of(ledger_id)
        previous = chance.choice([lac, lac, lac, lac - 1, lac + 1, -1, -2, -9, HUGE])
        previous = max(min(previous, HUGE), -(2**62))
        timeout_ms = chance.choice([None, 0, -5, 1, 40, 300, 300, 7_000, 7_000, 20_000, 2**62])
        piggyback = chance.random() < 0.7
        entry = -1 if piggyback and chance.random() < 0.9 else self._entry(ledger_id)
        timeout_s = min((timeout_ms or 0) / 1_000, self.box.config.max_long_poll_s)
        txn = self.txn()
        request = _reading(txn, ledger_id, entry)
        read = request.readRequest
        read.previousLAC = previous
        if timeout_ms is not None:
            read.timeOut = timeout_ms
        if piggyback:
            read.flag = read.ENTRY_PIGGYBACK
        what = f"v3 poll {ledger_id}:{entry} after {previous} for {timeout_ms} ms txn={txn}"
        if piggyback:
            what += " with entry"
        name = (Op.READ, txn)
        if piggyback and entry != -1:
            data = known.answer_read(txn, Code.BAD_REQUEST, ledger_id, entry, None)
            return Drawn(frame(request), [self._expect(client, what, name, data)], what)
        shown = -1 if piggyback else entry
        if ledger is None:
            code = known.absent(Code.NO_LEDGER)
            data = known.answer_read(txn, code, ledger_id, shown, None)
            return Drawn(frame(request), [self._expect(client, what, name, data)], what)
        again: Callable[[Looked], Iterable[Answer]]
        if piggyback:
            again = partial(known.piggyback, txn, ledger_id, previous)
        else:
            again = partial(known.read_v3, txn, ledger_id, entry, poll=True)
        if ledger.lac > previous or timeout_s <= 0 or ledger.fenced:
            expected = self._late(client, what, name, again, ledger_id)
            return Drawn(frame(request), [expected], what)
        may_wait = self._may_wait(client, timeout_s)
        if may_wait is None:
            return None
        if not may_wait:
            data = known.answer_read(txn, Code.TOO_MANY_REQUESTS, ledger_id, shown, None)
            return Drawn(frame(request), [self._expect(client, what, name, data)], what)
        known.counts.add("long_polls")
        self._polls_most += 1
        expected = self._late(client, what, name, again, ledger_id, timed=False)
        expected.earliest_s = self.sent_s + timeout_s
        expected.latest_s = self.sent_s + timeout_s + SLACK_S
        if timeout_s >= LONG_S:
            deadline_s = self.sent_s + timeout_s
            known.polls.append(
                Poll(client.number, ledger_id, previous, expected, deadline_s, v3=True)
            )
        else:
            self._short_polls += 1
            expected.moves = True
            expected.latest_s += 2.0
        return Drawn(frame(request), [expected], what)

    def write_lac(self, client: RawClient, ledger_id: int) -> Drawn | None:
        chance, known = self.chance, self.known
        ledger = known.ledgers.get(ledger_id)
        lac = -1 if ledger is None else chance.choice([ledger.lac, ledger.last, ledger.lac + 1, -1])
        lac = max(-1, min(lac, HUGE - 300))
        size = chance.choice([16, 20, 24, 36, 36, 1024, 1025, 15, 0])
        body = (PACKET.pack(ledger_id, lac) + chance.randbytes(1024))[:size]
        if size > 1024:
            body += bytes(size - len(body))
        key, txn = self._key(ledger_id, odd=True), self.txn()
        shown = chance.choice([ledger_id, ledger_id, 77])
        request = Request(header=v3.header(Op.WRITE_LAC, txn, chance.choice([0, 0, 100])))
        write = request.writeLacRequest
        write.ledgerId, write.lac, write.masterKey, write.body = shown, 9, key, body
        least, most = LAC_PACKET_BYTES
        code = Code.BAD_REQUEST
        if least <= len(body) <= most:
            code = known.write_lac(ledger_id, lac, key, body)
        answer = response(Op.WRITE_LAC, txn, code)
        answer.writeLacResponse.status = answer.status
        answer.writeLacResponse.ledgerId = shown
        what = f"v3 write LAC {ledger_id}:{lac} size={size} txn={txn}"
        return Drawn(
            frame(request), [self._expect(client, what, (Op.WRITE_LAC, txn), frame(answer))], what
        )

    def read_lac(self, client: RawClient, ledger_id: int) -> Drawn:
        ledger_id, txn = self._reading(ledger_id), self.txn()
        again = partial(self.known.read_lac, txn, ledger_id)
        what = f"v3 read LAC {ledger_id} txn={txn}"
        expected = self._late(client, what, (Op.READ_LAC, txn), again, ledger_id)
        return Drawn(v3.read_lac_request(txn, ledger_id), [expected], what)

    def list_entries(self, client: RawClient, ledger_id: int) -> Drawn:
        ledger_id, txn = self._reading(ledger_id), self.txn()
        again = partial(self._listed, txn, ledger_id)
        what = f"v3 list {ledger_id} txn={txn}"
        expected = self._late(client, what, (Op.LIST_ENTRIES, txn), again, ledger_id, timed=False)
        return Drawn(v3.list_entries_request(txn, ledger_id), [expected], what)

    def _listed(self, txn: int, ledger_id: int, _: Looked) -> list[Answer]:
        ledger = self.known.ledgers.get(ledger_id)
        listing, most = b"", v3_limits.MAX_LIST_BYTES
        if ledger is not None:
            listing = encode_availability(ledger.ranges, max_bytes=most)
        code = self.known.absent(Code.NO_LEDGER) if ledger is None else Code.OK
        if len(listing) > most:
            code = Code.IO_ERROR
        answer = response(Op.LIST_ENTRIES, txn, code)
        own = answer.getListOfEntriesOfLedgerResponse
        own.status, own.ledgerId = answer.status, ledger_id
        if not code:
            own.availabilityOfEntriesOfLedger = listing
        return [(frame(answer), None)]

    def force(self, client: RawClient, ledger_id: int) -> Drawn:
        ledger_id, txn = self._reading(ledger_id), self.txn()
        self.known.counts.add("forces")
        code = Code.IO_ERROR if self.known.failed else Code.OK
        answer = response(Op.FORCE, txn, code)
        answer.forceLedgerResponse.status = answer.status
        answer.forceLedgerResponse.ledgerId = ledger_id
        what = f"v3 force {ledger_id} txn={txn}"
        expected = self._expect(client, what, (Op.FORCE, txn), frame(answer))
        return Drawn(v3.force_request(txn, ledger_id), [expected], what)

    def info(self, client: RawClient, ledger_id: int) -> Drawn:
        txn, requested = self.txn(), self.chance.choice([0, 1, 2, 3, 4, 7, -1])
        disk = self.box.disk
        margin = FREE_SEGMENTS * self.box.config.segment_bytes
        answer = response(Op.BOOKIE_INFO, txn, Code.OK)
        own = answer.getBookieInfoResponse
        own.status = answer.status
        if requested & RequestedInfo.TOTAL_CAPACITY:
            own.totalDiskCapacity = disk.total_bytes()
        what = f"v3 info {requested} txn={txn}"
        expected = self._expect(client, what, (Op.BOOKIE_INFO, txn), frame(answer))
        if requested & RequestedInfo.FREE_SPACE:
            free = disk.free_bytes()
            expected.free_bytes = free - margin, free + margin
        return Drawn(v3.bookie_info_request(txn, requested), [expected], what)

    def other_v3(self, client: RawClient, ledger_id: int) -> Drawn | None:
        """Draw a request that needs no ledger, has no part, or has another version."""
        chance = self.chance
        txn, kind = self.txn(), chance.randrange(5)
        if kind == 0:
            data = v3.auth_request(txn, chance.choice(["sasl", "AuthDisabledPlugin"]), b"x")
            answer = response(Op.AUTH, txn, Code.OK)
            answer.authResponse.authPluginName = "AuthDisabledPlugin"
            answer.authResponse.payload = b""
            op = int(Op.AUTH)
        elif kind == 1:
            data, op = v3.start_tls_request(txn), int(Op.START_TLS)
            answer = response(op, txn, Code.BAD_REQUEST)
        elif kind == 2:
            op = chance.choice([3, 4, 12])
            request = Request(header=v3.header(Op.READ, txn))
            request.header.operation = op  # type: ignore[assignment]
            data, answer = frame(request), response(op, txn, Code.BAD_REQUEST)
        elif kind == 3:
            op = int(chance.choice([Op.ADD, Op.WRITE_LAC]))
            data = frame(Request(header=v3.header(Op(op), txn)))
            answer = response(op, txn, Code.BAD_REQUEST)
            if op == Op.ADD:
                add = answer.addResponse
                add.status, add.ledgerId, add.entryId = answer.status, 0, 0
            else:
                answer.writeLacResponse.status = answer.status
                answer.writeLacResponse.ledgerId = 0
        else:
            data, op, answer = self._wrong_version(txn, ledger_id)
        what = f"v3 operation {op} kind {kind} txn={txn}"
        return Drawn(data, [self._expect(client, what, (op, txn), frame(answer))], what)

    def _wrong_version(self, txn: int, ledger_id: int) -> tuple[bytes, int, Response]:
        op = self.chance.choice([one for one in Op if one not in (Op.AUTH, Op.START_TLS)])
        request = Request(header=v3.header(op, txn))
        request.header.version = self.chance.choice([1, 2])  # type: ignore[assignment]
        answer = response(op, txn, Code.BAD_VERSION)
        parts: dict[Op, tuple[str, str]] = {
            Op.ADD: ("addRequest", "addResponse"),
            Op.READ: ("readRequest", "readResponse"),
            Op.WRITE_LAC: ("writeLacRequest", "writeLacResponse"),
            Op.READ_LAC: ("readLacRequest", "readLacResponse"),
            Op.FORCE: ("forceLedgerRequest", "forceLedgerResponse"),
            Op.LIST_ENTRIES: (
                "getListOfEntriesOfLedgerRequest", "getListOfEntriesOfLedgerResponse"
            ),
        }  # fmt: skip
        if op == Op.BOOKIE_INFO:
            answer.getBookieInfoResponse.status = answer.status
            return frame(request), int(op), answer
        asked, told = getattr(request, parts[op][0]), getattr(answer, parts[op][1])
        told.status = answer.status
        asked.ledgerId = told.ledgerId = ledger_id
        if op in (Op.ADD, Op.READ):
            asked.entryId = told.entryId = 8
        if op in (Op.ADD, Op.WRITE_LAC):
            asked.masterKey = asked.body = bytes(30)
        if op == Op.WRITE_LAC:
            asked.lac = 1
        return frame(request), int(op), answer

    # -- answers ------------------------------------------------------------------------------

    def _expect(
        self, client: RawClient, what: str, name: tuple[object, ...], data: bytes
    ) -> Expected:
        """Return an answer that does not depend on the state after the request."""
        return Expected(what, (client.number, *name), {data: {None}})

    def _late(
        self,
        client: RawClient,
        what: str,
        name: tuple[object, ...],
        again: Callable[[Looked], Iterable[Answer]],
        ledger_id: int,
        *,
        timed: bool = True,
    ) -> Expected:
        """Return the answer of a read, which may also show the state after later requests."""
        expected = Expected(
            what, (client.number, *name), again=again, ledger_id=ledger_id, timed=timed
        )
        expected.allow()
        return expected


def key_of(number: int, data: bytes) -> tuple[object, ...]:
    """Return the part of an answer by which its request is found."""
    if data[4] == v3.FIRST_BYTE:
        answer = v3.parse_response(data[4:])
        return number, int(answer.header.operation), answer.header.txnId
    _, opcode, _ = v2.split_word(int.from_bytes(data[4:8], "big"))
    if opcode == v2.Opcode.AUTH:
        return number, "auth"
    _, _, _, ledger_id, entry_id = v2.RESPONSE.unpack_from(data)
    if opcode == v2.Opcode.BATCH_READ:
        return number, "batch", v2.BATCH_RESPONSE.unpack_from(data)[5]
    return number, "add" if opcode == v2.Opcode.ADD else "read", ledger_id, entry_id


def _added(txn: int, code: int, ledger_id: int, entry_id: int) -> bytes:
    answer = response(Op.ADD, txn, code)
    add = answer.addResponse
    add.status, add.ledgerId, add.entryId = answer.status, ledger_id, entry_id
    return frame(answer)


def _reading(txn: int, ledger_id: int, entry_id: int) -> Request:
    request = Request(header=v3.header(Op.READ, txn))
    request.readRequest.ledgerId, request.readRequest.entryId = ledger_id, entry_id
    return request


def _versioned(data: bytes, version: int, opcode: int, flags: int) -> bytes:
    """Return a request with the header word of another version."""
    return data[:4] + v2.header_word(opcode, flags, version).to_bytes(4, "big") + data[8:]


def _longer(data: bytes) -> bytes:
    """Return a request with bytes at its end that mean nothing."""
    return (len(data) + 3).to_bytes(4, "big") + data[4:] + bytes(7)


def _span(bodies: Sequence[bytes]) -> str:
    """Return the first and the last entry of some adds as text."""
    ids = [PACKET.unpack_from(one) if len(one) >= PACKET.size else (0, 0) for one in bodies]
    size = len(bodies[0])
    return f"{ids[0][0]}:{ids[0][1]}..{ids[-1][1]} ({len(ids)} of {size} bytes)"
