"""The search, in the background, for namespaces that have as many streams as they may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire._runtime.tasks import each
from quire.client import Client
from quire.errors import MetadataUnavailableError, QuireError
from quire.http.watch.observations import LOOK_SHARE, LOOK_WAIT_S, BackgroundObservation
from quire.streams.namespace.stored_settings import inherited_settings
from quire.streams.namespace.tree_search import namespace_sizes

LIMITS_INTERVAL_S = 10.0
"""The least number of seconds between two searches. `LOOK_SHARE` bounds the cost if there are many
streams."""


@dataclass(frozen=True, slots=True)
class FullNamespace:
    """A namespace, or a tenant, that may have no more streams."""

    path: str
    streams: int
    limit: int
    """The value of `streams_max` that applies to the path."""


class StreamLimits(BackgroundObservation):
    """The search for namespaces whose limit `streams_max` is reached."""

    share = LOOK_SHARE

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, LIMITS_INTERVAL_S, wait_s)
        self._found: tuple[FullNamespace, ...] = ()

    async def of(self, client: Client) -> tuple[FullNamespace, ...]:
        """Return the namespaces that may have no more streams, sorted by path, as far as known."""
        await self.refresh(lambda: self._look(client))
        return self._found

    async def _look(self, client: Client) -> None:
        self._found = await full_namespaces(client)


async def full_namespaces(client: Client) -> tuple[FullNamespace, ...]:
    """Return the namespaces and tenants that may have no more streams, sorted by path.

    Those whose settings cannot be read, or that belong to others, are left out. Raises
    MetadataError if the metadata store cannot be read. Cancel-safe.
    """
    sizes = await namespace_sizes(client)

    async def full(path: str) -> FullNamespace | None:
        try:
            limit = (await inherited_settings(client, path)).get("streams_max", 0)
        except MetadataUnavailableError:
            raise
        except QuireError:
            return None
        count = sizes[path]
        return FullNamespace(path, count, limit) if limit and count >= limit else None

    found = await each(sorted(sizes), full)
    return tuple(one for one in found if one is not None)
