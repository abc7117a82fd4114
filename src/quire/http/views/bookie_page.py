"""One bookie for people: why it accepts no entries, and what an operator can do with it.

The functions are pure: they read only their arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from quire.http.views.problems import Problem
from quire.metadata.bookies.orders import Order, What

Report = Mapping[str, Any]
"""A report as `bookie_report` describes it."""


def reasons(
    bookie: Mapping[str, Any], report: Report | None, order: Order | None
) -> list[dict[str, str]]:
    """Return why a bookie accepts no entries: for each reason, what it is and what to do next.

    Args:
        bookie: The bookie, as `bookie_facts` describes it.
        report: Its report about itself, or None if there is none.
        order: The order of an operator to it, or None.
    """
    name = shlex.quote(bookie["id"])
    if bookie["state"] == "gone":
        return [
            _reason(
                "It is not registered: its process is stopped, or cut off from the metadata store",
                "quire bookie start --dir DIR",
            )
        ]
    if report is not None:
        return [_of_hindrance(one, name) for one in report["hindrances"] or () if one]
    if order is not None:
        return [_of_order(order, name)]
    if bookie["state"] == "writable":
        return []
    return [
        _reason(
            "It does not say why: its disk may be full or damaged, or an operator made it "
            "read-only",
            "Look for the event read_only in its log",
        )
    ]


def _reason(what: str, following: str) -> dict[str, str]:
    return {"what": what, "next": following}


def _of_hindrance(one: Mapping[str, Any], name: str) -> dict[str, str]:
    what, directory = str(one["what"]), one.get("directory") or ""
    what = f"{what[:1].upper()}{what[1:]}"
    if one["kind"] == "loading":
        return _reason(what, "Wait until it has loaded its log")
    if one["kind"] == "operator":
        return _reason(what, "Make it writable on its page in the dashboard, or start it again")
    if one["kind"] == "order":
        return _reason(what, f"quire bookie decommission {name} --cancel")
    return _reason(
        f"{directory}: {what}", f"quire bookie explain space {shlex.quote(directory or 'DIR')}"
    )


def _of_order(order: Order, name: str) -> dict[str, str]:
    if order.what is What.RETIRED:
        return _reason(f"It was decommissioned by {order.by}", "Its process ends by itself")
    return _reason(
        f"It is being decommissioned, as {order.by} ordered",
        f"quire bookie decommission {name} --cancel",
    )


def actions(
    bookie: Mapping[str, Any], report: Report | None, order: Order | None, missing: str
) -> dict[str, dict[str, Any]]:
    """Return what an operator can do: for each action, whether it is possible, and why not.

    The actions are `read_only`, `writable`, `decommission`, `take_back` and `recover`. `missing`
    says why there is no report.
    """
    gone = bookie["state"] == "gone"
    retired = order is not None and order.what is What.RETIRED
    held = report is not None and bool(report["held_readonly"])
    loading = report is not None and report["state"] == "loading"
    unreachable = "" if report is not None else missing
    return {
        "read_only": _action(
            ("It is read-only already", bookie["state"] == "read-only"),
            ("It is not registered", gone),
            (unreachable, bool(unreachable)),
        ),
        "writable": _action(
            (unreachable or "It is not registered", gone or bool(unreachable)),
            ("It is starting", loading),
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
        ),
    }


def _action(*refusals: tuple[str, bool]) -> dict[str, Any]:
    why = next((why for why, holds in refusals if holds), "")
    return {"possible": not why, "why": why}


def problems_of(bookie_id: str, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems of a cluster that name this bookie."""
    # An id may be part of another one: 10.0.0.1:318 of 10.0.0.1:3181.
    name = re.compile(rf"(?<![\w.:-]){re.escape(bookie_id)}(?![\w.-]|:\d)")
    return [one for one in problems if name.search(one.what)]
