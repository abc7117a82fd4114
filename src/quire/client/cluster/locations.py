"""Sources of the network locations of bookies (metadata spec, 6.1 and 6.8).

A source answers at once from what it knows, and learns in the background. If it cannot learn, the
known locations stay: placement never waits for ever, and a script that fails moves nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from quire.core.placement.tables import parse_groups, parse_mapping
from quire.errors import QuireError
from quire.metadata.interface import BookieAddress, MetadataStore, Versioned

logger = logging.getLogger("quire.placement")

PULSAR_NODE = "/bookies"
"""The default node of the table in the metadata store, which is Pulsar's."""


class Locations(Protocol):
    """A source of locations."""

    failures: int
    """The number of times that it could not learn."""
    trouble: str
    """Why it could not learn the last time. It is empty once it could."""

    def find(self, bookie_id: str, host: str) -> str | None:
        """Return the location that is known now, or None."""
        ...

    async def learn(self, bookies: Collection[BookieAddress]) -> None:
        """Learn the locations of these bookies, and whether known locations have changed.

        It never raises. Cancel-safe.
        """
        ...

    refresh_s: float | None
    """Seconds until it should learn again even if no bookie has come. None if changes arrive by
    themselves."""

    def close(self) -> None: ...


class TableLocations:
    """A table of names, and the parts of a source that need not ask anybody about one bookie."""

    refresh_s: float | None = None

    def __init__(self, table: Mapping[str, str] | None = None) -> None:
        """Take the table. Raises UsageError if a location is not valid."""
        self.failures = 0
        self.trouble = ""
        self._table = parse_mapping(table or {})

    def find(self, bookie_id: str, host: str) -> str | None:
        return self._table.get(bookie_id) or self._table.get(host)

    async def learn(self, bookies: Collection[BookieAddress]) -> None:
        pass

    def close(self) -> None:
        pass

    def failed(self, text: str) -> None:
        """Record that learning failed, with the reason. The known locations stay.

        The same reason is logged only once.
        """
        self.failures += 1
        if text != self.trouble:
            logger.warning(
                "the known locations stay in use: %s", text,
                extra={"event": "locations_not_learnt", "error": text},
            )  # fmt: skip
        self.trouble = text


class MetadataLocations(TableLocations):
    """The table in the metadata store, which is watched."""

    def __init__(self, metadata: MetadataStore, node: str = PULSAR_NODE) -> None:
        super().__init__()
        self._node = node
        self._seen = asyncio.Event()
        self._watch = metadata.tree.watch_value(node, self._changed)

    async def learn(self, bookies: Collection[BookieAddress]) -> None:
        await self._seen.wait()

    def close(self) -> None:
        self._watch.close()

    def _changed(self, found: Versioned[bytes] | None) -> None:
        try:
            self._table = {} if found is None else parse_groups(found.value)
            self.trouble = ""
        except QuireError as error:
            self.failed(f"the node {self._node}: {error}")
        self._seen.set()
