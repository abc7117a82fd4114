"""The nodes with settings: reading, inheriting and changing what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.client import Client
from quire.errors import NoSuchKeyError, VersionConflictError
from quire.metadata.tree import Operation, Put
from quire.streams.namespace.settings import (
    DEFAULTS,
    check_values,
    current_names,
    decode_settings,
    encode_settings,
)

SETTINGS_NODE = ".quire"
"""The node with the settings of a tenant or a namespace.

Names that begin with "." are hidden in listings, including the listings of Java's tools.
"""
STREAM_SETTINGS_NODE = "quire"
"""The node with the settings of a stream, below the stream's root."""


async def stored_settings(client: Client, path: str) -> dict[str, Any]:
    """Return the settings that the node at `path` stores, by name, or {} without a node.

    Raises MetadataError if they cannot be decoded.
    """
    try:
        return decode_settings((await client.metadata.tree.read(path)).value, path)
    except NoSuchKeyError:
        return {}


async def inherited_settings(client: Client, path: str, below: str = "") -> dict[str, Any]:
    """Return the settings given to the namespace and to the paths above it, by name.

    If several of them give a setting, the nearest one counts. With `below`, which is one
    of these paths, only those of the paths below that one count. Raises MetadataError if stored
    settings cannot be decoded.
    """
    values: dict[str, Any] = {}
    parts = path.split("/")
    for depth in range(below.count("/") + 2, len(parts) + 1):
        values |= await stored_settings(client, "/".join(parts[:depth]) + f"/{SETTINGS_NODE}")
    return values


async def add_settings(
    client: Client,
    path: str,
    values: Mapping[str, Any],
    inherited: Mapping[str, Any],
    guard: Sequence[Operation] = (),
) -> None:
    """Add settings to those that a node stores. A value of None removes a setting.

    The operations of `guard` make the transaction fail if another node has the path by now, because
    its versions may be the same.

    Raises UsageError if the settings are not valid together with the inherited ones,
    NoSuchKeyError if the node, or a node of `guard`, does not exist, and MetadataError if the
    stored settings cannot be decoded.
    """
    tree = client.metadata.tree
    values = current_names(values)
    check_values({n: getattr(DEFAULTS, n, v) if v is None else v for n, v in values.items()})
    while True:
        node = await tree.read(path)
        merged = {**decode_settings(node.value, path), **values}
        merged = {name: value for name, value in merged.items() if value is not None}
        DEFAULTS.with_values({**inherited, **merged})
        try:
            await tree.commit(*guard, Put(path, encode_settings(merged), node.version))
            return
        except VersionConflictError:
            continue  # another client changed the node: add these settings to the new value
