"""Compare the places and numbers of a stream with its records.

`judge_places` does so exactly, when a judge has read the whole stream and nothing changes any more.
`look_at_the_last` does so while the stream is written, as far as the answer is determined.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import aclosing

from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire.streams import EARLIEST, LATEST, AtSequence, AtTime, AtTxid, Gap, Namespace, Record
from quire.streams.read import statistics
from quire.streams.read.merged import MergedPeek
from quire.streams.read.peek import Peeked, UnreadableEntry, peek, position_before_end
from quire.streams.read.positions import Start, find_end, oldest_position
from quire_simulator.streams.facts import ObservedStream
from quire_simulator.streams.invariants import ReaderPosition, in_order
from quire_simulator.streams.stage import StreamStage

COUNTS = (1, 2, 5, 20, 100)
"""The numbers of last records that are asked for."""
AT_ONCE = (1, 3, 32)
"""The largest numbers of entries that are requested at a time."""
PAGE_RECORDS = (1, 3, 20)
"""The sizes of pages of the merged records of all streams."""
PAGES_MAX = 2
"""The largest number of pages that are read."""
JUDGED = 0.3
"""The probability of each group of questions, because every one of them takes time."""


# -- when nothing changes any more -----------------------------------------------------------------


async def judge_places(
    stage: StreamStage, who: str, streams: Namespace, facts: ObservedStream, read: Sequence[Record]
) -> None:
    """Check positions, counts and sizes of a stream. `read` has all records from the oldest on."""
    if facts.destroyed or not stage.is_current(facts):
        return
    name = stage.name(facts.plan)
    segments = await streams.segments(name)
    oldest = oldest_position(segments)
    records = [record for record in read if record.position >= oldest]
    judge = _PlaceJudge(stage, who, streams, facts, segments, records)
    if judge.chance.random() < JUDGED:
        await judge.last_records()
    if judge.chance.random() < JUDGED:
        await judge.starts(name)
    if judge.chance.random() < JUDGED:
        await judge.statistics()


class _PlaceJudge:
    """Asks for places and numbers of a stream that does not change any more."""

    def __init__(
        self,
        stage: StreamStage,
        who: str,
        streams: Namespace,
        facts: ObservedStream,
        segments: Sequence[StreamSegment],
        records: Sequence[Record],
    ) -> None:
        self.stage = stage
        self.who = who
        self.streams = streams
        self.client = streams.client
        self.facts = facts
        self.segments = segments
        self.records = records
        self.chance = stage.world.loop.derive(f"places {who} {facts.plan.number}")

    def fail(self, invariant: str, what: str) -> None:
        self.stage.fail(self.facts, invariant, f"{self.who}: {what}")

    def _some(self) -> Record | None:
        return self.chance.choice(self.records) if self.records else None

    async def last_records(self) -> None:
        """Ask for the last records of the stream, and for the last ones before a record."""
        password = self.streams.password
        some = self._some()
        for end in (None, *(() if some is None else (some.position,))):
            count = self.chance.choice(COUNTS)
            before = [one for one in self.records if end is None or one.position < end]
            wanted = before[-count:]
            at = await position_before_end(self.client, self.segments, count, password, end)
            found = None if at is None else [one for one in before if one.position >= at]
            if (found or []) != wanted:
                what = f"the last {count} records before {end or 'the end'} begin at {at}, "
                what += f"where {len(found or [])} are, but {len(wanted)} should be"
                self.fail("the_last_records_are_the_last", what)
            if end is None and at is not None:
                await self._peek(at, wanted)

    async def _peek(self, at: DLSN, wanted: Sequence[Record]) -> None:
        shown: list[Record] = []
        items = peek(
            self.client, self.segments, at, self.streams.password, self.chance.choice(AT_ONCE)
        )
        async with aclosing(items):
            async for item, _ in items:
                if isinstance(item, Record):
                    shown.append(item)
                else:
                    self.fail("the_last_records_are_the_last", f"from {at} on, it shows {item}")
        if shown != list(wanted):
            what = f"it shows {len(shown)} records from {at} on, but {len(wanted)} are there"
            self.fail("the_last_records_are_the_last", what)

    async def starts(self, name: str) -> None:
        """Ask where some starts and ends are."""
        some, records = self._some(), self.records
        places: list[Start] = [EARLIEST, LATEST]
        if some is not None:
            places += [AtTxid(some.txid + self.chance.choice([0, 1])), AtSequence(some.sequence)]
            if self.facts.plan.txids == "time" and not self.facts.plan.drivers:
                places.append(AtTime(some.txid + self.chance.choice([0, 1])))
        for start in places:
            begin = await self.streams.find(name, start)
            found = [one for one in records if one.position >= begin]
            wanted = [one for one in records if not _is_before(one, start)]
            if found != wanted:
                what = f"{start} was found at {begin}, where {len(found)} records follow, "
                what += f"but {len(wanted)} should"
                self.fail("find_finds_the_first", what)
        end = self.chance.choice(places)
        at = await find_end(self.client, self.segments, end, self.streams.password)
        before = [one for one in records if one.position < at]
        if before != [one for one in records if _is_before(one, end)]:
            what = f"{len(before)} records are before {at}, the place of the end {end}"
            self.fail("find_finds_the_first", what)

    async def statistics(self) -> None:
        """Compare the numbers of the stream with its records."""
        password, cluster = self.streams.password, self.stage.world.cluster
        found = await statistics.segment_statistics(self.client, self.segments, password)
        for one in found:
            segment = one.segment
            here = [record for record in self.records if record.position.lssn == segment.lssn]
            if segment.ledger_id not in cluster.ledgers or one.truncated:
                continue
            ledger = cluster.ledger(segment.ledger_id).value
            partly = segment.min_active_dlsn > segment.first_dlsn
            last = here[-1] if here else None
            if one.ended and last is not None:
                last = last._replace(txid=one.last_txid or 0)  # The end hides the last txid.
            wrong = [
                one.records != len(here) and not partly,
                one.records < len(here),
                one.size_bytes != ledger.length and ledger.closed,
                one.lost,
                last is not None and one.last_txid != last.txid,
                # The last record of a completed segment may be one that no reader receives.
                last is not None and (one.last is None or one.last < last.position),
            ]
            if any(wrong):
                what = f"{one} is said of a segment with {len(here)} records, whose last one is "
                what += f"{last}, and {ledger.length} bytes"
                self.fail("numbers_are_those_of_the_records", what)
        some = self._some()
        if some is None:
            return
        at = self.chance.choice([some.position, some.position.next_slot()])
        told = await statistics.records_from(self.client, found, at, password)
        there = sum(one.position >= at for one in self.records)
        if told != there:
            what = f"{told} records are said to follow from {at} on, but {there} do"
            self.fail("numbers_are_those_of_the_records", what)


def _is_before(record: Record, start: Start) -> bool:
    if isinstance(start, AtTxid):
        return record.txid < start.txid
    if isinstance(start, AtTime):
        return record.txid < start.time_ms
    if isinstance(start, AtSequence):
        return record.sequence < start.sequence
    return start == LATEST


async def judge_pages(
    stage: StreamStage,
    who: str,
    streams: Namespace,
    whole: Sequence[tuple[ObservedStream, Sequence[Record]]],
) -> None:
    """Read the records of several streams as one list, in pages, from one of its ends."""
    whole = [(facts, records) for facts, records in whole if stage.is_current(facts)]
    if not whole or any(facts.destroyed for facts, _ in whole):
        return
    chance = stage.world.loop.derive(f"pages {who}")
    if chance.random() >= JUDGED:
        return
    limit = chance.choice(PAGE_RECORDS)
    found = [await streams.segments(stage.name(facts.plan)) for facts, _ in whole]
    backwards = chance.random() < 0.5
    pages: list[list[tuple[int, Peeked]]] = []
    places: list[DLSN] = []
    for _ in range(PAGES_MAX):
        page = MergedPeek(
            streams.client, found, limit, lambda number, item: (number, item), lambda _: False,
            streams.password,
        )  # fmt: skip
        if backwards:
            await page.before(places or [None] * len(found))
            places = [one.begin for one in page.streams]
        else:
            await page.after(places or [oldest_position(segments) for segments in found])
            places = [one.end for one in page.streams]
        pages.append(page.items)
        if len(page.items) > limit or (page.more and len(page.items) < limit):
            what = f"{who}: a page of {limit} has {len(page.items)} items"
            stage.fail(whole[0][0], "pages_have_all_records_in_order", what)
        if not page.more:
            break
    items = [item for page in (pages[::-1] if backwards else pages) for item in page]
    for number, (facts, records) in enumerate(whole):
        mine = [item for at, item in items if at == number and not isinstance(item, Gap)]
        kept = [one for one in records if one.position >= oldest_position(found[number])]
        part = kept[len(kept) - len(mine) :] if backwards else kept[: len(mine)]
        if mine != part or (not page.more and len(mine) != len(kept)):
            what = f"{who}: its {len(kept)} records are not those of pages with {len(mine)}"
            stage.fail(facts, "pages_have_all_records_in_order", what)
    txids = [item.txid for _, item in items if isinstance(item, Record)]
    if txids != sorted(txids):
        what = f"{who}: the records of pages are not in the order of their txids"
        stage.fail(whole[0][0], "pages_have_all_records_in_order", what)


# -- while the stream is written -------------------------------------------------------------------


async def look_at_the_last(
    stage: StreamStage,
    who: str,
    client: Client,
    streams: Namespace,
    facts: ObservedStream,
    chance: random.Random,
) -> None:
    """Show the last records of a stream, as far as they are acknowledged."""
    count, password, floor = chance.choice(COUNTS), streams.password, facts.floor
    before = {one.lssn: one for one in in_order(facts.segments)}
    segments = await streams.segments(stage.name(facts.plan))
    at = await position_before_end(client, segments, count, password)
    after = {one.lssn: one for one in in_order(facts.segments)}
    view = ReaderPosition(who, at or DLSN(0, 0, 0), floor=floor)
    items = peek(client, segments, view.begin, password, chance.choice(AT_ONCE))
    async with aclosing(items):
        async for item, behind in items:
            if isinstance(item, UnreadableEntry):
                view.begin, view.upcoming = behind, None
            elif isinstance(item, Gap):
                lost = {behind.lssn - 1, behind.lssn} & facts.destroyed
                # A ledger may have been truncated since the segments were listed.
                stage.gap(facts, view, item.kind if lost else "truncated", behind)
            else:
                stage.saw(facts, view, item)
    if not stage.is_current(facts) or facts.destroyed:
        return
    known = sorted(
        seen.sequence for seen in facts.log.values() if at is not None and seen.position >= at
    )
    completed = [one.following_sequence_id for one in before.values() if not one.in_progress]
    end = max(completed, default=0)
    if known and known[0] < end - count:
        what = f"{who} looked for the last {count} of at least {end} records, "
        stage.fail(facts, "the_last_records_are_the_last", f"{what}and found number {known[0]}")
    if any(one.in_progress for one in (*before.values(), *after.values())) or set(before) != set(
        after
    ):
        return
    skipped = range(max(0, end - count), known[0] if known else end)
    for sequence in skipped:
        seen = facts.log.get(sequence)
        if seen is not None and not facts.may_be_gone(seen):
            what = f"{who} looked for the last {count} of {end} records, "
            stage.fail(facts, "the_last_records_are_the_last", f"{what}but not from {sequence} on")
