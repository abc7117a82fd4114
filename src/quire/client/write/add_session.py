"""Adds to one ledger: from payloads to frames on every bookie, and back to confirmed entries.

    payloads -> AddEncoder -> one Block -> one write per member of the ensemble (after an
    event-loop iteration: together with other ledgers of these members, by a ConnectionGroup)
    answers -> AddPipeline watermarks -> confirm -> the futures of the appends, in order

Each frame carries the LAC that the session knew when it encoded the entry (`AddSession.push`). So
readers learn of it without a message of its own; `explicit_lac` sends it while nothing is appended.

When many ledgers add one entry each, an entry is a row of `CoalescedAdds` instead of a Block.
`ensemble_changes` decides what happens to members that fail. Recovery writes entries back through
the same session; only the flags and the way to change the ensemble differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack

from quire._runtime.tasks import TaskSet, UnexpectedErrors
from quire.client.cluster.pool import BookiePool
from quire.client.observability.logs import log_event
from quire.client.observability.metrics import ClientCounters
from quire.client.write.ensemble_changes import ChangeEnsemble, EnsembleChanges, EnsembleMember
from quire.client.write.flush import ConnectionGroup, Flush
from quire.codec.entry.entry import MAX_ENTRY_ID, AddEncoder, EntryCodec, max_payload_bytes
from quire.codec.wire.v2 import Buffer
from quire.config import ClientConfig
from quire.core.append.pipeline import AddPipeline, Block
from quire.core.append.spread_pipeline import SpreadPipeline
from quire.errors import (
    AddQuorumTimeoutError,
    BookieTimeoutError,
    BookieUnavailableError,
    ClientClosedError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    QuireError,
    SilentConnectionError,
    UnauthorizedError,
    WriteError,
)
from quire.net.link import Link

REACH_S = 1.0
"""The longest time, in seconds, that the end of a session waits for connections that are still
being made."""
CHECKS = 10
"""The number of checks of a session within the time-out of its adds. A time-out is therefore
noticed late by at most 1/`CHECKS` of its length."""
AT_ONCE = 512
"""The number of sessions that one call of the timer checks. It checks more if a round over all
sessions would otherwise need more than `STEPS_MAX` calls."""
STEPS_MAX = 16
"""The largest number of timer calls in one round over all sessions."""


class Encoder(Protocol):
    """An encoder of entries into ADD frames."""

    def frames(
        self, first: int, lac: int, length: int, payloads: Sequence[Buffer]
    ) -> tuple[Sequence[Buffer], int]:
        """Return the ADD frames of consecutive entries, and the ledger length after them in bytes.

        The frames are in pieces to be joined.

        Args:
            first: The id of the first entry.
            lac: The LAC that every entry carries.
            length: The ledger length before the entries, in bytes.
            payloads: The payload of each entry.
        """
        ...


class HowToAdd(TypedDict):
    """The keyword arguments with which every `AddSession` is created."""

    codec: EntryCodec
    key: bytes
    pool: BookiePool
    shared: SharedByWriters
    config: ClientConfig
    tasks: TaskSet
    ensemble: tuple[str, ...]
    write_quorum: int
    ack_quorum: int
    change_ensemble: ChangeEnsemble


class AddSession:
    """A session that adds to one ledger on one ensemble, and replaces failed members."""

    __slots__ = (
        "_change_ensemble", "_changes", "_encoder", "_flush", "_group", "_lac_sent", "_loop",
        "_members", "_places", "_reached", "_room", "_row_encoder", "_stopped", "_striped",
        "_timeouts", "_waiters", "ack_quorum", "causes", "config", "ensemble", "failure",
        "hears_every_ack", "lac_pushed", "ledger_id", "max_payload_bytes", "met", "on_end",
        "pipeline", "pool", "spans", "tasks", "write_quorum",
    )  # fmt: skip

    always_hears = False
    """Whether sessions of this class process every acknowledgement, even if it completes no
    quorum."""

    def __init__(
        self,
        *,
        last_confirmed: int = -1,
        length: int = 0,
        flags: int = 0,
        lac_sent: int | None = None,
        spread_acks: bool = False,
        **how: Unpack[HowToAdd],
    ) -> None:
        """Create a session that is not connected yet.

        Args:
            last_confirmed: The last entry that is confirmed already. The session begins after it.
            length: The length of the ledger up to that entry, in bytes.
            flags: The flags of the ADD requests.
            lac_sent: The LAC that every entry carries, instead of the session's own. Recovery sets
                it.
            spread_acks: Whether an entry is confirmed only when an ack quorum has it in as many
                fault domains as the placement demands.
            how: The arguments that every session takes.
        """
        codec, ensemble = how["codec"], how["ensemble"]
        write_quorum, ack_quorum = how["write_quorum"], how["ack_quorum"]
        self.ledger_id = codec.ledger_id
        self.pool = how["pool"]
        self._flush = how["shared"].flush
        self._timeouts = how["shared"].timeouts
        self.config = how["config"]
        self.tasks = how["tasks"]
        self.ensemble = ensemble
        self.failure: QuireError | None = None
        """The error that ended the session, or None. Each call that raises it drops the traceback
        of earlier calls. Otherwise the traceback would grow with each, and keep their payloads."""
        self.on_end: Callable[[], None] | None = None
        """A function to call once when the session has ended, or None."""
        shape = len(ensemble), write_quorum, ack_quorum, last_confirmed, length
        self.pipeline = SpreadPipeline(*shape) if spread_acks else AddPipeline(*shape)
        self.lac_pushed = -1
        """The LAC that the newest entry carries."""
        self._lac_sent = lac_sent
        self._encoder: Encoder = AddEncoder(codec, how["key"], flags)
        self.max_payload_bytes = max_payload_bytes(codec.digest)
        self._change_ensemble = how["change_ensemble"]
        self._striped = len(ensemble) != write_quorum
        self.write_quorum = write_quorum
        self._look_at_domains()
        self.ack_quorum = ack_quorum
        self._loop = asyncio.get_running_loop()
        self._members: list[Member] = []
        self._waiters: deque[tuple[int, asyncio.Future[int]]] | None = None
        """The entry ids that callers of `wait_for` wait for, ascending, with their futures. The
        queue exists only while somebody waits, because an empty one takes 600 bytes."""
        self._room: asyncio.Future[None] | None = None
        self.hears_every_ack = self.always_hears
        """Whether acknowledgements that complete no quorum must be processed as well. They are
        while a caller waits in `room`."""
        self._group: ConnectionGroup | None = None
        """The group of the connections to all members, while every member has a connection."""
        self._places: tuple[int, ...] = ()
        """The place of each ensemble member's connection in `_group`."""
        self._row_encoder: AddEncoder | None = None
        """The encoder of entries that are rows of coalesced adds, or None if no entry may be
        one."""
        self._reached: asyncio.Future[None] | None = None
        """The future of `reached`. Once it exists, members that fail are no longer replaced."""
        self._changes: EnsembleChanges | None = None
        """The changes of the ensemble, or None before the first member fails."""
        self.met = False
        """Whether any member was ever connected. Otherwise members that are unavailable are not
        waited for."""
        self.spans = self.pool.tracing.of_session(self.ledger_id)
        self._stopped = False
        self.causes: dict[str, BaseException | str] = {}

    async def connect(self, bookie_id: str) -> Link:
        """Return a connection for this session's adds to a bookie, and connect first if necessary.

        Raises the errors of `BookiePool.channel`.
        """
        return await self.pool.channel(bookie_id, adds_of=self.ledger_id)

    def connected(self, bookie_id: str) -> Link | None:
        """Return the connection that `connect` would return without waiting, or None."""
        return self.pool.channel_now(bookie_id, self.ledger_id)

    # -- adding -------------------------------------------------------------------------------

    @property
    def traced(self) -> bool:
        """Whether the client has a tracer, so that each batch of this session has a span."""
        return self.spans is not None

    @property
    def full(self) -> bool:
        """Whether appends must wait in `room`, because too many bytes are not acknowledged."""
        if self.pipeline.unacked_bytes_max() >= self.config.max_unacked_bytes:
            return True
        return self._changes is not None and self._changes.full

    async def room(self) -> None:
        """Wait until the slowest member has acknowledged enough for further appends.

        Raises the error that ended the session. Cancel-safe.
        """
        while self.full and self.failure is None:
            if self._room is None:
                self._room = self._loop.create_future()
                self.hears_every_ack = True
            await asyncio.shield(self._room)
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def _end_wait_for_room(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
            self.hears_every_ack = self.always_hears

    def check_payload(self, payload: Buffer) -> None:
        """Raise EntryTooLargeError if the payload does not fit into one frame."""
        if len(payload) > self.max_payload_bytes:
            raise EntryTooLargeError(
                f"an entry of {len(payload)} bytes for ledger {self.ledger_id} is too large: "
                f"the limit is {self.max_payload_bytes} bytes of payload. Nothing was sent",
                ledger_id=self.ledger_id,
                remedy="Split the entry",
            )

    def push(self, payloads: Sequence[Buffer]) -> int:
        """Send consecutive entries with these payloads, and return the id of the last one.

        Raises WriteError, and sends nothing, if the ids of the ledger are used up.
        """
        pipeline = self.pipeline
        first = pipeline.last_pushed + 1
        lac = pipeline.last_confirmed if self._lac_sent is None else self._lac_sent
        last = first + len(payloads) - 1
        if last > MAX_ENTRY_ID:
            sent = f"Nothing after entry {first - 1} was sent" if first else "No entry was sent"
            raise WriteError(
                f"ledger {self.ledger_id} is full: entry ids end at {MAX_ENTRY_ID}. {sent}",
                ledger_id=self.ledger_id,
                remedy="Open it with recovery, which closes it, and write to a new ledger",
            )
        before = pipeline.length
        pieces, length = self._encoder.frames(first, lac, before, payloads)
        self.pool.counters.count_adds(len(payloads), length - before)
        if not self._members:
            self._start()
        self.lac_pushed = lac
        block = Block(first, last, pieces, before, length, self._loop.time())
        pipeline.push(block)
        group = self._group if self._flush.running else None
        if group is None:
            self._send(block)
        else:
            group.put(pieces)
        if self.spans is not None:
            self.spans.sent(first, last, length - before)
        return last

    def attach(self, payload: Buffer) -> bool:
        """Attach this entry to the coalesced adds of the current flush, if that is possible.

        Returns whether the entry was attached. It can be attached only during a flush, while all
        members are connected and no other entry of this ledger is outstanding. Otherwise the caller
        must push the entry.
        """
        if not self._members:
            self._start()
        group, encoder, pipeline = self._group, self._row_encoder, self.pipeline
        if group is None or encoder is None or self.hears_every_ack or not pipeline.can_attach:
            return False
        if pipeline.last_pushed >= MAX_ENTRY_ID or not self._flush.running:
            return False
        coalesced = group.coalesced(self.ack_quorum)
        if coalesced is None:
            return False
        self.lac_pushed = pipeline.last_confirmed
        row = pipeline.attach(coalesced, self._places, encoder, self.ledger_id, payload)
        if self._waiters is not None:
            coalesced.waiting[row] = self._confirmed_coalesced
        return True

    def _confirmed_coalesced(self) -> None:
        if self._waiters is not None:
            self._tell_waiters(self._waiters, self.pipeline.accepted)

    def _send(self, block: Block) -> None:
        """Send to each connected member the entries of a block that it has to store."""
        if self._striped:
            for member in self._members:
                entries = self.pipeline.stripe(member.index, block.first, block.last)
                if entries and member.channel is not None:
                    member.channel.send(block.frames(entries))
            return
        data = b"".join(block.pieces)
        for member in self._members:
            if member.channel is not None:
                member.channel.send(data)

    def join_group(self) -> None:
        """Join the connection group if all members are connected and all get the same frames.

        A member calls it when it has been connected. In the group, the frames of this session are
        sent together with those of other ledgers that have the same members.
        """
        if self._striped or len(self._members) < len(self.ensemble):
            return
        links = [member.channel for member in self._members if member.channel is not None]
        if len(links) == len(self._members):
            self._group = self._flush.group(tuple(links))
            self._places = self._group.places(tuple(links))
            plain = type(self.pipeline) is AddPipeline and self._lac_sent is None
            if plain and self.spans is None and isinstance(self._encoder, AddEncoder):
                self._row_encoder = self._encoder

    def leave_group(self) -> None:
        """Leave the connection group because a member is no longer connected."""
        self._group = None
        self.pipeline.detach()

    def wait_for(self, entry_id: int) -> asyncio.Future[int]:
        """Return a future whose result is `entry_id` once the entry is accepted.

        Accepted means confirmed. With deferred sync it means only that an ack quorum has the entry,
        perhaps not on disk. The entry need not have been pushed yet. If the session ends first, the
        future has the error that ended it.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        if entry_id <= self.pipeline.accepted:  # also if the session has ended since
            future.set_result(entry_id)
        elif self.failure is not None:
            future.set_exception(self.failure)
        elif self.pool.closed and not self._members:
            future.set_exception(self._client_closed())  # nothing will be sent
        else:
            waiters = self._waiters
            if waiters is None:
                waiters = self._waiters = deque()
            at = len(waiters)
            while at and waiters[at - 1][0] > entry_id:  # this waiter wants an older entry
                at -= 1
            if at == len(waiters):
                waiters.append((entry_id, future))
            else:
                waiters.insert(at, (entry_id, future))
            if not self._members:
                # Nothing was sent yet, perhaps because a smaller id is missing.
                self._timeouts.watch(self)
            coalesced = self.pipeline.coalesced
            if coalesced is not None and not coalesced.over:
                coalesced.waiting[self.pipeline.row] = self._confirmed_coalesced
        return future

    async def force(self) -> int:
        """Make the accepted entries durable, and return the last confirmed entry.

        In this class accepted entries are durable already. Raises the error that ended the session.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        return self.pipeline.last_confirmed

    async def reached(self) -> None:
        """Wait at most `REACH_S` until every reachable member was sent all its entries.

        Call this before `stop`, when all entries are confirmed. An ack quorum has the entries then,
        but without this wait a member that is still being connected would never get them, and they
        would lack a copy until an audit finds that. No error is raised. Cancel-safe.
        """
        self._reached = self._loop.create_future()
        self.wake_reached()
        await asyncio.wait([self._reached], timeout=REACH_S)

    def wake_reached(self) -> None:
        """End the wait in `reached` if every remaining member was sent all its entries.

        It ends as well if the session has failed.
        """
        reached = self._reached
        if reached is None or reached.done():
            return
        if self.failure is not None or all(member.reached for member in self._members):
            reached.set_result(None)

    # -- answers ------------------------------------------------------------------------------

    def after_acks(self) -> None:
        """Confirm the entries that now have their quorums, and wake the callers that wait."""
        pipeline = self.pipeline
        sent_s, before = pipeline.unaccepted_since(), pipeline.accepted
        if pipeline.confirm():
            accepted = pipeline.accepted
            if sent_s is not None:
                took_s = self._loop.time() - sent_s
                self.pool.counters.add_time.observe(took_s, accepted - before)
            if self._waiters is not None:
                self._tell_waiters(self._waiters, accepted)
            if self.spans is not None:
                self.spans.accepted(accepted)
        if self._room is not None and not self.full:
            self._end_wait_for_room()

    def _tell_waiters(self, waiters: deque[tuple[int, asyncio.Future[int]]], accepted: int) -> None:
        while waiters and waiters[0][0] <= accepted:
            entry_id, future = waiters.popleft()
            if not future.done():
                future.set_result(entry_id)
        if not waiters:
            self._waiters = None

    # -- failures -----------------------------------------------------------------------------

    def on_failure(self, member: Member, error: QuireError, *, may_return: bool = False) -> None:
        """Handle the failure of a member, which is then replaced in most cases.

        If the ledger is fenced or the key is refused, the session fails instead. `may_return` means
        that only the connection is known to be lost: the same bookie is tried over a new connection
        before it is replaced.
        """
        if self.failure is not None or member.gone:
            return
        self.causes[member.bookie_id] = error
        if isinstance(error, LedgerFencedError | UnauthorizedError):
            self.fail(error)
            return
        if isinstance(error, BookieTimeoutError) and member.channel is not None:
            self.pool.examine_links(member.bookie_id)
        may_return = may_return or isinstance(error, SilentConnectionError)
        if not may_return:
            self.pool.mark_failed(member.bookie_id)
        self.fail_member(member, may_return=may_return)

    def fail_member(self, member: EnsembleMember, *, may_return: bool = False) -> None:
        """Replace a member as soon as no other change of the ensemble is in progress.

        Once `reached` was called, the session is about to end, and the member is not replaced.
        """
        if self._reached is not None:
            member.leave()
            self.wake_reached()
            return
        if self._changes is None:
            self._changes = EnsembleChanges(self, self._change_ensemble)
        self._changes.replace(member, may_return=may_return)

    def _tell_failure(self, error: QuireError) -> None:
        if self.spans is not None:
            self.spans.failed(error)
        if not self._stopped:
            confirmed, pushed = self.pipeline.last_confirmed, self.pipeline.last_pushed
            outcome = "unknown" if pushed > confirmed else "acknowledged"
            log_event(
                logging.INFO, "writer_failed", ledger=self.ledger_id, entry=confirmed,
                last_sent=pushed, outcome=outcome, error=str(error),
            )  # fmt: skip

    def fail(self, error: QuireError) -> None:
        """End this session with an error. Nothing is confirmed afterwards.

        Entries that were sent and not confirmed may be stored. If there are any, the outcome is
        unknown, whatever the class of the error says.
        """
        if self.failure is not None:
            return
        if self.pipeline.last_pushed > self.pipeline.last_confirmed:
            error.outcome_known = False
        self.failure = error
        self.pipeline.frozen = True
        self._timeouts.forget(self)
        if self._changes is not None:
            self._changes.stop()
        self.wake_reached()
        for member in self._members:
            member.leave()
        waiters, self._waiters = self._waiters, None
        for _, future in waiters or ():
            if not future.done():
                future.set_exception(error)
                future.exception()  # a cancelled waiter never retrieves it
        self._end_wait_for_room()
        if self.on_end is not None:
            self.on_end()
        self._tell_failure(error)

    def take_ensemble(self, ensemble: tuple[str, ...]) -> None:
        """Use this ensemble from now on, which `change_ensemble` has returned."""
        self.ensemble = ensemble
        self._look_at_domains()

    @property
    def owes(self) -> bool:
        """Whether entries were pushed and are not accepted yet, so callers may wait for them."""
        return self.pipeline.accepted < self.pipeline.last_pushed

    def member(self, index: int) -> Member:
        """Return the member with this ensemble index."""
        return self._members[index]

    def _look_at_domains(self) -> None:
        if isinstance(self.pipeline, SpreadPipeline):
            found = self.pool.placement.ack_domains(self.ensemble, self.write_quorum)
            self.pipeline.spread_over(*(found or ([""] * len(self.ensemble), 1)))

    def begin_again(self, indexes: set[int], *, same: bool = False) -> None:
        """Send every entry after the last confirmed one to the members at these indexes.

        Each member is connected first if necessary. It may be another bookie than before, as
        `ensemble` names it. With `same` it is the same bookie, and is also sent the earlier entries
        that it has not acknowledged.
        """
        self.pipeline.restart(indexes, self._loop.time(), same=same)
        for index in indexes:
            self._members[index].leave()
            self._join(index)

    def _start(self) -> None:
        for index in range(len(self.ensemble)):
            self._join(index)
        self._timeouts.watch(self)

    def _join(self, index: int) -> None:
        member = Member(self, index, self.ensemble[index])
        member.sent = self.pipeline.unowed(index)
        if index == len(self._members):
            self._members.append(member)
        else:
            self._members[index] = member
        member.join()

    def check_timeouts(self, now: float) -> None:
        """Handle the time-outs that have passed at loop time `now`.

        The session fails if no ack quorum has acknowledged an entry within `add_quorum_timeout_s`.
        Otherwise each bookie of the ensemble that has left an add unanswered for `add_timeout_s`
        counts as failed (`on_failure`). `AddTimeouts` calls this periodically, from the start of
        the session to its end.
        """
        pipeline = self.pipeline
        coalesced = pipeline.coalesced
        if coalesced is not None and (
            coalesced.over or now - coalesced.sent_at <= self._timeouts.limit_s
        ):
            return
        if pipeline.idle and pipeline.accepted == pipeline.last_pushed:
            return
        quorum_limit = self.config.add_quorum_timeout_s
        if quorum_limit > 0:
            since = self.pipeline.unaccepted_since()
            if since is not None and now - since > quorum_limit:
                self.fail(self._quorum_timeout(quorum_limit))
        if self.failure is not None or self.pipeline.idle:
            return
        for member in self._members:
            since = self.pipeline.outstanding_since(member.index)
            late = since is not None and now - since > self.config.add_timeout_s
            if late and not member.gone:
                self.on_failure(
                    member,
                    BookieTimeoutError(
                        f"bookie {member.bookie_id} did not answer an add of ledger "
                        f"{self.ledger_id} within {self.config.add_timeout_s:g} s"
                    ),
                )

    def _quorum_timeout(self, limit_s: float) -> AddQuorumTimeoutError:
        return AddQuorumTimeoutError(
            f"entry {self.pipeline.accepted + 1} of ledger {self.ledger_id} was not acknowledged "
            f"by {self.ack_quorum} bookies within {limit_s:g} s",
            ledger_id=self.ledger_id,
            causes=self.causes,
            remedy="Open the ledger with recovery to see which entries it has",
        )

    # -- stopping -----------------------------------------------------------------------------

    def end_with_client(self) -> None:
        """End the session because the client was closed. Callers that wait receive an error."""
        self.fail(self._client_closed())

    def _client_closed(self) -> ClientClosedError:
        return ClientClosedError(
            f"the client was closed while ledger {self.ledger_id} was open for writing",
            remedy="Open the ledger with recovery, which closes it",
        )

    def stop(self, error: QuireError | None = None) -> None:
        """End the session, and detach from all bookies.

        Callers that wait for entries receive `error`, or LedgerClosedError if none is given.
        """
        self._stopped = error is None
        self.fail(
            error
            or LedgerClosedError(
                f"the writer of ledger {self.ledger_id} is closed",
                ledger_id=self.ledger_id,
                remedy=(
                    "Entries that were not acknowledged may or may not be in the ledger: open "
                    "it with recovery to find out. To write more, create a new ledger"
                ),
            )
        )


class Member:
    """One member of a session's ensemble. It sends the pushed entries and receives the answers.

    It is the `AddSink` of its connection.
    """

    __slots__ = ("bookie_id", "channel", "gone", "index", "sent", "session")

    def __init__(self, session: AddSession, index: int, bookie_id: str) -> None:
        self.session = session
        self.index = index
        self.bookie_id = bookie_id
        self.channel: Link | None = None
        self.sent = -1
        """The last entry that need not be sent: `send_backlog` begins after it."""
        self.gone = False
        """Whether this object is no longer used, because the member was replaced or has begun
        again, or because the session has ended. Answers that still arrive are then ignored (rule
        14)."""

    def join(self) -> None:
        """Begin to send to the bookie: at once over a usable connection, or after connecting."""
        session = self.session
        if session.failure is not None:
            return
        link = session.connected(self.bookie_id)
        if link is None:
            session.tasks.start(self.connect())
        else:
            self._attach(link)

    async def connect(self) -> None:
        """Connect to the bookie, and begin to send.

        If the bookie cannot be reached, nothing is raised: the session replaces it, or fails if the
        ledger is fenced or the bookie refuses the key. If the call is cancelled, the member stays
        without a connection.
        """
        session = self.session
        try:
            channel = await session.connect(self.bookie_id)
        except QuireError as error:
            if not self.gone:
                session.on_failure(self, error)
            return
        if self.gone or session.failure is not None:
            return
        # Another session of this ledger may have taken the connection before this task ran.
        if not channel.takes_adds_of(session.ledger_id):
            session.tasks.start(self.connect())
            return
        self._attach(channel)

    def _attach(self, channel: Link) -> None:
        channel.attach(self.session.ledger_id, self)
        self.channel = channel
        self.session.met = True
        self.session.join_group()
        self.send_backlog()
        self.session.wake_reached()

    @property
    def reached(self) -> bool:
        """Whether the member was sent all entries that it has to store, or has left the session."""
        if self.gone or self.channel is not None:
            return True
        return self.session.pipeline.outstanding_since(self.index) is None

    def send_backlog(self) -> None:
        """Send the entries that were pushed before the connection existed."""
        assert self.channel is not None
        for last, frames in self.session.pipeline.frames_for(self.index, self.sent):
            self.channel.send(frames)
            self.sent = last

    def leave(self) -> None:
        """Stop sending, and ignore further answers."""
        self.gone = True
        if self.channel is not None:
            session = self.session
            unanswered = session.pipeline.outstanding_since(self.index) is not None
            self.channel.detach(session.ledger_id, self, unanswered=unanswered)
            self.channel = None
            session.leave_group()

    # -- AddSink ------------------------------------------------------------------------------

    def on_acked_run(self, first: int, last: int) -> None:
        if not self.gone:
            session = self.session
            if session.pipeline.acked_run(self.index, first, last) or session.hears_every_ack:
                session.after_acks()

    def on_acked(self, entries: Sequence[int]) -> None:
        if not self.gone:
            self.session.pipeline.acked(self.index, entries)
            self.session.after_acks()

    def on_add_error(self, entry_id: int, error: QuireError) -> None:
        if not self.gone:
            self.session.on_failure(self, error)

    def on_lost(self, error: BookieUnavailableError) -> None:
        self.channel = None
        session = self.session
        session.leave_group()
        if not self.gone:
            # A connection that closes while nothing is outstanding says little about the bookie:
            # the bookie, or something in between, may close idle connections.
            idle = session.pipeline.outstanding_since(self.index) is None
            session.on_failure(self, error, may_return=idle)


class AddTimeouts:
    """One timer for all sessions of a client. It checks each session every `limit_s / CHECKS`.

    A timer for each of thousands of ledgers would cost more than their adds do.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._interval_s = limit_s / CHECKS
        self._sessions: dict[AddSession, None] = {}
        self._left: list[AddSession] = []
        """The sessions that this round has not checked yet."""
        self._step = AT_ONCE
        self._pause_s = self._interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._waited = False
        """Whether the last call of the timer left the checks to the next one."""
        self._unexpected = UnexpectedErrors()

    def watch(self, session: AddSession) -> None:
        """Check the time-outs of a session from now on."""
        self._sessions[session] = None
        if self._timer is None:
            self._begin_round()

    def forget(self, session: AddSession) -> None:
        """Stop checking the time-outs of a session."""
        self._sessions.pop(session, None)
        if not self._sessions and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_sessions(self) -> None:
        """End all sessions, because the client was closed.

        A session ends by itself when its connections are lost. But the session may have none, and
        the tasks that would connect or replace its members are cancelled.
        """
        for session in list(self._sessions):
            try:
                session.end_with_client()
            except Exception as error:  # noqa: BLE001 - one session must not keep the others
                message = "ending a writer with its client failed"
                self._unexpected.note("ends", error, message)

    def _begin_round(self) -> None:
        self._left = list(self._sessions)
        steps = min(STEPS_MAX, -(-len(self._left) // AT_ONCE))
        self._step = -(-len(self._left) // steps)
        self._pause_s = self._interval_s / steps
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        # After a pause of the loop, answers that came meanwhile are read after this call.
        paused = self._timer is not None and now - self._timer.when() > self._interval_s
        self._waited = paused and not self._waited
        if self._waited:
            self._timer = loop.call_later(self._pause_s, self._look)
            return
        for session in self._left[-self._step :]:
            try:
                session.check_timeouts(now)
            except Exception as error:  # noqa: BLE001 - one session must not end the others' checks
                message = "checking the time-outs of a writer failed"
                self._unexpected.note("time-outs", error, message)
        del self._left[-self._step :]
        if not self._sessions:
            self._timer = None
        elif self._left:
            self._timer = loop.call_later(self._pause_s, self._look)
        else:
            self._begin_round()


@dataclass(frozen=True, slots=True)
class SharedByWriters:
    """The flush and the timer that all writers of one client share."""

    flush: Flush
    timeouts: AddTimeouts

    @classmethod
    def of_client(cls, config: ClientConfig, counters: ClientCounters) -> SharedByWriters:
        limits = config.add_timeout_s, config.add_quorum_timeout_s
        return cls(Flush(counters), AddTimeouts(min(limit for limit in limits if limit > 0)))
