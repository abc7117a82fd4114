"""The problems of bookies that are lost, and the way to start them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.names.in_commands import command_with
from quire._runtime.units import are, counted, listed, some_of, them, verb
from quire.http.views.problems.autorecovery import ENABLE, healing, needed_command
from quire.http.views.problems.problem import Bookie, Problem
from quire.metadata.bookies.start_commands import StartCommand
from quire.net.port_probe import ProbeResult
from quire.replication.explain.at_risk import AtRisk
from quire.replication.explain.silence import (
    cut_off_advice,
    probed_text,
    start_command,
    start_manner,
)

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
    """Yield the problems of bookies that are gone, and of a cluster without a writable bookie.

    `risk` has the ledgers at risk in the groups that `lost_groups` returns. With None, they are not
    counted yet. `now_ms` is the Unix time in milliseconds.
    """
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
            probes = [one.get("probe") for one in bookies if one["id"] in names]
            state = f": {probed}" if (probed := probed_text(probes)) else ""
            check = (
                "Start the bookies again"
                if set(probes) == {ProbeResult.REFUSED}
                else "Check the power and the network there, and start the bookies again"
            )
            yield Problem(
                "bad",
                f"All bookies of {group} are gone: {some_of(names)}{state}",
                f"{check}. To restore their copies elsewhere now: {_restore(autorecovery)}",
                **told,
            )
        else:
            yield _alone(bookies, names, risk, told, switched_off=not autorecovery["enabled"])


def _restore(autorecovery: Mapping[str, Any]) -> str:
    """Return the command after which autorecovery copies the ledgers of lost bookies at once."""
    return needed_command(autorecovery) or "quire autorecovery trigger"


def _alone(
    bookies: Sequence[Bookie],
    names: Sequence[str],
    risk: AtRisk | None,
    told: Mapping[str, Any],
    *,
    switched_off: bool,
) -> Problem:
    """Return the problem of lost bookies that are not part of a lost location."""
    empty = _lacking(risk, ALONE) == 0
    probes = [one.get("probe") for one in bookies if one["id"] in names]
    first = next(one for one in bookies if one["id"] == names[0])
    spare = risk is None or not risk.without_spare
    give_up = _give_up(names, empty=empty, spare=spare, switched_off=switched_off)
    start = start_again(first, names)
    if set(probes) == {ProbeResult.ACCEPTED}:
        start = cut_off_advice(len(names))
    elif set(probes) == {ProbeResult.SILENT}:
        start = f"Check the machine and the network to it. {start}"
    state = probed_text(probes)
    each_one = [f"{name}: {probed_text([one])}" for name, one in zip(names, probes) if one]
    return Problem(
        "note" if empty else "bad",
        f"{some_of(names)} {are(len(names))} gone: "
        f"{state or 'stopped, or cut off from the metadata store'}",
        f"{start}. {give_up}",
        items=() if state else listed(each_one),
        **told,
    )


def _give_up(names: Sequence[str], *, empty: bool, spare: bool, switched_off: bool) -> str:
    """Return what to do if these bookies are lost for good.

    `empty` says that no ledger needs them, `spare` that other bookies can take their copies, and
    `switched_off` that autorecovery does not copy them.
    """
    lost = f"If {'it is' if len(names) == 1 else 'one is'} lost for good"
    if not empty and not spare:
        other = f"{lost}, start another bookie: the others cannot take all of its copies"
        return f"{other}. After that, to have them restored: {ENABLE}" if switched_off else other
    # People paste this command into a shell, and ids may have characters such as ';': quote them.
    named = names[0] if len(names) == 1 else "BOOKIE"
    remove = command_with("quire bookie decommission", named)
    if empty:  # the bookie only has to be removed from the cluster
        return f"{lost}: {remove}"
    copy = ENABLE if switched_off else command_with("quire bookie recover", named)
    whose = "its" if len(names) == 1 else "those"
    return f"{lost}: {copy}. When {whose} ledgers are copied, to remove it: {remove}"


def start_again(bookie: Bookie, names: Sequence[str]) -> str:
    """Return how to start these bookies again, with the command for `bookie`, the first of them.

    The command is the one with which `bookie` was started before. If that command is not known, the
    returned one has the data directories of the bookie's cookie, and the other options have to be
    added.
    """
    some = "it again" if len(names) == 1 else f"them again, for example {names[0]}"
    return f"Start {some}{start_text(bookie)}"


def start_text(bookie: Bookie) -> str:
    """Return the manner in which a bookie is started again, a colon and the command."""
    known = bookie.get("start_command")
    started = None if known is None else StartCommand(**known)
    command = start_command(bookie["id"], bookie.get("directories", ()), started)
    return f"{start_manner(started)}: {command}"


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
            "Nothing: every ledger has its copies on other bookies" if risk.whole else
            f"No ledger of the {risk.ledgers:,} counted so far has a copy there"
        )  # fmt: skip
    last = risk.last_copy
    have = verb("have", last)
    left = f", and {last} {have} entries with only one copy left" if last else ""
    lack = verb("lack", lacking)
    least = "" if risk.whole else "at least "
    of = f"{lacking} of {counted(risk.ledgers, 'ledger')}"
    stuck = risk.without_quorum
    unclosed = (
        f". {counted(stuck, 'ledger')} {are(stuck)} not closed, and too few of "
        f"{'its' if stuck == 1 else 'their'} bookies are left: {'it' if stuck == 1 else 'they'} "
        "cannot be recovered until one is back, and appends to a stream that needs "
        f"{them(stuck)} fail"
        if stuck
        else ""
    )
    return f"{least}{of} {lack} the copies stored there{left}{unclosed}"
