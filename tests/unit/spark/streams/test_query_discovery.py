"""How a streaming query searches for the streams that match a pattern."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from quire.errors import MetadataUnavailableError, NoSuchStreamError, QuireError
from quire.spark.streams import query as query_module
from quire.spark.streams.offsets import Offsets, StreamOffset
from quire.spark.streams.options import StreamReadOptions
from quire.spark.streams.query import StreamQuery
from quire.streams import DLSN
from tests.support.streams import Bench, run


class _Streams:
    """A namespace with given streams, whose store may be away."""

    path = "/streams"

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.error: QuireError | None = None
        self.unopened: dict[str, QuireError] = {}

    async def streams(self) -> list[str]:
        if self.error is not None:
            raise self.error
        return self.names


class _View:
    life = "life"

    def __init__(self, streams: _Streams, name: str) -> None:
        self.streams, self.name = streams, name

    async def open(self) -> None:
        if (error := self.streams.unopened.get(self.name)) is not None:
            raise error

    def close(self) -> None:
        pass


def searching(streams: _Streams, patch: pytest.MonkeyPatch) -> StreamQuery:
    patch.setattr(query_module, "StreamView", _View)
    patch.setattr(query_module, "DISCOVERY_INTERVAL_S", 0.0)
    options = StreamReadOptions.parse(
        {"metadata": "sqlite:////x", "streamPattern": "*"}, environ={}
    )
    query = StreamQuery(cast(Any, None), options)
    query._streams = cast(Any, streams)
    return query


async def test_a_query_continues_while_the_metadata_store_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query over a pattern failed at once, although one over a named stream waited."""
    streams = _Streams("a")
    query = searching(streams, monkeypatch)
    away = MetadataUnavailableError("the store does not answer")
    streams.error = away
    with pytest.raises(MetadataUnavailableError):
        await query._discover()  # it has nothing yet that it could continue with
    streams.error = None
    await query._discover()
    streams.error = away
    await query._discover()
    assert list(query._followed) == ["a"]
    streams.error, streams.names = None, ["a", "b"]
    streams.unopened["b"] = away
    await query._discover()
    assert list(query._followed) == ["a"]
    del streams.unopened["b"]
    await query._discover()
    assert list(query._followed) == ["a", "b"]
    assert query._search_fails_since_s is None
    monkeypatch.setattr(query_module, "PATIENCE_S", 0.0)
    streams.error = away
    with pytest.raises(MetadataUnavailableError):
        await query._discover()


async def test_a_stream_deleted_during_the_search_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = _Streams("a", "b")
    streams.unopened["b"] = NoSuchStreamError("stream b does not exist")
    query = searching(streams, monkeypatch)
    await query._discover()
    assert list(query._followed) == ["a"]


@pytest.mark.parametrize("error", [NoSuchStreamError("gone"), MetadataUnavailableError("away")])
async def test_a_position_that_cannot_be_stored_does_not_end_the_query(
    error: QuireError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only lag is computed from the positions. The query continues from its checkpoint."""
    streams = _Streams("a", "b")
    query = searching(streams, monkeypatch)
    query._options = replace(query._options, subscription="spark")
    stored: list[str] = []

    class Subscription:
        def __init__(self, stream: str, _: str) -> None:
            self.stream = stream

        async def commit(self, position: DLSN) -> None:
            if self.stream == "a":
                raise error
            stored.append(self.stream)

    monkeypatch.setattr(_Streams, "subscription", staticmethod(Subscription), raising=False)
    reached = dict.fromkeys(("a", "b"), StreamOffset(DLSN(1, 0, 0)))
    await query.commit(Offsets("c", "/streams", reached))
    assert stored == ["b"]


def test_a_query_that_starts_again_knows_the_streams_that_it_has_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its server of the metadata store was behind, so the stream seemed to be another one."""

    async def scene(made: Bench) -> None:
        given = {"metadata": "sqlite:////x", "namespace": "/acme/test", "stream": "s"}
        options = StreamReadOptions.parse(given, environ={})
        tree = made.client.metadata.tree
        former: list[str] = []
        async with made.streams.open_writer("s", create=True) as writer:
            for number in range(3):
                await writer.append(b"%d" % number)
                await writer.roll()
                former = former or await tree.children("/acme/test/s/<default>/ledgers")
        query = StreamQuery(made.client, options)
        await query.open()
        start = await query.initial()
        end = await query.latest(start, limited=False, wait=False)
        assert end is not None
        assert end.streams["s"].position == DLSN(4, 0, 0)
        await query.close()

        children, sync = tree.children, tree.sync
        behind = True

        async def late(path: str) -> list[str]:
            return former if behind and path.endswith("/ledgers") else await children(path)

        async def caught_up() -> None:
            nonlocal behind
            behind = False
            await sync()

        monkeypatch.setattr(tree, "children", late)
        monkeypatch.setattr(tree, "sync", caught_up)
        query = StreamQuery(made.client, options)
        await query.open()
        assert await query.latest(end, limited=False, wait=False) is None
        [splits] = await query.splits(start, end, counts=False)
        assert [split.origin.segment.lssn for split in splits] == [1, 2, 3]
        await query.close()

    run(scene)
