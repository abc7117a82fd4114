"""One member of an ensemble, as an `AddSession` sends to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.errors import BookieUnavailableError, QuireError
from quire.net.link import Link

if TYPE_CHECKING:
    from quire.client.write.add_session import AddSession


class Member:
    """Sends what is pushed, takes the answers: an `AddSink`."""

    __slots__ = ("bookie_id", "channel", "gone", "index", "sent", "session")

    def __init__(self, session: AddSession, index: int, bookie_id: str) -> None:
        self.session = session
        self.index = index
        self.bookie_id = bookie_id
        self.channel: Link | None = None
        self.sent = -1
        """What it has to be sent when it is connected begins behind this entry."""
        self.gone = False
        """Replaced: what still arrives is ignored (rule 14)."""

    def join(self) -> None:
        """Begin: at once where there is a connection that can be used."""
        session = self.session
        if session.failure is not None:
            return
        link = session.connected(self.bookie_id)
        if link is None:
            session.tasks.start(self.connect())
        else:
            self._attach(link)

    async def connect(self) -> None:
        session = self.session
        try:
            channel = await session.connect(self.bookie_id)
        except QuireError as error:
            if not self.gone:
                session.on_failure(self, error)
            return
        if self.gone or session.failure is not None:
            return
        if not channel.takes_adds_of(session.ledger_id):  # taken while this task was woken
            session.tasks.start(self.connect())
            return
        self._attach(channel)

    def _attach(self, channel: Link) -> None:
        channel.attach(self.session.ledger_id, self)
        self.channel = channel
        self.session.met = True
        self.session.look_for_route()
        self.send_backlog()
        self.session.look_who_is_reached()

    @property
    def reached(self) -> bool:
        """It was sent what it has to store, or it never will be."""
        if self.gone or self.channel is not None:
            return True
        return self.session.pipeline.outstanding_since(self.index) is None

    def send_backlog(self) -> None:
        assert self.channel is not None
        for last, frames in self.session.pipeline.frames_for(self.index, self.sent):
            self.channel.send(frames)
            self.sent = last

    def leave(self) -> None:
        self.gone = True
        if self.channel is not None:
            session = self.session
            unanswered = session.pipeline.outstanding_since(self.index) is not None
            self.channel.detach(session.ledger_id, self, unanswered=unanswered)
            self.channel = None
            session.lose_route()

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
        session.lose_route()
        if not self.gone:
            # A connection that closes while nothing is outstanding says little about the bookie:
            # the bookie, or something in between, may close idle connections.
            idle = session.pipeline.outstanding_since(self.index) is None
            session.on_failure(self, error, may_return=idle)
