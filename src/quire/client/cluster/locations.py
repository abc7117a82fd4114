"""Where bookies stand: sources of network locations (metadata spec, 6.1 and 6.8).

A source answers at once from what it knows, and learns in the background. What it cannot learn
stays as it was last known: placement never waits for ever, and a script that fails moves nobody.
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
"""Where the table in the metadata store is, by default: where Pulsar keeps its own."""


class Locations(Protocol):
    failures: int
    """How often it could not learn what it was to learn."""
    trouble: str
    """Why it could not the last time; '' once it could."""

    def find(self, bookie_id: str, host: str) -> str | None:
        """What is known now; None: nothing is."""
        ...

    async def learn(self, bookies: Collection[BookieAddress]) -> None:
        """Find out about these, as far as it is not known, and whether what is known has changed.
        Never raises; cancel-safe."""
        ...

    refresh_s: float | None
    """When to learn again though no bookie has come; None: changes come by themselves."""

    def close(self) -> None: ...


class TableLocations:
    """A table of names, and what else does not need to ask anybody about one bookie."""

    refresh_s: float | None = None

    def __init__(self, table: Mapping[str, str] | None = None) -> None:
        """UsageError if a location is none."""
        self.failures = 0
        self.trouble = ""
        self._table = parse_mapping(table or {})

    def find(self, bookie_id: str, host: str) -> str | None:
        return self._table.get(bookie_id) or self._table.get(host)

    async def learn(self, bookies: Collection[BookieAddress]) -> None:
        pass

    def close(self) -> None:
        pass

    def failed(self, what: str, error: object) -> None:
        """What was known stays. The same trouble is told once."""
        self.failures += 1
        text = f"{what}: {error}"
        if text != self.trouble:
            logger.warning(
                "locations are left as they were: %s", text,
                extra={"event": "locations_not_learnt", "error": text},
            )  # fmt: skip
        self.trouble = text


class MetadataLocations(TableLocations):
    """The table in the metadata store, watched."""

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
            self.failed(f"the node {self._node}", error)
        self._seen.set()
