"""What commands on a bookie's directories print of copies of entries and missing segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quire.cli.bookie.disk import _ledger_lines
from quire.cli.main import cli
from quire.storage.inspect import scrub_report
from quire.storage.inspect.contents import LedgerDescription, LedgerInSegment
from quire.storage.segment.extents import FrameExtent


def run(first: int, count: int, offset: int) -> FrameExtent:
    return FrameExtent(7, first, offset, count, 100, None, None)


def test_a_segment_with_a_duplicate_entry_shows_its_last_entry() -> None:
    """The line of the segment ended at the last entry of the last run: 0..5."""
    part = LedgerInSegment(1, True, (run(0, 10, 0), run(5, 1, 1_000)))
    found = LedgerDescription(7, False, True, 9, 8, False, None, (part,), False)
    assert "  segment 1 (sealed): entries 0..9 in 2 runs, 1,100 bytes" in _ledger_lines(
        found, False
    )


def test_a_log_with_a_missing_segment_is_not_said_to_be_undamaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the problem came the line `nothing is damaged`."""

    class Scrub:
        total_bytes, problems = 0, ("segment 3 is missing",)

        def __init__(self, disk: object) -> None: ...

        def segments(self, read: object) -> list[Any]:
            return []

    monkeypatch.setattr(scrub_report, "DirectoryScrub", Scrub)
    (tmp_path / "current").mkdir()
    done = CliRunner().invoke(cli, ["bookie", "scrub", str(tmp_path)])
    assert done.exit_code == 1
    assert "damage: segment 3 is missing\n" in done.stdout
    assert done.stdout.endswith("are not damaged, but the log is incomplete\n")
