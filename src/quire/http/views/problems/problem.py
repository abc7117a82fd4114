"""One problem of a cluster, and the description of a bookie that problems are found in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, get_args

from quire._runtime.units import are, duration_text, some_of, them, utc_text, verb

Severity = Literal["bad", "warn", "note"]
"""`bad`: data or writing is at stake now. `warn`: it will be. `note`: good to know."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The severities of problems, the worst first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding about the cluster, as the dashboard and `quire explain` show it."""

    severity: Severity
    what: str
    """A sentence that says what is wrong."""
    next: str
    """The command to type, or the action to take."""
    risk: str = ""
    """The possible consequences. Empty if `what` already names them."""
    doing: str = ""
    """A sentence about what Quire does by itself, or why it does nothing. Empty if there is nothing
    that Quire could do."""
    bookies: tuple[str, ...] = ()
    """The ids of the bookies that the problem is about."""
    items: tuple[str, ...] = ()
    """The things that `what` counts, a phrase for each, and at the end how many more there are.
    Empty if `what` names them itself."""
    since_ms: int | None = None
    """The Unix time in milliseconds at which the server first saw the problem, or None."""
    since_before: bool = False
    """Whether the problem may be older than `since_ms`, because the server did not look before."""


class _Rated(Protocol):
    @property
    def severity(self) -> Severity: ...


R = TypeVar("R", bound=_Rated)


def worst_first(found: Iterable[R]) -> list[R]:
    """Return problems or warnings by severity, and otherwise in their order."""
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def worst_of(found: Collection[str | None]) -> Severity | None:
    """Return the worst of some severities, or None if there is none among them."""
    return next((one for one in SEVERITIES if one in found), None)


def severities(problems: Iterable[Problem]) -> dict[str, Severity]:
    """Return the worst severity of the problems that name a bookie, by the bookie's id.

    Bookies that no problem names are missing.
    """
    found: dict[str, Severity] = {}
    for one in worst_first(problems):
        for bookie in one.bookies:
            found.setdefault(bookie, one.severity)
    return found


Bookie = Mapping[str, Any]
"""A bookie as `bookie_list.bookie_facts` describes it, including its disk space."""


def ago(at_ms: int, now_ms: int) -> str:
    """Return how long ago a Unix time in milliseconds was, and that time."""
    return f"{duration_text(max(0, now_ms - at_ms) / 1000)} ago, at {utc_text(at_ms)}"


def follows_from(lost: Collection[str]) -> str:
    """Return the sentence that a problem is a consequence of lost bookies, without its period."""
    those = them(len(lost))
    return (
        f"This follows from {some_of(lost)}, which {are(len(lost))} gone: bring {those} "
        f"back, as the finding about {those} says"
    )


def waits_for(loading: Collection[str]) -> str:
    """Return the sentence that a problem ends once bookies have started, without its period."""
    number = len(loading)
    return (
        f"This ends by itself once {some_of(loading)} {verb('have', number)} loaded "
        f"{'its log' if number == 1 else 'their logs'}: wait for {them(number)}"
    )
