"""Compare the metrics of bookies with what they did, as seen at their stores.

The store of each bookie is watched from its start. At the end of a run nothing is in flight, so
the counters must be exactly what was seen, and whatever they count together must add up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire._runtime.metrics import Metric
from quire.bookie.metrics import bookie_metrics
from quire.bookie.protocol.answer_budget import Account
from quire.bookie.server import Bookie
from quire.codec.wire.v2 import Buffer
from quire.errors import StorageError
from quire.storage.directories import Store
from quire.storage.segment.batch import LogBatch
from quire.storage.segment.segment import number_of, segment_name
from quire_simulator.invariants.checker import EXAMINING, Checker
from quire_simulator.invariants.reports.comparison import REST_S, Comparison
from quire_simulator.invariants.reports.directories import stores_of
from quire_simulator.plans.workloads import WORKLOADS
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World


@dataclass(slots=True)
class Seen:
    """What was seen at the store of one bookie since its start."""

    adds: int = 0
    add_bytes: int = 0
    batches: int = 0
    durable: int = 0
    """The number of added entries that became durable."""
    fences: int = 0
    reads: int = 0
    """The number of reads that the store answered with entries."""
    read_bytes: int = 0
    given_up: int = 0
    """The number of requests that were dropped, or cancelled, because their connection ended."""


class BookieReports:
    """What every bookie of a run did since its last start."""

    def __init__(self, world: World, checker: Checker) -> None:
        self._world = world
        self._checker = checker
        self._seen: dict[Store, Seen] = {}
        self._other_stores = False
        """Whether reads were answered by another store while the log was loaded."""
        watch = world.claims.watch

        def watched(bookie_id: str, store: Store) -> None:
            watch(bookie_id, store)
            self._seen[store] = seen = Seen()
            _watch(store, seen)
            _watch_ends(world.bookies[bookie_id.partition(":")[0]], seen)

        world.claims.watch = watched  # type: ignore[method-assign]

    async def compare(self, stage: Stage) -> None:
        """Compare the metrics of all running bookies."""
        world = self._world
        mix = WORKLOADS[stage.plan.workload]
        self._other_stores = mix.slow_starts or bool(stage.plan.schedule)
        if stage.plan.liars:
            return  # What the store of a Byzantine bookie returns is not what it serves.
        await asyncio.sleep(REST_S)
        for name, bookie in list(world.bookies.items()):
            if not bookie.recovered or bookie.store.failed is not None or not bookie.serving:
                continue
            told = Comparison(self._checker, "metrics_are_true", f"the metrics of {name}")
            values = values_of(bookie_metrics(bookie, world.loop.time()))
            if name not in world.pretending:
                self._service(told, bookie, values, self._seen[bookie.store])
            if len(stores_of(bookie)) == 1 and not world.misses_a_directory(name):
                self._storage(told, name, bookie, values)

    def _service(
        self, told: Comparison, bookie: Bookie, values: dict[str, float], seen: Seen
    ) -> None:
        counters, times = bookie.service.counters, bookie.service.times

        def equal(name: str, known: float) -> None:
            told.equal(name, values[name], known)

        equal("quire_bookie_adds_total", seen.adds)
        equal("quire_bookie_add_bytes_total", seen.add_bytes)
        equal("bookie_WRITE_BYTES", seen.add_bytes)
        equal("quire_bookie_add_batches_total", seen.batches)
        equal("quire_bookie_read_bytes_total", seen.read_bytes)
        equal("bookie_READ_BYTES", seen.read_bytes)
        # A bookie that has lost a directory also sets fences by itself.
        told.within("fences", 0, counters.fences, seen.fences)
        timed = times.fences.count + times.fences_failed.count
        told.equal("timed fences", timed, counters.fences)
        told.equal("timed failed adds", times.adds_failed.count, seen.adds - seen.durable)
        told.within("timed adds", 0, bookie.log_times.added.count, seen.durable)
        told.equal("answered adds", bookie.log_times.answered.count, bookie.log_times.added.count)
        told.within("copies", 0, counters.copies, seen.adds)
        told.equal("timed adds and copies", bookie.log_times.added.count + counters.copies >=
                   seen.durable, True)  # fmt: skip
        found = counters.reads - counters.reads_missing - counters.reads_failed
        told.within("timed reads", 0, times.reads.count, found)
        if not self._other_stores:
            most = seen.reads + seen.given_up
            told.within("reads that found something", 0, found, most)
        told.within("reads from the disk", 0, counters.reads_from_disk, counters.reads)
        equal("bookie_read_cache_misses", counters.reads_from_disk)
        equal("bookie_read_cache_hits", counters.reads - counters.reads_from_disk)
        # A client whose machine is gone is noticed late. Its requests wait behind its answers.
        if not bookie.service.answers.held_bytes:
            equal("quire_bookie_waiting_requests", 0)
            equal("quire_bookie_waiting_connections", 0)
        equal("quire_bookie_background_errors_total", 0)
        told.within("connections", 0, values["quire_bookie_connections"], counters.connections)
        told.equal("bookie_SERVER_STATUS", values["bookie_SERVER_STATUS"], int(bookie.writable))

    def _storage(
        self, told: Comparison, name: str, bookie: Bookie, values: dict[str, float]
    ) -> None:
        """Compare what is said about the log of a bookie with one data directory."""
        disk, (store,) = self._world.disks[name], stores_of(bookie)
        config, usage, ledgers = store._config, store.usage(), store.ledgers.values()

        def equal(name: str, known: float) -> None:
            told.equal(f"{name} of the log", values[f"quire_storage_{name}"], known)

        equal("ledgers", len(ledgers))
        equal("live_bytes", sum(one.size_bytes for one in ledgers))
        equal("live_bytes", sum(one.live_bytes for one in usage))
        equal("segments", len(usage))
        equal("sealed_segments", sum(one.state == "sealed" for one in usage))
        equal("segment_bytes", sum(one.file_bytes for one in usage))
        equal("runs_in_memory", sum(one.runs_in_memory for one in usage))
        equal("queued_bytes", 0)
        totals = store.segment_totals()
        equal("segments", sum(one.segments for one in totals))
        equal("segment_bytes", sum(one.file_bytes for one in totals))
        equal("live_bytes", sum(one.live_bytes for one in totals))
        files = {number_of(f"log/{one}") for one in disk.list("log")}
        told.equal("files of segments", {one.number for one in usage} - files, set())
        for one in usage:
            if one.state == "sealed":
                size = disk.open(segment_name(one.number)).size()
                told.equal(f"size of segment {one.number}", one.file_bytes, size)
            told.true(f"no reason is given for segment {one.number}", one.why or one.reclaimable)
            told.within(f"end of segment {one.number}", 0, one.end_bytes, one.file_bytes)
        told.within("open files", 0, values["quire_storage_open_files"], config.max_open_files)
        told.within("major compactions", 0, values["quire_storage_compactions_major_total"],
                    values["quire_storage_compactions_total"])  # fmt: skip
        told.within("copied bytes", 0, values["quire_storage_compaction_copied_bytes_total"],
                    values["quire_storage_compaction_written_bytes_total"])  # fmt: skip
        told.equal("directories", bookie.spaces(),
                   [(disk.path, disk.total_bytes(), disk.free_bytes())])  # fmt: skip
        used = 100 * (1 - disk.free_bytes() / disk.total_bytes())
        share = next(v for n, v in values.items() if n.endswith("_usage"))
        told.true(f"used share: {share} instead of {used}", math.isclose(share, used))


def _watch(store: Store, seen: Seen) -> None:
    append, fence, read, read_blocking = store.append, store.fence, store.read, store.read_blocking

    def noted_append(batch: LogBatch, done: object, *, reserve: bool = False) -> None:
        seen.adds += batch.entry_count
        seen.add_bytes += batch.size_bytes
        seen.batches += 1

        def ended(batch: LogBatch, error: StorageError | None) -> None:
            if error is None:
                seen.durable += batch.entry_count
            done(batch, error)  # type: ignore[operator]

        append(batch, ended, reserve=reserve)

    def noted_fence(ledger_id: int, done: object) -> None:
        seen.fences += 1
        fence(ledger_id, done)  # type: ignore[arg-type]

    def served(entries: Sequence[Buffer]) -> Sequence[Buffer]:
        if not EXAMINING.get():
            seen.reads += 1
            seen.read_bytes += sum(map(len, entries))
        return entries

    def noted_read(ledger_id: int, first: int, *how: int) -> Sequence[Buffer]:
        return served(read(ledger_id, first, *how))

    async def noted_read_blocking(ledger_id: int, first: int, *how: int) -> Sequence[Buffer]:
        return served(await read_blocking(ledger_id, first, *how))

    store.append = noted_append  # type: ignore[method-assign]
    store.fence = noted_fence  # type: ignore[method-assign]
    store.read = noted_read  # type: ignore[method-assign, assignment]
    store.read_blocking = noted_read_blocking  # type: ignore[method-assign, assignment]


def _watch_ends(bookie: Bookie, seen: Seen) -> None:
    answers = bookie.service.answers
    forget = answers.forget

    def noted_forget(account: Account) -> None:
        seen.given_up += len(account._tasks) + len(account.waiting or ())
        forget(account)

    answers.forget = noted_forget  # type: ignore[method-assign]


def values_of(metrics: Iterable[Metric]) -> dict[str, float]:
    """Return the value of each metric that has only one."""
    return {one.name: one.samples[0].value for one in metrics if len(one.samples) == 1}
