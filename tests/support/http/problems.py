"""Descriptions of bookies and of autorecovery, and the problems that the HTTP API finds in them."""

from __future__ import annotations

from typing import Any

from quire.http.views.problems.cluster import problems

GB = 10**9
WELL: dict[str, Any] = {
    "enabled": True, "auditor": "a", "marked": 0, "locked": 0, "failing": 0, "failures": [],
    "waiting": None,
}  # fmt: skip


def bookie(
    name: str, state: str = "writable", rack: str | None = None, free: int | None = 50
) -> dict[str, Any]:
    space = None if free is None or state == "gone" else free * GB
    total = None if space is None else 100 * GB
    return {
        "id": name, "state": state, "location": rack, "free_bytes": space, "total_bytes": total,
        "answers": None if state == "gone" else free is not None,
    }  # fmt: skip


def said(bookies: list[dict[str, Any]], **recovery: Any) -> list[tuple[str, str]]:
    return [(one.severity, one.what) for one in problems(bookies, {**WELL, **recovery})]
