"""What is wrong with continuous copies of streams: stopped, failed in part, or far behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quire._runtime.units import are, counted, duration_text, listed, utc_text, verb
from quire.replication.marks.copy_notes import CopyNote


@dataclass(frozen=True, slots=True)
class CopyProblem:
    """A finding about one continuous copy. The fields are those of the dashboard's problems."""

    what: str
    """A sentence that says what is wrong."""
    next: str
    """What to do, with the commands to type."""
    risk: str
    """The possible consequences."""
    doing: str
    """What Quire does by itself."""
    items: tuple[str, ...] = ()
    """The streams that `what` counts, and how many more there are."""


def of_copies(notes: Iterable[CopyNote], own_id: str, now_ms: int) -> Iterator[CopyProblem]:
    """Yield the problems of the continuous copies that have a note in a cluster.

    `own_id` is the instance id of this cluster, which is the source or the target of each copy.
    """
    for one in notes:
        state = one.state(now_ms)
        if state == "stopped":
            yield _stopped(one, own_id, now_ms)
        elif state == "failed":
            yield _failed(one, own_id)
        elif state == "behind":
            yield _behind(one, own_id, now_ms)


def copied(one: CopyNote, own_id: str) -> str:
    """Return what is copied and to where, as the object of a sentence.

    The other cluster is named by the URI of its metadata store.
    """
    what = f"the streams of {one.source_namespace}"
    if one.streams != "*":
        what = f"the streams {one.streams} of {one.source_namespace}"
    if one.source_id == one.target_id:
        return f"{what} to {one.target_namespace}"
    if own_id == one.source_id:
        return f"{what} to {one.target_namespace} in {one.target}"
    return f"{what} in {one.source} to {one.target_namespace}"


def _stopped(one: CopyNote, own_id: str, now_ms: int) -> CopyProblem:
    why = (
        f"{one.by} ended with an error {_ago(one, now_ms)}: {one.error.rstrip('.')}"
        if one.error
        else f"{one.by} last reported {_ago(one, now_ms)}"
    )
    return CopyProblem(
        f"The continuous copy of {copied(one, own_id)} has stopped: {why}",
        _again(one),
        f"The copy lacks what was written since{_lag_then(one)}. A record that the source "
        "truncates first is never copied",
        "Nothing: Quire does not start the command again",
    )


def _lag_then(one: CopyNote) -> str:
    """Return how far the copy was behind at its last report, with a comma before, or ""."""
    if not one.records:
        return ""
    was = "was" if one.records == 1 else "were"
    return f", and {counted(one.records, 'record')} that {was} not copied then"


def _failed(one: CopyNote, own_id: str) -> CopyProblem:
    items = [f"{lag.stream}: {lag.error.rstrip('.')}" for lag in one.lags if lag.error]
    return CopyProblem(
        f"{counted(one.failed, 'stream')} of {one.count} {are(one.failed)} no longer copied by "
        f"{one.by}, which copies {copied(one, own_id)}",
        f"Mend what the reasons say. Then end {one.by} and start it again: {one.restart()}",
        "The copies of these streams lack what was written since",
        "The other streams are copied",
        listed(items, one.failed),
    )


def _behind(one: CopyNote, own_id: str, now_ms: int) -> CopyProblem:
    waits = "an unknown number of records waits"
    if one.records is not None:
        waits = f"{counted(one.records, 'record')} {verb('wait', one.records)}"
    return CopyProblem(
        f"The continuous copy of {copied(one, own_id)} is far behind: {waits} "
        f"to be copied by {one.by}, the oldest for {duration_text(one.behind_s(now_ms))}",
        f"Look at the load of both clusters, and at the log of {one.by}. If one process cannot "
        "copy everything, copy the streams by several processes, each with its own --streams",
        "If the source is lost now, these records are lost. A record that the source truncates "
        "first is never copied",
        f"{one.by} goes on copying",
        listed(lag.stream for lag in one.lags),
    )


def _again(one: CopyNote) -> str:
    return (
        f"Start it again where it ran, with its options for passwords and TLS: {one.restart()}. "
        f"If nobody needs the copy any more, forget it: {one.forget()}"
    )


def _ago(one: CopyNote, now_ms: int) -> str:
    return f"{duration_text(one.silent_s(now_ms))} ago, at {utc_text(one.said_ms)}"
