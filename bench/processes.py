#!/usr/bin/env python3
"""Compare one bookie with several bookies of the same machine (`quire bookie start --processes N`).

    make bench-processes
    make bench-processes ARGS="--processes 16 --clients 8 --rounds 5 --dir /mnt/fast"

The rounds alternate between both. Each starts the service on an empty directory, with the metadata
in SQLite. Clients in processes of their own append to ledgers with one copy, and read them back.
Each client has as many ledgers in both cases, and as many of them on each bookie. All clients
begin a measurement together, and it ends with the last one. Prints a table in Markdown: medians,
with the lowest and the highest sample in brackets. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import quire
from harness import procfs
from quire._runtime.tasks import TaskGroup
from quire.cli.bench.core import Load, Shape, add_many, create, delete, read_whole
from quire.cli.common.options import run_async
from quire.testing._process import LOOPBACK, ServerProcess, quire_command

SHAPE = Shape(1, 1, 1)
"""One copy, so that a ledger has one bookie, and the work of the bookies is not multiplied."""
OUTSTANDING = 1_000
START_LIMIT_S = 120.0
START_POLL_S = 0.1
STOP_LIMIT_S = 60.0
QUIET_LIMIT_S = 30.0
CREATED_MAX = 50
"""The most ledgers to create for each one that is used, until each bookie has its share."""
VERBS = ("add", "read")


# -- the process of a client ------------------------------------------------------------------


async def balanced(client: quire.Client, bookies: int, count: int) -> list[quire.LedgerWriter]:
    """Create `count` ledgers, with the same number on each bookie. Delete those left over."""
    found: dict[str, list[quire.LedgerWriter]] = defaultdict(list)
    for _ in range(count * CREATED_MAX):
        writer = await create(client, SHAPE)
        same = found[writer.metadata.last_segment.ensemble[0]]
        if len(same) < count // bookies:
            same.append(writer)
        else:
            writer.abandon()
            await delete(client, writer.ledger_id)
        if sum(map(len, found.values())) == count:
            return [one for group in found.values() for one in group]
    raise SystemExit(f"the ledgers of the benchmark are on {len(found)} of {bookies} bookies only")


async def serve(uri: str, bookies: int, count: int, load: Load) -> None:
    """Do what each line on standard input says, `add` or `read`, and print a line afterwards."""
    share = Load(load.entries // count, load.size_bytes, max(1, load.outstanding // count))
    async with quire.connect(uri) as client:
        writers = await balanced(client, bookies, count)
        print("ready", flush=True)
        while verb := (await asyncio.to_thread(sys.stdin.readline)).strip():
            async with TaskGroup() as group:
                for writer in writers:
                    if verb == "add":
                        group.create_task(add_many(writer, share))
                    else:
                        group.create_task(read_whole(client, writer.ledger_id))
            print("done", flush=True)
            if verb == "add":
                for writer in writers:
                    await writer.close()
        for writer in writers:
            await delete(client, writer.ledger_id)


# -- the measurement --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """What one measurement found."""

    rate_per_s: float
    bookies_us: float
    """The processor time of the bookies and their supervisor for each entry, in microseconds."""
    clients_us: float
    """The processor time of the clients for each entry, in microseconds."""
    cores: float
    """The number of processor cores that bookies and clients used on average."""


@contextmanager
def service(directory: Path, count: int) -> Iterator[tuple[str, ServerProcess]]:
    """Run `count` bookies in an empty directory. Yield the metadata URI and the process."""
    uri = f"sqlite:///{directory}/metadata.db"
    command = quire_command("cluster", "init", "--metadata", uri)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    command = quire_command(
        "bookie", "start", "--metadata", uri, "--dir", str(directory / "data"), "--port", "0",
        "--advertise", LOOPBACK, "--processes", str(count),
    )  # fmt: skip
    server = ServerProcess("the bookies", command, directory / "log")
    try:
        server.launch()
        deadline = time.monotonic() + START_LIMIT_S
        server.wait_ready(deadline)  # The first of them serves.
        run_async(all_serve(uri, count, deadline))
        yield uri, server
    finally:
        server.stop(STOP_LIMIT_S)


async def all_serve(uri: str, count: int, deadline: float) -> None:
    async with quire.connect(uri) as client:
        while len((await client.metadata.bookies()).writable) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"not all of {count} bookies serve after {START_LIMIT_S:g} s")
            await asyncio.sleep(START_POLL_S)


@contextmanager
def client_process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def expect(processes: Sequence[subprocess.Popen[str]], line: str) -> None:
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline().strip() != line:
            raise SystemExit("a client of the benchmark failed; its error is above")


def one_round(count: int, options: argparse.Namespace) -> list[Sample]:
    """Return a sample of each verb, with `count` bookies."""
    with (
        tempfile.TemporaryDirectory(dir=options.dir) as directory,
        service(Path(directory), count) as (uri, server),
        ExitStack() as stack,
    ):
        command = [
            sys.executable, __file__, "--client", uri, "--bookies", str(count),
            "--processes", str(options.processes), "--entries", str(options.entries),
            "--size", str(options.size),
        ]  # fmt: skip
        clients = [stack.enter_context(client_process(command)) for _ in range(options.clients)]
        expect(clients, "ready")
        pids = [server.pid, *procfs.descendants(server.pid)]
        return [measured(verb, pids, clients, options) for verb in VERBS]


def measured(
    verb: str,
    bookies: Sequence[int],
    clients: Sequence[subprocess.Popen[str]],
    options: argparse.Namespace,
) -> Sample:
    def used_s() -> tuple[float, float]:
        return (
            sum(map(procfs.cpu_s, bookies)),
            sum(procfs.cpu_s(one.pid) for one in clients),
        )

    procfs.wait_until_quiet(bookies, QUIET_LIMIT_S)
    (bookies_s, clients_s), began = used_s(), time.perf_counter()
    for one in clients:
        assert one.stdin is not None
        one.stdin.write(f"{verb}\n")
        one.stdin.flush()
    expect(clients, "done")
    seconds = time.perf_counter() - began
    after = used_s()
    bookies_s, clients_s = after[0] - bookies_s, after[1] - clients_s
    share = options.entries // options.processes
    entries = share * options.processes * options.clients
    return Sample(
        entries / seconds, bookies_s / entries * 1e6, clients_s / entries * 1e6,
        (bookies_s + clients_s) / seconds,
    )  # fmt: skip


def shown(values: Sequence[float], form: str) -> str:
    middle, low, high = (format(f(values), form) for f in (median, min, max))
    return f"{middle} ({low}-{high})"


def row(verb: str, count: int, samples: Sequence[Sample], single: Sequence[Sample]) -> str:
    ratio = median(one.rate_per_s for one in samples) / median(one.rate_per_s for one in single)
    return (
        f"| {verb} | {count} | {shown([one.rate_per_s for one in samples], ',.0f')} | {ratio:.2f} "
        f"| {shown([one.bookies_us for one in samples], '.1f')} "
        f"| {shown([one.clients_us for one in samples], '.1f')} "
        f"| {shown([one.cores for one in samples], '.1f')} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2, help="the number of bookies")
    parser.add_argument("--clients", type=int, default=1, help="client processes at a time")
    parser.add_argument("--entries", type=int, default=500_000, help="the entries of each client")
    parser.add_argument("--size", type=int, default=1_024, help="the bytes of an entry")
    parser.add_argument("--rounds", type=int, default=5, help="rounds with each number of bookies")
    parser.add_argument("--dir", help="the directory for the entries (default: a temporary one)")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--bookies", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processes < 2 or options.clients < 1 or options.entries < options.processes:
        parser.error("give at least 2 processes, a client, and an entry for each process")
    if options.client is not None:
        load = Load(options.entries, options.size, OUTSTANDING)
        run_async(serve(options.client, options.bookies, options.processes, load))
        return 0
    if not procfs.available():
        parser.error("the benchmark reads /proc, which only Linux has")
    found: dict[int, list[list[Sample]]] = {1: [], options.processes: []}
    for _ in range(options.rounds):
        for count in found:
            found[count].append(one_round(count, options))
    print(
        "| work | bookies | entries/s | ratio | CPU of the bookies, us an entry "
        "| CPU of the clients, us an entry | cores used |"
    )
    print("|---|---|---|---|---|---|---|")
    for index, verb in enumerate(VERBS):
        by_count = {count: [one[index] for one in rounds] for count, rounds in found.items()}
        for count, samples in by_count.items():
            print(row(verb, count, samples, by_count[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
