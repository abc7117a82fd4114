"""Create, write, read and delete ledgers on small disks for minutes, and kill bookies regularly.

    python -m tests.support.processes.disk_soak MINUTES

There are three bookies, each on its own file system (ext4 for root, otherwise in memory), and every
ledger is on all of them. Afterwards the live ledgers must be complete to the byte, the disks may
hold little more than that, and memory must not have grown. The figures are printed. The exit status
is 1 if one exceeds its limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import quire
from quire.errors import QuireError
from tests.support.processes.cli import COMMAND
from tests.support.storage.small_disk import MIB, SmallDisk

BOOKIES = 3
DISK_MB = 512
LIVE_BYTES_MAX = 160 * MIB
"""The largest number of payload bytes in live ledgers. Above it, ledgers are deleted."""
SEGMENT_BYTES = 16 * MIB
WORKERS = 12
KILL_EVERY_S = 20.0
SAMPLE_EVERY_S = 1.0
SETTLE_S = 180.0
READS_PER_LEDGER = 1
ENTRY_BYTES_MAX = 4_096
SPACE_RATIO_MAX = 1.3
GROWTH_MAX = 1.25
"""The largest factor by which resident memory may grow from the second third of the run to the
last.
"""
ENTRY_OVERHEAD_BYTES = 60
"""The approximate number of bytes that an entry takes on the disk besides its payload."""
SETTINGS = {
    "segment_bytes": SEGMENT_BYTES,
    "min_free_bytes": 2 * SEGMENT_BYTES,
    "read_only_dwell_s": 1,
    "compact_reserve_bytes": SEGMENT_BYTES,
    "check_space_s": 1,
    "gc_interval_s": 5,
    "compact_minor_interval_s": 10,
    "compact_major_interval_s": 20,
    "gc_over_replicated_interval_s": 30,
    "session_timeout_s": 4,
}
SHAPE: dict[str, int] = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
CONFIG = quire.ClientConfig(add_timeout_s=3.0, read_timeout_s=3.0, bookies_wait_s=20.0)


def payload(ledger_id: int, entry_id: int) -> bytes:
    text = b"%d:%d;" % (ledger_id, entry_id)
    size = 1 + (ledger_id * 7919 + entry_id * 104729) % ENTRY_BYTES_MAX
    return (text * (size // len(text) + 1))[:size]


@dataclass
class Kept:
    """A live ledger and its expected content."""

    last: int
    """The id of the last acknowledged entry."""
    size_bytes: int
    closed: bool


@dataclass
class Load:
    client: quire.Client
    rng: random.Random
    ledgers: dict[int, Kept] = field(default_factory=dict)
    live_bytes: int = 0
    appended_bytes: int = 0
    made: int = 0
    read: int = 0
    deleted: int = 0
    failed: dict[str, int] = field(default_factory=dict)

    async def work(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                await self._write()
                for _ in range(READS_PER_LEDGER):
                    if self.ledgers:
                        await self.check(self.rng.choice(list(self.ledgers)))
                while self.live_bytes > LIVE_BYTES_MAX:
                    await self._delete(self.rng.choice(list(self.ledgers)))
            except QuireError as error:
                # Two bookies may be down for a moment. What was acknowledged still counts.
                name = type(error).__name__
                self.failed[name] = self.failed.get(name, 0) + 1

    async def _write(self) -> None:
        rng = self.rng
        writer = await self.client.create_ledger(**SHAPE)
        ledger, self.made = writer.ledger_id, self.made + 1
        kept = Kept(-1, 0, False)
        try:
            for _ in range(rng.choice((1, 1, 2, 4, 16))):
                first = kept.last + 1
                piece = [payload(ledger, first + at) for at in range(rng.randint(1, 60))]
                kept.last = await writer.append_many(piece)
                kept.size_bytes += sum(map(len, piece)) + ENTRY_OVERHEAD_BYTES * len(piece)
            if rng.random() < 0.9:
                await writer.close()
                kept.closed = True
        finally:
            writer.abandon()
            self.ledgers[ledger] = kept
            self.live_bytes += kept.size_bytes
            self.appended_bytes += kept.size_bytes

    async def check(self, ledger: int) -> None:
        kept = self.ledgers.get(ledger)
        if kept is None:
            return
        reader = await self.client.open_ledger(ledger, recover=True)
        async with reader:
            found = [entry.payload async for entry in reader.read()]
        if ledger not in self.ledgers:
            return  # It was deleted meanwhile.
        kept.closed = True
        if len(found) <= kept.last:
            raise SystemExit(
                f"ledger {ledger}: {kept.last} was acknowledged, {len(found)} are there"
            )
        if any(one != payload(ledger, entry) for entry, one in enumerate(found)):
            raise SystemExit(f"ledger {ledger}: an entry is not what was written")
        self.read += 1

    async def _delete(self, ledger: int) -> None:
        kept = self.ledgers.pop(ledger, None)
        if kept is None:
            return
        self.live_bytes -= kept.size_bytes
        try:
            await self.client.delete_ledger(ledger)
        except quire.errors.NoSuchLedgerError:
            pass  # Its answer was lost before.
        self.deleted += 1


class Server:
    """A bookie on its disk, which is restarted whenever it was killed."""

    def __init__(self, name: str, uri: str, disk: SmallDisk) -> None:
        self.name = name
        self.disk = disk
        settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
        self._command = [
            *disk.prefix, *COMMAND, "bookie", "--metadata", uri, "--dir", str(disk.path / name),
            "--port=0", f"--bookie-id={name}", *settings,
        ]  # fmt: skip
        self.events: dict[str, int] = {}
        self.compacted_bytes = 0
        self.memory: list[tuple[float, int]] = []
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self._thread = threading.Thread(target=self._listen, args=(self.process.stderr,))
        self._thread.start()
        if self.process.stdout.readline().strip() != self.name:
            raise SystemExit(f"{self.name} does not start")

    def _listen(self, lines: Any) -> None:
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                print(f"{self.name}: {line}", end="")
                continue
            self.events[said["event"]] = self.events.get(said["event"], 0) + 1
            self.compacted_bytes += said.get("after_bytes", 0)
            if said["event"] in ("compaction_failed", "damaged", "disk_failed"):
                print(f"{self.name}: {line}", end="")

    def stop(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()

    def sample(self, at: float) -> None:
        self.memory.append((at, _resident_bytes(self.process.pid)))

    def log_bytes(self) -> int:
        """Return the bytes that the bookie's directory takes, with preallocated files."""
        found = (self.disk.seen / self.name).rglob("*")
        return sum(os.lstat(path).st_blocks * 512 for path in found)


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def disturb(servers: list[Server], begin: float, until: float) -> int:
    """Kill and restart one bookie after the other until `until`, and record their memory.

    Returns the number of kills.
    """
    kills, due = 0, begin + KILL_EVERY_S
    while (now := time.monotonic()) < until:
        if now >= due:
            due += KILL_EVERY_S
            server = servers[kills % len(servers)]
            kills += 1
            server.stop(signal.SIGKILL)
            await asyncio.to_thread(server.start)
        for server in servers:
            server.sample(now - begin)
        await asyncio.sleep(SAMPLE_EVERY_S)
    return kills


async def settle(servers: list[Server], live_bytes: int) -> bool:
    """Wait until every disk holds little more than the live bytes, and return whether it does."""
    bound = SPACE_RATIO_MAX * live_bytes + 2 * SEGMENT_BYTES
    try:
        async with asyncio.timeout(SETTLE_S):
            while any(server.log_bytes() > bound for server in servers):
                await asyncio.sleep(1)
    except TimeoutError:
        return False
    return True


def growth(server: Server, span_s: float) -> float:
    """Return the largest memory of the last third of the run, divided by that of the second."""
    second = [size for at, size in server.memory if span_s / 3 <= at < span_s * 2 / 3]
    third = [size for at, size in server.memory if at >= span_s * 2 / 3]
    return max(third) / max(second)


async def soak(uri: str, servers: list[Server], minutes: float) -> bool:
    begin = time.monotonic()
    until = begin + minutes * 60
    seed = int(time.time())
    print(f"disk soak: seed {seed}, {minutes:g} minutes")
    async with quire.connect(uri, config=CONFIG) as client:
        load = Load(client, random.Random(seed))
        async with asyncio.TaskGroup() as group:
            kills = group.create_task(disturb(servers, begin, until))
            for _ in range(WORKERS):
                group.create_task(load.work(until))
        small = await settle(servers, load.live_bytes)
        for ledger in list(load.ledgers):
            await load.check(ledger)
    print(
        f"{load.made} ledgers made, {load.deleted} deleted, {len(load.ledgers)} live and exact, "
        f"{load.read} read; {kills.result()} kills; failed calls: {load.failed or 'none'}"
    )
    ok = small
    for server in servers:
        taken, live = server.log_bytes(), load.live_bytes
        grown = growth(server, minutes * 60)
        ok = ok and grown <= GROWTH_MAX
        print(
            f"{server.name}: {taken / MIB:.0f} MB on disk for {live / MIB:.0f} MB alive "
            f"({(taken - 2 * SEGMENT_BYTES) / live:.2f} times beside two segments, at most "
            f"{SPACE_RATIO_MAX}); compaction wrote "
            f"{server.compacted_bytes / load.appended_bytes:.2f} bytes for each byte appended; "
            f"{max(size for _, size in server.memory) / MIB:.0f} MB resident at most, "
            f"{grown:.2f} times from the second third to the last (at most {GROWTH_MAX}); "
            f"{server.events}"
        )
    print("disk soak: passed" if ok else "disk soak: FAILED")
    return ok


def main() -> int:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        place = Path(directory)
        uri = f"sqlite:///{place}/metadata.db"
        subprocess.run([*COMMAND, "cluster", "init", "--metadata", uri], check=True)
        servers: list[Server] = []
        try:
            for number in range(BOOKIES):
                disk = SmallDisk(place / f"disk{number}", DISK_MB, image=os.geteuid() == 0)
                servers.append(Server(f"b{number}", uri, stack.enter_context(disk)))
            return 0 if asyncio.run(soak(uri, servers, minutes)) else 1
        finally:
            for server in servers:
                server.stop(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
