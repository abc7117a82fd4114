"""Thrift structs in TJSONProtocol, as far as bindings and access rights need it.

A struct is one flat object without blanks: `{"<field id>":{"<type>":<value>}, ...}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

BOOL, I64, TEXT = "tf", "i64", "str"
Value = int | str
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BLANK = re.compile(r"\s")


def write_struct(fields: Iterable[tuple[int, str, Value]]) -> str:
    """Return the text of a struct with these fields, each given as (id, type, value)."""
    return "{" + ",".join(_field(*field) for field in fields) + "}"


def _field(number: int, kind: str, value: Value) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(int(value))
    return f'"{number}":{{"{kind}":{text}}}'


def read_struct(text: str, kinds: Mapping[int, str]) -> dict[int, Value]:
    """Return the values of the fields in `kinds`, by field id.

    Other fields, and fields of another type, are skipped, as in Thrift. `kinds` has the type of
    each field id.

    Raises:
        ValueError: The text is not a struct, a value does not have the type that is given with it,
            or there is whitespace between two tokens, which Java's reader refuses as well.
    """
    if _BLANK.search(_STRING.sub('""', text)):
        raise ValueError("its JSON has whitespace between tokens, which DistributedLog refuses")
    try:
        struct: object = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(struct, dict):
        raise ValueError("its content is not a JSON object")
    found: dict[int, Value] = {}
    for name, field in struct.items():
        if not isinstance(name, str) or not re.fullmatch(r"\d{1,5}", name, re.ASCII):
            raise ValueError(f"its JSON has the key {name!r}, which is not the number of a field")
        if not isinstance(field, dict) or len(field) != 1:
            raise ValueError(
                f"field {name} of its JSON does not have exactly one type with a value"
            )
        ((kind, value),) = field.items()
        number = int(name)
        if kinds.get(number) != kind:
            continue
        if not isinstance(value, str if kind == TEXT else int) or isinstance(value, bool):
            raise ValueError(f"field {name} of its JSON is {value!r}, but its type is {kind}")
        found[number] = value
    return found


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice in its JSON")
    return made


def _no_constant(name: str) -> object:
    raise ValueError(f"its JSON contains {name}, which no field can hold")
