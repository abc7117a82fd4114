#!/usr/bin/env python3
"""Measure what hostile clients cost a bookie: its memory, and the latency of honest adds.

    .venv/bin/python bench/hostile.py [--connections 2000] [--seconds 30] [--src PATH] [--beside]

A real bookie process faces five kinds of hostile connections in equal numbers. Each connects again
when it is closed.

| kind | what it does |
|---|---|
| silent | connects and sends nothing |
| partial | sends 4 MiB of a frame of 5 MiB, then nothing |
| reader | sends 100 batch reads of 5 MiB at once and reads the answers slowly |
| deaf | sends 400 batch reads of 5 MiB at once and never reads |
| poller | sends 100 long polls at once |

Before and during the attack, one honest client adds entries of 1 KB, each 10 ms after the answer to
the previous one. Another client reads 64 KB every 50 ms. The result is one JSON object. `--src`
runs the bookie from another checkout for comparison. `--beside` attacks another bookie on the same
machine, to separate the effect on the bookie from the effect on the machine. The hostile clients
run in a separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3

KEY = master_key(b"")
LEDGER, HONEST = 7, 8
ENTRIES, ENTRY_BYTES = 512, 16 * 1024
MIB = 1024 * 1024
ADD_EVERY_S, READ_EVERY_S, LOOK_EVERY_S = 0.01, 0.05, 0.2
ATTACK_NICE = 19
"""Hostile clients use only spare processor time, as if they ran on another machine."""
AFTER_S = 20.0
"""Seconds after the attack at which memory is measured."""
ROOT = Path(__file__).resolve().parent.parent


def add_frame(ledger: int, entry_id: int, size: int) -> bytes:
    codec = EntryCodec(ledger, DigestType.CRC32C, b"")
    return frames.add_request(KEY, codec.pack(entry_id, entry_id - 1, 0, bytes(size)))


def batch_read(number: int) -> bytes:
    return frames.batch_read_request(LEDGER, 0, number, ENTRIES, 5 * MIB)


# -- the hostile clients ----------------------------------------------------------------------


async def hostile(kind: str, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    transport = writer.transport
    try:
        if kind in ("silent", "partial", "deaf"):
            transport.pause_reading()
        if kind == "partial":
            writer.write((5 * MIB - 4).to_bytes(4, "big") + b"\x02\x01\x00\x00" + bytes(4 * MIB))
        elif kind == "reader":
            writer.write(b"".join(map(batch_read, range(100))))
        elif kind == "deaf":
            writer.write(b"".join(map(batch_read, range(400))))
        elif kind == "poller":
            polls = [v3.long_poll_request(n, LEDGER, ENTRIES - 1, 60_000) for n in range(1, 101)]
            writer.write(b"".join(polls))
        while True:
            if kind in ("silent", "partial", "deaf"):
                # Without reads, only the socket's error shows that the connection is closed.
                await asyncio.sleep(2.0)
                error = transport.get_extra_info("socket").getsockopt(
                    socket.SOL_SOCKET, socket.SO_ERROR
                )
                if error or transport.is_closing():
                    return
            elif not await reader.read(64 * 1024):
                return
            else:
                await asyncio.sleep(0.5)
    finally:
        transport.abort()


async def again_and_again(kind: str, port: int) -> None:
    while True:
        with suppress(OSError):
            await hostile(kind, port)
        await asyncio.sleep(1.0)


async def attack(port: int, connections: int) -> None:
    kinds = ("silent", "partial", "reader", "deaf", "poller")
    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(again_and_again(kinds[number % len(kinds)], port))
            await asyncio.sleep(0.001)


# -- the honest clients -----------------------------------------------------------------------


class Honest:
    """One request at a time on one connection, with the time that each took."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.took_s: list[float] = []
        self.failed = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> bytes:
        began_s = time.perf_counter()
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self.port)
            reader, writer = self._streams
            writer.write(request)
            head = await reader.readexactly(4)
            answer = head + await reader.readexactly(int.from_bytes(head, "big"))
        except (OSError, asyncio.IncompleteReadError):
            self.failed += 1
            self._streams = None
            await asyncio.sleep(0.1)
            return b""
        self.took_s.append(time.perf_counter() - began_s)
        return answer

    def result(self) -> dict[str, float]:
        took = sorted(self.took_s)
        found = {"requests": len(took), "failed": self.failed}
        if took:
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                at = min(len(took) - 1, int(share * len(took)))
                found[f"{name}_ms"] = round(took[at] * 1000, 2)
        self.took_s, self.failed = [], 0
        return found


async def every(
    period_s: float, seconds: float, work: Callable[[], Coroutine[Any, Any, Any]]
) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    while loop.time() < end_s:
        await work()
        await asyncio.sleep(period_s)


class Measured:
    def __init__(self, port: int, pid: int) -> None:
        self.adder, self.reader = Honest(port), Honest(port)
        self.pid = pid
        self.most_mb = 0
        self._entry_id = 0

    async def fill(self) -> None:
        for entry_id in range(ENTRIES):
            await self.adder.ask(add_frame(LEDGER, entry_id, ENTRY_BYTES))
        self.adder.result()

    def resident_mb(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        [line] = [line for line in text.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) // 1024

    async def _look(self) -> None:
        self.most_mb = max(self.most_mb, self.resident_mb())

    async def _add(self) -> None:
        answer = await self.adder.ask(add_frame(HONEST, self._entry_id, 1024))
        if answer:
            assert answer == frames.add_response(0, HONEST, self._entry_id)
            self._entry_id += 1

    async def _read(self) -> None:
        await self.reader.ask(frames.batch_read_request(LEDGER, 8, 1, 4, 5 * MIB))

    async def phase(self, seconds: float) -> dict[str, Any]:
        self.most_mb = 0
        await asyncio.gather(
            every(ADD_EVERY_S, seconds, self._add),
            every(READ_EVERY_S, seconds, self._read),
            every(LOOK_EVERY_S, seconds, self._look),
        )
        return {
            "adds": self.adder.result(),
            "reads": self.reader.result(),
            "resident_mb_most": self.most_mb,
        }


# -- all of it --------------------------------------------------------------------------------


async def measure(
    port: int, pid: int, attacked: int, connections: int, seconds: float
) -> dict[str, Any]:
    """Measure the bookie at `port` while the one at `attacked`, perhaps the same, is attacked."""
    if attacked != port:
        await Measured(attacked, pid).fill()
    measured = Measured(port, pid)
    await measured.fill()
    found: dict[str, Any] = {"normal": await measured.phase(seconds / 2)}
    command = [
        sys.executable,
        __file__,
        "--attack",
        str(attacked),
        "--connections",
        str(connections),
    ]
    attacker = subprocess.Popen(command)  # noqa: ASYNC220 - it takes only milliseconds
    try:
        found["attack"] = await measured.phase(seconds)
    finally:
        attacker.kill()
        attacker.wait()
    await asyncio.sleep(AFTER_S)
    found["resident_mb_after"] = measured.resident_mb()
    found["after"] = await measured.phase(seconds / 4)
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run(connections: int, seconds: float, src: str, *, beside: bool) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": src}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        uri = f"sqlite:///{directory}/metadata.db"
        quire = [sys.executable, "-m", "quire"]
        subprocess.run([*quire, "cluster", "init", "--metadata", uri], env=environment, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip

        def start(name: str) -> tuple[int, int]:
            port, log = free_port(), stack.enter_context(open(f"{directory}/{name}.log", "wb"))
            bookie = subprocess.Popen(
                [*quire, "bookie", "start", "--metadata", uri, "--dir", f"{directory}/{name}",
                 "--port", str(port)],
                env=environment, stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
            stack.callback(stop, bookie)
            _until_it_listens(port)
            return port, bookie.pid

        port, pid = start("measured")
        attacked = start("attacked")[0] if beside else port
        return asyncio.run(measure(port, pid, attacked, connections, seconds))


def stop(bookie: subprocess.Popen[bytes]) -> None:
    bookie.terminate()
    try:
        bookie.wait(30)
    except subprocess.TimeoutExpired:
        bookie.kill()
        bookie.wait()


def _until_it_listens(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("The bookie does not listen.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--connections", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="the length of the attack")
    parser.add_argument("--src", default=str(ROOT / "src"), help="the bookie's source directory")
    parser.add_argument("--beside", action="store_true", help="attack another bookie")
    parser.add_argument("--attack", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.attack is not None:
        os.nice(ATTACK_NICE)
        asyncio.run(attack(options.attack, options.connections))
        return
    print(
        json.dumps(
            run(options.connections, options.seconds, options.src, beside=options.beside), indent=2
        )
    )


if __name__ == "__main__":
    main()
