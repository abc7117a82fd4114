"""The problems of a cluster in plain sentences.

Each says what happened, what is at risk, what Quire does about it, and what to type. The functions
are pure: they read only their arguments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from quire._runtime.units import (
    NAMED_MAX,
    are,
    counted,
    does,
    duration_text,
    plural,
    size_text,
    some_of,
    verb,
)
from quire.errors import MetadataUnavailableError
from quire.http.views.bookie_list import NEARLY_FULL
from quire.http.views.creatable import DEFAULT_SHAPE, Creatable
from quire.http.watch.reachability import Outage
from quire.metadata.bookies.unwritable import FAILED, FULL, HELD, LOADING, LOST, ORDERED
from quire.metadata.ledgers.unreadable import REMEDY, named_ledgers
from quire.replication.explain.at_risk import AtRisk
from quire.streams.ownership.lost_ledgers import LostLedgers
from quire.streams.ownership.named_ledgers import Owner

DEFAULT_PORT = 3181
"""The port of a bookie that was started without `--port`."""
FULL_SHARE = 0.05
"""A disk counts as full if a smaller share of it is free and the bookie does not say more."""
ALONE = "alone"
"""The name of the group of those lost bookies that are not part of a lost location."""

HOLD = "/api/v1/bookie/state/readonly"
SUSPENDED = "/api/v1/bookie/gc/suspend_compaction"
RESUME = "/api/v1/bookie/gc/resume_compaction"

Severity = Literal["bad", "warn", "note"]
"""`bad`: data or writing is at stake now. `warn`: it will be. `note`: good to know."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding about the cluster, as the dashboard and `quire explain` show it."""

    severity: Severity
    what: str
    """A sentence that says what is wrong."""
    next: str
    """The command to type, or the action to take."""
    risk: str = ""
    """The possible consequences. Empty if `what` already names them."""
    doing: str = ""
    """A sentence about what Quire does by itself, or why it does nothing. Empty if there is nothing
    that Quire could do."""


Bookie = Mapping[str, Any]
"""A bookie as `bookie_list.bookie_facts` describes it, including its disk space."""


def problems(
    bookies: Sequence[Bookie],
    autorecovery: Mapping[str, Any],
    risk: AtRisk | None = None,
    lost: LostLedgers | None = None,
    *,
    now_ms: int = 0,
    collection: Collection | None = None,
    creatable: Creatable | None = None,
) -> list[Problem]:
    """Return the problems of a cluster, the worst first.

    Args:
        bookies: The bookies, as `bookie_facts` describes them.
        autorecovery: An `Overview` as a dictionary.
        risk: The data at risk in the groups that `lost_groups` returns. None if it was not counted.
        lost: The lost ledgers that were found. None before the first search.
        now_ms: The current Unix time in milliseconds.
        collection: The state of garbage collection in the cluster.
        creatable: Whether ledgers can be created. None if it is not known.
    """
    found = [
        *_of_data(risk, autorecovery),
        *_of_owners(lost),
        *_of_collection(collection or Collection()),
        *_of_bookies(bookies, autorecovery, risk, now_ms),
        *_of_shape(creatable, sum(one["state"] == "writable" for one in bookies)),
        *_of_autorecovery(autorecovery),
    ]
    return sorted(found, key=lambda one: ("bad", "warn", "note").index(one.severity))


def metadata_lost(uri: str, since_ms: int, now_ms: int, error: MetadataUnavailableError) -> Problem:
    """Return the problem of a store that does not answer since this Unix time."""
    away = duration_text(max(0, now_ms - since_ms) / 1000)
    causes = some_of(f"{server}: {why}" for server, why in error.causes.items())
    return Problem(
        "bad",
        f"The metadata store {uri} has not answered for {away}, since {_utc(since_ms)}"
        f"{f' ({causes})' if causes else ''}",
        "Start the store, or check the network to it",
        "No ledger can be created, opened or repaired until the store answers. Open ledgers can "
        "still be written and read while their bookies run. Everything below is the last known "
        "state",
        "Bookies, clients and this server connect again by themselves",
    )


UNSTEADY_MS = 3_600_000
"""Milliseconds during which outages of the metadata store are reported."""
UNSTEADY_MIN = 2
"""The number of outages in that time that makes the store unsteady. One is a restart."""


def metadata_unsteady(outages: Iterable[Outage], now_ms: int) -> list[Problem]:
    """Return the problem of a store that answers now, but was away repeatedly."""
    recent = [one for one in outages if one.until_ms >= now_ms - UNSTEADY_MS]
    if len(recent) < UNSTEADY_MIN:
        return []
    ago, away = (
        duration_text(max(0, ms) / 1000)
        for ms in (now_ms - recent[-1].until_ms, recent[-1].until_ms - recent[-1].since_ms)
    )
    return [
        Problem(
            "warn",
            f"The metadata store did not answer {len(recent)} times in the last hour, the last "
            f"time {ago} ago for {away}",
            "Look at the log and the load of the store, at the disk of its log, and at the network "
            "to it",
            "If the store is away for longer than the session timeout, bookies are taken for lost",
        )
    ]


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Collection:
    """The state of garbage collection in the cluster."""

    off: str = ""
    """A sentence that says who switched it off for the cluster. Empty if nobody did."""
    refusing: tuple[str, ...] = ()
    """The bookies that found that the metadata store went back in time."""
    unreadable: tuple[str, ...] = ()
    """The bookies whose mark in the store could not be read."""


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


# -- what is stored ---------------------------------------------------------------------------


def _of_data(risk: AtRisk | None, autorecovery: Mapping[str, Any]) -> Iterator[Problem]:
    if risk is not None and risk.skipped and autorecovery.get("unreadable") is None:
        # If an auditor has reported them, they are shown below.
        named = named_ledgers(dict(risk.skipped_first), risk.skipped)
        yield Problem(
            "bad",
            f"The metadata of {named} cannot be read: {risk.skipped_first[0][1]}",
            REMEDY,
            "The numbers of ledgers that lack copies do not include such ledgers",
        )
    if risk is not None and risk.unreadable:
        yield Problem(
            "bad",
            f"Some entries of {_count(risk.unreadable, risk)} cannot be read: no registered "
            "bookie has a copy of them",
            "Start the missing bookies again, with the directories that they had",
        )


def _of_owners(lost: LostLedgers | None) -> Iterator[Problem]:
    """Yield the problems of streams, objects and datasets: lost ledgers, unreadable records."""
    if lost is None:
        return
    owners = lost.by_owner()
    for owner, ledgers in list(owners.items())[:NAMED_MAX]:
        told = [f"ledger {one.ledger_id} ({one.part})" for one in ledgers]
        named = "a ledger that does" if len(ledgers) == 1 else f"{len(ledgers)} ledgers that do"
        yield Problem(
            "bad",
            f"{owner.kind[0].upper()}{str(owner)[1:]} needs {named} not exist: {some_of(told)}",
            _show(owner),
            f"The data in missing ledgers cannot be read; the rest of the {owner.kind} can be read",
            "Nothing: Quire cannot restore a missing ledger. Somebody deleted it, or the metadata "
            "was restored from an older backup",
        )
    if len(owners) > NAMED_MAX:
        more = len(owners) - NAMED_MAX
        need = (
            "1 more stream, object or dataset needs" if more == 1
            else f"{more:,} more streams, objects or datasets need"
        )  # fmt: skip
        yield Problem(
            "bad",
            f"{need} ledgers that do not exist; "
            f"{'' if lost.whole else 'at least '}{counted(lost.count, 'ledger')} in all",
            "To list them: quire explain cluster --json",
        )
    if lost.unreadable_count:
        why = [f"{one.owner} ({one.why})" for one in lost.unreadable]
        number = lost.unreadable_count
        yield Problem(
            "warn",
            f"{counted(number, 'record')} of streams, objects or datasets cannot be read: "
            f"{some_of(why)}",
            "To see what is wrong with one: quire stream show NAME, or quire object show NAME",
            "It is unknown whether they need ledgers that do not exist. quire ledger delete "
            "refuses to delete ledgers that they may need",
        )


def _show(owner: Owner) -> str:
    name, place = shlex.quote(owner.name), shlex.quote(owner.place)
    if owner.kind == "stream":
        return f"quire stream show {name} --namespace {place}"
    if owner.kind == "dataset":
        return f"Write the rows of the dataset {owner.name} again, in overwrite mode"
    return f"quire object show {name} --bucket {place}"


def _of_collection(found: Collection) -> Iterator[Problem]:
    if found.refusing:
        yield Problem(
            "bad",
            f"The metadata store went back in time, as detected by {some_of(found.refusing)}: a "
            "backup was restored, or its newest writes are lost",
            "Run quire cluster gc status, then follow docs/guides/disaster-recovery.md to find "
            "what is missing",
            "The store has lost the metadata of ledgers that were created or moved after that "
            "state. They cannot be read",
            "These bookies delete nothing until an operator accepts the store "
            "(quire cluster gc accept)",
        )
    if found.unreadable:
        yield Problem(
            "bad",
            f"The marks of {some_of(found.unreadable)} in the metadata store cannot be read",
            "Run quire cluster gc status. If the store was not restored from a backup, run quire "
            "cluster gc accept",
            "It is unknown whether the store went back in time",
            "These bookies delete nothing until an operator accepts the store",
        )
    if found.off:
        yield Problem(
            "warn",
            f"{found.off[:1].upper()}{found.off[1:]}",
            "quire cluster gc on",
            "The space of deleted ledgers is not freed",
        )


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


def _count(number: int, risk: AtRisk) -> str:
    text = counted(number, "ledger")
    return text if risk.whole else f"at least {text}"


# -- bookies ----------------------------------------------------------------------------------


def _of_bookies(
    bookies: Sequence[Bookie], autorecovery: Mapping[str, Any], risk: AtRisk | None, now_ms: int
) -> Iterator[Problem]:
    writable = sum(one["state"] == "writable" for one in bookies)
    if not writable:
        yield Problem(
            "bad",
            "No bookie accepts entries: nothing can be written",
            "quire bookie start --dir DIR",
        )
    for group, names in lost_groups(bookies).items():
        told = {
            "risk": _risk(risk, group),
            "doing": _healing(autorecovery, names, _lacking(risk, group), now_ms),
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
    silent = [one["id"] for one in bookies if one["state"] != "gone" and one["answers"] is False]
    if silent:
        yield Problem(
            "bad",
            f"{some_of(silent)} {are(len(silent))} registered but {does(len(silent))} not answer",
            "Check its log and the network to it. If it hangs, stop it: then it counts as lost",
            "Readers use the copies on other bookies, and writers replace it in their ensembles",
            "Nothing: autorecovery does not restore the copies of a bookie that is registered",
        )
    yield from _of_disks(bookies, writable, now_ms)
    yield from _of_compaction(bookies)


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


def _healing(
    found: Mapping[str, Any], names: Sequence[str], lacking: int | None, now_ms: int
) -> str:
    """Return what autorecovery does about these lost bookies, or why it does nothing."""
    if lacking == 0:
        return "Nothing needs to be copied"
    if not found["enabled"]:
        return "Nothing is copied: autorecovery is switched off (quire autorecovery enable)"
    if found["auditor"] is None:
        return "Nothing is copied: no autorecovery process is running (quire autorecovery start)"
    waiting = found["waiting"]
    if waiting is not None and waiting["bookie"] in names and waiting["until_ms"] > now_ms:
        left_s = (waiting["until_ms"] - now_ms) / 1000
        return (
            f"The auditor {found['auditor']} waits {duration_text(left_s)} more for "
            f"{waiting['bookie']} to return before its ledgers are copied "
            "(quire autorecovery trigger ends the wait)"
        )
    number, locked = found["marked"], found["locked"]
    marked = f"{_marked(found)} {plural('ledger', number)} {are(number)} marked for repair"
    if found["failing"]:
        return f"{marked}; the repair of {found['failing']} failed"
    if number:
        return f"{marked}, {locked} {are(locked)} being repaired"
    return f"The auditor {found['auditor']} has not marked its ledgers for repair yet"


def _of_shape(creatable: Creatable | None, writable: int) -> Iterator[Problem]:
    """Yield a problem if programs that do not choose a shape cannot create ledgers."""
    if creatable is None or creatable.default or not writable:
        return  # without a writable bookie, another problem says so
    size, write_quorum, ack_quorum = DEFAULT_SHAPE
    options = ""
    if creatable.smaller is not None:
        size_now, write_now, ack_now = creatable.smaller
        options = (
            f". Until then, a ledger can be created with: quire ledger write --ensemble {size_now} "
            f"--write-quorum {write_now} --ack-quorum {ack_now}"
        )
    yield Problem(
        "bad",
        f"No ledger with the default ensemble can be created (ensemble {size}, write quorum "
        f"{write_quorum}, ack quorum {ack_quorum}): {creatable.why_not}",
        f"Start another bookie, or make room on one that is read-only{options}",
        "Programs and streams that do not choose a smaller ensemble fail with "
        "NotEnoughBookiesError. Ledgers that are open can still be written while an ack quorum of "
        "their bookies answers",
    )


@dataclass(frozen=True, slots=True)
class _Disk:
    """The space of one data directory, or of all of them together."""

    directory: str
    """The directory, or "" if it is not known."""
    free_bytes: float
    total_bytes: float

    @property
    def used(self) -> float:
        return 1 - self.free_bytes / self.total_bytes

    def __str__(self) -> str:
        left = f"{size_text(self.free_bytes)} of {size_text(self.total_bytes)} free"
        return f"{self.directory}: {left}" if self.directory else left


def _disks(bookie: Bookie) -> list[_Disk]:
    """Return the disks of a bookie, as far as they are known."""
    found = [
        _Disk(one["directory"], one["free_bytes"], one["total_bytes"])
        for one in bookie.get("disks", ())
        if one["total_bytes"]
    ]
    if not found and bookie.get("free_bytes") is not None and bookie.get("total_bytes"):
        named = bookie.get("directories", ())
        directory = named[0] if len(named) == 1 else ""
        found = [_Disk(directory, bookie["free_bytes"], bookie["total_bytes"])]
    return found


def _of_disks(bookies: Sequence[Bookie], writable: int, now_ms: int) -> Iterator[Problem]:
    nearly: list[tuple[_Disk, str]] = []
    for one in bookies:
        if one["state"] == "gone":
            continue
        reasons = one.get("unwritable")
        if one["state"] == "read-only":
            yield from _of_read_only(one, writable, now_ms)
        else:
            yield from _of_directories(one, reasons or ())
        full = {reason["directory"] for reason in reasons or () if reason["why"] == FULL}
        if one["state"] == "read-only" and (full or reasons is None):
            continue  # it was reported above
        disks = [disk for disk in _disks(one) if disk.used >= NEARLY_FULL]
        nearly += [(disk, one["id"]) for disk in disks if disk.directory not in full]
    if not nearly:
        return
    nearly.sort(key=lambda found: -found[0].used)
    told = [f"{disk.used:.0%} of the disk of {name} is used ({disk})" for disk, name in nearly]
    fullest, bookie = nearly[0]
    yield Problem(
        "warn",
        f"{counted(len(nearly), 'disk')} {are(len(nearly))} nearly full: {some_of(told)}",
        _space_of(fullest.directory),
        f"A bookie becomes read-only when its disk is full. The command shows what takes the space "
        f"of {bookie}; run it there",
    )


def _space_of(directory: str) -> str:
    # People paste this command into a shell, and the path comes from a bookie: quote it.
    return f"quire bookie explain space {shlex.quote(directory) if directory else 'DIR'}"


def _of_directories(bookie: Bookie, reasons: Iterable[Mapping[str, str]]) -> Iterator[Problem]:
    """Yield the problems of single directories of a bookie that accepts entries all the same."""
    for reason in reasons:
        if reason["why"] == FULL:
            yield Problem(
                "warn",
                f"A disk of {bookie['id']} is full: {_disk_of(bookie, reason['directory'])}",
                _space_of(reason["directory"]),
                "New ledgers go to the other directories of the bookie",
                "The bookie frees the space of deleted ledgers",
            )
        elif reason["why"] == FAILED:
            yield _failed(bookie, reason["directory"])


def _disk_of(bookie: Bookie, directory: str) -> str:
    """Return the directory with its space, if it is known."""
    disks = _disks(bookie)
    found = [one for one in disks if one.directory == directory]
    if not found and len(disks) == 1 and not disks[0].directory:
        found = [replace(disks[0], directory=directory)]
    return str(found[0]) if found else directory


def _failed(bookie: Bookie, directory: str) -> Problem:
    return Problem(
        "bad",
        f"The data directory {directory} of {bookie['id']} cannot be used: its disk fails, or it "
        "does not belong to this bookie",
        "Look for the event directory_failed in its log. If the disk is lost for good: quire "
        f"bookie disk replace {shlex.quote(bookie['id'])} {shlex.quote(directory)} NEW",
        "The ledgers in this directory have one copy less",
        "Autorecovery restores the copies when the directory was replaced",
    )


def _of_read_only(bookie: Bookie, writable: int, now_ms: int) -> Iterator[Problem]:
    elsewhere = (
        f"New entries go to the {counted(writable, 'writable bookie')}" if writable else
        "No bookie accepts new entries"
    )  # fmt: skip
    risk = f"No stored entry is lost, and all can still be read. {elsewhere}"
    reasons = bookie.get("unwritable")
    if reasons is None:
        yield _guessed(bookie, risk)
        return
    name = bookie["id"]
    held_by = ""
    for why, directory in dict.fromkeys((one["why"], one["directory"]) for one in reasons):
        if why == FULL:
            yield Problem(
                "warn",
                f"{name} is read-only because its disk is full: {_disk_of(bookie, directory)}",
                _space_of(directory),
                risk,
                "The bookie frees the space of deleted ledgers, and accepts entries again when "
                "there is room",
            )
        elif why == FAILED:
            yield _failed(bookie, directory)
        elif why == LOST:
            yield Problem(
                "warn",
                f"{name} is read-only because a part of its data in {directory} is lost and not "
                "restored yet",
                "quire autorecovery list",
                risk,
                "Autorecovery restores the entries from other bookies. The bookie accepts entries "
                "again afterwards, usually within a minute after the last copy",
            )
        elif why == LOADING:
            yield Problem(
                "note",
                f"{name} is read-only because it is still loading its log",
                "Wait. The event loading in its log says how far it is",
                risk,
            )
        elif why == HELD:
            url = next(iter(bookie.get("http", ())), "http://BOOKIE")
            yield Problem(
                "warn",
                f"{name} is read-only because an operator holds it",
                f"curl -X PUT {shlex.quote(url + HOLD)} -H 'Content-Type: application/json' "
                """-d '{"readOnly": false}'""",
                risk,
                "The bookie stays read-only until an operator releases it, or until it is started "
                "again",
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
                f"quire bookie decommission {shlex.quote(name)} continues it. To make the bookie "
                f"writable again: quire bookie decommission {shlex.quote(name)} --cancel",
                risk,
            )
        else:
            yield Problem(
                "warn",
                f"{name} is read-only: {why}",
                "Look for the event read_only in its log, which gives the reason",
                risk,
            )


def _guessed(bookie: Bookie, risk: str) -> Problem:
    """Return the problem of a read-only bookie whose registration does not say why."""
    full = [disk for disk in _disks(bookie) if 1 - disk.used < FULL_SHARE]
    if full:
        return Problem(
            "warn",
            f"{bookie['id']} is read-only, probably because its disk is full: "
            f"{some_of(map(str, full))}",
            _space_of(full[0].directory),
            risk,
        )
    return Problem(
        "warn",
        f"{bookie['id']} is read-only, and its registration does not say why",
        "Look in its log. A bookie of this version of Quire names the reason here",
        risk,
    )


def _of_compaction(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    held = [one for one in bookies if one.get("compaction_suspended")]
    if not held:
        return
    names = [one["id"] for one in held]
    full = [one["id"] for one in held if any(disk.used >= NEARLY_FULL for disk in _disks(one))]
    kinds = sorted({kind for one in held for kind in one["compaction_suspended"]})
    url = next((url for one in held for url in one.get("http", ())), "http://BOOKIE")
    yield Problem(
        "warn" if full else "note",
        f"{' and '.join(kinds).capitalize()} compaction of {some_of(names)} is suspended"
        + (f"; the disk of {some_of(full)} is nearly full" if full else ""),
        f"To see who suspended it, and when: curl {shlex.quote(url + SUSPENDED)}. To resume it: "
        f"curl -X PUT {shlex.quote(url + RESUME)} -H 'Authorization: Bearer TOKEN' "
        """-H 'Content-Type: application/json' -d '{"resumeMajor": true, "resumeMinor": true}'""",
        "The space of deleted ledgers is freed only if no ledger in the same segment is left",
    )


# -- autorecovery -----------------------------------------------------------------------------


def _of_autorecovery(found: Mapping[str, Any]) -> Iterator[Problem]:
    if not found["enabled"]:
        yield Problem("warn", "Autorecovery is switched off", "quire autorecovery enable")
    if found["auditor"] is None:
        yield Problem(
            "warn" if found["marked"] else "note",
            "Nobody looks for lost bookies: no autorecovery process is running",
            "quire autorecovery start",
        )
    yield from _of_what_cannot_be_read(found)
    if found["failing"]:
        first = found["failures"][0] if found["failures"] else None
        why = f", such as ledger {first['ledger']}: {first['failure']['reason']}" if first else ""
        yield Problem(
            "bad",
            f"{counted(found['failing'], 'ledger')} could not be repaired{why}",
            f"quire explain ledger {first['ledger']}" if first else "quire autorecovery list",
        )
    elif found["marked"]:
        yield Problem(
            "warn",
            f"Under-replicated ledgers: {_marked(found)}",
            "quire autorecovery list",
            doing=f"{found['locked']} {are(found['locked'])} being repaired",
        )


def _of_what_cannot_be_read(found: Mapping[str, Any]) -> Iterator[Problem]:
    skipped = found.get("unreadable")
    if skipped is not None:
        ledgers, why = dict(skipped["first"]), skipped["first"][0][1] if skipped["first"] else "?"
        named = named_ledgers(ledgers, skipped["ledgers"])
        yield Problem(
            "bad",
            f"The metadata or the mark of {named} cannot be read: {why}",
            REMEDY,
            "Such a ledger cannot be opened, and its lost copies are not restored",
            "The auditor skips it and handles all other ledgers. Bookies keep its entries",
        )
    for damaged in found.get("damaged", ()):
        yield Problem(
            "warn",
            f"The tree of marks is damaged: {damaged}",
            "Find out which program wrote the node, and correct it there",
            doing="Auditors and workers skip this node, and handle all other ledgers",
        )


def _marked(found: Mapping[str, Any]) -> str:
    return f"{'' if found.get('marked_whole', True) else 'at least '}{found['marked']}"
