"""Measure what adds to thousands of ledgers in turn cost a client, without bookies and disk.

    python bench/micro/many_ledgers.py                # links in memory
    python bench/micro/many_ledgers.py --sockets      # loopback, and another process answers

The results are microseconds of CPU time of the client for each entry, including the loop of `quire
bench ledgers`, and for each ledger that it creates, with metadata in memory. "first" are the first
adds of each ledger, and "later" are those after them. "one ledger" is `append_many`, for
comparison. In memory, the time of the answering code is subtracted. With sockets, the kernel's part
of the client's work is included.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import Any, cast

import uvloop

from quire._runtime.clock import SystemClock
from quire._runtime.heap import collect_on_demand, keep_heap
from quire.cli.bench import core as bench_core
from quire.cli.bench.core import Load, Shape
from quire.client import Client, LedgerWriter
from quire.codec.wire.v2 import ADD_WORD, RESPONSE, add_columns, equal_frames
from quire.metadata.interface import BookieAddress
from quire.net.frame_buffer import FrameBuffer, frame_size
from quire.net.network import AsyncioNetwork, Network
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore

BOOKIES = 3
SIZE_BYTES = 1024
TOGETHER = 125
"""Adds in one event-loop iteration: one piece of `quire bench ledgers` with 1,000 outstanding."""


def answers(frames: FrameBuffer, data: bytes) -> bytes:
    """Return an OK answer to each complete ADD frame."""
    out: list[bytes] = []
    for buffer in frames.feed(data):
        at, view = 0, memoryview(buffer)
        while at + 4 <= len(view):
            size = frame_size(view, at)
            if at + size > len(view):
                break
            count = equal_frames(view, at, len(view), size)
            stop = at + count * size
            _, ledgers, entries, _ = add_columns(view[at:stop], size)
            out += [RESPONSE.pack(24, ADD_WORD, 0, *ids) for ids in zip(ledgers, entries)]
            at = stop
        frames.keep(buffer, at)
    return b"".join(out)


class Bookie(asyncio.Protocol):
    """The bookie's end of a socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.frames = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        self.transport.write(answers(self.frames, data))


def serve(ports: Connection) -> None:
    """Serve in another process until the pipe is closed."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Bookie, "127.0.0.1", 0) for _ in range(BOOKIES)]
        ports.send([server.sockets[0].getsockname()[1] for server in servers])
        await loop.run_in_executor(None, ports.poll, None)

    uvloop.run(main())


class Answering:
    """A transport whose other end answers in the next event-loop iteration."""

    def __init__(self, protocol: asyncio.Protocol, network: InMemory) -> None:
        self._protocol = protocol
        self._network = network
        self._frames = FrameBuffer()

    def write(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._answer, data)

    def _answer(self, data: bytes) -> None:
        began = time.thread_time()
        answer = answers(self._frames, data)
        self._network.others_s += time.thread_time() - began
        self._protocol.data_received(answer)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return None

    def close(self) -> None: ...

    def abort(self) -> None: ...


class InMemory(AsyncioNetwork):
    def __init__(self) -> None:
        self.others_s = 0.0
        """CPU seconds of the answering code."""

    async def connect(self, host: str, port: int, factory: Any) -> asyncio.Protocol:
        protocol: asyncio.Protocol = factory()
        protocol.connection_made(cast(asyncio.Transport, Answering(protocol, self)))
        return protocol


class Meter:
    """The CPU time of many short pieces of work.

    The lower quartile is the cost of the work itself, because other load only adds to some pieces.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._found: dict[str, list[float]] = {}

    def _cpu_s(self) -> float:
        others = self._network.others_s if isinstance(self._network, InMemory) else 0.0
        return time.thread_time() - others

    @contextmanager
    def each(self, what: str, count: int) -> Iterator[None]:
        began = self._cpu_s()
        yield
        self._found.setdefault(what, []).append((self._cpu_s() - began) * 1e6 / count)

    def found(self) -> dict[str, float]:
        return {what: quantiles(took, n=4)[0] for what, took in self._found.items()}


async def measure(ports: list[int] | None, ledgers: int, rounds: int) -> dict[str, float]:
    network: Network = InMemory() if ports is None else AsyncioNetwork()
    meter = Meter(network)
    cluster = MemoryCluster("bench", clock=SystemClock(), rng=random.Random(1))
    cluster.initialise()
    registrations = []
    for port in ports or range(1, BOOKIES + 1):
        store = MemoryStore(cluster)
        address = BookieAddress(f"127.0.0.1:{port}", "127.0.0.1", port)
        registrations.append(await store.register_bookie(address))
    load = Load(TOGETHER, SIZE_BYTES, TOGETHER * bench_core.PIECES)
    async with Client(MemoryStore(cluster), network=network) as client:
        one = await bench_core.create(client, Shape())
        await bench_core.add_many(one, load)
        pieces: list[list[LedgerWriter]] = []
        for _ in range(ledgers // TOGETHER):
            with meter.each("make", TOGETHER):
                pieces.append([await bench_core.create(client, Shape()) for _ in range(TOGETHER)])
        gc.collect()
        for turn in range(rounds):
            for writers in pieces:
                with meter.each("later" if turn else "first", TOGETHER):
                    await bench_core.add_in_turn(writers, load)
                with meter.each("one ledger", TOGETHER):
                    await bench_core.add_many(one, load)
        for writer in (one, *(writer for writers in pieces for writer in writers)):
            writer.abandon()
    return meter.found()


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of a client that adds to many ledgers")
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5, help="adds to each ledger")
    parser.add_argument("--sockets", action="store_true")
    given = parser.parse_args()
    keep_heap()
    collect_on_demand()
    ports = None
    if given.sockets:
        here, there = multiprocessing.Pipe()
        multiprocessing.Process(target=serve, args=(there,), daemon=True).start()
        ports = here.recv()
    found = uvloop.run(measure(ports, given.ledgers, given.rounds))
    print(", ".join(f"{what} {us:.2f} us" for what, us in found.items()))


if __name__ == "__main__":
    main()
