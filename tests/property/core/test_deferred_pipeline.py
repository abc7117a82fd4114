"""Entries that a force confirms are durable on an ack quorum, whatever members lost at any time.

The model records what each member has accepted and what it has on disk.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.codec.wire.v2 import add_request
from quire.core.append.deferred_pipeline import DeferredPipeline
from quire.core.append.pipeline import Block
from quire.core.append.quorum import write_set

KEY = bytes(20)


class Forces(RuleBasedStateMachine):
    """Members accept entries, force them, and lose what they have not forced when they fail."""

    @initialize(
        shape=st.sampled_from([(3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2), (3, 2, 1), (1, 1, 1)])
    )
    def begin(self, shape: tuple[int, int, int]) -> None:
        self.size, self.quorum, self.acks_needed = shape
        self.pipeline = DeferredPipeline(*shape)
        self.sent = [-1] * self.size
        self.inflight: list[list[int]] = [[] for _ in range(self.size)]
        self.volatile: list[set[int]] = [set() for _ in range(self.size)]
        self.durable: list[set[int]] = [set() for _ in range(self.size)]
        self.away: set[int] = set()
        self.failed: set[int] = set()
        self.force: tuple[int, int] | None = None
        self.answered: set[int] = set()
        self.accepted = self.confirmed = -1
        self.now = 0.0

    @rule(count=st.integers(1, 5))
    def push(self, count: int) -> None:
        first, length = self.pipeline.last_pushed + 1, self.pipeline.length
        data = b"".join(
            add_request(KEY, entry.to_bytes(40, "big")) for entry in range(first, first + count)
        )
        self.now += 1
        self.pipeline.push(
            Block(first, first + count - 1, (data,), length, length + 40 * count, self.now)
        )

    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        """Members are sent what they have to be sent, and accept it, or the first half of it."""
        for index in data.draw(st.sets(st.integers(0, self.size - 1), min_size=1)):
            if index not in self.away | self.failed:
                self.accept_some(index, data)

    def accept_some(self, index: int, data: st.DataObject) -> None:
        for block_last, frames in self.pipeline.frames_for(index, self.sent[index]):
            self.inflight[index] += [
                int.from_bytes(frames[at + 28 : at + 68], "big") for at in range(0, len(frames), 68)
            ]
            self.sent[index] = block_last
        waiting = len(self.inflight[index])
        count = data.draw(st.sampled_from([waiting, waiting // 2]))
        taken, self.inflight[index] = self.inflight[index][:count], self.inflight[index][count:]
        self.volatile[index].update(taken)
        self.pipeline.acked(index, taken)
        self.pipeline.confirm()

    # -- forces -------------------------------------------------------------------------------

    @precondition(lambda self: self.force is None and not self.pipeline.frozen)
    @rule()
    def send_force(self) -> None:
        self.force = (self.pipeline.stored_through(), self.pipeline.generation)
        self.answered = set()
        assert set(self.pipeline.present()) == set(range(self.size)) - self.away

    @precondition(lambda self: self.force is not None)
    @rule(indexes=st.sets(st.integers(0, 3), min_size=1))
    def answer_force(self, indexes: set[int]) -> None:
        for index in indexes:
            if index < self.size and index not in self.away | self.failed:
                self.durable[index] |= self.volatile[index]
                self.answered.add(index)

    @precondition(
        lambda self: (
            self.force is not None
            and self.answered >= set(range(self.size)) - self.away - self.failed
        )
    )
    @rule()
    def end_force(self) -> None:
        through, generation = self.force
        self.force = None
        if not self.pipeline.forced(through, generation):
            return
        for entry in range(self.confirmed + 1, through + 1):
            copies = sum(entry in self.durable[i] for i in write_set(entry, self.size, self.quorum))
            assert copies >= self.acks_needed, entry
        self.confirmed = through

    # -- failures -----------------------------------------------------------------------------

    @rule(index=st.integers(0, 3))
    def fail(self, index: int) -> None:
        """Its connection is lost, and with it what it has not forced."""
        if index < self.size and index not in self.away:
            self.volatile[index] = set(self.durable[index])
            self.inflight[index] = []
            self.failed.add(index)
            self.pipeline.frozen = True

    @precondition(lambda self: self.pipeline.frozen)
    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        """Each failed member comes back, is replaced by an empty one, or stays away."""
        for index in sorted(self.failed):
            if data.draw(st.booleans()):
                self.pipeline.park({index})
                self.away.add(index)
            else:
                self.back(index, data.draw(st.booleans()))
        self.failed.clear()
        self.pipeline.frozen = False
        self.pipeline.confirm()

    @rule(index=st.integers(0, 3), replaced=st.booleans())
    def come_back(self, index: int, replaced: bool) -> None:
        if index in self.away and not self.pipeline.frozen:
            self.away.discard(index)
            self.back(index, replaced)

    def back(self, index: int, replaced: bool) -> None:
        self.now += 1
        self.pipeline.restart({index}, self.now)
        self.sent[index] = self.pipeline.last_confirmed
        if replaced:
            self.volatile[index], self.durable[index] = set(), set()

    # -- laws ---------------------------------------------------------------------------------

    @invariant()
    def nothing_goes_back(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        assert self.pipeline.last_confirmed == self.confirmed <= self.pipeline.accepted
        assert self.pipeline.accepted >= self.accepted
        self.accepted = self.pipeline.accepted

    @invariant()
    def what_is_not_durable_is_held(self) -> None:
        """Everything not durable is kept, so that it can be sent to any new member."""
        if hasattr(self, "pipeline"):
            unforced = (self.pipeline.last_pushed - self.confirmed) * 40
            assert self.pipeline.unconfirmed_bytes >= unforced


TestForces = Forces.TestCase
TestForces.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
