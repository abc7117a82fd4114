"""Ledgers on real bookies whose entries are acknowledged first and durable later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import quire
from quire.codec.wire.v3_adds import max_deferred_payload_bytes
from quire.errors import (
    EntryTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    NotEnoughBookiesError,
)
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after

pytestmark = pytest.mark.slow

PATIENCE_S = 60
CONFIG = quire.ClientConfig(
    add_timeout_s=2.0, read_timeout_s=2.0, bookies_wait_s=0.5, lost_quorum_wait_s=2.0
)


def payload(entry_id: int) -> bytes:
    return b"%d;" % entry_id * (entry_id % 97)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=4, directory=tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[quire.Client]:
    async with quire.connect(cluster.uri, config=CONFIG) as client:
        yield client


async def contents(client: quire.Client, ledger_id: int) -> list[bytes]:
    reader = await client.open_ledger(ledger_id, password=b"secret")
    return [entry.payload async for entry in reader.read()]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (3, 2, 1)])
@pytest.mark.parametrize("digest", long_after(1, list(quire.DigestType)))
async def test_a_force_advances_the_lac(
    client: quire.Client, shape: tuple[int, int, int], digest: quire.DigestType
) -> None:
    writer = await client.create_ledger(
        ensemble_size=shape[0],
        write_quorum=shape[1],
        ack_quorum=shape[2],
        digest=digest,
        password=b"secret",
        deferred_sync=True,
    )
    assert await writer.force() == -1
    assert await writer.append(payload(0)) == 0
    assert await writer.append_many([payload(k) for k in range(1, 300)]) == 299
    assert writer.last_add_confirmed == -1
    assert await writer.force() == writer.last_add_confirmed == 299
    appends = [writer.append(payload(k)) for k in range(300, 400)]
    assert await asyncio.gather(*appends) == list(range(300, 400))
    assert writer.last_add_confirmed == 299
    reader = await client.open_ledger(writer.ledger_id, password=b"secret")
    assert reader.last_add_confirmed == 299
    forces = await asyncio.gather(*(writer.force() for _ in range(10)))
    assert forces == [399] * 10
    await writer.append(payload(400))
    assert await writer.close() == 400
    assert writer.metadata.last_entry_id == 400
    assert await contents(client, writer.ledger_id) == [payload(k) for k in range(401)]


async def test_other_ledgers_need_no_force(client: quire.Client) -> None:
    async with await client.create_ledger() as writer:
        assert await writer.append(b"x") == 0
        assert await writer.force() == 0


async def test_forced_entries_survive_the_death_of_all_bookies(
    cluster: LocalCluster, client: quire.Client
) -> None:
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append_many([payload(k) for k in range(1_000)])
    assert await writer.force() == 999
    await writer.append_many([payload(k) for k in range(1_000, 1_100)])
    for bookie in cluster.bookies:
        bookie.kill()
    for bookie in cluster.bookies:
        await asyncio.to_thread(bookie.start)
    writer.abandon()
    async with quire.connect(cluster.uri) as other:
        reader = await other.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_add_confirmed >= 999
        found = [entry.payload async for entry in reader.read()]
    assert found == [payload(k) for k in range(len(found))]


async def test_a_bookie_that_dies_before_the_force_is_replaced_completely(
    cluster: LocalCluster, client: quire.Client
) -> None:
    """Its replacement gets everything that is not durable yet, acknowledged or not."""
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append_many([payload(k) for k in range(100)])
    assert await writer.force() == 99
    await writer.append_many([payload(k) for k in range(100, 200)])
    by_id = {bookie.id: bookie for bookie in cluster.bookies}
    old = writer.metadata.last_segment.ensemble
    victim = by_id[old[0]]
    victim.kill()
    async with asyncio.timeout(PATIENCE_S):
        assert await writer.force() == 199
    segments = writer.metadata.segments
    assert [segment.first_entry_id for segment in segments] == [0, 100]
    [new] = set(segments[1].ensemble) - set(old)
    assert await client.list_entries(new, writer.ledger_id) == [(100, 199)]
    await writer.append(payload(200))
    assert await writer.close() == 200
    await asyncio.to_thread(victim.start)
    assert [e.payload async for e in (await client.open_ledger(writer.ledger_id)).read()] == [
        payload(k) for k in range(201)
    ]


async def test_a_force_fails_if_no_bookie_can_replace_a_lost_one(cluster: LocalCluster) -> None:
    async with quire.connect(cluster.uri, config=CONFIG) as client:
        writer = await client.create_ledger(
            ensemble_size=4, write_quorum=4, ack_quorum=4, deferred_sync=True
        )
        await writer.append(b"x")
        cluster.bookies[3].kill()
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(NotEnoughBookiesError):
                    await writer.force()
                with pytest.raises(NotEnoughBookiesError):
                    await writer.close()
        finally:
            await asyncio.to_thread(cluster.bookies[3].start)
        assert not (await client.ledger_metadata(writer.ledger_id)).closed


async def test_a_fenced_writer_is_refused(client: quire.Client) -> None:
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append_many([payload(k) for k in range(50)])
    reader = await client.open_ledger(writer.ledger_id, recover=True)
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")
    with pytest.raises(LedgerFencedError):
        await writer.force()
    assert [e.payload async for e in reader.read()] == [payload(k) for k in range(50)]


async def test_the_bytes_that_are_not_durable_are_limited(cluster: LocalCluster) -> None:
    """The writer forces by itself at the bound, and appends wait for that."""
    config = quire.ClientConfig(max_unforced_bytes=100_000, max_turn_bytes=10_000)
    async with quire.connect(cluster.uri, config=config) as client:
        writer = await client.create_ledger(deferred_sync=True)
        entry = bytes(5_000)
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(20):
                await writer.append_many([entry] * 10)
                unforced = writer.last_add_pushed - writer.last_add_confirmed
                assert unforced * len(entry) <= 100_000 + 10 * len(entry)
        assert writer.last_add_confirmed >= 150
        assert await writer.close() == 199


async def test_a_deferred_writer_refuses_oversized_entries_and_a_force_after_close(
    client: quire.Client,
) -> None:
    writer = await client.create_ledger(deferred_sync=True)
    size = max_deferred_payload_bytes(quire.DigestType.CRC32C)
    assert await writer.append(bytes(size)) == 0
    with pytest.raises(EntryTooLargeError):
        await writer.append(bytes(size + 1))
    assert await writer.close() == 0
    with pytest.raises(LedgerClosedError):
        await writer.force()
    async with await client.create_ledger(deferred_sync=True) as empty:
        pass
    assert empty.metadata.last_entry_id == -1


async def test_a_cancelled_force_disturbs_nobody(client: quire.Client) -> None:
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append_many([payload(k) for k in range(10)])
    forces = [asyncio.ensure_future(writer.force()) for _ in range(4)]
    await asyncio.sleep(0)
    forces[0].cancel()
    forces[2].cancel()
    done = await asyncio.gather(*forces, return_exceptions=True)
    assert done[1] == done[3] == 9
    await writer.close()


async def test_readers_follow_forces(cluster: LocalCluster) -> None:
    config = quire.ClientConfig(explicit_lac_interval_s=0.01)
    async with quire.connect(cluster.uri, config=config) as client:
        writer = await client.create_ledger(deferred_sync=True)
        reader = await client.open_ledger(writer.ledger_id)
        tail = reader.tail(0)
        async with asyncio.timeout(PATIENCE_S):
            for k in range(5):
                await writer.append(payload(k))
                await writer.force()
                assert (await anext(tail)).payload == payload(k)
        await tail.aclose()
        await writer.close()


def test_the_blocking_client_forces_entries(cluster: LocalCluster) -> None:
    with quire.blocking.connect(cluster.uri) as client:
        with client.create_ledger(deferred_sync=True) as writer:
            assert writer.append(b"x") == 0
            assert writer.last_add_confirmed == -1
            assert writer.force() == 0
            assert writer.last_add_confirmed == 0
        assert client.open_ledger(writer.ledger_id).last_add_confirmed == 0
