"""Convert the values of a file, a variable or an option to the value of a key, and back to TOML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, time
from typing import Any

from quire._runtime.limits import shown
from quire._runtime.units import parse_duration, parse_size
from quire.configuration.fields import ConfigKey

NONE = "none"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def value_of(key: ConfigKey, given: object) -> Any:
    """Return the value of a key. `given` is a TOML value, or text from a variable or an option.

    Raises:
        ValueError: The value is not possible. The message says why in a few words.
    """
    if key.kind == "boolean":
        value: Any = None if key.may_be_none and given == NONE else _boolean(given)
    elif key.kind in ("integer", "number"):
        value = _number(key, given)
    elif key.kind == "strings":
        value = _strings(given)
    elif key.kind == "mapping" or (key.kind == "location" and isinstance(given, dict)):
        value = _mapping(given)
    elif isinstance(given, str):
        value = None if key.may_be_none and not given else given
    else:
        raise ValueError(f"{_said(given)} is not a string")
    if key.choices and value not in key.choices:
        raise ValueError(f"{_said(given)} is not one of {', '.join(map(str, key.choices))}")
    return value


def _said(given: object) -> str:
    """Return a value in the form in which a configuration file contains it, for a message."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, date | time):
        return given.isoformat()
    return shown(given)


def _boolean(given: object) -> bool:
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given.lower() in _BOOLEANS:
        return _BOOLEANS[given.lower()]
    raise ValueError(f"{_said(given)} is neither true nor false")


def _number(key: ConfigKey, given: object) -> float | None:
    if key.may_be_none and given == NONE:
        return None
    whole = key.kind == "integer"
    number = _from_text(key, given) if isinstance(given, str) else given
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{_said(given)} is not a {'whole number' if whole else 'number'}")
    # An integer of any length is whole, and one of 400 digits is no float.
    if whole and isinstance(number, float) and not number.is_integer():
        raise ValueError(f"{_said(given)} is not a whole number{_of(key)}")
    if not key.rule.in_range(number):
        raise ValueError(f"{_said(given)} is not {key.rule.range_text(number)}{_of(key)}")
    return int(number) if whole else float(number)


def _from_text(key: ConfigKey, text: str) -> float:
    """Return a number in the key's unit. The text may name another unit: 64MiB, 15m, 500ms."""
    try:
        return int(text) if key.kind == "integer" else float(text)
    except ValueError:
        pass
    if key.unit in ("bytes", "bytes/s"):
        return parse_size(text, least=-math.inf)
    if key.unit == "seconds":
        return parse_duration(text, least=-math.inf)
    raise ValueError(f"{text!r} is not a {'whole number' if key.kind == 'integer' else 'number'}")


def _of(key: ConfigKey) -> str:
    return f" ({key.unit})" if key.unit else ""


def _strings(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return tuple(part for part in (part.strip() for part in given.split(",")) if part)
    if isinstance(given, list | tuple) and all(isinstance(one, str) for one in given):
        return tuple(given)
    raise ValueError(f"{_said(given)} is not a list of strings")


def _mapping(given: object) -> dict[str, str]:
    if isinstance(given, str):
        pairs = [part.partition("=") for part in given.split(",") if part.strip()]
        if all(name.strip() and equals for name, equals, _ in pairs):
            return {name.strip(): value.strip() for name, _, value in pairs}
    elif isinstance(given, Mapping) and all(isinstance(one, str) for one in given.values()):
        return dict(given)
    raise ValueError(f"{_said(given)} is not a table of strings")


def as_toml(value: object) -> str:
    """Return a value in TOML's form. It must not be None, for which TOML has no form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{int(value):_}.0" if value.is_integer() and value >= 10_000 else repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, Mapping):
        pairs = (f"{_quoted(name)} = {as_toml(one)}" for name, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    return _quoted(str(value))


def _quoted(text: str) -> str:
    """Return a TOML string. TOML escapes as JSON does, and U+007F as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
