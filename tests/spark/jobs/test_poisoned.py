"""One bad item stops no job, in requests to the cluster before and beside Spark's tasks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import blocking
from quire.blocking import Namespace
from quire.blocking.background import call
from quire.client import Client
from quire.errors import MetadataError
from quire.metadata.tree import Put
from quire.replication import LedgerMove
from quire.spark.jobs import ClusterOptions, preview_offload
from quire.spark.jobs.audit import stream_ledgers
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import append, numbered

pytestmark = pytest.mark.spark

recover_job = importlib.import_module("quire.spark.jobs.recover")

PATH = "/spark/poisoned"


@pytest.fixture
def poisoned(client: blocking.Client) -> Iterator[Namespace]:
    """Three streams; the segment of the second cannot be understood."""
    with client.namespace(PATH, create=True) as streams:
        for name in ("apple", "melon", "pear"):
            append(streams, name, numbered(0, 10))
        tree = client.aio.metadata.tree
        path = f"{PATH}/melon/<default>/ledgers"
        (segment,) = call(tree.children(path))
        call(tree.commit(Put(f"{path}/{segment}", b"rubbish")))
        yield streams
        call(tree.delete_tree(f"{PATH}/melon"))
        for name in ("apple", "pear"):
            streams.delete_stream(name)


def test_an_audit_reports_unreadable_streams(client: blocking.Client, poisoned: Namespace) -> None:
    ledgers, unread = call(stream_ledgers(client.aio, PATH, "*", b""))
    assert ledgers == sorted(
        one.ledger_id for name in ("apple", "pear") for one in poisoned.segments(name)
    )
    (why,) = unread
    assert why.startswith("stream melon: ")


def test_the_offload_preview_reports_unreadable_streams(
    cluster: LocalCluster, poisoned: Namespace, tmp_path: Path
) -> None:
    options = ClusterOptions(cluster.uri)
    found = preview_offload(options, PATH, "*", str(tmp_path))
    assert [(one.stream, one.segments) for one in found] == [
        ("apple", 1),
        ("melon", 0),
        ("pear", 1),
    ]
    assert "melon" in found[1].error
    with pytest.raises(MetadataError, match="stream melon"):
        preview_offload(options, PATH, "melon", str(tmp_path))


def test_recover_reports_an_unreadable_ledger_as_remaining(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable ledger may name the bookie, so it is reported as left."""

    async def move_of(
        client: Client, ledger: int, bookie: str, *, password: bytes
    ) -> LedgerMove | None:
        if ledger == 7:
            raise MetadataError("it cannot be understood")
        return None

    monkeypatch.setattr(recover_job, "move_of", move_of)
    piece = {"bookie": "b:1", "ledgers": [6, 7, 8]}
    found = recover_job._look(ClusterOptions(cluster.uri), piece)
    assert found == {"moves": [], "unreadable": [(7, "it cannot be understood")]}
