"""The golden vectors are complete: a truncated or edited file must not pass unnoticed.

The counts are the documented ones. They change only together with the vectors themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[2] / "golden"

DOCUMENTED_COUNTS = {
    "wire.json": 208,
    "wire-live.json": 102,
    "metadata.json": 307,
    "distributedlog.json": 131,
    "record-envelope.json": 24,
}


def load(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def vectors(name: str) -> list[dict[str, Any]]:
    """Two of the files are a plain list, two an object with the list under `vectors`."""
    content = load(name)
    found = content["vectors"] if isinstance(content, dict) else content
    assert isinstance(found, list)
    return found


def test_every_golden_file_is_documented() -> None:
    assert {path.name for path in GOLDEN.glob("*.json")} == set(DOCUMENTED_COUNTS)


@pytest.mark.parametrize("name", sorted(DOCUMENTED_COUNTS))
def test_every_golden_file_has_the_documented_number_of_vectors(name: str) -> None:
    assert len(vectors(name)) == DOCUMENTED_COUNTS[name]


@pytest.mark.parametrize("name", sorted(DOCUMENTED_COUNTS))
def test_vector_names_are_unique(name: str) -> None:
    repeated = [n for n, count in Counter(v["name"] for v in vectors(name)).items() if count > 1]
    assert repeated == []


def test_counts_stated_in_the_golden_files_are_right() -> None:
    assert load("distributedlog.json")["count"] == DOCUMENTED_COUNTS["distributedlog.json"]
    metadata = load("metadata.json")
    assert metadata["groups"] == Counter(v["group"] for v in metadata["vectors"])


def test_wire_vectors_match_their_own_checksums() -> None:
    """Long vectors keep only a prefix of their bytes: the others can be checked here."""
    complete = [v for v in vectors("wire.json") if "hex_prefix" not in v]
    assert len(complete) == 182
    for vector in complete:
        payload = bytes.fromhex(vector["hex"])
        assert len(payload) == vector["length"], vector["name"]
        assert hashlib.sha256(payload).hexdigest() == vector["sha256"], vector["name"]
