"""The search, in the background, for namespaces and streams that have reached their limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire._runtime.tasks import each
from quire.client import Client
from quire.errors import MetadataUnavailableError, QuireError
from quire.http.watch.observations import LOOK_SHARE, LOOK_WAIT_S, BackgroundObservation
from quire.streams import Namespace
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stored_settings import inherited_settings
from quire.streams.namespace.tree_search import namespace_sizes
from quire.streams.namespace.truncation import stored_bytes
from quire.streams.read.statistics import segment_statistics

NEARLY_FULL = 0.8
"""The share of its limit from which a stream is reported."""
STREAMS_MAX = 1_000
"""The largest number of streams of one namespace whose sizes are read."""
STREAMS_AT_ONCE = 4
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


@dataclass(frozen=True, slots=True)
class FullStream:
    """A stream that has nearly as many bytes as its namespace allows."""

    namespace: str
    name: str
    bytes: int
    limit: int
    """The value of `bytes_max` that applies to the stream."""


class StreamLimits(BackgroundObservation):
    """The search for namespaces whose limit `streams_max` is reached, and streams whose limit
    `bytes_max` is nearly reached."""

    share = LOOK_SHARE

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, LIMITS_INTERVAL_S, wait_s)
        self._found: tuple[FullNamespace, ...] = ()
        self.streams: tuple[FullStream, ...] = ()
        """The streams that have nearly reached their limit `bytes_max`, as far as known."""

    async def of(self, client: Client) -> tuple[FullNamespace, ...]:
        """Return the namespaces that may have no more streams, sorted by path, as far as known."""
        await self.refresh(lambda: self._look(client))
        return self._found

    async def _look(self, client: Client) -> None:
        found = await limited_namespaces(client)
        self._found = full_namespaces(found)
        self.streams = await full_streams(client, found)


@dataclass(frozen=True, slots=True)
class LimitedNamespace:
    """A namespace or a tenant, with the limits that apply to it. 0 means that there is none."""

    path: str
    streams: int
    streams_max: int
    bytes_max: int


async def limited_namespaces(client: Client) -> list[LimitedNamespace]:
    """Return the namespaces and tenants, sorted by path.

    Those whose settings cannot be read, or that belong to others, are left out. Raises
    MetadataError if the metadata store cannot be read. Cancel-safe.
    """
    sizes = await namespace_sizes(client)

    async def read(path: str) -> LimitedNamespace | None:
        try:
            limits = await inherited_settings(client, path)
        except MetadataUnavailableError:
            raise
        except QuireError:
            return None
        return LimitedNamespace(
            path, sizes[path], limits.get("streams_max", 0), limits.get("bytes_max", 0)
        )

    found = await each(sorted(sizes), read)
    return [one for one in found if one is not None]


def full_namespaces(found: Sequence[LimitedNamespace]) -> tuple[FullNamespace, ...]:
    """Return the namespaces and tenants that may have no more streams, in the given order."""
    return tuple(
        FullNamespace(one.path, one.streams, one.streams_max)
        for one in found
        if one.streams_max and one.streams >= one.streams_max
    )


async def full_streams(client: Client, found: Sequence[LimitedNamespace]) -> tuple[FullStream, ...]:
    """Return the streams that have nearly reached the limit `bytes_max` of their namespace.

    Only namespaces with such a limit are searched, and at most `STREAMS_MAX` streams of each. The
    size of a segment in progress counts if it can be read without a password. Streams that cannot
    be read are left out. Raises MetadataUnavailableError. Cancel-safe.
    """
    full: dict[str, FullStream] = {}
    for path in (one.path for one in found if one.bytes_max):
        try:
            async with await open_namespace(client, path) as opened:
                names = (await opened.streams())[:STREAMS_MAX]
                for one in await each(names, lambda name: _full(opened, name), STREAMS_AT_ONCE):
                    if one is not None:
                        # A namespace below this one, which comes later, is nearer to the stream.
                        full[f"{path}/{one.name}"] = one
        except MetadataUnavailableError:
            raise
        except QuireError:
            continue
    return tuple(sorted(full.values(), key=lambda one: -one.bytes / one.limit))


async def _full(opened: Namespace, name: str) -> FullStream | None:
    try:
        limit = (await opened.stream_settings(name)).bytes_max
        if not limit:
            return None
        segments = await opened.segments(name)
        size = await stored_bytes(opened.client, segments)
        if size < NEARLY_FULL * limit and any(one.in_progress for one in segments):
            last = [one for one in segments if one.in_progress]
            facts = await segment_statistics(opened.client, last, b"")
            size += sum(one.size_bytes for one in facts)
    except MetadataUnavailableError:
        raise
    except QuireError:
        return None
    return FullStream(opened.path, name, size, limit) if size >= NEARLY_FULL * limit else None
