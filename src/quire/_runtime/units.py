"""Sizes, durations and counts as people write them."""

from __future__ import annotations

import re

SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_size(text: str) -> int:
    """In bytes, one at least. ValueError."""
    found = re.fullmatch(r"(\d+)([kmg]?)b?", text.lower())
    if found is None:
        raise ValueError(f"{text!r} is no size: use bytes, or 512k, 64m, 1g")
    number = int(found[1])
    if number < 1:
        raise ValueError(f"{number} is less than 1")
    return number * SIZE_UNITS[found[2]]


def parse_duration(text: str) -> float:
    """In seconds. ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text.lower())
    if found is None:
        raise ValueError(f"{text!r} is no duration: use 500ms, 30s, 15m or 1h")
    return float(found[1]) * DURATION_UNITS_S[found[2]]


def host_port(host: str, port: int | str) -> str:
    """Return the address as HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def plural(noun: str, count: int) -> str:
    """Without the count: "block", "blocks"; of "entry" "entries", "batch" "batches"."""
    if count == 1:
        return noun
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """With the count: "1 block", "2 blocks"."""
    return f"{count} {plural(noun, count)}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"
