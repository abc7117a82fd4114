"""What the sinks of Spark leave behind in a cluster."""

from __future__ import annotations

from quire.blocking import Client, Namespace
from quire.spark import sweep_orphans


def check_only_published_ledgers_stay(client: Client, streams: Namespace, stream: str) -> None:
    """Sweep, and check that the stream's ledgers are those of its segments, and no others."""
    path = f"{streams.path}/{stream}"
    sweep_orphans(client, 0, stream=path)
    left = {
        ledger_id
        for ledger_id in client.list_ledgers()
        if client.ledger_metadata(ledger_id).custom.get("stream") == path.encode()
    }
    assert left == {segment.ledger_id for segment in streams.segments(stream)}
