"""Clients that truncate a stream, and the exact model of what truncation and retention keep.

The model is computed from the metadata, independently of Quire's code. Exactly the segments of the
model must be truncated: neither one too many nor one too few.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import takewhile

from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN, INITIAL_DLSN
from quire.codec.distributedlog.limits import FIRST_LSSN
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import NoSuchLedgerError, QuireError
from quire.streams import Namespace
from quire_simulator.streams.facts import ObservedStream
from quire_simulator.streams.invariants import in_order
from quire_simulator.streams.plans import StreamPlan
from quire_simulator.streams.stage import StreamStage
from quire_simulator.world.stage import POLL_S

RETAINS = 0.5
"""The probability that a client applies the retention settings instead of truncating."""
RETAIN_TURNS = 3
AFTER_THE_END = DLSN(1 << 40, 0, 0)
ENDS = 0.5
"""The probability that a client truncates among the last records."""
KNOWN_PLACES = 0.4
"""The probability that a client truncates before a record that some reader has received."""
LAST_ATTEMPTS = 8
RETAINED_S = 1.0


def completed_of(facts: ObservedStream) -> list[StreamSegment]:
    """Return the completed segments in the metadata, from the oldest to the newest."""
    return [segment for segment in in_order(facts.segments) if not segment.in_progress]


def expired_of(
    plan: StreamPlan,
    completed: Sequence[StreamSegment],
    length_of: Callable[[StreamSegment], int],
    now_ms: int,
) -> list[StreamSegment]:
    """Return the segments that retention must not keep at this time.

    A segment is expired if it and its last record are too old, or if the segments after it hold
    enough, and only together with all segments before it.
    """
    if plan.explicit:
        return []

    def is_old(segment: StreamSegment) -> bool:
        oldest_ms = now_ms - plan.retention_ms
        told = segment.last_txid <= now_ms  # otherwise it is not the time of a record
        return segment.completion_time_ms < oldest_ms and not (
            told and segment.last_txid >= oldest_ms
        )

    by_age = by_size = 0
    if plan.retention_ms:
        by_age = len(list(takewhile(is_old, completed)))
    if plan.retention_bytes:
        kept = 0
        for at in range(len(completed) - 1, -1, -1):
            if kept >= plan.retention_bytes:
                by_size = at + 1
                break
            kept += length_of(completed[at])
    return list(completed[: max(by_age, by_size)])


class Retention:
    """A checker of what is truncated in the streams of a run."""

    def __init__(self, stage: StreamStage) -> None:
        self.stage = stage

    def watch(self) -> None:
        """Check every change of segments and every deletion of a ledger from now on."""
        self.stage.on_segments = self.changed
        self.stage.on_ledger_gone = self.ledger_gone

    def length_of(self, segment: StreamSegment) -> int:
        """Return the bytes in the ledger of a completed segment. A ledger that is gone has none."""
        try:
            return self.stage.world.cluster.ledger(segment.ledger_id).value.length
        except NoSuchLedgerError:
            return 0

    def changed(self, facts: ObservedStream, before: dict[str, StreamSegment]) -> None:
        """Check a change of the metadata: only what is expired or was asked for is truncated."""
        plan, segments = facts.plan, in_order(facts.segments)
        freed = bool(segments) and segments[0].lssn > FIRST_LSSN
        if freed and segments[0].truncation is not Truncation.TRUNCATED:
            what = f"nothing tells a reader that all before {segments[0]} was truncated"
            self.stage.fail(facts, "the_newest_truncated_segment_is_named", what)
        if plan.kind != "stream" or not plan.retained:
            return
        new = [
            segment
            for name, segment in facts.segments.items()
            if segment.truncation is Truncation.TRUNCATED
            and segment.last_dlsn >= facts.asked
            and name in before
            and before[name].truncation is not Truncation.TRUNCATED
        ]
        if not new:
            return
        now_ms = self.stage.world.clock_of(self.stage.world.metadata_caller).now_ms()
        expired = expired_of(plan, completed_of(facts), self.length_of, now_ms)
        for segment in new:
            if segment not in expired:
                what = f"{segment} is truncated at {now_ms} although it is not expired"
                self.stage.fail(facts, "retention_takes_only_what_is_expired", what)

    def ledger_gone(self, facts: ObservedStream, ledger_id: int) -> None:
        """Check a deletion: the next writer needs the newest completed segment."""
        completed = completed_of(facts)
        if not completed or completed[-1].lssn in facts.destroyed:
            return
        if completed[-1].ledger_id == ledger_id:
            what = f"the ledger of {completed[-1]} is deleted"
            self.stage.fail(facts, "the_newest_completed_segment_is_kept", what)

    # -- clients ------------------------------------------------------------------------------

    async def retain(self, who: str, streams: Namespace, facts: ObservedStream) -> None:
        """Apply the retention settings, and check that nothing is kept that is expired."""
        now_ms = streams.client.clock.now_ms()
        completed = completed_of(facts)
        expired = expired_of(facts.plan, completed, self.length_of, now_ms)
        name = self.stage.name(facts.plan)
        await streams.retain(name)
        self.stage.note(who, "retained", f"{len(expired)} of {len(completed)} segments expired")
        if self.stage.is_current(facts) and self.stage.name(facts.plan) == name:
            self._is_gone(facts, completed, expired)

    async def truncate(self, streams: Namespace, facts: ObservedStream, before: DLSN) -> None:
        """Truncate before a position, and check what is truncated and freed."""
        stage = self.stage
        facts.asked = max(facts.asked, before)
        completed, names = completed_of(facts), [
            name for name, segment in facts.segments.items() if not segment.in_progress
        ]  # fmt: skip
        name = stage.name(facts.plan)
        await streams.truncate(name, before)
        if not stage.is_current(facts) or stage.name(facts.plan) != name:
            return  # It was renamed meanwhile, and what is freed under which name is uncertain.
        stage.truncated(facts, before, names)
        self._is_gone(facts, completed, [s for s in completed if s.last_dlsn < before])
        if completed:
            end = completed[-1].first_dlsn.next_segment()
            facts.floor = max(facts.floor, min(before, end))

    def _is_gone(
        self,
        facts: ObservedStream,
        completed: Sequence[StreamSegment],
        wanted: Sequence[StreamSegment],
    ) -> None:
        """Check that these segments are truncated, and freed except the newest completed one."""
        stage, numbers = self.stage, {segment.lssn for segment in wanted}
        now = {segment.lssn: segment for segment in completed_of(facts)}
        for number in sorted(numbers):
            segment = now.get(number)
            if segment is not None and segment.truncation is not Truncation.TRUNCATED:
                what = f"{segment} is expired or was given up, but is not truncated"
                stage.fail(facts, "what_is_given_up_is_truncated", what)
        free = list(
            takewhile(
                lambda s: s.lssn in numbers or s.truncation is Truncation.TRUNCATED, completed[:-1]
            )
        )
        for segment in free:
            if segment.ledger_id in stage.world.cluster.ledgers:
                what = f"the ledger of {segment} exists although all of the segment was given up"
                stage.fail(facts, "what_is_truncated_is_freed", what)
        for segment in free[:-1]:
            if segment.lssn in now:
                what = f"the node of {segment} exists although a later segment is truncated"
                stage.fail(facts, "what_is_truncated_is_freed", what)

    # -- in the end ---------------------------------------------------------------------------

    async def writer_retains(self, who: str, streams: Namespace, facts: ObservedStream) -> None:
        """Check that a writer that has just completed a segment applies retention by itself."""
        now_ms = streams.client.clock.now_ms()
        expired = expired_of(facts.plan, completed_of(facts), self.length_of, now_ms)
        for _ in range(LAST_ATTEMPTS):
            kept = [s for s in completed_of(facts) if s.truncation is not Truncation.TRUNCATED]
            if not set(kept) & set(expired):
                return
            await asyncio.sleep(POLL_S)
        what = f"{who} completed a segment, but {expired} are kept"
        self.stage.fail(facts, "a_writer_applies_retention", what)

    async def judge(self, who: str, streams: Namespace, facts: ObservedStream) -> None:
        """Check retention once more, and that what a dry run names is deleted afterwards."""
        name = self.stage.name(facts.plan)
        for attempt in range(LAST_ATTEMPTS):
            try:
                would = await streams.retain(name, dry_run=True)
                await self.retain(who, streams, facts)
                break
            except QuireError:
                if attempt == LAST_ATTEMPTS - 1:
                    raise
            await asyncio.sleep(POLL_S)
        left = [s for s in would if s.ledger_id in self.stage.world.cluster.ledgers]
        if left:
            what = f"a dry run said that {left} would be deleted, but they are kept"
            self.stage.fail(facts, "a_dry_run_says_what_happens", what)


async def truncate_stream(stage: StreamStage, who: str, client: Client, plan: StreamPlan) -> None:
    """Truncate before some place, or apply the retention settings."""
    chance = stage.world.loop.derive(f"actor {who}")
    streams = await stage.namespace(client)
    try:
        facts = await stage.until_there(plan)
        if facts is None:
            return
        retention = Retention(stage)
        if plan.retained and chance.random() < RETAINS:
            for _ in range(RETAIN_TURNS):
                await retention.retain(who, streams, facts)
                await asyncio.sleep(chance.random() * RETAINED_S)
            return
        while not facts.log and not stage.over:
            await asyncio.sleep(POLL_S)
        if facts.log and stage.is_current(facts):
            kind, before = _place(chance, facts)
            stage.note(who, "truncate", f"{kind}: {before}")
            await retention.truncate(streams, facts, before)
    finally:
        await streams.close()


def _place(chance: random.Random, facts: ObservedStream) -> tuple[str, DLSN]:
    """Return a random position in, between, at the end of or after the segments, after its name."""
    if not facts.segments or chance.random() < KNOWN_PLACES:
        known = sorted(seen.position for seen in facts.log.values())
        before = chance.choice(known[-5:] if chance.random() < ENDS else known)
        return "a record", before.next_slot() if chance.random() < 0.5 else before
    segments = in_order(facts.segments)
    segment, newest = chance.choice(segments), segments[-1]
    places = [
        ("the beginning", INITIAL_DLSN),
        ("a boundary", segment.first_dlsn),
        ("a boundary", segment.first_dlsn.next_segment()),
        ("the newest segment", newest.first_dlsn),
        ("the end", newest.first_dlsn.next_segment()),
        ("the newest segment", DLSN(newest.lssn, chance.randint(0, 5), chance.randint(0, 2))),
        ("beyond the end", DLSN(newest.lssn + 3, 0, 0)),
        ("beyond the end", AFTER_THE_END),
    ]
    if not segment.in_progress and segment.last_entry_id >= 0:
        last = segment.last_dlsn
        places += [
            ("the last record", last),
            ("a boundary", last.next_slot()),
            ("beyond a segment", DLSN(last.lssn, last.entry_id, last.slot_id + 5)),
            ("beyond a segment", DLSN(last.lssn, last.entry_id + 1, 0)),
            ("inside a segment", DLSN(last.lssn, last.entry_id // 2, 1)),
        ]
    return chance.choice(places)
