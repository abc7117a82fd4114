"""The problems of bookies that are lost or do not answer, and the way to start them again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.units import are, counted, does, some_of, verb
from quire.http.views.problems.autorecovery import healing
from quire.http.views.problems.problem import Bookie, Problem
from quire.replication.explain.at_risk import AtRisk

DEFAULT_PORT = 3181
"""The port of a bookie that was started without `--port`."""
ALONE = "alone"
"""The name of the group of those lost bookies that are not part of a lost location."""


def lost_groups(bookies: Sequence[Bookie]) -> dict[str, list[str]]:
    """Return the bookies that are gone, in groups.

    If a location has several bookies and all of them are gone, they form a group with the name of
    the location. All other lost bookies are in the group `ALONE`.
    """
    members: dict[str, list[Bookie]] = {}
    for one in bookies:
        if one["location"]:
            members.setdefault(one["location"], []).append(one)
    groups = {
        location: [one["id"] for one in those]
        for location, those in members.items()
        if len(those) > 1 and all(one["state"] == "gone" for one in those)
    }
    alone = [
        one["id"] for one in bookies if one["state"] == "gone" and one["location"] not in groups
    ]
    return {**groups, **({ALONE: alone} if alone else {})}


def of_lost_bookies(
    bookies: Sequence[Bookie], autorecovery: Mapping[str, Any], risk: AtRisk | None, now_ms: int
) -> Iterator[Problem]:
    """Yield the problems of bookies that are gone, and of a cluster without a writable bookie."""
    writable = sum(one["state"] == "writable" for one in bookies)
    if not writable:
        yield Problem(
            "bad",
            "No bookie accepts entries: nothing can be written",
            "quire bookie start --dir DIR",
        )
    for group, names in lost_groups(bookies).items():
        told: dict[str, Any] = {
            "risk": _risk(risk, group),
            "bookies": tuple(names),
            "doing": healing(autorecovery, names, _lacking(risk, group), now_ms),
        }
        if group != ALONE:
            yield Problem(
                "bad",
                f"All bookies of {group} are gone: {some_of(names)}",
                "Check the power and the network there, and start the bookies again. To restore "
                "their copies elsewhere now: quire autorecovery trigger",
                **told,
            )
        else:
            # Without a ledger that needs it, the bookie only has to be removed from the cluster.
            empty = _lacking(risk, group) == 0
            command = "decommission" if empty else "recover"
            yield Problem(
                "note" if empty else "bad",
                f"{some_of(names)} {are(len(names))} not registered: stopped, or cut off from the "
                "metadata store",
                f"{_start_again(next(one for one in bookies if one['id'] == names[0]), names)}. If "
                f"{'it is' if len(names) == 1 else 'one is'} lost for good: "
                f"quire bookie {command} {names[0] if len(names) == 1 else 'BOOKIE'}",
                **told,
            )


def of_silent_bookies(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    """Yield the problem of registered bookies that do not answer."""
    silent = [one["id"] for one in bookies if one["state"] != "gone" and one["answers"] is False]
    if silent:
        yield Problem(
            "bad",
            f"{some_of(silent)} {are(len(silent))} registered but {does(len(silent))} not answer",
            "Check its log and the network to it. If it hangs, stop it: then it counts as lost",
            "Readers use the copies on other bookies, and writers replace it in their ensembles",
            "Nothing: autorecovery does not restore the copies of a bookie that is registered",
            tuple(silent),
        )


def _start_again(bookie: Bookie, names: Sequence[str]) -> str:
    """Return how to start these bookies again, with the command for `bookie`, the first of them.

    Its id is its former address, unless it was started with an id of its own.
    """
    words = ["quire", "bookie", "start"]
    for directory in bookie.get("directories") or ["DIR"]:
        words += ["--dir", directory]
    port = bookie["id"].rpartition(":")[2]
    if port.isdecimal() and int(port) != DEFAULT_PORT:
        words += ["--port", port]
    some = "it again" if len(names) == 1 else f"them again, for example {names[0]}"
    # People paste this command into a shell, and the paths come from a bookie: quote them.
    return f"Start {some}, with the options that it had: {shlex.join(words)}"


def _lacking(risk: AtRisk | None, group: str) -> int | None:
    """Return the number of ledgers that lack a copy in a group, or None if it is not known yet."""
    if risk is None or risk.by_group is None or not risk.whole:
        return None
    return risk.by_group.get(group)


def _risk(risk: AtRisk | None, group: str) -> str:
    if risk is None or risk.by_group is None or group not in risk.by_group:
        return "Quire is still counting the ledgers with copies there"
    lacking = risk.by_group[group]
    if not lacking:
        return (
            "No ledger has a copy there" if risk.whole else
            f"No ledger of the {risk.ledgers:,} counted so far has a copy there"
        )  # fmt: skip
    last = risk.last_copy
    have = verb("have", last)
    left = f", and {last} {have} entries with only one copy left" if last else ""
    lack = verb("lack", lacking)
    least = "" if risk.whole else "at least "
    of = f"{lacking} of {counted(risk.ledgers, 'ledger')}"
    return f"{least}{of} {lack} the copies stored there{left}"
