"""The readable trace of a run: who did what, and who said what to whom, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

TOGETHER_S = 0.25
"""Steps of one kind that are no further apart are shown as one."""
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
"""What happened before one of these and after it is never told as one."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step, or several of a kind: entries first..last (-1: it names none)."""

    time_s: float
    """Since the begin of the run."""
    kind: StepKind
    actor: str
    verb: str
    to: str = ""
    ledger_id: int = -1
    first: int = -1
    last: int = -1
    lac: int | None = None
    """The last one that was said."""
    note: str = ""
    count: int = 1
    """Of entries, or of repetitions."""
    until_s: float = -1.0

    @property
    def end_s(self) -> float:
        return max(self.time_s, self.until_s)

    def what(self, *, ledger: bool = True) -> str:
        """In words, without who and when."""
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
        """Both as one, where `other` goes on with what this one does."""
        if other.time_s - self.end_s > TOGETHER_S:
            return None
        repeats = (self.first, self.last) == (other.first, other.last)
        follows = self.last >= 0 and 0 < other.first - self.last <= STRIDE_MAX
        if not repeats and (not follows or self.count > self.last - self.first + 1):
            return None
        if repeats and self.first >= 0 and self.first != self.last:
            return None  # a range twice cannot be told from a longer one by its count
        return replace(
            self,
            last=other.last,
            lac=other.lac,
            until_s=other.end_s,
            count=self.count + other.count,
        )


def together(steps: Iterable[TraceStep], room: int) -> list[TraceStep]:
    """Steps of one kind that follow each other, as one. Where there is no room for so many, also
    those with steps of others in between: their order is lost."""
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
    """A bookie that starts in vain does so again and again: once is enough."""
    told: list[TraceStep] = []
    at = 0
    while at < len(steps):
        size = next((n for n in range(1, REFRAIN_STEPS_MAX + 1) if _again(told, steps, at, n)), 0)
        if size == 0:
            told.append(steps[at])
        at += size or 1
    return told


def _again(told: list[TraceStep], steps: list[TraceStep], at: int, size: int) -> bool:
    """Whether the next steps say what the last ones said."""
    last, upcoming = told[-size:], steps[at : at + size]
    return len(last) == len(upcoming) == size and all(
        one.kind is StepKind.BOOKIE and replace(one, time_s=other.time_s) == other
        for one, other in zip(last, upcoming)
    )


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."
