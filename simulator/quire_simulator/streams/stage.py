"""The state that the clients of streams share: the facts about each stream, and the invariants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from quire._runtime.opening import opening
from quire.client import Client
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.name import PARTITION, StreamPaths
from quire.codec.distributedlog.segment import StreamSegment, Truncation, parse_segment_name
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import NoSuchLedgerError, QuireError, StreamEndedError
from quire.streams import Namespace, Record
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stored_settings import STREAM_SETTINGS_NODE
from quire.streams.objects.format import BUCKET_KEY
from quire.streams.read.positions import oldest_position
from quire.streams.write.segments import APPLICATION
from quire_simulator.machine.loop import Node, SimTask
from quire_simulator.metadata.nodes import Change
from quire_simulator.streams.facts import ObservedStream, ReadRecord, Sent, WriterAttempt
from quire_simulator.streams.invariants import (
    ACK_INVARIANTS,
    END_INVARIANTS,
    METADATA_INVARIANTS,
    READ_INVARIANTS,
    JudgedStream,
    ReaderPosition,
    in_order,
)
from quire_simulator.streams.machine import Commands
from quire_simulator.streams.plans import StreamPlan
from quire_simulator.world.stage import POLL_S, Stage

T = TypeVar("T")

NAMESPACE = "/sim/streams"
COMPONENT = "component"
ATTEMPTS_MAX = 20
"""The number of attempts of clients that must not give up because of faults."""


def _is_foreign(metadata: LedgerMetadata) -> bool:
    """Return whether the ledger belongs to a stream, or to a snapshot of a state machine."""
    return metadata.custom.get(COMPONENT) == APPLICATION[COMPONENT] or BUCKET_KEY in metadata.custom


class StreamStage:
    """The streams of a run. `lives` has the facts about each stream's current life."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.world = stage.world
        self.checker = stage.checker
        self.lives = {plan.number: ObservedStream(plan) for plan in stage.plan.streams}
        self.former: list[ObservedStream] = []
        """The lives that have ended."""
        self.handles = 0
        self.tainted: set[bytes] = set()
        """Records that may belong to the life before or after a deletion."""
        self.makers: dict[int, Node] = {}
        """The node that created each ledger of a stream, if it learned that the ledger exists."""
        self.ends: dict[int, int] = {}
        """The number of records of each finished stream."""
        self.spoilt: dict[str, StreamSegment] = {}
        """The segments whose nodes cannot be read now, by path."""
        self.names: dict[str, bool] = {}
        """Whether there is a stream with each name, if there ever was."""
        self.names_changed: dict[str, int] = {}
        """The moment when a stream with each name was last created, renamed or deleted."""
        self.checkpoints: dict[int, object] = {}
        """The checkpoint of the query that writes to each stream (`spark`)."""
        self._moment = 0
        self._born: dict[int, int] = {}
        self._commands: dict[int, Commands] = {}
        self.finished: set[int] = set()
        """Streams whose last record is written, or will never be."""
        self.on_segments: Callable[[ObservedStream, dict[str, StreamSegment]], None] = (
            lambda facts, before: None
        )
        """Called with the former segments of a stream when they have changed."""
        self.on_ledger_gone: Callable[[ObservedStream, int], None] = lambda facts, ledger_id: None
        """Called when a ledger was deleted, for each stream that exists."""
        self.world.cluster.tree_observer = self._on_tree
        self.checker.on_ledger = self._on_ledger
        self.checker.is_foreign = _is_foreign

    # -- clients ------------------------------------------------------------------------------

    def moment(self) -> int:
        """Return a number for the current moment, greater than all before."""
        self._moment += 1
        return self._moment

    @property
    def over(self) -> bool:
        """Whether the time of faults is over, so that nothing new is begun."""
        return self.world.loop.time() > self.stage.begin_s + self.stage.plan.span_s

    def note(self, who: str, kind: str, what: object = "") -> None:
        self.stage.history.add(who, kind, note=str(what))

    async def namespace(self, client: Client, path: str = NAMESPACE) -> Namespace:
        """Open a namespace for a client, whose ledgers are observed as they are written."""
        task = asyncio.current_task()
        assert isinstance(task, SimTask)
        node = task.node
        create = client.create_ledger

        @opening
        async def create_ledger(**how: Any) -> Any:
            handle = await create(**how)
            self.makers[handle.ledger_id] = node
            facts = self.checker.facts(handle.ledger_id)
            facts.handle_confirmed = lambda: handle.last_add_confirmed
            return handle

        client.create_ledger = create_ledger  # type: ignore[method-assign]
        return await self.insist(lambda: open_namespace(client, path, create=True))

    async def insist(self, work: Callable[[], Awaitable[T]], attempts: int = ATTEMPTS_MAX) -> T:
        """Repeat the work until it succeeds, and return its result.

        Raises:
            StreamEndedError: The work raised it, which is not repeated.
            QuireError: The error of the last attempt.
        """
        for attempt in range(attempts):
            try:
                return await work()
            except StreamEndedError:
                raise
            except QuireError:
                if attempt == attempts - 1:
                    raise
            await asyncio.sleep(POLL_S)
        raise AssertionError("unreachable")

    # -- streams ------------------------------------------------------------------------------

    def name(self, plan: StreamPlan) -> str:
        """Return the current name of the stream according to the metadata."""
        for name in (plan.name, plan.new_name):
            if self._children(name):
                return name
        return plan.name

    def exists(self, plan: StreamPlan) -> bool:
        return any(self._children(name) for name in (plan.name, plan.new_name))

    def _children(self, name: str) -> bool:
        paths = StreamPaths(NAMESPACE, name)
        return self.world.cluster.tree.get(paths.segments) is not None

    def has_node(self, name: str) -> bool:
        """Whether the node of this name's stream is there, perhaps without its segments."""
        return self.world.cluster.tree.get(f"{NAMESPACE}/{name}/{PARTITION}") is not None

    async def until_there(self, plan: StreamPlan) -> ObservedStream | None:
        """Wait until the stream exists, and return its facts, or None if it is never created."""
        while not self.exists(plan):
            if self.over:
                return None
            await asyncio.sleep(POLL_S)
        return self.lives[plan.number]

    def life_of(self, plan: StreamPlan, payload: bytes) -> ObservedStream | None:
        """Return the life to which this record certainly belongs, or None."""
        if payload in self.tainted:
            return None
        lives = [*self.former, self.lives[plan.number]]
        found = [one for one in lives if one.plan is plan and payload in one.sent]
        return found[0] if len(found) == 1 else None

    def is_current(self, facts: ObservedStream) -> bool:
        """Return whether this life is the current one and is not being deleted."""
        return self.lives[facts.plan.number] is facts and not facts.deleting

    def is_deleted(self, facts: ObservedStream) -> None:
        """Record that the stream was deleted. The next stream of this name is a new life."""
        number = facts.plan.number
        if self.lives[number] is facts:
            # A client that is about to become the writer may become that of the next life, and
            # truncations in progress may affect it.
            opening = [h for h in facts.handles if h.opened is None and h.failed is None]
            self.former.append(facts)
            self.lives[number] = ObservedStream(
                facts.plan, life=facts.life + 1, asked=facts.asked, handles=opening
            )
            self._born[number] = self.moment()

    def commands(self, plan: StreamPlan) -> Commands:
        """Return the facts about the commands of a state machine."""
        facts = self.lives[plan.number]
        tell = lambda invariant, what: self.fail(facts, invariant, what)  # noqa: E731
        return self._commands.setdefault(plan.number, Commands(tell))

    def is_alone(self, facts: ObservedStream, handle: WriterAttempt) -> bool:
        """Return whether this is certainly the writer, because nobody else has tried since it
        began.
        """
        return (
            self.is_current(facts)
            and not handle.tainted
            and all(
                other is handle or (other.failed or other.opened or handle.begun) < handle.begun
                for other in facts.handles
            )
        )

    def begins(self, facts: ObservedStream, who: str, *, sink: str | None = None) -> WriterAttempt:
        """Record that a client tries to become the writer, or that a sink plans a batch."""
        handle = WriterAttempt(who, self.handles, self.moment(), sink=sink)
        self.handles += 1
        facts.handles.append(handle)
        return handle

    def sends(
        self,
        facts: ObservedStream,
        handle: WriterAttempt,
        payloads: Iterable[bytes],
        *,
        first: int | None,
        txids: Sequence[int] | None,
    ) -> list[Sent]:
        """Record that records are about to be submitted. `first` is the sequence id of the first
        one.
        """
        found = []
        for k, payload in enumerate(payloads):
            sent = Sent(
                payload,
                handle,
                self.moment(),
                None if txids is None else txids[k],
                None if first is None else first + k,
            )
            facts.sent.setdefault(payload, []).append(sent)
            found.append(sent)
            if handle.tainted or facts.deleting:
                self.tainted.add(payload)
        return found

    # -- invariants ---------------------------------------------------------------------------

    def fail(self, facts: ObservedStream, invariant: str, what: str) -> None:
        self.checker.fail(invariant, f"stream {facts.plan.name}: {what}")

    def acked(self, facts: ObservedStream, sent: Sequence[Sent], positions: Sequence[DLSN]) -> None:
        """Record that these records are acknowledged. `positions` are those of the last of them."""
        unknown = len(sent) - len(positions)
        for k, one in enumerate(sent):
            at = positions[k - unknown] if k >= unknown else None
            self._judge_ack(facts, one, at)

    def _judge_ack(self, facts: ObservedStream, sent: Sent, at: DLSN | None) -> None:
        if sent.handle.tainted:
            return
        self.checker.checks += 1
        number = facts.plan.number
        if self.lives[number] is not facts:
            if sent.begun >= self._born[number] and at is not None:
                what = f"{sent.payload[:20]!r} was appended after the deletion"
                self.fail(facts, "a_deleted_stream_takes_no_more", what)
            return
        if facts.deleting:
            return
        for invariant in ACK_INVARIANTS:
            wrong = invariant(facts, sent, at)
            if wrong is not None:
                self.fail(facts, invariant.__name__, wrong)
        self._placed(facts, sent.payload, at)
        facts.acked[sent.payload] = at or facts.acked.get(sent.payload)

    def _placed(self, facts: ObservedStream, payload: bytes, at: DLSN | None) -> None:
        if at is not None and facts.positions.setdefault(at, payload) != payload:
            what = f"{at} is the position of {facts.positions[at][:20]!r} and of {payload[:20]!r}"
            self.fail(facts, "a_position_is_assigned_once", what)

    def saw(self, facts: ObservedStream, view: ReaderPosition, record: Record) -> None:
        """Record and check a record that a reader received."""
        if not self.is_current(facts) or record.payload in self.tainted:
            view.upcoming = record.sequence + 1
            return
        self.checker.checks += 1
        seen = ReadRecord(record.payload, record.position, record.txid, record.sequence)
        for invariant in READ_INVARIANTS:
            wrong = invariant(facts, view, seen)
            if wrong is not None:
                self.fail(facts, invariant.__name__, wrong)
        wrong = facts.published.in_one_piece(seen.payload, seen.sequence)
        if wrong is not None:
            self.fail(facts, "a_batch_is_there_whole", f"{view.who}: {wrong}")
        self._placed(facts, seen.payload, seen.position)
        facts.log.setdefault(seen.sequence, seen)
        facts.places.setdefault(seen.payload, seen.sequence)
        view.upcoming = seen.sequence + 1

    def gap(self, facts: ObservedStream, view: ReaderPosition, kind: str, behind: DLSN) -> None:
        """Record and check a gap that was reported to a reader."""
        self.note(view.who, "gap", f"{kind} to before {behind}")
        view.begin, view.upcoming = max(view.begin, behind), None
        if not self.is_current(facts):
            return
        if kind != "truncated" and {behind.lssn - 1, behind.lssn} & facts.destroyed:
            return
        if kind != "truncated":
            self.fail(facts, "nothing_is_lost", f"{view.who}: records before {behind} are lost")
            return
        for segment in facts.segments.values():
            # Whole segments are truncated, up to the beginning of the next one.
            here = segment.first_dlsn < behind and not segment.in_progress
            if (
                here
                and behind > facts.asked
                and segment.last_dlsn >= facts.asked
                and not facts.plan.retained
            ):
                what = (
                    f"{view.who} was told that records before {behind} are truncated, "
                    f"but only those before {facts.asked} may be"
                )
                self.fail(facts, "only_what_was_asked_for_is_truncated", what)

    def reached_the_end(self, facts: ObservedStream, view: ReaderPosition) -> None:
        """Check a reader that has read all there was: it has not received a part of a batch."""
        last = facts.log.get((view.upcoming or 0) - 1)
        wrong = facts.published.cut_off(last.payload) if last is not None else None
        if wrong is not None and self.is_current(facts):
            self.fail(facts, "a_batch_is_seen_whole", f"{view.who}: {wrong}")

    def check_given_up(self, facts: ObservedStream) -> None:
        """Check that no segment has a ledger that was given up with its batch."""
        for segment in facts.segments.values():
            key = facts.published.given_up.get(segment.ledger_id)
            if key is not None:
                what = f"{key} was aborted, but {segment} has a ledger of it"
                self.fail(facts, "an_aborted_batch_is_not_there", what)

    def truncated(self, facts: ObservedStream, before: DLSN, completed: Sequence[str]) -> None:
        """Check the segments after a truncation that was reported as done.

        Segments that were complete when the truncation began must be truncated.
        """
        for name in completed:
            segment = facts.segments.get(name)
            if segment is None or segment.truncation is Truncation.TRUNCATED:
                continue
            if segment.last_dlsn < before or segment.first_dlsn < before > segment.min_active_dlsn:
                what = f"{segment} is not truncated, although all before {before} was"
                self.fail(facts, "what_was_truncated_is_gone", what)

    def is_at_the_end(self, facts: ObservedStream, view: ReaderPosition) -> bool:
        """Return whether this reader has received the last record that will ever be written, or
        knows that it was truncated.
        """
        number = facts.plan.number
        if number not in self.finished:
            return False
        if view.upcoming is None:  # It has received nothing since a gap.
            newest = in_order(facts.segments)[-1:]
            return bool(newest) and not newest[0].in_progress and newest[0].last_dlsn < view.begin
        return view.upcoming >= self.ends.get(number, 0)

    def judge_whole(self, facts: ObservedStream, records: Sequence[Record]) -> None:
        # Ignore what was truncated while it was read.
        oldest = oldest_position(in_order(facts.segments))
        there = [record for record in records if record.position >= oldest]
        seen = [ReadRecord(r.payload, r.position, r.txid, r.sequence) for r in there]
        whole = JudgedStream(oldest, seen)
        for invariant in END_INVARIANTS:
            self.checker.checks += 1
            wrong = invariant(facts, whole)
            if wrong is not None:
                self.fail(facts, invariant.__name__, wrong)
        payloads = {one.payload for one in seen}
        wrong = facts.published.incomplete(payloads, truncated=facts.truncated)
        if wrong is not None:
            self.fail(facts, "a_batch_is_there_whole", wrong)
        wrong = facts.published.in_order()
        if wrong is not None:
            self.fail(facts, "batches_are_in_order", wrong)

    # -- metadata -----------------------------------------------------------------------------

    def _on_tree(self, changes: Iterable[Change]) -> None:
        """Handle nodes that have changed in one step."""
        paths = [path for path, _ in changes]
        for facts in self.lives.values():
            plan = facts.plan
            below = [f"{NAMESPACE}/{n}/{PARTITION}" for n in (plan.name, plan.new_name)]
            if any(path.startswith(root) for path in paths for root in below):
                self._name_changed(plan)
                self._segments_changed(facts)

    def _name_changed(self, plan: StreamPlan) -> None:
        for name in (plan.name, plan.new_name):
            there = self._children(name)
            if there != self.names.get(name, False):
                self.names[name], self.names_changed[name] = there, self.moment()

    def _segments_changed(self, facts: ObservedStream) -> None:
        tree = self.world.cluster.tree
        paths = StreamPaths(NAMESPACE, self.name(facts.plan))
        after: dict[str, StreamSegment] = {}
        for name in tree.children(paths.segments) or []:
            node = tree.get(paths.segment(name))
            if parse_segment_name(name) and node is not None:
                spoilt = self.spoilt.get(paths.segment(name))
                after[name] = spoilt or StreamSegment.from_bytes(node.value)
        before, facts.segments = facts.segments, after
        if after:
            newest = in_order(after)[-1]
            self.world.stream_ledgers[facts.plan.number] = newest.ledger_id
        if facts.deleting or tree.get(paths.segments) is None:
            return
        self.checker.checks += 1
        if tree.get(f"{paths.root}/{STREAM_SETTINGS_NODE}") is None:
            self.fail(facts, "settings_are_there_from_the_beginning", "it has no settings")
        for invariant in METADATA_INVARIANTS:
            wrong = invariant(facts, before, after)
            if wrong is not None:
                self.fail(facts, invariant.__name__, wrong)
        self.check_given_up(facts)
        self.on_segments(facts, before)
        for name, segment in after.items():
            if name not in before and not segment.in_progress:
                self._completed(facts, segment)
        for name, segment in before.items():
            if segment.in_progress and name not in after:
                self._left_progress(facts, segment, after)

    def _completed(self, facts: ObservedStream, segment: StreamSegment) -> None:
        try:
            ledger = self.world.cluster.ledger(segment.ledger_id).value
        except NoSuchLedgerError:
            ledger = None
        if ledger is None and segment.lssn in facts.destroyed:
            return
        if ledger is None or not ledger.closed or ledger.last_entry_id < segment.last_entry_id:
            self.fail(
                facts,
                "a_completed_segment_is_closed",
                f"{segment} is completed, but its ledger is {ledger}",
            )

    def _left_progress(
        self, facts: ObservedStream, segment: StreamSegment, after: dict[str, StreamSegment]
    ) -> None:
        if any(s.ledger_id == segment.ledger_id for s in after.values()):
            return
        try:
            ledger = self.world.cluster.ledger(segment.ledger_id).value
        except NoSuchLedgerError:
            ledger = None
        if ledger is None and segment.lssn in facts.destroyed:
            told = [at for at in facts.positions if at.lssn == segment.lssn]
            if told:
                what = f"{segment} was dropped with its ledger, but {max(told)} was assigned"
                self.fail(facts, "a_lost_segment_keeps_its_number", what)
            return
        if ledger is None or not ledger.closed or ledger.last_entry_id >= 0:
            self.fail(
                facts,
                "only_empty_segments_are_dropped",
                f"{segment} was dropped, but its ledger is {ledger}",
            )

    def _on_ledger(self, ledger_id: int) -> None:
        """Handle a ledger that was changed or deleted."""
        if ledger_id in self.world.cluster.ledgers:
            return
        for facts in self.lives.values():
            if facts.deleting:
                continue
            self.on_ledger_gone(facts, ledger_id)
            for segment in facts.segments.values():
                named = segment.ledger_id == ledger_id and segment.lssn not in facts.destroyed
                if named and segment.truncation is not Truncation.TRUNCATED:
                    self.fail(
                        facts, "a_named_ledger_is_not_deleted", f"the ledger of {segment} is gone"
                    )
