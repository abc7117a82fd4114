"""Read Apache's `bk_server.conf` and apply the table of keys to it.

The table in `keys` has a verdict for each key, which `rules.Verdict` explains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from quire._runtime.names.suggest import nearest
from quire.cli.apache.keys import RULES, rule_of
from quire.cli.apache.rules import Asked, HostFacts, KeyOutcome, ignored, refused, unsaid
from quire.configuration.layers import GivenValue, Layer

FILE_BYTES_MAX = 1024 * 1024
MEANS_UNSET = ("", "null")

_SEPARATOR = re.compile(r"(?<!\\)(\s*[=:]\s*|\s+)")


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a key in the file, and the line where it begins."""

    value: str
    line: int


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key of the file, and its meaning for Quire."""

    name: str
    value: str
    line: int
    outcome: KeyOutcome


def parse_properties(text: str) -> dict[str, Property]:
    """Parse Java properties: comments, continued lines, and `=`, `:` or blanks as separators.

    If a key occurs several times, the last one counts.

    Raises:
        ValueError: A value contains `${...}`, which Java would replace. The message names the line.
    """
    found: dict[str, Property] = {}
    whole, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        if not whole:
            if not stripped or stripped[0] in "#!":
                continue
            first = number
        whole += stripped
        if _continues(whole):
            whole = whole[:-1]
            continue
        name, value = _split(whole)
        if "${" in value:
            raise ValueError(
                f"line {first} sets {name} to {value!r}, and Java would replace the variable in "
                "it: write the variable's value instead"
            )
        found[name] = Property(value, first)
        whole = ""
    return found


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    separator = _SEPARATOR.search(line)
    if separator is None:
        return line, ""
    value = line[separator.end() :].replace("\\\\", "\\").replace("\\,", ",")
    return line[: separator.start()], value.strip()


def translate(properties: Mapping[str, Property], host: HostFacts) -> list[KeyLine]:
    """Return the meaning of each key of `bk_server.conf` for Quire, in the order of the file.

    At the end come the settings that Apache's bookie would use although the file does not name
    them. Their name is ''.
    """
    values = {name: one.value for name, one in properties.items() if one.value not in MEANS_UNSET}
    lines: list[KeyLine] = []
    for name, one in properties.items():
        rule = rule_of(name)
        if one.value in MEANS_UNSET:
            outcome = ignored("the key has no value")
        elif rule is None:
            near = nearest(name, RULES)
            hint = f"; did you mean {near}?" if near else ""
            outcome = ignored(f"Apache BookKeeper 4.18 has no such key{hint}")
        else:
            try:
                outcome = rule.apply(Asked(one.value, values, host))
            except ValueError as error:
                outcome = refused(f"{error}: correct the value, or remove the key")
        lines.append(KeyLine(name, one.value, one.line, outcome))
    lines += [KeyLine("", "", 0, outcome) for outcome in unsaid(Asked("", values, host))]
    return lines


def as_layer(lines: list[KeyLine], source: str) -> Layer:
    """Return the taken keys as a layer of configuration, with the refused keys as its problems.

    A refused key whose `KeyOutcome.keys` another layer may set is a problem only if none does.
    `source` names the file in messages.
    """
    layer = Layer()
    for one in lines:
        where = f"{source}:{one.line}" if one.line else source
        name = f"{one.name}={one.value}: " if one.name else ""
        if one.outcome.verdict == "refused":
            problem = f"{where}: {name}{one.outcome.why}"
            if one.outcome.keys:
                layer.needed |= dict.fromkeys(one.outcome.keys, problem)
            else:
                layer.problems.append(problem)
            continue
        for key, value in one.outcome.keys.items():
            layer.given[key] = GivenValue(value, f"{where} ({one.name})" if one.name else where)
    return layer
