"""Connections over TCP."""

from __future__ import annotations

import asyncio

import pytest

from quire.net.network import AsyncioNetwork


@pytest.mark.parametrize(
    ("host", "port"), [("a..b", 3181), ("a" * 64 + ".b", 3181), ("127.0.0.1", 70_000), ("\0", 1)]
)
async def test_an_invalid_address_is_reported_as_unreachable(host: str, port: int) -> None:
    """Python's errors for such an address are not OSErrors, and once ended reads and recoveries."""
    with pytest.raises(OSError, match="is not an address"):
        await AsyncioNetwork().connect(host, port, asyncio.Protocol)
