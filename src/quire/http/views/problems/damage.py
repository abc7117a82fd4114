"""The problems of damaged data that bookies found on their disks, and of wrong answers.

Each bookie leaves a note in the metadata store, which stays for a while after the damage was
repaired. A bookie of an earlier version has no notes, so its metrics are examined as well. The
client of this process notices wrong answers when it reads, for example for the page of a ledger.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.names.in_commands import command_with
from quire._runtime.units import are, counted, duration_text, listed, some_of, verb
from quire.client.cluster.health import PROVEN, Misbehaviour, UnhealthyBookie
from quire.http.views.bookie_list import damaged
from quire.http.views.problems.autorecovery import start_repairs
from quire.http.views.problems.problem import Bookie, Problem, ago
from quire.metadata.bookies.damage_notes import FoundDamage
from quire.metadata.bookies.unwritable import LOST

DamageNotes = Mapping[str, Sequence[FoundDamage]]
"""The notes about damage of each bookie that has some, by its id."""


LIST_REPAIRS = "To see whether the repair is complete: quire autorecovery list. "
"""The command that lists the ledgers that are still to be repaired, in a sentence."""


def without_lost(notes: DamageNotes, bookies: Sequence[Bookie]) -> DamageNotes:
    """Return the notes without those about missing files that are a reason to be read-only.

    The problem of the read-only bookie says that its data is lost, until it is restored.
    """
    said = {
        one["id"]
        for one in bookies
        for reason in one.get("unwritable") or ()
        if reason["why"] == LOST
    }
    left = {
        bookie: [one for one in found if one.file or one.repaired_ms is not None]
        if bookie in said
        else found
        for bookie, found in notes.items()
    }
    return {bookie: found for bookie, found in left.items() if found}


def of_damage_notes(
    notes: DamageNotes, autorecovery: Mapping[str, Any], now_ms: int
) -> Iterator[Problem]:
    """Yield a problem for each bookie that has found damage, also if it is repaired by now."""
    for bookie, found in sorted(notes.items()):
        by_time = sorted(found, key=lambda one: one.found_ms, reverse=True)
        missing = [one for one in by_time if one.repaired_ms is None]
        first = (missing or by_time)[0]
        several = len(by_time) > 1
        ledgers = sum(one.ledgers for one in missing)
        yield Problem(
            "warn",
            f"{bookie} found damage in {len(by_time)} places, the last time "
            f"{ago(by_time[0].found_ms, now_ms)}"
            if several
            else f"{bookie} found {_found(first, now_ms)}",
            f"{start_repairs(autorecovery) if missing else ''}{_confirm(missing or by_time)}"
            f"{_look_at_disk(first.directory)}",
            "Readers use the other copies of the missing entries. They are lost if those copies "
            "are lost as well"
            if missing
            else "A disk that returned wrong data once may do so again",
            _doing(autorecovery, ledgers or 1) if missing else _done(by_time),
            (bookie,),
            listed(_found(one, now_ms) for one in [*missing, *_restored(by_time)])
            if several
            else (),
        )


def _done(found: Sequence[FoundDamage]) -> str:
    """Return what was done about damage whose entries are restored."""
    files = sum(bool(one.file) for one in found)
    rewrites = ""
    if files:
        each, they = ("the", "which") if files == 1 else ("each", "and they")
        rewrites = (
            f" and rewrites {each} damaged segment under the same name, {they} then "
            f"{verb('show', files)} no damage"
        )
    return f"The bookie has every entry again{rewrites}. This finding ends a day after the repair"


def _restored(found: Sequence[FoundDamage]) -> list[FoundDamage]:
    return [one for one in found if one.repaired_ms is not None]


def _found(one: FoundDamage, now_ms: int) -> str:
    """Return where and when the damage was found, and what became of the entries."""
    if not one.file:
        state = "not restored yet" if one.repaired_ms is None else "restored"
        return (
            f"that files of its log in {one.directory} are missing {ago(one.found_ms, now_ms)}: "
            f"their entries are {state}"
        )
    blocks = f" ({counted(one.blocks, 'block')})" if one.blocks else ""
    where = f"damage in {one.path}{blocks} {ago(one.found_ms, now_ms)}"
    if not one.entries:
        return f"{where}: no entry is missing"
    such = "" if one.ledgers == len(one.named) else "such as "
    named = f"{such}{some_of(map(str, one.named))}"
    whose = f"{counted(one.entries, 'entry')} of {counted(one.ledgers, 'ledger')} ({named})"
    if one.repaired_ms is None:
        return f"{where}: {whose} {are(one.entries)} not restored yet"
    later = duration_text(max(0, one.repaired_ms - one.found_ms) / 1000)
    return f"{where}: {whose} {'was' if one.entries == 1 else 'were'} restored {later} later"


def _confirm(found: Sequence[FoundDamage]) -> str:
    """Return the commands that show whether the entries are restored, and every copy is good."""
    missing = any(one.repaired_ms is None for one in found)
    listed = LIST_REPAIRS if missing else ""
    ledger = next((named for one in found for named in one.named), None)
    if ledger is None:
        return listed
    read = "After that, to read" if missing else "To read"
    among_others = ", for example" if sum(one.ledgers for one in found) > 1 else ""
    return (
        f"{listed}{read} every copy of ledger {ledger}{among_others}: quire explain ledger "
        f"{ledger} --deep. "
    )


def _look_at_disk(directory: str) -> str:
    """Return the command that shows whether the disk of a directory is failing."""
    path = shlex.quote(directory)
    return (
        "Look at the disk, on the machine of the bookie: "
        f'smartctl -a "$(findmnt -no SOURCE -T {path})". If it reports errors, or if more damage '
        "is found, replace the disk. To check all files in the directory: "
        f"quire bookie scrub {path}"
    )


def of_damage(bookies: Sequence[Bookie], autorecovery: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each bookie whose metrics report damaged segments."""
    for one in bookies:
        if not damaged(one):
            continue
        segments, ledgers = one["damaged"]["segments"], one["damaged"]["ledgers"]
        directory = next(iter(one.get("directories") or ()), "")
        scrub = f"quire bookie scrub {shlex.quote(directory) if directory else 'DIR'}"
        yield Problem(
            "warn" if ledgers else "note",
            f"{one['id']} found damaged data in {counted(segments, 'segment')} of its log: "
            f"{counted(ledgers, 'ledger')} {verb('lack', ledgers)} entries there",
            f"{start_repairs(autorecovery)}"
            f"{LIST_REPAIRS if ledgers else ''}"
            f"To see on its machine what is damaged: {scrub}. If damage is "
            "found again, check the disk: it may be failing",
            "Readers use the other copies of these entries. They are lost if those copies are lost "
            "as well" if ledgers else "",
            _doing(autorecovery, ledgers),
            (one["id"],),
        )  # fmt: skip


def _doing(found: Mapping[str, Any], ledgers: int) -> str:
    if not ledgers:
        return "The bookie rewrites the segment without the damaged part"
    if not found["enabled"]:
        return "Nothing is copied, because autorecovery is switched off"
    if found["auditor"] is None:
        return "Nothing is copied, because no autorecovery process is running"
    return (
        "Autorecovery copies these entries from other bookies. The bookie then rewrites the segment"
    )


# -- wrong answers ----------------------------------------------------------------------------

_ANSWERS = {
    Misbehaviour.BAD_DIGEST: "an entry whose bytes do not match its digest",
    Misbehaviour.WRONG_ENTRY: "another entry than the one that was asked for",
    Misbehaviour.MISSING: "no such entry, although another bookie has it",
    Misbehaviour.DROPPED: "no such entry, although it acknowledged it",
    Misbehaviour.STALE_LAC: "an older end of an open ledger than before",
}
"""The kinds of wrong answers in words."""


def of_suspects(suspects: Sequence[UnhealthyBookie]) -> Iterator[Problem]:
    """Yield a problem for each bookie that gave wrong answers to this process.

    `suspects` are those of the client of this process. A bookie that may merely lack a late entry
    is a note.
    """
    by_bookie: dict[str, list[UnhealthyBookie]] = {}
    for one in suspects:
        by_bookie.setdefault(one.bookie, []).append(one)
    for bookie, found in by_bookie.items():
        proven = [one for one in found if one.kind in PROVEN]
        worst = (proven or found)[0]
        entry = f"entry {worst.last_entry} of " if worst.last_entry >= 0 else ""
        yield Problem(
            "bad" if proven else "note",
            f"{bookie} gave wrong answers to reads of this server: the last one was about "
            f"{entry}ledger {worst.last_ledger}",
            f"See what each copy of the ledger has: quire explain ledger {worst.last_ledger} "
            "--deep. If it shows more such answers of this bookie, its disk or its memory is "
            "damaged, or it has the data of another bookie: stop it and recover its ledgers: "
            f"{command_with('quire bookie recover', bookie)}",
            "No reader takes such an answer for data. But an entry whose other copies are lost "
            "cannot be read",
            "Readers use the copies on other bookies, and this server asks this bookie last",
            (bookie,),
            tuple(f"{counted(one.count, 'time')}: {_ANSWERS[one.kind]}" for one in found),
        )
