"""A run as lines of text."""

from __future__ import annotations

from quire_simulator.report.result import RunResult
from quire_simulator.report.steps import StepKind, TraceStep, together

TEXT_LINES_MAX = 3_000
TEXT_ROOM_LINES = 200
"""A longer text is shown with less detail."""

ARROWS = {StepKind.REQUEST: "->", StepKind.ANSWER: "-->", StepKind.METADATA: "->"}


def as_text(result: RunResult, *, every_step: bool = False) -> list[str]:
    """Return lines with time, actor and action in columns.

    There are at most `TEXT_LINES_MAX` lines unless `every_step` is true, which also shows similar
    steps one by one.
    """
    steps = list(result.trace) if every_step else together(result.trace, TEXT_ROOM_LINES)
    width = max((len(step.actor) for step in steps), default=0)
    lines = [line(step, width) for step in steps]
    return lines if every_step else middle_left_out(lines, TEXT_LINES_MAX)


def line(step: TraceStep, width: int) -> str:
    what = step.what()
    if step.kind in ARROWS:
        what = f"{ARROWS[step.kind]} {step.to}: {what}"
    if step.until_s > step.time_s:
        what = f"{what} until {step.until_s:.4f}"
    return f"{step.time_s:10.4f}  {step.actor:{width}}  {what}"


def middle_left_out(lines: list[str], limit: int) -> list[str]:
    """Omit lines from the middle. The failure is at the end, and its cause often shortly before."""
    if len(lines) <= limit:
        return lines
    head = limit // 4
    tail = limit - head - 1
    left_out = len(lines) - head - tail
    return [*lines[:head], f"... {left_out} steps are omitted ...", *lines[-tail:]]
