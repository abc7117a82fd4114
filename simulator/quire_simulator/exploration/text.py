"""Steps and results as sentences."""

from __future__ import annotations

from quire._runtime.units import counted
from quire_simulator.exploration.bounds import Bounds
from quire_simulator.exploration.search import Result
from quire_simulator.exploration.values import NOTHING, Label

COPIED = "after a copy of"


def sentence(label: Label) -> str:
    """Return a step as a sentence."""
    if COPIED in label:
        at = label.index(COPIED)
        return f"{sentence(label[:at])} Just before, the disk of {label[at + 1]} is copied."
    if label[0] == "recovery":
        return f"Recovery {label[1]} {_recovery(label[2:])}."
    return f"{_other(label)}."


def _recovery(label: Label) -> str:
    what, *more = label
    match what:
        case "begins":
            return "marks the ledger as in recovery"
        case "finds it closed":
            return f"finds the ledger closed at {more[0]}"
        case "fence":
            lac = "unknown" if more[1] == NOTHING else more[1]
            return f"fences {more[0]}, which answers the LAC {lac}"
        case "reads on":
            return f"reads on after the LAC {more[0]}"
        case "read":
            return f"reads entry {more[2]} from {more[0]}, which {more[1]} it"
        case "write back":
            return f"writes entry {more[1]} back to {more[0]}"
        case "loses":
            then = f"replaces it by {more[1]}" if more[1] else "continues without it"
            return f"loses {more[0]} and {then}"
        case "rejoins":
            return f"has {more[0]} back"
        case "closes":
            return f"closes the ledger at {more[0]}; stored is the end {more[1]}"
        case _:
            return " ".join(map(str, label))


def _other(label: Label) -> str:
    what, *more = label
    match what:
        case "push":
            return f"The writer sends entry {more[0]} with the LAC {more[1]}"
        case "arrive":
            then = f"refuses it ({more[2]})" if more[2] else "stores it"
            return f"Entry {more[1]} arrives at {more[0]}, which {then}"
        case "stray":
            then = f"refuses it ({more[2]})" if more[2] else "stores it"
            return f"Late, entry {more[1]} arrives at {more[0]}, which {then}"
        case "ack":
            return f"The writer hears that {more[0]} has entry {more[1]}"
        case "fenced":
            return f"The writer hears that {more[0]} is fenced, and ends"
        case "refused":
            return f"The writer hears that {more[0]} refuses ({more[1]})"
        case "lost":
            unheard = ", ".join(map(str, more[1:]))
            stored = f", which has stored {unheard} without an answer" if unheard else ""
            return f"The writer loses {more[0]}{stored}"
        case "rejoin":
            return f"The writer has {more[0]} back"
        case "spare found":
            return f"The writer finds a bookie to replace {more[0]}"
        case "returned":
            return f"The writer connects to {' '.join(map(str, more))} again"
        case "change":
            at = more.index("->")
            back, new = " ".join(map(str, more[:at])), " ".join(map(str, more[at + 1 :]))
            first = f"connects to {back} again, and " if back else ""
            then = f"wants {new} in the ensemble" if new else "continues with fewer bookies"
            return f"The writer {first}{then}"
        case "recorded":
            new = " ".join(map(str, more[1:]))
            return f"The metadata names {new} from entry {more[0]} on"
        case "too late":
            return "The writer finds that the ledger is no longer open, and ends"
        case "writer closes":
            return f"The writer closes the ledger at {more[0]}"
        case "rollback":
            return f"{more[0]} restarts with the copy of its disk"
        case "healed":
            return f"The loss of {more[0]} counts as repaired"
        case "repaired":
            return f"Autorecovery copies to {more[0]} what it lacks"
        case _:
            return " ".join(map(str, label))


def bounds_line(bounds: Bounds) -> str:
    """Return the bounds in one line."""
    parts = [
        f"{bounds.bookies} bookies, ledger {bounds.ensemble}/{bounds.write_quorum}/"
        f"{bounds.ack_quorum}, {counted(bounds.entries, 'entry')}",
        f"recoveries {bounds.recoverers}",
        f"losses of the writer {bounds.losses}, of a recovery {bounds.recovery_losses}",
    ]
    if bounds.rollbacks:
        parts.append(f"1 rollback ({bounds.rollback})")
    if bounds.late_answers:
        parts.append("late answers")
    return "; ".join(parts)


def result_lines(result: Result) -> list[str]:
    """Return what a search has found, line by line."""
    megabytes = result.memory_bytes / 1_000_000
    visited = "all" if result.complete else "not all"
    lines = [
        f"{result.states:,} states ({visited}), {result.transitions:,} steps, depth "
        f"{result.depth}, {result.seconds:.1f} s ({result.processor_seconds:.1f} s of processor "
        f"time), {megabytes:.0f} MB",
        f"{result.closed:,} states of a closed ledger; the judge recovered {result.judged:,} times",
    ]
    if result.violation is not None:
        lines.append(f"{result.violation.property}: {result.violation.what}")
        lines += [f"{n:3}. {sentence(label)}" for n, label in enumerate(result.trace, 1)]
    return lines
