"""What is wrong with a cluster, in sentences, and what to type. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

NAMED_MAX = 5
"""Bookies in a sentence."""
FULL_SHARE = 0.05
"""A disk with less of it free is nearly full."""

Severity = Literal["bad", "warn", "note"]
"""bad: data or writing is at stake now; warn: it will be; note: worth to know."""


@dataclass(frozen=True, slots=True)
class Problem:
    severity: Severity
    what: str
    next: str
    """What to do, or to type."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


Bookie = Mapping[str, Any]
"""As `bookie_list.bookie_facts` gives it, with its space."""


def problems(bookies: Sequence[Bookie], autorecovery: Mapping[str, Any]) -> list[Problem]:
    """The worst first. `autorecovery`: as `Overview.as_json` gives it."""
    found = [*_of_bookies(bookies), *_of_autorecovery(autorecovery)]
    return sorted(found, key=lambda one: ("bad", "warn", "note").index(one.severity))


def _of_bookies(bookies: Sequence[Bookie]) -> Iterator[Problem]:
    if not any(one["state"] == "writable" for one in bookies):
        yield Problem(
            "bad", "No bookie takes entries: nothing can be written", "quire bookie start --dir DIR"
        )
    lost = _lost_locations(bookies)
    for location, names in lost.items():
        yield Problem(
            "bad",
            f"All of {location} is gone: {_named(names)}",
            "Look at its power and network. Autorecovery copies what was there after its delay, "
            "where bookies elsewhere have the room",
        )
    gone = [one["id"] for one in bookies if one["state"] == "gone" and one["location"] not in lost]
    if gone:
        yield Problem(
            "bad",
            f"{_named(gone)} {_is(gone)} not registered: stopped, or cut off from the metadata",
            "Start it again. Where it is lost for good: "
            f"quire bookie recover {gone[0] if len(gone) == 1 else 'BOOKIE'}",
        )
    silent = [one["id"] for one in bookies if one["state"] != "gone" and _free(one) is None]
    if silent:
        yield Problem(
            "bad",
            f"{_named(silent)} {_is(silent)} registered, and does not answer",
            "Look at its log, and at the network to it",
        )
    for one in bookies:
        yield from _of_disk(one)


def _of_disk(bookie: Bookie) -> Iterator[Problem]:
    share = _free(bookie)
    full = share is not None and share < FULL_SHARE
    told = "" if share is None else f"; {share:.0%} of its disk is free"
    if bookie["state"] == "read-only":
        why = "its disk is full" if full else "its disk, a damage, or an operator's wish"
        yield Problem(
            "warn",
            f"{bookie['id']} is read-only ({why}){told}",
            "Its log says why. Delete ledgers or give it room: docs/disk.md",
        )
    elif full:
        yield Problem(
            "warn",
            f"The disk of {bookie['id']} is nearly full{told}",
            "Delete ledgers, give it room, or: quire cluster rebalance",
        )


def _of_autorecovery(found: Mapping[str, Any]) -> Iterator[Problem]:
    if not found["enabled"]:
        yield Problem("warn", "Autorecovery is switched off", "quire autorecovery enable")
    if found["auditor"] is None:
        yield Problem(
            "warn" if found["marked"] else "note",
            "Nobody looks for lost bookies: no autorecovery runs",
            "quire autorecovery start",
        )
    if found["failing"]:
        first = found["failures"][0] if found["failures"] else None
        why = f", such as {first['ledger']}: {first['failure']['reason']}" if first else ""
        yield Problem(
            "bad",
            f"Ledgers could not be repaired: {found['failing']}{why}",
            f"quire explain ledger {first['ledger']}" if first else "quire autorecovery list",
        )
    elif found["marked"]:
        yield Problem(
            "warn", f"Ledgers that lack replicas: {found['marked']}", "quire autorecovery list"
        )


def _lost_locations(bookies: Sequence[Bookie]) -> dict[str, list[str]]:
    """Those of several bookies that are all gone, while there are others."""
    members: dict[str, list[Bookie]] = {}
    for one in bookies:
        if one["location"]:
            members.setdefault(one["location"], []).append(one)
    return {
        location: [one["id"] for one in those]
        for location, those in members.items()
        if len(those) > 1 and all(one["state"] == "gone" for one in those)
    }


def _free(bookie: Bookie) -> float | None:
    """The share of its disk that is free; None: it did not tell."""
    if bookie.get("free_bytes") is None or not bookie.get("total_bytes"):
        return None
    return float(bookie["free_bytes"] / bookie["total_bytes"])


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
