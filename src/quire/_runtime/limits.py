"""The values that the fields of a settings dataclass may have.

The bounds of a field are part of its annotation, so they are written once. A class checks them when
a value is constructed. The configuration file, the environment and options are checked against the
same bounds.

    @dataclass(frozen=True, slots=True)
    class Settings:
        read_windows: PositiveInt = 4

        def __post_init__(self) -> None:
            check_fields(self, UsageError)
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

UNITS = (
    ("bytes_per_s", "bytes/s"),
    ("_bytes", "bytes"),
    ("_s", "seconds"),
    ("_percent", "percent"),
    ("_ratio", "share (0 to 1)"),
)
"""The unit of a field, by the ending of its name."""
INTEGER_MAX = 2**63 - 1
SECONDS_MAX = 1e9
"""The longest time that a setting may have, in seconds: about thirty years. Much longer timers
overflow."""
_SHOWN_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a number field, given in its annotation.

    A number field without them may be 0 or more.
    """

    least: float = 0
    most: float | None = None
    """The largest value. If it is None, messages name no largest value, and the technical bound in
    `FieldRule.most` applies."""
    or_zero: bool = False
    """Whether 0 is allowed although it is below `least`. It then has a special meaning, such as
    "no limit"."""
    choices: tuple[object, ...] = ()
    """The only values that are allowed. If it is empty, `least` and `most` apply instead."""


PositiveInt = Annotated[int, Limits(1)]
PositiveSeconds = Annotated[float, Limits(0.001)]
Share = Annotated[float, Limits(0, 1)]
_NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The values that one field of a settings dataclass may have."""

    name: str
    kind: str
    """The kind of value: boolean, integer, number, string, strings, mapping, location (a string or
    a mapping), or table (another settings dataclass)."""
    inner: Any
    """The Python type of the field's values other than None."""
    may_be_none: bool
    limits: Limits
    secret: bool
    """Whether the value is a secret that messages must not show."""

    @property
    def unit(self) -> str:
        if self.kind not in ("integer", "number"):
            return ""
        return next((unit for ending, unit in UNITS if self.name.endswith(ending)), "")

    @property
    def most(self) -> float:
        if self.limits.most is not None:
            return self.limits.most
        return SECONDS_MAX if self.unit == "seconds" else INTEGER_MAX

    def in_range(self, number: float) -> bool:
        known = self.limits.least <= number <= self.most or (number == 0 and self.limits.or_zero)
        return known and math.isfinite(number)

    def range_text(self, number: float = 0) -> str:
        """Return the range of allowed numbers as text, for the message that refuses `number`."""
        told = self.limits.most is not None or self.most < number < math.inf
        most = f" to {_plain(self.most)}" if told else " or more"
        zero = "0, or " if self.limits.or_zero else ""
        return f"{zero}{_plain(self.limits.least)}{most}"

    def accepts(self, value: object) -> bool:
        if value is None:
            return self.may_be_none
        if self.limits.choices:
            return any(value == one and type(value) is type(one) for one in self.limits.choices)
        if self.kind in ("integer", "number"):
            number = int if self.kind == "integer" else int | float
            typed = isinstance(value, number) and not isinstance(value, bool)
            return typed and self.in_range(value)  # type: ignore[arg-type]
        if self.kind == "location":
            return isinstance(value, str) or _is_mapping(value)
        if self.kind == "mapping":
            return _is_mapping(value)
        if self.kind == "strings":
            return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        return isinstance(value, self.inner)

    def allowed(self, value: object) -> str:
        """Return the allowed values as text, for the message that refuses `value`."""
        if self.limits.choices:
            *others, last = map(repr, self.limits.choices)
            text = f"{', '.join(others)} or {last}"
        elif self.kind in ("integer", "number"):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            unit = f" ({self.unit})" if self.unit else ""
            what = "a whole number" if self.kind == "integer" else "a number"
            bounds = self.range_text(value if number else 0)  # type: ignore[arg-type]
            text = f"{what}, {bounds}{unit}"
        elif self.kind == "table":
            text = f"a {self.inner.__name__}"
        else:
            text = {
                "boolean": "True or False",
                "string": "a text (str)",
                "strings": "a tuple of texts (str)",
                "mapping": "a mapping of texts to texts (str)",
                "location": "a text (str), or a mapping of texts to texts",
            }[self.kind]
        return f"{text}, or None" if self.may_be_none else text


@cache
def rules_of(settings: Hashable) -> Mapping[str, FieldRule]:
    """Return the rules of all fields of a settings dataclass, by name, in the order of the class.

    Raises:
        TypeError: A field has a type that no rule describes.
    """
    assert isinstance(settings, type)
    hints = get_type_hints(settings, include_extras=True)
    return {
        item.name: _rule(settings, item.name, hints[item.name], secret=not item.repr)
        for item in fields(settings)
    }


def check_fields(settings: Any, error: Callable[[str], Exception]) -> None:
    """Check every field of a settings dataclass, and raise `error` for the first that is wrong.

    Args:
        settings: The value that was constructed.
        error: The class of the error, which receives the message.
    """
    for rule in rules_of(settings.__class__).values():
        value = getattr(settings, rule.name)
        if not rule.accepts(value):
            where = f"{type(settings).__name__}.{rule.name}"
            what = "have the value that was given" if rule.secret else f"be {shown(value)}"
            raise error(f"{where} cannot {what}. Use {rule.allowed(value)}")


def _plain(number: float) -> str:
    """Return a number as people write it, without an exponent if it is whole."""
    return str(int(number)) if math.isfinite(number) and number == int(number) else f"{number:g}"


def shown(value: object) -> str:
    """Return the `repr` of a value for a message, cut to `_SHOWN_CHARACTERS_MAX` characters."""
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return text
    return text[: _SHOWN_CHARACTERS_MAX - 3] + "..."


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(one, str) for pair in value.items() for one in pair
    )


def _rule(settings: type, name: str, hint: Any, *, secret: bool) -> FieldRule:
    inner, may_be_none = _without_none(hint)
    limits = _NO_LIMITS
    if get_origin(inner) is Annotated:
        inner, limits = get_args(inner)
    if get_origin(inner) is Literal:
        limits, inner = Limits(choices=get_args(inner)), str
    return FieldRule(
        name, _kind_of(f"{settings.__name__}.{name}", inner), inner, may_be_none, limits, secret
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        others = [one for one in get_args(hint) if one is not type(None)]
        if len(others) == 1:
            return others[0], True
    return hint, False


def _kind_of(field: str, hint: Any) -> str:
    simple = {bool: "boolean", int: "integer", float: "number", str: "string"}
    if hint in simple:
        return simple[hint]
    if hint == tuple[str, ...]:
        return "strings"
    if hint == Mapping[str, str]:
        return "mapping"
    if hint == str | Mapping[str, str]:
        return "location"
    if is_dataclass(hint):
        return "table"
    raise TypeError(f"{field} has the type {hint}, which no field of a configuration can have")
