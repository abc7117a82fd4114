"""The log of operations that are repeated while the metadata store does not answer."""

from __future__ import annotations

from collections.abc import Callable

from quire.errors import MetadataError, MetadataUnavailableError

Log = Callable[..., None]
"""A function that logs an event: its name, and its fields as keyword arguments."""


class OutageLog:
    """A log of the failures of one operation that is repeated until it succeeds.

    If the store does not answer, only the first failure in a row is logged, because the operation
    is tried again for as long as the store is away. Other failures are all logged.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._away = False

    def failed(self, event: str, error: MetadataError, **fields: object) -> None:
        """Log a failure, but only the first of several in a row in which the store is away."""
        away = isinstance(error, MetadataUnavailableError)
        if not (away and self._away):
            self._log(event, **fields, error=str(error))
        self._away = away

    def worked(self) -> None:
        """Note that the operation has succeeded."""
        self._away = False
