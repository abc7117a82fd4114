"""What an operator asks of a bookie by way of the metadata store.

    drain      take no more entries but copies for ledgers that are yours: be read-only, so that no
               client of any kind places a ledger on you, and writers replace you
    retired    you are decommissioned: nothing names you any more; end when your cookie is gone

A node below the under-replication tree holds it, which Apache's programs do not look at: an Apache
bookie is made read-only by its own means.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass

from quire.metadata.bookies.nodes import delete_node, node_path, read_node, write_node
from quire.metadata.interface import ANY_VERSION, MetadataStore, Versioned

NODE = "quire-orders"


class What(enum.StrEnum):
    DRAIN = "drain"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Order:
    what: What
    since_ms: int
    by: str
    """Who gave it: a host."""

    def encode(self) -> bytes:
        value = {"order": self.what.value, "since_ms": self.since_ms, "by": self.by}
        return json.dumps(value).encode()

    @classmethod
    def decode(cls, data: bytes) -> Order:
        """`ValueError` if it is none."""
        value = json.loads(data)
        try:
            return cls(What(value["order"]), int(value["since_ms"]), str(value["by"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no order: {error!r}") from None


def order_path(uri: str, bookie_id: str) -> str:
    return node_path(uri, NODE, bookie_id)


async def read_order(store: MetadataStore, bookie_id: str) -> Versioned[Order] | None:
    """What the bookie is asked now; None: nothing. MetadataError for what cannot be understood."""
    return await read_node(store, order_path(store.uri, bookie_id), Order.decode)


async def give_order(
    store: MetadataStore, bookie_id: str, order: Order, version: int | None
) -> int:
    """Create it (version None: `KeyExistsError` where there is one), or replace the one with this
    version (`VersionConflictError`, `NoSuchKeyError`). The new version."""
    return await write_node(store, order_path(store.uri, bookie_id), order.encode(), version)


async def withdraw_order(store: MetadataStore, bookie_id: str, version: int = ANY_VERSION) -> None:
    """`VersionConflictError`. Where there is none, that is success."""
    await delete_node(store, order_path(store.uri, bookie_id), version)
