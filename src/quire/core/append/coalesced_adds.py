"""Adds of many ledgers that leave as one buffer to the same members: one entry of each ledger.

With thousands of ledgers in turn, three acknowledgements an entry cost more than the entry: each of
them looks for its ledger, and moves a watermark in memory that no cache holds. The answers of one
connection come in the order of what was sent. So here a member's state is one number for all of
these entries, and an entry is confirmed once, when the ack quorum's number passes it. Invariants:

1. A pipeline *attaches* its newest entry to coalesced adds if nothing else of it is outstanding,
   and its members are theirs. Meanwhile its watermarks are here. The frames of all rows are made
   at once, when the coalesced adds are *sealed*.
2. Whoever asks the pipeline for more than what is confirmed, or changes it, makes it *detach*
   first: it takes its entry back, with what each member has acknowledged so far. From then on it
   is as if the entry had been pushed alone.
3. `acked` receives how many rows a member has acknowledged from the front on, without a gap.
   Answers that come in another order end the coalesced adds: all pipelines detach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.codec.entry.entry import PIECES, AddEncoder
from quire.codec.wire.v2 import Buffer, add_responses_each


class CoalescedPipeline(Protocol):
    """The pipeline of a ledger, as far as coalesced adds know it."""

    coalesced: CoalescedAdds | None
    frozen: bool
    accepted: int
    last_confirmed: int
    last_pushed: int

    def detach(self) -> None: ...


Row = tuple[CoalescedPipeline, AddEncoder, int, int, int, int, Buffer]
"""An entry: pipeline, encoder, ledger, entry, LAC, length of the ledger with it, payload."""


class CoalescedAdds:
    """Rows, each the entry of one ledger, that leave as one buffer.

    Members are known by their place in the connection group, which may differ from their index in
    an ensemble.
    """

    __slots__ = (
        "_answers", "_on_confirmed", "_pieces", "_pipelines", "_unsent", "ack_quorum", "acked_by",
        "confirmed", "detached_rows", "disordered", "entry_ids", "ledger_ids", "over",
        "payload_bytes", "rows", "sealed", "sent_at", "waiting",
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
        self.sealed = False
        """It takes no more rows. The attributes below are known from then on."""
        self.ledger_ids: Sequence[int] = ()
        self.entry_ids: Sequence[int] = ()
        self.payload_bytes = 0
        self.waiting: dict[int, Callable[[], object]] = {}
        """Row -> whom to call when it is confirmed."""
        self.detached_rows: set[int] = set()
        """Rows whose ledger has to receive each of its acknowledgements."""
        self.over = False
        """No pipeline is attached any more: all is acknowledged by all, or detached."""
        self.disordered = False
        self._on_confirmed = on_confirmed
        self.rows: list[Row] = []
        """Until it is sealed: pipelines append to it."""
        self._pipelines: Sequence[CoalescedPipeline] = ()
        self._pieces: Sequence[Buffer] = ()
        self._unsent: Sequence[Buffer] = ()
        self._answers = b""

    def __len__(self) -> int:
        return len(self.ledger_ids) or len(self.rows)

    def seal(self) -> Sequence[Buffer]:
        """Take no more rows. Return the pieces of their frames, once, to be sent to each member."""
        self._seal()
        unsent, self._unsent = self._unsent, ()
        return unsent

    def _seal(self) -> None:
        if self.sealed:
            return
        self.sealed = True
        rows, self.rows = self.rows, []
        pipelines, encoders, ledger_ids, entry_ids, lacs, lengths, payloads = zip(*rows)
        self._pipelines, self.ledger_ids, self.entry_ids = pipelines, ledger_ids, entry_ids
        self.payload_bytes = sum(map(len, payloads))
        self._pieces = self._unsent = AddEncoder.frames_each(
            encoders, ledger_ids, entry_ids, lacs, lengths, payloads
        )

    @property
    def answers(self) -> bytes:
        """What each member answers if it stores all, in this order. Seal it first."""
        if not self._answers:
            self._answers = add_responses_each(self.ledger_ids, self.entry_ids)
        return self._answers

    def acked(self, place: int, count: int) -> None:
        """Note that the member in this place has acknowledged the first `count` rows."""
        acked_by = self.acked_by
        acked_by[place] = count
        confirmed = sorted(acked_by)[-self.ack_quorum]
        before = self.confirmed
        if confirmed > before:
            self.confirmed = confirmed
            for pipeline in self._pipelines[before:confirmed]:
                if pipeline.coalesced is self:
                    if pipeline.frozen:
                        pipeline.detach()
                    else:
                        pipeline.accepted = pipeline.last_confirmed = pipeline.last_pushed
            self._on_confirmed(self.sent_at, confirmed - before)
            if self.waiting:
                for row in [row for row in self.waiting if row < confirmed]:
                    self.waiting.pop(row)()
        if min(acked_by) == len(self.ledger_ids):
            self._end()

    def detach_row(self, row: int) -> Sequence[Buffer]:
        """Return the pieces of a row whose pipeline detaches."""
        self._seal()
        self.detached_rows.add(row)
        pieces = self._pieces[row * PIECES : (row + 1) * PIECES]
        if len(self.detached_rows) == len(self.ledger_ids):
            self._end()
        return pieces

    def end_in_disorder(self) -> None:
        """Detach all pipelines: answers do not come in the order that was expected."""
        self.disordered = True
        self.detach_all()

    def detach_all(self) -> None:
        """Give each ledger its entry back."""
        self._seal()
        for pipeline in self._pipelines:
            if pipeline.coalesced is self:
                pipeline.detach()

    def _end(self) -> None:
        """It holds no payload, and no pipeline, any more."""
        self.over = True
        self._pipelines = self._pieces = ()
        self.waiting.clear()
