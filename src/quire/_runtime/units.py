"""Sizes, durations and counts in the form in which people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal

SIZE_UNITS = {
    f"{prefix}{ending}": 1024**power
    for power, prefix in enumerate(("", "k", "m", "g", "t"))
    for ending in (("", "b") if not prefix else ("", "b", "ib"))
}
"""The number of bytes in each unit, in lower case. Every unit is a power of 1024: k, KB and KiB
mean the same."""
DURATION_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
"""The number of seconds in each unit, in lower case."""
_SHOWN_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_PLAIN = {"s": "seconds", "ms": "milliseconds"}
_QUANTITY = r"([+-]?[\d_]*\.?[\d_]+(?:e[+-]?\d+)?) ?([a-z]*)"
_TEXT_MAX = 64
"""The largest number of characters of a size or a duration. A longer text is a mistake."""


def parse_size(text: str, *, least: float = 1) -> int:
    """Return the number of bytes that a text stands for: `65536`, `512k`, `64MiB`, `1.5g`.

    Args:
        text: A number of bytes, or a number and a unit. Case does not matter.
        least: The smallest size that is accepted, in bytes.

    Raises:
        ValueError: If the text is not a size, or the size is smaller than `least`.
    """
    found = _quantity(text, SIZE_UNITS, "")
    if found is None or not math.isfinite(found) or found != int(found):
        raise ValueError(f"{text!r} is not a size: use bytes, or 512KiB, 64MiB, 1GiB")
    if found < least:
        raise ValueError(f"{text!r} is too small: use at least {least:g} (in bytes)")
    return int(found)


def parse_duration(text: str, plain: Literal["s", "ms"] = "s", *, least: float = 0) -> float:
    """Return the number of seconds that a text stands for: `90`, `500ms`, `15m`, `1d`.

    Args:
        text: A number, or a number and a unit. Case does not matter.
        plain: The unit of a number that is written without a unit.
        least: The shortest duration that is accepted, in seconds.

    Raises:
        ValueError: If the text is not a duration, or the duration is shorter than `least`.
    """
    found = _quantity(text, DURATION_UNITS_S, plain)
    if found is None or not math.isfinite(found):
        use = f"use {_PLAIN[plain]}, or 500ms, 30s, 15m, 12h, 7d"
        raise ValueError(f"{text!r} is not a duration: {use}")
    if found < least:
        raise ValueError(f"{text!r} is too short: use at least {least:g} (in seconds)")
    return float(found)


def _quantity(text: str, units: Mapping[str, float], plain: str) -> float | None:
    """Return the number times its unit, or None if the text is not a number with a known unit."""
    found = re.fullmatch(_QUANTITY, text.strip().lower()) if len(text) <= _TEXT_MAX else None
    if found is None or (unit := found[2] or plain) not in units:
        return None
    number: float
    try:
        number = int(found[1])
    except ValueError:
        try:
            number = float(found[1])
        except ValueError:
            return None
    # Divide, because 0.001 has no exact binary representation.
    return number / 1000 if unit == "ms" else number * units[unit]


def size_text(size_bytes: float) -> str:
    """Return a size with a suitable unit: "512 B", "1.5 GB", "250 MB".

    Units are powers of 1000, as in the dashboard.
    """
    size, at = float(size_bytes), 0
    while size >= 1000 and at < len(_SHOWN_UNITS) - 1:
        size, at = size / 1000, at + 1
    return (
        f"{size:.1f} {_SHOWN_UNITS[at]}" if at and size < 100 else f"{size:.0f} {_SHOWN_UNITS[at]}"
    )


def percent_text(share: float) -> str:
    """Return a share from 0 to 1 as a percentage: "83 %", as in the dashboard."""
    return f"{share * 100:.0f} %"


def duration_text(seconds: float) -> str:
    """Return a duration with a suitable unit: "90 s", "75 min", "5 h", "3 d"."""
    for unit, unit_s, least_s in (("d", 86_400, 172_800), ("h", 3_600, 7_200), ("min", 60, 120)):
        if seconds >= least_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def host_port(host: str, port: int | str) -> str:
    """Return the address as HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def plural(noun: str, count: int) -> str:
    """Return the singular or plural of a noun for a count, without the count.

    For example "block" or "blocks", and "entry" or "entries".
    """
    if count == 1:
        return noun
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return the noun with its count: "1 block", "2,000 blocks"."""
    return f"{count:,} {plural(noun, count)}"


def are(count: int) -> str:
    """Return "is" for one thing, and "are" for any other number."""
    return "is" if count == 1 else "are"


def does(count: int) -> str:
    """Return "does" for one thing, and "do" for any other number."""
    return "does" if count == 1 else "do"


def them(count: int) -> str:
    """Return "it" for one thing, and "them" for any other number."""
    return "it" if count == 1 else "them"


def verb(word: str, count: int) -> str:
    """Return the form of a verb for a count: "names" or "has" for 1, otherwise "name" or "have"."""
    if count != 1:
        return word
    return "has" if word == "have" else f"{word}s"


NAMED_MAX = 5
"""The default for the largest number of names that `some_of` lists."""


def some_of(names: Iterable[str], limit: int = NAMED_MAX) -> str:
    """Return the first `limit` names and the number of the others, such as "b1, b2 and 3 more"."""
    known = list(names)
    more = len(known) - limit
    return ", ".join(known[:limit]) + (f" and {more} more" if more > 0 else "")


def listed(names: Iterable[str], count: int = 0, limit: int = NAMED_MAX) -> tuple[str, ...]:
    """Return the first `limit` names, and last how many more there are, such as "and 3 more".

    `count` is the number of all things, if it is larger than that of the names.
    """
    known = list(names)
    shown = known[:limit]
    more = max(count, len(known)) - len(shown)
    return (*shown, *([f"and {more} more"] if more > 0 else ()))


def end_text(last_entry: int) -> str:
    """Return the end of a ledger as a verb and its object: "ends at entry 6" or "has no entries".

    `last_entry` is the id of the last entry, or -1.
    """
    return "has no entries" if last_entry < 0 else f"ends at entry {last_entry}"


def acknowledged_text(last_entry: int) -> str:
    """Return the reason why an entry after `last_entry`, the last confirmed one or -1, is not read.

    The result is "only entries up to 6 are known to be acknowledged so far", for example.
    """
    if last_entry < 0:
        return "no entry is known to be acknowledged yet"
    return f"only entries up to {last_entry} are known to be acknowledged so far"


def utc_text(ms: int) -> str:
    """Return a Unix time in milliseconds as a date and time in UTC: `2026-11-28T15:34:54Z`.

    A time before the year 1 or after the year 9999 becomes a text such as `Unix time 1e+18 s`.
    """
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"Unix time {ms / 1000:g} s"
