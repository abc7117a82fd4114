"""Pipelines with coalesced adds behave exactly like pipelines with separate entries."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import AddEncoder, EntryCodec
from quire.core.append.coalesced_adds import CoalescedAdds
from quire.core.append.pipeline import AddPipeline, Block

LEDGERS = 4
MEMBERS = 3
PLACES = ((0, 1, 2), (2, 0, 1), (1, 0, 2), (0, 2, 1))
"""The members of each ledger."""
DIGESTS = (DigestType.CRC32C, DigestType.CRC32C, DigestType.HMAC, DigestType.DUMMY)
ENCODERS = [
    AddEncoder(EntryCodec(ledger, digest, b"of %d" % (ledger % 2)), b"%d" % (ledger % 2) * 20)
    for ledger, digest in enumerate(DIGESTS)
]
ledgers = st.integers(0, LEDGERS - 1)
members = st.integers(0, MEMBERS - 1)


class Sheaves(RuleBasedStateMachine):
    """Answers come in the order of what was sent, from each place at its own pace."""

    @initialize(ack_quorum=st.integers(1, MEMBERS))
    def begin(self, ack_quorum: int) -> None:
        self.ack_quorum = ack_quorum
        self.lending = [AddPipeline(MEMBERS, MEMBERS, ack_quorum) for _ in range(LEDGERS)]
        self.alone = [AddPipeline(MEMBERS, MEMBERS, ack_quorum) for _ in range(LEDGERS)]
        self.sheaves: list[CoalescedAdds] = []
        self.unanswered: list[deque[CoalescedAdds | tuple[int, int, int]]] = [
            deque() for _ in range(3)
        ]
        """For each bookie: coalesced adds, and (ledger, member, entry) of adds that were sent
        alone.
        """
        self.rows: dict[int, int] = {}
        """The number of answered rows, by the id of the coalesced adds and the bookie."""
        self.spoken_for: list[dict[int, int]] = [{} for _ in range(LEDGERS)]
        """Ledger -> member -> entries up to here were for its predecessor."""
        self.now = 0.0
        self.confirmed: list[int] = []

    def coalesced_of(self, count: int) -> CoalescedAdds:
        return CoalescedAdds(
            count, self.ack_quorum, self.now, lambda _, rows: self.confirmed.append(rows)
        )

    @rule(
        which=st.lists(ledgers, min_size=1, unique=True),
        size=st.integers(0, 9),
        early=st.none() | ledgers,
    )
    def send_together(self, which: list[int], size: int, early: int | None) -> None:
        """Push in one event-loop iteration. Adds that cannot be coalesced are sent alone.

        With `early`, coalesced adds are sealed before the iteration ends.
        """
        self.now += 1
        coalesced = self.coalesced_of(MEMBERS)
        frames = []
        for ledger in which:
            pipeline, twin = self.lending[ledger], self.alone[ledger]
            entry, before, payload = twin.last_pushed + 1, twin.length, bytes([ledger]) * size
            lac = twin.last_confirmed
            pieces, length = ENCODERS[ledger].frames(entry, lac, before, (payload,))
            twin.push(Block(entry, entry, pieces, before, length, self.now))
            if pipeline.can_attach:
                pipeline.attach(coalesced, PLACES[ledger], ENCODERS[ledger], ledger, payload)
                frames.append(b"".join(pieces))
            else:
                pipeline.push(Block(entry, entry, pieces, before, length, self.now))
                for index in range(MEMBERS):
                    self.unanswered[PLACES[ledger][index]].append((ledger, index, entry))
        if len(coalesced):
            if early is not None:  # Whatever they are, they must behave as if they had been sent.
                self.compare(early)
            assert b"".join(coalesced.seal()) == b"".join(frames)
            assert not coalesced.seal()
            assert len(coalesced.answers) == 28 * len(coalesced)
            self.sheaves.append(coalesced)
            for place in range(MEMBERS):
                self.unanswered[place].append(coalesced)

    @rule(answers=st.lists(st.tuples(members, st.integers(1, LEDGERS)), min_size=3, max_size=9))
    def answer(self, answers: list[tuple[int, int]]) -> None:
        for place, count in answers:
            self.answer_from(place, count)
            self.confirmed_is_the_same_at_any_time()

    def answer_from(self, place: int, count: int) -> None:
        waiting = self.unanswered[place]
        if not waiting:
            return
        head = waiting[0]
        if isinstance(head, tuple):
            waiting.popleft()
            self.tell(*head)
            self.tell_twin(*head)
            return
        before = self.rows.get(id(head) + place, 0)
        done = min(before + count, len(head))
        self.rows[id(head) + place] = done
        over = head.over
        for row in range(before, done):
            ledger, entry = head.ledger_ids[row], head.entry_ids[row]
            index = PLACES[ledger].index(place)
            self.tell_twin(ledger, index, entry)
            if over or row in head.detached_rows:
                self.tell(ledger, index, entry)
        if not over:
            head.acked(place, done)
        if done == len(head):
            waiting.popleft()

    def tell(self, ledger: int, index: int, entry: int) -> None:
        if entry > self.spoken_for[ledger].get(index, -1):
            self.lending[ledger].acked_run(index, entry, entry)
            self.lending[ledger].confirm()

    def tell_twin(self, ledger: int, index: int, entry: int) -> None:
        if entry > self.spoken_for[ledger].get(index, -1):
            self.alone[ledger].acked_run(index, entry, entry)
            self.alone[ledger].confirm()

    @rule(ledger=ledgers, index=members)
    def replace(self, ledger: int, index: int) -> None:
        """Replace a member. What was sent to it is neither answered nor sent to the next one."""
        for pipelines in (self.lending, self.alone):
            pipelines[ledger].frozen = True
        self.compare(ledger)
        for pipelines in (self.lending, self.alone):
            pipelines[ledger].restart([index], self.now)
            pipelines[ledger].frozen = False
            pipelines[ledger].confirm()
        self.spoken_for[ledger][index] = self.alone[ledger].last_pushed
        again = [last for last, _ in self.alone[ledger].frames_for(index, -1)]
        for pipelines in (self.lending, self.alone):
            for entry in again:
                pipelines[ledger].acked_run(index, entry, entry)
            pipelines[ledger].confirm()

    @rule(ledger=ledgers)
    def freeze(self, ledger: int) -> None:
        for pipelines in (self.lending, self.alone):
            pipelines[ledger].frozen = True

    @rule(ledger=ledgers)
    def thaw(self, ledger: int) -> None:
        for pipelines in (self.lending, self.alone):
            pipelines[ledger].frozen = False
            pipelines[ledger].confirm()

    @rule(number=st.integers(0, 5))
    def lose_order(self, number: int) -> None:
        for coalesced in self.sheaves[number : number + 1]:
            coalesced.end_in_disorder()

    @rule(ledger=ledgers)
    def compare(self, ledger: int) -> None:
        """Compare everything that can be observed."""
        one, other = self.lending[ledger], self.alone[ledger]
        assert one.unaccepted_since() == other.unaccepted_since()
        assert one.unconfirmed_bytes == other.unconfirmed_bytes
        assert one.idle == other.idle
        assert one.stored_through() == other.stored_through()
        for index in range(MEMBERS):
            assert one.outstanding_since(index) == other.outstanding_since(index)
            assert one.unacked_bytes(index) == other.unacked_bytes(index)
            frames = [list(p.frames_for(index, p.last_confirmed - 1)) for p in (one, other)]
            assert frames[0] == frames[1]

    @invariant()
    def confirmed_is_the_same_at_any_time(self) -> None:
        for one, other in zip(getattr(self, "lending", ()), getattr(self, "alone", ())):
            assert one.last_confirmed == one.accepted == other.last_confirmed
            assert (one.last_pushed, one.length) == (other.last_pushed, other.length)

    @invariant()
    def what_all_have_answered_holds_nothing(self) -> None:
        for coalesced in getattr(self, "sheaves", ()):
            if min(coalesced.acked_by) == len(coalesced):
                assert coalesced.over
            if coalesced.over:
                assert not coalesced._pieces


TestSheaves = Sheaves.TestCase
TestSheaves.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
