"""What a finished job did not do, in words."""

from __future__ import annotations

from dataclasses import replace

from quire.replication.moves.decommission import Decommissioned
from quire.replication.moves.rebalance import Rebalanced
from quire.replication.moves.rebalance_plan import RebalancePlan
from quire.replication.moves.recover import LedgerMove, RecoverResult, RemainingLedger
from quire.replication.moves.remaining import (
    REASONS_MAX,
    left_by_decommission,
    left_by_rebalance,
    left_by_recover,
    still_runs,
)

MOVES = tuple(LedgerMove(one, 1, 10, 1_000, False) for one in range(7, 13))
DONE = RecoverResult("b:1", False, MOVES, ledgers=6)


def test_a_complete_job_or_a_dry_run_leaves_nothing() -> None:
    assert left_by_recover(DONE) is None
    assert left_by_decommission(Decommissioned(DONE, True, drained=True)) is None
    assert left_by_recover(replace(DONE, dry_run=True, ledgers=0)) is None


def test_each_kind_of_remaining_ledger_has_its_reason_and_advice() -> None:
    result = replace(
        DONE, ledgers=2, open=(7,), locked=(8,), unreadable_count=3,
        failed=(RemainingLedger(9, "no bookie"), RemainingLedger(10, "no bookie")),
        unreadable=(RemainingLedger(20, "damaged"),),
    )  # fmt: skip
    found = left_by_recover(result)
    assert found is not None
    assert (found.counts, found.done, found.left) == ("ledgers", 2, 7)
    assert found.reasons == (
        "ledgers 9, 10: no bookie",
        "ledger 7: it is open, and its writer is active",
        "ledger 8: another process is copying its replicas",
        "ledger 20: damaged",
    )
    for part in (
        "Add a bookie", "`quire explain ledger 9`", "writers have closed", "other process",
        "restore it from a backup", "`quire bookie recover b:1`",
    ):  # fmt: skip
        assert part in found.remedy, part
    assert found.sentence().startswith("7 ledgers are left: ledgers 9, 10: no bookie; ledger 7:")


def test_an_incomplete_decommission_says_in_which_state_the_bookie_is() -> None:
    moved = replace(DONE, ledgers=5, failed=(RemainingLedger(7, "no bookie"),))
    found = left_by_decommission(Decommissioned(moved, True))
    assert found is not None
    assert "stays read-only and keeps its cookie" in found.remedy
    assert "`quire bookie decommission b:1 --cancel`" in found.remedy
    late = left_by_decommission(Decommissioned(moved, True, cookie_removed=True))
    assert late is not None
    assert "cookie of bookie b:1 is removed" in late.remedy
    assert "--cancel" not in late.remedy


def test_a_decommissioned_bookie_that_runs_is_to_be_stopped() -> None:
    done = Decommissioned(DONE, True, drained=True, cookie_removed=True)
    assert still_runs(done) == "The process of bookie b:1 is still running: stop it now."
    assert still_runs(replace(done, ended=True)) == ""
    assert still_runs(Decommissioned(DONE, True, drained=True)) == "", "its cookie was to be kept"


def test_the_moves_that_a_rebalancing_left_are_counted_as_replicas() -> None:
    plan = RebalancePlan((), {}, {})
    left = tuple(RemainingLedger(one, f"why {one}") for one in range(9))
    found = left_by_rebalance(Rebalanced(False, plan, moved=3, left=left))
    assert found is not None
    assert (found.counts, found.done, found.left) == ("replicas", 3, 9)
    assert len(found.reasons) == REASONS_MAX + 1
    assert found.reasons[-1] == "and 4 further reasons"
    assert left_by_rebalance(Rebalanced(False, plan, moved=3)) is None
    assert not Rebalanced(False, plan, left=left).as_json()["complete"]
