"""How people write counts."""

from __future__ import annotations

import pytest

from quire.units import are, counted, plural


@pytest.mark.parametrize(
    ("noun", "several"),
    [
        ("ledger", "ledgers"),
        ("entry", "entries"),
        ("key", "keys"),
        ("batch", "batches"),
        ("damaged block", "damaged blocks"),
    ],
)
def test_counts_and_their_nouns(noun: str, several: str) -> None:
    assert counted(1, noun) == f"1 {noun}"
    assert [counted(n, noun) for n in (0, 2)] == [f"0 {several}", f"2 {several}"]
    assert (plural(noun, 1), plural(noun, 3)) == (noun, several)


def test_their_verb() -> None:
    assert [are(n) for n in (0, 1, 2)] == ["are", "is", "are"]
