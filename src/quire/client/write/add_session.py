"""Adds to one ledger: from payloads to frames on every bookie, and back to confirmed entries.

    payloads -> AddEncoder -> one Block -> one write per member of the ensemble (at the end of a
    turn of the event loop: together with other ledgers of these members, by a Route)
    answers -> AddPipeline watermarks -> confirm -> the futures of the appends, in order

One entry among those of many ledgers is a row of a `Sheaf` instead of a Block. Failed members are
replaced, one change at a time (`Replacement`); where no replacement can be had the session goes on
without them, or waits for them where no ack quorum is left (`Away`). Recovery writes entries back
through the same session; only the flags and the way to change the ensemble differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from quire._runtime.tasks import TaskSet
from quire.client.cluster.pool import BookiePool
from quire.client.observability.logs import log_event
from quire.client.write.add_member import Member
from quire.client.write.add_timeouts import quorum_timeout
from quire.client.write.flush import Route
from quire.client.write.rejoin import Away, nobody_left
from quire.client.write.replacement import ChangeEnsemble, Replacement
from quire.codec.entry.entry import MAX_ENTRY_ID, AddEncoder, EntryCodec, max_payload_bytes
from quire.codec.wire.v2 import Buffer
from quire.config import ClientConfig
from quire.core.append.pipeline import AddPipeline, Block
from quire.core.append.quorum import bearable
from quire.core.append.spread_pipeline import SpreadPipeline
from quire.core.placement import Wanted
from quire.errors import (
    BookieTimeoutError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataTooLargeError,
    QuireError,
    SilentConnectionError,
    UnauthorizedError,
    WriteError,
)
from quire.net.link import Link

REACH_S = 1.0
"""How long the end of a session waits for connections that are still being made."""


class Encoder(Protocol):
    def frames(
        self, first: int, lac: int, length: int, payloads: Sequence[Buffer]
    ) -> tuple[Sequence[Buffer], int]:
        """ADD frames, in pieces to be joined; and the ledger length after them."""
        ...


class AddSession:
    """Adds to one ledger on one ensemble, with replacement of failed members."""

    __slots__ = (
        "_change_ensemble", "_encoder", "_lac_sent", "_loop", "_members", "_places", "_reached",
        "_replacement", "_room", "_route", "_row_encoder", "_stopped", "_striped", "_turns",
        "_waiters", "_write_quorum", "ack_quorum", "away", "causes", "config", "ensemble",
        "failure", "hears_every_ack", "lac_pushed", "ledger_id", "max_payload_bytes", "met",
        "no_room", "pipeline", "pool", "spans", "tasks",
    )  # fmt: skip

    always_hears = False
    """Every acknowledgement may matter to somebody, whether it comes to a quorum or not."""

    def __init__(
        self,
        *,
        codec: EntryCodec,
        key: bytes,
        pool: BookiePool,
        config: ClientConfig,
        tasks: TaskSet,
        ensemble: tuple[str, ...],
        write_quorum: int,
        ack_quorum: int,
        change_ensemble: ChangeEnsemble,
        last_confirmed: int = -1,
        length: int = 0,
        flags: int = 0,
        lac_sent: int | None = None,
        spread_acks: bool = False,
    ) -> None:
        """`lac_sent`: the LAC that every entry carries (recovery), instead of the advancing one.
        `spread_acks`: entries wait for as many fault domains as the placement says."""
        self.ledger_id = codec.ledger_id
        self.pool = pool
        self._turns = pool.turns
        self.config = config
        self.tasks = tasks
        self.ensemble = ensemble
        self.failure: QuireError | None = None
        shape = len(ensemble), write_quorum, ack_quorum, last_confirmed, length
        self.pipeline = SpreadPipeline(*shape) if spread_acks else AddPipeline(*shape)
        self.lac_pushed = -1
        """The LAC that the newest entry carries."""
        self._lac_sent = lac_sent
        self._encoder: Encoder = AddEncoder(codec, key, flags)
        self.max_payload_bytes = max_payload_bytes(codec.digest)
        self._change_ensemble = change_ensemble
        self._striped = len(ensemble) != write_quorum
        self._write_quorum = write_quorum
        self._look_at_domains()
        self.ack_quorum = ack_quorum
        self._loop = asyncio.get_running_loop()
        self._members: list[Member] = []
        self._waiters: deque[tuple[int, asyncio.Future[int]]] | None = None
        """There is one while somebody waits: an empty one takes 600 bytes."""
        self._room: asyncio.Future[None] | None = None
        self.hears_every_ack = self.always_hears
        """Also of those that do not come to a quorum: somebody waits for room."""
        self._route: Route | None = None
        """While all members are connected."""
        self._places: tuple[int, ...] = ()
        """Of the members on that."""
        self._row_encoder: AddEncoder | None = None
        """None: no entry may be a row of a sheaf."""
        self._reached: asyncio.Future[None] | None = None
        """Once this is made, members that fail are not replaced any more."""
        self._replacement: Replacement | None = None
        self.away: Away | None = None
        self.met = False
        """Some member was connected to: those that cannot be had now may come back."""
        self.no_room: MetadataTooLargeError | None = None
        """Whether an ensemble change did not fit into the ledger's metadata. Then no other is
        tried."""
        self.spans = pool.tracing.of_session(self.ledger_id)
        self._stopped = False
        self.causes: dict[str, BaseException | str] = {}

    async def connect(self, bookie_id: str) -> Link:
        """A connection for the adds to one member. Raises BookieUnavailableError."""
        return await self.pool.channel(bookie_id, adds_of=self.ledger_id)

    def connected(self, bookie_id: str) -> Link | None:
        """The one that `connect` would give without waiting."""
        return self.pool.channel_now(bookie_id, self.ledger_id)

    # -- adding -------------------------------------------------------------------------------

    @property
    def traced(self) -> bool:
        """Whether its batches have spans."""
        return self.spans is not None

    @property
    def full(self) -> bool:
        if self.pipeline.unacked_bytes_max() >= self.config.max_unacked_bytes:
            return True
        return self.away is not None and self.away.full

    async def room(self) -> None:
        """Wait until the slowest member has acknowledged enough. Cancel-safe."""
        while self.full and self.failure is None:
            if self._room is None:
                self._room = self._loop.create_future()
                self.hears_every_ack = True
            await asyncio.shield(self._room)
        if self.failure is not None:
            raise self.failure

    def _end_wait_for_room(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
            self.hears_every_ack = self.always_hears

    def check_payload(self, payload: Buffer) -> None:
        if len(payload) > self.max_payload_bytes:
            raise EntryTooLargeError(
                f"an entry of {len(payload)} bytes does not fit into one frame; at most "
                f"{self.max_payload_bytes} bytes do with this digest. Nothing was sent",
                ledger_id=self.ledger_id,
                remedy="Split the entry",
            )

    def push(self, payloads: Sequence[Buffer]) -> int:
        """Send consecutive entries; the id of the last one."""
        pipeline = self.pipeline
        first = pipeline.last_pushed + 1
        lac = pipeline.last_confirmed if self._lac_sent is None else self._lac_sent
        last = first + len(payloads) - 1
        if last > MAX_ENTRY_ID:
            raise WriteError(
                f"ledger {self.ledger_id} is full: entry ids end at {MAX_ENTRY_ID}",
                ledger_id=self.ledger_id,
                remedy="Close it and create another",
            )
        before = pipeline.length
        pieces, length = self._encoder.frames(first, lac, before, payloads)
        self.pool.counters.count_adds(len(payloads), length - before)
        if not self._members:
            self._start()
        self.lac_pushed = lac
        block = Block(first, last, pieces, before, length, self._loop.time())
        pipeline.push(block)
        route = self._route if self._turns.ending else None
        if route is None:
            self._send(block)
        else:
            route.put(self._turns, pieces)
        if self.spans is not None:
            self.spans.sent(first, last, length - before)
        return last

    def lend(self, payload: Buffer) -> bool:
        """At the end of a turn: let this entry be a row of what leaves then, if nothing is
        unusual. Else it is to be pushed."""
        if not self._members:
            self._start()
        route, encoder, pipeline = self._route, self._row_encoder, self.pipeline
        if route is None or encoder is None or self.hears_every_ack or not pipeline.lends:
            return False
        if pipeline.last_pushed >= MAX_ENTRY_ID or not self._turns.ending:
            return False
        sheaf = route.sheaf(self._turns, self.ack_quorum)
        if sheaf is None:
            return False
        self.lac_pushed = pipeline.last_confirmed
        row = pipeline.lend(sheaf, self._places, encoder, self.ledger_id, payload)
        if self._waiters is not None:
            sheaf.waiting[row] = self._confirmed_in_sheaf
        return True

    def _confirmed_in_sheaf(self) -> None:
        if self._waiters is not None:
            self._tell_waiters(self._waiters, self.pipeline.accepted)

    def _send(self, block: Block) -> None:
        """To each member that is connected, what it has to store of it."""
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

    def look_for_route(self) -> None:
        """A member is connected: where all are, and all get the same, it leaves together with what
        other ledgers with these members send."""
        if self._striped or len(self._members) < len(self.ensemble):
            return
        links = [member.channel for member in self._members if member.channel is not None]
        if len(links) == len(self._members):
            self._route = self._turns.route(tuple(links))
            self._places = self._route.places(tuple(links))
            plain = type(self.pipeline) is AddPipeline and self._lac_sent is None
            if plain and self.spans is None and isinstance(self._encoder, AddEncoder):
                self._row_encoder = self._encoder

    def lose_route(self) -> None:
        """A member is not connected any more."""
        self._route = None
        self.pipeline.settle()

    def wait_for(self, entry_id: int) -> asyncio.Future[int]:
        """A future of `entry_id`, done once it is accepted (which is confirmed, but for deferred
        sync). The entry may still have to be pushed."""
        future: asyncio.Future[int] = self._loop.create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
        elif entry_id <= self.pipeline.accepted:
            future.set_result(entry_id)
        else:
            waiters = self._waiters
            if waiters is None:
                waiters = self._waiters = deque()
            at = len(waiters)
            while at and waiters[at - 1][0] > entry_id:  # somebody waits for an older entry
                at -= 1
            if at == len(waiters):
                waiters.append((entry_id, future))
            else:
                waiters.insert(at, (entry_id, future))
            sheaf = self.pipeline.sheaf
            if sheaf is not None and not sheaf.over:
                sheaf.waiting[self.pipeline.row] = self._confirmed_in_sheaf
        return future

    async def force(self) -> int:
        """Make durable what is accepted; the last confirmed entry. Here it is durable already."""
        if self.failure is not None:
            raise self.failure
        return self.pipeline.last_confirmed

    async def reached(self) -> None:
        """The last call before `stop`, when all is confirmed: until what was pushed is on its way
        to every member that can be had, `REACH_S` at most. Cancel-safe.

        An ack quorum has it; but a member whose connection is still being made would never hear of
        these entries, and they would be a copy short for as long as nobody audits the ledger.
        """
        self._reached = self._loop.create_future()
        self.look_who_is_reached()
        await asyncio.wait([self._reached], timeout=REACH_S)

    def look_who_is_reached(self) -> None:
        reached = self._reached
        if reached is None or reached.done():
            return
        if self.failure is not None or all(member.reached for member in self._members):
            reached.set_result(None)

    # -- answers ------------------------------------------------------------------------------

    def after_acks(self) -> None:
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
        """Handle a failed member.

        `may_return` says that only the connection is known to be lost: the same bookie is tried
        over a new connection before it is replaced.
        """
        if self.failure is not None or member.gone:
            return
        self.causes[member.bookie_id] = error
        if isinstance(error, LedgerFencedError | UnauthorizedError):
            self.fail(error)
            return
        if isinstance(error, BookieTimeoutError) and member.channel is not None:
            self.pool.suspect(member.bookie_id)
        may_return = may_return or isinstance(error, SilentConnectionError)
        if not may_return:
            self.pool.mark_failed(member.bookie_id)
        self.fail_member(member, may_return=may_return)

    def fail_member(self, member: Member, *, may_return: bool = False) -> None:
        """Replace it, as soon as no other change of the ensemble is under way."""
        if self._reached is not None:
            member.leave()
            self.look_who_is_reached()
            return
        if self._replacement is None:
            self._replacement = Replacement(self, self._change_ensemble)
        self._replacement.of(member, may_return=may_return)

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
        """The end of this session: nothing is confirmed any more."""
        if self.failure is not None:
            return
        self.failure = error
        self.pipeline.frozen = True
        self.pool.timeouts.forget(self)
        if self.away is not None:
            self.away.stop()
        self.look_who_is_reached()
        for member in self._members:
            member.leave()
        waiters, self._waiters = self._waiters, None
        for _, future in waiters or ():
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever was cancelled does not look
        self._end_wait_for_room()
        self._tell_failure(error)

    def take_ensemble(self, ensemble: tuple[str, ...]) -> set[int]:
        """The one that is in force now; where it has other bookies."""
        changed = {index for index, b in enumerate(ensemble) if b != self.ensemble[index]}
        self.ensemble = ensemble
        if self.away is not None:
            self.away.replaced(changed)
        self._look_at_domains()
        return changed

    def go_on_without(self, unreplaced: set[int]) -> None:
        """These members cannot be had, nor others in their places. Raises NotEnoughBookiesError."""
        if not self.patience_s and not self.bearable(unreplaced):
            raise nobody_left(self, unreplaced)
        if self.away is None:
            self.away = Away(self)
        self.away.go_on_without(unreplaced)

    @property
    def patience_s(self) -> float:
        """Nobody waits for bookies that were never there: mostly that is a mistake."""
        return self.config.lost_quorum_limit_s if self.met else 0.0

    def wanted(self, failed: dict[int, str]) -> Wanted:
        return Wanted.replacing(self.ensemble, failed, self._write_quorum, self.ack_quorum)

    # -- going on with fewer ------------------------------------------------------------------

    def bearable(self, missing: Iterable[int] = ()) -> bool:
        """Whether there is an ack quorum without these members, and those that are away."""
        absent = set(missing) if self.away is None else self.away.indexes.union(missing)
        if isinstance(self.pipeline, SpreadPipeline) and not self.pipeline.spread_without(absent):
            return False
        return bearable(absent, len(self.ensemble), self._write_quorum, self.ack_quorum)

    @property
    def done(self) -> tuple[int, int]:
        """Up to which entry all is accepted, and durable."""
        return self.pipeline.accepted, self.pipeline.last_confirmed

    @property
    def owes(self) -> bool:
        """Whether somebody may wait for members to answer."""
        return self.pipeline.accepted < self.pipeline.last_pushed

    def member(self, index: int) -> Member:
        return self._members[index]

    def _look_at_domains(self) -> None:
        if isinstance(self.pipeline, SpreadPipeline):
            found = self.pool.placement.ack_domains(self.ensemble, self._write_quorum)
            self.pipeline.spread_over(*(found or ([""] * len(self.ensemble), 1)))

    def begin_again(self, indexes: set[int]) -> None:
        """With the bookies that are in these places now."""
        self.pipeline.restart(indexes, self._loop.time())
        for index in indexes:
            self._members[index].leave()
            self._join(index)

    def _start(self) -> None:
        for index in range(len(self.ensemble)):
            self._join(index)
        self.pool.timeouts.watch(self)

    def _join(self, index: int) -> None:
        member = Member(self, index, self.ensemble[index])
        member.sent = self.pipeline.last_confirmed
        if index == len(self._members):
            self._members.append(member)
        else:
            self._members[index] = member
        member.join()

    def check_timeouts(self, now: float) -> None:
        """Called every now and then, while this session has members."""
        pipeline = self.pipeline
        sheaf = pipeline.sheaf
        if sheaf is not None and (sheaf.over or now - sheaf.sent_at <= self.pool.timeouts.limit_s):
            return
        if pipeline.idle and pipeline.accepted == pipeline.last_pushed:
            return
        quorum_limit = self.config.add_quorum_timeout_s
        if quorum_limit > 0:
            since = self.pipeline.unaccepted_since()
            if since is not None and now - since > quorum_limit:
                self.fail(quorum_timeout(self, quorum_limit))
        if self.failure is not None or self.pipeline.idle:
            return
        for member in self._members:
            since = self.pipeline.outstanding_since(member.index)
            late = since is not None and now - since > self.config.add_timeout_s
            if late and not member.gone:
                self.on_failure(
                    member,
                    BookieTimeoutError(
                        f"bookie {member.bookie_id} left an add of ledger {self.ledger_id} "
                        f"unanswered for {self.config.add_timeout_s:g} s"
                    ),
                )

    # -- the end ------------------------------------------------------------------------------

    def stop(self, error: QuireError | None = None) -> None:
        """Detach from all bookies. What is not confirmed fails with `error`."""
        self._stopped = error is None
        self.fail(
            error
            or LedgerClosedError(
                f"the handle of ledger {self.ledger_id} is closed", ledger_id=self.ledger_id
            )
        )
