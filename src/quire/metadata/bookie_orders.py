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

from quire.errors import MetadataError, NoSuchKeyError
from quire.metadata.base import ANY_VERSION, MetadataStore, Versioned
from quire.metadata.tree import Create, Delete, Put
from quire.metadata.uri import replication_root

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
    return f"{replication_root(uri)}/{NODE}/{bookie_id}"


async def read_order(store: MetadataStore, bookie_id: str) -> Versioned[Order] | None:
    """What the bookie is asked now; None: nothing. MetadataError for what cannot be understood."""
    path = order_path(store.uri, bookie_id)
    try:
        found = await store.tree.read(path)
    except NoSuchKeyError:
        return None
    try:
        return Versioned(Order.decode(found.value), found.version)
    except ValueError as error:
        raise MetadataError(f"{path} cannot be understood: {error}") from None


async def give_order(
    store: MetadataStore, bookie_id: str, order: Order, version: int | None
) -> int:
    """Create it (version None: `KeyExistsError` where there is one), or replace the one with this
    version (`VersionConflictError`, `NoSuchKeyError`). The new version."""
    path = order_path(store.uri, bookie_id)
    if version is None:
        await store.tree.make_path(path.rpartition("/")[0])
        await store.tree.commit(Create(path, order.encode()))
        return 0
    (done,) = await store.tree.commit(Put(path, order.encode(), version))
    assert isinstance(done, int)
    return done


async def withdraw_order(store: MetadataStore, bookie_id: str, version: int = ANY_VERSION) -> None:
    """`VersionConflictError`. Where there is none, that is success."""
    try:
        await store.tree.commit(Delete(order_path(store.uri, bookie_id), version))
    except NoSuchKeyError:
        pass
