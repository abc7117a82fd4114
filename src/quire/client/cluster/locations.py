"""Sources of the network locations of bookies.

A source answers at once with the locations that it knows, and learns others in the background. If
that fails, it keeps the locations that it knows. So placement never waits for ever, and a script
that fails changes no location.
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
"""The default node of the metadata store with the table of locations. Pulsar uses the same node."""


class Locations(Protocol):
    """A source of the network locations of bookies."""

    failures: int
    """The number of times that `learn` could not find out the locations."""
    trouble: str
    """The reason why `learn` failed the last time, or an empty string if it succeeded."""

    def find(self, bookie_id: str, host: str) -> str | None:
        """Return the location of a bookie if it is known now, by its id or its host, or None."""
        ...

    async def learn(self, bookies: Collection[BookieAddress]) -> None:
        """Find out the locations of the given bookies, including changes of known ones.

        Afterwards `find` returns them. A failure raises nothing, but is counted in `failures`.
        Cancel-safe.
        """
        ...

    refresh_s: float | None
    """Seconds after which `learn` should be called again even if no new bookie has registered. None
    if the source notices changes by itself."""

    def close(self) -> None: ...


class TableLocations:
    """A source with a fixed table of locations, by bookie id or host.

    The other sources derive from it, and keep their tables up to date.
    """

    refresh_s: float | None = None

    def __init__(self, table: Mapping[str, str] | None = None) -> None:
        """Create a source with a table of locations by bookie id or host.

        Raises UsageError if a location is not valid.
        """
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
        """Record that learning failed, and log the reason `text`. The known locations stay.

        A reason that repeats the one before is not logged again.
        """
        self.failures += 1
        if text != self.trouble:
            logger.warning(
                "the known locations stay in use: %s", text,
                extra={"event": "locations_not_learnt", "error": text},
            )  # fmt: skip
        self.trouble = text


class MetadataLocations(TableLocations):
    """A source of locations that watches Pulsar's table in a node of the metadata store."""

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
