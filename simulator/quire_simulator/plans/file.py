"""A plan as a file, from which others can repeat a failing run, and as readable lines.

The file is JSON: `{"quire": ..., "law": ..., "plan": {...}}`. The plan follows its dataclasses
field by field. A plan of another version of Quire with other fields is refused, not guessed at.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from quire.errors import UsageError
from quire_simulator.knobs.drawing import DrawnKnob
from quire_simulator.plans.faults import Fault
from quire_simulator.plans.plans import RunPlan


def dump_plan(plan: RunPlan, **about: str) -> str:
    """Return the plan as JSON, with `about` for the reader: version, commit, invariant."""
    return json.dumps({**about, "plan": plan_as_data(plan)}, indent=1) + "\n"


def load_plan(text: str) -> RunPlan:
    """Read a plan.

    Raises:
        UsageError: The text is not a plan of this version.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"The file is not a plan: {error}") from None
    if not isinstance(found, dict) or "plan" not in found:
        raise UsageError("The file is not a plan: it has no field 'plan'.")
    try:
        plan = _value(RunPlan, found["plan"])
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The file is not a plan of this version of Quire: {error}. "
            "Use the commit with which it was saved."
        ) from None
    assert isinstance(plan, RunPlan)
    return plan


def plan_as_data(value: object) -> Any:
    """Return lists, objects and scalars, with bytes as hexadecimal digits."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plan_as_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plan_as_data(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


@cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields."""
    return get_type_hints(kind)


def _value(hint: Any, data: object) -> object:
    if isinstance(hint, types.UnionType):
        if data is None:
            return None
        (hint,) = [part for part in get_args(hint) if part is not type(None)]
        return _value(hint, data)
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), data)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _object(hint, data)
    if hint is bytes and isinstance(data, str):
        return bytes.fromhex(data)
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if type(data) is not hint:
        raise TypeError(f"{data!r} is not of type {hint.__name__}")
    return data


def _tuple(parts: tuple[Any, ...], data: object) -> tuple[object, ...]:
    if not isinstance(data, list):
        raise TypeError(f"{data!r} is not a list")
    if len(parts) == 2 and parts[1] is ...:
        return tuple(_value(parts[0], item) for item in data)
    return tuple(_value(part, item) for part, item in zip(parts, data, strict=True))


def _object(kind: type, data: object) -> object:
    if not isinstance(data, dict):
        raise TypeError(f"{data!r} is not a {kind.__name__}")
    hints = hints_of(kind)
    # Earlier versions saved plans without the fields that have a default.
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if wrong := ", ".join(sorted((set(data) - set(hints)) | (needed - set(data)))):
        raise ValueError(f"{kind.__name__} has unknown or missing fields: {wrong}")
    return kind(**{name: _value(hints[name], value) for name, value in data.items()})


# -- as lines ---------------------------------------------------------------------------------


def describe_plan(plan: RunPlan) -> Iterator[str]:
    """Describe a plan: one line for the whole, and one for each client's work and each fault."""
    yield _in_words(plan)
    for field in fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            for item in value:
                plain = isinstance(item, Fault | DrawnKnob)
                yield f"  {str(item).strip() if plain else _in_words(item)}"


def _in_words(value: Any) -> str:
    """Return the fields that are set, without those that have lines of their own."""
    told = []
    for field in fields(value):
        item = getattr(value, field.name)
        nested = isinstance(item, tuple) and bool(item) and is_dataclass(item[0])
        if nested or item in (None, (), "", b"") or item is False:
            continue
        if isinstance(item, tuple):
            item = ",".join(map(str, item))
        told.append(field.name if item is True else f"{field.name}={item}")
    return " ".join([type(value).__name__, *told])
