"""Quorum arithmetic compared with Apache's classes."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.append.quorum import bearable, covered, negatives_needed, stripe, write_set
from tests.support.metadata.golden import GOLDEN


def vectors(group: str) -> list[Any]:
    found = [vector for vector in GOLDEN["vectors"] if vector["group"] == group]
    assert len(found) == GOLDEN["groups"][group]
    return [pytest.param(vector, id=vector["name"]) for vector in found]


def shape(vector: dict[str, Any]) -> tuple[int, int, int]:
    inputs = vector["inputs"]
    return inputs["ensembleSize"], inputs["writeQuorumSize"], inputs["ackQuorumSize"]


@pytest.mark.parametrize("vector", vectors("write_set"))
def test_write_sets_equal_those_of_apache(vector: dict[str, Any]) -> None:
    size, quorum, _ = shape(vector)
    for entry, members in vector["writeSets"].items():
        assert list(write_set(int(entry), size, quorum)) == members
    for index, entries in vector["entriesStripedToBookie_10_to_21"].items():
        assert list(stripe(int(index), 10, 21, size, quorum)) == entries


KNOWN_ANSWERS = {0, -7, -13}
"""OK, no such ledger, no such entry (`clientCodes` of the vectors)."""


@pytest.mark.parametrize("vector", vectors("quorum_coverage"))
def test_coverage_equals_that_of_apache(vector: dict[str, Any]) -> None:
    if "cases" in vector:
        for case in vector["cases"]:
            known = {index for index, code in enumerate(case["rc"]) if code in KNOWN_ANSWERS}
            assert covered(known, 3, 3, 2) is case["covered"], case
        return
    size, quorum, acks = shape(vector)
    for known, expected in vector["covered"].items():
        indexes = {int(index) for index in known.split(",") if index}
        assert covered(indexes, size, quorum, acks) is expected, known


@pytest.mark.parametrize("vector", vectors("ack_set"))
def test_the_failures_an_entry_tolerates_equal_those_of_apache(vector: dict[str, Any]) -> None:
    size, quorum, acks = shape(vector)
    for failures, broken in enumerate(vector["ackQuorumBrokenAfterNthFailure"], 1):
        absent = set(write_set(0, size, quorum)[:failures])
        assert bearable(absent, size, quorum, acks) is not broken
        assert (failures >= negatives_needed(quorum, acks)) is broken
