"""Writers of streams: processes that take over a stream from each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.errors import (
    NoSuchStreamError,
    QuireError,
    RecordTooLargeError,
    StreamConditionError,
    StreamEndedError,
    StreamExistsError,
    StreamFencedError,
    StreamLockedError,
    StreamQuotaError,
    TxidOrderError,
    UsageError,
)
from quire.streams import Appended, Namespace, Producer, StreamWriter
from quire_simulator.streams.facts import (
    PAYLOAD_REPETITIONS,
    ObservedStream,
    Sent,
    WriterAttempt,
    producer_payload,
)
from quire_simulator.streams.plans import StreamerPlan, StreamPlan
from quire_simulator.streams.stage import StreamStage
from quire_simulator.world.stage import POLL_S

T = TypeVar("T")

REFUSALS = (StreamConditionError, TxidOrderError, StreamQuotaError, RecordTooLargeError, UsageError)
"""Errors after which nothing was appended."""
OPEN_ATTEMPTS = 4
MAKER = ".0"
"""The suffix of the writer that creates a stream that is renamed later."""
LOCKED = 0.1
"""The probability that a writer waits for the stream's lock."""
LOCK_S = 0.5
IMPATIENT = 0.05
"""The probability that an append is cancelled."""
IMPATIENT_S = (0.0, 0.005, 0.1)
AGAIN = 0.25
"""The probability that a producer sends a batch twice at the same time."""
BACK_MAX = 3
"""The largest number of earlier records that a producer sends again."""


async def write_stream(
    stage: StreamStage, who: str, client: Client, plan: StreamPlan, mine: StreamerPlan
) -> None:
    chance = stage.world.loop.derive(f"actor {who}")
    streams = await stage.namespace(client)
    try:
        for _ in range(mine.turns):
            if not await ensure_stream(stage, streams, plan, who):
                break
            opened = await _open(stage, who, streams, plan, chance)
            if opened is not None:
                await StreamWriterActor(stage, *opened, mine, chance).write()
            if stage.over or stage.lives[plan.number].ended is not None:
                break
            await asyncio.sleep(chance.random() * mine.pause_s)
    finally:
        await streams.close()


async def ensure_stream(stage: StreamStage, streams: Namespace, plan: StreamPlan, who: str) -> bool:
    """Create the stream if necessary, and return whether it exists."""
    if plan.rename_s is not None and not who.endswith(MAKER):
        # A client that is interrupted while it creates the stream could continue after the rename,
        # and create a second stream with the old name.
        return await stage.until_there(plan) is not None
    for _ in range(OPEN_ATTEMPTS):
        if stage.exists(plan) or stage.over:
            return stage.exists(plan)
        if plan.rename_s is not None and stage.lives[plan.number].handles:
            return False  # A second stream with the old name would only confuse.
        try:
            await streams.create_stream(plan.name, settings=plan.settings)
            return True
        except StreamExistsError:
            continue
        except QuireError as error:
            stage.note("", "not created", type(error).__name__)
            await asyncio.sleep(POLL_S)
    return False


async def _open(
    stage: StreamStage, who: str, streams: Namespace, plan: StreamPlan, chance: random.Random
) -> tuple[StreamWriter, WriterAttempt, ObservedStream] | None:
    for _ in range(OPEN_ATTEMPTS):
        facts = stage.lives[plan.number]
        handle = stage.begins(facts, who)
        ended, acked = facts.ended, dict(facts.producers)
        lock = LOCK_S if chance.random() < LOCKED else None
        try:
            writer = await streams.open_writer(stage.name(facts.plan), lock=lock)
        except QuireError as error:
            handle.failed = stage.moment()
            stage.note(who, "not opened", type(error).__name__)
            if isinstance(error, StreamEndedError) and stage.is_current(facts):
                if not facts.may_be_ended:
                    stage.fail(facts, "only_who_ends_a_stream_ends_it", f"{who}: {error}")
                return None
            if isinstance(error, NoSuchStreamError | StreamFencedError | StreamLockedError):
                await asyncio.sleep(chance.random() * POLL_S)
            else:
                await asyncio.sleep(POLL_S)
            continue
        handle.opened = stage.moment()
        handle.tainted = not stage.is_current(facts)
        stage.note(who, "opened", f"{facts.plan.name} at {writer.next_sequence}")
        if ended is not None and stage.is_current(facts):
            stage.fail(facts, "an_ended_stream_takes_no_more", f"{who} opened a writer")
        if stage.is_alone(facts, handle):
            _knows_its_producers(stage, facts, writer, acked)
        return writer, handle, facts
    return None


def _knows_its_producers(
    stage: StreamStage, facts: ObservedStream, writer: StreamWriter, acked: dict[str, int]
) -> None:
    """Check that a new writer knows all records that were acknowledged to producers."""
    for producer_id, sequence in acked.items():
        known = Producer(writer, producer_id).last_sequence
        if known < sequence:
            what = f"{producer_id}: {sequence} was acknowledged, but the next writer knows {known}"
            stage.fail(facts, "no_producer_is_forgotten", what)


class StreamWriterActor:
    """A writer that follows its plan."""

    def __init__(
        self,
        stage: StreamStage,
        writer: StreamWriter,
        handle: WriterAttempt,
        facts: ObservedStream,
        plan: StreamerPlan,
        chance: random.Random,
    ) -> None:
        self.stage = stage
        self.writer = writer
        self.handle = handle
        self.facts = facts
        self.plan = plan
        self.chance = chance
        self._count = 0
        self._under_way: list[tuple[list[Sent], Appended]] = []
        self._cancelled: list[Sent] = []
        """Records whose append was cancelled. They are in the stream if any later record is, at
        unknown positions.
        """
        self._handed: dict[str, int] = {}
        """The last record of each producer that this writer was given."""
        self._producers: dict[str, Producer] = {}

    async def write(self) -> None:
        choices = [self.append, self.append, self.append_many, self.submit, self.submit, self.roll,
                   self.condition]  # fmt: skip
        if self.facts.plan.producers:
            choices += [self.produce] * 6
        if self.facts.plan.tokens:
            choices += [self.set_token]
        try:
            await asyncio.sleep(self.plan.wait_s)
            for number in range(self.plan.batches):
                try:
                    await self.chance.choice(choices)()
                except StreamConditionError as error:
                    self.stage.note(self.handle.who, "refused", error)
                await asyncio.sleep(self.chance.random() * self.plan.pause_s)
                if number == self.plan.batches // 2:
                    await asyncio.sleep(self.plan.idle_s)
                if self.writer.closed or self.stage.over:
                    break
            await self.end()
        except QuireError as error:
            await self.over(error)

    async def end(self) -> None:
        facts = self.facts
        if facts.plan.ends and self.stage.is_current(facts) and self.chance.random() < 0.3:
            facts.may_be_ended = True
            await self.writer.end_stream()
            facts.ended = self.stage.moment()
            self.settled(everything=True)
            self.stage.note(self.handle.who, "ended", facts.plan.name)
            await self.insist()
        elif self.plan.end == "close":
            await self.writer.close()
            self.settled(everything=True)
            self.stage.note(self.handle.who, "closed", facts.plan.name)
            await self.insist()
        elif self.plan.end == "abandon":
            self.writer.abandon()

    async def over(self, error: QuireError) -> None:
        stage, facts = self.stage, self.facts
        stage.note(self.handle.who, "failed", f"{type(error).__name__}: {error}")
        if isinstance(error, StreamFencedError) and stage.is_current(facts):
            others = [
                other
                for other in facts.handles
                if other is not self.handle
                and (other.failed is None or other.failed >= self.handle.begun)
            ]
            if not others:
                stage.fail(facts, "only_a_successor_ends_a_writer", f"{self.handle.who}: {error}")
        if self.writer.closed:
            await self.insist()
        else:
            self.writer.abandon()

    async def insist(self) -> None:
        """Check that an append fails after the writer was closed or has failed for good."""
        try:
            await self.append()
        except QuireError:
            return
        if not self.handle.tainted:
            self.stage.fail(self.facts, "a_dead_writer_stays_dead", self.handle.who)

    # -- records ------------------------------------------------------------------------------

    def new(self, count: int) -> list[bytes]:
        payloads = []
        for _ in range(count):
            name = b"w%d/%d." % (self.handle.number, self._count)
            payloads.append(name * self.chance.choice(PAYLOAD_REPETITIONS))
            self._count += 1
        return payloads

    def txids(self, count: int) -> list[int] | None:
        if self.facts.plan.txids == "time":
            return None
        txid, found = self.writer.last_txid, []
        for _ in range(count):
            txid += self.chance.choice([0, 1, 1, 7])
            found.append(txid)
        return found

    def sends(self, payloads: Sequence[bytes], txids: Sequence[int] | None) -> list[Sent]:
        sent = self.stage.sends(
            self.facts, self.handle, payloads, first=self.writer.next_sequence, txids=txids
        )
        self.handle.sent += sent
        return sent

    def acked(self, sent: Sequence[Sent], positions: Sequence[DLSN]) -> None:
        self.stage.acked(self.facts, sent, positions)
        if sent:
            what = f"{sent[0].payload[:16]!r} and {len(sent) - 1} more"
            self.stage.note(self.handle.who, "acked", what)

    def settled(self, *, everything: bool = False) -> None:
        """Record that all submitted records are acknowledged.

        With `everything` this includes those whose append was cancelled.
        """
        for sent, appended in self._under_way:
            self.acked(sent, list(appended))
        self._under_way.clear()
        if everything:
            self.acked(self._cancelled, [])
            self._cancelled.clear()

    async def append(self) -> None:
        payloads, txids = self.new(1), self.txids(1)
        sent = self.sends(payloads, txids)
        token = self.token()
        work = self.writer.append(
            payloads[0], txid=None if txids is None else txids[0], token=token
        )
        try:
            at = await self._outcome(sent, work)
        except StreamConditionError:
            self._check_refusal(token)
            raise
        if at is not None:
            self.acked(sent, [at])

    async def append_many(self) -> None:
        count = self.chance.randint(1, self.plan.batch_records_max)
        payloads, txids = self.new(count), self.txids(count)
        sent = self.sends(payloads, txids)
        work = self.writer.append_many(payloads, txids=txids, token=self.token())
        appended = await self._outcome(sent, work)
        if appended is not None:
            self.acked(sent, list(appended))

    async def submit(self) -> None:
        count = self.chance.randint(1, self.plan.batch_records_max)
        payloads, txids = self.new(count), self.txids(count)
        sent = self.sends(payloads, txids)
        try:
            appended = await self.writer.submit_many(payloads, txids=txids, token=self.token())
        except QuireError:
            self._refused(sent)
            raise
        self._under_way.append((sent, appended))
        draw = self.chance.random()
        if draw < 0.2:
            await self.writer.flush()
            self.settled(everything=True)
        elif draw < 0.4:
            sent, appended = self._under_way.pop(0)
            await appended.wait()
            self.acked(sent, list(appended))

    async def condition(self) -> None:
        """Append on the condition that the position and the token are as expected."""
        wrong = self.chance.choice([0, 0, -1, 1])
        payloads, txids = self.new(1), self.txids(1)
        expect, token = self.writer.next_sequence + wrong, self.token()
        if self.chance.random() < 0.2:
            token = "never set"
        sent = self.sends(payloads, txids)
        try:
            appended = await self.writer.append_many(
                payloads, txids=txids, expect=expect, token=token
            )
        except StreamConditionError:
            self._refused(sent)
            if not wrong:
                self._check_refusal(token)
            return
        if wrong or token == "never set":
            what = (
                f"{self.handle.who} appended at record {expect - wrong} "
                f"with expect={expect} and token={token!r}"
            )
            self.stage.fail(self.facts, "conditions_are_kept", what)
        self.acked(sent, list(appended))

    async def roll(self) -> None:
        await self.writer.roll()

    async def _outcome(
        self, sent: list[Sent], work: Coroutine[Any, Any, T], *, alone: bool = True
    ) -> T | None:
        """Return the outcome, or None if the append was cancelled. `alone` says whether no other
        append runs meanwhile.

        A cancelled append that still waited for space has appended nothing.
        """
        before = self.writer.next_sequence
        patience_s = None
        if self.chance.random() < IMPATIENT:
            patience_s = self.chance.choice(IMPATIENT_S)
        try:
            async with asyncio.timeout(patience_s):
                return await work
        except TimeoutError as late:
            if isinstance(late, QuireError):
                raise
            if self.writer.next_sequence > before:
                self._cancelled += sent if alone else []
            elif sent[0].sequence is not None:
                self._refused(sent)
            return None
        except REFUSALS:
            self._refused(sent)
            raise

    def _refused(self, sent: Sequence[Sent]) -> None:
        for one in sent:
            one.refused = True

    # -- fencing tokens -----------------------------------------------------------------------

    def token(self) -> str:
        return self.chance.choice(sorted(self.facts.tokens))

    def _check_refusal(self, token: str) -> None:
        if self.facts.tokens == {token} and self.stage.is_alone(self.facts, self.handle):
            what = f"{self.handle.who}: token {token!r} was refused although it is in force"
            self.stage.fail(self.facts, "conditions_are_kept", what)

    async def set_token(self) -> None:
        facts, expect = self.facts, self.token()
        facts.setting += 1
        number, new = facts.setting, self.chance.choice(["", f"token {facts.setting}"])
        facts.tokens.add(new)
        try:
            await self.writer.set_fencing_token(new, expect=expect)
        except StreamConditionError:
            if facts.setting == number:
                self._check_refusal(expect)
            raise
        if facts.setting == number and self.stage.is_alone(self.facts, self.handle):
            facts.tokens = {new}

    # -- producers ----------------------------------------------------------------------------

    async def produce(self) -> None:
        """Send records after the last acknowledged one, or some earlier ones too.

        Sometimes they are sent twice at the same time.
        """
        facts, chance = self.facts, self.chance
        number = chance.randrange(facts.plan.producers)
        producer_id = f"p{facts.plan.number}.{number}.{facts.life}"
        if producer_id not in self._producers:
            self._producers[producer_id] = await self.writer.producer(producer_id)
        known = max(facts.producers.get(producer_id, -1), self._handed.get(producer_id, -1))
        first = max(0, known + 1 - chance.choice([0, 0, 1, BACK_MAX]))
        count = chance.randint(1, self.plan.batch_records_max)
        times = 2 if chance.random() < AGAIN else 1
        tasks = [
            asyncio.ensure_future(
                self._send(self._producers[producer_id], first, count, alone=times == 1)
            )
            for _ in range(times)
        ]
        await asyncio.wait(tasks)
        for task in tasks:
            task.exception()
        for task in tasks:
            task.result()

    async def _send(self, producer: Producer, first: int, count: int, *, alone: bool) -> None:
        stage, facts, producer_id = self.stage, self.facts, producer.producer_id
        payloads = [producer_payload(producer_id, n) for n in range(first, first + count)]
        txids = self.txids(count)
        sent = stage.sends(facts, self.handle, payloads, first=None, txids=txids)
        work = producer.append_many(payloads, first, txids=txids, token=self.token())
        appended = await self._outcome(sent, work, alone=alone)
        known = self._handed.get(producer_id, -1)
        self._handed[producer_id] = max(known, first + count - 1)
        if appended is None:
            return
        if len(appended) < count and self.writer.buffered_bytes:
            what = f"{producer_id}: {first} was reported as stored while it was in flight"
            stage.fail(facts, "a_retry_waits_for_the_record", what)
        self.acked(sent, list(appended))
        if stage.is_current(facts) and not self.handle.tainted:
            facts.producers[producer_id] = max(
                facts.producers.get(producer_id, -1), first + count - 1
            )
