"""One problem of a cluster, and the description of a bookie that problems are found in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["bad", "warn", "note"]
"""`bad`: data or writing is at stake now. `warn`: it will be. `note`: good to know."""


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


Bookie = Mapping[str, Any]
"""A bookie as `bookie_list.bookie_facts` describes it, including its disk space."""
