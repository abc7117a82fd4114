"""Marks of under-replicated ledgers, at the nodes where Apache's auditor and workers read them.

An auditor makes a mark when it finds that replicas of a ledger are missing. So does a bookie that
finds that it has lost its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.codec.metadata.protobuf_text import UnknownFieldError
from quire.codec.metadata.underreplication import Underreplicated, mark_path
from quire.errors import (
    KeyExistsError,
    LaterMetadataError,
    MetadataError,
    NoSuchKeyError,
    UnreadableMetadataError,
    VersionConflictError,
    written_later,
)
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create, Put
from quire.metadata.uri import replication_root

MARK_ATTEMPTS = 100
"""The number of attempts to change a mark that others change at the same time."""


async def mark_ledger(
    store: MetadataStore, ledger_id: int, replicas: Sequence[str], now_ms: int
) -> bool:
    """Record that these bookies lack entries of the ledger or cannot be reached.

    If a bookie is alive, replication workers read every entry of the ledger that it should have.
    The call may be repeated. A worker that began before the call does not remove the mark.

    Args:
        store: The store of the cluster.
        ledger_id: The ledger.
        replicas: The ids of the bookies.
        now_ms: The present time, in milliseconds since 1970.

    Returns:
        Whether the mark is new or names more bookies than before.

    Raises:
        UnreadableMetadataError: The ledger has a mark that cannot be decoded. It was not changed.
        MetadataError: The store does not answer, or others changed the mark too often.
    """
    tree, path = store.tree, mark_path(replication_root(store.uri), ledger_id)
    for _ in range(MARK_ATTEMPTS):
        try:
            found = await tree.read(path)
        except NoSuchKeyError:
            await tree.make_path(path.rpartition("/")[0])
            value = Underreplicated(tuple(replicas), now_ms).encode()
            try:
                await tree.commit(Create(path, value))
            except (KeyExistsError, NoSuchKeyError):
                continue
            return True
        wanted = decoded_mark(path, found.value).adding(replicas, now_ms)
        # The mark is written even if it names the bookies already. A worker may have examined them
        # before this loss, and removes the mark only at the version that it has read.
        value = found.value if wanted is None else wanted.encode()
        try:
            await tree.commit(Put(path, value, found.version))
        except (VersionConflictError, NoSuchKeyError):
            continue
        return wanted is not None
    raise MetadataError(
        f"ledger {ledger_id} was not marked as under-replicated: others changed {path} "
        f"{MARK_ATTEMPTS} times in a row",
        remedy="Try again",
    )


async def is_marked(store: MetadataStore, ledger_id: int) -> bool:
    """Return whether the ledger is marked as under-replicated.

    Raises MetadataError if the store does not answer.
    """
    return await store.tree.exists(mark_path(replication_root(store.uri), ledger_id))


def decoded_mark(path: str, value: bytes) -> Underreplicated:
    """Decode the value of a mark.

    Raises:
        LaterMetadataError: A later version of Quire or of BookKeeper wrote the mark.
        UnreadableMetadataError: The value is not a mark.
    """
    try:
        return Underreplicated.decode(value)
    except UnknownFieldError as error:
        raise LaterMetadataError(
            written_later(
                path, f"an unknown field ({error})", "replica and ctime", by="Quire or BookKeeper"
            )
        ) from None
    except ValueError as error:
        raise UnreadableMetadataError(
            f"the under-replication mark at {path} cannot be decoded: {error}",
            remedy="If a later version of Quire or BookKeeper wrote it, use that version. "
            "Otherwise delete the node: the auditor marks the ledger again if it must be repaired",
        ) from None
