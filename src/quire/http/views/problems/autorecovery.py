"""The problems of autorecovery, and what it does about lost bookies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.units import are, counted, duration_text, plural, some_of
from quire.http.views.problems.problem import Problem
from quire.metadata.ledgers.unreadable import REMEDY, named_ledgers


def of_autorecovery(found: Mapping[str, Any], *, one_machine: bool = False) -> Iterator[Problem]:
    """Yield the problems that an `Overview` as a dictionary shows.

    With `one_machine`, all bookies listen on loopback, as on a laptop, where it is usual that no
    process repairs anything.
    """
    if not found["enabled"]:
        yield Problem(
            "warn",
            "Autorecovery is switched off",
            "quire autorecovery enable",
            "If a bookie or a disk is lost, its copies stay missing until somebody switches "
            "autorecovery on",
            "Nothing is copied until then",
        )
    if found["auditor"] is None:
        yield Problem(
            "note" if one_machine else "warn",
            "Nobody looks for lost bookies: no autorecovery process is running",
            "quire autorecovery start",
            "If a bookie or a disk is lost, its copies stay missing until somebody starts such a "
            "process",
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
        example = found.get("example")
        lacking = tuple(example["replicas"]) if example is not None else ()
        such = ""
        if example is not None:
            such = f", such as ledger {example['ledger']}"
            such += f", which may lack entries on {some_of(lacking)}" if lacking else ""
        yield Problem(
            "warn",
            f"Under-replicated ledgers: {_marked(found)}{such}",
            "quire autorecovery list",
            doing=_repairing(found),
            bookies=lacking,
        )


def _repairing(found: Mapping[str, Any]) -> str:
    if not found["enabled"]:
        return "Nothing is repaired, because autorecovery is switched off"
    if found["auditor"] is None and not found["locked"]:
        return "Nothing is repaired, because no autorecovery process is running"
    return f"{found['locked']} {are(found['locked'])} being repaired"


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


def healing(
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
