"""Values of the API can be pickled and copied, because Spark sends them and programs keep them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.client.datasets.format import DatasetLedger
from quire.codec.distributedlog.segment import StreamSegment
from quire.config import BookieConfig, ClientConfig, PlacementConfig, TlsClientConfig
from quire.metadata import ZooKeeperOptions
from quire.replication.autorecovery.settings import AutorecoverySettings
from quire.streams import (
    DLSN,
    AtSequence,
    AtTime,
    AtTxid,
    Gap,
    StreamPaths,
    StreamSettings,
)
from quire.streams.objects.objects import Orphan
from quire.streams.read.statistics import segment_statistics

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "the oldest pickle of classes with slots": lambda value: pickle.loads(pickle.dumps(value, 2)),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
}
MADE: list[Any] = [
    AtSequence(5),
    AtTime(5),
    AtTxid(5),
    AutorecoverySettings(poll_s=1.0),
    BookieConfig(max_connections=7, tls=quire.TlsServerConfig("b.pem")),
    ClientConfig(read_windows=2, placement=PlacementConfig(options={"a": "b"})),
    DLSN(1, 2, 3),
    Gap("lost", DLSN(1, 2, 3), DLSN(2, 0, 0)),
    Orphan(7, "name", 5, 3),
    StreamPaths("/a", "s"),
    StreamSettings(retention_s=5.0),
    TlsClientConfig(ca="ca.pem"),
    ZooKeeperOptions(digest="user:password"),
    quire.BookieInfo(100, 50),
    quire.DigestType.HMAC,
    quire.Entry(7, 1, 3, b"one"),
    quire.LedgerMetadata(3, 3, 2, (quire.Segment(0, ("a", "b", "c")),)),
    quire.LedgerMetadata(1, 1, 1, (quire.Segment(0, ("a",)),), custom={"key": b"value"}),
    quire.LedgerState.CLOSED,
    quire.UnhealthyBookie("b", "slow", 3, 7, 1),
]


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if is_dataclass(one):
        for item in fields(one):
            left, right = getattr(one, item.name), getattr(other, item.name)
            assert left == right or repr(left) == repr(right), item.name
    else:
        assert one == other


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", MADE, ids=lambda value: type(value).__name__)
def test_configuration_values_can_be_copied(value: Any, way: str) -> None:
    same(value, WAYS[way](value))


@pytest.mark.parametrize("way", WAYS)
async def test_returned_values_can_be_copied(
    client: quire.Client, way: str, tmp_path: Path
) -> None:
    given: list[Any] = [await client.bookies()]
    async with client.create_ledger(custom={"key": b"value"}) as writer:
        await writer.append(b"one")
        given.append(writer.metadata)
    given.append(await client.ledger_metadata(writer.ledger_id))
    async with client.open_ledger(writer.ledger_id) as reader:
        given += [reader.metadata, await reader.read_last()]
        given += [run.payloads() async for run in reader.read_runs()]
    async with client.namespace("/a", create=True) as streams:
        async with streams.open_writer("s", create=True) as stream:
            given.append(await stream.append(b"one"))
        given += [record async for record in streams.open_reader("s")]
        async with streams.open_reader("s") as records:
            [batch] = [batch async for batch in records.batches()]
            given += [batch, *WAYS[way](batch)]
        segments = await streams.segments("s")
        given += segments
        assert isinstance(segments[0], StreamSegment)
        given += await segment_statistics(client, segments, b"")
        given.append(await streams.stream_settings("s"))
        given.append(streams.metadata("s").paths)
    given.append(await client.objects().put("o", b"bytes", metadata={"a": "b"}))
    ledger = DatasetLedger(writer.ledger_id, 0, 0, 1, 3)
    given += [ledger, await client.datasets.publish("d", [ledger])]
    given.append(await client.datasets.read("d"))
    path = tmp_path / "q.toml"
    path.write_text("metadata = 'sqlite:////q.db'\n")
    given.append(quire.load_config(path))
    for value in given:
        same(value, WAYS[way](value))


def test_the_custom_metadata_of_a_ledger_cannot_be_changed() -> None:
    given = {"key": b"value"}
    metadata = quire.LedgerMetadata(1, 1, 1, (quire.Segment(0, ("a",)),), custom=given)
    given["key"] = b"changed"
    assert metadata.custom == {"key": b"value"}
    for one in (metadata, *(way(metadata) for way in WAYS.values())):
        with pytest.raises(TypeError):
            one.custom["key"] = b"changed"
