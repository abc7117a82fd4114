"""The search for namespaces that have as many streams as they may have."""

from __future__ import annotations

from pathlib import Path

from quire.http.watch.stream_limits import FullNamespace, full_namespaces
from quire.metadata.tree import Put
from quire.metadata.values import ANY_VERSION
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stored_settings import SETTINGS_NODE
from tests.support.objects import object_bench


async def test_full_namespaces_and_tenants_are_found(tmp_path: Path) -> None:
    async with object_bench(tmp_path, 1) as bench:
        client = await bench.client()
        for path, limit in (("/acme", 2), ("/acme/shop", 0), ("/other", 2), ("/free", 0)):
            async with await open_namespace(client, path, create=True) as opened:
                if limit:
                    await opened.configure({"streams_max": limit})
        assert await full_namespaces(client) == ()
        for path in ("/acme/shop", "/other", "/free", "/free"):
            async with await open_namespace(client, path) as opened:
                await opened.create_stream(f"s{len(await opened.streams())}")
        assert await full_namespaces(client) == ()
        async with await open_namespace(client, "/acme") as opened:
            await opened.create_stream("own")
        tenant = FullNamespace("/acme", 2, 2)
        assert await full_namespaces(client) == (tenant,), "its streams are also those below it"
        node = f"/other/{SETTINGS_NODE}"
        await client.metadata.tree.commit(Put(node, b"damaged", ANY_VERSION))
        assert await full_namespaces(client) == (tenant,), "one damaged node hides no other"
