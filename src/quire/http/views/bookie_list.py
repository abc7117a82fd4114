"""The list of bookies: each with its state, location, disk space and rates."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from quire._runtime.units import host_port
from quire.core.placement.tables import parse_groups
from quire.errors import NoSuchKeyError, UsageError

if TYPE_CHECKING:
    from quire.client import Client
    from quire.http.watch.observations import DiskSpaces
    from quire.http.watch.rates import Rates
    from quire.metadata.interface import Bookies, MetadataStore

LOCATIONS_NODE = "/bookies"
"""The metadata node with the location of each bookie, as Pulsar and `quire cluster locations` write
it."""


async def bookie_facts(
    client: Client,
    *,
    gone: bool = False,
    spaces: DiskSpaces | None = None,
    rates: Rates | None = None,
) -> list[dict[str, Any]]:
    """Return a description of each bookie, sorted by id.

    Args:
        client: The client to ask.
        gone: Whether to include bookies that have a cookie and are not registered.
        spaces: If given, each description has the free space, and `answers` says whether the bookie
            answered. `answers` is None if the bookie was not asked yet.
        rates: If given, each description has what the bookie's metrics show: rates, the free share
            of each disk, and suspended compaction.

    Raises:
        MetadataError: The metadata store did not answer.
    """
    found = await client.bookies()
    where = await _locations(client.metadata)
    registered = {**found.readonly, **found.writable}
    names = {*registered, *(await client.metadata.list_cookies() if gone else ())}
    # Both may wait for an observation, so they wait at the same time.
    space, current = await asyncio.gather(
        spaces.of(client, registered) if spaces is not None else _nothing(),
        rates.of(registered) if rates is not None else _nothing(),
    )
    listed = []
    for name in sorted(names):
        described = {**_described(found, name), "location": where.get(name)}
        if spaces is not None:
            one = space.get(name) if name in registered else None
            described |= {
                "free_bytes": one.free_bytes if one is not None else None,
                "total_bytes": one.total_bytes if one is not None else None,
                "space_age_s": spaces.age_s,
                "answers": one is not None if name in registered and name in space else None,
            }
        if rates is not None:
            described["rates"] = current.get(name)
            described["free_shares"] = dict(rates.directories.get(name, {}))
            described["compaction_suspended"] = rates.suspended.get(name, [])
        listed.append(described)
    return listed


async def _nothing() -> dict[str, Any]:
    return {}


def _described(found: Bookies, name: str) -> dict[str, Any]:
    address = found.find(name)
    if address is None:
        return {"id": name, "state": "gone", "host": None, "port": None, "tls": None, "http": []}
    return {
        "id": name,
        "state": "writable" if name in found.writable else "read-only",
        "host": address.host,
        "port": address.port,
        "tls": address.tls,
        "http": [f"{one.protocol}://{host_port(one.host, one.port)}" for one in address.others],
    }


async def _locations(store: MetadataStore) -> dict[str, str]:
    """Return the location of each bookie.

    A table that cannot be parsed counts as empty here, because clients report it.
    """
    try:
        return parse_groups((await store.tree.read(LOCATIONS_NODE)).value)
    except (NoSuchKeyError, UsageError):
        return {}
