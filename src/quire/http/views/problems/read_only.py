"""The problems of read-only bookies: each reason why one accepts no entries."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from quire._runtime.names.in_commands import COMMANDS_MAX, command_with
from quire._runtime.units import counted, duration_text, listed, size_text, some_of
from quire.http.views.problems.disks import (
    NO_ROOM,
    cannot_make_room,
    disk_of,
    disk_text,
    disks_of,
    explain_full,
    explain_spaces,
    failed_directory,
    shares_text,
)
from quire.http.views.problems.problem import Bookie, Problem
from quire.metadata.bookies.unwritable import FAILED, FULL, HELD, LOADING, LOST, ORDERED

FULL_SHARE = 0.05
"""A disk counts as full if a smaller share of it is free and the bookie does not say more."""
HOLD = "/api/v1/bookie/state/readonly"


def of_read_only(bookies: Sequence[Bookie], writable: int, now_ms: int) -> Iterator[Problem]:
    """Yield the problems of all read-only bookies. `writable` is the number of the others."""
    elsewhere = (
        f"New entries go to the {counted(writable, 'writable bookie')}; a ledger with a larger "
        "ensemble cannot be created" if writable else
        "No bookie accepts new entries"
    )  # fmt: skip
    risk = f"No stored entry is lost, and all can still be read. {elsewhere}"
    readonly = [one for one in bookies if one["state"] == "read-only"]
    yield from _full(readonly, risk)
    for one in readonly:
        yield from _of_one(one, risk, now_ms)


def is_loading(bookie: Bookie) -> bool:
    """Return whether a bookie is read-only only because it still loads its log."""
    reasons = bookie.get("unwritable") or ()
    return bookie["state"] == "read-only" and {one["why"] for one in reasons} == {LOADING}


def _full(bookies: Sequence[Bookie], risk: str) -> Iterator[Problem]:
    """Yield one problem for all bookies whose disk is full."""
    full = {
        (one["id"], reason["directory"]): one
        for one in bookies
        for reason in one.get("unwritable") or ()
        if reason["why"] == FULL
    }
    if not full:
        return
    names = tuple(dict.fromkeys(name for name, _ in full))
    told = [_too_little(one, directory) for (_, directory), one in full.items()]
    several = len(full) > 1
    yield Problem(
        "warn",
        f"{len(names)} bookies are read-only because their disks are full"
        if len(names) > 1
        else f"{names[0]} is read-only because its disks are full"
        if several
        else f"{names[0]} is read-only because its disk is full: {told[0]}",
        explain_full((one, directory) for (_, directory), one in full.items()),
        risk,
        NO_ROOM
        if all(cannot_make_room(one, directory) for (_, directory), one in full.items())
        else f"{'Each' if len(names) > 1 else 'The'} bookie frees the space of deleted ledgers, "
        "and accepts entries again when there is room",
        names,
        listed(
            [f"{name}: {text}" if len(names) > 1 else text for (name, _), text in zip(full, told)],
            limit=COMMANDS_MAX,
        )
        if several
        else (),
    )


def _too_little(bookie: Bookie, directory: str) -> str:
    """Return the directory with its space, the limit if that is less, and whose files take it."""
    text, least = disk_text(bookie, directory), bookie.get("min_free_bytes")
    disk = disk_of(bookie, directory)
    # It accepts entries again only when more than the limit is free.
    if least is not None and disk is not None and disk.free_bytes < least:
        text += f", less than min_free_bytes ({size_text(least)})"
    return text + shares_text(bookie, directory)


def _of_one(bookie: Bookie, risk: str, now_ms: int) -> Iterator[Problem]:
    """Yield the problem of each other reason why a bookie is read-only."""
    reasons = bookie.get("unwritable")
    if reasons is None:
        yield _guessed(bookie, risk)
        return
    name = bookie["id"]
    held_by = ""
    for why, directory in dict.fromkeys((one["why"], one["directory"]) for one in reasons):
        if why == FULL:
            continue  # it was reported for all bookies together
        if why == FAILED:
            yield failed_directory(bookie, directory)
        elif why == LOST:
            yield Problem(
                "warn",
                f"{name} is read-only because a part of its data in {directory} is lost and not "
                "restored yet",
                "quire autorecovery list",
                risk,
                "Autorecovery restores the entries from other bookies. The bookie accepts entries "
                "again afterwards, usually within a minute after the last copy",
                (name,),
            )
        elif why == LOADING:
            report = bookie.get("report") or {}
            percent = report.get("loading_percent") if report.get("state") == "loading" else None
            yield Problem(
                "note",
                f"{name} is read-only because it is still loading its log"
                f"{'' if percent is None else f': {percent} % of it is loaded'}",
                "Wait. The event loading in its log says how far it is",
                risk,
                "The bookie accepts entries when it has loaded its log. A bookie that was not "
                "stopped cleanly reads more of it",
                (name,),
            )
        elif why == HELD:
            url = next(iter(bookie.get("http", ())), "http://BOOKIE")
            yield Problem(
                "warn",
                f"{name} is read-only because an operator holds it",
                f"curl -X PUT {shlex.quote(url + HOLD)} -H 'Authorization: Bearer TOKEN' "
                """-H 'Content-Type: application/json' -d '{"readOnly": false}'""",
                risk,
                "The bookie stays read-only until an operator releases it, or until it is started "
                "again",
                (name,),
            )
        elif why == ORDERED:
            order = bookie.get("order") or {}
            if order:
                held_by = (
                    f" (ordered from {order['by']}, "
                    f"{duration_text(max(0, now_ms - order['since_ms']) / 1000)} ago)"
                )
            yield Problem(
                "note",
                f"{name} is read-only because it is being drained or decommissioned{held_by}",
                f"{command_with('quire bookie decommission', name)} continues it. To make the "
                "bookie writable again: "
                f"{command_with('quire bookie decommission', name, '--cancel')}",
                risk,
                bookies=(name,),
            )
        else:
            yield Problem(
                "warn",
                f"{name} is read-only: {why}",
                "Look for the event read_only in its log, which gives the reason",
                risk,
                bookies=(name,),
            )


def _guessed(bookie: Bookie, risk: str) -> Problem:
    """Return the problem of a read-only bookie whose registration does not say why."""
    full = [disk for disk in disks_of(bookie) if 1 - disk.used < FULL_SHARE]
    if full:
        return Problem(
            "warn",
            f"{bookie['id']} is read-only, probably because its disk is full: "
            f"{some_of(map(str, full))}",
            explain_spaces([(bookie["id"], [one.directory for one in full])]),
            risk,
            bookies=(bookie["id"],),
        )
    return Problem(
        "warn",
        f"{bookie['id']} is read-only, and its registration does not say why",
        "Look in its log. A bookie of this version of Quire names the reason here",
        risk,
        bookies=(bookie["id"],),
    )
