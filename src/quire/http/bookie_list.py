"""Bookies as a list: registered or gone, where they stand, their space and their rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.core.placement.tables import parse_groups
from quire.errors import NoSuchKeyError, UsageError
from quire.http.cluster import spaces_of

if TYPE_CHECKING:
    from quire.client import Client
    from quire.http.rates import Rates
    from quire.metadata.base import Bookies, MetadataStore

LOCATIONS_NODE = "/bookies"
"""Where Pulsar keeps them, and `quire cluster locations`."""


async def bookie_facts(
    client: Client, *, gone: bool = False, space: bool = False, rates: Rates | None = None
) -> list[dict[str, Any]]:
    """By id. `gone`: with those that have a cookie and are not registered. `space`: each is asked;
    None where it does not answer. MetadataError."""
    found = await client.bookies()
    where = await _locations(client.metadata)
    registered = {**found.readonly, **found.writable}
    names = {*registered, *(await client.metadata.list_cookies() if gone else ())}
    spaces = await spaces_of(client) if space else {}
    current = await rates.of(registered) if rates is not None else {}
    listed = []
    for name in sorted(names):
        described = {**_described(found, name), "location": where.get(name)}
        if space:
            free, total = spaces.get(name) or (None, None)
            described |= {"free_bytes": free, "total_bytes": total}
        if rates is not None:
            described["rates"] = current.get(name)
        listed.append(described)
    return listed


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
        "http": [f"{one.protocol}://{one.host}:{one.port}" for one in address.others],
    }


async def _locations(store: MetadataStore) -> dict[str, str]:
    """By bookie. A table that cannot be understood says nothing here: clients tell of it."""
    try:
        return parse_groups((await store.tree.read(LOCATIONS_NODE)).value)
    except (NoSuchKeyError, UsageError):
        return {}
