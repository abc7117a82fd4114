"""A caller in another thread gets warnings that name its line, and errors for wrong arguments."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable
from typing import Any

import pytest

from quire import blocking
from quire.errors import ArgumentTypeError, UsageError

SETTINGS = {"retention_ms": 86_400_000}
Use = Callable[[blocking.Client, blocking.Namespace], Any]


@pytest.mark.parametrize(
    "use",
    [
        lambda client, streams: client.namespace("/b", create=True, settings=SETTINGS),
        lambda client, streams: streams.configure(SETTINGS),
        lambda client, streams: streams.create_stream("b", settings=SETTINGS),
        lambda client, streams: streams.configure_stream("a", SETTINGS),
    ],
)
def test_a_deprecation_names_the_line_that_called(client: blocking.Client, use: Use) -> None:
    with client.namespace("/a", create=True) as streams:
        streams.create_stream("a")
        with pytest.warns(DeprecationWarning, match="is deprecated") as found:
            use(client, streams)
        [warning] = found
        assert warning.filename == __file__
        assert "lambda client, streams" in linecache.getline(warning.filename, warning.lineno)


def test_the_type_of_an_object_source_is_checked(client: blocking.Client) -> None:
    for wrong in ("text", 5, None):
        with pytest.raises(ArgumentTypeError, match="the source of an object"):
            client.objects().put("o", wrong)  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentTypeError, match="the source of an object yielded str, but it must yield"
    ):
        client.objects().put("o", ["text"])  # type: ignore[list-item]


def test_a_source_that_pauses_is_not_mistaken_for_its_end(client: blocking.Client) -> None:
    """An object of the pieces before the pause would be a part of what the caller meant."""
    objects = client.objects()
    with pytest.raises(ArgumentTypeError, match="yielded NoneType"):
        objects.put("pieces", [b"first", None, b"last"])  # type: ignore[list-item]
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    for buffering in (0, -1):
        os.write(write_end, b"first")
        with (
            open(read_end, "rb", buffering, closefd=False) as file,
            pytest.raises(UsageError, match="non-blocking mode and has no bytes now"),
        ):
            objects.put("file", file)
    os.write(write_end, b"last")
    os.close(write_end)
    with open(read_end, "rb", 0) as file:
        assert objects.put("ended", file).size_bytes == 4
    assert [info.name for info in objects.list()] == ["ended"]
    assert objects.sweep(0) == []


def test_the_repr_of_a_blocking_handle_follows_the_asyncio_one(client: blocking.Client) -> None:
    uri = client.aio.metadata.uri
    assert repr(client) == f"<blocking Client cluster={uri} open>"
    with client.create_ledger() as writer:
        assert repr(writer) == (
            f"<blocking LedgerWriter ledger={writer.ledger_id} open last_acknowledged=-1>"
        )
