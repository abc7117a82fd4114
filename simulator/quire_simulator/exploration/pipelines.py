"""The states of the real `AddPipeline`, each with a number.

A step copies the object of a state, calls the real method and looks up the number of the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from quire.core.append.pipeline import AddPipeline, Block
from quire_simulator.exploration.values import Add, Table

T = TypeVar("T")

CHECKED = {"coalesced", "row", "_places", "_alone_until", "_restarted_at"}
"""Attributes that do not differ between states here, or have no influence. The exploration attaches
no coalesced adds, and its clock stands still."""


class Pipelines:
    """The states of the pipelines of one shape."""

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._shape = ensemble_size, write_quorum, ack_quorum
        self._striped = ensemble_size != write_quorum
        self._keys: Table[tuple[object, ...]] = Table()
        self._objects: list[AddPipeline] = []
        self._memo: dict[tuple[object, ...], Any] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def _number(self, pipeline: AddPipeline) -> int:
        number = self._keys.number(_key(pipeline))
        if number == len(self._objects):
            self._objects.append(pipeline)
        return number

    def _copy(self, number: int) -> AddPipeline:
        return copy.deepcopy(self._objects[number])

    def _once(self, key: tuple[object, ...], step: Callable[[], T]) -> T:
        """Take a step, or return what it returned before."""
        if key not in self._memo:
            self._memo[key] = step()
        found: T = self._memo[key]
        return found

    def new(self, last_confirmed: int = -1) -> int:
        """Return a pipeline after this entry."""
        return self._number(AddPipeline(*self._shape, last_confirmed, last_confirmed + 1))

    def confirmed(self, number: int) -> int:
        """Return the last confirmed entry."""
        return self._objects[number].last_confirmed

    def pushed(self, number: int) -> int:
        """Return the last entry that was pushed."""
        return self._objects[number].last_pushed

    def outstanding(self, number: int, index: int) -> bool:
        """Return whether something is outstanding on a member."""
        return self._objects[number].outstanding_since(index) is not None

    def of_member(self, number: int, index: int) -> tuple[object, ...]:
        """Return what a pipeline knows about one member."""
        pipeline = self._objects[number]
        cursor = pipeline._cursors[index]
        ahead = tuple(sorted(pipeline._ahead.get(index, ())))
        first = -1 if cursor is None else cursor.first
        return pipeline._next[index], ahead, first, index in pipeline._parked

    def permuted(self, number: int, order: tuple[int, ...]) -> int:
        """Return the pipeline with other indexes. `order` has the old index of each new index."""

        def step() -> int:
            pipeline = self._copy(number)
            _permuted(pipeline, order)
            return self._number(pipeline)

        return self._once(("permuted", number, order), step)

    def ended(self, number: int) -> int:
        """Return a frozen pipeline that has confirmed as much, and knows nothing else."""

        def step() -> int:
            pipeline = AddPipeline(*self._shape, self._objects[number].last_confirmed)
            pipeline.frozen = True
            return self._number(pipeline)

        return self._once(("ended", number), step)

    def stores(self, number: int, index: int, entry: int) -> bool:
        """Return whether a member stores an entry."""
        return bool(self._objects[number].stripe(index, entry, entry))

    def push(self, number: int, lac: int) -> tuple[int, Add]:
        """Push the next entry, which carries this LAC."""

        def step() -> tuple[int, Add]:
            pipeline = self._copy(number)
            entry, length = pipeline.last_pushed + 1, pipeline.length
            data = bytes((entry, lac + 1))
            pipeline.push(Block(entry, entry, (data,), length, length + 1, 0.0))
            return self._number(pipeline), (entry, lac)

        return self._once(("push", number, lac), step)

    def acked(self, number: int, index: int, entry: int) -> int:
        """Count an acknowledgement and confirm what is possible, as `AddSession` does."""

        def step() -> int:
            pipeline = self._copy(number)
            if self._striped:  # Member.on_acked
                pipeline.acked(index, (entry,))
                pipeline.confirm()
            elif pipeline.acked_run(index, entry, entry):  # Member.on_acked_run
                pipeline.confirm()
            return self._number(pipeline)

        return self._once(("acked", number, index, entry), step)

    def frozen(self, number: int, *, frozen: bool) -> int:
        """Freeze the pipeline, or release it and confirm what is possible."""

        def step() -> int:
            pipeline = self._copy(number)
            pipeline.frozen = frozen
            if not frozen:
                pipeline.confirm()
            return self._number(pipeline)

        return self._once(("frozen", number, frozen), step)

    def confirms(self, number: int) -> bool:
        """Return whether `confirm` would confirm more."""
        return self._once(("confirms", number), lambda: self._copy(number).confirm())

    def park(self, number: int, indexes: Iterable[int]) -> int:
        """Park members."""
        chosen = tuple(indexes)

        def step() -> int:
            pipeline = self._copy(number)
            pipeline.park(chosen)
            return self._number(pipeline)

        return self._once(("park", number, chosen), step)

    def restart(
        self, number: int, indexes: Iterable[int], *, same: bool = False
    ) -> tuple[int, dict[int, tuple[Add, ...]]]:
        """Restart members. Return what each of them is sent, as `Member.send_backlog` sends it."""
        chosen = tuple(indexes)

        def step() -> tuple[int, dict[int, tuple[Add, ...]]]:
            pipeline = self._copy(number)
            pipeline.restart(chosen, 0.0, same=same)
            restarted = self._number(pipeline)
            sent = {}
            for index in chosen:
                frames = pipeline.frames_for(index, pipeline.unowed(index))
                sent[index] = tuple((data[0], data[1] - 1) for _, data in frames)
            return restarted, sent

        return self._once(("restart", number, chosen, same), step)


def _permuted(pipeline: AddPipeline, order: tuple[int, ...]) -> None:
    """Give the members other indexes. All members of an unstriped ensemble are treated alike."""
    places = {old: new for new, old in enumerate(order)}
    pipeline._next = [pipeline._next[old] for old in order]
    pipeline._cursors = [pipeline._cursors[old] for old in order]
    pipeline._ahead = {places[index]: ahead for index, ahead in pipeline._ahead.items()}
    pipeline._parked = frozenset(places[index] for index in pipeline._parked)
    pipeline._restarted_at = {}


def _key(pipeline: AddPipeline) -> tuple[object, ...]:
    """Return everything that a pipeline's behaviour depends on."""
    values: list[object] = []
    for name in AddPipeline.__slots__:
        if name in CHECKED:
            continue
        value = getattr(pipeline, name)
        if isinstance(value, Block):
            value = _chain(value)
        elif isinstance(value, list):
            value = tuple(_chain(one) if isinstance(one, Block) else one for one in value)
        elif isinstance(value, dict):
            value = tuple(sorted((index, tuple(sorted(ahead))) for index, ahead in value.items()))
        elif isinstance(value, frozenset):
            value = tuple(sorted(value))
        values.append(value)
    assert pipeline.coalesced is None
    assert not any(pipeline._restarted_at.values())
    return tuple(values)


def _chain(block: Block | None) -> tuple[tuple[int, bytes], ...]:
    """Return a block and those after it."""
    found = []
    while block is not None:
        found.append((block.first, bytes(block.pieces[0])))
        block = block.next
    return tuple(found)
