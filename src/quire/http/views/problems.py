"""What is wrong with a cluster in sentences: what happened, what is at risk, what is being done
about it, and what to type. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire._runtime.units import NAMED_MAX, are, counted, does, plural, some_of
from quire.metadata.ledgers.unreadable import REMEDY, named_ledgers
from quire.replication.explain.at_risk import AtRisk
from quire.streams.ownership.lost_ledgers import LostLedgers
from quire.streams.ownership.named_ledgers import Owner

FULL_SHARE = 0.05
"""A disk with less of it free is nearly full."""
ALONE = "alone"
"""The group of lost bookies that did not go with all of their location."""

SUSPENDED = "/api/v1/bookie/gc/suspend_compaction"
RESUME = "/api/v1/bookie/gc/resume_compaction"

Severity = Literal["bad", "warn", "note"]
"""bad: data or writing is at stake now; warn: it will be; note: worth to know."""


@dataclass(frozen=True, slots=True)
class Problem:
    severity: Severity
    what: str
    next: str
    """What to do, or to type."""
    risk: str = ""
    """What may come of it; '': that is said by `what`."""
    doing: str = ""
    """What is being done about it without anybody, or why nothing is; '': nothing could be."""


Bookie = Mapping[str, Any]
"""As `bookie_list.bookie_facts` gives it, with its space."""


def problems(
    bookies: Sequence[Bookie],
    autorecovery: Mapping[str, Any],
    risk: AtRisk | None = None,
    lost: LostLedgers | None = None,
    *,
    now_ms: int = 0,
    collection: Collection | None = None,
) -> list[Problem]:
    """Yield the problems of a cluster, the worst first.

    `autorecovery` is an `Overview` as a dictionary. `risk` is the data at risk in the groups
    that `lost_groups` returns, or None if it was not counted. `lost` is None before the first
    search. `now_ms` is calendar time.
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
    """A sentence that says who switched it off for the cluster; '' if nobody did."""
    refusing: tuple[str, ...] = ()
    """The bookies that found that the metadata store went back in time."""
    unreadable: tuple[str, ...] = ()
    """The bookies whose mark in the store could not be read."""


def lost_groups(bookies: Sequence[Bookie]) -> dict[str, list[str]]:
    """Bookies that are gone: by location where all of several at one are, while there are others;
    the rest as `ALONE`."""
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
            "The lost copies that are shown here leave it out",
        )
    if risk is not None and risk.unreadable:
        yield Problem(
            "bad",
            f"Of {_count(risk.unreadable, risk)} no bookie that is registered has a copy of all "
            "entries: these cannot be read",
            "Start the bookies again that are not registered, with the directories they had",
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
            f"{owner.kind[0].upper()}{str(owner)[1:]} names {named} not exist: {some_of(told)}",
            _show(owner),
            "Readers cannot get the data of these ledgers; the rest of it can be read",
            "Nothing can be: somebody deleted them, or the metadata was restored from before",
        )
    if len(owners) > NAMED_MAX:
        more = len(owners) - NAMED_MAX
        yield Problem(
            "bad",
            f"{more} more streams, objects or datasets name ledgers that do not exist; "
            f"{'' if lost.whole else 'at least '}{counted(lost.count, 'ledger')} in all",
            "quire explain cluster --json lists them",
        )
    if lost.unreadable_count:
        why = [f"{one.owner} ({one.why})" for one in lost.unreadable]
        number = lost.unreadable_count
        yield Problem(
            "warn",
            f"{counted(number, 'record')} of streams, objects or datasets cannot be read: "
            f"{some_of(why)}",
            "Read them with quire stream show or quire object show, which say what is wrong",
            "It is unknown whether they lack ledgers. quire ledger delete refuses ledgers that "
            "they may need",
        )


def _show(owner: Owner) -> str:
    name, place = shlex.quote(owner.name), shlex.quote(owner.place)
    if owner.kind == "stream":
        return f"quire stream show {name} --namespace {place}"
    if owner.kind == "dataset":
        return f"Write the rows of dataset {owner.name} again, and overwrite it"
    return f"quire object show {name} --bucket {place}"


def _of_collection(found: Collection) -> Iterator[Problem]:
    if found.refusing:
        yield Problem(
            "bad",
            f"The metadata store went back in time, as detected by {some_of(found.refusing)}: a "
            "backup was restored, or its newest writes are lost",
            "quire cluster gc status; docs/guides/disaster-recovery.md says how to find what is "
            "missing",
            "Ledgers that were created or moved since that state are not named any more, and "
            "cannot be read",
            "These bookies delete nothing until an operator accepts the store "
            "(quire cluster gc accept)",
        )
    if found.unreadable:
        yield Problem(
            "bad",
            f"The marks of {some_of(found.unreadable)} in the metadata store cannot be read",
            "quire cluster gc status; if the store was not restored from a backup: quire cluster "
            "gc accept",
            "Whether the store went back in time is not known",
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
        return "The ledgers with copies there are being counted"
    lacking = risk.by_group[group]
    if not lacking:
        return "No ledger has a copy there" if risk.whole else f"Counting: {risk.ledgers} ledgers"
    last = risk.last_copy
    have = "has" if last == 1 else "have"
    left = f", and {last} {have} entries with one copy left" if last else ""
    lack = "lacks" if lacking == 1 else "lack"
    return f"{_count(lacking, risk)} of {risk.ledgers} {lack} copies that are there{left}"


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
            "bad", "No bookie takes entries: nothing can be written", "quire bookie start --dir DIR"
        )
    for group, names in lost_groups(bookies).items():
        told = {
            "risk": _risk(risk, group),
            "doing": _healing(autorecovery, names, _lacking(risk, group), now_ms),
        }
        if group != ALONE:
            yield Problem(
                "bad",
                f"All of {group} is gone: {some_of(names)}",
                "Look at its power and network, and start its bookies again. To copy what was "
                "there at once: quire autorecovery trigger",
                **told,
            )
        else:
            yield Problem(
                "bad",
                f"{some_of(names)} {are(len(names))} not registered: stopped, or cut off from the "
                "metadata store",
                "Start it again: quire bookie start --dir DIR. Where it is lost for good: "
                f"quire bookie recover {names[0] if len(names) == 1 else 'BOOKIE'}",
                **told,
            )
    silent = [one["id"] for one in bookies if one["state"] != "gone" and one["answers"] is False]
    if silent:
        yield Problem(
            "bad",
            f"{some_of(silent)} {are(len(silent))} registered, and {does(len(silent))} not answer",
            "Look at its log, and at the network to it. Once it is stopped it counts as lost",
            "What is stored there is read from other bookies, and writers replace it",
            "Nothing is copied for as long as it is registered",
        )
    for one in bookies:
        yield from _of_disk(one, writable)
    yield from _of_compaction(bookies)


def _lacking(risk: AtRisk | None, group: str) -> int | None:
    """Ledgers; None: they are not counted."""
    if risk is None or risk.by_group is None or not risk.whole:
        return None
    return risk.by_group.get(group)


def _healing(
    found: Mapping[str, Any], names: Sequence[str], lacking: int | None, now_ms: int
) -> str:
    """What autorecovery does about these lost bookies, or why it does nothing."""
    if lacking == 0:
        return "Nothing has to be copied"
    if not found["enabled"]:
        return "Nothing is copied: autorecovery is switched off (quire autorecovery enable)"
    if found["auditor"] is None:
        return "Nothing is copied: no autorecovery runs (quire autorecovery start)"
    waiting = found["waiting"]
    if waiting is not None and waiting["bookie"] in names and waiting["until_ms"] > now_ms:
        left_s = (waiting["until_ms"] - now_ms) / 1000
        return (
            f"The auditor {found['auditor']} waits {left_s:.0f} s more for "
            f"{waiting['bookie']} to come back; then its ledgers are copied "
            "(at once: quire autorecovery trigger)"
        )
    number, locked = found["marked"], found["locked"]
    marked = f"{_marked(found)} {plural('ledger', number)} {are(number)} marked for repair"
    if found["failing"]:
        return f"{marked}; it failed with {found['failing']}"
    if number:
        return f"{marked}, {locked} {are(locked)} worked on"
    return f"The auditor {found['auditor']} has marked none of its ledgers yet"


def _of_disk(bookie: Bookie, writable: int) -> Iterator[Problem]:
    shares = {
        path: share for path, share in bookie.get("free_shares", {}).items() if share < FULL_SHARE
    }
    share = _free(bookie)
    full = bool(shares) or (share is not None and share < FULL_SHARE)
    told = "" if share is None else f"; {share:.0%} of its disk is free"
    named = f" ({some_of(sorted(shares))})" if shares else ""
    # It is typed as it stands, and bookies say what it is.
    directory = shlex.quote(min(shares, key=lambda path: shares[path])) if shares else "DIR"
    if bookie["state"] == "read-only":
        elsewhere = f"the {writable} that are writable" if writable else "nowhere"
        yield Problem(
            "warn",
            f"{bookie['id']} is read-only (its disk is full{named}){told}" if full else
            f"{bookie['id']} is read-only (its disk, a damage, or an operator's wish){told}",
            f"quire bookie explain space {directory}" if full else
            "Look into its log: the event read_only says why",
            f"Nothing that is stored is lost, and it is read on; new entries go to {elsewhere}",
            "It looks for deleted ledgers by itself, and takes entries again as soon as there is "
            "room" if full else "",
        )  # fmt: skip
    elif full:
        yield Problem(
            "warn",
            f"The disk of {bookie['id']} is nearly full{named}{told}",
            f"quire bookie explain space {directory}",
            "Once it is full the bookie becomes read-only",
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
        f"curl {shlex.quote(url + SUSPENDED)} says by whom and since when. To let it go on: "
        f"curl -X PUT {shlex.quote(url + RESUME)} -H 'Content-Type: application/json' "
        """-d '{"resumeMajor": true, "resumeMinor": true}'""",
        "Space of deleted ledgers does not come back, but for whole segments",
    )


# -- autorecovery -----------------------------------------------------------------------------


def _of_autorecovery(found: Mapping[str, Any]) -> Iterator[Problem]:
    if not found["enabled"]:
        yield Problem("warn", "Autorecovery is switched off", "quire autorecovery enable")
    if found["auditor"] is None:
        yield Problem(
            "warn" if found["marked"] else "note",
            "Nobody looks for lost bookies: no autorecovery runs",
            "quire autorecovery start",
        )
    yield from _of_what_cannot_be_read(found)
    if found["failing"]:
        first = found["failures"][0] if found["failures"] else None
        why = f", such as {first['ledger']}: {first['failure']['reason']}" if first else ""
        yield Problem(
            "bad",
            f"Ledgers could not be repaired: {found['failing']}{why}",
            f"quire explain ledger {first['ledger']}" if first else "quire autorecovery list",
        )
    elif found["marked"]:
        yield Problem(
            "warn",
            f"Ledgers that lack replicas: {_marked(found)}",
            "quire autorecovery list",
            doing=f"{found['locked']} {are(found['locked'])} worked on",
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
            "It cannot be opened, and its lost copies are not restored",
            "The auditor skips it, and handles all others. Bookies keep its entries",
        )
    for damaged in found.get("damaged", ()):
        yield Problem(
            "warn",
            f"The tree of marks is damaged: {damaged}",
            "Find out which program wrote the node, and correct it there",
            doing="Auditors and workers skip it, and handle all other ledgers",
        )


def _marked(found: Mapping[str, Any]) -> str:
    return f"{'' if found.get('marked_whole', True) else 'at least '}{found['marked']}"


def _free(bookie: Bookie) -> float | None:
    """The share of its disk that is free; None: it did not tell."""
    if bookie.get("free_bytes") is None or not bookie.get("total_bytes"):
        return None
    return float(bookie["free_bytes"] / bookie["total_bytes"])
