"""One knob: a number of Quire that a run may draw, where it is, and its bounds."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from typing import Any

from quire._runtime.retry import Backoff

EXTREME = 0.2
"""The probability that a drawn knob has its smallest value."""
DIGITS = 6
"""The significant digits of a drawn time. Fewer digits than `float` has make a plan readable, and
hide differences between the mathematical libraries of two machines."""


@dataclass(frozen=True)
class Knob:
    """A number that a run may draw between `least` and the default.

    A constant is set in its module and in each module that imports it by name. The field of a
    settings class is the default of a parameter of `__init__`.
    """

    home: str
    """The module below `quire`, or a module of the simulator."""
    name: str
    """The name of the constant, or CLASS.FIELD for a setting."""
    least: float
    """The smallest legal value. If a legal value makes an invariant pointless, it is larger, and
    the table has the reason."""
    most: float | None = None
    """The largest value, if it is not the default of the code."""
    also: tuple[str, ...] = ()
    """The other modules that have the constant under the same name, because they import it."""
    parameters: tuple[str, ...] = ()
    """The parameters whose default is the constant, as MODULE:FUNCTION.PARAMETER. Python evaluates
    a default once, so it has to be set as well."""
    frozen: str = ""
    """Other values that Python computed from the constant when it imported the module. They keep
    the default, which does no harm."""
    multiple: int = 1
    """The number of which every value of the knob is a multiple."""
    derived: tuple[tuple[str, Callable[[Any], Any]], ...] = ()
    """The constants of the same module that are computed from this one, and how."""

    @property
    def key(self) -> str:
        """The name of the knob in a plan: CLASS.FIELD, or the constant with its module."""
        return self.name if self.of_settings else f"{self.home}.{self.name}"

    @property
    def of_settings(self) -> bool:
        return "." in self.name

    @property
    def module(self) -> str:
        """The full name of the module."""
        return self.home if self.home.startswith("quire_simulator.") else f"quire.{self.home}"

    @cached_property
    def default(self) -> Any:
        """The value in the code: an int, a float, or a `Backoff`."""
        home = import_module(self.module)
        if not self.of_settings:
            return getattr(home, self.name)
        kind, _, field = self.name.partition(".")
        return next(one.default for one in fields(getattr(home, kind)) if one.name == field)

    @property
    def default_number(self) -> float:
        """The default as a number. Of a `Backoff`, it is the first pause."""
        found = self.default.first_s if isinstance(self.default, Backoff) else self.default
        return float(found)

    @property
    def largest(self) -> float:
        return self.default_number if self.most is None else self.most

    def draw(self, chance: random.Random) -> float:
        """Return a number between the bounds, each order of magnitude with the same probability."""
        extreme, where = chance.random(), chance.random()
        if extreme < EXTREME:
            return self.least
        # The sizes of windows and batches differ by orders of magnitude. Uniform values would
        # nearly all be too large to reach a boundary.
        low = self.least or (1.0 if isinstance(self.default, int) else self.largest / 1_000)
        number = low * (self.largest / low) ** where
        if isinstance(self.default, int):
            whole = max(int(number) // self.multiple * self.multiple, int(self.least))
            return float(min(whole, self.largest))
        return float(f"{number:.{DIGITS}g}")

    def value(self, number: float) -> Any:
        """Return what the code gets: an int, a float, or a `Backoff` with shorter pauses."""
        if isinstance(self.default, Backoff):
            share = number / self.default.first_s
            most = self.default.most_s
            return Backoff(number, most if most == math.inf else most * share, self.default.jitter)
        return int(number) if isinstance(self.default, int) else number

    def set(self, value: object) -> Callable[[], None]:
        """Set the number everywhere, and return a function that undoes this."""
        undo: list[Callable[[], None]] = []
        if self.of_settings:
            kind, _, field = self.name.partition(".")
            undo.append(set_parameter(f"{self.home}:{kind}.__init__.{field}", value))
        else:
            for place in (self.module, *self.also):
                undo.append(_set_name(place, self.name, value))
            undo += [set_parameter(parameter, value) for parameter in self.parameters]
            for name, compute in self.derived:
                undo.append(_set_name(self.module, name, compute(value)))

        def put_back() -> None:
            for one in reversed(undo):
                one()

        return put_back


class RareBranch(Knob):
    """A branch that a run takes on purpose: the probability that a seam of the simulator takes it.

    The code of Quire has no switch for it. The simulator hands in the disks, the network, the
    workers and the metadata store, and these take the branch. Without the knob, the probability is
    the default of the simulator. It is drawn between that and `most`.
    """

    @property
    def largest(self) -> float:
        return self.default_number

    def draw(self, chance: random.Random) -> float:
        """Return a probability above the default."""
        assert self.most is not None
        extreme, where = chance.random(), chance.random()
        if extreme < EXTREME:
            return self.most
        low = max(self.least, self.most / 100)
        return float(f"{low * (self.most / low) ** where:.{DIGITS}g}")


def _set_name(place: str, name: str, value: object) -> Callable[[], None]:
    module = import_module(place)
    before = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, before)


def set_parameter(where: str, value: object) -> Callable[[], None]:
    """Change the default of a parameter, and return a function that undoes this."""
    function, parameter = function_of(where)
    before = function.__defaults__, function.__kwdefaults__
    signature = inspect.signature(function)
    if signature.parameters[parameter].kind is inspect.Parameter.KEYWORD_ONLY:
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), parameter: value}
    else:
        with_default = [
            one.name
            for one in signature.parameters.values()
            if one.default is not one.empty and one.kind is not one.KEYWORD_ONLY
        ]
        at = with_default.index(parameter)
        defaults = function.__defaults__ or ()
        function.__defaults__ = (*defaults[:at], value, *defaults[at + 1 :])

    def put_back() -> None:
        function.__defaults__, function.__kwdefaults__ = before

    return put_back


def function_of(where: str) -> tuple[Any, str]:
    """Return the function and the name of the parameter that MODULE:FUNCTION.PARAMETER names."""
    home, _, path = where.partition(":")
    *steps, parameter = path.split(".")
    found: Any = import_module(home if home.startswith("quire_simulator.") else f"quire.{home}")
    for step in steps:
        # `was_in_milliseconds` wraps the method that the dataclass made.
        found = inspect.unwrap(getattr(found, step))
    return found, parameter


def limits(home: str, **least: float) -> tuple[Knob, ...]:
    """Return the knobs of one module with nothing special: constants and their smallest values."""
    return tuple(Knob(home, name, number) for name, number in least.items())


def settings(home: str, kind: str, **bounds: float | tuple[float, float]) -> tuple[Knob, ...]:
    """Return the knobs of one settings class.

    Each field has its smallest value, or the smallest value and that of a run without the knob, if
    the simulator does not use the default.
    """
    pairs = {name: one if isinstance(one, tuple) else (one, None) for name, one in bounds.items()}
    return tuple(Knob(home, f"{kind}.{name}", *pair) for name, pair in pairs.items())
