"""Walkthroughs of streams: records with everything they can have, places, numbers and owners."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import (
    LedgerOwnedError,
    NoSuchStreamError,
    StreamConditionError,
    StreamEndedError,
    StreamExistsError,
    StreamFencedError,
    StreamGapError,
    TxidOrderError,
    UsageError,
)
from quire.streams import Gap, Namespace, Record, StreamWriter, refuse_owned
from quire.streams.namespace.namespace import open_namespace
from quire.streams.ownership.lost_ledgers import lost_ledgers
from quire.streams.ownership.owner_index import OwnerIndex
from quire.streams.ownership.owners import find_claims
from quire.streams.read.arrow import ALL_COLUMNS, Origin, RecordColumns
from quire.streams.read.positions import parse_start
from quire.streams.read.statistics import (
    SegmentStatistics,
    before_end,
    records_from,
    segment_statistics,
)
from quire_simulator.actors.walkthroughs.walk import Walk

PATH = "/sim/walk"
NAME = "orders"
STEPS = 5
WAYS = ("one", "many", "alike", "alike", "alike", "submit", "keyed", "keyed", "producer")
"""The ways of appending records, some of them more often than others."""
ALIKE = (16, 20, 40)
"""Numbers of records of one size that are decoded together as Arrow columns."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Appended:
    """A record that was appended."""

    payload: bytes
    position: DLSN
    txid: int
    sequence: int
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    event_time: datetime | None = None

    @classmethod
    def of(cls, record: Record) -> Appended:
        headers = tuple(record.headers.items())
        return cls(record.payload, record.position, record.txid, record.sequence, record.key,
                   headers, record.event_time)  # fmt: skip


@dataclass
class Model:
    """A stream that a walkthrough writes, and all that it has written."""

    walk: Walk
    streams: Namespace
    name: str
    given: bool
    """Whether the walkthrough gives the txids."""
    records: list[Appended] = field(default_factory=list)
    times_ms: list[tuple[int, int]] = field(default_factory=list)
    """The earliest and the latest time at which each record was appended."""
    producers: dict[str, int] = field(default_factory=dict)
    token: str = ""
    given_up: int = 0
    """The number of records that were truncated, and are no longer among `records`."""

    @property
    def count(self) -> int:
        """The number of records that the stream ever had."""
        return self.given_up + len(self.records)

    @property
    def next_txid(self) -> int:
        return self.records[-1].txid + self.walk.chance.randint(0, 2) if self.records else 1

    async def append(self, writer: StreamWriter) -> None:
        """Append some records in one of the ways there are, and check the answers."""
        walk, chance = self.walk, self.walk.chance
        way = chance.choice(
            ["one", "many", "alike", "alike", "alike", "submit", "keyed", "keyed", "producer"]
        )
        count = 1 if way == "one" else chance.choice(ALIKE) if way == "alike" else 5
        first = self.count
        walk.same("next_sequence", writer.next_sequence, first)
        size = chance.choice([1, 3, 50])
        payloads = [
            b"%d/%d." % (first + k, chance.randint(0, 9)) * (1 if way == "alike" else size)
            for k in range(count)
        ]
        if way == "alike":
            payloads = [payload.ljust(20) for payload in payloads]
        txids = None
        if self.given:
            txids = [self.next_txid]
            for _ in range(count - 1):
                txids.append(txids[-1] + chance.randint(0, 2))
        clock = walk.client.clock
        before_ms = clock.now_ms()
        how: dict[str, Any] = {"txids": txids, "token": self.token}
        keys: list[bytes | None] = [None] * count
        headers: list[dict[str, bytes] | None] = [None] * count
        times: list[datetime | None] = [None] * count
        if way == "keyed" or (way == "one" and chance.random() < 0.7):
            keys = [chance.choice([None, b"", b"k%d" % k]) for k in range(count)]
            headers = [chance.choice([None, {"a": b"1", "b": b""}]) for _ in range(count)]
            moment = EPOCH + timedelta(days=20_000, microseconds=chance.randint(0, 10**6))
            times = [chance.choice([None, moment]) for _ in range(count)]
            how |= {"keys": keys, "headers": headers, "event_times": times}
        if way == "one":
            txid = None if txids is None else txids[0]
            expect = chance.choice([None, first])
            positions = [
                await writer.append(
                    payloads[0],
                    txid=txid,
                    token=self.token,
                    expect=expect,
                    key=keys[0],
                    headers=headers[0],
                    event_time=times[0],
                )
            ]
        elif way == "producer":
            positions = await self._produce(writer, payloads, txids)
        elif way == "submit":
            appended = await writer.submit_many(payloads, **how)
            walk.same("the result of flush", await writer.flush(), appended[-1])
            positions = list(appended)
        else:
            positions = list(await writer.append_many(payloads, **how))
        walk.same("the number of positions", len(positions), count)
        walk.same("positions in order", positions, sorted(set(positions)))
        walk.same("the bytes that wait", writer.buffered_bytes, 0)
        after_ms = clock.now_ms()
        last_txid = self.records[-1].txid if self.records else 0
        for k, position in enumerate(positions):
            told = None if txids is None else txids[k]
            self.records.append(
                Appended(
                    payloads[k], position, told if told is not None else writer.last_txid,
                    first + k, keys[k], tuple((headers[k] or {}).items()), times[k],
                )
            )  # fmt: skip
            self.times_ms.append((before_ms, after_ms))
        if txids is None:
            least = max(last_txid, before_ms)
            walk.between("a txid that is a time", writer.last_txid, least, max(least, after_ms))
        else:
            walk.same("last_txid", writer.last_txid, txids[-1])

    async def _produce(
        self, writer: StreamWriter, payloads: Sequence[bytes], txids: Sequence[int] | None
    ) -> list[DLSN]:
        walk, name = self.walk, self.walk.chance.choice(["p", "q"])
        producer = await writer.producer(name)
        last = self.producers.get(name, -1)
        walk.same("the last number of a producer", producer.last_sequence, last)
        again = 0
        if last >= 0 and walk.chance.random() < 0.5:
            again = 1  # The first one was appended before, and is left out.
        found = list(
            await producer.append_many(
                [b"again"] * again + list(payloads), last + 1 - again, token=self.token,
                txids=None if txids is None else [txids[0]] * again + list(txids),
            )
        )  # fmt: skip
        self.producers[name] = last + len(payloads)
        walk.same("the last number of a producer", producer.last_sequence, last + len(payloads))
        repeated = await producer.append(payloads[-1], last + len(payloads), token=self.token,
                                         txid=None if txids is None else txids[-1])  # fmt: skip
        walk.same("the repetition of an append", repeated, None)
        return found

    async def refusals(self, writer: StreamWriter) -> None:
        """Make calls that must be refused, and that change nothing."""
        walk, sequence = self.walk, self.count
        txid = self.next_txid if self.given else None
        await walk.refused("an append with another expectation",
                           writer.append(b"no", expect=sequence + 1, token=self.token, txid=txid),
                           StreamConditionError, sequence + 1, sequence)  # fmt: skip
        await walk.refused("an append with another token",
                           writer.append(b"no", token=f"{self.token}x", txid=txid),
                           StreamConditionError)  # fmt: skip
        if self.given and self.records and self.records[-1].txid > 0:
            await walk.refused("a txid that goes back",
                               writer.append(b"no", txid=self.records[-1].txid - 1,
                                             token=self.token),
                               TxidOrderError, self.records[-1].txid)  # fmt: skip
        wrong = None if self.given else 7
        await walk.refused("a txid where none belongs, or none where one does",
                           writer.append(b"no", txid=wrong, token=self.token),
                           UsageError)  # fmt: skip
        walk.same("next_sequence after refusals", writer.next_sequence, sequence)

    async def give_token(self, writer: StreamWriter) -> None:
        token = self.walk.chance.choice(["", "t1", "t2"])
        await self.walk.refused("another token than the one in force",
                                writer.set_fencing_token("t3", expect=f"{self.token}x"),
                                StreamConditionError)  # fmt: skip
        await writer.set_fencing_token(token, expect=self.token)
        self.token = token


# -- what readers receive --------------------------------------------------------------------------


def check_records(
    model: Model, what: str, found: Sequence[Record], wanted: Sequence[Appended]
) -> None:
    """Compare records with those that were appended. Txids that are times are known by bounds."""
    walk = model.walk
    got = [Appended.of(record) for record in found]
    if not model.given:
        low, high = model.times_ms[0][0] if model.times_ms else 0, 1 << 60
        for one in got:
            walk.between(f"a txid in {what}", one.txid, low, high)
            low = one.txid
        got = [_without_txid(one) for one in got]
        wanted = [_without_txid(one) for one in wanted]
    for ours, theirs in zip(wanted, got, strict=False):
        walk.same(f"a record of {what}", theirs, ours)
    walk.same(f"the number of records of {what}", len(got), len(wanted))


def _without_txid(one: Appended) -> Appended:
    return Appended(one.payload, one.position, 0, one.sequence, one.key, one.headers,
                    one.event_time)  # fmt: skip


async def read(model: Model, **how: Any) -> list[Record]:
    reader = await model.streams.open_reader(model.name, **how)
    if model.walk.chance.random() < 0.5:
        return [record async for record in reader]
    found: list[Record] = []
    async with aclosing(reader.batches()) as batches:
        async for batch in batches:
            if isinstance(batch, Gap):
                continue  # Only with on_gap="deliver".
            records = list(reader.one_by_one(batch))
            model.walk.same("the length of a batch", len(batch), len(records))
            model.walk.same("the ends of a batch", (batch.first, batch.last),
                            (records[0].position, records[-1].position))  # fmt: skip
            model.walk.same("the payloads of a batch", batch.payloads(),
                            [record.payload for record in records])  # fmt: skip
            keyed = any(type(record) is not Record for record in records)
            model.walk.same("whether a batch is keyed", batch.keyed, keyed)
            found += records
    return found


async def check_reads(model: Model) -> None:
    """Read from and to places of each kind, and ask where they are."""
    walk, chance, records = model.walk, model.walk.chance, model.records
    check_records(model, "the whole stream", await read(model), records)
    one, other = sorted(chance.choices(range(len(records)), k=2))
    start, end = records[one].position, records[other].position
    found = await read(model, start=start, end=end)
    check_records(model, f"the stream from {start} to {end}", found, records[one:other])
    after = await read(model, start=records[one].position.next_slot())
    check_records(model, f"the stream after {start}", after, records[one + 1 :])
    texts = {
        "earliest": 0, "latest": len(records), str(start): one, f"seq:{one}": one,
    }  # fmt: skip
    if model.given:
        txid = records[one].txid
        texts[f"txid:{txid}"] = [record.txid for record in records].index(txid)
        texts[f"txid:{records[-1].txid + 1}"] = len(records)
    texts["time:1999-12-31T23:59:59.999"] = 0
    texts["time:2999-12-31T23:59:59+01:00"] = len(records)
    for text, index in texts.items():
        place = parse_start(text)
        at = await model.streams.find(model.name, place)
        kept = [record for record in records if record.position >= at]
        walk.same(f"the number of records from {text} on", len(kept), len(records) - index)
        check_records(model, f"the stream from {text} on", await read(model, start=place), kept)
    for text in ("seq:x", "nowhere", "time:yesterday", "1:2"):
        try:
            parse_start(text)
        except UsageError as error:
            if text not in str(error):
                walk.fail("errors_name_their_subject", f"{text!r} was refused by {error!r}")
        else:
            walk.fail("reports_are_true", f"{text!r} was taken for a place in a stream")


async def check_columns(model: Model, *, whole: bool = False) -> None:
    """Decode the entries of each segment as Arrow columns, all of them or a part."""
    walk, chance, records = model.walk, model.walk.chance, model.records
    one, other = sorted(chance.choices(range(len(records)), k=2))
    start, end = (None, None) if whole else (records[one].position, records[other].position)
    wanted = records if start is None else records[one:other]
    times = model.times_ms if start is None else model.times_ms[one:other]
    columns = RecordColumns(ALL_COLUMNS)
    for segment in await model.streams.segments(model.name):
        origin = Origin(model.name, segment, not model.given)
        async with await walk.client.open_ledger(
            segment.ledger_id, password=model.streams.password
        ) as reader:
            if reader.last_add_confirmed < 0:
                continue
            async for run in reader.read_runs():
                columns.add(origin, run, start, end)
    walk.same("the rows of the columns", columns.rows, len(wanted))
    walk.same("the bytes of the columns", columns.size_bytes, sum(len(r.payload) for r in wanted))
    table = columns.batch().to_pydict()
    walk.same("the rows after a batch", columns.rows, 0)
    for name, value in {
        "stream": [model.name] * len(wanted),
        "segment": [one.position.lssn for one in wanted],
        "entry": [one.position.entry_id for one in wanted],
        "slot": [one.position.slot_id for one in wanted],
        "sequence": [one.sequence for one in wanted],
        "size": [len(one.payload) for one in wanted],
        "value": [one.payload for one in wanted],
        "key": [one.key for one in wanted],
        "headers": [list(one.headers) or None for one in wanted],
        "event_time": [one.event_time for one in wanted],
    }.items():
        walk.same(f"the column {name}", table[name], value)
    if model.given:
        walk.same("the column txid", table["txid"], [one.txid for one in wanted])
    for found, (low_ms, high_ms) in zip(table["time"], times, strict=False):
        if found is None:
            walk.fail("reports_are_true", "the time of a record is unknown")
            continue
        found_ms = (found - EPOCH) // timedelta(milliseconds=1)
        walk.between("the time of a record", found_ms, low_ms - 1, high_ms + 1)


async def check_numbers(model: Model, *, floor: DLSN | None = None, ended: bool = False) -> None:
    """Compare the statistics of the segments with the records that were appended."""
    walk, records, password = model.walk, model.records, model.streams.password
    segments = await model.streams.segments(model.name)
    facts = await segment_statistics(walk.client, segments, password)
    cluster = walk.stage.world.cluster
    walk.same("the numbers of the segments", [one.lssn for one in segments],
              list(range(segments[0].lssn, segments[0].lssn + len(segments))))  # fmt: skip
    _check_end(walk, facts, ended=False)
    for fact in facts:
        segment = fact.segment
        here = [one for one in records if one.position.lssn == segment.lssn]
        told = fact.described()
        state = _state_of(segment)
        walk.same("the state of a segment", told["state"], state)
        if state == "truncated":
            continue
        walk.same("the records of a segment", (fact.records, told["records"]),
                  (len(here), len(here)))  # fmt: skip
        if here:
            # If another writer completed the segment, the last one may be a control record.
            known = fact.last is not None and fact.last >= here[-1].position
            walk.same("whether the last record of a segment is counted", known, True)
            walk.same("the last record of a segment", told["last"], str(fact.last))
            walk.same("the first number of a segment", told["first_sequence"], here[0].sequence)
            if model.given:
                walk.same("the last txid of a segment", fact.last_txid, here[-1].txid)
        ledger = cluster.ledger(segment.ledger_id).value
        walk.same("the creation of a segment", fact.ctime_ms, ledger.ctime_ms)
        if ledger.closed:
            walk.same("the bytes of a segment", told["bytes"], ledger.length)
    kept = [one for one in records if floor is None or one.position >= floor]
    if kept:
        some = walk.chance.choice(kept)
        count = sum(one.position >= some.position for one in kept)
        walk.same(f"the records from {some.position} on",
                  await records_from(walk.client, facts, some.position, password),
                  count)  # fmt: skip
        last = walk.chance.randint(1, len(kept))
        at = await before_end(walk.client, facts, last, password)
        walk.same(f"the last {last} records",
                  sum(one.position >= (at or DLSN(0, 0, 0)) for one in kept), last)  # fmt: skip


def _state_of(segment: StreamSegment) -> str:
    if segment.truncation is Truncation.TRUNCATED:
        return "truncated"
    return "in progress" if segment.in_progress else "completed"


def _check_end(walk: Walk, facts: Sequence[SegmentStatistics], *, ended: bool) -> None:
    """Check which segments are said to end the stream: the last one, if a writer has ended it."""
    ends = [ended and one is facts[-1] for one in facts]
    walk.same("the segments that end a stream", [one.ended for one in facts], ends)
    for fact, end in zip(facts, ends, strict=True):
        if end:
            walk.same("the last txid of an ended stream", fact.described()["last_txid"], None)


async def check_owners(model: Model) -> None:
    """Ask who owns the ledgers of the stream, and one that nobody owns."""
    walk, path = model.walk, f"{model.streams.path}/{model.name}"
    segments = await model.streams.segments(model.name)
    ids = [segment.ledger_id for segment in segments if _state_of(segment) != "truncated"]
    free = await walk.client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await free.close()
    walk.stage.checker.facts(free.ledger_id).foreign = True
    claims = await find_claims(walk.client, [*ids, free.ledger_id])
    walk.same("the owners of a ledger of nobody", claims[free.ledger_id], [])
    index = OwnerIndex(walk.client.clock.now_ms() + 10**7)
    async for found in lost_ledgers(walk.client, index.add):
        index.whole = found.whole
    walk.same("whether all owners were read", index.whole, True)
    for ledger_id in ids:
        owners = [str(claim.owner) for claim in claims[ledger_id] if not claim.doubt]
        walk.same("the number of owners of a ledger", len(owners), 1)
        walk.same("whether the owner of a ledger is its stream",
                  all(model.name in owner for owner in owners), True)  # fmt: skip
        metadata = walk.stage.world.cluster.ledger(ledger_id).value
        found_claims = index.of(ledger_id, metadata)
        walk.same("the owners in the index", [str(one.owner) for one in found_claims or ()], owners)
        await walk.refused("a check before a deletion", refuse_owned(walk.client, [ledger_id]),
                           LedgerOwnedError, ledger_id, model.name)  # fmt: skip
    metadata = walk.stage.world.cluster.ledger(free.ledger_id).value
    walk.same(f"the owners in the index, beside {path}", index.of(free.ledger_id, metadata), [])
    await refuse_owned(walk.client, [free.ledger_id])
    walk.stage.checker.facts(free.ledger_id).deleted = True
    await walk.client.delete_ledger(free.ledger_id)


# -- the walkthrough -------------------------------------------------------------------------------


def settings_of(walk: Walk) -> dict[str, Any]:
    """Return settings for the streams of a walkthrough, which need no more bookies than run."""
    chance = walk.chance
    ensemble = min(chance.choice([1, 2, 3]), len(walk.stage.world.bookies))
    quorum = chance.randint(1, ensemble)
    return {
        "ensemble_size": ensemble,
        "write_quorum": quorum,
        "ack_quorum": chance.randint(1, quorum),
        "entry_bytes": 1024,
        "txids": chance.choice(["time", "given"]),
        "compression": chance.choice(["none", "none", "lz4"]),
    }


async def make(
    walk: Walk, path: str, name: str, settings: dict[str, Any], *, of_stream: bool = False
) -> Model:
    """Create a namespace with a stream. The settings are those of one of the two."""
    streams = await open_namespace(
        walk.client, path, create=True, settings={} if of_stream else settings,
        password=walk.chance.choice([b"", b"pw"]),
    )  # fmt: skip
    await streams.create_stream(name, settings=settings if of_stream else None)
    own = await streams.own_stream_settings(name)
    walk.same("the own settings of a stream", own, settings if of_stream else {})
    inherited = await streams.inherited_stream_settings(name)
    walk.same("the inherited settings of a stream", inherited, {} if of_stream else settings)
    walk.same("whether a stream exists", await streams.exists(name), True)
    told = (await streams.stream_settings(name)).as_dict()
    walk.same("the settings of a stream", {one: told.get(one) for one in settings}, settings)
    await walk.refused("a creation of a stream that exists", streams.create_stream(name),
                       StreamExistsError, name)  # fmt: skip
    return Model(walk, streams, name, settings["txids"] == "given")


async def write_some(model: Model, writer: StreamWriter, steps: int) -> StreamWriter:
    """Append, roll and change the writer, and return the last writer."""
    walk, chance = model.walk, model.walk.chance
    for _ in range(steps):
        await model.append(writer)
        match chance.choice(["", "", "roll", "token", "refusals", "writer"]):
            case "roll":
                await writer.roll()
            case "token":
                await model.give_token(writer)
            case "refusals":
                await model.refusals(writer)
            case "writer":
                former, writer = writer, await model.streams.open_writer(model.name)
                txid = model.next_txid if model.given else None
                await walk.refused("an append of a former writer",
                                   former.append(b"no", token=model.token, txid=txid),
                                   StreamFencedError, model.name, known=False)  # fmt: skip
                walk.same("next_sequence of a new writer", writer.next_sequence,
                          model.count)  # fmt: skip
                if model.given and model.records:
                    walk.same("last_txid of a new writer", writer.last_txid,
                              model.records[-1].txid)  # fmt: skip
    return writer


async def walk_stream(walk: Walk) -> None:
    """Write a stream, read it in every way, truncate, rename, end and delete it."""
    model = await make(walk, PATH, NAME, settings_of(walk))
    streams = model.streams
    writer = await write_some(model, await streams.open_writer(NAME), STEPS)
    await writer.roll()
    await model.append(writer)
    await writer.close()
    walk.same("whether a closed writer is closed", writer.closed, True)
    await check_reads(model)
    await check_columns(model, whole=True)
    await check_columns(model)
    await check_numbers(model)
    await check_owners(model)
    await _check_subscription(model)
    await _check_truncation(model)
    if walk.chance.random() < 0.5:
        await streams.rename_stream(NAME, "renamed")
        walk.same("whether a renamed stream exists", await streams.exists(NAME), False)
        model.name = "renamed"
    writer = await streams.open_writer(model.name)
    await model.append(writer)
    await writer.end_stream()
    await walk.refused("a writer of an ended stream", streams.open_writer(model.name),
                       StreamEndedError, model.name)  # fmt: skip
    segments = await streams.segments(model.name)
    facts = await segment_statistics(walk.client, segments, streams.password)
    _check_end(walk, facts, ended=True)
    reader = await streams.open_reader(
        model.name, start=model.records[-1].position, follow=True, on_gap="skip"
    )
    last = await walk.in_time("a follower of an ended stream", _all_of(reader), 5.0)
    check_records(model, "the end of the stream", last or [], model.records[-1:])
    walk.same("whether a reader knows the end", reader.ended, True)
    ledgers = [segment.ledger_id for segment in await streams.segments(model.name)]
    await streams.delete_stream(model.name)
    walk.same("whether a deleted stream exists", await streams.exists(model.name), False)
    left = [one for one in ledgers if one in walk.stage.world.cluster.ledgers]
    walk.same("the ledgers of a deleted stream", left, [])
    await walk.refused("a reader of a deleted stream",
                       _opened(streams, model.name), NoSuchStreamError, model.name)  # fmt: skip
    await walk.refused("a writer of a deleted stream", streams.open_writer(model.name),
                       NoSuchStreamError, model.name)  # fmt: skip
    await streams.close()


async def _all_of(reader: Any) -> list[Record]:
    return [record async for record in reader]


async def _opened(streams: Namespace, name: str) -> list[Record]:
    return await _all_of(await streams.open_reader(name))


async def _check_subscription(model: Model) -> None:
    walk, streams, records = model.walk, model.streams, model.records
    subscription = streams.subscription(model.name, "reader")
    walk.same("a position that nobody has stored", await subscription.position(), None)
    one, other = sorted(walk.chance.choices(range(len(records)), k=2))
    walk.same("a first commit", await subscription.commit(records[other].position), True)
    stays = records[one].position == records[other].position
    told = await subscription.commit(records[one].position)
    walk.same("a commit of an earlier position, or of the same one", told, stays)
    walk.same("a stored position", await subscription.position(), records[other].position)
    walk.same("the list of subscriptions", await streams.subscriptions(model.name), ["reader"])
    await subscription.delete()
    walk.same("a deleted position", await subscription.position(), None)
    walk.same("the list of no subscriptions", await streams.subscriptions(model.name), [])


async def _check_truncation(model: Model) -> None:
    """Truncate before some record. Only what is from there on is left."""
    walk, streams = model.walk, model.streams
    before = walk.chance.choice(model.records).position
    first = model.records[0].position
    named = await streams.truncate(model.name, before, dry_run=True)
    freed = await streams.truncate(model.name, before)
    walk.same("what a dry run of a truncation named", [one.lssn for one in named],
              [one.lssn for one in freed])  # fmt: skip
    walk.same("whether what is freed is before the position",
              all(one.last_dlsn < before for one in freed), True)  # fmt: skip
    gone = [one.ledger_id for one in freed if one.ledger_id in walk.stage.world.cluster.ledgers]
    walk.same("ledgers that were freed", gone, [])
    kept = [one for one in model.records if one.position >= before]
    check_records(model, "a truncated stream", await read(model), kept)
    if before > first:
        await walk.refused("a read of truncated records", read(model, start=first),
                           StreamGapError)  # fmt: skip
    await check_numbers(model, floor=before)
    skipped = len(model.records) - len(kept)
    model.records, model.times_ms = kept, model.times_ms[skipped:]
    model.given_up += skipped
