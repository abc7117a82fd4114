"""The paths of namespaces, and their binding to a cluster.

On ZooKeeper, a namespace or a path above it names the cluster that has its ledgers, in the format
of DistributedLog. So Java's tools find the namespace, and a client of another cluster refuses it.
"""

from __future__ import annotations

from functools import lru_cache

from quire.client import Client
from quire.codec.distributedlog.name import may_name_stream, stream_name
from quire.codec.distributedlog.namespace_binding import NamespaceBinding, is_binding
from quire.errors import (
    LaterMetadataError,
    MetadataError,
    MetadataURIError,
    NoSuchKeyError,
    UsageError,
    check_type,
)
from quire.metadata.uri import VALUES_ROOT, Driver, parse_uri


def namespace_path(path: str) -> str:
    """Check the path of a namespace, and return it in its canonical form.

    Args:
        path: The path, with or without a slash at either end.

    Returns:
        The absolute path, without a slash at the end.

    Raises:
        UsageError: The path is not valid.
    """
    check_type("the path of a namespace", path, str)
    parts = path.strip("/").split("/")
    try:
        for part in parts:
            stream_name(part)
    except UsageError as error:
        raise UsageError(f"{path!r} cannot be the path of a namespace: {error.args[0]}") from None
    return "/" + "/".join(parts)


def check_new_path(path: str, uri: str) -> None:
    """Check that a new namespace does not overlap with nodes that hold other data.

    Args:
        path: The canonical path of the namespace.
        uri: The metadata URI of the cluster.

    Raises:
        UsageError: The path is inside the nodes of ZooKeeper, of Quire, or of the cluster's
            ledgers.
    """
    if taken := other_data(path, uri):
        raise UsageError(
            f"{path!r} cannot be the path of a namespace: {taken} is used for other data",
            remedy="Choose another path, for example /team/orders",
        )


def other_data(path: str, uri: str, namespace: str = "") -> str | None:
    """Return the path of the nodes with other data that a path is inside of, or None.

    They are those of ZooKeeper, of Quire, or of the ledgers of the cluster with this metadata URI.
    Nodes that the path `namespace` is inside of as well do not count: another program has created
    that namespace.
    """
    roots = (one for one in _other_roots(uri) if not f"{namespace}/".startswith(f"{one}/"))
    return next((one for one in roots if f"{path}/".startswith(f"{one}/")), None)


def may_be_stream(name: str, namespace: str, uri: str) -> bool:
    """Return whether a node of this name below a namespace may be a stream, or lead to one.

    The nodes of other data are no streams; see `other_data`.
    """
    return may_name_stream(name) and other_data(f"{namespace}/{name}", uri, namespace) is None


@lru_cache(maxsize=16)
def _other_roots(uri: str) -> tuple[str, ...]:
    try:
        ledgers = parse_uri(uri).root
    except MetadataURIError:
        ledgers = ""
    return ("/zookeeper", VALUES_ROOT, *([ledgers] if ledgers else []))


def binding_of(client: Client) -> bytes:
    """Return the binding of a namespace to this client's cluster, or b"" if it needs none."""
    try:
        where = parse_uri(client.metadata.uri)
    except MetadataURIError:
        return b""
    if where.driver is not Driver.ZOOKEEPER:
        return b""
    return NamespaceBinding.of_one(",".join(where.servers), where.root).to_bytes()


async def check_binding(client: Client, path: str) -> bool:
    """Return whether the path or one above it is bound to a cluster.

    Raises UsageError if it is bound to other ledgers than those of this client, or is federated.
    Raises MetadataError if the binding cannot be decoded.
    """
    parts = path.split("/")
    for depth in range(len(parts), 1, -1):
        key = "/".join(parts[:depth])
        try:
            node = await client.metadata.tree.read(key)
        except NoSuchKeyError:
            continue
        if is_binding(node.value):
            break
    else:
        return False
    where = parse_uri(client.metadata.uri)
    try:
        binding = NamespaceBinding.from_bytes(node.value, ",".join(where.servers))
    except LaterMetadataError as error:
        raise LaterMetadataError(
            f"namespace {path} cannot be opened (node {key}): {error.args[0]}"
        ) from None
    except MetadataError as error:
        raise MetadataError(
            f"namespace {path} cannot be opened: {error.args[0]}",
            remedy=(
                f"Look at the node {key} in the metadata store. If another program wrote it, "
                "use that program. Otherwise restore the node from a backup"
            ),
        ) from None
    if binding.federated:
        raise UsageError(
            f"namespace {path} is federated: its streams are spread over several namespaces, which "
            "Quire does not support",
            remedy="Use a namespace that is not federated",
        )
    if binding.ledgers_root.rstrip("/") != where.root:
        raise UsageError(
            f"namespace {path} keeps its ledgers at {binding.ledgers_root}, not at {where.root}",
            remedy=f"Connect to the cluster at {binding.ledgers_root}",
        )
    return True
