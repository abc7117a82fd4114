"""Ledger metadata that is so large that another ensemble does not fit into its node."""

from __future__ import annotations

from dataclasses import replace

from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_metadata_format import encode
from quire.metadata.common import NODE_BYTES_MAX
from quire.metadata.ledgers.update import update_ledger
from tests.support.bookies.fake_bookies import LEDGER, FakeCluster


def filled(now: LedgerMetadata, size: int) -> LedgerMetadata:
    """Return the metadata with custom metadata, so that it is exactly `size` bytes long."""
    large = replace(now, custom={"k": bytes(size)})
    return replace(now, custom={"k": bytes(2 * size - len(encode(large)))})


async def fill(cluster: FakeCluster, size: int = NODE_BYTES_MAX) -> None:
    """Make the ledger's stored metadata `size` bytes long, without its writer."""
    stored = await cluster.store.read_ledger(LEDGER)
    await update_ledger(cluster.store, LEDGER, stored, lambda now: (
        None if now.custom else filled(now, size)
    ))  # fmt: skip
