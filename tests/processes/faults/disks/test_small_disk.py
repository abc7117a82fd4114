"""A bookie on a file system of 64 MiB is filled under load and restarted without free space.

It becomes writable again after ledgers are deleted. Nothing acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire
from quire.errors import NotEnoughBookiesError, QuireError
from tests.support.processes.cli import COMMAND, Quire, Running
from tests.support.storage.small_disk import MIB, SmallDisk
from tests.support.waiting import until, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.small_disk]

SIZE_MB = 64
SEGMENT_BYTES = 4 * MIB
MIN_FREE_BYTES = 4 * MIB
SETTINGS = {
    "segment_bytes": SEGMENT_BYTES,
    "min_free_bytes": MIN_FREE_BYTES,
    "read_only_dwell_s": 1,
    "compact_reserve_bytes": SEGMENT_BYTES,
    "check_space_s": 0.2,
    "gc_interval_s": 1,
    "gc_full_interval_s": 0.5,
}
WRITERS = 8
PIECE = 16
PIECES_PER_LEDGER = 8
ONE: dict[str, int] = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
CONFIG = quire.ClientConfig(bookies_wait_s=0.5)


def payload(ledger_id: int, entry_id: int) -> bytes:
    text = b"%d:%d;" % (ledger_id, entry_id)
    return text * (1 + (ledger_id + entry_id) * 97 % 1_500)


class Load:
    """Writers of many short ledgers, until none is taken any more."""

    def __init__(self, client: quire.Client) -> None:
        self._client = client
        self.acked: dict[int, int] = {}
        """Ledger -> its last acknowledged entry."""

    async def until_refused(self) -> None:
        await asyncio.gather(*(self._write() for _ in range(WRITERS)))

    async def _write(self) -> None:
        while True:
            try:
                await self.one_ledger()
            except QuireError:
                return

    async def one_ledger(self) -> int:
        writer = await self._client.create_ledger(**ONE)
        ledger = writer.ledger_id
        try:
            for piece in range(PIECES_PER_LEDGER):
                entries = range(piece * PIECE, (piece + 1) * PIECE)
                self.acked[ledger] = await writer.append_many(
                    [payload(ledger, entry) for entry in entries]
                )
            await writer.close()
        finally:
            writer.abandon()
        return ledger

    async def until_taken(self) -> None:
        """Room comes back in pieces: the first may be full again before the ledger is written."""
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(NotEnoughBookiesError):
                    await self.one_ledger()
                    return

    async def check(self) -> None:
        """All of it, to the byte. What was in flight when the disk was full may be there too."""
        for ledger, last in self.acked.items():
            reader = await self._client.open_ledger(ledger, recover=True)
            async with reader:
                found = [entry.payload async for entry in reader.read()]
            assert len(found) > last, f"ledger {ledger}: acknowledged to {last}, has {len(found)}"
            assert found == [payload(ledger, entry) for entry in range(len(found))]

    async def delete(self, ledgers: list[int]) -> None:
        for ledger in ledgers:
            await self._client.delete_ledger(ledger)
            del self.acked[ledger]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", SIZE_MB) as disk:
        yield disk


def bookie(quire_command: Quire, disk: SmallDisk) -> Running:
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    command = [
        *disk.prefix, *COMMAND, "bookie", "--dir", str(disk.path / "bookie"), "--port", "0",
        "--bookie-id", "small", *settings,
    ]  # fmt: skip
    return Running(command, quire_command.environment)


async def until_writable(client: quire.Client, writable: bool) -> None:
    await until(
        client.metadata.bookies, right=lambda found: bool(found.writable) == writable, poll_s=0.05
    )


@pytest.mark.long
def test_a_full_disk_loses_no_entry_and_becomes_writable_again(
    tmp_path: Path, disk: SmallDisk
) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    command = Quire(uri).initialised()

    async def fill(running: Running) -> Load:
        async with quire.connect(uri, config=CONFIG) as client:
            load = Load(client)
            await load.until_refused()
            await until_writable(client, False)
            await load.check()
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
            return load

    async def recover(acked: dict[int, int]) -> None:
        async with quire.connect(uri, config=CONFIG) as client:
            load = Load(client)
            load.acked = acked
            await until_writable(client, False)
            await load.check()
            await load.delete(sorted(acked)[::2])
            await until_writable(client, True)
            await load.until_taken()
            await load.check()

    with bookie(command, disk) as running:
        assert running.line() == "small"
        load = asyncio.run(fill(running))
    assert sum(load.acked.values()) * 4_000 > SIZE_MB * MIB / 2
    disk.leave(0)
    assert disk.free_bytes() == 0
    with bookie(command, disk) as running:
        assert running.line() == "small"
        asyncio.run(recover(load.acked))
        # The space came back from the log only.
        wait_for(lambda: disk.free_bytes() >= MIN_FREE_BYTES, "free space")
        done = running.end(signal.SIGTERM)
    assert done.status == 0, done.err
