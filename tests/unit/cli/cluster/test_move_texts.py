"""The sentences about jobs that copy the ledgers of a bookie."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
from click.testing import CliRunner

import quire.spark.jobs.recover  # noqa: F401 - the test replaces a function of it
from quire.cli.bookie.moves import _text
from quire.cli.common.moves import (
    LINES_MAX,
    done_text,
    planned_text,
    say_first,
    say_what_is_left,
)
from quire.cli.main import cli
from quire.cli.pipeline.job import PipelineJob
from quire.replication.moves.decommission import Decommissioned
from quire.replication.moves.recover import RecoverResult
from quire.replication.repair.bookie_removal import LedgerMove


def test_a_plan_calls_its_bytes_an_estimate() -> None:
    """They are computed from the mean size of an entry: one byte more was announced than copied."""
    part = LedgerMove(7, 1, 241, 2_169, open=False)
    growing = LedgerMove(8, 1, 5, 0, open=True)
    assert planned_text(RecoverResult("b", True, (part, growing))).splitlines() == [
        "ledger 7: 1 segment, 241 entries, about 2,169 bytes",
        "ledger 8: 1 segment, 5 entries, an unknown number of bytes, still open",
        "2 ledgers have replicas on b: 246 entries, about 2,169 bytes would be copied; "
        "1 of these ledgers still open",
    ]


def test_a_plan_without_entries_does_not_call_its_bytes_unknown() -> None:
    """A bookie that has nothing was said to have an unknown number of bytes."""
    assert planned_text(RecoverResult("b", True, ())) == (
        "no ledger has replicas on b: nothing would be copied"
    )
    empty = LedgerMove(7, 1, 0, 0, open=False)
    assert planned_text(RecoverResult("b", True, (empty,))).splitlines() == [
        "ledger 7: 1 segment, 0 entries, 0 bytes",
        "1 ledger has replicas on b: 0 entries, 0 bytes would be copied; "
        "0 of these ledgers still open",
    ]


@pytest.mark.parametrize(
    ("done", "all_of_them", "told"),
    [
        (0, 1, "0 of 1 ledger no longer uses b: "),
        (1, 1, "1 of 1 ledger no longer uses b: "),
        (0, 2, "0 of 2 ledgers no longer use b: "),
        (1, 2, "1 of 2 ledgers no longer uses b: "),
        (0, 0, "0 of 0 ledgers no longer use b: "),
    ],
)
def test_the_verb_agrees_with_the_number_of_ledgers(done: int, all_of_them: int, told: str) -> None:
    moves = tuple(LedgerMove(id_, 1, 1, 1, open=False) for id_ in range(all_of_them))
    assert done_text(RecoverResult("b", False, moves, ledgers=done), open_skipped=False).startswith(
        told
    )


@pytest.mark.parametrize(
    ("skipped", "line", "told"),
    [
        (False, "ledger 7: it is open, and its writer is active\n", "; 1 still being written"),
        (True, "ledger 7: it is open, and the job leaves open ledgers alone\n", "; 1 still open"),
    ],
)
def test_a_skipped_ledger_is_not_reported_as_having_a_writer(
    skipped: bool, line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = RecoverResult("b", False, (LedgerMove(7, 1, 1, 1, open=True),), open=(7,))
    say_what_is_left(result, open_skipped=skipped)
    assert capsys.readouterr().err == line
    assert done_text(result, open_skipped=skipped).endswith(told)


def test_recover_with_spark_names_the_unrecovered_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It named only those that failed, although the exit status was 1 because of the others."""
    moves = (LedgerMove(7, 1, 1, 1, open=True), LedgerMove(8, 1, 1, 1, open=False))
    result = RecoverResult("b:1", False, moves, open=(7,), locked=(8,))
    job = sys.modules["quire.spark.jobs.recover"]
    monkeypatch.setattr(job, "recover", lambda *arguments, **options: result)
    monkeypatch.setattr(PipelineJob, "session", lambda self, target: nullcontext((None, None)))
    words = ["pipeline", "recover", "b:1", "--metadata", "memory://x", "--leave-open"]
    done = CliRunner().invoke(cli, words)
    assert (done.exit_code, done.stderr.splitlines()) == (
        1,
        [
            "ledger 7: it is open, and the job leaves open ledgers alone",
            "ledger 8: another process is copying its replicas",
            "the job is incomplete. The copies that were made stay. To make the others, run the "
            "same command again",
        ],
    )


def test_omitted_lines_are_counted_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """They were called ledgers, of which one line names many. A rebalance did not count them."""
    say_first([f"ledgers 1, 2: reason {number}" for number in range(LINES_MAX)])
    assert "more" not in capsys.readouterr().err
    say_first([f"ledgers 1, 2: reason {number}" for number in range(LINES_MAX + 2)])
    told = capsys.readouterr().err.splitlines()
    assert (len(told), told[-1]) == (LINES_MAX + 1, "... and 2 lines more")


def test_a_decommissioned_bookie_leaves_a_location_that_is_named() -> None:
    """The location of a bookie that was replaced stayed in the table for ever."""
    found = Decommissioned(
        RecoverResult("b;x", False, ()), True, drained=True, cookie_removed=True, ended=True
    )
    told = _text(found, keep_cookie=False, open_skipped=False, location="/rack-b")
    assert told.endswith(
        "Its location /rack-b is still in the table. To remove it: quire cluster locations remove "
        "'b;x'"
    )
    assert "location" not in _text(found, keep_cookie=False, open_skipped=False)
    assert "location" not in _text(found, True, False, "/rack-b"), "it may come back"
