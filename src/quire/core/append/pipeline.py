"""The acknowledgements of one ledger handle's adds, as watermarks instead of entry records.

The writer pushes *blocks* (the entries of one event-loop iteration) and reports what each member of
the ensemble acknowledged. A member's *stripe* is the entries that it has to store. Invariants, with
the numbers of their rules in docs/internals/replication-rules.md:

1. `last_confirmed` only grows, and skips no entry. An entry is confirmed when at least `ack_quorum`
   members of its write set have acknowledged it (rule 15), and all entries before it are confirmed.
2. `next[index]` is the first entry of the member's stripe that the member has not acknowledged. It
   has acknowledged every earlier entry of its stripe. Acknowledgements that arrive out of order
   wait in `ahead[index]`.
3. Nothing is confirmed while the pipeline is frozen, which means that an ensemble change is running
   (rule 10). A replaced member starts again at the first unconfirmed entry. *All* resets happen
   before the next confirmation (rule 12), and every unconfirmed entry of its stripe is sent again
   (rule 13).

Blocks form a linked list with one cursor per member and one for confirmation. A block is freed when
the last cursor has passed it.

A single entry that is sent together with those of other ledgers may be attached to `CoalescedAdds`
instead of becoming a block. A method that needs or changes more than the confirmed prefix detaches
the entry first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from quire.codec.entry.entry import AddEncoder
from quire.codec.wire.v2 import Buffer, frame_bounds
from quire.core.append.coalesced_adds import CoalescedAdds
from quire.core.append.quorum import in_write_set

PUSHES_ALONE = 32
"""The number of entries that are not attached to coalesced adds after the next entry of a ledger
forced its attached entry to be detached. A ledger where this happens usually has several entries
outstanding."""


class Block:
    """The ADD frames of consecutive entries, as they are sent to a member that stores all of them.

    The frames are kept as pieces, which are joined to be sent. With thousands of ledgers a block
    usually has one entry, which is sent only once, and together with those of other ledgers.
    """

    __slots__ = ("first", "last", "length_after", "length_before", "next", "pieces", "sent_at")

    def __init__(
        self,
        first: int,
        last: int,
        pieces: Sequence[Buffer],
        length_before: int,
        length_after: int,
        sent_at: float,
    ) -> None:
        self.first = first
        self.last = last
        self.pieces = pieces
        self.length_before = length_before
        self.length_after = length_after
        self.sent_at = sent_at
        self.next: Block | None = None

    def frames(self, entries: Sequence[int]) -> bytes:
        """Return the ADD frames of the given entries of this block, joined.

        `entries` has their ids, ascending.
        """
        data = b"".join(self.pieces)
        if len(entries) == self.last - self.first + 1:
            return data
        view, first = memoryview(data), self.first
        bounds = frame_bounds(data)
        return b"".join([view[slice(*bounds[entry - first])] for entry in entries])


class AddPipeline:
    """The adds of one ledger handle, and the entries that each member has acknowledged."""

    __slots__ = (
        "_ack_quorum",
        "_ahead",
        "_alone_until",
        "_confirming",
        "_cursors",
        "_ensemble_size",
        "_next",
        "_parked",
        "_places",
        "_restarted_at",
        "_striped",
        "_tail",
        "_write_quorum",
        "accepted",
        "coalesced",
        "frozen",
        "last_confirmed",
        "last_pushed",
        "length",
        "row",
    )

    def __init__(
        self,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        last_confirmed: int = -1,
        length: int = 0,
    ) -> None:
        self._ensemble_size = ensemble_size
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._striped = ensemble_size != write_quorum
        self.last_confirmed = last_confirmed
        self.accepted = last_confirmed
        """The last entry whose append may return. Without deferred sync it equals
        `last_confirmed`."""
        self.last_pushed = last_confirmed
        self.length = length
        """The number of payload bytes up to `last_pushed`."""
        self.frozen = False
        first = last_confirmed + 1
        self._next = [self._stripe_from(index, first) for index in range(ensemble_size)]
        # A client may have ten thousand pipelines. State that most of them do not need therefore
        # has no object of its own.
        self._ahead: dict[int, set[int]] = {}
        self._cursors: list[Block | None] = [None] * ensemble_size
        self._restarted_at: dict[int, float] = {}
        self._parked: frozenset[int] = frozenset()
        self._confirming: Block | None = None
        self._tail: Block | None = None
        self.coalesced: CoalescedAdds | None = None
        """The coalesced adds that the newest entry is attached to, or None. They stay here, even
        after all members have acknowledged the entry, until the pipeline detaches."""
        self.row = 0
        """The number of the row in `coalesced` that is the newest entry."""
        self._places: Sequence[int] = ()
        self._alone_until = -1

    # -- sending ------------------------------------------------------------------------------

    def push(self, block: Block) -> None:
        """Add a block of entries, which must follow the last pushed entry."""
        assert block.first == self.last_pushed + 1
        if self.coalesced is not None:
            if not self.coalesced.over:
                self._alone_until = block.last + PUSHES_ALONE
            self.detach()
        if self._tail is None and not self._striped and not self._parked:
            # Nothing is outstanding anywhere. This is the usual case when thousands of ledgers take
            # turns.
            self._cursors = [block] * self._ensemble_size
        else:
            self._begin_cursors(block)
        if self._confirming is None:
            self._confirming = block
        self._tail = block
        self.last_pushed = block.last
        self.length = block.length_after

    def _begin_cursors(self, block: Block) -> None:
        if self._tail is not None:
            self._tail.next = block
        for index, cursor in enumerate(self._cursors):
            # A member of a striped ensemble may store no entry of a small block. Nothing of the
            # block is then outstanding there.
            if cursor is None and index not in self._parked and self._next[index] <= block.last:
                self._cursors[index] = block

    @property
    def can_attach(self) -> bool:
        """Whether the next entry may be attached to coalesced adds.

        It may if no entry is outstanding on any member, no member is away, and the ensemble is not
        striped and not being changed. In addition, none of the last `PUSHES_ALONE` entries may have
        been detached because of the entry after it.
        """
        coalesced = self.coalesced
        if coalesced is not None:
            return coalesced.over and not self.frozen
        free = self._tail is None and not self.frozen and not self._parked and not self._striped
        return free and self.last_pushed >= self._alone_until

    def attach(
        self,
        coalesced: CoalescedAdds,
        places: Sequence[int],
        encoder: AddEncoder,
        ledger_id: int,
        payload: Buffer,
    ) -> int:
        """Push one entry as a row of `coalesced`, and return the number of the row.

        `places` has the place in the connection group of each ensemble member.
        """
        self.last_pushed = entry_id = self.last_pushed + 1
        self.length = length = self.length + len(payload)
        self.coalesced, self._places = coalesced, places
        rows = coalesced.rows
        self.row = row = len(rows)
        rows.append((self, encoder, ledger_id, entry_id, self.last_confirmed, length, payload))
        return row

    def detach(self) -> None:
        """Take the attached entry back from the coalesced adds, if there is one.

        The entry becomes a block of its own, unless all members have acknowledged it. Their
        acknowledgements so far are kept.
        """
        coalesced, self.coalesced = self.coalesced, None
        if coalesced is None:
            return
        last = self.last_pushed
        self._next = [last + 1] * self._ensemble_size
        if coalesced.over:
            return
        missing = [coalesced.acked_by[place] <= self.row for place in self._places]
        pieces = coalesced.detach_row(self.row)
        before = self.length - len(pieces[-1])
        block = Block(last, last, pieces, before, self.length, coalesced.sent_at)
        self._next = [last if late else last + 1 for late in missing]
        self._cursors = [block if late else None for late in missing]
        self._confirming = block if self.last_confirmed < last else None
        self._tail = block if any(missing) or self._confirming is not None else None

    def stripe(self, index: int, first: int, last: int) -> Sequence[int]:
        """Return the entry ids in first..last, both included, that member `index` stores."""
        if not self._striped:
            return range(first, last + 1)
        size, quorum = self._ensemble_size, self._write_quorum
        return [entry for entry in range(first, last + 1) if (index - entry) % size < quorum]

    def frames_for(self, index: int, after: int) -> Iterator[tuple[int, bytes]]:
        """Yield the ADD frames to send to member `index`, block by block.

        Each item has the last entry of a block, and the frames of the block's entries that the
        member stores. Entries up to `after` are left out. The first block is the first one that the
        member has not acknowledged completely, so some of its entries may be acknowledged.
        """
        self.detach()
        block = self._cursors[index]
        while block is not None:
            first = max(block.first, after + 1)
            if first <= block.last:
                entries = self.stripe(index, first, block.last)
                if entries:
                    yield block.last, block.frames(entries)
            block = block.next

    # -- acknowledgements ---------------------------------------------------------------------

    def acked_run(self, index: int, first: int, last: int) -> bool:
        """Record that member `index` has stored all entries of first..last.

        Returns False if `confirm` would certainly change nothing, because no ack quorum has entries
        after `accepted`. Otherwise returns True.
        """
        if self.coalesced is not None:
            self._end_coalesced()
        plain = last <= self.last_pushed and not self._ahead and not self._striped
        if plain and first == self._next[index]:
            self._next[index] = last + 1
            cursor = self._cursors[index]
            while cursor is not None and cursor.last <= last:
                cursor = cursor.next
            self._cursors[index] = cursor
            if cursor is None and self._confirming is None:
                self._forget_tail()
            accepted = self.accepted
            if last <= accepted:
                return False
            # A subclass may require more than this number of members, but this number is always
            # necessary.
            return sorted(self._next)[-self._ack_quorum] > accepted + 1
        self.acked(index, range(first, last + 1))
        return self._next[index] - 1 > self.accepted

    def acked(self, index: int, entries: Iterable[int]) -> None:
        """Record that member `index` has stored `entries`, in any order and with repetitions.

        Entries that were never pushed are ignored, because the member cannot have stored them.
        """
        if self.coalesced is not None:
            self._end_coalesced()
        ahead = self._ahead.get(index)
        upcoming = self._next[index]
        for entry in entries:
            if entry > self.last_pushed:
                continue
            if entry == upcoming:
                upcoming = self._stripe_from(index, entry + 1)
                while ahead and upcoming in ahead:
                    ahead.discard(upcoming)
                    upcoming = self._stripe_from(index, upcoming + 1)
            elif entry > upcoming:
                if ahead is None:
                    ahead = self._ahead[index] = set()
                ahead.add(entry)
        if ahead is not None and not ahead:
            del self._ahead[index]
        self._next[index] = upcoming
        self._move_cursor(index)

    def confirm(self) -> bool:
        """Advance `last_confirmed` as far as the quorums allow, and return whether it moved."""
        if self.coalesced is not None:
            self.detach()
        if self.frozen:
            return False
        confirmed = self.stored_through()
        if confirmed <= self.last_confirmed:
            return False
        self.accepted = confirmed
        self._confirm_through(confirmed)
        return True

    def stored_through(self) -> int:
        """Return the last entry up to which every entry has its ack quorum."""
        if self.coalesced is not None:
            self.detach()
        if self._striped:
            return min(self._stored_striped(), self.last_pushed)
        through = sorted(self._next)[-self._ack_quorum] - 1
        return through if through < self.last_pushed else self.last_pushed

    def _confirm_through(self, entry_id: int) -> None:
        self.last_confirmed = entry_id
        block = self._confirming
        while block is not None and block.last <= entry_id:
            block = block.next
        self._confirming = block
        if block is None:
            self._forget_tail()

    def _stored_striped(self) -> int:
        size, quorum = self._ensemble_size, self._write_quorum
        first_open = self.last_pushed + 1
        for residue in range(size):
            members = sorted(self._next[(residue + k) % size] for k in range(quorum))
            through = members[-self._ack_quorum] - 1
            # The first entry of this residue after `through`.
            candidate = through + 1 + (residue - through - 1) % size
            first_open = min(first_open, candidate)
        return first_open - 1

    # -- ensemble changes ---------------------------------------------------------------------

    def restart(self, indexes: Iterable[int], now: float, *, same: bool = False) -> None:
        """Restart the members at these ensemble indexes, which are new or were away.

        From loop time `now` on they count as having acknowledged nothing after `last_confirmed`.
        With `same`, each is the bookie that had this index before. It then still owes the earlier
        entries that it has not acknowledged, unless it was parked.
        """
        self.detach()
        for index in indexes:
            self._parked -= {index}
            self._ahead.pop(index, None)
            owes = same and self._cursors[index] is not None
            if not (owes and self._next[index] <= self.last_confirmed):
                self._next[index] = self._stripe_from(index, self.last_confirmed + 1)
                self._cursors[index] = self._confirming
            self._move_cursor(index)
            self._restarted_at[index] = now

    def park(self, indexes: Iterable[int]) -> None:
        """Park the members at these ensemble indexes, which cannot be reached.

        Nothing is outstanding on them until they restart.
        """
        self.detach()
        for index in indexes:
            self._parked |= {index}
            self._cursors[index] = None
            if self._confirming is None:
                self._forget_tail()

    # -- what is outstanding ------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no member still has to acknowledge an entry."""
        if self.coalesced is not None:
            if self.coalesced.over:
                return True
            self.detach()
        return not any(self._cursors)

    def outstanding_since(self, index: int) -> float | None:
        """Return the loop time since which member `index` owes an acknowledgement, or None.

        That is the time at which the oldest block that it has not acknowledged was sent, or at
        which the member restarted if that is later. None means that nothing is outstanding.
        """
        self.detach()
        cursor = self._cursors[index]
        if cursor is None:
            return None
        return max(cursor.sent_at, self._restarted_at.get(index, 0.0))

    def unowed(self, index: int) -> int:
        """Return the last entry up to which member `index` does not have to be sent anything."""
        return min(self.last_confirmed, self._next[index] - 1)

    def unaccepted_since(self) -> float | None:
        """Return the loop time at which the oldest entry after `accepted` was pushed, or None."""
        self.detach()
        block = self._confirming
        # With deferred sync, blocks may be accepted but not durable yet.
        while block is not None and block.last <= self.accepted:
            block = block.next
        return None if block is None else block.sent_at

    def unacked_bytes(self, index: int) -> int:
        """Return the payload bytes that count as unacknowledged by member `index`.

        They are those of all entries from the first block on that the member has not acknowledged
        completely.
        """
        self.detach()
        cursor = self._cursors[index]
        return 0 if cursor is None else self.length - cursor.length_before

    @property
    def unconfirmed_bytes(self) -> int:
        """The number of payload bytes in the blocks that are not confirmed completely.

        With deferred sync, confirmed means durable.
        """
        self.detach()
        block = self._confirming
        return 0 if block is None else self.length - block.length_before

    def unacked_bytes_max(self) -> int:
        """Return the `unacked_bytes` of the member that has the most."""
        return max(self.unacked_bytes(index) for index in range(self._ensemble_size))

    def _stripe_from(self, index: int, entry: int) -> int:
        if not self._striped:
            return entry
        while not in_write_set(index, entry, self._ensemble_size, self._write_quorum):
            entry += 1
        return entry

    def _move_cursor(self, index: int) -> None:
        upcoming = self._next[index]
        cursor = self._cursors[index]
        while cursor is not None and cursor.last < upcoming:
            cursor = cursor.next
        self._cursors[index] = cursor
        if cursor is None and self._confirming is None:
            self._forget_tail()

    def _end_coalesced(self) -> None:
        """Detach, because an acknowledgement arrived for this ledger alone.

        It shows that answers do not arrive in the order of the coalesced adds, so these end for all
        ledgers.
        """
        coalesced = self.coalesced
        if coalesced is not None and not coalesced.over:
            coalesced.end_in_disorder()
        self.detach()

    def _forget_tail(self) -> None:
        """Drop the tail if no cursor is left, so that an idle writer holds no payload.

        Nothing else keeps the newest block in that case.
        """
        if not any(self._cursors):
            self._tail = None
