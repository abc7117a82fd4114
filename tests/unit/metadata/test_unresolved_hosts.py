"""The error for ZooKeeper servers that do not answer says which host names are wrong."""

from __future__ import annotations

import asyncio
import socket

import pytest

from quire.metadata.zookeeper.kazoo_adapter import unresolved


async def test_only_names_that_cannot_be_resolved_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolve(host: str, port: object) -> list[object]:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await unresolved(["127.0.0.1:2181", "[::1]:2181"]) == ""
    assert await unresolved(["a.invalid:2181", "127.0.0.1:2181"]) == (
        ": the host name a.invalid (Name or service not known) cannot be resolved"
    )
    assert await unresolved(["a.invalid:2181", "b.invalid"]) == (
        ": the host names a.invalid (Name or service not known), b.invalid (Name or service not "
        "known) cannot be resolved"
    )
