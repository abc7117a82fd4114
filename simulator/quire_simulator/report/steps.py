"""The readable trace of a run: its actions and messages, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

TOGETHER_S = 0.25
"""The longest gap between similar steps that are shown as one."""
REFRAIN_STEPS_MAX = 4
STRIDE_MAX = 8
"""The largest distance between neighbouring entries of a striped ledger on one bookie."""


class StepKind(Enum):
    REQUEST = "request"
    ANSWER = "answer"
    CLIENT = "client"
    BOOKIE = "bookie"
    METADATA = "metadata"
    FAULT = "fault"
    INVARIANT = "law"


BARRIERS = (StepKind.BOOKIE, StepKind.METADATA, StepKind.FAULT, StepKind.INVARIANT)
"""Steps before and after one of these kinds are never merged."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step, or several similar ones, with entries first..last (-1: none)."""

    time_s: float
    """Seconds since the beginning of the run."""
    kind: StepKind
    actor: str
    verb: str
    to: str = ""
    ledger_id: int = -1
    first: int = -1
    last: int = -1
    lac: int | None = None
    """The most recent LAC in these steps."""
    note: str = ""
    count: int = 1
    """The number of entries or repetitions."""
    until_s: float = -1.0

    @property
    def end_s(self) -> float:
        return max(self.time_s, self.until_s)

    def what(self, *, ledger: bool = True) -> str:
        """Describe the step without its actor and time."""
        parts = [self.verb]
        if self.first >= 0:
            span = self.last - self.first + 1
            parts.append(str(self.first) if span == 1 else f"{self.first}..{self.last}")
            if self.count != max(1, span) and self.last > self.first:
                parts.append(f"({self.count} of them)")
        if ledger and self.ledger_id >= 0:
            named = self.first >= 0 or self.kind in (StepKind.REQUEST, StepKind.ANSWER)
            parts.append(f"{'of ' if named else ''}ledger {self.ledger_id}")
        if self.lac is not None:
            parts.append(f"(LAC {self.lac})")
        if self.note:
            parts.append(f"({self.note})")
        if self.count > 1 and self.first == self.last:
            parts.append(f"x{self.count}")
        return " ".join(parts)

    def joined(self, other: TraceStep) -> TraceStep | None:
        """Return both steps as one if `other` continues this one, or None."""
        if other.time_s - self.end_s > TOGETHER_S:
            return None
        repeats = (self.first, self.last) == (other.first, other.last)
        follows = self.last >= 0 and 0 < other.first - self.last <= STRIDE_MAX
        if not repeats and (not follows or self.count > self.last - self.first + 1):
            return None
        if repeats and self.first >= 0 and self.first != self.last:
            return None  # The count could not distinguish a repeated range from a longer one.
        return replace(
            self,
            last=other.last,
            lac=other.lac,
            until_s=other.end_s,
            count=self.count + other.count,
        )


def together(steps: Iterable[TraceStep], room: int) -> list[TraceStep]:
    """Merge similar steps that follow each other.

    If more than `room` steps remain, steps with others in between are merged too, which loses their
    order.
    """
    told = _joined(_without_refrain(list(steps)), across=False)
    return told if len(told) <= room else _joined(told, across=True)


def _joined(steps: list[TraceStep], *, across: bool) -> list[TraceStep]:
    told: list[TraceStep] = []
    going_on: dict[tuple[object, ...], int] = {}
    for step in steps:
        if not across or step.kind in BARRIERS or "fence" in step.verb:
            last = max(going_on.values(), default=-1)
            going_on = {key: at for key, at in going_on.items() if not across and at == last}
        key = (step.kind, step.actor, step.to, step.verb, step.ledger_id, step.note)
        at = going_on.get(key)
        joined = None if at is None else told[at].joined(step)
        if at is not None and joined is not None:
            told[at] = joined
        else:
            going_on[key] = len(told)
            told.append(step)
    return told


def _without_refrain(steps: list[TraceStep]) -> list[TraceStep]:
    """Remove repetitions, such as a bookie that fails to start again and again."""
    told: list[TraceStep] = []
    at = 0
    while at < len(steps):
        size = next((n for n in range(1, REFRAIN_STEPS_MAX + 1) if _again(told, steps, at, n)), 0)
        if size == 0:
            told.append(steps[at])
        at += size or 1
    return told


def _again(told: list[TraceStep], steps: list[TraceStep], at: int, size: int) -> bool:
    """Return whether the next steps repeat the last ones."""
    last, upcoming = told[-size:], steps[at : at + size]
    return len(last) == len(upcoming) == size and all(
        one.kind is StepKind.BOOKIE and replace(one, time_s=other.time_s) == other
        for one, other in zip(last, upcoming)
    )


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."
