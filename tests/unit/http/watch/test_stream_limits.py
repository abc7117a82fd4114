"""The search for namespaces and streams that have reached their limits."""

from __future__ import annotations

from pathlib import Path

from quire.client import Client
from quire.http.views.problems.cluster import problems
from quire.http.watch.stream_limits import (
    FullNamespace,
    FullStream,
    full_namespaces,
    full_streams,
    limited_namespaces,
)
from quire.metadata.tree import Put
from quire.metadata.values import ANY_VERSION
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.stored_settings import SETTINGS_NODE
from tests.support.http.problems import WELL, bookie
from tests.support.objects import object_bench


async def namespaces_of(client: Client) -> tuple[FullNamespace, ...]:
    return full_namespaces(await limited_namespaces(client))


async def streams_of(client: Client) -> tuple[FullStream, ...]:
    return await full_streams(client, await limited_namespaces(client))


async def test_full_namespaces_and_tenants_are_found(tmp_path: Path) -> None:
    async with object_bench(tmp_path, 1) as bench:
        client = await bench.client()
        for path, limit in (("/acme", 2), ("/acme/shop", 0), ("/other", 2), ("/free", 0)):
            async with await open_namespace(client, path, create=True) as opened:
                if limit:
                    await opened.configure({"streams_max": limit})
        assert await namespaces_of(client) == ()
        for path in ("/acme/shop", "/other", "/free", "/free"):
            async with await open_namespace(client, path) as opened:
                await opened.create_stream(f"s{len(await opened.streams())}")
        assert await namespaces_of(client) == ()
        async with await open_namespace(client, "/acme") as opened:
            await opened.create_stream("own")
        tenant = FullNamespace("/acme", 2, 2)
        assert await namespaces_of(client) == (tenant,), "its streams are also those below it"
        node = f"/other/{SETTINGS_NODE}"
        await client.metadata.tree.commit(Put(node, b"damaged", ANY_VERSION))
        assert await namespaces_of(client) == (tenant,), "one damaged node hides no other"


async def test_streams_that_are_nearly_full_are_found(tmp_path: Path) -> None:
    """Nothing but the page of the stream said so, and a tenant has hundreds of streams."""
    single = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    async with object_bench(tmp_path, 1) as bench:
        client = await bench.client()
        for path in ("/acme", "/acme/shop", "/free"):
            async with await open_namespace(client, path, create=True) as opened:
                await opened.configure(single)
                if path == "/acme":
                    await opened.configure({"bytes_max": 1_000})
        for path, name, size, closed in (
            ("/acme", "half", 500, True), ("/acme", "nearly", 850, True),
            ("/acme/shop", "open", 900, False), ("/free", "large", 2_000, True),
        ):  # fmt: skip
            async with await open_namespace(client, path) as opened:
                writer = await opened.open_writer(name, create=True)
                await writer.append(b"x" * size)
                if closed:
                    await writer.close()
                else:
                    assert [one.name for one in await streams_of(client)] == ["open", "nearly"]
                    await writer.close()
        found = await streams_of(client)
        assert [(one.namespace, one.name) for one in found] == [
            ("/acme/shop", "open"), ("/acme", "nearly"),
        ]  # fmt: skip
        assert all(one.limit == 1_000 and one.bytes >= 850 for one in found)


def test_a_stream_that_is_nearly_full_is_a_problem() -> None:
    one = FullStream("/acme", "orders", 900, 1_000)
    (found,) = problems([bookie("a")], WELL, full_streams=[one])
    assert found.severity == "warn"
    assert found.what == (
        "Stream orders of /acme holds 900 B of the 1.0 kB that its limit bytes_max allows"
    )
    assert "limit of the stream: quire stream set orders bytes_max=2000 -n /acme. A" in found.next
    assert found.next.endswith("quire explain stream orders -n /acme")
    (both,) = problems([bookie("a")], WELL, full_streams=[one, one])
    assert both.what.startswith("2 streams have at least 80 % of the bytes")
    assert both.items == ("orders of /acme: 900 B of 1.0 kB",) * 2
