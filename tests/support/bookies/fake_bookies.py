"""Bookies in memory, connected to a client without a network.

The test decides what each bookie stores, answers and holds back. Time is that of the event loop, so
with `SimulatedLoop` nothing really waits.

    cluster = await FakeCluster.made(4)
    client = cluster.client()
    await cluster.ledger((3, 3, 2), range(10))  # on bookies b0, b1, b2
    cluster["b1"].says = lambda ask: ...       # a Byzantine bookie
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from quire.client import Client, LedgerWriter
from quire.client.cluster.pool import BookiePool
from quire.client.observability.tracing import Tracing
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import META, EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import LAST_ENTRY, Code, Flag, Opcode
from quire.config import ClientConfig
from quire.core.append.quorum import write_set
from quire.core.ranges import merged
from quire.errors import BookieUnavailableError, ProtocolError, QuireError
from quire.metadata.interface import BookieAddress, Registration
from quire.net.answer_codes import error_of
from quire.net.channel import BookieChannel
from quire.net.control import ControlChannel
from quire.net.link import AddSink
from quire.net.network import AsyncioNetwork
from quire_simulator.machine import SimClock, SimulatedLoop
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

LEDGER = 7
PASSWORD = b"secret"
PATIENCE_S = 600
"""The seconds of simulated time after which a test fails."""
CONFIG = ClientConfig(add_timeout_s=5.0, read_timeout_s=5.0, speculative_read_s=1.0)
T = TypeVar("T")


def simulated(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop = SimulatedLoop(1)

    async def whole() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await main()

    try:
        return loop.run(whole())
    finally:
        loop.close()


def payload(entry_id: int) -> bytes:
    return b"payload %d" % entry_id


_LENGTHS = [0]
"""The number of payload bytes before each entry, by entry id. It grows when more is needed."""


async def created(client: Client, shape: tuple[int, int, int] = (3, 3, 2)) -> LedgerWriter:
    """Create the ledger `LEDGER`, which is the only one of a test, and return its writer."""
    size, write_quorum, ack_quorum = shape
    writer = await client.create_ledger(
        ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum,
        password=PASSWORD, ledger_id=LEDGER,
    )  # fmt: skip
    assert isinstance(writer, LedgerWriter)
    return writer


@dataclass(frozen=True)
class Ask:
    """A read of one entry. A batch read counts as a read of each of its entries."""

    entry: int
    flags: int


Answer = bytes | QuireError | None
"""The answer to a read: the entry, an error for the client, or None for no answer."""


@dataclass
class FakeBookie:
    """A bookie that stores what it receives, and is honest unless the test decides otherwise."""

    name: str
    entries: dict[int, bytes] = field(default_factory=dict)
    asked: list[Ask] = field(default_factory=list)
    added: list[tuple[int, int, bytes]] = field(default_factory=list)
    """The entry id, flags and entry bytes of each add, in order."""
    fenced: bool = False
    key: bytes = b""
    """The master key that a fencing read must carry, or b"" if every key is accepted."""
    down: bool = False
    connects_in_s: float = 0
    """Seconds that opening a connection to the bookie takes."""
    answers_in_s: float = 0
    """Seconds that a read takes. Reads that are sent together are answered together."""
    says: Callable[[Ask], Answer | type[Ellipsis]] | None = None
    """A function that returns the answer to a read, or Ellipsis for the honest answer.

    None makes all answers honest.
    """
    add_error: int = Code.OK
    holds_acks: bool = False
    """Whether adds are stored but not answered until the test calls `release`."""
    lists: bool = False
    """Whether the bookie can list its entries. Apache's bookies cannot with their usual storage."""
    links: list[FakeLink] = field(default_factory=list)

    def answer(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        if ask.flags & Flag.DO_FENCING:
            self.fenced = True
        if self.says is not None:
            said = self.says(ask)
            if said is not ...:
                return cast(Answer, said)
        return self.honest(ask)

    def honest(self, ask: Ask) -> Answer:
        entry = max(self.entries, default=LAST_ENTRY) if ask.entry == LAST_ENTRY else ask.entry
        return self.entries.get(entry) or no_entry(self.name, ask.entry)

    def no(self, ask: Ask) -> Answer:
        """Return the answer that the entry does not exist. Tests use the method as `says`."""
        return no_entry(self.name, ask.entry)

    def silent(self, ask: Ask) -> Answer:
        return None

    def release(self) -> None:
        """Answer the adds that were held back, and answer later adds at once."""
        self.holds_acks = False
        for link in self.links:
            link.answer_adds()

    def die(self) -> None:
        self.down = True
        links, self.links = self.links, []
        for link in links:
            link.lose()


def no_entry(bookie: str, entry: int) -> QuireError:
    return error_of(Code.NO_ENTRY, LEDGER, entry, bookie)


class FakeLink(BookieChannel):
    """A client's connection to one fake bookie."""

    def __init__(self, bookie: FakeBookie) -> None:
        super().__init__(bookie.name)
        self.bookie = bookie
        self.sink: AddSink | None = None
        self.unanswered: list[int] = []
        bookie.links.append(self)

    @property
    def usable(self) -> bool:
        return self.lost is None

    # -- reads --------------------------------------------------------------------------------

    async def probe(self) -> None:
        if self.bookie.says == self.bookie.silent:
            await asyncio.Event().wait()
        self.received_bytes += 1

    async def read(self, ledger_id: int, entry_id: int, flags: int = 0, key: bytes = b"") -> bytes:
        await asyncio.sleep(self.bookie.answers_in_s)
        if flags & Flag.DO_FENCING and self.bookie.key not in (b"", key):
            raise error_of(Code.UNAUTHORIZED, ledger_id, entry_id, self.bookie.name)
        answer = self.bookie.answer(Ask(entry_id, flags))
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, QuireError):
            raise answer
        assert answer is not None
        return answer

    async def read_many(
        self, ledger_id: int, entry_ids: list[int], flags: int = 0, key: bytes = b""
    ) -> list[bytes | BaseException]:
        reads = [self.read(ledger_id, entry, flags, key) for entry in entry_ids]
        return await asyncio.gather(*reads, return_exceptions=True)

    async def batch_read(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_size: int,
        flags: int = 0,
        key: bytes = b"",
    ) -> bytes:
        found = [await self.read(ledger_id, first, flags, key)]
        size = len(found[0])
        for entry in range(first + 1, first + max_count):
            answer = self.bookie.answer(Ask(entry, flags))
            if not isinstance(answer, bytes) or size + len(answer) > max_size:
                break
            found.append(answer)
            size += len(answer)
        return frames.batch_read_response(Code.OK, ledger_id, first, 1, found)

    # -- adds ---------------------------------------------------------------------------------

    def attach(self, ledger_id: int, sink: AddSink) -> None:
        super().attach(ledger_id, sink)
        self.sink = sink

    def send(self, data: Any) -> None:
        for start, stop in frames.frame_bounds(bytes(data)):
            frame = bytes(data[start:stop])
            _, word, _, _, entry = frames.ADD_HEAD.unpack_from(frame)
            _, opcode, flags = frames.split_word(word)
            assert opcode == Opcode.ADD
            stored = frame[frames.FRAME_HEADER_BYTES :]
            self.bookie.added.append((entry, flags, stored))
            self.unanswered.append(entry)
            if self.refusal(flags) == Code.OK:
                self.bookie.entries[entry] = stored
        asyncio.get_running_loop().call_soon(self.answer_adds)

    def refusal(self, flags: int) -> int:
        if self.bookie.add_error:
            return self.bookie.add_error
        fenced = self.bookie.fenced and not flags & Flag.RECOVERY_ADD
        return Code.FENCED if fenced else Code.OK

    def answer_adds(self) -> None:
        if self.bookie.holds_acks or self.sink is None or self.lost is not None:
            return
        unanswered, self.unanswered = self.unanswered, []
        for entry in unanswered:
            flags = next(flags for e, flags, _ in reversed(self.bookie.added) if e == entry)
            code = self.refusal(flags)
            if code == Code.OK:
                self.sink.on_acked([entry])
            else:
                self.sink.on_add_error(entry, error_of(code, LEDGER, entry, self.bookie.name))

    def lose(self) -> None:
        self._fail(BookieUnavailableError(f"connection to bookie {self.bookie.name} lost"))


class _Control(ControlChannel):
    """A connection for protocol v3, of which a fake bookie supports only the list of entries."""

    def __init__(self, bookie: FakeBookie) -> None:
        super().__init__(bookie.name)
        self.bookie = bookie

    @property
    def usable(self) -> bool:
        return True

    async def read_lac(self, ledger_id: int) -> Any:
        raise ProtocolError("The fake bookie supports only v2.")

    async def list_entries(self, ledger_id: int) -> list[tuple[int, int]]:
        if not self.bookie.lists:
            raise ProtocolError("The fake bookie supports only v2.")
        if not self.bookie.entries:
            raise no_entry(self.bookie.name, LAST_ENTRY)
        return merged((entry, entry) for entry in self.bookie.entries)

    async def probe(self) -> None:
        self.received_bytes += 1


class FakePool(BookiePool):
    """A pool of connections that lead to fake bookies instead of hosts."""

    def __init__(self, bookies: dict[str, FakeBookie], *how: Any) -> None:
        self.fakes = bookies
        super().__init__(*how)

    async def _connect(self, bookie_id: str, make: Callable[[str], Any]) -> Any:
        bookie = self.fakes[bookie_id]
        await asyncio.sleep(bookie.connects_in_s)
        if bookie.down:
            raise BookieUnavailableError(f"bookie {bookie_id} is down")
        return FakeLink(bookie) if make is BookieChannel else _Control(bookie)


class FakeCluster:
    def __init__(self, count: int, config: ClientConfig = CONFIG) -> None:
        self.config = config
        self.clock = SimClock(cast(SimulatedLoop, asyncio.get_running_loop()))
        self.metadata = MemoryCluster("test", clock=self.clock, rng=random.Random(1))
        self.metadata.initialise()
        self.bookies = {f"b{n}": FakeBookie(f"b{n}") for n in range(count)}
        self.codec = EntryCodec(LEDGER, DigestType.CRC32C, PASSWORD)
        self.store = MemoryStore(self.metadata)
        self.registrations: dict[str, Registration] = {}

    @classmethod
    async def made(cls, count: int, config: ClientConfig = CONFIG) -> FakeCluster:
        """Create a cluster with `count` bookies.

        They stay registered during the whole test, even while they are down.
        """
        cluster = cls(count, config)
        for name in cluster.bookies:
            address = BookieAddress(name, name, 1)
            cluster.registrations[name] = await cluster.store.register_bookie(address)
        return cluster

    def __getitem__(self, name: str) -> FakeBookie:
        return self.bookies[name]

    def client(self, config: ClientConfig | None = None, tracer: Tracer | None = None) -> Client:
        config = config or self.config
        client = Client(
            MemoryStore(self.metadata), config=config, clock=self.clock, rng=random.Random(1)
        )
        client._pool._watch.close()
        client._pool.placement.close()
        how = client.metadata, AsyncioNetwork(), config, client.rng, client._tasks
        client._pool = FakePool(self.bookies, *how, Tracing(tracer))
        return client

    async def ledger(
        self,
        quorums: tuple[int, int, int],
        entries: Iterable[int] = (),
        *,
        digest: DigestType = DigestType.CRC32C,
        state: LedgerState = LedgerState.OPEN,
        segments: tuple[Segment, ...] | None = None,
        on: Callable[[int], Collection[str]] | None = None,
    ) -> LedgerMetadata:
        """Create a ledger with these entries on their write sets, or on the bookies of `on`.

        If its state is CLOSED, it ends after the last of the entries.
        """
        size, quorum, ack = quorums
        self.codec = EntryCodec(LEDGER, digest, PASSWORD)
        metadata = LedgerMetadata(
            ensemble_size=size,
            write_quorum=quorum,
            ack_quorum=ack,
            segments=segments or (Segment(0, tuple(f"b{n}" for n in range(size))),),
            digest=digest,
            password=PASSWORD,
        )
        ids = list(entries)
        for entry in ids:
            ensemble = metadata.segment_of(entry).ensemble
            members = [ensemble[index] for index in write_set(entry, size, quorum)]
            for name in members if on is None else on(entry):
                self[name].entries[entry] = self.entry(entry)
        if state is LedgerState.CLOSED:
            metadata = metadata.with_close(max(ids, default=-1), self.length(max(ids, default=-1)))
        elif state is not LedgerState.OPEN:
            metadata = metadata.with_state(state)
        await self.store.create_ledger(metadata, LEDGER)
        return metadata

    async def stored(self) -> LedgerMetadata:
        return (await self.store.read_ledger(LEDGER)).value

    @staticmethod
    def length(entry_id: int) -> int:
        while len(_LENGTHS) <= entry_id + 1:
            _LENGTHS.append(_LENGTHS[-1] + len(payload(len(_LENGTHS) - 1)))
        return _LENGTHS[entry_id + 1]

    def entry(self, entry_id: int, content: bytes | None = None, lac: int | None = None) -> bytes:
        """Return the bytes of an entry as its writer sends them.

        Its LAC is `lac`, or one less than its id. With other `content`, the digest is valid for
        that.
        """
        body = payload(entry_id) if content is None else content
        before = entry_id - 1 if lac is None else lac
        return self.codec.pack(entry_id, before, self.length(entry_id), body)


def lac_of(entry: bytes) -> int:
    return cast(int, META.unpack_from(entry)[2])
