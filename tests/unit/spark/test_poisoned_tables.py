"""Values and namespaces that cannot be shown do not end the read of a metadata table."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from quire.errors import MetadataError
from quire.spark import tables
from quire.spark.streams.options import TableOptions

pytest.importorskip("pyspark")


@pytest.mark.parametrize("time_ms", [-1, 253_402_300_800_000, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_unknown(time_ms: int) -> None:
    """Other implementations may store any number."""
    assert tables._time(time_ms) is None
    assert tables._time(1_000) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize("wanted", [None, "/bad"])
def test_a_namespace_that_cannot_be_listed_is_reported(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None
) -> None:
    class Opened:
        def __init__(self, path: str) -> None:
            self.path = path

        async def __aenter__(self) -> Opened:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def streams(self) -> list[str]:
            if self.path == "/bad":
                raise MetadataError("access was denied", remedy="")
            return []

    async def opened(_: object, path: str, **__: object) -> Opened:
        return Opened(path)

    async def every(_: object) -> list[str]:
        return ["/bad", "/good"]

    monkeypatch.setattr(tables, "open_namespace", opened)
    monkeypatch.setattr(tables, "namespaces", every)
    read = tables._READERS["streams"]
    client: Any = None
    options = TableOptions("streams", "m", namespace=wanted)

    async def rows() -> list[Any]:
        found = read(client, options, tables.TablePartition())
        return [row async for some in found for row in some]

    if wanted is not None:
        with pytest.raises(MetadataError, match="access was denied"):
            asyncio.run(rows())
        return
    assert asyncio.run(rows()) == [{"namespace": "/bad", "error": "access was denied"}]
