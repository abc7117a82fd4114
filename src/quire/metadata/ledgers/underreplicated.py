"""Marking ledgers as lacking replicas, where Apache's auditor and workers look for marks: for
whoever finds something lacking, be it an auditor or the bookie itself."""

from __future__ import annotations

from collections.abc import Sequence

from quire.codec.metadata.underreplication import Underreplicated, mark_path
from quire.errors import (
    KeyExistsError,
    MetadataError,
    NoSuchKeyError,
    UnreadableMetadataError,
    VersionConflictError,
)
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create, Put
from quire.metadata.uri import replication_root

MARK_ATTEMPTS = 100
"""Of one mark, against others that mark the same ledger."""


async def mark_ledger(
    store: MetadataStore, ledger_id: int, replicas: Sequence[str], now_ms: int
) -> bool:
    """Say that these bookies lack entries of the ledger, or cannot be reached. Of a bookie that
    lives, workers read every entry that it should have. Nothing is written where that is said
    already: then False. Safe to repeat. MetadataError."""
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
        if wanted is None:
            return False
        try:
            await tree.commit(Put(path, wanted.encode(), found.version))
        except (VersionConflictError, NoSuchKeyError):
            continue
        return True
    raise MetadataError(f"{path} was changed by others {MARK_ATTEMPTS} times in a row")


def decoded_mark(path: str, value: bytes) -> Underreplicated:
    """UnreadableMetadataError where it is none."""
    try:
        return Underreplicated.decode(value)
    except ValueError as error:
        raise UnreadableMetadataError(f"{path} cannot be understood: {error}") from None
