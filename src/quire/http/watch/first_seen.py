"""Since when each problem of a cluster is known, as one server has seen it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from quire.http.views.problems.problem import Problem

GAP_MAX_MS = 60_000
"""The longest time between two observations, in milliseconds, after which a new problem counts as
having begun with the second one. After a longer time, it is only known to have begun before."""


class FirstSeen:
    """The time at which each current problem was first seen. It forgets problems that are over."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, bool]] = {}
        self._last_ms: int | None = None

    def mark(self, problems: Iterable[Problem], now_ms: int) -> list[Problem]:
        """Return the problems that were found now, each with the time since when it is known."""
        watched = self._last_ms is not None and now_ms - self._last_ms <= GAP_MAX_MS
        current, marked = {}, []
        for one in problems:
            key = _key(one)
            current[key] = self._seen.get(key, (now_ms, not watched))
            since_ms, before = current[key]
            marked.append(replace(one, since_ms=since_ms, since_before=before))
        self._seen, self._last_ms = current, now_ms
        return marked


def _key(problem: Problem) -> str:
    """Return the cause of a problem, without details that change while it lasts."""
    return re.sub(r" \([^)]*\)", "", problem.what).partition(": ")[0]
