"""Measure what tracing costs a writer: the CPU time of one batch, up to its acknowledgement.

    python bench/micro/tracing.py

There are no sockets and no bookies. Blocks of batches alternate between four kinds: with the code
for spans removed, without a tracer, with a tracer that samples nothing, and with a tracer that
records everything and exports nothing. The difference from the first kind is a median over the
rounds, so other load on the machine affects all kinds alike.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import statistics
import textwrap
import time
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import Tracer

from quire._runtime.tasks import TaskSet
from quire.client.cluster.pool import BookiePool
from quire.client.observability.metrics import ClientCounters
from quire.client.observability.tracing import Tracing
from quire.client.write import add_session
from quire.client.write.add_session import AddSession, SharedByWriters
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.config import ClientConfig

SHAPES = {"1 entry of 100 B": (1, 100), "64 entries of 1 KB": (64, 1024)}
BLOCK = 200
"""The number of batches in a block."""
ROUNDS = 100
MEMBERS = ("b1", "b2", "b3")


class Link:
    """A link that accepts and ignores everything."""

    bookie_id = "b"

    def takes_adds_of(self, ledger_id: int) -> bool:
        return True

    def attach(self, ledger_id: int, sink: Any) -> None: ...

    def detach(self, ledger_id: int, sink: Any, *, unanswered: bool) -> None: ...

    def send(self, data: bytes) -> None: ...


class Pool(BookiePool):
    def __init__(self, tracer: Tracer | None) -> None:
        self.counters = ClientCounters()
        self.tracing = Tracing(tracer)

    async def channel(self, bookie_id: str, adds_of: int | None = None) -> Any:
        return Link()

    def channel_now(self, bookie_id: str, adds_of: int) -> Any:
        return None


class _CutOut(ast.NodeTransformer):
    """Removes the statements below `if self.spans is not None`."""

    def __init__(self) -> None:
        self.found = 0

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if ast.unparse(node.test) == "self.spans is not None":
            self.found += 1
            return None
        return node


def without_spans(method: Any) -> Any:
    cut = _CutOut()
    tree = cut.visit(ast.parse(textwrap.dedent(inspect.getsource(method))))
    assert cut.found == 1, f"{method.__name__} has {cut.found} tests for spans"
    made: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), method.__name__, "exec"), vars(add_session), made)
    return made[method.__name__]


class Bare(AddSession):
    push = without_spans(AddSession.push)
    after_acks = without_spans(AddSession.after_acks)


class AsItIs(AddSession):
    """A class with the same method lookups as `Bare`, but with the unchanged code."""

    push = AddSession.push
    after_acks = AddSession.after_acks


async def no_change(failed: Any, replacements: Any, first: int) -> tuple[str, ...]:
    raise AssertionError("nothing failed")


def session(kind: type[AddSession], tasks: TaskSet, tracer: Tracer | None) -> AddSession:
    pool, config = Pool(tracer), ClientConfig()
    return kind(
        codec=EntryCodec(1, DigestType.CRC32C, b""),
        key=master_key(b""),
        pool=pool,
        shared=SharedByWriters.of_client(config, pool.counters),
        config=config,
        tasks=tasks,
        ensemble=MEMBERS,
        write_quorum=3,
        ack_quorum=2,
        change_ensemble=no_change,
    )


def tracer(sampler: Any) -> Tracer:
    return TracerProvider(sampler=sampler, shutdown_on_exit=False).get_tracer("bench")


async def measure(entries: int, payload_bytes: int) -> dict[str, tuple[float, float]]:
    """Return, for each kind, the microseconds per batch and the difference from the first kind."""
    tasks = TaskSet()
    kinds = {
        "code cut out": session(Bare, tasks, None),
        "no tracer": session(AsItIs, tasks, None),
        "not sampled": session(AsItIs, tasks, tracer(ALWAYS_OFF)),
        "recorded": session(AsItIs, tasks, tracer(ALWAYS_ON)),
    }
    payloads = [bytes(payload_bytes)] * entries
    for one in kinds.values():
        last = one.push(payloads)
        while not all(member.channel for member in one._members):
            await asyncio.sleep(0)  # Their connections are being made.
        for member in one._members:
            member.on_acked_run(0, last)
    took: dict[str, list[float]] = {name: [] for name in kinds}
    names = list(kinds)
    for at in range(ROUNDS):
        gc.collect()
        gc.disable()
        for n in range(len(names)):
            name = names[(at + n) % len(names)]
            took[name].append(run(kinds[name], payloads) * 1e6 / BLOCK)
        gc.enable()
    for one in kinds.values():
        assert one.pipeline.last_confirmed == one.pipeline.last_pushed
        one.stop()
    await tasks.close()
    base = took[names[0]]
    return {
        name: (
            statistics.median(took[name]),
            statistics.median(here - there for here, there in zip(took[name], base)),
        )
        for name in names
    }


def run(one: AddSession, payloads: list[bytes]) -> float:
    started = time.thread_time()
    for _ in range(BLOCK):
        last = one.push(payloads)
        for member in one._members:
            member.on_acked_run(last - len(payloads) + 1, last)
    return time.thread_time() - started


def main() -> None:
    for shape, (entries, payload_bytes) in SHAPES.items():
        found = asyncio.run(measure(entries, payload_bytes))
        base = found["code cut out"][0]
        for name, (median_us, more_us) in found.items():
            print(
                f"{shape:20} {name:12} {median_us:8.2f} us a batch, {more_us:+7.2f} us "
                f"({more_us / base * 100:+.1f} %)",
                flush=True,
            )


if __name__ == "__main__":
    main()
