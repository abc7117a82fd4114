"""A run as a sequence diagram in Mermaid: clients, bookies and metadata, and what passed between.

Of a run that failed with the name of a ledger, the diagram tells what concerns that ledger. It is
kept short enough to be looked at: what is left out is said.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from quire_simulator.report.story import METADATA, Kind, Moment, cut, together

if TYPE_CHECKING:
    from quire_simulator.run import Failure, Result

ROWS_MAX = 160
PARTICIPANTS_MAX = 14
LABEL_CHARACTERS_MAX = 160
LAW_CHARACTERS_MAX = 600
LINE_CHARACTERS_MAX = 80
LAST_ROWS = 30
"""Who takes part in the last rows is shown, however quiet before."""

CLIENT_VERBS_NOT_SHOWN = ("append", "observe", "create")
"""Their messages tell as much."""
BOOKIE_VERBS_SHOWN = (
    "crash", "crash in write", "kill", "serving", "stopped", "gave up", "session expired",
    "start failed", "storage_failed", "read_only", "writable", "continued", "registration_lost",
)  # fmt: skip
ARROWS = {Kind.REQUEST: "->>", Kind.ANSWER: "-->>", Kind.METADATA: "->>"}


def as_mermaid(result: Result) -> str:
    """The text of a diagram: `sequenceDiagram` and what follows."""
    ledger = ledger_of(result.failure)
    moments = together((m for m in result.story if _matters(m, ledger)), ROWS_MAX)
    shown, silent = _participants(moments)
    if not shown:
        bookies = sorted({m.actor for m in result.story if m.kind is Kind.BOOKIE})
        shown = bookies[:PARTICIPANTS_MAX]
    moments = [m for m in moments if _speakers(m) <= set(shown)]
    names = {name: f"p{number}" for number, name in enumerate(shown)}
    rows = _rows(moments, names, one_ledger=ledger is not None)
    title = f"seed {result.seed}, workload {result.workload}"
    if ledger is not None:
        title += f", ledger {ledger}"
    lines = ["sequenceDiagram", f"    title: {label(title)}"]
    lines += [f"    participant {names[name]} as {label(name)}" for name in shown]
    if silent:
        rows.insert(0, _note(names, f"not shown: {', '.join(silent)}"))
    if result.failure is not None:
        rows.append(
            _note(names, f"{result.failure.law}: {result.failure.what}", LAW_CHARACTERS_MAX)
        )
    elif shown:
        rows.append(_note(names, "every law holds"))
    return "\n".join([*lines, *(f"    {row}" for row in rows if row)]) + "\n"


def ledger_of(failure: Failure | None) -> int | None:
    found = re.search(r"\bledger (\d+)", failure.what) if failure is not None else None
    return int(found[1]) if found is not None else None


def label(text: str, limit: int = LABEL_CHARACTERS_MAX) -> str:
    """Text that ends no statement and begins no entity; in lines where it is long."""
    plain = re.sub(r"\s+", " ", text).replace(";", ",").replace("#", "no. ")
    plain = cut(re.sub(r"[<>]", "'", plain), limit)
    return "<br/>".join(textwrap.wrap(plain, LINE_CHARACTERS_MAX))


def _matters(moment: Moment, ledger: int | None) -> bool:
    match moment.kind:
        case Kind.LAW:
            return False  # it ends the diagram anyway
        case Kind.FAULT:
            return True
        case Kind.BOOKIE:
            # All of them start at the begin.
            return moment.verb in BOOKIE_VERBS_SHOWN and moment.time_s > 0
        case Kind.CLIENT if moment.verb in CLIENT_VERBS_NOT_SHOWN:
            return False
    return moment.ledger_id == ledger if ledger is not None else moment.ledger_id >= 0


def _speakers(moment: Moment) -> set[str]:
    """Whom a row needs; a fault needs nobody."""
    return set() if moment.kind is Kind.FAULT else {moment.actor, *filter(None, [moment.to])}


def _participants(moments: list[Moment]) -> tuple[list[str], list[str]]:
    """Those that are shown, in their order; those for whom there is no room."""
    speaking = [m for m in moments if m.kind is not Kind.BOOKIE]
    counts = Counter(name for moment in speaking for name in sorted(_speakers(moment)))
    late = {name for moment in speaking[-LAST_ROWS:] for name in _speakers(moment)}
    ranked = sorted(counts, key=lambda name: (name not in late, -counts[name], name))
    chosen = set(ranked[:PARTICIPANTS_MAX])
    in_order = [name for name in counts if name in chosen]
    alone = {m.actor for m in moments if m.kind is Kind.BOOKIE}
    asked = {m.to for m in moments if m.kind is Kind.REQUEST} & chosen
    # Those that say nothing to anybody, too, while there is room.
    room = PARTICIPANTS_MAX - len(chosen)
    bookies = sorted({*asked, *sorted(alone - chosen)[:room]})
    clients = [name for name in in_order if name not in bookies and name != METADATA]
    metadata = [METADATA] if METADATA in chosen else []
    return [*clients, *bookies, *metadata], sorted(ranked[PARTICIPANTS_MAX:])


def _rows(moments: list[Moment], names: dict[str, str], *, one_ledger: bool) -> list[str]:
    head = ROWS_MAX // 4
    tail = ROWS_MAX - head
    rows = [_row(moment, names, one_ledger=one_ledger) for moment in moments]
    if len(rows) > ROWS_MAX:
        left_out = _note(names, f"{len(rows) - head - tail} steps are left out")
        rows = [*rows[:head], left_out, *rows[-tail:]]
    return rows


def _row(moment: Moment, names: dict[str, str], *, one_ledger: bool) -> str:
    what = moment.what(ledger=not one_ledger)
    if moment.kind in ARROWS:
        arrow = ARROWS[moment.kind]
        return f"{names[moment.actor]}{arrow}{names[moment.to]}: {label(what)}"
    timed = f"{moment.time_s:.3f} s, {what}"
    if moment.kind is Kind.FAULT:
        concerned = [name for name in names if re.search(rf"\b{re.escape(name)}(?![.\w])", what)]
        return _note({name: names[name] for name in concerned} or names, timed)
    return _note({moment.actor: names[moment.actor]}, timed)


def _note(names: dict[str, str], text: str, limit: int = LABEL_CHARACTERS_MAX) -> str:
    """Over all of these; empty where there is nobody."""
    over = list(names.values())
    if not over:
        return ""
    ends = over[0] if len(over) == 1 else f"{over[0]},{over[-1]}"
    return f"Note over {ends}: {label(text, limit)}"
