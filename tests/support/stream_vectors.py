"""The golden vectors of DistributedLog's format, by name, and which of them have a test."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in json.loads(
        (Path(__file__).parents[1] / "golden" / "distributedlog.json").read_text(encoding="utf-8")
    )["vectors"]
}
TESTED: set[str] = set()
"""Filled while the test modules are imported."""


def named(pattern: str) -> list[str]:
    names = [name for name in VECTORS if re.fullmatch(pattern, name)]
    assert names, pattern
    TESTED.update(names)
    return names


def data_of(vector: Mapping[str, Any]) -> bytes:
    if "hex" in vector:
        return bytes.fromhex(vector["hex"])
    return str(vector["text"]).encode()
