"""Answers of other processes, from which only known values of the right types are taken.

The address of a bookie's HTTP server comes from its registration. Anybody who can register a bookie
chooses which server answers at the address.
"""

from __future__ import annotations

import json
from typing import Any

TEXT_MAX = 1_000
"""The largest number of characters of a text that is taken."""
ITEMS_MAX = 512
"""The largest number of items of a list that is taken."""
NUMBER_MAX = 2**63 - 1
"""The largest number that is taken, and the largest below zero."""


def taken(text: str, shape: Any) -> Any:
    """Return the values of a JSON text that the shape names.

    A shape is a type, a list with the shape of its items, or a dictionary of shapes by name. Names
    that the shape does not have are left out. Missing lists are empty, because another version of
    Quire may not have them, and other missing values are None. Texts are cut after
    `TEXT_MAX` characters, and lists after `ITEMS_MAX` items. Raises ValueError if the text is not
    JSON, a value has another type than in the shape, or a number is beyond `NUMBER_MAX`.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    return _taken(found, shape)


def _taken(value: Any, shape: Any) -> Any:
    if isinstance(shape, dict) and isinstance(value, dict):
        return {name: _named(value.get(name), inner) for name, inner in shape.items()}
    if isinstance(shape, list) and isinstance(value, list):
        return [_taken(one, shape[0]) for one in value[:ITEMS_MAX]]
    mistyped = isinstance(shape, dict | list) or not isinstance(value, shape)
    if mistyped or (isinstance(value, bool) and shape is not bool):
        raise ValueError(f"the answer has {str(value)[:80]!r}, which is of a wrong type")
    if isinstance(value, int) and abs(value) > NUMBER_MAX:
        raise ValueError("the answer has a number of more than 64 bits")
    return value[:TEXT_MAX] if isinstance(value, str) else value


def _named(value: Any, shape: Any) -> Any:
    if value is None:
        return [] if isinstance(shape, list) else None
    return _taken(value, shape)
