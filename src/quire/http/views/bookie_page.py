"""One bookie for people: its problems, and what an operator can do with it.

The functions are pure: they read only their arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.http.views.bookie_list import disk_fullness
from quire.http.views.problems.problem import Problem
from quire.metadata.bookies.orders import Order, What
from quire.metadata.bookies.unwritable import FULL

Report = Mapping[str, Any]
"""A report as `bookie_report` describes it."""


def actions(
    bookie: Mapping[str, Any],
    report: Report | None,
    order: Order | None,
    missing: str,
    *,
    unneeded: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return what an operator can do with a bookie: for each action, whether it is possible.

    The actions are `read_only`, `writable`, `decommission`, `take_back` and `recover`. If an action
    is not possible, `why` says why not. `order` is the operator's order to the bookie, or None if
    there is none. `missing` is the reason why `report` is None. `unneeded` says that no ledger
    names the bookie.
    """
    gone = bookie["state"] == "gone"
    retired = order is not None and order.what is What.RETIRED
    held = report is not None and bool(report["held_readonly"])
    loading = report is not None and report["state"] == "loading"
    unreachable = "" if report is not None else missing
    full = report is not None and any(one["why"] == FULL for one in report["unwritable"])
    return {
        "read_only": _action(
            ("It is read-only already", bookie["state"] == "read-only"),
            ("It is not registered", gone),
            (unreachable, bool(unreachable)),
        ),
        "writable": _action(
            (unreachable or "It is not registered", gone or bool(unreachable)),
            ("It is starting", loading),
            ("It is writable already", bookie["state"] == "writable" and not held),
            ("Its disk is full, and it is writable again when there is room", full and not held),
            ("No operator made it read-only over HTTP", not held),
        ),
        "decommission": _action(
            ("Its decommissioning is complete", retired),
        ),
        "take_back": _action(
            ("It is not being decommissioned", order is None),
            ("Its decommissioning is complete", retired),
        ),
        "recover": _action(
            (
                "It is registered, so its data is not lost. To empty it while it runs, "
                "decommission it",
                not gone,
            ),
            ("No ledger uses it, so nothing is lost. To remove it, decommission it", unneeded),
        ),
    }


def _action(*refusals: tuple[str, bool]) -> dict[str, Any]:
    why = next((why for why, holds in refusals if holds), "")
    return {"possible": not why, "why": why}


def with_fullness(report: Report | None) -> dict[str, Any] | None:
    """Return the report with the `fullness` of each directory's disk (see `disk_fullness`).

    Return None if there is no report.
    """
    if report is None:
        return None
    directories = [
        {**one, "fullness": disk_fullness(one["free_bytes"], one["total_bytes"])}
        for one in report["directories"]
    ]
    return {**report, "directories": directories}


def problems_of(bookie_id: str, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems of a cluster that are about this bookie."""
    return [one for one in problems if bookie_id in one.bookies]
