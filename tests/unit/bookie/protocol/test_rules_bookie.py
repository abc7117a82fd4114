"""The rules of bookies (docs/internals/replication-rules.md) about requests and answers.

A real bookie serves connections that send frames of protocol v2. `test_storage_store` tests the
requirements for the disk.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from quire.bookie.background.garbage import collect_garbage
from quire.bookie.directories.identity import COOKIE_FILE, check_identity
from quire.bookie.server import Bookie
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Code, Flag
from quire.errors import CookieError, NoSuchLedgerError
from quire.metadata.interface import LedgerRange
from quire.storage.worker import ThreadWorker
from quire_simulator.machine.disk import SimDisk
from tests.support.bookies import bookie as support
from tests.support.bookies.bookie import Peer, memory_metadata, peer_of, running_bookie

KEY, OTHER_KEY = master_key(b"right"), master_key(b"wrong")
LAST = 2**63 - 1


def add(ledger: int, entry_id: int, flags: int = 0, key: bytes = KEY) -> bytes:
    codec = EntryCodec(ledger, DigestType.CRC32C, b"right")
    entry = codec.pack(entry_id, entry_id - 1, 5 * (entry_id + 1), b"hello")
    return frames.add_request(key, entry, flags)


def fence(ledger: int, key: bytes = KEY) -> bytes:
    return frames.read_request(ledger, -1, Flag.DO_FENCING, key)


class Answers:
    """The answers on one connection, in order: (ledger, entry) -> code."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def next(self) -> tuple[int, int, int]:
        """Ledger, entry, code of the next answer."""
        async with asyncio.timeout(support.ANSWER_S):
            size = int.from_bytes(await self.peer.reader.readexactly(4), "big")
            body = await self.peer.reader.readexactly(size)
        code = int.from_bytes(body[4:8], "big", signed=True)
        ledger, entry = (int.from_bytes(body[at : at + 8], "big", signed=True) for at in (8, 16))
        return ledger, entry, code

    async def of(self, request: bytes) -> int:
        self.peer.send(request)
        return (await self.next())[2]


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Bookie]:
    async with running_bookie(tmp_path / "bookie") as bookie:
        yield bookie


class Gate(ThreadWorker):
    """A log thread that runs while the gate is open."""

    open = threading.Event()

    def start(self, step: Callable[[], None]) -> None:
        def waiting() -> None:
            assert self.open.wait(support.ANSWER_S)
            step()

        super().start(waiting)


async def test_rule_33_every_answer_to_a_fencing_read_waits_for_the_fence_to_be_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative answer for a ledger that the bookie does not know waits, too."""
    gate = threading.Event()
    gate.set()
    monkeypatch.setattr(Gate, "open", gate)
    monkeypatch.setattr(support, "ThreadWorker", Gate)
    async with running_bookie(tmp_path / "bookie") as bookie, peer_of(bookie) as peer:
        answers = Answers(peer)
        assert await answers.of(add(1, 0)) == Code.OK
        gate.clear()
        try:
            peer.send(fence(1) + fence(2))
            # Reads that do not fence are answered meanwhile, although they were sent later.
            peer.send(frames.read_request(1, 0) + frames.read_request(2, 0))
            assert [await answers.next() for _ in range(2)] == [
                (1, 0, Code.OK), (2, 0, Code.NO_ENTRY),
            ]  # fmt: skip
        finally:
            gate.set()
        fenced = [await answers.next() for _ in range(2)]
        assert [(ledger, code) for ledger, _, code in fenced] == [
            (1, Code.OK), (2, Code.NO_ENTRY),
        ]  # fmt: skip


async def test_rule_34_a_fence_outlives_the_bookie_and_needs_the_key(tmp_path: Path) -> None:
    metadata, port = memory_metadata(), support.free_port()
    place = tmp_path / "bookie"
    life = running_bookie(place, metadata=metadata, port=port)
    async with life as bookie, peer_of(bookie) as peer:
        answers = Answers(peer)
        assert await answers.of(add(1, 0)) == Code.OK
        assert await answers.of(fence(1, OTHER_KEY)) == Code.UNAUTHORIZED
        assert await answers.of(add(1, 1)) == Code.OK
        assert await answers.of(fence(1)) == Code.OK
        assert await answers.of(fence(2)) in (Code.NO_ENTRY, Code.NO_LEDGER)  # never seen
    life = running_bookie(place, metadata=metadata, port=port)
    async with life as bookie, peer_of(bookie) as peer:
        answers = Answers(peer)
        assert await answers.of(add(1, 2)) == Code.FENCED
        assert await answers.of(add(2, 0)) == Code.FENCED
        assert await answers.of(add(1, 2, Flag.RECOVERY_ADD)) == Code.OK
        assert await answers.of(add(1, 3, Flag.RECOVERY_ADD, OTHER_KEY)) == Code.UNAUTHORIZED


async def test_rule_35_no_add_slips_past_a_fence(bookie: Bookie) -> None:
    """In one chunk, and over two connections, adds after the fence are refused.

    The fencing client sees the adds before it. Adds of a recovery are accepted, also beside adds
    of other ledgers.
    """
    async with peer_of(bookie) as peer, peer_of(bookie) as other:
        answers, others = Answers(peer), Answers(other)
        for ledger in range(20):
            peer.send(add(ledger, 0) + fence(ledger) + add(ledger, 1))
            codes = {}
            for _ in range(3):
                _, entry, code = await answers.next()
                codes[entry] = code
            assert codes == {0: Code.OK, -1: Code.OK, 1: Code.FENCED}
            assert await others.of(add(ledger, 2)) == Code.FENCED
            assert await others.of(add(ledger, 2, Flag.RECOVERY_ADD)) == Code.OK
        assert await others.of(add(20, 3)) == Code.OK
        for flags, fenced in ((0, Code.FENCED), (Flag.RECOVERY_ADD, Code.OK)):
            peer.send(b"".join(add(ledger, 4, flags) for ledger in (0, 20, 1)))
            found = dict([(await answers.next())[::2] for _ in range(3)])
            assert found == {0: fenced, 20: Code.OK, 1: fenced}


# -- which directory --------------------------------------------------------------------------


def disk(name: str = "disk") -> SimDisk:
    return SimDisk(random.Random(1), name)


async def test_rule_31_a_bookie_whose_data_is_gone_does_not_start() -> None:
    metadata = memory_metadata()
    await metadata.initialise()
    rng = random.Random(2).randbytes
    known = disk()
    assert await check_identity(known, metadata, "b:1", rng) == await metadata.instance_id()
    await check_identity(known, metadata, "b:1", rng)
    with pytest.raises(CookieError, match="is empty: its data is gone") as failed:
        await check_identity(disk(), metadata, "b:1", rng)
    assert "copy it from other bookies" in failed.value.remedy
    await metadata.delete_cookie("b:1")  # decommissioned, and its directory is still there
    await check_identity(disk(), metadata, "b:1", rng)


async def test_rule_31_a_bookie_does_not_start_on_the_directory_of_another() -> None:
    metadata = memory_metadata()
    await metadata.initialise()
    rng = random.Random(2).randbytes
    known = disk()
    await check_identity(known, metadata, "b:1", rng)
    with pytest.raises(CookieError, match="b:1"):
        await check_identity(known, metadata, "b:2", rng)
    assert known.exists(COOKIE_FILE)


# -- garbage ----------------------------------------------------------------------------------


class Ids(set[int]):
    """The ids of a store's ledgers, of which nothing else is known."""

    def get(self, ledger_id: int) -> None:
        return None


class Made:
    """A store and a metadata store: a ledger is made while the list of ledgers is read."""

    def __init__(self) -> None:
        self.ledgers = Ids({1, 2})
        self.alive = {1}
        self.dropped: list[int] = []

    def ledger_ids(self) -> list[int]:
        return sorted(self.ledgers)

    def drop_ledgers(self, ids: list[int]) -> None:
        self.dropped += ids

    async def instance_id(self) -> str:
        return "A"

    async def list_ledgers(
        self, first: int = 0, *, complete: bool = False, known: object = None
    ) -> AsyncIterator[LedgerRange]:
        yield LedgerRange(0, 5, sorted(self.alive & set(range(6))))
        self.ledgers |= {3, 9}
        self.alive |= {3, 9}
        yield LedgerRange(6, LAST, [])

    async def check(self) -> None:
        pass

    async def read_ledger(self, ledger_id: int) -> object:
        assert ledger_id not in (3, 9)
        raise NoSuchLedgerError(f"no ledger {ledger_id}")


async def test_rule_30_a_ledger_created_during_a_pass_is_not_examined() -> None:
    made = Made()
    dropped = await collect_garbage(
        made,
        made,
        "A",
        lambda event, **fields: None,
        made,  # type: ignore[arg-type]
    )
    assert dropped == made.dropped == [2]
