"""The problems of bookies that are lost, and the way to start them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.names.in_commands import COMMANDS_MAX, command_with, for_each
from quire._runtime.units import are, counted, some_of, them, verb
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
            lost = [one for one in bookies if one["id"] in names]
            state, items = _answers(lost)
            yield Problem(
                "bad",
                f"All bookies of {group} are gone: {some_of(names)}{state and f': {state}'}",
                f"{_bring_back(lost, place=True)}. To restore their copies elsewhere now: "
                f"{_restore(autorecovery)}",
                items=items,
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
    lost = [one for one in bookies if one["id"] in names]
    spare = risk is None or not risk.without_spare
    give_up = _give_up(names, empty=empty, spare=spare, switched_off=switched_off)
    state, items = _answers(lost)
    return Problem(
        "note" if empty else "bad",
        f"{some_of(names)} {are(len(names))} gone: "
        f"{state or 'stopped, or cut off from the metadata store'}",
        f"{_bring_back(lost)}. {give_up}",
        items=items,
        **told,
    )


def _answers(lost: Sequence[Bookie]) -> tuple[str, tuple[str, ...]]:
    """Return how the addresses of lost bookies answer, or a line for each if they differ.

    The first text is "" if they differ or are not known.
    """
    probes = {one["id"]: one.get("probe") for one in lost}
    if state := probed_text(list(probes.values())):
        return state, ()
    alike: dict[str, list[str]] = {}
    for name, probe in probes.items():
        if probe:
            alike.setdefault(probe, []).append(name)
    return "", tuple(
        f"{some_of(names, COMMANDS_MAX)}: {probed_text([ProbeResult(probe)] * len(names))}"
        for probe, names in alike.items()
    )


def _bring_back(lost: Sequence[Bookie], *, place: bool = False) -> str:
    """Return how to bring lost bookies back, by the answers of their addresses.

    `place` says that they are all bookies of one location, whose power or network may have failed.
    """
    running = [one["id"] for one in lost if one.get("probe") == ProbeResult.ACCEPTED]
    silent = [one["id"] for one in lost if one.get("probe") == ProbeResult.SILENT]
    stopped = [one for one in lost if one["id"] not in running]
    machines_run = all(
        one.get("probe") in (ProbeResult.REFUSED, ProbeResult.ACCEPTED) for one in lost
    )
    advice = []
    if place and not machines_run:
        advice.append("Check the power and the network there")
    elif silent:
        whose = "" if len(silent) == len(lost) else f" of {some_of(silent)}"
        machines = "machine" if len(silent) == 1 else "machines"
        advice.append(f"Check the {machines}{whose} and the network to {them(len(silent))}")
    if stopped:
        whose = "" if len(stopped) == len(lost) else some_of(one["id"] for one in stopped)
        advice.append(start_each(stopped, whose))
    if running:
        named = "" if len(running) == len(lost) else some_of(running)
        advice.append(cut_off_advice(len(running), named))
    return ". ".join(advice)


def _give_up(names: Sequence[str], *, empty: bool, spare: bool, switched_off: bool) -> str:
    """Return what to do if these bookies are lost for good.

    `empty` says that no ledger needs them, `spare` that other bookies can take their copies, and
    `switched_off` that autorecovery does not copy them.
    """
    one_only = len(names) == 1
    lost = f"If {'it' if one_only else 'one'} is lost for good"
    if not empty and not spare:
        other = f"{lost}, start another bookie: the others cannot take all of its copies"
        return f"{other}. After that, to have them restored: {ENABLE}" if switched_off else other
    # People paste these commands into a shell, and ids may have characters such as ';'.
    remove = {name: command_with("quire bookie decommission", name) for name in names}
    copy = {name: command_with("quire bookie recover", name) for name in names}
    if one_only:
        (removal,), (copying,) = remove.values(), copy.values()
        if empty:  # the bookie only has to be removed from the cluster
            return f"{lost}: {removal}"
        copying = ENABLE if switched_off else copying
        return f"{lost}: {copying}. When its ledgers are copied, to remove it: {removal}"
    if empty:
        return f"{lost}, remove it. {_for_each(remove)}"
    copied = f"{lost}, have its ledgers copied. {_for_each(copy)}"
    if switched_off:
        copied = f"{lost}: {ENABLE}"
    return f"{copied}. When its ledgers are copied, remove it. {_for_each(remove)}"


def _for_each(commands: Mapping[str, str]) -> str:
    return for_each(((name, f": {command}") for name, command in commands.items()), "For")


def start_each(bookies: Sequence[Bookie], named: str = "") -> str:
    """Return how to start these bookies again, with the command of each.

    The command is the one with which the bookie was started before. If that command is not known,
    the returned one has the data directories of the bookie's cookie, and the other options have to
    be added. `named` has the ids of the bookies, if the advice is given beside that for other
    bookies.
    """
    if len(bookies) == 1:
        return f"Start {named or 'it'} again{start_text(bookies[0])}"
    commands = ((one["id"], start_text(one)) for one in bookies)
    return f"Start {named or 'each of them'} again. {for_each(commands)}"


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
