"""Reports of items that a pass over many of them could not read.

A pass skips such an item, counts it, and names it at its end. It never deletes anything that the
item may own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from quire.errors import MetadataError, MetadataUnavailableError

NAMED_MAX = 10
"""The number of skipped items that one log event names; all are counted."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """One item that a pass skipped."""

    what: str
    """The kind and name of the item, for example "ledger 7" or "dataset 'flights'"."""
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class skipping:
    """A context manager that records an item as skipped if a MetadataError about it is raised.

    Errors of the classes `more` are recorded as well. MetadataUnavailableError is raised, because
    it does not concern one item.
    """

    def __init__(self, what: str, skipped: list[Skipped], *more: type[Exception]) -> None:
        self._what, self._skipped = what, skipped
        self._errors: tuple[type[Exception], ...] = (MetadataError, *more)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        skip = isinstance(error, self._errors) and not isinstance(error, MetadataUnavailableError)
        if skip:
            self._skipped.append(Skipped(self._what, str(error)))
        return skip


def log_skipped(logger: logging.Logger, doing: str, skipped: Sequence[Skipped]) -> None:
    """Log one warning (event `items_skipped`) with the number of skipped items, and the names and
    reasons of the first `NAMED_MAX`. Log nothing if none was skipped."""
    if not skipped:
        return
    named = "; ".join(map(str, skipped[:NAMED_MAX]))
    more = f"; and {len(skipped) - NAMED_MAX} more" if len(skipped) > NAMED_MAX else ""
    logger.warning(
        "%s skipped what it could not read (%d): %s%s", doing, len(skipped), named, more,
        extra={"event": "items_skipped", "doing": doing, "skipped": len(skipped)},
    )  # fmt: skip
