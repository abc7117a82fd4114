"""Create, write, read, truncate, list and delete topics, and check their invariants.

A few names are shared by all these clients of a run, so that they take partitions from each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from functools import partial
from itertools import count

from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.errors import (
    NoSuchStreamError,
    QuireError,
    StreamGapError,
    UsageError,
)
from quire.streams import EARLIEST, LATEST, AtSequence, Gap, Namespace, Topic
from quire.streams.ownership.orphans import delete_orphans, find_orphans
from quire.streams.read.positions import Start
from quire.streams.topics.writer import TopicWriter
from quire.streams.write.segments import APPLICATION
from quire_simulator.actors.calls import call
from quire_simulator.plans.plans import TopicPlan
from quire_simulator.streams.stage import COMPONENT, StreamStage
from quire_simulator.streams.topics.history import (
    NAMES,
    NAMESPACE,
    SentRecord,
    TopicInvariants,
    TopicLife,
    TopicReading,
)

KEYS = {
    b"a": 584_102_524,
    b"bc": 388_749_024,
    b"def": 869_590_756,
    b"ghij": 381_931_709,
    b"klmno": 259_722_324,
    "\u00e9t\u00e9".encode(): 46_290_073,
    b"": 275_646_681,
}
"""The keys of records, each with the hash that Kafka's clients compute for it."""
SUBSCRIBERS = ("billing", "search")
PARTITIONS = (1, 2, 3, 5)
RECORDS_MAX = 6
READ_MAX = 60
"""The largest number of records that a client reads in one round."""
LOCK_S = (0.0, 0.5)
ATTEMPTS_MAX = 20
RETRY_S = 0.5
JUDGE = "topic-judge"
YOUNGER_S = 3_600.0
"""Longer than any error of a calendar, so that every ledger is older than that from now."""
CALM_ROUNDS = 20
"""The number of rounds at the end, when no fault disturbs them."""
CALM_PAUSE_S = 0.2
"""The pause after each of them, because each makes hundreds of calls of the metadata store."""
METADATA_DELAY_MAX_S = 0.02
"""The longest delay of a metadata call at the end, where the judge makes hundreds of them."""
PAD_BYTES = (0, 0, 0, 100)


class _Actor:
    """One client, with one call at a time."""

    def __init__(
        self, stage: StreamStage, facts: TopicInvariants, who: str, streams: Namespace,
        plan: TopicPlan,
    ) -> None:  # fmt: skip
        self.stage = stage
        self.facts = facts
        self.who = who
        self.streams = streams
        self.plan = plan
        self.chance = stage.world.loop.derive(f"actor {who}")
        self._numbers = count()

    async def round(self) -> None:
        name = self.chance.choice(NAMES[: self.plan.names])
        draw = self.chance.random()
        try:
            if self.facts.now.get(name) is None and draw < 0.8:
                await self.create(name)
            elif draw < 0.45:
                await self.write(name)
            elif draw < 0.75:
                await self.read(name)
            elif draw < 0.8:
                await self.truncate(name)
            elif draw < 0.85:
                await self.misuse(name)
            elif draw < 0.95:
                await self.list_topics()
            elif draw < 0.95 + self.plan.deletions:
                await self.delete(name)
        except QuireError as error:
            self.failed(f"use {name}", error)

    # -- topics -------------------------------------------------------------------------------

    async def create(self, name: str) -> None:
        since, partitions = self.facts.moment(), self.chance.choice(PARTITIONS)
        settings = {"roll_bytes": self.chance.choice([500, 5_000, 1_000_000])}
        work = self.streams.create_topic(name, partitions, settings=settings)
        try:
            await call(self.stage.stage, self.who, work)
        except QuireError as error:
            self.failed(f"create {name}", error)
            self.facts.was_not_created(self.who, name, since, error)
        else:
            self.noted(f"created {name} with {partitions}")
            self.facts.was_created(self.who, name, partitions, since)

    async def delete(self, name: str) -> None:
        before = self.facts.now.get(name)
        try:
            await call(self.stage.stage, self.who, self.streams.delete_topic(name))
        except QuireError as error:
            # It may be the name of a partition now.
            self.failed(f"delete {name}", error, blamed=name == NAMES[-1])
        else:
            self.noted(f"deleted {name}")
            self.facts.was_deleted(self.who, before)

    async def open(self, name: str) -> tuple[Topic, TopicLife] | None:
        since = self.facts.moment()
        try:
            topic = await call(self.stage.stage, self.who, self.streams.topic(name))
        except NoSuchStreamError as error:
            self.facts.was_not_there(self.who, name, since, error)
            return None
        id = topic._stored.id
        self.facts.was_opened(self.who, name, id, topic.partitions, since)
        return topic, self.facts.lives[id]

    async def list_topics(self) -> None:
        since, before = self.facts.moment(), list(self.facts.now)
        prefix = self.chance.choice(["", "", "c", "clicks/", "orders"])
        names = await self.streams.topics(prefix)
        self.facts.were_listed(self.who, prefix, names, before, since)

    # -- records ------------------------------------------------------------------------------

    async def write(self, name: str) -> None:
        opened = await self.open(name)
        if opened is None:
            return
        topic, life = opened
        lock = self.chance.choice(LOCK_S) if self.chance.random() < 0.2 else None
        assign = self._some(topic)
        work = topic.open_writer(assign=assign, lock=lock)
        writer = await call(self.stage.stage, self.who, work)
        parts = tuple(range(life.partitions)) if assign is None else tuple(sorted(assign))
        if writer.assigned != list(parts) or writer.partitions != life.partitions:
            what = f"{self.who} asked for {parts} and got {writer.assigned} of {writer.partitions}"
            self.facts.fail("a_topic_is_as_it_was_created", life, what)
        try:
            for _ in range(self.chance.randint(1, 6)):
                draw = self.chance.random()
                if draw < 0.1:
                    await writer.roll()
                elif draw < 0.2 and len(parts) < life.partitions:
                    await self._append_elsewhere(writer, life, parts)
                else:
                    await self.append(writer, topic, life, parts)
                await asyncio.sleep(self.chance.random() * self.plan.pause_s)
            if self.chance.random() < 0.7:
                await call(self.stage.stage, self.who, writer.close())
        finally:
            writer.abandon()

    def _some(self, topic: Topic) -> list[int] | None:
        if self.chance.random() < 0.4:
            return None
        numbers = range(topic.partitions)
        return self.chance.sample(numbers, self.chance.randint(1, topic.partitions))

    def records(
        self, topic: Topic, life: TopicLife, parts: tuple[int, ...], number: int
    ) -> dict[bytes, SentRecord]:
        """Make records that a writer of some partitions may append."""
        mine = [key for key, hashed in KEYS.items() if hashed % life.partitions in parts]
        begun = self.facts.moment()
        found: dict[bytes, SentRecord] = {}
        for _ in range(number):
            key = self.chance.choice([None, *mine])
            headers = {"n": b"x", "m": b""} if self.chance.random() < 0.1 else {}
            there = parts if key is None else (KEYS[key] % life.partitions,)
            if key is not None and topic.partition_of(key) != there[0]:
                what = f"{key!r} is said to be in {topic.partition_of(key)}, not in {there[0]}"
                self.facts.fail("a_record_of_a_topic_is_in_its_partition", life, what)
            payload = f"{self.who} {next(self._numbers)}".encode()
            payload += bytes(self.chance.choice(PAD_BYTES))
            found[payload] = SentRecord(life, key, headers, None, there, begun)
        self.facts.sent.update(found)
        return found

    async def append(
        self, writer: TopicWriter, topic: Topic, life: TopicLife, parts: tuple[int, ...]
    ) -> None:
        """Append records, to the partitions of their keys or all to one."""
        sent = self.records(topic, life, parts, self.chance.randint(1, RECORDS_MAX))
        partition = self.chance.choice(parts) if self.chance.random() < 0.2 else None
        if partition is not None:
            for one in sent.values():
                one.partitions = (partition,)
        keys = [one.key for one in sent.values()]
        headers = [one.headers or None for one in sent.values()]
        payloads = list(sent)
        try:
            appended = await call(
                self.stage.stage, self.who,
                writer.submit_many(payloads, keys=keys, partition=partition, headers=headers),
            )  # fmt: skip
            if self.chance.random() < 0.2:
                await writer.flush()
            places = await call(self.stage.stage, self.who, appended.wait())
        except QuireError as error:
            if error.outcome_known:
                for payload, one in sent.items():
                    one.refused = True
                    if one.place is not None:
                        what = f"{payload!r} is at {one.place}, although its append was refused"
                        self.facts.fail("what_was_refused_is_not_done", life, what)
            raise
        if len(places) != len(payloads) or len(appended) != len(payloads):
            what = f"{self.who} appended {len(payloads)} records and received {len(places)} places"
            self.facts.fail("a_record_of_a_topic_is_there_once", life, what)
        for payload, place in zip(payloads, places):
            self.facts.was_appended(self.who, payload, place)

    async def _append_elsewhere(
        self, writer: TopicWriter, life: TopicLife, parts: tuple[int, ...]
    ) -> None:
        """Try to append a record to a partition that this writer does not write."""
        others = [one for one in range(life.partitions) if one not in parts]
        keys = [key for key, hashed in KEYS.items() if hashed % life.partitions in others]
        number: int | None = self.chance.choice([*others, life.partitions, -1])
        key = self.chance.choice(keys) if keys and self.chance.random() < 0.5 else None
        payload = f"{self.who} {next(self._numbers)}".encode()
        self.facts.sent[payload] = SentRecord(
            life, key, {}, None, (), self.facts.moment(), refused=True
        )
        if key is not None:
            number = None
        await self._refused(life, "an append", writer.append(payload, key=key, partition=number))

    async def read(self, name: str) -> None:
        """Read some partitions from somewhere, and store how far."""
        opened = await self.open(name)
        if opened is None:
            return
        topic, life = opened
        subscriber = self.chance.choice([None, *SUBSCRIBERS])
        start: Start | Mapping[int, Start] = self.chance.choice([EARLIEST, LATEST])
        if subscriber is not None:
            since, stored = self.facts.moment(), dict(life.committed)
            positions = await topic.positions(subscriber)
            self.facts.were_told(self.who, life, subscriber, positions, stored, since)
            start = dict(positions)
        elif self.chance.random() < 0.6:
            start = self._places(topic, life)
        limit = self.chance.choice([1, 5, READ_MAX])
        reader_positions = await self.follow(topic, life, self._some(topic), start, limit=limit)
        if subscriber is not None and reader_positions:
            await self.commit(topic, life, subscriber, reader_positions)

    def _places(self, topic: Topic, life: TopicLife) -> dict[int, Start]:
        """Choose where to begin in some of the partitions."""
        start: dict[int, Start] = {}
        for place in list(life.there)[-READ_MAX:]:
            if self.chance.random() < 0.3:
                sequence = life.sequences.get(place)
                start[place.partition] = place.position
                if sequence is not None and self.chance.random() < 0.5:
                    start[place.partition] = AtSequence(sequence)
        return start

    async def follow(
        self,
        topic: Topic,
        life: TopicLife,
        assign: Collection[int] | None,
        start: Start | Mapping[int, Start],
        *,
        limit: int = READ_MAX,
    ) -> dict[int, DLSN]:
        """Read up to a number of records, and return the positions of the next ones."""
        parts = range(life.partitions) if assign is None else assign
        begins: dict[int, DLSN | None] = {}
        sequences: dict[int, int] = {}
        for number in parts:
            place = start.get(number, EARLIEST) if isinstance(start, Mapping) else start
            begins[number] = place if isinstance(place, DLSN) else None
            if place == EARLIEST:
                begins[number] = DLSN(0, 0, 0)
            if isinstance(place, AtSequence):
                sequences[number] = place.sequence
        on_gap = self.chance.choice(["raise", "deliver"])
        reader = topic.open_reader(assign=assign, start=start, on_gap=on_gap)
        reading = TopicReading(self.facts, self.who, life, begins, sequences)
        before = reader.positions
        while True:
            try:
                async with aclosing(reader.batches()) as batches:
                    async for delivered in batches:
                        if isinstance(delivered.batch, Gap):
                            gap = delivered.batch
                            reading.gap(delivered.partition, gap.kind, gap.behind)
                            continue
                        for one in reader.one_by_one(delivered):
                            reading.saw(one.partition, one.record)
                            if reading.received >= limit:
                                break
                        before = reader.positions
                        self._compare(reading, before)
                        if reading.received >= limit:
                            break
                break
            except StreamGapError as error:
                for partition, at in reader.positions.items():
                    if partition not in before:  # Its start has just been found.
                        reading.begins_at(partition, at)
                    elif at != before[partition]:
                        reading.gap(partition, error.kind, at)
                before = reader.positions
        if limit > READ_MAX:
            reading.ended(life.acked)
        reader.close()
        return reader.positions

    def _compare(self, reading: TopicReading, positions: Mapping[int, DLSN]) -> None:
        """Check that a reader that continues at these positions skips no record."""
        for partition, at in positions.items():
            upcoming = reading.upcoming.get(partition)
            if upcoming is None or partition in reading.from_sequence:
                continue
            if at < upcoming and upcoming != DLSN(0, 0, 0):
                what = f"{self.who} is said to be at {at} of {partition}, after {upcoming}"
                self.facts.fail("a_stored_position_moves_forward", reading.life, what)
            reading.nothing_between(partition, upcoming, at)

    async def commit(
        self, topic: Topic, life: TopicLife, subscriber: str, positions: Mapping[int, DLSN]
    ) -> None:
        """Store positions, or with some probability former ones again, which changes nothing."""
        if self.chance.random() < 0.3:
            tried = {one: sorted(life.tried.get((subscriber, one), ())) for one in positions}
            positions = {one: self.chance.choice(found or [positions[one]])
                         for one, found in tried.items()}  # fmt: skip
        for partition, at in positions.items():
            life.tried.setdefault((subscriber, partition), set()).add(at)
        await call(self.stage.stage, self.who, topic.commit(subscriber, positions))
        for partition, at in positions.items():
            key = subscriber, partition
            life.committed[key] = max(at, life.committed.get(key, at))

    async def truncate(self, name: str) -> None:
        """Give up the beginning of a partition."""
        life = self.facts.now.get(name)
        if life is None or not life.acked:
            return
        place = self.chance.choice(list(life.acked))
        stream = f"{name}/{place.partition}"
        known = (await self.streams.metadata(stream).life()).path
        if self.facts.now.get(name) is not life:
            return
        life.floors[place.partition] = max(place.position, life.floor(place.partition))
        await self.streams.truncate(stream, place.position, life=known)

    # -- calls that must be refused -----------------------------------------------------------

    async def misuse(self, name: str) -> None:
        """Try what would break a topic."""
        life = self.facts.now.get(name)
        if life is None:
            return
        partition = f"{name}/{self.chance.randrange(life.partitions)}"
        tries: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("delete_stream", partial(self.streams.delete_stream, partition)),
            ("delete_stream", partial(self.streams.delete_stream, name)),
            ("rename_stream", partial(self.streams.rename_stream, partition, "elsewhere")),
            ("rename_stream", partial(self.streams.rename_stream, name, "elsewhere")),
            (
                "create_stream",
                partial(self.streams.create_stream, f"{name}/{life.partitions + 7}"),
            ),
        ]
        what, attempt = self.chance.choice(tries)
        if name == NAMES[-1] and self.facts.now.get(NAMES[0]):
            return
        await self._refused(life, what, attempt())

    async def _refused(self, life: TopicLife, what: str, work: Awaitable[object]) -> None:
        since = self.facts.moment()
        try:
            await work
        except UsageError:
            return
        except QuireError as error:
            self.failed(what, error)
            return
        if self.facts.unchanged(life, since):
            self.facts.fail("a_wrong_call_is_refused", life, f"{self.who}: {what} was accepted")

    # -- notes --------------------------------------------------------------------------------

    def noted(self, what: str) -> None:
        self.stage.note(self.who, "topic", what)

    def failed(self, what: str, error: QuireError, *, blamed: bool = False) -> None:
        self.stage.note(self.who, "failed", f"{what}: {type(error).__name__}: {error}")
        if not blamed:
            self.stage.stage.not_blamed(self.who, error)


async def use_topics(
    stage: StreamStage, facts: TopicInvariants, name: str, client: Client, plan: TopicPlan
) -> None:
    """Use the topics of a namespace in some rounds, and begin none after the time of faults."""
    streams = await stage.namespace(client, NAMESPACE)
    actor = _Actor(stage, facts, name, streams, plan)
    stage.world.metadata_stalls[name] = plan.stalls
    try:
        for _ in range(plan.rounds):
            if stage.over:
                break
            await actor.round()
            await asyncio.sleep(actor.chance.random() * plan.pause_s)
    finally:
        stage.world.metadata_stalls.pop(name, None)
        await streams.close()


async def judge_topics(stage: StreamStage, facts: TopicInvariants | None) -> None:
    """Read every topic completely, delete it, and check that nothing is left of it."""
    if facts is None:
        return
    delay_s = min(stage.world.metadata_delay_s, METADATA_DELAY_MAX_S)
    stage.world.metadata_delay_s = delay_s
    client = stage.world.client(JUDGE, stage.stage.plan.client_config)
    streams = await stage.namespace(client, NAMESPACE)
    plan = TopicPlan(0, len(NAMES), 0.0, CALM_ROUNDS, 0.0, deletions=0.05, stalls=0.0)
    actor = _Actor(stage, facts, JUDGE, streams, plan)
    for _ in range(plan.rounds):
        await actor.round()
        await asyncio.sleep(CALM_PAUSE_S)
    for name, life in sorted(facts.now.items()):
        if life.deleting is None:
            await _insist(lambda name=name: _judge(actor, name))  # type: ignore[misc]
    await actor.list_topics()
    for name in sorted(facts.now):
        await _insist(lambda name=name: streams.delete_topic(name))  # type: ignore[misc]
        facts.was_deleted(JUDGE, facts.now.get(name))
        await asyncio.sleep(CALM_PAUSE_S)
    await actor.list_topics()
    if left := await streams.streams():
        stage.checker.fail("what_was_deleted_is_gone", f"the streams {left} of topics are left")
    await delete_orphans(client, await find_orphans(client, -YOUNGER_S))
    cluster = stage.world.cluster
    ledgers = [
        ledger_id
        for ledger_id in sorted(cluster.ledgers)
        if cluster.ledger(ledger_id).value.custom.get(COMPONENT) == APPLICATION[COMPONENT]
    ]
    if ledgers:
        stage.checker.fail("what_was_deleted_is_gone", f"ledgers {ledgers} of topics are left")
    await streams.close()
    await client.close()


async def _judge(actor: _Actor, name: str) -> None:
    opened = await actor.open(name)
    if opened is None:
        return
    topic, life = opened
    writer = await topic.open_writer()
    parts = tuple(range(life.partitions))
    await actor.append(writer, topic, life, parts)
    await writer.close()
    there = sum(at >= life.floor(partition) for partition, at in life.there)
    unlimited = READ_MAX + len(actor.facts.sent)
    await actor.follow(topic, life, None, EARLIEST, limit=unlimited)
    for subscriber in SUBSCRIBERS:
        since, stored = actor.facts.moment(), dict(life.committed)
        positions = await topic.positions(subscriber)
        actor.facts.were_told(JUDGE, life, subscriber, positions, stored, since)
        await actor.follow(topic, life, actor._some(topic), positions, limit=unlimited)
    for _ in range(2):
        start = actor._places(topic, life)
        await actor.follow(topic, life, actor._some(topic), start, limit=unlimited)
    await asyncio.sleep(CALM_PAUSE_S)
    actor.noted(f"{name}: read {there} records")


async def _insist(work: Callable[[], Awaitable[object]]) -> None:
    for attempt in range(ATTEMPTS_MAX):
        try:
            await work()
            return
        except QuireError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
        await asyncio.sleep(RETRY_S)
