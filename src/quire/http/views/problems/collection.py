"""The problems of garbage collection: bookies that refuse to delete, and the cluster's switch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire._runtime.units import some_of
from quire.http.views.problems.problem import Problem


@dataclass(frozen=True, slots=True)
class Collection:
    """The state of garbage collection in the cluster."""

    off: str = ""
    """A sentence that says who switched it off for the cluster. Empty if nobody did."""
    refusing: tuple[str, ...] = ()
    """The bookies that found that the metadata store went back in time."""
    unreadable: tuple[str, ...] = ()
    """The bookies whose mark in the store could not be read."""
    later: tuple[str, ...] = ()
    """The bookies whose mark a later version of Quire wrote. They may refuse or not."""


def of_collection(found: Collection, lost: int = 0) -> Iterator[Problem]:
    """Yield the problems of garbage collection.

    `lost` is the number of ledgers that are known to be missing. Bookies may still have entries of
    these, so collection must stay off until they are restored.
    """
    if found.refusing:
        yield Problem(
            "bad",
            f"The metadata store went back in time, as detected by {some_of(found.refusing)}: a "
            "backup was restored, or its newest writes are lost",
            "Run quire cluster gc status, then follow docs/guides/repair/disaster-recovery.md "
            "to find what is missing",
            "The store has lost the metadata of ledgers that were created or moved after that "
            "state. They cannot be read",
            "These bookies delete nothing until an operator accepts the store "
            "(quire cluster gc accept)",
            found.refusing,
        )
    if found.unreadable:
        yield Problem(
            "bad",
            f"The marks of {some_of(found.unreadable)} in the metadata store cannot be read",
            "Run quire cluster gc status. If the store was not restored from a backup, run quire "
            "cluster gc accept",
            "It is unknown whether the store went back in time",
            "These bookies delete nothing until an operator accepts the store",
            found.unreadable,
        )
    if found.later:
        yield Problem(
            "note",
            f"A later version of Quire wrote the marks of {some_of(found.later)} in the metadata "
            "store, so this version cannot tell whether these bookies collect garbage",
            "Run quire explain cluster of that version",
            bookies=found.later,
        )
    if found.off:
        yield Problem(
            "warn",
            f"{found.off[:1].upper()}{found.off[1:]}",
            "Leave it off until no ledger is missing any more, as the findings about them say"
            if lost
            else "quire cluster gc on",
            "The space of deleted ledgers is not freed",
        )
