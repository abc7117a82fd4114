"""Warnings through the blocking API name the line of the program, although another thread works."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest

from quire import blocking

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
