"""Records of items, such as ledgers, that a scan over many items skips because they are unreadable.

The scan counts the skipped items, and names them when it ends. It never deletes anything that a
skipped item may own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from quire.errors import MetadataError, MetadataUnavailableError

NAMED_MAX = 10
"""The largest number of skipped items that one log event names. All are counted."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """One item that a scan over many items skipped because it could not be read."""

    what: str
    """The kind and name of the item, for example "ledger 7" or "dataset 'flights'"."""
    why: str
    """The error message of the failed read."""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class skipping:
    """A context manager that swallows a MetadataError about one item, and records it as skipped.

    `what` is the name of the item, and the record is added to `skipped`. Errors of the classes
    `more` are handled in the same way. MetadataUnavailableError is raised, because it does not
    concern a single item.
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
    """Log one warning (event `items_skipped`) if a scan has skipped items.

    The warning has the number of the items, and the names and reasons of the first `NAMED_MAX`.
    `doing` names the scan, for example "the listing of datasets".
    """
    if not skipped:
        return
    named = "; ".join(map(str, skipped[:NAMED_MAX]))
    more = f"; and {len(skipped) - NAMED_MAX} more" if len(skipped) > NAMED_MAX else ""
    logger.warning(
        "%s skipped what it could not read (%d): %s%s", doing, len(skipped), named, more,
        extra={"event": "items_skipped", "doing": doing, "skipped": len(skipped)},
    )  # fmt: skip
