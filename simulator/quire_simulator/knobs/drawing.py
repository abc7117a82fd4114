"""The knobs that a run turns, and the values that they get."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from quire_simulator.knobs.table import knobs

SHARES = (0.0, 0.01, 0.01, 0.03, 0.03, 0.1, 0.1, 0.4)
"""The choices for the share of all knobs that one run draws. With few, a failure has few causes,
and the rest of the run is as usual. With many, limits meet that never met before."""


@dataclass(frozen=True, slots=True)
class DrawnKnob:
    """A knob with the number that a run uses."""

    name: str
    drawn: float

    def __str__(self) -> str:
        knob = knobs().get(self.name)
        usual = "" if knob is None else f" instead of {_plain(knob.largest)}"
        return f"Knob {self.name}={_plain(self.drawn)}{usual}"


KNOBS_VARIABLE = "QUIRE_SIM_KNOBS"
"""The environment variable that is 0 for runs without knobs."""


def draw_knobs(seed: int, workload: str) -> tuple[DrawnKnob, ...]:
    """Draw knobs for a run.

    The generators belong to the knobs alone, and each knob has its own. So the other decisions of a
    plan do not depend on the knobs, and the numbers of a knob do not depend on the other knobs.
    """
    share = random.Random(f"{seed}/knobs {workload}").choice(SHARES)
    drawn = []
    for name, knob in knobs().items() if share else ():
        chance = random.Random(f"{seed}/knob {name} {workload}")
        if chance.random() < share:
            number = knob.draw(chance)
            if number != knob.largest:
                drawn.append(DrawnKnob(name, number))
    return tuple(drawn)


def drawn_settings(drawn: tuple[DrawnKnob, ...], kind: str) -> dict[str, Any]:
    """Return the drawn fields of one settings class, by their names."""
    begin, found = f"{kind}.", knobs()
    return {
        one.name.removeprefix(begin): found[one.name].value(one.drawn)
        for one in drawn
        if one.name.startswith(begin)
    }


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)
