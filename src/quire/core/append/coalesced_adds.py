"""Entries of many ledgers that leave as one buffer to the same members: one entry of each.

With thousands of ledgers in turn, three acknowledgements an entry cost more than the entry: each of
them looks for its ledger, and moves a watermark in memory that no cache holds. The answers of one
connection come in the order of what was sent; so here a member's state is one number for all of
them, and an entry is confirmed once, when the ack quorum's number passes it. Laws:

1. A pipeline *lends* its newest entry to a sheaf, if nothing else of it is outstanding, and its
   members are those of the sheaf. Meanwhile its watermarks are in the sheaf. Frames are made when
   the sheaf is tied, of all rows at once.
2. Whoever asks the pipeline for more than what is confirmed, or tells it more, makes it *settle*
   first: it takes its entry back, with what each member has acknowledged so far. From then on it is
   as if the entry had been pushed alone.
3. `acked` is told what a member has acknowledged from the front on, without a gap. Answers that
   come in another order end the sheaf: all take back what they lent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.codec.entry.entry import PIECES, AddEncoder
from quire.codec.wire.v2 import Buffer, add_responses_each


class CoalescedPipeline(Protocol):
    """The pipeline of a ledger, as far as a sheaf knows it."""

    sheaf: CoalescedAdds | None
    frozen: bool
    accepted: int
    last_confirmed: int
    last_pushed: int

    def settle(self) -> None: ...


Row = tuple[CoalescedPipeline, AddEncoder, int, int, int, int, Buffer]
"""An entry: pipeline, encoder, ledger, entry, LAC, length of the ledger with it, payload."""


class CoalescedAdds:
    """Rows; each is the entry of one ledger. Members are known by their place in the buffer's
    route, which may be another one than their index in an ensemble."""

    __slots__ = (
        "_answers", "_on_confirmed", "_pieces", "_pipelines", "_unsent", "ack_quorum", "acked_by",
        "confirmed", "disordered", "entry_ids", "ledger_ids", "over", "payload_bytes", "rows",
        "sent_at", "taken_back", "tied", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        members: int,
        ack_quorum: int,
        sent_at: float,
        on_confirmed: Callable[[float, int], None],
    ) -> None:
        """`on_confirmed` is told when what was confirmed was sent, and how much it is."""
        self.ack_quorum = ack_quorum
        self.sent_at = sent_at
        self.acked_by = [0] * members
        """How many rows, from the front on, the member in each place has acknowledged."""
        self.confirmed = 0
        """Rows that an ack quorum has acknowledged."""
        self.tied = False
        """It takes no more rows. What stands below is known from then on."""
        self.ledger_ids: Sequence[int] = ()
        self.entry_ids: Sequence[int] = ()
        self.payload_bytes = 0
        self.waiting: dict[int, Callable[[], object]] = {}
        """Row -> whom to call when it is confirmed."""
        self.taken_back: set[int] = set()
        """Rows of which each acknowledgement has to be told to their ledger."""
        self.over = False
        """Nothing is lent any more: all is acknowledged by all, or taken back."""
        self.disordered = False
        self._on_confirmed = on_confirmed
        self.rows: list[Row] = []
        """Until it is tied: pipelines append to it."""
        self._pipelines: Sequence[CoalescedPipeline] = ()
        self._pieces: Sequence[Buffer] = ()
        self._unsent: Sequence[Buffer] = ()
        self._answers = b""

    def __len__(self) -> int:
        return len(self.ledger_ids) or len(self.rows)

    def tie(self) -> Sequence[Buffer]:
        """There are no more rows: the pieces of their frames, once, for whoever sends them to each
        member."""
        self._tie()
        unsent, self._unsent = self._unsent, ()
        return unsent

    def _tie(self) -> None:
        if self.tied:
            return
        self.tied = True
        rows, self.rows = self.rows, []
        pipelines, encoders, ledger_ids, entry_ids, lacs, lengths, payloads = zip(*rows)
        self._pipelines, self.ledger_ids, self.entry_ids = pipelines, ledger_ids, entry_ids
        self.payload_bytes = sum(map(len, payloads))
        self._pieces = self._unsent = AddEncoder.frames_each(
            encoders, ledger_ids, entry_ids, lacs, lengths, payloads
        )

    @property
    def answers(self) -> bytes:
        """What each member answers if it stores all, in this order. Once it is tied."""
        if not self._answers:
            self._answers = add_responses_each(self.ledger_ids, self.entry_ids)
        return self._answers

    def acked(self, place: int, count: int) -> None:
        """The member in this place has acknowledged the first `count` rows."""
        acked_by = self.acked_by
        acked_by[place] = count
        confirmed = sorted(acked_by)[-self.ack_quorum]
        before = self.confirmed
        if confirmed > before:
            self.confirmed = confirmed
            for pipeline in self._pipelines[before:confirmed]:
                if pipeline.sheaf is self:
                    if pipeline.frozen:
                        pipeline.settle()
                    else:
                        pipeline.accepted = pipeline.last_confirmed = pipeline.last_pushed
            self._on_confirmed(self.sent_at, confirmed - before)
            if self.waiting:
                for row in [row for row in self.waiting if row < confirmed]:
                    self.waiting.pop(row)()
        if min(acked_by) == len(self.ledger_ids):
            self._end()

    def take_back(self, row: int) -> Sequence[Buffer]:
        """The pieces of a row whose pipeline settles."""
        self._tie()
        self.taken_back.add(row)
        pieces = self._pieces[row * PIECES : (row + 1) * PIECES]
        if len(self.taken_back) == len(self.ledger_ids):
            self._end()
        return pieces

    def end_in_disorder(self) -> None:
        """Answers do not come in the order that was expected."""
        self.disordered = True
        self.give_back()

    def give_back(self) -> None:
        """From here on each ledger has its entry for itself."""
        self._tie()
        for pipeline in self._pipelines:
            if pipeline.sheaf is self:
                pipeline.settle()

    def _end(self) -> None:
        """It holds no payload, and no pipeline, any more."""
        self.over = True
        self._pipelines = self._pieces = ()
        self.waiting.clear()
