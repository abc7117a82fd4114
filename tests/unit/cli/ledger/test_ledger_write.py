"""`quire ledger write`: a ledger whose id cannot be shown."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from quire.cli.ledger.write import show_id


def test_an_id_that_cannot_be_printed_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a full disk, or a reader that had ended, an open ledger was left that nobody knew."""
    writer: Any = SimpleNamespace(ledger_id=7, last_add_confirmed=-1)

    def broken() -> None:
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=len, flush=broken))
    with pytest.raises(BrokenPipeError):
        show_id(writer)
    assert capsys.readouterr().err == (
        "standard output cannot be written. Ledger 7 was left open; no entry is acknowledged. "
        "`quire ledger recover 7` closes it\n"
    )
