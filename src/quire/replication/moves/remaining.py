"""What a finished job did not do, why, and what to do about it.

A job that moves replicas does not fail because of single ledgers. It continues with the others, and
its result says which are left. People must not take such a job for a complete one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quire._runtime.names.in_commands import command_with
from quire._runtime.units import are, counted, plural, some_of
from quire.metadata.ledgers.unreadable import REMEDY
from quire.replication.moves.decommission import Decommissioned
from quire.replication.moves.rebalance import Rebalanced
from quire.replication.moves.recover import RecoverResult, RemainingLedger

REASONS_MAX = 5
"""The largest number of reasons that `Remaining` names."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """The part of a job that was not done."""

    counts: str
    """What is counted: "ledgers", or "replicas" for a rebalancing."""
    done: int
    """The number of ledgers or replicas that were moved."""
    left: int
    """The number of those that were not."""
    reasons: tuple[str, ...]
    """The first reasons. Each names its ledgers."""
    remedy: str
    """What to do, in full sentences. Commands are in backquotes."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "reasons": list(self.reasons)}

    def sentence(self) -> str:
        """Return `2 ledgers are left: REASON; REASON`."""
        noun = counted(self.left, self.counts.removesuffix("s"))
        return f"{noun} {are(self.left)} left: {'; '.join(self.reasons)}"


def lines_of(left: Sequence[RemainingLedger]) -> list[str]:
    """Return one line for each reason, with the ids of ledgers that were left for this reason."""
    by_reason: dict[str, list[int]] = {}
    for one in left:
        by_reason.setdefault(one.why, []).append(one.ledger)
    return [
        f"{plural('ledger', len(ledgers))} {some_of(map(str, ledgers))}: {why}"
        for why, ledgers in by_reason.items()
    ]


def all_left(result: RecoverResult, *, open_skipped: bool) -> list[RemainingLedger]:
    """Return each readable ledger that still names the bookie, with the reason.

    `open_skipped` says that the job left open ledgers alone, so that it is not known whether they
    have writers.
    """
    why = "the job leaves open ledgers alone" if open_skipped else "its writer is active"
    return [
        *result.failed,
        *(RemainingLedger(one, f"it is open, and {why}") for one in result.open),
        *(RemainingLedger(one, "another process is copying its replicas") for one in result.locked),
    ]


def left_by_recover(result: RecoverResult) -> Remaining | None:
    """Return what a recovery did not do, or None if it is complete or was a dry run."""
    again = command_with("quire bookie recover", result.bookie)
    return _left(result, f"Start the job again to copy the others: it continues there (`{again}`).")


def left_by_decommission(result: Decommissioned) -> Remaining | None:
    """Return what a decommissioning did not do, or None if it is complete or was a dry run."""
    moved = result.moved
    command = "quire bookie decommission"
    again = command_with(command, moved.bookie)
    state = (
        f"The cookie of bookie {moved.bookie} is removed, but ledgers may still name it."
        if result.cookie_removed
        else f"Bookie {moved.bookie} stays read-only and keeps its cookie."
    )
    text = f"{state} Start the job again to go on: it continues there (`{again}`)."
    if not result.cookie_removed:
        cancel = command_with(command, moved.bookie, "--cancel")
        text += f" To make the bookie writable again, run `{cancel}`."
    return _left(moved, text)


def still_runs(result: Decommissioned) -> str:
    """Return what to do if a decommissioned bookie still runs, or ''."""
    if not result.cookie_removed or result.ended:
        return ""
    return f"The process of bookie {result.moved.bookie} is still running: stop it now."


def left_by_rebalance(result: Rebalanced) -> Remaining | None:
    """Return what a rebalancing did not do, or None if it made all moves or was a dry run."""
    if result.dry_run or not result.left:
        return None
    return Remaining(
        "replicas",
        result.moved,
        len(result.left),
        _first(lines_of(result.left)),
        "The moves that were made stay. Start the job again to make the others "
        "(`quire cluster rebalance`).",
    )


def _left(result: RecoverResult, again: str) -> Remaining | None:
    """Return what a job did not do. `again` says how to start it again."""
    left = all_left(result, open_skipped=False)
    count = len(left) + result.unreadable_count
    if result.dry_run or not count:
        return None
    done = max(0, len(result.moves) - len(left))
    reasons = lines_of([*left, *result.unreadable])
    return Remaining("ledgers", done, count, _first(reasons), _remedy(result, again))


def _first(reasons: Sequence[str]) -> tuple[str, ...]:
    if len(reasons) <= REASONS_MAX:
        return tuple(reasons)
    more = counted(len(reasons) - REASONS_MAX, "further reason")
    return (*reasons[:REASONS_MAX], f"and {more}")


def _remedy(result: RecoverResult, again: str) -> str:
    """Return advice for each kind of ledger that is left, and then `again`."""
    advice = []
    if result.failed:
        ledger = result.failed[0].ledger
        advice.append(
            "Add a bookie, or start those that the reasons name "
            f"(`quire explain ledger {ledger}` says what a ledger lacks)."
        )
    if result.open:
        advice.append("Wait until the writers have closed the open ledgers.")
    if result.locked:
        advice.append("Wait until the other process has copied the locked ledgers.")
    if result.unreadable_count:
        advice.append(f"Ledgers whose metadata cannot be read may name the bookie. {REMEDY}.")
    return " ".join([*advice, again])
