"""What a bookie must have, must answer and must have counted, by a model of its own.

The model follows the specification of the protocols, not the bookie's code. It knows each ledger
with its entries. An `Expected` is the answer to one request. It may have several forms if the
bookie may answer before or after a later request, because it has to wait for its disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from quire.codec.wire.v2 import Code, batch_read_response, read_response
from quire.codec.wire.v3 import Op, frame, response
from quire_simulator.actors.walkthroughs.driven_store import HeldLedger

KEY_BYTES = 20
ENTRY_BYTES_MIN = 24
HEAD_BYTES = 28
"""The bytes of an ADD frame before its entry."""
LAC_PACKET_BYTES = (16, 1024)
BATCH_BASE_BYTES = 36
BATCH_ENTRY_BYTES = 4
PACKET = struct.Struct(">qq")
HIGH_PRIORITY, RECOVERY = 4, 2
ENTRY_HEAD = struct.Struct(">qqq")

Found = tuple[bool, int]
"""What a read has found: whether it counts as a read of something that is missing, and the bytes of
entries that were read."""
Answer = tuple[bytes, Found | None]
"""The frame of an answer, and what the read has found. None is no read."""
Looked = dict[tuple[Code, bytes], None]
"""The codes and entries that a read may have found, in order. The LAC in its answer may be newer,
because a read that waits for the disk takes the LAC when it has the entry."""


@dataclass
class Ledger(HeldLedger):
    """What the bookie must have of one ledger."""

    lac: int = -1
    highest_lac: int = -1
    """The highest LAC that was ever named. After a start, a bookie may know a lower one."""
    explicit: bytes | None = None
    former: dict[int, set[bytes]] = field(default_factory=dict)
    """All that was ever added under an entry id."""
    added: list[tuple[int, bytes]] = field(default_factory=list)
    """All that was ever added, in order."""


@dataclass(eq=False)
class Expected:
    """The answer to one request."""

    what: str
    """The request, in words."""
    key: tuple[object, ...]
    """The part of an answer by which it is found."""
    allowed: dict[bytes, set[Found | None]] = field(default_factory=dict)
    """The frames that are right, each with what a read has found then. None is no read."""
    again: Callable[[Looked], Iterable[Answer]] | None = None
    """Returns the answers that are right in the present state, or None if the state does not
    matter."""
    looked: Looked = field(default_factory=dict)
    """What the read may have found so far."""
    pieced: Callable[[bytes], Found | None] | None = None
    """Returns what the read has found if this answer is right although it shows no single state,
    because the read took its entries one after the other."""
    ledger_id: int = 0
    timed: bool = False
    """Whether the bookie measures how long the answer takes, at least if it is at hand."""
    order: tuple[int, int, int] | None = None
    """The connection, version and ledger of an add whose answer comes in the order of the adds."""
    moves: bool = False
    """Whether the answer may name the time when the LAC moved."""
    must_move: bool = False
    """Whether it must."""
    earliest_s: float = 0.0
    latest_s: float = 0.0
    """The latest time of the answer, or 0 if it comes soon."""
    free_bytes: tuple[int, int] | None = None
    """The bounds of the free bytes that the answer names, if it must name them."""
    optional: bool = False
    """Whether the answer may be missing, because the connection ends."""

    def allow(self) -> None:
        """Allow the answer in the present state too."""
        if self.again is not None:
            for data, found in self.again(self.looked):
                self.allowed.setdefault(data, set()).add(found)

    def begin_anew(self) -> None:
        """Forget all answers that were right, because the read has waited and begins only now."""
        self.allowed.clear()
        self.looked.clear()


@dataclass(eq=False)
class Poll:
    """A read that waits for a new LAC."""

    connection: int
    ledger_id: int
    previous: int
    expected: Expected
    deadline_s: float
    """The time at which the bookie gives up at the earliest."""
    v3: bool


class Counts:
    """What the bookie must have counted since its start, as the least and the most."""

    def __init__(self) -> None:
        self.least: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def add(self, name: str, count: int = 1, most: int | None = None) -> None:
        self.least[name] = self.least.get(name, 0) + count
        self.most[name] = self.most.get(name, 0) + (count if most is None else most)


class KnownBookie:
    """The state of a bookie, as it follows from the requests."""

    def __init__(self) -> None:
        self.ledgers: dict[int, Ledger] = {}
        self.refused: set[int] = set()
        """The ledgers that were fenced and then deleted."""
        self.readonly = False
        self.failed = False
        """Whether the disk has failed, so that nothing can be changed any more."""
        self.limbo = False
        """Whether a part of the log is lost, so that nobody knows what else was there."""
        self.counts = Counts()
        self.polls: list[Poll] = []
        self.open: list[Expected] = []
        """The answers that have not come."""
        self.changed: set[int] = set()
        """The ledgers that were changed since this was emptied."""

    # -- checks, in the order of the specification -----------------------------------------------

    def may_add(self, ledger_id: int, key: bytes, flags: int) -> Code:
        """Return the code for an add before its entry is looked at, and create the ledger."""
        if self.failed:
            return Code.IO_ERROR
        if self.limbo and not flags & RECOVERY:
            return Code.READ_ONLY
        if self.readonly and not flags & HIGH_PRIORITY:
            return Code.READ_ONLY
        again = bool(flags & RECOVERY)
        code = self._open(ledger_id, key, Code.FENCED, Code.IO_ERROR, again=again)
        if not code and self.ledgers[ledger_id].fenced and not flags & RECOVERY:
            return Code.FENCED
        return code

    def _open(
        self, ledger_id: int, key: bytes, deleted: Code, keyless: Code, *, again: bool = False
    ) -> Code:
        """Return the code for a key, and create the ledger if it is not there.

        `deleted` is the code for a ledger that was fenced and deleted, and `keyless` that for one
        whose key is lost.
        """
        if ledger_id < 0:
            return Code.BAD_REQUEST
        if len(key) != KEY_BYTES:
            return Code.UNAUTHORIZED
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            if ledger_id in self.refused and not again:
                return deleted
            self.ledgers[ledger_id] = Ledger(key, fenced=ledger_id in self.refused)
            self.refused.discard(ledger_id)
            self._changed(ledger_id)  # It is there from now on, also if the request is refused.
        elif not ledger.key:
            if not again:
                return keyless
            ledger.key = key
        elif ledger.key != key:
            return Code.UNAUTHORIZED
        return Code.OK

    # -- changes ------------------------------------------------------------------------------

    def add(self, flags: int, key: bytes, body: bytes) -> Code:
        """Return the code for an add of an entry with at least the ids and the LAC."""
        ledger_id, entry_id, lac = ENTRY_HEAD.unpack_from(body)
        code = self.may_add(ledger_id, key, flags)
        if code:
            self.counts.add("adds_refused", 0, 1)
            return code
        if entry_id < 0:
            return Code.BAD_REQUEST
        self.counts.add("adds")
        self.counts.add("add_bytes", HEAD_BYTES + len(body))
        self.counts.add("add_batches", 0, 1)
        if flags & RECOVERY and not flags & HIGH_PRIORITY:
            self.counts.add("copies")
        ledger = self.ledgers[ledger_id]
        ledger.entries[entry_id] = body
        ledger.former.setdefault(entry_id, set()).add(body)
        ledger.added.append((entry_id, body))
        ledger.lac = max(ledger.lac, lac)
        ledger.highest_lac = max(ledger.highest_lac, lac)
        self._changed(ledger_id)
        return Code.OK

    def fence(self, ledger_id: int, key: bytes) -> Code:
        if self.failed:
            return Code.IO_ERROR
        code = self._open(ledger_id, key, Code.NO_LEDGER, Code.UNKNOWN_LEDGER_STATE)
        if code:
            return code
        self.counts.add("fences")
        self.ledgers[ledger_id].fenced = True
        self._changed(ledger_id, ends=True)
        return Code.OK

    def write_lac(self, ledger_id: int, lac: int, key: bytes, packet: bytes) -> Code:
        if self.failed:
            return Code.IO_ERROR
        if self.readonly:
            return Code.READ_ONLY
        code = self._open(ledger_id, key, Code.NO_LEDGER, Code.IO_ERROR)
        if code:
            return code
        ledger = self.ledgers[ledger_id]
        ledger.explicit = packet
        ledger.lac = max(ledger.lac, lac)
        ledger.highest_lac = max(ledger.highest_lac, lac)
        self._changed(ledger_id)
        return Code.OK

    def delete(self, ledger_id: int) -> None:
        if self.ledgers.pop(ledger_id).fenced:
            self.refused.add(ledger_id)
        self._changed(ledger_id, ends=True)

    def end_polls(self) -> None:
        """Note that the bookie answers all waiting reads now, because it stops."""
        for poll in self.polls:
            poll.expected.allow()
        self.polls.clear()

    def _changed(self, ledger_id: int, *, ends: bool = False) -> None:
        self.changed.add(ledger_id)
        ledger = self.ledgers.get(ledger_id)
        for poll in [one for one in self.polls if one.ledger_id == ledger_id]:
            moved = ledger is not None and ledger.lac > poll.previous
            if moved or ends:
                self.polls.remove(poll)
                poll.expected.moves = poll.expected.must_move = moved and poll.v3 and not ends
                poll.expected.earliest_s = poll.expected.latest_s = 0.0
                poll.expected.begin_anew()
        for one in self.open:
            if one.ledger_id == ledger_id and not any(p.expected is one for p in self.polls):
                one.allow()

    # -- reads --------------------------------------------------------------------------------

    def find(self, ledger_id: int, entry_id: int) -> tuple[Code, bytes]:
        """Return the code of a read, and the entry."""
        if entry_id < -1:
            return Code.BAD_REQUEST, b""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return self.absent(Code.NO_LEDGER), b""
        body = ledger.entries.get(ledger.last if entry_id == -1 else entry_id)
        return (self.absent(Code.NO_ENTRY), b"") if body is None else (Code.OK, body)

    def absent(self, code: Code) -> Code:
        """Return the code for something that is not there."""
        return Code.UNKNOWN_LEDGER_STATE if self.limbo else code

    def lac_of(self, ledger_id: int) -> int:
        ledger = self.ledgers.get(ledger_id)
        return -1 if ledger is None else ledger.lac

    def read_v2(self, version: int, ledger_id: int, entry_id: int, _: Looked) -> list[Answer]:
        code, body = self.find(ledger_id, entry_id)
        data = read_response(code, ledger_id, entry_id, body, version)
        return [(data, (_missing(code), len(body)))]

    def read_batch(
        self, ledger_id: int, first: int, request_id: int, count: int, size: int, _: Looked
    ) -> list[Answer]:
        """Return the answer to a batch read. `size` is limited by the bookie's setting already."""
        code, body = self.find(ledger_id, first)
        if code:
            data = batch_read_response(code, ledger_id, first, request_id)
            return [(data, (_missing(code), 0))]
        ledger, found = self.ledgers[ledger_id], [body]
        left = size - BATCH_BASE_BYTES - BATCH_ENTRY_BYTES - len(body)
        most = 1 if first == -1 else count if count > 0 else 1 << 31
        at = first + 1
        while len(found) < most and (more := ledger.entries.get(at)) is not None:
            left -= BATCH_ENTRY_BYTES + len(more)
            if left < 0:
                break
            found.append(more)
            at += 1
        data = batch_read_response(Code.OK, ledger_id, first, request_id, found)
        return [(data, (False, sum(map(len, found))))]

    def pieces(
        self, ledger_id: int, first: int, request_id: int, count: int, size: int
    ) -> Callable[[bytes], Found | None]:
        """Return the check of an answer to a batch read that begins now; see `Expected.pieced`.

        A batch read that waits for the disk takes its entries in order, each as it is then.
        """
        ledger = self.ledgers.get(ledger_id)
        base = {} if ledger is None else dict(ledger.entries)
        start = 0 if ledger is None else len(ledger.added)

        def found(data: bytes) -> Found | None:
            now = self.ledgers.get(ledger_id)
            head = batch_read_response(Code.OK, ledger_id, first, request_id)
            if now is None or first < 0 or data[4 : len(head)] != head[4:]:
                return None
            later = now.added[start:]
            state, steps = dict(base), iter(later)
            at, left, read_bytes = first, size - BATCH_BASE_BYTES, 0
            offset = len(head)
            while offset < len(data):
                stop = offset + BATCH_ENTRY_BYTES + int.from_bytes(data[offset : offset + 4], "big")
                body = data[offset + BATCH_ENTRY_BYTES : stop]
                while state.get(at) != body:
                    step = next(steps, None)
                    if step is None:
                        return None
                    state[step[0]] = step[1]
                left -= stop - offset
                if left < 0 and at > first:
                    return None
                at, offset, read_bytes = at + 1, stop, read_bytes + len(body)
            if at == first or 0 < count < at - first:
                return None
            while at - first != count:
                more = state.get(at)
                if more is None or left < BATCH_ENTRY_BYTES + len(more):
                    break
                step = next(steps, None)
                if step is None:
                    return None  # One more entry was there and fitted all the time.
                state[step[0]] = step[1]
            return False, read_bytes

        return found

    def read_v3(
        self, txn: int, ledger_id: int, entry_id: int, looked: Looked, *,
        lac: bool = True, poll: bool = False,
    ) -> Iterator[Answer]:  # fmt: skip
        """Yield the answers to a read. `looked` has what it may have found before, and grows."""
        looked[self.find(ledger_id, entry_id)] = None
        for code, body in looked:
            own = None if code else body
            data = self.answer_read(
                txn, code, ledger_id, entry_id, own, lac=lac and not code, poll=poll
            )
            yield data, (_missing(code), len(body))

    def piggyback(
        self, txn: int, ledger_id: int, previous: int, looked: Looked
    ) -> Iterator[Answer]:
        """Yield the answers to a long poll that waits no longer. `read_v3` explains `looked`."""
        looked[self.find(ledger_id, previous + 1)] = None
        for code, body in looked:
            found = _missing(code), len(body)
            if code not in (Code.OK, Code.NO_ENTRY):
                yield self.answer_read(txn, code, ledger_id, -1, None), found
            elif code or self.lac_of(ledger_id) <= previous:
                data = self.answer_read(txn, Code.OK, ledger_id, -1, None, lac=True, poll=True)
                yield data, found
            else:
                data = self.answer_read(
                    txn, Code.OK, ledger_id, previous + 1, body, lac=True, poll=True
                )
                yield data, found

    def answer_read(
        self, txn: int, code: int, ledger_id: int, entry_id: int, body: bytes | None, *,
        lac: bool = False, poll: bool = False,
    ) -> bytes:  # fmt: skip
        answer = response(Op.READ, txn, code)
        read = answer.readResponse
        read.status = answer.status
        read.ledgerId, read.entryId = ledger_id, entry_id
        if body is not None:
            read.body = body
        if lac:
            read.maxLAC = self.lac_of(ledger_id)
            ledger = self.ledgers.get(ledger_id)
            packet = ledger.explicit if ledger is not None and poll else None
            if packet and PACKET.unpack_from(packet)[1] == read.maxLAC:
                read.explicitLac = packet
        return frame(answer)

    def read_lac(self, txn: int, ledger_id: int, looked: Looked) -> Iterator[Answer]:
        """Yield the answers to a READ_LAC. `read_v3` explains `looked`."""
        looked[self.find(ledger_id, -1)] = None
        ledger = self.ledgers.get(ledger_id)
        packet = None if ledger is None else ledger.explicit
        for code, body in looked:
            status = Code.OK
            if code:
                status = self.absent(Code.NO_ENTRY) if packet is None else Code.IO_ERROR
            answer = response(Op.READ_LAC, txn, status)
            own = answer.readLacResponse
            own.status, own.ledgerId = answer.status, ledger_id
            if packet is not None:
                own.lacBody = packet
            if not code:
                own.lastEntryBody = body
            yield frame(answer), (_missing(code), len(body))

    # -- counts -------------------------------------------------------------------------------

    def count_read(self, expected: Expected, founds: Iterable[Found | None]) -> None:
        """Count a read that was answered, which has found one of these."""
        known = list(founds)
        reads = [one for one in known if one is not None]
        if not reads:
            return
        always = len(reads) == len(known)
        missing, sizes = [one[0] for one in reads], [one[1] for one in reads]
        self.counts.add("reads", int(always), 1)
        self.counts.add("reads_missing", int(always and all(missing)), int(any(missing)))
        self.counts.add("read_bytes", min(sizes) if always else 0, max(sizes))
        self.counts.add("timed", int(expected.timed and always), 1)


def _missing(code: int) -> bool:
    return code in (Code.NO_ENTRY, Code.NO_LEDGER, Code.UNKNOWN_LEDGER_STATE)
