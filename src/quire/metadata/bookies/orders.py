"""Orders that an operator gives to a bookie through the metadata store.

| order     | what the bookie does                                                                |
|-----------|-------------------------------------------------------------------------------------|
| `drain`   | It becomes read-only: clients place no ledgers on it, and writers replace it. It    |
|           | still accepts copies of ledgers that name it.                                       |
| `retired` | It is decommissioned, because no ledger names it any more. It stops when its cookie |
|           | is gone.                                                                            |

An order is a node below the under-replication tree. Apache's programs do not read it; make a bookie
of Apache read-only with Apache's own tools.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass

from quire.codec.metadata.stored_json import stored_json
from quire.errors import LaterMetadataError, written_later
from quire.metadata.bookies.nodes import (
    delete_node,
    node_path,
    read_node,
    refuse_later,
    write_node,
)
from quire.metadata.interface import ANY_VERSION, MetadataStore, Versioned

NODE = "quire-orders"
_WHAT = "the order"


class What(enum.StrEnum):
    """The kind of an order."""

    DRAIN = "drain"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Order:
    """An order of an operator to one bookie."""

    what: What
    since_ms: int
    by: str
    """The host from which the operator gave the order."""

    def encode(self) -> bytes:
        value = {"order": self.what.value, "since_ms": self.since_ms, "by": self.by}
        return json.dumps(value).encode()

    @classmethod
    def decode(cls, data: bytes) -> Order:
        """Decode the value of an order's node.

        Raises:
            LaterMetadataError: A later version of Quire gave the order.
            ValueError: The value is not an order.
        """
        value = stored_json(data)
        refuse_later(_WHAT, value, ("order", "since_ms", "by"))
        try:
            if value["order"] not in tuple(What):
                raise LaterMetadataError(
                    written_later(_WHAT, f"the order {value['order']!r}", " and ".join(What))
                )
            return cls(What(value["order"]), int(value["since_ms"]), str(value["by"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"it is not an order to a bookie ({error!r})") from None


def order_path(uri: str, bookie_id: str) -> str:
    return node_path(uri, NODE, bookie_id)


async def stored_order(store: MetadataStore, bookie_id: str) -> Versioned[Order] | None:
    """Return the present order of a bookie, or None if it has none.

    Raises:
        MetadataError: The order cannot be decoded, or the store does not answer.
    """
    return await read_node(store, order_path(store.uri, bookie_id), Order.decode)


async def give_order(
    store: MetadataStore, bookie_id: str, order: Order, version: int | None
) -> int:
    """Store the order of a bookie, and return its new version.

    With None as `version`, the bookie must have no order. Otherwise `order` replaces the one that
    has this version.

    Raises:
        KeyExistsError: The version is None, and the bookie has an order.
        VersionConflictError: The order's version is not `version`.
        NoSuchKeyError: There is no order to replace.
        MetadataError: The store fails.
    """
    return await write_node(store, order_path(store.uri, bookie_id), order.encode(), version)


async def withdraw_order(store: MetadataStore, bookie_id: str, version: int = ANY_VERSION) -> None:
    """Withdraw the order of a bookie, if it has one.

    Raises:
        VersionConflictError: The order's version is not `version`.
        MetadataError: The store fails.
    """
    await delete_node(store, order_path(store.uri, bookie_id), version)
