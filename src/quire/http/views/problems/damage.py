"""The problem of damaged data that bookies found on their disks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.units import counted, verb
from quire.http.views.bookie_list import damaged
from quire.http.views.problems.problem import Bookie, Problem


def of_damage(bookies: Sequence[Bookie], autorecovery: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each bookie whose metrics report damaged segments."""
    for one in bookies:
        if not damaged(one):
            continue
        segments, ledgers = one["damaged"]["segments"], one["damaged"]["ledgers"]
        directory = next(iter(one.get("directories") or ()), "")
        scrub = f"quire bookie scrub {shlex.quote(directory) if directory else 'DIR'}"
        yield Problem(
            "warn" if ledgers else "note",
            f"{one['id']} found damaged data in {counted(segments, 'segment')} of its log: "
            f"{counted(ledgers, 'ledger')} {verb('lack', ledgers)} entries there",
            f"{_start(autorecovery)}To see on its machine what is damaged: {scrub}. If damage is "
            "found again, check the disk: it may be failing",
            "Readers use the other copies of these entries. They are lost if those copies are lost "
            "as well" if ledgers else "",
            _doing(autorecovery, ledgers),
            (one["id"],),
        )  # fmt: skip


def _start(found: Mapping[str, Any]) -> str:
    if not found["enabled"]:
        return "To have the copies restored: quire autorecovery enable. "
    if found["auditor"] is None:
        return "To have the copies restored: quire autorecovery start. "
    return ""


def _doing(found: Mapping[str, Any], ledgers: int) -> str:
    if not ledgers:
        return "The bookie rewrites the segment without the damaged part"
    if not found["enabled"]:
        return "Nothing is copied, because autorecovery is switched off"
    if found["auditor"] is None:
        return "Nothing is copied, because no autorecovery process is running"
    return (
        "Autorecovery copies these entries from other bookies. The bookie then rewrites the segment"
    )
