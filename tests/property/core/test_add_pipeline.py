"""The add pipeline's watermarks, compared with a record per entry.

A member's acknowledgement of an entry counts once all earlier entries of its stripe are
acknowledged. Out-of-order answers, which Java would count at once, wait. That is the cost of the
watermark.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.codec.wire.v2 import add_request
from quire.core.append.pipeline import AddPipeline, Block
from quire.core.append.quorum import stripe, write_set

KEY = bytes(20)


def frame(entry_id: int) -> bytes:
    return add_request(KEY, entry_id.to_bytes(40, "big"))


class Pipeline(RuleBasedStateMachine):
    """Members acknowledge in order, out of order and twice; some are replaced; some go away."""

    @initialize(
        shape=st.sampled_from([(3, 3, 2), (3, 2, 2), (5, 2, 2), (5, 3, 2), (4, 4, 1), (1, 1, 1)]),
        start=st.integers(-1, 9),
    )
    def begin(self, shape: tuple[int, int, int], start: int) -> None:
        self.size, self.quorum, self.acks_needed = shape
        self.pipeline = AddPipeline(*shape, last_confirmed=start)
        self.sent = [start] * self.size
        self.inflight: list[list[int]] = [[] for _ in range(self.size)]
        self.acked: list[set[int]] = [set() for _ in range(self.size)]
        self.base = [start] * self.size
        self.parked: set[int] = set()
        self.lac = start
        self.now = 0.0

    @rule(count=st.integers(1, 7))
    def push(self, count: int) -> None:
        first = self.pipeline.last_pushed + 1
        last = first + count - 1
        data = b"".join(frame(entry) for entry in range(first, last + 1))
        length = self.pipeline.length
        self.now += 1
        self.pipeline.push(Block(first, last, (data,), length, length + count * 40, self.now))

    @rule(index=st.integers(0, 4))
    def send(self, index: int) -> None:
        """A member may connect long after others have confirmed what it is to store."""
        if index < self.size and index not in self.parked:
            before = self.sent[index]
            for block_last, frames in self.pipeline.frames_for(index, self.sent[index]):
                entries = [
                    int.from_bytes(frames[at + 28 : at + 68], "big")
                    for at in range(0, len(frames), 68)
                ]
                assert entries == [
                    e for e in entries if index in write_set(e, self.size, self.quorum)
                ]
                assert entries == sorted(set(entries))
                self.inflight[index].extend(entries)
                self.sent[index] = block_last
            sent = [e for e in self.inflight[index] if e > before]
            assert sent == list(
                stripe(index, before + 1, self.pipeline.last_pushed, self.size, self.quorum)
            )

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.size - 1))
        waiting = self.inflight[index]
        if not waiting:
            return
        count = data.draw(st.integers(1, len(waiting)))
        order = data.draw(st.sampled_from(["front", "back", "mixed", "twice"]))
        if order == "back":
            taken = waiting[-count:]
        elif order == "mixed":
            taken = data.draw(st.permutations(waiting))[:count]
        else:
            taken = waiting[:count]
        self.inflight[index] = [e for e in waiting if e not in set(taken)]
        self.acked[index].update(taken)
        consecutive = taken == list(range(taken[0], taken[0] + len(taken)))
        if order == "front" and consecutive and self.size == self.quorum:
            self.pipeline.acked_run(index, taken[0], taken[-1])
        else:
            self.pipeline.acked(index, taken * 2 if order == "twice" else taken)
        self.pipeline.confirm()

    @precondition(lambda self: not self.pipeline.frozen)
    @rule()
    def freeze(self) -> None:
        self.pipeline.frozen = True

    @precondition(lambda self: self.pipeline.frozen)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        indexes = data.draw(st.sets(st.integers(0, self.size - 1), max_size=self.size))
        self.now += 1
        self.pipeline.restart(indexes, self.now)
        for index in indexes:
            self.parked.discard(index)
            self.inflight[index] = []
            self.acked[index] = set()
            self.sent[index] = self.base[index] = self.pipeline.last_confirmed
        self.pipeline.frozen = False
        self.pipeline.confirm()

    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.size - 1))
        self.parked.add(index)
        self.inflight[index] = []
        self.pipeline.park({index})

    def acked_through(self, index: int, entry: int) -> bool:
        return all(
            e in self.acked[index]
            for e in range(self.base[index] + 1, entry + 1)
            if index in write_set(e, self.size, self.quorum)
        )

    @invariant()
    def confirmed_is_what_the_quorums_say(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        if not self.pipeline.frozen:
            while self.lac < self.pipeline.last_pushed:
                entry = self.lac + 1
                votes = sum(
                    self.acked_through(i, entry) for i in write_set(entry, self.size, self.quorum)
                )
                if votes < self.acks_needed:
                    break
                self.lac = entry
        assert self.pipeline.last_confirmed == self.lac

    @invariant()
    def what_is_outstanding_is_known(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        for index in range(self.size):
            if index in self.parked:
                assert self.pipeline.outstanding_since(index) is None
            elif self.inflight[index]:
                assert self.pipeline.outstanding_since(index) is not None
                assert self.pipeline.unacked_bytes(index) >= 40
            elif self.acked_through(index, self.pipeline.last_pushed):
                # This includes a member that has no part in the last entries.
                assert self.pipeline.outstanding_since(index) is None
                assert self.pipeline.unacked_bytes(index) == 0


TestPipeline = Pipeline.TestCase
TestPipeline.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
