"""The problems of a cluster in plain sentences.

Each says what happened, what is at risk, what Quire does about it, and what to type. The functions
are pure: they read only their arguments.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire._runtime.units import NAMED_MAX, are, counted, does, plural, some_of, verb
from quire.metadata.ledgers.unreadable import REMEDY, named_ledgers
from quire.replication.explain.at_risk import AtRisk
from quire.streams.ownership.lost_ledgers import LostLedgers
from quire.streams.ownership.named_ledgers import Owner

FULL_SHARE = 0.05
"""A disk is nearly full if a smaller share of it is free."""
ALONE = "alone"
"""The name of the group of those lost bookies that are not part of a lost location."""

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
) -> list[Problem]:
    """Return the problems of a cluster, the worst first.

    Args:
        bookies: The bookies, as `bookie_facts` describes them.
        autorecovery: An `Overview` as a dictionary.
        risk: The data at risk in the groups that `lost_groups` returns. None if it was not counted.
        lost: The lost ledgers that were found. None before the first search.
        now_ms: The current Unix time in milliseconds.
        collection: The state of garbage collection in the cluster.
    """
    found = [
        *_of_data(risk, autorecovery),
        *_of_owners(lost),
        *_of_collection(collection or Collection()),
        *_of_bookies(bookies, autorecovery, risk, now_ms),
        *_of_autorecovery(autorecovery),
    ]
    return sorted(found, key=lambda one: ("bad", "warn", "note").index(one.severity))


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
                "Start it again: quire bookie start --dir DIR. If it is lost for good: "
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
    for one in bookies:
        yield from _of_disk(one, writable)
    yield from _of_compaction(bookies)


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
            f"The auditor {found['auditor']} waits {left_s:.0f} s more for "
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


def _of_disk(bookie: Bookie, writable: int) -> Iterator[Problem]:
    shares = {
        path: share for path, share in bookie.get("free_shares", {}).items() if share < FULL_SHARE
    }
    share = _free(bookie)
    full = bool(shares) or (share is not None and share < FULL_SHARE)
    told = "" if share is None else f"; {share:.0%} of its disk is free"
    named = f" ({some_of(sorted(shares))})" if shares else ""
    # People paste this command into a shell, and the path comes from a bookie: quote it.
    directory = shlex.quote(min(shares, key=lambda path: shares[path])) if shares else "DIR"
    if bookie["state"] == "read-only":
        elsewhere = (
            f"New entries go to the {counted(writable, 'writable bookie')}" if writable else
            "No bookie accepts new entries"
        )  # fmt: skip
        yield Problem(
            "warn",
            f"{bookie['id']} is read-only because its disk is full{named}{told}" if full else
            f"{bookie['id']} is read-only because of its disk, lost data, or an operator's order"
            f"{told}",
            f"quire bookie explain space {directory}" if full else
            "Look for the event read_only in its log, which gives the reason",
            f"No stored entry is lost, and all can still be read. {elsewhere}",
            "The bookie frees the space of deleted ledgers, and accepts entries again when there "
            "is room" if full else "",
        )  # fmt: skip
    elif full:
        yield Problem(
            "warn",
            f"The disk of {bookie['id']} is nearly full{named}{told}",
            f"quire bookie explain space {directory}",
            "When the disk is full, the bookie becomes read-only",
        )


def _of_compaction(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    held = [one for one in bookies if one.get("compaction_suspended")]
    if not held:
        return
    names = [one["id"] for one in held]
    full = [one["id"] for one in held if (share := _free(one)) is not None and share < FULL_SHARE]
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


def _free(bookie: Bookie) -> float | None:
    """Return the free share of a bookie's disks, or None if the bookie did not report it."""
    if bookie.get("free_bytes") is None or not bookie.get("total_bytes"):
        return None
    return float(bookie["free_bytes"] / bookie["total_bytes"])
