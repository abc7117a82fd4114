"""The problems of autorecovery, and what it does about lost bookies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.units import are, counted, duration_text, plural, some_of, them, utc_text, verb
from quire.codec.metadata.underreplication import SwitchedOff
from quire.http.views.problems.problem import Problem, ago, follows_from, waits_for
from quire.metadata.ledgers.unreadable import REMEDY, named_ledgers
from quire.replication.explain.status import switched_off_text

LIST = "quire autorecovery list"
"""The command that lists the marked ledgers."""
ENABLE = "quire autorecovery enable"
START = "quire autorecovery start"


def of_autorecovery(
    found: Mapping[str, Any],
    now_ms: int = 0,
    *,
    one_machine: bool = False,
    lacking: int | None = 0,
    lost: Collection[str] = (),
    without_spare: int = 0,
    loading: Collection[str] = (),
) -> Iterator[Problem]:
    """Yield the problems that an `Overview` as a dictionary shows at this Unix time (`now_ms`).

    With `one_machine`, all bookies listen on loopback, as on a laptop, where it is usual that no
    process repairs anything. `lacking` is the number of ledgers that lack copies because bookies
    are lost, or None if bookies are lost and the ledgers are not counted yet. `lost` has these
    bookies, and `without_spare` is the number of these ledgers that no other bookie can take.
    `loading` has the bookies that load their logs.
    """
    if not found["enabled"]:
        off = found.get("switched_off")
        yield Problem(
            "bad" if lacking else "warn",
            "Autorecovery is switched off"
            f"{switched_off_text(None if off is None else SwitchedOff(**off))}",
            _switch_on(lacking),
            _unrepaired(lacking, "switches autorecovery on"),
            "Nothing is copied until then",
        )
    if found["auditor"] is None:
        yield Problem(
            "bad" if lacking else "note" if one_machine else "warn",
            "Nobody looks for lost bookies: no autorecovery process is running",
            START,
            _unrepaired(lacking, "starts such a process"),
        )
    yield from _of_what_cannot_be_read(found, now_ms)
    if found["failing"]:
        yield _failing(found, now_ms, lost, without_spare, loading)
    elif found["marked"]:
        example = found.get("example")
        hinted = tuple(example["replicas"]) if example is not None else ()
        start, see = start_repairs(found), f"To list the ledgers: {LIST}"
        such = ""
        if example is not None:
            such = f", such as ledger {example['ledger']}"
            such += f", which may lack entries on {some_of(hinted)}" if hinted else ""
        yield Problem(
            "warn",
            f"Under-replicated ledgers: {_marked(found)}{such}",
            f"{start}{_caused(found, lost, hinted, see) or (see if start else LIST)}",
            doing=_repairing(found),
            bookies=hinted,
        )


def _switch_on(lacking: int | None) -> str:
    """Return the command that switches autorecovery on, and what to do before that."""
    if lacking == 0:
        return ENABLE
    return (
        f"{ENABLE}. If the lost bookies can be started again at once, do that first: then nothing "
        "is copied needlessly"
    )


def _unrepaired(lacking: int | None, until: str) -> str:
    """Return the risk if nothing is repaired until somebody does what `until` says."""
    if lacking is None:
        return f"The copies on the lost bookies stay missing until somebody {until}"
    if lacking:
        return (
            f"{counted(lacking, 'ledger')} {verb('lack', lacking)} copies now, and "
            f"{verb('lack', lacking)} them until somebody {until} or the lost bookies return"
        )
    return f"If a bookie or a disk is lost, its copies stay missing until somebody {until}"


def needed_command(found: Mapping[str, Any]) -> str:
    """Return the command without which nothing is repaired, or "" if repairs run."""
    if not found["enabled"]:
        return ENABLE
    return START if found["auditor"] is None else ""


def start_repairs(found: Mapping[str, Any]) -> str:
    """Return the advice to run the needed command, and a space, or "" if repairs run."""
    command = needed_command(found)
    return f"To have the copies restored: {command}. " if command else ""


def _caused(
    found: Mapping[str, Any], lost: Collection[str], replicas: Collection[str], then: str
) -> str:
    """Return what to do if only lost bookies have these missing replicas, or "" otherwise.

    If nothing is repaired, the text follows that of `start_repairs`: the lost bookies are not the
    reason why the copies stay missing, and they may never return.
    """
    gone = sorted(set(replicas))
    if not gone or not set(gone) <= set(lost):
        return ""
    if start_repairs(found):
        return (
            f"If {some_of(gone)}, which {are(len(gone))} gone, can be started again at once, do "
            f"that first. {then}"
        )
    return f"{follows_from(gone)}. {then}"


def _awaited(loading: Collection[str], replicas: Collection[str], then: str) -> str:
    """Return what to do if only bookies that load their logs have these replicas, or ""."""
    if not replicas or not set(replicas) <= set(loading):
        return ""
    return f"{waits_for(sorted(set(replicas)))}. {then}"


def _such(first: Mapping[str, Any], reason: str) -> str:
    """Return one of several ledgers with the reason, with a comma before."""
    return f", such as ledger {first['ledger']}: {reason}"


def _failing(
    found: Mapping[str, Any],
    now_ms: int,
    lost: Collection[str],
    without_spare: int,
    loading: Collection[str],
) -> Problem:
    """Return the problem of ledgers whose last repair failed, or waits for a writer."""
    known = sorted(found["failures"], key=_only_waits)
    first = known[0] if known else None
    # The failures that are not known may be worse than a wait.
    waits = first is not None and _only_waits(first) and len(known) >= found["failing"]
    number = found["failing"]
    why = "" if first is None else _such(first, first["failure"]["reason"])
    replicas = {bookie for one in known for bookie in one.get("replicas", ())}
    look = f"quire explain ledger {first['ledger']}" if first else LIST
    see = f"To see one of the ledgers: {look}"
    start = start_repairs(found)
    after = _caused(found, lost, replicas, see) or _awaited(loading, replicas, see)
    if first and after and without_spare and not waits:
        # The error names racks and ensembles, which need no change if these bookies return.
        why = _such(first, f"no writable bookie can replace {some_of(sorted(replicas))}")
    return Problem(
        "warn" if waits else "bad",
        f"{counted(number, 'under-replicated ledger')} {verb('wait', number)} for a writer before "
        f"autorecovery repairs {them(number)}{why}"
        if waits
        else f"{counted(number, 'ledger')} could not be repaired{why}",
        f"{start}{after or (see if start else look)}",
        doing="" if first is None else _next_attempt(found, first, now_ms),
    )


def _only_waits(why: Mapping[str, Any]) -> bool:
    """Return whether no repair of a ledger has failed, and its writer has time to replace a
    bookie."""
    return bool(why["failure"].get("attempts") == 0)


def _next_attempt(found: Mapping[str, Any], why: Mapping[str, Any], now_ms: int) -> str:
    """Return when the repair of a ledger will be tried again, or why it will not.

    `found` is the state of autorecovery, and `why` describes the ledger whose last repair failed.
    The text is empty if the time of the next attempt is not known.
    """
    if not found["enabled"]:
        return _repairing(found)
    if why.get("lock_owner"):
        return f"{why['lock_owner']} is repairing ledger {why['ledger']} now"
    at_ms = why["failure"].get("next_attempt_ms")
    if at_ms is None:
        return ""
    if at_ms > now_ms:
        return (
            f"The repair of ledger {why['ledger']} will be tried again at {utc_text(at_ms)} (in "
            f"{duration_text((at_ms - now_ms) / 1000)}), or as soon as another bookie registers"
        )
    if found["auditor"] is None:
        return _repairing(found)
    return f"The repair of ledger {why['ledger']} will be tried again within seconds"


def _repairing(found: Mapping[str, Any]) -> str:
    if not found["enabled"]:
        return "Nothing is repaired, because autorecovery is switched off"
    if found["auditor"] is None and not found["locked"]:
        return "Nothing is repaired, because no autorecovery process is running"
    return f"{found['locked']} {are(found['locked'])} being repaired"


def _of_what_cannot_be_read(found: Mapping[str, Any], now_ms: int) -> Iterator[Problem]:
    skipped = found.get("unreadable")
    if skipped is not None:
        ledgers, why = dict(skipped["first"]), skipped["first"][0][1] if skipped["first"] else "?"
        named = named_ledgers(ledgers, skipped["ledgers"])
        yield Problem(
            "bad",
            f"The metadata or the mark of {named} cannot be read: {why}",
            REMEDY,
            "Such a ledger cannot be opened, and its lost copies are not restored",
            "The auditor skips it and handles all other ledgers. Bookies keep its entries"
            if found["auditor"] is not None
            else f"An auditor found this {ago(skipped['at_ms'], now_ms)}. None runs now, so this "
            "finding stays until one has looked again",
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


def unrepaired(found: Mapping[str, Any]) -> str:
    """Return why nothing is repaired, and the command that changes that, or "" if repairs run."""
    if not found["enabled"]:
        return f"autorecovery is switched off ({ENABLE})"
    if found["auditor"] is None:
        return f"no autorecovery process is running ({START})"
    return ""


def healing(
    found: Mapping[str, Any], names: Sequence[str], lacking: int | None, now_ms: int
) -> str:
    """Return what autorecovery does about these lost bookies, or why it does nothing.

    `lacking` is the number of ledgers that need them, or None if it is not known. The result is ""
    if no ledger needs them, because then there is nothing to do.
    """
    if lacking == 0:
        return ""
    if why := unrepaired(found):
        return f"Nothing is copied: {why}"
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
