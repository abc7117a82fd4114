"""Drivers that publish batches of records to a stream, with tasks that fail and run twice.

Several drivers share a checkpoint, as the successive drivers of one query do. They die at any step,
and some still run while their successor does. Whatever happens, the stream has each batch whole and
once, and in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

from quire.client import Client
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import MetadataUnavailableError, QuireError
from quire.streams import Namespace
from quire.streams.namespace.settings import StreamSettings
from quire.streams.publish import publishing
from quire.streams.publish.publishing import BatchKey, BuiltSegment, SegmentBuilder, StreamBatch
from quire.streams.publish.segment_builder import JOB_KEY
from quire_simulator.streams.batches import BatchFacts, Checkpoint
from quire_simulator.streams.facts import ObservedStream, WriterAttempt
from quire_simulator.streams.plans import DriverPlan, StreamPlan
from quire_simulator.streams.stage import StreamStage
from quire_simulator.streams.writers import ensure_stream
from quire_simulator.world.stage import POLL_S

ATTEMPTS_MAX = 12
SPECULATIVE = 0.2
"""The probability that a task runs twice at the same time."""
TASK_FAILS = 0.15
"""The probability that an attempt of a task fails."""
TASK_ATTEMPTS = 4
LEAVES = 0.5
"""The probability that an attempt that failed or was cancelled leaves its ledger, as a killed
process does.
"""
TAKES = 0.4
"""The probability that a driver takes the stream before it looks whether the batch is published."""
REPEATS = 0.3
"""The probability that a driver publishes a batch once more although it succeeded."""
ABORTS = 0.6
"""The probability that a driver aborts a batch that failed."""
SWEEPS = 0.6
STALE = 0.15
"""The probability that a driver repeats one of the last batches that are published."""
BOTH = 0.1
"""The probability that a driver aborts while its batch is being published."""
TXIDS_PER_TASK = 1_000
REPETITIONS = (1, 1, 3, 20)
"""Rows are so short that an entry fits into the smallest segment of a bookie's log."""


class TaskFailedError(Exception):
    """An attempt of a task failed, because the simulator decided so."""


async def publish_batches(
    stage: StreamStage, who: str, client: Client, plan: StreamPlan, mine: DriverPlan
) -> None:
    """Publish the batches of a query or job that are not published yet, one after the other."""
    chance = stage.world.loop.derive(f"actor {who}")
    streams = await stage.namespace(client)
    try:
        for _ in range(ATTEMPTS_MAX):
            if not await ensure_stream(stage, streams, plan, who):
                return
            driver = Driver(stage, who, streams, stage.lives[plan.number], mine, chance)
            if driver.checkpoint.committed >= mine.batches - 1:
                return
            try:
                await driver.run()
            except QuireError as error:
                stage.note(who, "driver failed", f"{type(error).__name__}: {error}")
                await asyncio.sleep(POLL_S)
            if stage.over:
                return
            await asyncio.sleep(chance.random() * mine.pause_s)
    finally:
        await streams.close()


class Driver:
    """A driver, which publishes one batch after the other until it fails."""

    def __init__(
        self, stage: StreamStage, who: str, streams: Namespace, facts: ObservedStream,
        plan: DriverPlan, chance: random.Random,
    ) -> None:  # fmt: skip
        self.stage = stage
        self.who = who
        self.streams = streams
        self.facts = facts
        self.plan = plan
        self.chance = chance
        self.name = stage.name(facts.plan)
        self.checkpoint: Checkpoint = facts.published.checkpoint(plan.writer, plan.query)
        self._steps = 0
        self._took = False

    async def run(self) -> None:
        while self.checkpoint.committed < self.plan.batches - 1 and not self.stage.over:
            number = self.checkpoint.committed + 1
            if number > 1 and self.chance.random() < STALE:
                # Like a driver that does not know its successor.
                number -= self.chance.choice([1, 2])
            known = self.checkpoint.batches.get(number)
            await self.batch(number, known or self._planned(number))
            await asyncio.sleep(self.chance.random() * self.plan.pause_s)

    def _planned(self, number: int) -> BatchFacts:
        """Plan a batch, with the same rows in each attempt."""
        plan, facts, chance = self.plan, self.facts, self.chance
        key = BatchKey(plan.writer, plan.query, number)
        parts: list[tuple[bytes, ...]] = []
        index = 0
        for _ in range(chance.randint(1, plan.tasks_max)):
            rows = []
            for _ in range(chance.choice([0, 1, 3, plan.task_records_max])):
                row = f"b{facts.plan.number}.{facts.life}/{plan.writer}/{plan.query}/{number}/"
                rows.append(f"{row}{index}.".encode() * chance.choice(REPETITIONS))
                index += 1
            parts.append(tuple(rows))
        batch = BatchFacts(key, tuple(parts), tuple(row for part in parts for row in part))
        facts.published.planned(batch)
        self.checkpoint.batches[number] = batch
        return batch

    # -- steps --------------------------------------------------------------------------------

    def _step(self, what: str) -> None:
        """Begin a step. If the plan says so, the driver dies in it."""
        self._steps += 1
        stage, plan = self.stage, self.plan
        stage.note(self.who, "step", f"{what}: {self._steps}")
        if plan.dies_in_step == self._steps and not stage.over:
            loop = stage.world.loop
            context = loop.main.context.copy()
            loop.call_later(plan.dies_after_s, self._die, what, context=context)

    def _die(self, what: str) -> None:
        self.stage.note(self.who, "died", what)
        self.stage.world.network.kill(self.who)
        self.stage.world.end_session_of(self.who, 1.0)

    async def batch(self, number: int, batch: BatchFacts) -> None:
        stage, facts, chance = self.stage, self.facts, self.chance
        self._step("begin")
        handle = stage.begins(facts, self.who, sink=self.plan.writer)
        told, begun = batch.told, stage.moment()
        try:
            claimed = await self._begin(batch.key)
        except QuireError:
            handle.failed = stage.moment()
            raise
        if not self._took:
            self._check_turn(batch, begun, "began a batch")
        if claimed is None:
            handle.failed = stage.moment()
            if batch.tried_at is None:
                self.fail("a_batch_is_there_once", f"{batch.key} is said to be published")
            self._is_there(batch)
            self._committed(number)
            return
        handle.opened = stage.moment()
        if told is not None and not self._took:
            self.fail("a_batch_is_there_once", f"{batch.key} can begin although it is published")
        self._step("write")
        built = await self._written(claimed, batch, handle)
        self._step("publish")
        try:
            if built and chance.random() < BOTH:
                await self._publish_and_abort(claimed, batch, built, handle)
            await self._published(claimed, batch, built, handle)
        except QuireError:
            if chance.random() < ABORTS:
                self._step("abort")
                await self._abort(claimed, batch, built)
            raise
        self._step("note")
        await asyncio.sleep(chance.random() * self.plan.pause_s / 4)
        self._committed(number)

    async def _begin(self, key: BatchKey) -> StreamBatch | None:
        plan, token = self.plan, self.chance.choice(sorted(self.facts.tokens))
        begin = publishing.begin
        self._took = self.chance.random() < TAKES
        if self._took:
            begin = publishing.take
        return await begin(
            self.streams, self.name, key,
            takeover=plan.takeover, token=token, fence_writers=plan.fence_writers,
        )  # fmt: skip

    def _committed(self, number: int) -> None:
        self.checkpoint.committed = max(self.checkpoint.committed, number)

    # -- tasks --------------------------------------------------------------------------------

    async def _written(
        self, claimed: StreamBatch, batch: BatchFacts, handle: WriterAttempt
    ) -> list[BuiltSegment]:
        """Let tasks write the rows, and return the ledgers in the order of the tasks."""
        txids = "given" if self.facts.plan.txids == "given" else "time"
        self.sent = self.stage.sends(self.facts, handle, batch.rows, first=None, txids=None)
        works: list[Coroutine[Any, Any, BuiltSegment | None]] = []
        for at, rows in enumerate(batch.parts):
            numbers = [claimed.txid] * len(rows)
            if txids == "given":
                numbers = [claimed.txid + at * TXIDS_PER_TASK + k for k in range(len(rows))]
            works.append(self._task(claimed, rows, numbers))
        tasks = [asyncio.ensure_future(work) for work in works]
        await asyncio.wait(tasks)
        found = [task.exception() for task in tasks]
        for error in found:
            if error is not None:
                raise error
        built = [task.result() for task in tasks]
        return [one for one in built if one is not None]

    async def _task(
        self, claimed: StreamBatch, rows: Sequence[bytes], txids: Sequence[int]
    ) -> BuiltSegment | None:
        """Run one task until an attempt succeeds. What other attempts wrote is left or deleted."""
        for attempt in range(TASK_ATTEMPTS):
            times = 2 if self.chance.random() < SPECULATIVE else 1
            running = [
                asyncio.ensure_future(self._attempt(claimed, rows, txids, attempt))
                for _ in range(times)
            ]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            done = [one for one in running if one.done()]
            for one in running:
                one.cancel()
            await asyncio.wait(running)
            try:
                return done[0].result()
            except (TaskFailedError, QuireError) as error:
                self.stage.note(self.who, "task failed", type(error).__name__)
        raise QuireError("a task failed too often")

    async def _attempt(
        self, claimed: StreamBatch, rows: Sequence[bytes], txids: Sequence[int], attempt: int
    ) -> BuiltSegment | None:
        chance = self.chance
        builder = SegmentBuilder(
            self.streams.client,
            self.streams.metadata(self.name).paths.stream,
            StreamSettings(**claimed.settings),
            password=self.streams.password,
            job=claimed.key.job,
            life=claimed.life,
            snapshot=claimed.snapshot,
        )
        fails = attempt < TASK_ATTEMPTS - 1 and chance.random() < TASK_FAILS
        half = len(rows) // 2
        try:
            await builder.append(rows[:half], txids[:half])
            if fails:
                raise TaskFailedError
            await asyncio.sleep(chance.random() * self.plan.task_s)
            await builder.append(rows[half:], txids[half:])
            return await builder.close()
        except BaseException:
            if chance.random() >= LEAVES:
                try:
                    await builder.discard()
                except QuireError:
                    pass
            raise

    # -- publishing ---------------------------------------------------------------------------

    async def _published(
        self, claimed: StreamBatch, batch: BatchFacts, built: Sequence[BuiltSegment],
        handle: WriterAttempt,
    ) -> None:  # fmt: skip
        stage, chance = self.stage, self.chance
        batch.tried_at = batch.tried_at or stage.moment()
        for again in range(2 if chance.random() < REPEATS else 1):
            begun = stage.moment()
            counters = self.streams.client.counters
            before = counters.stream_commits_retried
            try:
                segments = await publishing.publish(self.streams, self.name, claimed, built)
            except MetadataUnavailableError:
                if again or chance.random() < 0.5:
                    raise
                continue  # The outcome is unknown, so the driver asks again.
            finally:
                if counters.stream_commits_retried > before:
                    stage.note(self.who, "tried a commit again", batch.key)
            self._check_turn(batch, begun, "published a batch")
            self._told(batch, segments, handle, begun)
        if batch.told is None:
            raise QuireError("the outcome is unknown")
        if chance.random() < SWEEPS and built:
            self._step("sweep")
            await self._sweep(batch, built)

    def _told(
        self, batch: BatchFacts, segments: Sequence[StreamSegment], handle: WriterAttempt,
        begun: int,
    ) -> None:  # fmt: skip
        """Check and note the segments that a driver got as those of its batch."""
        stage, facts = self.stage, self.facts
        numbers = tuple(segment.lssn for segment in segments)
        if batch.told and numbers and set(numbers) - set(batch.told):
            what = f"{batch.key} is in segments {batch.told}, and in {numbers}"
            self.fail("a_batch_is_there_once", what)
        count = sum(segment.record_count for segment in segments)
        if not batch.told and segments and count != len(batch.rows):
            what = f"{batch.key} has {len(batch.rows)} rows, but its segments have {count}"
            if not facts.truncated:
                self.fail("a_batch_is_there_whole", what)
        fresh = batch.told is None and any(
            stage.makers.get(segment.ledger_id) is self._node for segment in segments
        )
        if fresh:
            handle.sent += self.sent
            for other in facts.handles:
                if self._ends(other, handle, begun):
                    what = f"{self.who} published {batch.key} after {other.who} took over"
                    self.fail("a_successor_ends_the_writer", what)
        batch.told = batch.told or numbers
        self._is_there(batch)
        stage.note(self.who, "published", f"{batch.key} as segments {numbers}")

    def _ends(self, other: WriterAttempt, handle: WriterAttempt, begun: int) -> bool:
        """Return whether `other` has ended the batch of `handle`, published from `begun` on.

        Another sink ends no batch, except a driver of the same writer. A writer ends it, unless
        the commit may fence writers, or another sink may have taken the stream from that writer.
        """
        if not other.follows(handle) or (other.opened or 0) > begun:
            return False
        if other.sink is not None:
            return bool(other.sink) and other.sink == handle.sink
        if any(driver.fence_writers for driver in self.facts.plan.drivers):
            return False
        return not any(
            one.sink is not None and one is not handle and (one.ended or one.begun) > other.begun
            for one in self.facts.handles
        )

    def _is_there(self, batch: BatchFacts) -> None:
        """Note that a driver has learned that the batch is published."""
        batch.told = batch.told or ()
        batch.told_at = batch.told_at or self.stage.moment()
        for row in batch.rows:
            self.facts.acked.setdefault(row, None)

    @property
    def _node(self) -> object:
        return self.stage.world.network.node(self.who).node

    def _check_turn(self, batch: BatchFacts, begun: int, what: str) -> None:
        """Check that a call that succeeded was allowed. `begun` is the moment when it began.

        If another query of the writer had published a batch before that moment, this query must be
        one that takes over, and the other one must not have replaced it.
        """
        for (writer, query), other in self.facts.published.checkpoints.items():
            if not writer or writer != batch.key.writer or query == batch.key.query:
                continue
            for one in other.batches.values():
                if one.tried_at is None or one.told_at is None or one.told_at >= begun:
                    continue
                mine = [b.told_at for b in self.checkpoint.batches.values() if b.told_at]
                former = any(moment < one.tried_at for moment in mine)
                if former or not self.plan.takeover:
                    told = f"query {batch.key.query} {what} of writer {writer} after query {query}"
                    self.fail("a_replaced_query_publishes_nothing", told)

    async def _abort(
        self, claimed: StreamBatch, batch: BatchFacts, built: Sequence[BuiltSegment]
    ) -> None:
        gone = await publishing.abort(self.streams, self.name, claimed, built)
        self.stage.note(self.who, "aborted", f"{batch.key}: {gone}")
        if not gone:
            return
        for one in built:
            self.facts.published.given_up[one.ledger_id] = str(batch.key)
        self.stage.check_given_up(self.facts)

    async def _publish_and_abort(
        self, claimed: StreamBatch, batch: BatchFacts, built: Sequence[BuiltSegment],
        handle: WriterAttempt,
    ) -> None:  # fmt: skip
        """Abort while another process is still publishing. Only one of them may win."""
        stage, chance = self.stage, self.chance
        batch.tried_at, begun = batch.tried_at or stage.moment(), stage.moment()
        publishing_it = asyncio.ensure_future(
            publishing.publish(self.streams, self.name, claimed, built)
        )
        await asyncio.sleep(chance.random() * self.plan.task_s)
        aborting = asyncio.ensure_future(self._abort(claimed, batch, built))
        await asyncio.wait([publishing_it, aborting])
        stage.note(self.who, "published and aborted", batch.key)
        if aborting.exception() is not None:
            stage.note(self.who, "abort failed", type(aborting.exception()).__name__)
        self._told(batch, publishing_it.result(), handle, begun)

    async def _sweep(self, batch: BatchFacts, built: Sequence[BuiltSegment]) -> None:
        """Delete the ledgers that other attempts left, as the driver of a job does after its
        commit.
        """
        stage, streams = self.stage, self.streams
        segments = await publishing.published_segments(streams.metadata(self.name), batch.key)
        if not segments:
            return
        kept = {segment.ledger_id for segment in segments}
        there = [ledger for ledger in self._ledgers_of(batch.key) if ledger not in kept]
        first = min(one.ledger_id for one in built)
        await publishing.sweep_job(streams, self.name, batch.key, kept, first)
        stage.note(self.who, "swept", f"{len(there)} ledgers were left by {batch.key}")
        left = [ledger for ledger in there if ledger in stage.world.cluster.ledgers]
        if left:
            self.fail("leftovers_of_a_batch_are_swept", f"{left} of {batch.key} exist")

    def _ledgers_of(self, key: BatchKey) -> list[int]:
        """Return the ledgers that any attempt created for this batch."""
        cluster, path = self.stage.world.cluster, self.streams.metadata(self.name).paths.stream
        wanted = (key.job.encode(), path.encode())
        found = []
        for ledger_id in sorted(cluster.ledgers):
            custom = cluster.ledger(ledger_id).value.custom
            if (custom.get(JOB_KEY), custom.get("stream")) == wanted:
                found.append(ledger_id)
        return found

    def fail(self, invariant: str, what: str) -> None:
        if self.stage.is_current(self.facts):
            self.stage.fail(self.facts, invariant, f"{self.who}: {what}")
