"""The problems of bookies that are registered and do not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quire._runtime.names.in_commands import COMMANDS_MAX
from quire._runtime.units import are, does, listed, some_of, them
from quire.http.views.problems.autorecovery import unrepaired
from quire.http.views.problems.certificates import own_file
from quire.http.views.problems.lost_bookies import start_each
from quire.http.views.problems.problem import Bookie, Problem
from quire.replication.explain.silence import SilenceKind, renewal, silent_repair

NOT_ASKED: Mapping[str, Any] = {"kind": SilenceKind.OTHER, "why": "", "remedy": ""}
"""The silence of a bookie for which no reason is known."""

AUTHORITY_FIRST = (
    "The authority that signed its certificate has expired. Renew that first, as its own finding "
    "says"
)


def of_silent_bookies(
    bookies: Sequence[Bookie],
    autorecovery: Mapping[str, Any],
    *,
    authority_expired: bool = False,
) -> Iterator[Problem]:
    """Yield a problem for each kind of reason why registered bookies do not answer.

    `authority_expired` says that this process trusts no authority that is still valid.
    """
    groups: dict[tuple[str, str], list[Bookie]] = {}
    for one in bookies:
        if one["state"] != "gone" and one["answers"] is False:
            silence = one.get("silence") or NOT_ASKED
            groups.setdefault((silence["kind"], silence["remedy"]), []).append(one)
    for (kind, remedy), silent in groups.items():
        if kind == SilenceKind.EXPIRED and authority_expired:
            remedy = AUTHORITY_FIRST
        elif kind == SilenceKind.EXPIRED:
            remedy = renewal(remedy, {one["id"]: own_file(one) for one in silent})
        down = kind == SilenceKind.REFUSED
        doing = silent_repair(unrepaired(autorecovery), down=down)
        yield _silent(SilenceKind(kind), remedy, silent, doing)


def _silent(kind: SilenceKind, remedy: str, silent: Sequence[Bookie], doing: str) -> Problem:
    names = [one["id"] for one in silent]
    why, items = _reasons(silent)
    those = them(len(names))
    risk = (
        f"Readers use the copies on other bookies, and writers replace {those} in their ensembles"
    )
    if kind is SilenceKind.REFUSED:
        process = "Its process does" if len(names) == 1 else "Their processes do"
        remedy = f"{process} not run. {start_each(silent)}"
    elif kind.is_refusal:
        risk = f"No new connection to {those} succeeds. Connections that are open continue. {risk}"
    else:
        remedy = (
            f"Check {'its log' if len(names) == 1 else 'their logs'} and the network to {those}. "
            f"If {'it' if len(names) == 1 else 'one'} hangs, stop it: then it counts as lost"
        )
    return Problem(
        "bad",
        f"{some_of(names)} {are(len(names))} registered but {does(len(names))} not answer{why}",
        remedy,
        risk,
        doing,
        tuple(names),
        items,
    )


def _reasons(silent: Sequence[Bookie]) -> tuple[str, tuple[str, ...]]:
    """Return the reason that all these bookies have, in brackets, or the bookies of each reason.

    The first text is "" if the reasons differ or are not known.
    """
    by_reason: dict[str, list[str]] = {}
    for one in silent:
        by_reason.setdefault((one.get("silence") or NOT_ASKED)["why"], []).append(one["id"])
    if len(by_reason) == 1:
        (why,) = by_reason
        each = "" if len(silent) == 1 else "each: "
        return (f" ({each}{why})" if why else ""), ()
    told = [
        f"{some_of(names)}: {why or 'the reason is not known'}" for why, names in by_reason.items()
    ]
    return "", listed(told, limit=COMMANDS_MAX)
