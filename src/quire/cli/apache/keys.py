"""The table of Apache's keys in `bk_server.toml`, as rules that can be applied.

`quire bookie start --bk-server-conf`, `quire bookie conf` and
docs/reference/apache-configuration.md use these rules.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from quire.cli.apache import rules
from quire.cli.apache.rules import Asked, KeyOutcome, Verdict, boolean, number, whole, words


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The meaning of one of Apache's keys."""

    verdict: Verdict
    """The verdict for the usual values of the key. `apply` may return another one."""
    text: str
    """The text about the key in docs/reference/apache-configuration.md: Quire's key and the
    conversion of the value, or the reason why Quire has no key for it."""
    apply: Callable[[Asked], KeyOutcome]
    """A function that decides about the value of the key in a file. It raises ValueError if the
    value is not possible."""


SECONDS = "milliseconds are converted to seconds"
NEVER = "0 or less means never"
CONVERSIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "text": (str, ""),
    "whole": (whole, ""),
    "number": (number, ""),
    "boolean": (boolean, ""),
    "words": (words, ""),
    "interval": (lambda text: max(0.0, number(text)), NEVER),
    "seconds_of_ms": (lambda text: number(text) / 1000, SECONDS),
    "positive_seconds_of_ms": (lambda text: max(0.0, number(text) / 1000), f"{SECONDS}; {NEVER}"),
    "script": (lambda text: f"script:{text}", "the value becomes `script:FILE`"),
    "table": (lambda text: f"table:{text}", "the value becomes `table:FILE`"),
}
"""The conversions from Apache's values to Quire's, by the name that `bk_server.toml` uses. Each has
its description for docs/reference/apache-configuration.md."""


def _rule(row: Mapping[str, str]) -> KeyRule:
    """Return the rule for one row of the table."""
    if "to" in row:
        return _taken(row["to"], row.get("as", "text"), row.get("how", ""))
    verdict, text = _verdict(row, ("taken", "implied", "ignored", "refused"))
    if "rule" in row:
        apply = getattr(rules, row["rule"])
        return KeyRule(
            verdict, text, partial(apply, row["argument"]) if "argument" in row else apply
        )
    if "unless" in row:
        return _always(text, row["unless"], *_verdict(row, ("ignored", "refused")))
    return KeyRule(verdict, text, lambda asked: KeyOutcome(verdict, text))


def _verdict(row: Mapping[str, str], among: tuple[Verdict, ...]) -> tuple[Verdict, str]:
    return next((verdict, row[verdict]) for verdict in among if verdict in row)


def _taken(name: str, conversion: str, how: str) -> KeyRule:
    convert, usual = CONVERSIONS[conversion]
    how = how or usual
    text = f"`{name}`" + (f"; {how}" if how else "")
    return KeyRule(
        "taken", text, lambda asked: KeyOutcome("taken", how, {name: convert(asked.value)})
    )


def _always(why: str, unless: str, verdict: Verdict, otherwise: str) -> KeyRule:
    """Return the rule of a key whose setting describes what every bookie of Quire does.

    The verdict is `implied`, for the reason `why`. If a file asks for the opposite with the value
    `unless`, it is `verdict`, for the reason `otherwise`.
    """

    def apply(asked: Asked) -> KeyOutcome:
        if boolean(asked.value) is boolean(unless):
            return KeyOutcome(verdict, otherwise)
        return KeyOutcome("implied", why)

    return KeyRule("implied", f"{why}. `{unless}` is {verdict}: {otherwise}", apply)


TABLE = tomllib.loads(Path(__file__).with_name("bk_server.toml").read_text(encoding="utf-8"))
RULES: dict[str, KeyRule] = {}
GROUPS: dict[str, list[str]] = {}
"""The names of the keys in `RULES`, by the title of the table that has them in
docs/reference/apache-configuration.md."""
for _group in TABLE["group"]:
    _names = GROUPS[_group["title"]] = []
    for _row in _group["rules"]:
        _names += _row["keys"].split()
        RULES |= dict.fromkeys(_row["keys"].split(), _rule(_row))
PREFIXES = {prefix: _rule({"ignored": why}) for prefix, why in TABLE["prefixes"].items()}
"""The rules that apply to all keys with a prefix, by prefix."""


def rule_of(name: str) -> KeyRule | None:
    """Return the rule for a key, or None if Apache has no such key."""
    if (rule := RULES.get(name)) is not None:
        return rule
    return next((rule for prefix, rule in PREFIXES.items() if name.startswith(prefix)), None)
