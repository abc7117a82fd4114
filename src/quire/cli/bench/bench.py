"""The commands `quire bench ...`: their options, and the output of results. `core` measures.

Each round prints one line of results on standard output. Only the rate of operations is followed by
`/s`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.heap import collect_on_demand
from quire._runtime.units import are
from quire.cli.common.groups import say
from quire.cli.common.options import (
    EXPLICIT_LAC_MAX_S,
    Duration,
    FiniteRange,
    LedgerId,
    Size,
    check_quorums,
    composed,
    flag,
    json_option,
    metadata_option,
    password_option,
    placement_option,
    quorum_options,
    run_async,
)
from quire.cli.common.output import print_json
from quire.cli.common.progress import RateBar
from quire.cli.common.tls import connect, tls_options
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import max_payload_bytes

if TYPE_CHECKING:
    import quire
    from quire.cli.bench.core import Load, RoundResult, Shape
    from quire.client import Client

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DEFAULT_ENTRIES = 100_000
DEFAULT_SIZE_BYTES = 1_024
DEFAULT_OUTSTANDING = 1_000
DEFAULT_ROUNDS = 3
DEFAULT_TAIL_RATE = 2_000
DEFAULT_RECORDS = 1_000_000
DEFAULT_TAIL_RECORDS = 500
"""The records of a stream that is followed. They are appended one by one, so a million would take
hours."""
READERS_MAX = 1_000
DEFAULT_WARM_UP_ENTRIES = 2_000
WARM_UP_OUTSTANDING = 100
PROGRESS_INTERVAL_S = 0.5
"""Seconds between two looks at the progress of a round, if it is shown."""
LEDGERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The values of the options that all benchmarks share."""

    verb: str
    uri: str
    load: Load
    shape: Shape
    rounds: int
    warm_up: int
    keep: bool
    as_json: bool
    ledger_id: int | None = None
    """The ledger that is read, or None for one that the benchmark writes."""


def _count(name: str, default: int, text: str, *, least: int = 1) -> Decorator:
    return click.option(
        name, type=click.IntRange(min=least), default=default, show_default=True, help=text
    )


_ENTRIES = partial(_count, "--entries", DEFAULT_ENTRIES)


def _size(least: int, default: int, text: str) -> Decorator:
    return click.option("--size", type=Size(least), default=default, show_default=True, help=text)


_SIZE = _size(0, DEFAULT_SIZE_BYTES, "The payload of each entry, in bytes.")
_ROUNDS = _count(
    "--rounds", DEFAULT_ROUNDS, "The number of measured rounds. Each prints one line of results."
)
_WARM_UP = _count(
    "--warm-up",
    DEFAULT_WARM_UP_ENTRIES,
    "The number of entries to append before the first round, without measuring them.",
    least=0,
)
_OUTSTANDING_HELP = "The number of unacknowledged appends at any time."
_OUTSTANDING = _count("--outstanding", DEFAULT_OUTSTANDING, _OUTSTANDING_HELP)
_MODE = click.option(
    "--mode",
    type=click.Choice(["many", "one"]),
    default="many",
    show_default=True,
    help="How to append. many: append_many in batches. one: one task for each outstanding append.",
)
_KEEP = flag("--keep", "Keep the ledgers. By default, they are deleted at the end.")
_JSON = json_option("Print one JSON object per round.")


def _options(*options: Decorator) -> Decorator:
    return composed(
        metadata_option, *options, quorum_options, placement_option, tls_options, _KEEP, _JSON
    )


def _work(verb: str, given: dict[str, Any]) -> BenchOptions:
    from quire.cli.bench.core import Load, Shape

    quorums = given["ensemble_size"], given["write_quorum"], given["ack_quorum"]
    check_quorums(*quorums)
    _check_size(given["size"], given["digest"])
    return BenchOptions(
        verb,
        given["uri"],
        Load(given["entries"], given["size"], given.get("outstanding", DEFAULT_OUTSTANDING)),
        Shape(*quorums, given["digest"]),
        given["rounds"],
        given.get("warm_up", 0),
        given["keep"],
        given["as_json"],
    )


def _check_size(size: int, digest: str) -> None:
    most = max_payload_bytes(DigestType.parse(digest))
    if size > most:
        raise click.UsageError(f"--size {size} is too large: an entry has at most {most} bytes")


# -- commands ---------------------------------------------------------------------------------


@click.command()
@_options(
    _ENTRIES("The number of appends in each round."),
    _SIZE,
    _OUTSTANDING,
    _ROUNDS,
    _count("--ledgers", 1, "The number of ledgers to append to in turn."),
    _MODE,
    _WARM_UP,
)
def add(ledgers: int, mode: str, **given: Any) -> None:
    """Measure append throughput with many appends outstanding.

    The results are the rate, and the latency of each batch (--mode many) or append (--mode one).
    """
    run_async(_add(_work("add", given), ledgers, mode))


@click.command("ledgers")
@_options(
    _ENTRIES("The number of appends in each round."),
    _SIZE,
    _OUTSTANDING,
    _ROUNDS,
    _count("--ledgers", 1_000, "The number of ledgers to append to in turn."),
    _MODE,
    _WARM_UP,
)
def ledgers(ledgers: int, mode: str, **given: Any) -> None:
    """Measure appends that are spread over many ledgers.

    This is the same as `quire bench add --ledgers N`.
    """
    run_async(_add(_work("ledgers", given), ledgers, mode))


@click.command()
@_options(
    _count("--entries", 2_000, "The number of appends in each round."),
    _SIZE,
    _count("--outstanding", 1, _OUTSTANDING_HELP),
    click.option(
        "--rate",
        type=FiniteRange(min=0, min_open=True),
        help="Append at this rate per second, regardless of the number of unacknowledged appends. "
        "This replaces --outstanding.",
    ),
    _ROUNDS,
    _WARM_UP,
)
def latency(rate: float | None, **given: Any) -> None:
    """Measure the latency of single appends.

    By default, one append is outstanding at any time; --outstanding and --rate change that.
    """
    run_async(_latency(_work("latency", given), rate))


@click.command()
@_options(
    _ENTRIES("The number of entries in the ledger that is written first."),
    _SIZE,
    _OUTSTANDING,
    _ROUNDS,
    click.option(
        "--ledger",
        "ledger_id",
        metavar="ID",
        type=LedgerId(),
        help="Read this ledger instead of writing one first.",
    ),
    password_option,
)
def read(ledger_id: int | None, password: bytes, **given: Any) -> None:
    """Measure sequential reads of a whole ledger. All digests are verified."""
    run_async(_read(_work("read", given), ledger_id, password))


@click.command()
@_options(
    _count("--entries", 1_000, "The number of entries of each ledger."),
    _SIZE,
    _OUTSTANDING,
    _ROUNDS,
    _count("--ledgers", 20, "The number of ledgers to recover in each round."),
)
def recover(ledgers: int, **given: Any) -> None:
    """Measure recovery of ledgers whose writer is gone.

    The time to open each ledger with recovery is measured. All entries of a ledger are appended at
    once and acknowledged, so --outstanding has no effect.
    """
    run_async(_recover(_work("recover", given), ledgers))


@click.command()
@_options(
    _count("--entries", 5_000, "The number of entries of each ledger."),
    _SIZE,
    _OUTSTANDING,
    _ROUNDS,
    _count("--ledgers", 20, "The number of ledgers to write in each round."),
)
def rereplicate(ledgers: int, **given: Any) -> None:
    """Measure how fast the data of a bookie is re-replicated.

    Closed ledgers are written, and the bookie that most of them use is replaced in all of them. The
    cluster must have at least one bookie more than --ensemble.
    """
    run_async(_rereplicate(_work("rereplicate", given), ledgers))


@click.command()
@_options(
    _count("--entries", 20_000, "The number of appends in each round."),
    _SIZE,
    click.option(
        "--rate",
        type=FiniteRange(min=0, min_open=True),
        default=DEFAULT_TAIL_RATE,
        show_default=True,
        help="The rate of appends per second.",
    ),
    _count("--readers", 1, "The number of readers that follow the ledger while it is written."),
    click.option(
        "--clients",
        type=click.IntRange(min=1),
        help="The number of clients that the readers use. [default: one for each reader]",
    ),
    click.option(
        "--explicit-lac",
        "explicit_lac_s",
        type=Duration(0, EXPLICIT_LAC_MAX_S, plain="ms"),
        default=0,
        show_default=True,
        help="Let the writer report its last acknowledged entry after this many milliseconds "
        "without an append. 0 means never.",
    ),
    _ROUNDS,
    _WARM_UP,
)
def tail(
    rate: float, readers: int, clients: int | None, explicit_lac_s: float, **given: Any
) -> None:
    """Measure the time from an append to its delivery at readers.

    The readers follow the ledger. The time from the acknowledgement of the append is measured as
    well.
    """
    if readers > READERS_MAX:
        raise click.UsageError(f"--readers {readers} is too large: the limit is {READERS_MAX}")
    clients = readers if clients is None else clients
    if clients > readers:
        raise click.UsageError(
            f"--clients {clients} is greater than --readers {readers}: use at most one client "
            "for each reader"
        )
    run_async(_tail(_work("tail", given), rate, readers, clients, explicit_lac_s))


@click.command()
@_options(
    click.argument("what", type=click.Choice(["write", "read", "tail"])),
    click.option(
        "--entries",
        type=click.IntRange(min=1),
        help="The number of records of each stream in a round. "
        f"[default: {DEFAULT_RECORDS}; for tail {DEFAULT_TAIL_RECORDS}]",
    ),
    _size(1, 100, "The payload of each record, in bytes."),
    _ROUNDS,
    _count("--streams", 1, "With write: the number of streams to write at the same time."),
    _count("--readers", 1, "With tail: the number of readers that follow the stream."),
    flag("--lz4", "Compress entries with LZ4."),
)
def stream(
    what: str, entries: int | None, streams: int, readers: int, lz4: bool, **given: Any
) -> None:
    """Measure writing, reading or following streams."""
    if entries is None:
        entries = DEFAULT_TAIL_RECORDS if what == "tail" else DEFAULT_RECORDS
    given["entries"] = entries
    run_async(_stream(_work(f"stream {what}", given), what, streams, readers, lz4))


# -- rounds -----------------------------------------------------------------------------------


async def _add(work: BenchOptions, count: int, mode: str) -> None:
    from quire.cli.bench import core as bench_core

    if count > LEDGERS_MAX:
        raise click.UsageError(f"--ledgers {count} is too large: the limit is {LEDGERS_MAX}")

    def appends(writers: list[quire.LedgerWriter], load: Load) -> bench_core.Measured:
        if mode == "one":
            return partial(bench_core.add_one_by_one, writers, load)
        if count == 1:
            return partial(bench_core.add_many, writers[0], load)
        return partial(bench_core.add_in_turn, writers, load)

    async with connect(work.uri) as client:
        await _check_cluster(client, work)
        await _warm_up(client, work)
        collect_on_demand()  # otherwise each collection, with many writers, delays entries

        async def round_() -> RoundResult:
            gc.collect()  # the garbage of the previous round
            made = bench_core.ledgers(client, work.shape, count, keep=work.keep)
            async with made as writers:
                return await bench_core.measure(work.load, appends(writers, work.load))

        await _rounds(work, round_)


async def _latency(work: BenchOptions, rate: float | None) -> None:
    from quire.cli.bench import core as bench_core

    async with connect(work.uri) as client:
        await _check_cluster(client, work)
        await _warm_up(client, work)

        async def round_() -> RoundResult:
            async with bench_core.ledgers(client, work.shape, keep=work.keep) as writers:
                if rate is None:
                    appends = partial(bench_core.add_one_by_one, writers, work.load)
                else:
                    appends = partial(bench_core.add_paced, writers[0], work.load, rate)
                return await bench_core.measure(work.load, appends)

        await _rounds(work, round_)


async def _tail(
    work: BenchOptions, rate: float, count: int, clients: int, explicit_lac_s: float
) -> None:
    from contextlib import AsyncExitStack

    from quire.cli.bench import core as bench_core
    from quire.cli.bench import tail as bench_tail

    writing = connect(work.uri, explicit_lac_interval_s=explicit_lac_s)
    async with writing as client, AsyncExitStack() as stack:
        await _check_cluster(client, work)
        await _warm_up(client, work)
        following = [await stack.enter_async_context(connect(work.uri)) for _ in range(clients)]
        collect_on_demand()  # otherwise each collection delays entries

        async def round_() -> RoundResult:
            gc.collect()  # the garbage of the previous round
            async with bench_core.ledgers(client, work.shape, keep=work.keep) as writers:
                readers = await bench_tail.open_all(following, writers[0].ledger_id, count)
                return await bench_tail.tail_paced(writers[0], readers, work.load, rate)

        await _rounds(work, round_)


async def _stream(work: BenchOptions, what: str, streams: int, readers: int, lz4: bool) -> None:
    from quire.cli.bench import stream as bench_stream

    settings: dict[str, object] = {"compression": "lz4" if lz4 else "none"}
    async with connect(work.uri) as client:
        await _check_cluster(client, work)
        gc.collect()
        gc.freeze()

        async def round_() -> RoundResult:
            made = bench_stream.namespace(client, work.shape, settings, keep=work.keep)
            async with made as namespace:
                if what == "tail":
                    return await bench_stream.tail(namespace, work.load, readers)
                written = await bench_stream.write(namespace, work.load, streams)
                if what == "write":
                    return written
                return await bench_stream.read(namespace, "s0", work.load)

        await _rounds(work, round_)


async def _check_cluster(client: Client, work: BenchOptions, *, spare: int = 0) -> None:
    """Raise NotEnoughBookiesError if the cluster has too few bookies for the benchmark's ledgers.

    `spare` is the number of writable bookies that must be left beside an ensemble. Bookies that are
    just starting are awaited, as in `create_ledger`.
    """
    from quire.client.client import pool_of
    from quire.core.placement import Wanted
    from quire.errors import NotEnoughBookiesError

    shape = work.shape
    wanted = Wanted.new(shape.ensemble, shape.write_quorum, shape.ack_quorum)
    found = await pool_of(client).pick(wanted)
    writable = (await client.bookies()).writable
    why = ""
    if len(found) < shape.ensemble:
        why = client.placement.why(wanted, client.placement.view())
    elif len(writable) < shape.ensemble + spare:
        why = (
            f"{shape.ensemble + spare} writable bookies are needed, an ensemble of "
            f"{shape.ensemble} and {spare} to replace a member; {len(writable)} "
            f"{are(len(writable))} writable"
        )
    if why and len(writable) >= shape.ensemble + spare:
        raise NotEnoughBookiesError(
            f"bench {work.verb} cannot run on this cluster: {why}",
            remedy="Start bookies in other places, or choose another placement (--placement)",
        )
    if why:
        fewer = max(min(len(writable) - spare, shape.ensemble - 1), 1)
        raise NotEnoughBookiesError(
            f"bench {work.verb} cannot run on this cluster: {why}",
            remedy=f"Start more bookies, or use a smaller ensemble, for example --ensemble {fewer} "
            f"--write-quorum {min(fewer, shape.write_quorum)} "
            f"--ack-quorum {min(fewer, shape.ack_quorum)}",
        )


async def _warm_up(client: Client, work: BenchOptions) -> None:
    from quire.cli.bench import core as bench_core

    if work.warm_up:
        load = bench_core.Load(work.warm_up, work.load.size_bytes, WARM_UP_OUTSTANDING)
        async with bench_core.ledgers(client, work.shape) as writers:
            await bench_core.add_many(writers[0], load)
    # Freeze the present objects: a collection that examines them all would delay entries.
    gc.collect()
    gc.freeze()


async def _read(work: BenchOptions, ledger_id: int | None, password: bytes) -> None:
    from quire.cli.bench import core as bench_core

    async with connect(work.uri) as client:
        if ledger_id is not None:
            await _rounds(
                replace(work, ledger_id=ledger_id),
                partial(
                    bench_core.read_whole, client, ledger_id, password, progress=work.load.progress
                ),
            )
            return
        await _check_cluster(client, work)
        writer = await bench_core.create(client, work.shape)
        try:
            async with _progress(work):
                await bench_core.add_many(writer, work.load)
            await writer.close()
            await _rounds(
                work,
                partial(
                    bench_core.read_whole, client, writer.ledger_id, progress=work.load.progress
                ),
            )
        finally:
            if not work.keep:
                await bench_core.delete(client, writer.ledger_id)


async def _recover(work: BenchOptions, count: int) -> None:
    from quire.cli.bench import core as bench_core

    async with connect(work.uri) as client, connect(work.uri) as other:
        await _check_cluster(client, work)
        await _rounds(
            work,
            partial(
                bench_core.recover_each, client, other, work.shape, work.load, count, keep=work.keep
            ),
        )


async def _rereplicate(work: BenchOptions, count: int) -> None:
    from quire.cli.bench.rereplicate import rereplicate as measured

    async with connect(work.uri) as client, connect(work.uri) as other:
        await _check_cluster(client, work, spare=1)
        await _rounds(
            work, partial(measured, client, other, work.shape, work.load, count, keep=work.keep)
        )


async def _rounds(work: BenchOptions, round_: Callable[[], Awaitable[RoundResult]]) -> None:
    if sys.stderr.isatty() and work.ledger_id is not None:
        say(f"{work.verb}: ledger {work.ledger_id}")
    elif sys.stderr.isatty():
        shape, load = work.shape, work.load
        say(
            f"{work.verb}: {load.entries} entries of {load.size_bytes} bytes, "
            f"E={shape.ensemble} Wq={shape.write_quorum} Aq={shape.ack_quorum}, {shape.digest}"
        )
    for number in range(1, work.rounds + 1):
        async with _progress(work):
            result = await round_()
        _print(work, number, result)


@asynccontextmanager
async def _progress(work: BenchOptions) -> AsyncIterator[None]:
    """Show the progress of the round on a terminal."""
    progress = work.load.progress
    progress.end()

    async def draw(bar: RateBar) -> None:
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            if progress.what:
                seconds = time.perf_counter() - progress.began_s
                what = f"{work.verb}: {progress.what}"
                bar.show(what, progress.total, progress.count(), seconds)

    with RateBar(shown=not work.as_json) as bar:
        if not bar.drawn:
            yield
            return
        drawing = asyncio.create_task(draw(bar))
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.wait([drawing])


# -- results ----------------------------------------------------------------------------------


def _print(work: BenchOptions, number: int, result: RoundResult) -> None:
    p50, p99 = result.percentile_ms(50), result.percentile_ms(99)
    acked = [result.percentile_ms(percent, since_acked=True) for percent in (50, 99)]
    # Recoveries are reported by their latency only, because a rate would be misleading.
    rated = work.verb != "recover"
    if work.as_json:
        size, outstanding = work.load.size_bytes, work.load.outstanding
        given = work.ledger_id is not None  # others have written it
        print_json(
            {
                "verb": work.verb,
                "round": number,
                "rate_per_s": round(result.rate_per_s, 1) if rated else None,
                "mb_per_s": round(result.mb_per_s, 3) if rated else None,
                "p50_ms": _rounded(p50),
                "p99_ms": _rounded(p99),
                **_of_readers(result, acked),
                "cpu_s": round(result.cpu_seconds, 3),
                "seconds": round(result.seconds, 4),
                "entries": work.load.entries if not rated else result.operations,
                "size": result.payload_bytes // max(result.operations, 1) if given else size,
                "outstanding": None if given else outstanding,
            }
        )
        return
    parts = [f"{result.rate_per_s:.0f}/s"] if rated else [f"{result.operations} openings"]
    if p50 is not None and p99 is not None:
        parts += [f"p50 {p50:.2f} ms", f"p99 {p99:.2f} ms"]
    if acked[0] is not None and acked[1] is not None:
        parts.append(f"from acknowledgement p50 {acked[0]:.2f} ms, p99 {acked[1]:.2f} ms")
    if result.delivery_cpu_us is not None:
        parts.append(f"{result.delivery_cpu_us:.1f} us a delivery")
    parts.append(f"client CPU {result.cpu_seconds:.2f} s of {result.seconds:.2f} s")
    sys.stdout.write(f"{work.verb} {number} of {work.rounds}: {', '.join(parts)}\n")
    sys.stdout.flush()


def _of_readers(result: RoundResult, acked: list[float | None]) -> dict[str, float | None]:
    if not result.deliveries:
        return {}
    return {
        "acked_p50_ms": _rounded(acked[0]),
        "acked_p99_ms": _rounded(acked[1]),
        "delivery_cpu_us": _rounded(result.delivery_cpu_us),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
