"""The problems of stored data: entries, ledgers and records that are lost or cannot be read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.names.in_commands import command_with
from quire._runtime.units import NAMED_MAX, counted, some_of
from quire.http.views.problems.problem import Problem
from quire.metadata.ledgers.unreadable import REMEDY, named_ledgers
from quire.replication.explain.at_risk import AtRisk
from quire.streams.ownership.lost_ledgers import LostLedgers
from quire.streams.ownership.named_ledgers import NamedLedger, Owner

DELETED_SOON = (
    "Nothing: bookies delete the entries at their next search for deleted ledgers, which begins "
    "every 10 minutes by default"
)
"""The fate of a lost ledger's entries while garbage collection is on."""
KEPT = "Garbage collection is switched off, so bookies keep the entries that they still have"
"""The fate of a lost ledger's entries while garbage collection is off."""


def of_data(risk: AtRisk | None, autorecovery: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of ledgers that cannot be read. There are none if `risk` is None."""
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


def of_owners(lost: LostLedgers | None, *, collection_off: bool = False) -> Iterator[Problem]:
    """Yield the problems of streams, objects and datasets: lost ledgers, unreadable records.

    There are none if `lost` is None, before the first search. `collection_off` says whether garbage
    collection is switched off for the cluster, so that bookies keep the entries.
    """
    if lost is None:
        return
    owners = lost.by_owner()
    for owner, ledgers in list(owners.items())[:NAMED_MAX]:
        told = [f"ledger {one.ledger_id} ({one.part})" for one in ledgers]
        named = "a ledger that does" if len(ledgers) == 1 else f"{len(ledgers)} ledgers that do"
        yield Problem(
            "bad",
            f"{owner.kind[0].upper()}{str(owner)[1:]} needs {named} not exist: {some_of(told)}",
            f"{_restore(ledgers, collection_off)}. {_otherwise(owner, ledgers)}",
            _lost_with(owner, ledgers),
            f"{KEPT if collection_off else DELETED_SOON}. {_deleted(ledgers)}",
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


def _deleted(ledgers: Sequence[NamedLedger]) -> str:
    """Return who deleted the ledgers, or why they may be missing."""
    known = [
        f"Ledger {one.ledger_id}: {one.deletion}" for one in ledgers if one.deletion is not None
    ]
    if known:
        return some_of(known)
    return "Somebody deleted the ledger, or the metadata was restored from an older backup"


def _lost_with(owner: Owner, ledgers: Sequence[NamedLedger]) -> str:
    """Return what is lost with the ledgers, and what becomes of its readers."""
    if owner.kind == "object":
        return "The object cannot be read"
    if owner.kind == "state machine":
        return (
            "Its snapshot cannot be read. The state machine can start without it only if its "
            "stream still has all commands"
        )
    if owner.kind != "stream":
        return (
            f"The data in missing ledgers cannot be read; the rest of the {owner.kind} can be read"
        )
    ledgers_are = "this ledger are" if len(ledgers) == 1 else "these ledgers are"
    return (
        f"All records of {ledgers_are} lost, unless a bookie still has them. Readers fail there, "
        "and those that skip the gap never get these records. The rest of the stream can be read"
    )


def _restore(ledgers: Sequence[NamedLedger], collection_off: bool) -> str:
    """Return the commands that restore ledgers from the bookies, the most urgent one first."""
    commands = [
        f"quire ledger recover {one.ledger_id} --like {'LEDGER' if one.like is None else one.like}"
        for one in ledgers[:NAMED_MAX]
    ]
    text = (
        "" if collection_off else "First, so that bookies keep the entries: quire cluster gc off. "
    )
    those = "ledger" if len(ledgers) == 1 else "ledgers"
    text += f"To restore the {those} from the bookies: {', '.join(commands)}"
    if any(one.like is None for one in ledgers[:NAMED_MAX]):
        text += " (LEDGER is another ledger with the same quorums and checksum)"
    return text


def _otherwise(owner: Owner, ledgers: Sequence[NamedLedger]) -> str:
    """Return what to do if the bookies do not have the entries any more."""
    place = shlex.quote(owner.place)
    text = "If too few bookies have the entries, restore a backup of the metadata store that has "
    text += "the ledger, or give up what is lost. "
    if owner.kind == "stream":
        within = f"--namespace {place}"
        show = command_with("quire stream show", owner.name, within)
        deliver = command_with("quire stream read", owner.name, f"{within} --on-gap deliver")
        skip = command_with("quire stream read", owner.name, f"{within} --on-gap skip")
        text += (
            f"To see the segments: {show}. To read past the gap and be told what is missing: "
            f"{deliver}. To read past it silently: {skip}"
        )
        # A position may be after any of the lost segments; the last one ends the problem.
        if after := ledgers[-1].after:
            truncate = command_with(
                "quire stream truncate", owner.name, f"{within} --before {after}"
            )
            text += (
                f". To give up the lost records for good, and all records before them: {truncate}"
            )
        return text
    if owner.kind == "dataset":
        return f"{text}Then write the rows of the dataset {owner.name} again, in overwrite mode"
    show = command_with("quire object show", owner.name, f"--bucket {place}")
    return f"{text}To see the object: {show}"


def _count(number: int, risk: AtRisk) -> str:
    text = counted(number, "ledger")
    return text if risk.whole else f"at least {text}"
