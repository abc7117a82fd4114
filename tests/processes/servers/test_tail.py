"""Following ledgers that are written, while real bookies are killed, stopped and replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

import quire
from quire.errors import NoSuchLedgerError, UsageError
from quire.testing.cluster import LocalCluster
from tests.support.long import long_after
from tests.support.waiting import until

pytestmark = pytest.mark.slow

PATIENCE_S = 60
CONFIG = quire.ClientConfig(
    add_timeout_s=2.0, read_timeout_s=2.0, long_poll_s=0.5, explicit_lac_interval_s=0.02
)


def payload(entry_id: int) -> bytes:
    return b"%d;" % entry_id * (entry_id % 97)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One bookie more than an ensemble needs."""
    with LocalCluster(bookies=4, directory=tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[quire.Client]:
    async with quire.connect(cluster.uri, config=CONFIG) as client:
        yield client


async def collect(reader: quire.LedgerReader, found: list[bytes], first: int = 0) -> None:
    async for entry in reader.tail(first):
        assert entry.entry_id == first + len(found)
        found.append(entry.payload)


async def seen(found: list[bytes], count: int) -> None:
    await until(lambda: len(found), right=lambda there: there >= count)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (3, 2, 1)])
@pytest.mark.parametrize("digest", long_after(1, list(quire.DigestType)))
async def test_tailing_readers_see_every_entry(
    client: quire.Client, shape: tuple[int, int, int], digest: quire.DigestType
) -> None:
    writer = await client.create_ledger(
        ensemble_size=shape[0],
        write_quorum=shape[1],
        ack_quorum=shape[2],
        digest=digest,
        password=b"secret",
    )
    found: list[list[bytes]] = [[], [], []]
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for entries in found:
            reader = await client.open_ledger(writer.ledger_id, password=b"secret")
            group.create_task(collect(reader, entries))
        for piece in range(20):
            await writer.append_many(
                [payload(entry) for entry in range(50 * piece, 50 * piece + 50)]
            )
        # Only the LAC that the writer sends follows an idle writer's last entry.
        for entries in found:
            await seen(entries, 1_000)
        await writer.append(payload(1_000))
        for entries in found:
            await seen(entries, 1_001)
        await writer.close()
    for entries in found:
        assert entries == [payload(entry) for entry in range(1_001)]


async def test_a_tail_starts_at_the_requested_entry(client: quire.Client) -> None:
    writer = await client.create_ledger()
    await writer.append_many([payload(entry) for entry in range(100)])
    await writer.append(payload(100))
    reader = await client.open_ledger(writer.ledger_id)
    known = reader.last_add_confirmed
    assert known >= 99
    behind, later, ended = [], [], []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(collect(reader, later, first=150))

        async def from_here() -> None:
            async for entry in reader.tail():
                behind.append(entry.entry_id)

        group.create_task(from_here())
        await asyncio.sleep(0)
        await writer.append_many([payload(entry) for entry in range(101, 200)])
        await writer.close()
    assert behind == list(range(known + 1, 200))
    assert later == [payload(entry) for entry in range(150, 200)]
    await collect(reader, ended, first=190)
    assert len(ended) == 10
    await collect(reader, ended := [], first=200)
    assert ended == []


async def test_a_tail_survives_the_replacement_of_every_bookie(cluster: LocalCluster) -> None:
    """Each bookie of the ensemble is killed in turn, including the one that is polled."""
    async with (
        quire.connect(cluster.uri, config=CONFIG) as writing,
        quire.connect(cluster.uri, config=CONFIG) as reading,
    ):
        writer = await writing.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        reader = await reading.open_ledger(writer.ledger_id)
        found: list[bytes] = []
        sent = 0
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(collect(reader, found))
            for bookie in cluster.bookies[:3]:
                for _ in range(10):
                    await writer.append_many([payload(sent + k) for k in range(20)])
                    sent += 20
                await seen(found, sent)
                bookie.kill()
                await writer.append_many([payload(sent + k) for k in range(20)])
                sent += 20
                await seen(found, sent)
                await asyncio.to_thread(bookie.start)
            assert len(writer.metadata.segments) > 1
            await writer.close()
        assert found == [payload(entry) for entry in range(sent)]
        assert reader.metadata == writer.metadata


async def test_a_bookie_that_stops_answering_delays_a_tail_but_does_not_end_it(
    cluster: LocalCluster, client: quire.Client
) -> None:
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    reader = await client.open_ledger(writer.ledger_id)
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(collect(reader, found))
        await writer.append_many([payload(k) for k in range(100)])
        await seen(found, 100)
        by_id = {bookie.id: bookie for bookie in cluster.bookies}
        for index, bookie_id in enumerate(writer.metadata.last_segment.ensemble):
            by_id[bookie_id].pause()
            try:
                await writer.append(payload(100 + index))
                await seen(found, 101 + index)
            finally:
                by_id[bookie_id].resume()
        await writer.close()
    assert found == [payload(entry) for entry in range(103)]


async def test_a_tail_continues_through_a_recovery(client: quire.Client) -> None:
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(collect(reader, found))
        await writer.append_many([payload(k) for k in range(500)])
        writer.abandon()
        recovered = await client.open_ledger(writer.ledger_id, recover=True)
    assert len(found) == recovered.last_add_confirmed + 1 == 500
    assert reader.ledger_closed


async def test_a_deleted_ledger_ends_a_tail_with_an_error(client: quire.Client) -> None:
    writer = await client.create_ledger()
    await writer.append(b"x")
    reader = await client.open_ledger(writer.ledger_id)
    tail = asyncio.ensure_future(collect(reader, []))
    await asyncio.sleep(0)
    await client.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError, match="was deleted"):
        async with asyncio.timeout(PATIENCE_S):
            await tail
    writer.abandon()


async def test_a_tail_can_be_cancelled_and_restarted(client: quire.Client) -> None:
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    found: list[bytes] = []
    for piece in range(5):
        tail = asyncio.ensure_future(collect_more(reader, found))
        await writer.append_many([payload(len(found) + k) for k in range(20)])
        await seen(found, 20 * piece + 20)
        tail.cancel()
        await asyncio.gather(tail, return_exceptions=True)
    assert found == [payload(entry) for entry in range(100)]
    assert not reader._tails
    tail = reader.tail(0)
    assert (await anext(tail)).entry_id == 0
    await tail.aclose()
    reader.close()
    with pytest.raises(UsageError, match="is closed"):
        await anext(reader.tail(0))
    await writer.close()


async def collect_more(reader: quire.LedgerReader, found: list[bytes]) -> None:
    async with aclosing(reader.tail_runs(len(found))) as runs:
        async for run in runs:
            assert run.first == len(found)
            found.extend(run.payloads())


async def test_a_tail_reads_entries_of_the_largest_size(client: quire.Client) -> None:
    """The largest that there are fit into an answer to READ_LAC and to a long poll."""
    from quire.codec.entry.entry import max_payload_bytes

    size = max_payload_bytes(quire.DigestType.CRC32C)
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id)
    seen = []
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:

        async def follow() -> None:
            async for entry in reader.tail(0):
                seen.append((entry.entry_id, entry.payload[:1], len(entry.payload)))

        group.create_task(follow())
        for k in range(4):
            await writer.append(b"%d" % k + bytes(size - 1))
        await writer.close()
    assert seen == [(k, b"%d" % k, size) for k in range(4)]


async def test_bookies_report_their_space_and_entries(
    cluster: LocalCluster, client: quire.Client
) -> None:
    writer = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
    await writer.append_many([b"x"] * 10)
    await writer.close()
    holdings = []
    for bookie_id in writer.metadata.last_segment.ensemble:
        info = await client.bookie_info(bookie_id)
        assert 0 < info.free_bytes <= info.total_bytes
        for first, last in await client.list_entries(bookie_id, writer.ledger_id):
            holdings.extend(range(first, last + 1))
    assert sorted(holdings) == sorted([*range(10)] * 2)
    with pytest.raises(quire.errors.BookieUnavailableError, match="not registered"):
        await client.bookie_info("nowhere:1")
    outside = {b.id for b in cluster.bookies} - set(writer.metadata.last_segment.ensemble)
    with pytest.raises(quire.errors.NoSuchEntryError, match="has no entry of ledger"):
        await client.list_entries(outside.pop(), writer.ledger_id)


# -- the blocking twin ------------------------------------------------------------------------


def test_the_blocking_client_tails_a_ledger(cluster: LocalCluster, tmp_path: Path) -> None:
    with quire.blocking.connect(cluster.uri, config=CONFIG) as client:
        writer = client.create_ledger()
        reader = client.open_ledger(writer.ledger_id)
        tail = reader.tail(0)
        for entry_id in range(5):
            writer.append(payload(entry_id))
            assert next(tail).payload == payload(entry_id)
        assert reader.refresh() == 4
        writer.close()
        assert list(tail) == []
        assert [entry.entry_id for entry in reader.tail(3)] == [3, 4]
        info = client.bookie_info(cluster.bookies[0].id)
        assert info.free_bytes > 0
