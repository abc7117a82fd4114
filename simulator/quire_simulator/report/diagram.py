"""A run as a sequence diagram in Mermaid: clients, bookies, metadata, and their messages.

If a run failed and the failure names a ledger, the diagram shows only what concerns that ledger. It
is kept short enough to read, and says what is omitted.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter

from quire_simulator.report.recorder import METADATA
from quire_simulator.report.result import RunFailure, RunResult
from quire_simulator.report.steps import StepKind, TraceStep, cut, together

ROWS_MAX = 160
PARTICIPANTS_MAX = 14
LABEL_CHARACTERS_MAX = 160
INVARIANT_CHARACTERS_MAX = 600
LINE_CHARACTERS_MAX = 80
LAST_ROWS = 30
"""All participants of the last rows are shown, even if they took no part before."""

CLIENT_VERBS_NOT_SHOWN = ("append", "observe", "create")
"""Client steps whose messages already show them."""
BOOKIE_VERBS_SHOWN = (
    "crash", "crash in write", "kill", "serving", "stopped", "gave up", "session expired",
    "start failed", "storage_failed", "read_only", "writable", "continued", "registration_lost",
)  # fmt: skip
ARROWS = {StepKind.REQUEST: "->>", StepKind.ANSWER: "-->>", StepKind.METADATA: "->>"}


def as_mermaid(result: RunResult) -> str:
    """Return the text of a diagram: `sequenceDiagram` and what follows."""
    ledger = ledger_of(result.failure)
    steps = together((m for m in result.trace if _matters(m, ledger)), ROWS_MAX)
    shown, silent = _participants(steps)
    if not shown:
        bookies = sorted({m.actor for m in result.trace if m.kind is StepKind.BOOKIE})
        shown = bookies[:PARTICIPANTS_MAX]
    steps = [m for m in steps if _speakers(m) <= set(shown)]
    names = {name: f"p{number}" for number, name in enumerate(shown)}
    rows = _rows(steps, names, one_ledger=ledger is not None)
    title = f"seed {result.seed}, workload {result.workload}"
    if ledger is not None:
        title += f", ledger {ledger}"
    lines = ["sequenceDiagram", f"    title: {label(title)}"]
    lines += [f"    participant {names[name]} as {label(name)}" for name in shown]
    if silent:
        rows.insert(0, _note(names, f"not shown: {', '.join(silent)}"))
    if result.failure is not None:
        rows.append(
            _note(
                names,
                f"{result.failure.invariant}: {result.failure.what}",
                INVARIANT_CHARACTERS_MAX,
            )
        )
    elif shown:
        rows.append(_note(names, "every invariant holds"))
    return "\n".join([*lines, *(f"    {row}" for row in rows if row)]) + "\n"


def ledger_of(failure: RunFailure | None) -> int | None:
    found = re.search(r"\bledger (\d+)", failure.what) if failure is not None else None
    return int(found[1]) if found is not None else None


def label(text: str, limit: int = LABEL_CHARACTERS_MAX) -> str:
    """Return text that cannot end a statement or begin an entity, wrapped if it is long."""
    plain = re.sub(r"\s+", " ", text).replace(";", ",").replace("#", "no. ")
    plain = cut(re.sub(r"[<>]", "'", plain), limit)
    return "<br/>".join(textwrap.wrap(plain, LINE_CHARACTERS_MAX))


def _matters(step: TraceStep, ledger: int | None) -> bool:
    match step.kind:
        case StepKind.INVARIANT:
            return False  # It ends the diagram anyway.
        case StepKind.FAULT:
            return True
        case StepKind.BOOKIE:
            # All bookies start at the beginning.
            return step.verb in BOOKIE_VERBS_SHOWN and step.time_s > 0
        case StepKind.CLIENT if step.verb in CLIENT_VERBS_NOT_SHOWN:
            return False
    return step.ledger_id == ledger if ledger is not None else step.ledger_id >= 0


def _speakers(step: TraceStep) -> set[str]:
    """Return the participants that a row needs. A fault needs none."""
    return set() if step.kind is StepKind.FAULT else {step.actor, *filter(None, [step.to])}


def _participants(steps: list[TraceStep]) -> tuple[list[str], list[str]]:
    """Return the participants to show in order, and those that are left out for lack of space."""
    speaking = [m for m in steps if m.kind is not StepKind.BOOKIE]
    counts = Counter(name for step in speaking for name in sorted(_speakers(step)))
    late = {name for step in speaking[-LAST_ROWS:] for name in _speakers(step)}
    ranked = sorted(counts, key=lambda name: (name not in late, -counts[name], name))
    chosen = set(ranked[:PARTICIPANTS_MAX])
    in_order = [name for name in counts if name in chosen]
    alone = {m.actor for m in steps if m.kind is StepKind.BOOKIE}
    asked = {m.to for m in steps if m.kind is StepKind.REQUEST} & chosen
    # If there is space, also show bookies that exchange no messages.
    room = PARTICIPANTS_MAX - len(chosen)
    bookies = sorted({*asked, *sorted(alone - chosen)[:room]})
    clients = [name for name in in_order if name not in bookies and name != METADATA]
    metadata = [METADATA] if METADATA in chosen else []
    return [*clients, *bookies, *metadata], sorted(ranked[PARTICIPANTS_MAX:])


def _rows(steps: list[TraceStep], names: dict[str, str], *, one_ledger: bool) -> list[str]:
    head = ROWS_MAX // 4
    tail = ROWS_MAX - head
    rows = [_row(step, names, one_ledger=one_ledger) for step in steps]
    if len(rows) > ROWS_MAX:
        left_out = _note(names, f"{len(rows) - head - tail} steps are omitted")
        rows = [*rows[:head], left_out, *rows[-tail:]]
    return rows


def _row(step: TraceStep, names: dict[str, str], *, one_ledger: bool) -> str:
    what = step.what(ledger=not one_ledger)
    if step.kind in ARROWS:
        arrow = ARROWS[step.kind]
        return f"{names[step.actor]}{arrow}{names[step.to]}: {label(what)}"
    timed = f"{step.time_s:.3f} s, {what}"
    if step.kind is StepKind.FAULT:
        concerned = [name for name in names if re.search(rf"\b{re.escape(name)}(?![.\w])", what)]
        return _note({name: names[name] for name in concerned} or names, timed)
    return _note({step.actor: names[step.actor]}, timed)


def _note(names: dict[str, str], text: str, limit: int = LABEL_CHARACTERS_MAX) -> str:
    """Return a note over all of these participants, or '' if there are none."""
    over = list(names.values())
    if not over:
        return ""
    ends = over[0] if len(over) == 1 else f"{over[0]},{over[-1]}"
    return f"Note over {ends}: {label(text, limit)}"
