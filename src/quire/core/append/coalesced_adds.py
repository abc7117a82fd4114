"""Adds of many ledgers that are sent as one buffer to the same members, with one entry per ledger.

When thousands of ledgers take turns, three acknowledgements per entry cost more than the entry.
Each of them looks up its ledger and moves a watermark in memory that no cache holds. The answers of
one connection arrive in the order in which the adds were sent. So here the state of a member is one
number for all of these entries. An entry is confirmed once, when the number of the ack quorum
passes it. Invariants:

1. A pipeline *attaches* its newest entry to coalesced adds if nothing else of the pipeline is
   outstanding, and if its members are the members of the coalesced adds. The coalesced adds then
   hold its watermarks. The frames of all rows are made at once, when the coalesced adds are
   *sealed*.
2. A pipeline *detaches* before anything reads or changes more of its state than the confirmed
   prefix. It takes its entry back, with what each member has acknowledged so far. From then on it
   is as if the entry had been pushed alone.
3. `acked` receives the number of rows that a member has acknowledged, counted from the first row
   without a gap. Answers in another order end the coalesced adds: all pipelines detach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.codec.entry.entry import PIECES, AddEncoder
from quire.codec.wire.v2 import Buffer, add_responses_each


class CoalescedPipeline(Protocol):
    """The attributes and methods of a ledger's `AddPipeline` that coalesced adds use."""

    coalesced: CoalescedAdds | None
    frozen: bool
    accepted: int
    last_confirmed: int
    last_pushed: int

    def detach(self) -> None: ...


Row = tuple[CoalescedPipeline, AddEncoder, int, int, int, int, Buffer]
"""One entry in coalesced adds: its pipeline, encoder, ledger id, entry id and LAC, the length of
the ledger including the entry, and its payload."""


class CoalescedAdds:
    """A batch of entries of different ledgers, which is sent to the same members as one buffer.

    Each *row* of the batch is the entry of one ledger. A member is identified by its place in the
    connection group, which may differ from its index in an ensemble.
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
        """Create coalesced adds without rows.

        `on_confirmed` is called with the time at which the rows were sent and the number of rows
        that have just been confirmed. Detached rows are left out.
        """
        self.ack_quorum = ack_quorum
        self.sent_at = sent_at
        self.acked_by = [0] * members
        """The number of rows that each member has acknowledged, counted from the first row without
        a gap. The index is the member's place in the connection group."""
        self.confirmed = 0
        """The number of rows, from the first on, that an ack quorum has acknowledged."""
        self.sealed = False
        """Whether no more rows can be added. `ledger_ids`, `entry_ids` and `payload_bytes` are set
        from then on."""
        self.ledger_ids: Sequence[int] = ()
        self.entry_ids: Sequence[int] = ()
        self.payload_bytes = 0
        self.waiting: dict[int, Callable[[], object]] = {}
        """The functions to call when a row is confirmed, by the number of the row."""
        self.detached_rows: set[int] = set()
        """The numbers of the rows that were detached: their ledger's own pipeline must receive each
        acknowledgement."""
        self.over = False
        """Whether no pipeline is attached any more: each row is acknowledged by all members, or
        detached."""
        self.disordered = False
        """Whether answers arrived in another order than the adds were sent."""
        self._on_confirmed = on_confirmed
        self.rows: list[Row] = []
        """The rows, until the coalesced adds are sealed. Pipelines append to this list."""
        self._pipelines: Sequence[CoalescedPipeline] = ()
        self._pieces: Sequence[Buffer] = ()
        self._unsent: Sequence[Buffer] = ()
        self._answers = b""

    def __len__(self) -> int:
        return len(self.ledger_ids) or len(self.rows)

    def seal(self) -> Sequence[Buffer]:
        """Take no more rows, and return the pieces of their frames to be sent to each member.

        Only the first call returns the pieces.
        """
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
        """The answer of a member that stores all rows, in order. It is valid only after `seal`."""
        if not self._answers:
            self._answers = add_responses_each(self.ledger_ids, self.entry_ids)
        return self._answers

    def acked(self, place: int, count: int) -> None:
        """Record that the member at `place` has acknowledged the first `count` rows.

        Rows that an ack quorum has acknowledged now are confirmed.
        """
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
            # The ledger of a detached row counts its entry itself.
            detached = sum(before <= row < confirmed for row in self.detached_rows)
            self._on_confirmed(self.sent_at, confirmed - before - detached)
            if self.waiting:
                for row in [row for row in self.waiting if row < confirmed]:
                    self.waiting.pop(row)()
        if min(acked_by) == len(self.ledger_ids):
            self._end()

    def detach_row(self, row: int) -> Sequence[Buffer]:
        """Mark this row as detached, and return the pieces of its frame."""
        self._seal()
        self.detached_rows.add(row)
        pieces = self._pieces[row * PIECES : (row + 1) * PIECES]
        if len(self.detached_rows) == len(self.ledger_ids):
            self._end()
        return pieces

    def end_in_disorder(self) -> None:
        """Detach all pipelines because answers arrive in another order than expected."""
        self.disordered = True
        self.detach_all()

    def detach_all(self) -> None:
        """Detach all pipelines, so that each handles the acknowledgements of its entry itself."""
        self._seal()
        for pipeline in self._pipelines:
            if pipeline.coalesced is self:
                pipeline.detach()

    def _end(self) -> None:
        """Release all payloads and pipelines, because no pipeline is attached any more."""
        self.over = True
        self._pipelines = self._pieces = ()
        self.waiting.clear()
