"""What is wrong with a ledger in one sentence, and what to type. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.replication.explain.explain import Explained, Replica

NAMED_MAX = 5
"""Bookies in a sentence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    sentence: str
    command: str
    """What to type; '' where nothing is to be done."""


def verdict(facts: Explained) -> Explained:
    """The same with its verdict."""
    return replace(facts, verdict=_verdict(facts))


def _verdict(facts: Explained) -> Verdict:
    lost = sorted({one.bookie for one in _lost_ones(facts)})
    bad = [one for one in _replicas(facts) if one.state in ("missing", "damaged", "different")]
    short = [one for one in _replicas(facts) if one.state == "short"]
    if any(not one.copies_min for one in facts.segments):
        return _unreadable(facts, lost)
    if lost:
        return _lost(facts, lost)
    if bad:
        what = _named(sorted({f"{one.bookie} ({one.state})" for one in bad}))
        return Verdict(
            f"Replicas are not what they should be: {what}. {_why(facts)}",
            f"quire pipeline audit --ledger {facts.ledger} --repair",
        )
    if short:
        what = _named(sorted({one.bookie for one in short}))
        return Verdict(
            f"Nothing is lost: every entry is on its ack quorum, but the last ones of a segment "
            f"never reached {what}, which may be so",
            f"quire pipeline audit --ledger {facts.ledger} --repair",
        )
    if facts.mark is not None:
        return Verdict(
            f"Nothing that was looked at is wrong, but the ledger is marked for repair: "
            f"{facts.mark.sentence()}",
            "" if facts.deep else f"quire explain ledger {facts.ledger} --deep",
        )
    looked = "every entry was read" if facts.deep else "--deep reads every entry"
    return Verdict(f"Nothing is wrong: all replicas are there ({looked})", "")


def _replicas(facts: Explained) -> list[Replica]:
    return [one for segment in facts.segments for one in segment.replicas]


def _lost_ones(facts: Explained) -> list[Replica]:
    return [one for one in _replicas(facts) if one.state == "unreachable"]


def _unreadable(facts: Explained, lost: list[str]) -> Verdict:
    if lost:
        return Verdict(
            f"Entries have no good copy that answers: bring back {_named(lost)}",
            f"quire explain ledger {facts.ledger} --deep",
        )
    return Verdict(
        "Entries have no good copy on any bookie: they are lost, unless a backup of a bookie's "
        "directory has them",
        f"quire explain ledger {facts.ledger} --deep",
    )


def _lost(facts: Explained, lost: list[str]) -> Verdict:
    newest = facts.segments[-1]
    waits = not newest.closed and any(one.bookie in lost for one in newest.replicas)
    gone = sorted({one.bookie for one in _replicas(facts) if one.bookie in lost
                   and one.registered == "gone"})  # fmt: skip
    what = f"{_named(lost)} {'does' if len(lost) == 1 else 'do'} not answer"
    if not gone:
        return Verdict(
            f"{what}, but {'is' if len(lost) == 1 else 'are'} registered: look at the network, and "
            "at the bookie's log",
            "quire cluster bookies --space",
        )
    if not facts.spare:
        return Verdict(
            f"{what}, and there is no writable bookie that is not in the ensemble already: start "
            "another one",
            "quire bookie --dir DIR",
        )
    if waits:
        return Verdict(
            f"{what}, and the last segment is open there: its writer replaces the bookie with its "
            f"next entry if it lives; else the ledger has to be closed first. {_why(facts)}",
            f"quire bookie recover {gone[0]}",
        )
    return Verdict(f"{what}. {_why(facts)}", f"quire bookie recover {gone[0]}")


def _why(facts: Explained) -> str:
    """Why it is not repaired yet."""
    if facts.mark is not None:
        return f"Not repaired yet: {facts.mark.sentence()}"
    if not facts.enabled:
        return "Not repaired yet: autorecovery is disabled (quire autorecovery enable)"
    if facts.auditor is None:
        return "Not repaired yet: no auditor runs (quire autorecovery start)"
    if facts.waiting is not None and facts.waiting[0] in {one.bookie for one in _lost_ones(facts)}:
        bookie, left_s = facts.waiting
        return (
            f"Not repaired yet: the auditor {facts.auditor} waits {left_s:.0f} s more for {bookie} "
            "to come back (at once: quire autorecovery trigger)"
        )
    if facts.delay_s:
        return (
            f"Not repaired yet: it is not marked; the auditor {facts.auditor} waits up to "
            f"{facts.delay_s} s for a lost bookie"
        )
    return f"Not repaired yet: the auditor {facts.auditor} has not marked it"


def _named(names: list[str]) -> str:
    if len(names) <= NAMED_MAX:
        return ", ".join(names)
    return f"{', '.join(names[:NAMED_MAX])} and {len(names) - NAMED_MAX} more"
