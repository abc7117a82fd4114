"""The drawn knobs of a run, set while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from quire.errors import UsageError
from quire_simulator.knobs.drawing import DrawnKnob
from quire_simulator.knobs.table import knobs


@contextmanager
def applied(drawn: Iterable[DrawnKnob]) -> Iterator[None]:
    """Set these knobs, and put the defaults back at the end, whatever happens in between.

    Raises:
        UsageError: A knob does not exist.
    """
    table = knobs()
    undo: list[Callable[[], None]] = []
    try:
        for one in drawn:
            if one.name not in table:
                raise UsageError(
                    f"There is no knob {one.name!r}. Use the commit with which the plan was saved."
                )
            knob = table[one.name]
            undo.append(knob.set(knob.value(one.drawn)))
        yield
    finally:
        for put_back in reversed(undo):
            put_back()
