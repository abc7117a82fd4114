"""What commands print about ledgers without entries, which have no last entry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quire.cli import explain
from quire.cli.bookie import disk
from quire.cli.ledger import manage
from quire.storage.inspect.contents import LedgerDescription


def test_ledger_show_of_an_empty_ledger() -> None:
    described: dict[str, Any] = {
        "ledger_id": 7, "state": "CLOSED", "last_entry_id": -1, "length": 0, "ensemble": 1,
        "write_quorum": 1, "ack_quorum": 1, "digest": "CRC32C", "ctime": None, "custom": {},
        "segments": [{"first_entry_id": 0, "last_entry_id": -1, "bookies": ["a:1"]}],
    }  # fmt: skip
    lines = manage._lines(described, ())
    assert "last entry    none" in lines
    assert "segment       0.. (no entries) a:1" in lines
    described["segments"][0]["last_entry_id"] = described["last_entry_id"] = None
    assert {"last entry    unknown", "segment       0.. a:1"} <= {*manage._lines(described, ())}
    described["segments"][0]["last_entry_id"] = described["last_entry_id"] = 0
    assert {"last entry    0", "segment       0..0 a:1"} <= {*manage._lines(described, ())}


def test_explain_of_an_empty_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "pasteable", str)
    replica = SimpleNamespace(
        bookie="a:1", state="good", entries=0, host=None, registered="", bad=()
    )
    segment = SimpleNamespace(first=0, last=-1, closed=True, replicas=(replica,))
    found: Any = SimpleNamespace(
        ledger=7, state="CLOSED", last_entry=-1, quorums=(1, 1, 1), segments=(segment,), mark=None,
        verdict=SimpleNamespace(sentence="Nothing is lost", command=""), deep=True,
    )  # fmt: skip
    assert explain._ledger_lines(found)[0].startswith("ledger 7: closed; no entries; ens")
    found.state, segment.closed = "OPEN", False
    first, second, *_ = explain._ledger_lines(found)
    assert "hangs; no entry is known to be acknowledged yet; ens" in first
    assert second == "segment from entry 0, without acknowledged entries so far, still open"
    found.last_entry = 4
    assert "acknowledged up to entry 4 or further; ens" in explain._ledger_lines(found)[0]


def test_bookie_disk_of_an_empty_ledger() -> None:
    found = LedgerDescription(7, False, True, -1, -1, False, None, (), False)
    assert disk._ledger_lines(found, runs=False) == [
        "ledger 7: not fenced, its master key is known, no entry is known to be confirmed",
        "no entries; 0 bytes",
    ]
