"""The other clients of a stream: readers, and those that rename and delete it."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN, INITIAL_DLSN
from quire.errors import NoSuchStreamError, QuireError, StreamGapError
from quire.streams import (
    EARLIEST,
    LATEST,
    AtSequence,
    AtTime,
    AtTxid,
    Gap,
    Namespace,
    Record,
    RecordBatch,
    StreamReader,
)
from quire.streams.read.positions import Start
from quire.streams.read.subscriptions import Subscription
from quire_simulator.invariants.reports.listings import list_names
from quire_simulator.invariants.reports.places import look_at_the_last
from quire_simulator.streams.facts import ObservedStream, ReadRecord
from quire_simulator.streams.invariants import ReaderPosition
from quire_simulator.streams.plans import StreamPlan
from quire_simulator.streams.stage import StreamStage
from quire_simulator.world.stage import POLL_S

PATIENCE_S = (0.05, 0.5, 5.0)
LAST_PATIENCE_S = 60.0
"""The time after which a follower is cancelled and continues from its position."""
REMOVE_ATTEMPTS_MAX = 30
BELATED_POLLS_MAX = 30
BELATED_S = 1.0
"""Seconds for which a follower reads on although its stream was replaced."""
SCANS = 4
LOOKS = 0.1
"""The probability that a scanner looks at the last records as well, and that it lists streams."""
BOUNDED = 0.5
"""The probability that a scanner reads to some position instead of the end."""
AT_THE_END = DLSN(1 << 60, 0, 0)


async def read_view(
    stage: StreamStage,
    facts: ObservedStream,
    view: ReaderPosition,
    reader: StreamReader,
    *,
    batches: bool,
    life: ObservedStream | None = None,
) -> None:
    """Read to the end of this reader. `life` is the life of what it has read before.

    It must have been opened with on_gap="deliver" if `batches`, and on_gap="raise" otherwise.
    """

    view.life = life

    def saw(record: Record) -> None:
        found = stage.life_of(facts.plan, record.payload)
        if found is not None and view.life not in (None, found):
            what = f"{view.who} received {record.payload[:20]!r} of another stream of this name"
            stage.fail(facts, "a_reader_stays_with_its_stream", what)
        view.life = view.life or found
        stage.saw(facts, view, record)

    if not batches:
        try:
            async with aclosing(aiter(reader)) as records:
                async for record in records:
                    saw(record)
        except StreamGapError as error:
            assert reader.position is not None
            stage.gap(facts, view, error.kind, reader.position)
        return
    async with aclosing(reader.batches()) as found:
        async for batch in found:
            if isinstance(batch, Gap):
                stage.gap(facts, view, batch.kind, batch.behind)
                continue
            assert isinstance(batch, RecordBatch)
            for record in batch:
                saw(record)


# -- followers ---------------------------------------------------------------------------------


async def follow_stream(stage: StreamStage, who: str, client: Client, plan: StreamPlan) -> None:
    """Follow each life of the stream to its last record. Now and then, cancel and continue."""
    chance = stage.world.loop.derive(f"actor {who}")
    streams = await stage.namespace(client)
    try:
        while plan.number not in stage.finished:
            if stage.exists(plan):
                facts = stage.lives[plan.number]
                await _Follower(stage, who, streams, facts, chance).follow()
            await asyncio.sleep(POLL_S)
    finally:
        await streams.close()


class _Follower:
    """A follower of one life of the stream."""

    def __init__(
        self, stage: StreamStage, who: str, streams: Namespace, facts: ObservedStream,
        chance: random.Random,
    ) -> None:  # fmt: skip
        self.stage = stage
        self.who = who
        self.streams = streams
        self.facts = facts
        self.chance = chance
        self.start: Start = EARLIEST
        self.view = ReaderPosition(who, INITIAL_DLSN)
        self.reader: StreamReader | None = None
        """The last reader that has received a record of this life. Before its first read, a reader
        may belong to any stream that gets the name.
        """
        self.subscription: Subscription | None = None
        self.name = ""

    async def follow(self) -> None:
        stage, facts = self.stage, self.facts
        known = list(facts.log.values())
        if known and self.chance.random() < 0.5:
            self.start = self.view.begin = self.chance.choice(known).position
        while stage.lives[facts.plan.number] is facts:
            try:
                if await self._for_a_while():
                    return
            except NoSuchStreamError:
                pass
            except QuireError as error:
                stage.note(self.who, "failed", f"{type(error).__name__}: {error}")
            if facts.plan.number in stage.finished and not stage.exists(facts.plan):
                return
            await asyncio.sleep(self.chance.random() * POLL_S)
        await self._belated()

    async def _belated(self) -> None:
        """Continue with what was opened in this life, although another stream has the name now."""
        stage, facts = self.stage, self.facts
        for _ in range(BELATED_POLLS_MAX):
            if stage.exists(facts.plan):
                break
            await asyncio.sleep(POLL_S)
        now = stage.lives[facts.plan.number]
        if not stage.exists(facts.plan) or now.deleting or self.reader is None:
            return
        stage.note(self.who, "belated")
        try:
            async with asyncio.timeout(BELATED_S):
                await read_view(stage, facts, self.view, self.reader, batches=True, life=facts)
        except (TimeoutError, QuireError) as error:
            stage.note(self.who, "belated failed", type(error).__name__)
        if self.subscription is None or self.reader.position is None:
            return
        try:
            await self.subscription.commit(self.reader.position)
        except QuireError:
            return
        if stage.lives[facts.plan.number] is now and not now.deleting:
            what = f"{self.who} stored {self.reader.position} of the former stream"
            stage.fail(now, "a_subscription_belongs_to_its_stream", what)

    async def _for_a_while(self) -> bool:
        """Follow until cancelled, and return whether the end was reached."""
        stage, facts, batches = self.stage, self.facts, self.chance.random() < 0.5
        self.view.floor = facts.floor
        await self._subscribe()
        reader = await self.streams.open_reader(
            stage.name(facts.plan), start=self.start, follow=True,
            on_gap="deliver" if batches else "raise",
        )  # fmt: skip
        try:
            patience_s = self.chance.choice(PATIENCE_S)
            if facts.plan.number in stage.finished:
                patience_s = LAST_PATIENCE_S
            async with asyncio.timeout(patience_s):
                await read_view(stage, facts, self.view, reader, batches=batches)
        except TimeoutError:
            pass
        finally:
            if reader.position is not None:
                self.start = reader.position
            if self.view.life is facts:
                self.reader = reader
        if not stage.is_current(facts):
            return False
        if reader.ended and not facts.may_be_ended:
            stage.fail(facts, "only_who_ends_a_stream_ends_it", f"{self.who} read to an end")
        await self._commit(reader)
        return reader.ended or stage.is_at_the_end(facts, self.view)

    async def _subscribe(self) -> None:
        """Open the subscription before anything is read. A new stream must have no position of
        it.
        """
        stage, facts, name = self.stage, self.facts, self.stage.name(self.facts.plan)
        if self.subscription is not None and self.name == name:
            return
        subscription = self.streams.subscription(name, self.who)
        found = await subscription.position()
        if not stage.is_current(facts) or stage.name(facts.plan) != name:
            return
        if found is not None and self.who not in facts.committing:
            what = f"{self.who} finds {found}, although it has stored nothing with this stream"
            stage.fail(facts, "a_subscription_belongs_to_its_stream", what)
        self.subscription, self.name = subscription, name

    async def _commit(self, reader: StreamReader) -> None:
        """Store the position with the stream, where it must never go back."""
        stage, facts, subscription = self.stage, self.facts, self.subscription
        if reader.position is None or subscription is None:
            return
        facts.committing.add(self.who)
        if await subscription.commit(reader.position) and stage.is_current(facts):
            facts.committed[self.who] = reader.position
        found = await subscription.position()
        wanted = facts.committed.get(self.who)
        if not stage.is_current(facts) or stage.name(facts.plan) != self.name:
            return
        if wanted is not None and (found is None or found < wanted):
            what = f"{self.who} had stored {wanted}, but found {found}"
            stage.fail(facts, "a_subscription_never_goes_back", what)


# -- readers that come to an end -----------------------------------------------------------------


async def scan_stream(stage: StreamStage, who: str, client: Client, plan: StreamPlan) -> None:
    """Read several times, from some position to the end or to another position, and look at the
    last records.
    """
    chance = stage.world.loop.derive(f"actor {who}")
    looking = stage.world.loop.derive(f"looks of {who}")
    streams = await stage.namespace(client)
    try:
        for _ in range(SCANS):
            facts = await stage.until_there(plan)
            if facts is None:
                return
            try:
                await _scan(stage, who, streams, facts, chance)
                if looking.random() < LOOKS:
                    await look_at_the_last(stage, who, client, streams, facts, looking)
                if looking.random() < LOOKS:
                    await list_names(stage, who, client, streams, looking)
            except NoSuchStreamError:
                pass
            except QuireError as error:
                stage.note(who, "failed", f"{type(error).__name__}: {error}")
            await asyncio.sleep(chance.random())
    finally:
        await streams.close()


async def _scan(
    stage: StreamStage, who: str, streams: Namespace, facts: ObservedStream, chance: random.Random
) -> None:
    name, known = stage.name(facts.plan), list(facts.log.values())
    start: Start = EARLIEST
    if known:
        some = chance.choice(known)
        starts: list[Start] = [
            EARLIEST, LATEST, some.position, some.position.next_slot(), AtSequence(some.sequence),
            AtTxid(some.txid), AtTime(some.txid),
        ]  # fmt: skip
        start = chance.choice(starts)
    end = chance.choice(known).position if known and chance.random() < BOUNDED else None
    begin = await streams.find(name, start)
    if stage.is_current(facts):
        _found(stage, facts, start, begin, known)
    completed = {s.lssn for s in facts.segments.values() if not s.in_progress}
    wanted = [
        seen.sequence
        for seen in known
        if seen.position.lssn in completed and begin <= seen.position < (end or AT_THE_END)
    ]
    view = ReaderPosition(who, begin, floor=facts.floor)
    reader = await streams.open_reader(name, start=begin, end=end, on_gap="deliver")
    await read_view(stage, facts, view, reader, batches=True)
    if end is None:
        stage.reached_the_end(facts, view)
    if stage.is_current(facts):
        missed = [
            n
            for n in wanted
            if not view.has_passed(facts.log[n]) and not facts.may_be_gone(facts.log[n])
        ]
        if missed:
            place = facts.log[missed[0]].position
            what = (
                f"{who} read from {begin} to {end or 'the end'}, "
                f"but did not receive record {missed[0]} at {place}"
            )
            stage.fail(facts, "a_read_comes_to_the_end", what)


def _found(
    stage: StreamStage, facts: ObservedStream, start: Start, begin: DLSN, known: list[ReadRecord]
) -> None:
    """Check that `begin` is the boundary between the records before and after `start`."""
    for seen in known:
        if isinstance(start, AtSequence):
            meant = seen.sequence >= start.sequence
        elif isinstance(start, AtTxid):
            meant = seen.txid >= start.txid
        else:
            return
        if meant != (seen.position >= begin) and not facts.may_be_gone(seen):
            what = f"{start} was found at {begin}, but record {seen.sequence} is at {seen.position}"
            stage.fail(facts, "find_finds_the_first", what)


# -- clients that rename or delete the stream ----------------------------------------------------


async def rename_stream(stage: StreamStage, who: str, client: Client, plan: StreamPlan) -> None:
    streams = await stage.namespace(client)
    try:
        facts = await stage.until_there(plan)
        if facts is None:
            return
        handle = stage.begins(facts, who)
        for _ in range(REMOVE_ATTEMPTS_MAX):
            try:
                await streams.rename_stream(plan.name, plan.new_name)
            except QuireError as error:
                stage.note(who, "not renamed", f"{type(error).__name__}: {error}")
            if stage.name(plan) == plan.new_name:
                handle.opened = stage.moment()
                stage.note(who, "renamed")
                break
            await asyncio.sleep(POLL_S)
        handle.failed = stage.moment()
    finally:
        await streams.close()


async def remove_stream(stage: StreamStage, who: str, client: Client, plan: StreamPlan) -> None:
    streams = await stage.namespace(client)
    try:
        facts = await stage.until_there(plan)
        if facts is not None:
            await removed(stage, who, streams, facts)
    finally:
        await streams.close()


async def removed(stage: StreamStage, who: str, streams: Namespace, facts: ObservedStream) -> None:
    """Delete the stream, with as many attempts as necessary."""
    facts.deleting = True
    stage.note(who, "delete", facts.plan.name)
    await stage.insist(lambda: streams.delete_stream(stage.name(facts.plan)), REMOVE_ATTEMPTS_MAX)
    stage.is_deleted(facts)
    stage.note(who, "deleted", facts.plan.name)
