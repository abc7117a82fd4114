"""A driver of a streaming query, with its tasks: what Spark does, around the code that it calls.

    offsets of the batch -> log -> tasks read the sources and write ledgers -> commit -> log

Every driver continues from the checkpoint, in whatever step its predecessor was. It may die in any
step. Its predecessor may still live, and finish its step.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Sequence

import pyarrow as pa

from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.errors import QuireError
from quire.spark.streams.offsets import Offsets
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.plan import StreamPartition, StreamSplit, partitions
from quire.spark.streams.query import StreamQuery
from quire.spark.streams.reader import open_split
from quire.spark.streams.sink import (
    Committer,
    StreamMessage,
    StreamTaskOutput,
    WritePlan,
    message_of,
)
from quire.spark.streams.write_options import StreamWriteOptions
from quire.spark.streams.writer import plan_of_batch, plan_query
from quire.streams import Record
from quire.streams.publish.publishing import BatchKey
from quire.streams.read.arrow import RecordColumns
from quire_simulator.spark.checkpoint import (
    QueryCheckpoint,
    SourceInvariants,
    SourceView,
    SupersededError,
)
from quire_simulator.streams.batches import BatchFacts
from quire_simulator.streams.facts import ObservedStream, WriterAttempt
from quire_simulator.streams.plans import DyingPlan, QueryPlan, StreamPlan
from quire_simulator.streams.stage import NAMESPACE, StreamStage
from quire_simulator.streams.writers import ensure_stream
from quire_simulator.world.stage import POLL_S

COLUMNS = ("segment", "entry", "slot", "txid", "sequence", "value")
SPECULATIVE = 0.15
"""The probability that a task runs twice at the same time."""
TASK_FAILS = 0.1
"""The probability that an attempt of a task fails."""
TASK_ATTEMPTS = 4
LEAVES = 0.5
"""The probability that an attempt that failed or was cancelled leaves its ledgers, as a killed
process does.
"""
ABORTS = 0.7
"""The probability that Spark aborts a micro-batch that failed, before it ends the query."""
RUNS_MAX = 20
"""The number of times that one process starts the query again after an error."""
LIMITED_BATCHES = 3
"""The number of micro-batches with limits at the end of a run."""
# A query logs what it waits for. The simulator does not need these lines.
logging.getLogger("quire.spark").addHandler(logging.NullHandler())
Found = dict[int, list[Record]]


class TaskFailedError(Exception):
    """An attempt of a task failed, because the simulator decided so."""


def checkpoint_of(stage: StreamStage, plan: StreamPlan) -> QueryCheckpoint:
    """Return the checkpoint of the query that writes to this stream."""
    facts = stage.lives[plan.number]
    known = stage.checkpoints.get(plan.number)
    if not isinstance(known, QueryCheckpoint):
        known = QueryCheckpoint(lambda invariant, what: stage.fail(facts, invariant, what))
        stage.checkpoints[plan.number] = known
    return known


async def run_query(
    stage: StreamStage,
    who: str,
    client: Client,
    plan: StreamPlan,
    query: QueryPlan,
    dying: DyingPlan,
) -> None:
    """Run the query until the time is over, and start it again after errors."""
    chance = stage.world.loop.derive(f"actor {who}")
    for number in (*query.sources, plan.number):
        mine = next(one for one in stage.stage.plan.streams if one.number == number)
        streams = await stage.namespace(client)
        there = await ensure_stream(stage, streams, mine, who)
        await streams.close()
        if not there:
            return
    for _ in range(RUNS_MAX):
        driver = QueryDriver(stage, who, client, plan, query, dying, chance)
        if stage.over or driver.checkpoint.ended:
            return
        try:
            await driver.run()
        except SupersededError:
            stage.note(who, "superseded")
            return
        except QuireError as error:
            stage.note(who, "query failed", f"{type(error).__name__}: {error}")
            driver.ends_with(error)
        await asyncio.sleep(chance.random() * query.pause_s + POLL_S)


class QueryDriver:
    """One driver, which runs the query until it fails or the time is over."""

    def __init__(
        self, stage: StreamStage, who: str, client: Client, plan: StreamPlan, query: QueryPlan,
        dying: DyingPlan, chance: random.Random,
    ) -> None:  # fmt: skip
        self.stage = stage
        self.who = who
        self.client = client
        self.plan = plan
        self.query = query
        self.dying = dying
        self.chance = chance
        self.sink: ObservedStream = stage.lives[plan.number]
        self.checkpoint = checkpoint_of(stage, plan)
        self.invariants = SourceInvariants(stage, self.checkpoint, lenient=query.lenient)
        self.epoch = self.checkpoint.open()
        self.numbers = {f"s{number}": number for number in query.sources}
        pattern = f"s[{''.join(map(str, query.sources))}]"
        self.reading = StreamReadOptions(
            metadata="sim",
            namespace=NAMESPACE,
            streams=() if query.pattern else tuple(self.numbers),
            pattern=pattern if query.pattern else None,
            fail_on_data_loss=not query.lenient,
            records_max=query.records_max or None,
            bytes_max=query.bytes_max or None,
            subscription=f"query {plan.number}" if query.subscription else None,
        )
        self.writing = StreamWriteOptions(
            "sim", NAMESPACE, (plan.name,), writer=query.writer, takeover=query.takeover
        )
        # A driver reads the checkpoint once. Later it knows only what it did itself.
        self.committed = self.checkpoint.committed
        self.offsets = dict(self.checkpoint.offsets)
        self.limited = bool(query.records_max or query.bytes_max)
        """Whether the limits of the query apply to its next micro-batch."""
        self._planned = False
        self._steps = 0

    async def run(self) -> None:
        """Run micro-batches until the time is over."""
        async with await self.stage.namespace(self.client):
            query = StreamQuery(self.client, self.reading)
            try:
                await query.open()
                while not self.stage.over:
                    await self.batch(query)
                    await asyncio.sleep(self.chance.random() * self.query.pause_s)
            finally:
                await query.close()

    async def drain(self) -> None:
        """Run micro-batches until there is nothing left to read, as with `availableNow`.

        Only the first few have the limits of the query, because one record each would take too
        long.
        """
        query = StreamQuery(self.client, self.reading)
        try:
            await query.open()
            if self.committed + 1 in self.offsets:
                await self.batch(query)
            await query.prepare_available_now()
            ended = False
            for _ in range(LIMITED_BATCHES if self.limited else 0):
                if not await self.batch(query):
                    ended = True
                    break
            self.limited = False
            while await self.batch(query):
                if ended:
                    what = f"{self.who} found nothing to read within the limits, but there was more"
                    self.checkpoint.fail("a_query_reads_everything", what)
        finally:
            await query.close()

    def ends_with(self, error: QuireError) -> None:
        """Handle the error that ended the query.

        If it says that records are lost, this checks that they may be gone. Then the query ends for
        good, unless it is lenient.
        """
        if type(error).__name__ not in ("StreamGapError", "NoSuchStreamError"):
            return
        views = self.checkpoint.views.get(self.checkpoint.committed, {})
        may_lose = [
            number
            for number in self.query.sources
            if (facts := self.stage.lives[number]).truncated
            or facts.deleting
            or facts.destroyed
            or facts.life
            or not self.stage.exists(facts.plan)
            or (number in views and views[number].facts is not facts)
        ]
        if not may_lose:
            self.checkpoint.fail("nothing_is_lost", f"{self.who}: {error}")
        elif not self.query.lenient:
            self.checkpoint.ended = str(error)

    # -- steps --------------------------------------------------------------------------------

    def _step(self, what: str) -> None:
        """Begin a step. If the plan says so, the driver dies in it."""
        self._steps += 1
        stage, dying = self.stage, self.dying
        stage.note(self.who, "step", f"{what}: {self._steps}")
        if dying.in_step == self._steps and not stage.over:
            loop = stage.world.loop
            context = loop.main.context.copy()
            loop.call_later(dying.after_s, self._die, what, context=context)

    def _die(self, what: str) -> None:
        self.stage.note(self.who, "died", what)
        self.stage.world.network.kill(self.who)
        self.stage.world.end_session_of(self.who, 1.0)

    async def batch(self, query: StreamQuery) -> bool:
        """Run one micro-batch, and return whether there was one."""
        checkpoint, number = self.checkpoint, self.committed + 1
        self._step("offsets")
        if number == 0:
            start = await query.initial()
            if 0 not in self.offsets:  # No earlier driver has logged where the query begins.
                checkpoint.views[-1] = self._first_views()
        else:
            start = Offsets.from_json(json.loads(self.offsets[number - 1]))
        if number not in self.offsets:
            found = await query.latest(start, limited=self.limited, wait=False)
            if found is None:
                return False
            self._step("log offsets")
            self.offsets[number] = json.dumps(found.to_json())
            checkpoint.log_offsets(self.epoch, number, self.offsets[number])
        end = Offsets.from_json(json.loads(self.offsets[number]))
        self._step("plan")
        laid = await query.splits(start, end, counts=False)
        tasks = partitions(
            laid,
            partition_bytes=self.query.partition_bytes,
            min_partitions=self.query.min_partitions,
        ) or [StreamPartition(())]
        await self._compute(number, tasks, start, end)
        self._step("log commit")
        checkpoint.log_commit(self.epoch, number)
        self.committed = number
        self._step("commit source")
        await query.commit(end)
        return True

    def _first_views(self) -> dict[int, SourceView]:
        return {
            number: SourceView.begin(self.who, self.stage.lives[number])
            for number in self.query.sources
        }

    async def _compute(
        self, number: int, tasks: Sequence[StreamPartition], start: Offsets, end: Offsets
    ) -> None:
        stage, options = self.stage, self.writing
        key = BatchKey(self.query.writer, self.query.query, number)
        handle = stage.begins(self.sink, self.who, sink=self.query.writer)
        self._step("claim")
        try:
            planned = await plan_query(
                self.client, options, [self.plan.name], sweep=not self._planned
            )
        except QuireError:
            handle.failed = stage.moment()
            raise
        handle.opened, self._planned = stage.moment(), True
        self._step("tasks")
        done = [
            asyncio.ensure_future(self._task(partition, task, planned, key))
            for partition, task in enumerate(tasks)
        ]
        await asyncio.wait(done)
        failed = [task.exception() for task in done]
        messages = [task.result()[0] for task in done if task.exception() is None]
        committer = Committer(options)
        try:
            for error in failed:
                if error is not None:
                    raise error
            batch = self._check(number, key, [task.result()[1] for task in done], start, end)
            self._step("commit")
            await self._commit(committer, messages, batch, handle)
        except QuireError:
            if self.chance.random() < ABORTS:
                self._step("abort")
                await committer.abort_written(self.client, messages)
                stage.note(self.who, "aborted", key)
            raise

    def _check(
        self, number: int, key: BatchKey, found: Sequence[Found], start: Offsets, end: Offsets
    ) -> BatchFacts:
        """Check what the tasks read, and return the batch that they wrote."""
        together: Found = {source: [] for source in self.query.sources}
        for each in found:
            for source, records in each.items():
                together[source] += records
        views = self.invariants.computed(number, self.who, together)
        self.invariants.alike(number, together, start)
        self.checkpoint.views[number] = views
        self.invariants.reached(views, start, end, self.numbers)
        parts = tuple(
            tuple(row_of(source, record) for source, records in each.items() for record in records)
            for each in found
        )
        known = self.sink.published.checkpoint(key.writer, key.query)
        batch = known.batches.get(number)
        rows = tuple(row for part in parts for row in part)
        if batch is None or batch.told is None:
            batch = known.batches[number] = BatchFacts(
                key, parts, rows, tried_at=None if batch is None else batch.tried_at
            )
            self.sink.published.planned(batch)
        return batch

    async def _commit(
        self, committer: Committer, messages: Sequence[StreamMessage], batch: BatchFacts,
        handle: WriterAttempt,
    ) -> None:  # fmt: skip
        stage, facts = self.stage, self.sink
        stage.sends(facts, handle, batch.rows, first=None, txids=None)
        batch.tried_at = batch.tried_at or stage.moment()
        await committer.commit_written(self.client, messages)
        batch.told, batch.told_at = (), stage.moment()
        for row in batch.rows:
            facts.acked.setdefault(row, None)
        stage.note(self.who, "committed", f"{batch.key}: {len(batch.rows)} rows")

    # -- tasks --------------------------------------------------------------------------------

    async def _task(
        self, partition: int, task: StreamPartition, planned: WritePlan, key: BatchKey
    ) -> tuple[StreamMessage, Found]:
        """Run one task until an attempt succeeds."""
        for attempt in range(TASK_ATTEMPTS):
            times = 2 if self.chance.random() < SPECULATIVE else 1
            running = [
                asyncio.ensure_future(self._attempt(partition, task, planned, key, attempt))
                for _ in range(times)
            ]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            first = next(one for one in running if one.done())
            for one in running:
                one.cancel()
            await asyncio.wait(running)
            for one in running:
                if not one.cancelled():
                    one.exception()  # Two attempts at once may both fail, and one of them counts.
            try:
                return first.result()
            except TaskFailedError:
                self.stage.note(self.who, "task failed")
            except QuireError as error:
                if attempt == TASK_ATTEMPTS - 1:
                    raise
                self.stage.note(self.who, "task failed", type(error).__name__)
        raise QuireError("a task failed too often")

    async def _attempt(
        self, partition: int, task: StreamPartition, planned: WritePlan, key: BatchKey,
        attempt: int,
    ) -> tuple[StreamMessage, Found]:  # fmt: skip
        chance, name = self.chance, self.plan.name
        plan = await plan_of_batch(self.client, self.writing, planned, key)
        output = StreamTaskOutput(self.client, self.writing, plan)
        fails = attempt < TASK_ATTEMPTS - 1 and chance.random() < TASK_FAILS
        found: Found = {}
        try:
            for split in task.splits:
                source = self.numbers[split.origin.stream]
                records = await self._read(split)
                found.setdefault(source, []).extend(records)
                rows = [row_of(source, record) for record in records]
                if rows and name not in plan.done:
                    txids = None
                    if plan.batches[name].settings["txids"] == "given":
                        least = plan.batches[name].txid + partition * 1_000
                        txids = pa.array([least] * len(rows))
                    await output.append(name, rows, txids)
                if fails:
                    raise TaskFailedError
                await asyncio.sleep(chance.random() * self.query.task_s)
            built = await output.close()
        except BaseException:
            if chance.random() >= LEAVES:
                await output.discard()
            elif output._pending is not None:
                # What it is writing may fail, but nobody is left who would be told.
                output._pending.add_done_callback(lambda rows: rows.cancelled() or rows.exception())
            raise
        return message_of(plan, partition, attempt, built), found

    async def _read(self, split: StreamSplit) -> list[Record]:
        """Read a split as a task does."""
        gathered = RecordColumns(COLUMNS)
        async with await open_split(self.client, split, b"") as ledger:
            async for run in ledger.read_runs(split.first, split.last):
                gathered.add(split.origin, run, split.start, split.end)
        if not gathered.rows:
            return []
        columns = [column.to_pylist() for column in gathered.batch().columns]
        return [
            Record(value, DLSN(segment, entry, slot), txid, sequence)
            for segment, entry, slot, txid, sequence, value in zip(*columns, strict=True)
        ]


def row_of(source: int, record: Record) -> bytes:
    """Return the row that the query makes of a record. It identifies the record."""
    return b"r%d:" % source + record.payload
