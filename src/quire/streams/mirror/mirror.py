"""A stream as a copy of another one, usually in another cluster.

The copy has the same segments, and the ledger of each segment has the same entries.

    completed segments    The caller's function copies their ledgers (in Spark's tasks), and one
                          transaction names them, in order.
    segment in progress   Its entries are followed and written to a ledger that the copy's segment
                          in progress names, so that the copy's readers see them as they come.

The process that runs a `Mirror` (the driver) claims the copy as any writer claims a stream. Another
writer that opens the copy therefore ends the replication, and a former driver cannot publish any
more.

A client cannot continue the ledger of another client. A new driver therefore begins the followed
ledger again, and replaces the former ledger once the new one has as many entries as readers can see
in the former. The former ledger is deleted without being closed. A reader then finds the new ledger
of the segment, and continues after what it has read. (Readers of earlier versions take the end of a
closed ledger for the end of the segment. Autorecovery closes the ledger if its writer is gone and a
bookie is lost, so present readers wait until the segment is completed.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from quire._runtime.retry import Backoff, Retry
from quire._runtime.units import end_text
from quire.client import LedgerReader, LedgerWriter
from quire.codec.distributedlog.name import decode_number
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.codec.entry.entry import EntryRun
from quire.errors import (
    BookieError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    QuireError,
    StreamDamagedError,
    StreamFencedError,
    StreamGapError,
    UnauthorizedError,
)
from quire.metadata.tree import Delete, Operation, Put
from quire.streams.mirror.check import (
    carry_settings,
    check_gap,
    check_origin,
    copy_of,
    lacking,
    last_shown,
    look_at_copy,
    origin_of,
    prepare_target,
)
from quire.streams.mirror.copy import JOB, Piece, copy_ledger, create
from quire.streams.mirror.leftovers import Leftovers
from quire.streams.namespace.namespace import Namespace
from quire.streams.namespace.stored_settings import inherited_settings
from quire.streams.namespace.stream_metadata import NO_LEDGER, WriterClaim
from quire.streams.namespace.truncation import free, stored_bytes, truncate
from quire.streams.publish.plans import BatchPlan, forget_plan, is_open, open_plan
from quire.streams.publish.published import BatchKey
from quire.streams.read.positions import oldest_position
from quire.streams.read.records import decode
from quire.streams.read.segment_list import SegmentList
from quire.streams.write.takeover import (
    TakenStream,
    complete,
    delete_allocated,
    delete_insisting,
    free_allocated,
)

T = TypeVar("T")

SEGMENTS_AT_ONCE = 32
"""The largest number of segments of one stream to copy before they are published.

A driver that dies loses the work on at most this many.
"""
DIRECT_BYTES_MAX = 4 * 1024 * 1024
"""The largest number of bytes in completed segments that the driver copies itself while it follows.
"""
LOOKS_MAX = 5
"""The largest number of times to read the segments before a missing ledger counts as lost."""
LOOK_DELAY_S = 0.2
BACKOFF = Backoff(0.2, 5.0)
"""The pauses before another attempt after a transient error."""
SHOW_S = 5.0
"""Seconds to wait until readers can see the last copied entry of a segment in progress.

The wait is at the end of a replication, before the copy's ledger is left.
"""
SHOW_EACH_S = 0.05
PLANNED = BatchKey.of_job(JOB.decode("ascii"))
"""The key of the plans under which completed segments are published.

Nothing is recorded as published under it.
"""
PASSING = (LedgerError, BookieError, MetadataUnavailableError)
"""The errors after which another attempt may succeed."""


@dataclass(slots=True)
class CopyCounts:
    """The numbers of segments, entries and bytes that a `Mirror` has copied."""

    segments: int = 0
    """The number of segments that were completed in the copy."""
    entries: int = 0
    """The number of copied entries. Entries that were copied twice after an error count twice."""
    size_bytes: int = 0
    """The number of payload bytes of the copied entries."""


@dataclass(slots=True)
class FollowedLedger:
    """A ledger of the copy that receives the entries of the source's segment in progress."""

    segment: StreamSegment
    writer: LedgerWriter
    named: bool = False
    """Whether the copy's segment in progress names this ledger."""
    records: int = 0
    entries: int = 0
    size_bytes: int = 0

    def count_records(self, first: int, payloads: Sequence[bytes]) -> None:
        """Set `records` to the number of application records in the segment so far.

        `payloads` are new entries, the first with id `first`. Records are numbered within the
        segment, so the number of the last one is the count. Raises StreamDamagedError if an entry
        cannot be decoded.
        """
        for at in range(len(payloads) - 1, -1, -1):
            users = decode(self.segment, first + at, payloads[at]).users()
            if len(users):
                self.records = users.positions[-1]
                return


class Mirror:
    """The replication of one stream. Call `run` once, and then `close`.

    While `run` works, `lag.Lag` can measure how far the copy is behind.
    """

    def __init__(
        self,
        source: Namespace,
        target: Namespace,
        name: str,
        copy: Callable[[Sequence[Piece]], Awaitable[list[Piece]]],
        leftovers: Leftovers,
        *,
        overrides: Mapping[str, Any],
        truncation: bool,
        on_gap: str,
        stop: asyncio.Event,
        patience_s: float,
    ) -> None:
        """Prepare the replication, which follows the source until `stop` is set.

        `copy` copies ledgers, and returns a result for each in order, as `copy.copy_ledger` does.
        `overrides` are settings of the copy that replace those of the source. With `truncation`,
        whatever the source truncates is truncated in the copy. `on_gap` is "raise" or "skip".
        """
        self.name = name
        self.copied = CopyCounts()
        self.source = source
        self.target = target
        self.tail: FollowedLedger | None = None
        self.last = 0
        """The number of the newest completed segment of the copy."""
        self.partial: StreamSegment | None = None
        """The copy's segment in progress, or None."""
        self._from = source.metadata(name)
        self._to = target.metadata(name)
        self._copy = copy
        self._leftovers = leftovers
        self._overrides = dict(overrides)
        self._truncation = truncation
        self._on_gap = on_gap
        self._stop = stop
        self._patience_s = patience_s
        self._claim: WriterClaim | None = None
        self._origin: dict[str, Any] = {}
        self._marked = False
        """Whether the copy's metadata records that producers or fencing tokens are used."""
        self._settings: dict[str, Any] = {}
        self._well_at = asyncio.get_running_loop().time()
        """The event loop's time at which something was last copied for the first time, or there
        was nothing to copy.
        """
        self._furthest = 0, -1
        """The segment and its last entry up to which a segment in progress was copied so far.

        After an error it is copied again. A run whose every attempt ends at the same entry makes no
        progress, however much it copies.
        """

    # -- running ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy everything that exists now. Until `stop` is set, also copy what is appended later.

        Raises StreamDivergedError if the target is not, or no longer, a copy of the source. Raises
        StreamFencedError if another writer opened the copy, StreamGapError if something to copy is
        missing in the source, StreamDamagedError if a segment was not copied completely,
        StreamExistsError if a topic of the target has the name, UsageError if a setting is not
        valid in the target, UnauthorizedError, NoSuchStreamError, and MetadataError if metadata
        cannot be decoded. If ledgers, bookies or the metadata store fail, their errors are raised
        only after `patience_s` seconds without progress.
        """
        retry = Retry(BACKOFF, self.target.client.rng)
        failing_since, loop = -1.0, asyncio.get_running_loop()
        while True:
            try:
                await self._take()
                await self._mirror()
                return
            except StreamFencedError as error:
                raise self._fenced() from error
            except UnauthorizedError:
                raise
            except PASSING:
                now = loop.time()
                if self._well_at > failing_since:
                    failing_since = now
                    retry.reset()
                elif now - failing_since > self._patience_s:
                    raise
            finally:
                self._drop_tail()
            await retry.pause()

    async def _take(self) -> None:
        """Check that the target is a copy of the source, and become its writer."""
        former = self._claim
        if former is None:
            self._origin = await origin_of(self.source, self.name)
            await prepare_target(self.target, self.name, self._origin, await self._own_settings())
            await self._to.ensure_writable()
        else:
            ours = {former.stamp.encode("ascii"), *self._to.doubted_stamps}
            if (await self._to.life()).value not in ours:
                raise self._fenced()
            await check_origin(self._to, await origin_of(self.source, self.name))
        await self._look_at_copy()
        self._claim = await self._to.claim()
        await check_origin(self._to, self._origin)
        await self._look_at_copy()
        await carry_settings(self.target, self.name, await self._own_settings())
        settings = await self.target.stream_settings(self.name)
        self._settings = settings.as_dict()
        await free_allocated(self.target.client, self._to, self._claim)
        await self._leftovers.sweep(self._to, self._claim)

    async def _own_settings(self) -> dict[str, Any]:
        """Return the settings that the copy itself has.

        They include those of namespaces in the source that are nearer to the stream than the
        replicated one, because the target may lack these namespaces.
        """
        source = self.source
        above = self._from.paths.stream.rpartition("/")[0]
        nearer = await inherited_settings(source.client, above, below=source.path)
        return {**nearer, **await source.own_stream_settings(self.name), **self._overrides}

    async def _look_at_copy(self) -> None:
        self.last, self.partial = await look_at_copy(self.source, self.target, self.name)

    async def _mirror(self) -> None:
        async with SegmentList(self._from) as listed:
            newest = max((segment.lssn for segment in listed.segments), default=0)
            misses = 0
            while True:
                await self._give_up(listed.segments)
                todo = lacking(listed.segments, self.last)
                if self._stop.is_set():
                    todo = [segment for segment in todo if segment.lssn <= newest]
                try:
                    if todo and not todo[0].in_progress:
                        await self._copy_sealed([s for s in todo if not s.in_progress])
                    elif todo and await self._follow(todo[0], listed):
                        pass  # this segment is done: look for the next one
                    else:
                        self._well()
                        if await self._unless_stopped(listed.changed()) is None:
                            return
                    misses = 0
                except NoSuchLedgerError as error:
                    misses += 1
                    if misses == LOOKS_MAX:
                        raise StreamGapError(
                            f"stream {self.name} cannot be copied further, because a ledger of "
                            f"the source is lost: {error}",
                            remedy=(
                                "Restore the ledger in the source. If that is impossible, "
                                "give up the segment and all before it: truncate the source "
                                "before the next segment. The copy may hold some records of it: "
                                "read them there first"
                            ),
                        ) from error
                    await asyncio.sleep(LOOK_DELAY_S)
                await listed.look()

    async def _unless_stopped(self, waiting: Awaitable[T]) -> T | None:
        """Return the result of `waiting`, or cancel it and return None when `stop` is set."""
        work = asyncio.ensure_future(waiting)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            work.cancel()
            stopped.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)

    # -- what the source truncated ------------------------------------------------------------

    async def keep(self) -> None:
        """Check that the source is still the same stream, and truncate the copy like the source.

        Nothing is truncated if the replication was created without `truncation`. May be called
        while `run` is at work. Raises StreamDivergedError, NoSuchStreamError, and MetadataError.
        """
        if self._claim is None:
            return  # the copy may not exist yet
        life = self._claim.life
        segments = await self._from.segments() if self.last and self._truncation else []
        # Checked after the segments were read, so that they are not those of another stream.
        await check_origin(self._to, await origin_of(self.source, self.name))
        if segments:
            oldest = min(oldest_position(segments), segments[-1].first_dlsn)
            if await truncate(self._to, oldest, life=life):
                await free(self.target.client, self._to)

    async def _give_up(self, segments: Sequence[StreamSegment]) -> None:
        """Apply to the copy what the source has truncated since its segments were last read.

        The copy is truncated, and its segment in progress is dropped if the source no longer has
        it. Without `truncation`, the copy keeps the beginning of the segment that it has. Raises
        StreamGapError if the source truncated something before it was copied.
        """
        assert self._claim is not None
        self._drop_tail()
        await self.keep()
        if not self._truncation and self._on_gap != "skip":
            check_gap(self.name, segments, self.last, self.partial)
        partial = self.partial
        if partial is None:
            return
        original = _numbered(segments, partial.lssn)
        if original is not None:
            truncated = original.truncation is Truncation.TRUNCATED
        elif partial.lssn < max((segment.lssn for segment in segments), default=0):
            truncated = True
        else:
            return  # the source cannot have truncated a segment that none follows
        if truncated and not self._truncation:
            await self._keep_beginning(partial, segments)
        elif original is None:
            await delete_allocated(self.target.client, self._to, self._claim)
            await self._to.change(self._claim, drop=partial)
            self.partial = None
            await free_allocated(self.target.client, self._to, self._claim)

    async def _keep_beginning(
        self, partial: StreamSegment, segments: Sequence[StreamSegment]
    ) -> None:
        """Complete the copy's segment in progress with what it has, although it lacks the rest.

        `segments` are those of the source, which has truncated the segment.
        """
        assert self._claim is not None
        # Its sequence ids follow those of the segment before it, which the copy may lack.
        known = [*await self._to.segments(), *segments]
        before = [one for one in known if one.lssn < partial.lssn and not one.in_progress]
        nearest = sorted(before, key=lambda one: one.lssn)[-1:]
        last_txid = nearest[0].last_txid if nearest else 0
        taken = TakenStream(self._claim, last_txid, nearest)
        client, password = self.target.client, self.target.password
        completed = await complete(client, self._to, taken, partial, password)
        self.partial = None
        if completed is None:
            await free_allocated(client, self._to, self._claim)
        else:
            self.last = completed.lssn
            self.copied.segments += 1

    # -- sealed segments ----------------------------------------------------------------------

    def _piece(self, segment: StreamSegment, *, empty: bool = False) -> Piece:
        assert self._claim is not None
        names = ("ensemble_size", "write_quorum", "ack_quorum", "digest")
        return {
            "ledger": segment.ledger_id,
            "path": self._to.paths.stream,
            "life": self._claim.life_id,
            "empty": empty,
            **{name: self._settings[name] for name in names},
        }

    def _completed_copy(self, segment: StreamSegment, ledger_id: int) -> StreamSegment:
        """Return a completed segment of the source as the copy stores it.

        If the copy keeps what the source truncates, it keeps the records that it had before.
        """
        copy, partial = copy_of(segment, ledger_id), self.partial
        had_it = partial is not None and partial.lssn == segment.lssn
        if had_it and not self._truncation and copy.truncation is Truncation.PARTIAL:
            status = copy.status & ~Truncation.PARTIAL
            return replace(copy, status=status, min_active_entry_id=0, min_active_slot_id=0)
        return copy

    async def _copy_sealed(self, segments: Sequence[StreamSegment]) -> None:
        assert self._claim is not None
        part = segments[:SEGMENTS_AT_ONCE]
        empty = await self._are_empty(part, segments[-1])
        pieces = [self._piece(segment, empty=one) for segment, one in zip(part, empty, strict=True)]
        if await self._is_copied_here(part):
            await self._add(part, await self._copy_here(pieces), None)
            return
        await self._to.require_claim(self._claim)  # another stream must not get the plan
        # Tasks may take longer than the age from which ledgers count as orphans. The deletion of
        # orphans ends the plan before it deletes one of theirs.
        plan = await open_plan(self._to, PLANNED, self.target.client.clock.now_ms())
        try:
            await self._add(part, await self._copy(pieces), plan)
        except BaseException:
            await forget_plan(self._to, plan)
            raise

    async def _is_copied_here(self, part: Sequence[StreamSegment]) -> bool:
        """Return whether these segments are copied in this process.

        While the stream is followed, small ones are. A Spark job would take longer, and further
        segments would be completed meanwhile.
        """
        if self._stop.is_set():
            return False
        return await stored_bytes(self.source.client, part) <= DIRECT_BYTES_MAX

    async def _copy_here(self, pieces: Sequence[Piece]) -> list[Piece]:
        source, target = self.source, self.target
        passwords = source.password, target.password
        return [await copy_ledger(source.client, target.client, p, *passwords) for p in pieces]

    async def _add(
        self, part: Sequence[StreamSegment], answers: Sequence[Piece], plan: BatchPlan | None
    ) -> None:
        """Check the copies of these segments, and add them to the copy under the plan, if any."""
        copies = []
        for segment, answer in zip(part, answers, strict=True):
            found = await self.target.client.ledger_metadata(answer["ledger"])
            gone = segment.truncation is Truncation.TRUNCATED
            if found.last_entry_id < segment.last_entry_id and not gone:
                raise StreamDamagedError(
                    f"segment {segment.lssn} of stream {self.name} was not copied completely: "
                    f"the copy {end_text(found.last_entry_id)}, but the metadata of the segment "
                    f"says that it {end_text(segment.last_entry_id)}",
                    remedy=f"Check the segment's ledger {segment.ledger_id} in the source "
                    "cluster with `quire ledger show`. If it has lost entries, give up this "
                    f"segment and all before it: truncate the source before {segment.lssn + 1}:0:0",
                )
            copies.append(self._completed_copy(segment, answer["ledger"]))
        await self._carry_marks()
        try:
            await self._publish(copies, plan)
        except StreamFencedError as error:
            await self._delete_unnamed([copy.ledger_id for copy in copies])
            if plan is not None and await self._ended_by_orphans(plan):
                raise _deleted_as_orphans(self.name) from error
            raise
        for answer in answers:
            self._count(answer["last"] + 1, answer["bytes"])
        self.copied.segments += len(copies)
        self._well()

    async def _ended_by_orphans(self, plan: BatchPlan) -> bool:
        """Return whether a publication was refused only because its plan has ended."""
        assert self._claim is not None
        if await is_open(self._to, plan):
            return False
        try:
            await self._to.require_claim(self._claim)
        except StreamFencedError:
            return False
        return True

    async def _delete_unnamed(self, ledger_ids: Sequence[int]) -> None:
        """Delete those of the ledgers that no segment of the copy names.

        No other claim can name them, because they were created for a claim that is lost. If the
        copy was deleted or renamed, perhaps together with them, the search for orphans decides.
        """
        assert self._claim is not None
        named = {segment.ledger_id for segment in await self._to.segments()}
        if not await self._to.tree.exists(self._claim.life):
            return
        for ledger_id in ledger_ids:
            if ledger_id not in named:
                await delete_insisting(self.target.client, ledger_id)

    async def _are_empty(self, part: Sequence[StreamSegment], newest: StreamSegment) -> list[bool]:
        """Return for each segment whether its copy is to be empty, because it is truncated.

        The newest one may hold the only state of the producers and the fencing token, even if it is
        truncated. It is copied with its entries if these are used and its ledger exists.
        """
        empty = [segment.truncation is Truncation.TRUNCATED for segment in part]
        if empty[-1] and part[-1] is newest and await self._from.has_marks():
            try:
                await self.source.client.ledger_metadata(newest.ledger_id)
            except NoSuchLedgerError:
                return empty
            empty[-1] = False
        return empty

    async def _publish(self, copies: Sequence[StreamSegment], plan: BatchPlan | None) -> None:
        assert self._claim is not None
        more: list[Operation] = [] if plan is None else [plan.used()]
        after: dict[str, bytes | None] = {
            self._to.paths.segment(copy.name): copy.to_bytes() for copy in copies
        }
        partial = self.partial
        if partial is not None and partial.lssn <= copies[-1].lssn:
            node = self._to.node(partial.lssn, in_progress=True)
            more.append(Delete(node))
            after[node] = None
        await self._to.publish(self._claim, copies, more, after)
        self.last = copies[-1].lssn
        if partial is not None and partial.lssn <= self.last:
            self.partial = None
            await delete_insisting(self.target.client, partial.ledger_id)

    async def _carry_marks(self) -> None:
        """Record in the copy that producers or fencing tokens are used, if the source records it.

        This must precede the first copied entry that contains a producer or a token.
        """
        if not self._marked and await self._from.has_marks():
            await self._to.note_marks()
            self._marked = True

    # -- the segment in progress --------------------------------------------------------------

    async def _follow(self, segment: StreamSegment, listed: SegmentList) -> bool:
        """Copy the entries of a segment in progress as they are acknowledged, up to its end.

        Returns True once the segment needs no more work, because it was completed in the copy or
        the source dropped it. Returns False if `stop` was set before that.
        """
        client = self.source.client
        async with await client.open_ledger(
            segment.ledger_id, password=self.source.password
        ) as reader:
            have = await last_shown(self.target, self.partial, segment)
            if reader.last_add_confirmed <= have:
                self._well()
            await self._unless_stopped(reader.wait_confirmed(have + 1))
            if reader.last_add_confirmed > have:
                await self._append(segment, reader, have)
            if not reader.ledger_closed:
                return False
            last = reader.last_add_confirmed
        if self.tail is not None and self.tail.entries <= last:
            return False  # it was stopped before the end of the ledger
        while True:
            now = _numbered(await listed.look(), segment.lssn)
            if now is None or now.ledger_id != segment.ledger_id:
                return True  # it was truncated, or it was empty
            if not now.in_progress:
                await self._complete(now, last)
                return True
            if await self._unless_stopped(listed.changed()) is None:
                return False

    async def _append(self, segment: StreamSegment, reader: LedgerReader, have: int) -> None:
        tail = self.tail = await self._begin(segment)
        following = not self._stop.is_set()
        runs = reader.tail_runs(0) if following else reader.read_runs()
        async with aclosing(runs):
            while (run := await self._next(runs, following)) is not None:
                await self._carry_marks()
                payloads = run.payloads()
                for payload in payloads:
                    tail.writer.submit(payload)
                if not tail.named and run.last >= have:
                    await tail.writer.flush()
                    await self._name(tail)
                await tail.writer.room()
                size_bytes = sum(map(len, payloads))
                tail.entries = run.last + 1
                tail.size_bytes += size_bytes
                self._count(len(payloads), size_bytes)
                if (reached := (segment.lssn, run.last)) > self._furthest:
                    self._furthest = reached
                    self._well()
                tail.count_records(run.first, payloads)
        await tail.writer.flush()
        if not reader.ledger_closed:
            await self._show(tail)

    async def _next(self, runs: AsyncGenerator[EntryRun, None], following: bool) -> EntryRun | None:
        following_run = anext(runs, None)
        return await (self._unless_stopped(following_run) if following else following_run)

    async def _begin(self, segment: StreamSegment) -> FollowedLedger:
        assert self._claim is not None
        writer = await create(self.target.client, self._piece(segment), self.target.password)
        try:
            await delete_allocated(self.target.client, self._to, self._claim)
            await self._to.allocate(self._claim, writer.ledger_id)
        except BaseException:
            writer.abandon()
            await delete_insisting(self.target.client, writer.ledger_id)
            raise
        return FollowedLedger(segment, writer)

    async def _name(self, tail: FollowedLedger) -> None:
        """Make this ledger the ledger of the copy's segment in progress."""
        assert self._claim is not None
        copy, former = copy_of(tail.segment, tail.writer.ledger_id), self.partial
        assert former is None or former.lssn == copy.lssn
        if former is None:
            await self._to.change(self._claim, begin=copy)
        else:
            node = self._to.node(former.lssn, in_progress=True)
            allocation = self._to.paths.allocation
            version = self._claim.allocation_version
            more = [Put(node, copy.to_bytes()), Put(allocation, NO_LEDGER, version)]
            await self._to.publish(self._claim, [], more, {node: copy.to_bytes()})
            self._claim.allocated = NO_LEDGER
            self._claim.allocation_version += 1
        self.partial, tail.named = copy, True
        if former is not None:
            await delete_insisting(self.target.client, former.ledger_id)

    async def _show(self, tail: FollowedLedger) -> None:
        """Wait until readers of the copy can see its last entry, for at most `SHOW_S` seconds.

        Bookies learn with a delay that the entry is acknowledged.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SHOW_S
        while loop.time() < deadline:
            async with await self.target.client.open_ledger(
                tail.writer.ledger_id, password=self.target.password
            ) as reader:
                if reader.last_add_confirmed >= tail.writer.last_add_confirmed:
                    return
            await asyncio.sleep(SHOW_EACH_S)

    async def _complete(self, completed: StreamSegment, last: int) -> None:
        """Complete the copy's segment after the source's segment was completed.

        The ledger of the source's segment ends at entry `last`. Raises StreamDamagedError if the
        copy ends at another entry.
        """
        tail = self.tail
        if tail is None:
            return  # no ledger was being followed: the whole segment is copied instead
        assert self._claim is not None
        assert tail.named
        # A copy that ends elsewhere stays open, because readers of earlier versions take the end of
        # a closed ledger for the end of the segment.
        if tail.entries - 1 != last or await tail.writer.close() != last:
            raise StreamDamagedError(
                f"the copy of segment {completed.lssn} of stream {self.name} "
                f"{end_text(tail.entries - 1)}, but the source's segment {end_text(last)}",
                remedy="Run the replication again: it copies the segment anew. If the error "
                "returns, report it",
            )
        copy = self._completed_copy(completed, tail.writer.ledger_id)
        await self._to.change(self._claim, complete=copy)
        self.copied.segments += 1
        self.last, self.partial, self.tail = copy.lssn, None, None

    def _drop_tail(self) -> None:
        if self.tail is not None:
            self.tail.writer.abandon()
            self.tail = None

    # -- helpers ------------------------------------------------------------------------------

    def _count(self, entries: int, size_bytes: int) -> None:
        self.copied.entries += entries
        self.copied.size_bytes += size_bytes

    def _well(self) -> None:
        self._well_at = asyncio.get_running_loop().time()

    def _fenced(self) -> StreamFencedError:
        return StreamFencedError(
            f"stream {self.name} of the target was taken over by another writer or replication, or "
            "it was deleted or renamed. Replication has stopped, because the stream may no longer "
            "be a copy",
            remedy="If another replication copies the stream, let it continue. Otherwise stop the "
            "writer. If that writer has written, the target has records of its own: replicate to "
            "another namespace. If nobody needs those records, delete the target's stream to start "
            "over",
        )

    async def close(self) -> None:
        """Delete the ledgers that failed attempts left. Call this after the last `run`.

        Errors are ignored, because the next replication deletes these ledgers as well.
        """
        if self._claim is not None:
            try:
                await self._free_unnamed(self._claim)
                if self.copied.segments:
                    await self._leftovers.sweep(self._to, self._claim)
            except QuireError:
                pass  # the next run deletes it

    async def _free_unnamed(self, claim: WriterClaim) -> None:
        """Delete the allocated ledger, unless the copy's segment in progress names it by now.

        The answer to the transaction that names it may have been lost. The node is therefore
        changed first: that fails if anything has changed since the last answer.
        """
        if claim.allocated == NO_LEDGER:
            return
        ledger_id = decode_number(claim.allocated, self._to.paths.allocation)
        await self._to.free_allocation(claim)
        await delete_insisting(self.target.client, ledger_id)


def _deleted_as_orphans(stream: str) -> LedgerError:
    return LedgerError(
        f"segments of stream {stream} were not published in the target, because their new ledgers "
        "were deleted as orphans",
        remedy="Run the replication again. If it happens again, let the deletion of orphans take "
        "only ledgers that are older than the copy of 32 segments takes",
    )


def _numbered(segments: Sequence[StreamSegment], lssn: int) -> StreamSegment | None:
    return next((segment for segment in segments if segment.lssn == lssn), None)
