"""Writers that choose their entry ids."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

import quire
from quire.errors import EntryTooLargeError, LedgerClosedError, LedgerFencedError, UsageError
from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow

PATIENCE_S = 60


def payload(entry_id: int) -> bytes:
    return b"%d;" % entry_id * (entry_id % 97)


@pytest.mark.parametrize("deferred_sync", [False, True])
async def test_any_order_gives_the_same_ledger(
    quire_client: quire.Client, deferred_sync: bool
) -> None:
    writer = await quire_client.create_ledger(caller_ids=True, deferred_sync=deferred_sync)
    acknowledged: list[int] = []

    async def append(entry_id: int) -> None:
        assert await writer.append_at(entry_id, payload(entry_id)) == entry_id
        acknowledged.append(entry_id)

    ids = list(range(500))
    random.Random(4).shuffle(ids)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for entry_id in ids:
            group.create_task(append(entry_id))
    assert acknowledged == sorted(ids), "acknowledged in the order of ids"
    assert writer.last_add_confirmed == (-1 if deferred_sync else 499)
    assert writer.length == sum(len(payload(k)) for k in range(500))
    assert await writer.close() == 499
    reader = await quire_client.open_ledger(writer.ledger_id)
    assert [entry.payload async for entry in reader.read()] == [payload(k) for k in range(500)]
    assert reader.length == writer.length


async def test_ledger_and_entry_ids_can_be_chosen_by_the_caller(quire_client: quire.Client) -> None:
    async with await quire_client.create_ledger(caller_ids=True, ledger_id=12_345_678) as writer:
        writer.submit_at(1, b"one")
        writer.submit_at(0, b"zero")
        assert await writer.wait(1) == 1
        assert await writer.flush() == 1
    reader = await quire_client.open_ledger(12_345_678)
    assert [entry.payload async for entry in reader.read()] == [b"zero", b"one"]


async def test_invalid_entry_ids_are_refused(quire_cluster: LocalCluster) -> None:
    config = quire.ClientConfig(max_held_bytes=2_000)
    async with quire.connect(quire_cluster.uri, config=config) as client:
        writer = await client.create_ledger(caller_ids=True)
        await writer.append_at(0, b"zero")
        writer.submit_at(2, b"two")
        for entry_id, why in ((-1, "begin at 0"), (0, "already"), (2, "already"), (2**31, "end")):
            with pytest.raises(UsageError, match=why):
                await writer.append_at(entry_id, b"again")
        with pytest.raises(EntryTooLargeError):
            writer.submit_at(3, bytes(6 << 20))
        with pytest.raises(UsageError, match=r"too far ahead: .* holds 1 entry .* until entry 1 "):
            writer.submit_at(3, bytes(2_000))
        writer.submit_at(3, bytes(1_000))
        assert writer.held_entry_ids == [2, 3]
        assert await writer.append_at(1, b"one") == 1
        assert writer.held_entry_ids == []
        assert await writer.wait(3) == 3
        with pytest.raises(UsageError, match="has not been appended yet"):
            await writer.wait(4)
        writer.submit_at(4, bytes(2_000))  # nothing is in its way
        assert await writer.close() == 4
        with pytest.raises(LedgerClosedError):
            writer.submit_at(5, b"late")


async def test_closing_with_a_gap_ends_the_ledger_before_it(quire_client: quire.Client) -> None:
    """The ledger ends before the gap. Entries after it fail with a known outcome."""
    writer = await quire_client.create_ledger(caller_ids=True)
    for entry_id in (0, 1, 3, 4):
        writer.submit_at(entry_id, payload(entry_id))
    behind = asyncio.ensure_future(writer.wait(4))
    await asyncio.sleep(0)
    assert await writer.close() == 1
    with pytest.raises(LedgerClosedError, match="while entry 2 was missing") as failed:
        await behind
    assert failed.value.outcome_known
    assert writer.held_entry_ids == []
    with pytest.raises(LedgerClosedError, match="while entry 2 was missing"):
        await writer.wait(4)
    reader = await quire_client.open_ledger(writer.ledger_id)
    assert [entry.payload async for entry in reader.read()] == [payload(0), payload(1)]


async def test_a_fenced_writer_fails_its_held_entries(quire_client: quire.Client) -> None:
    writer = await quire_client.create_ledger(caller_ids=True)
    await writer.append_at(0, b"zero")
    held = asyncio.ensure_future(writer.append_at(2, b"two"))
    await asyncio.sleep(0)
    reader = await quire_client.open_ledger(writer.ledger_id, recover=True)
    with pytest.raises(LedgerFencedError):
        await writer.append_at(1, b"one")
    with pytest.raises(LedgerFencedError):
        await held
    assert reader.last_add_confirmed == 0


def test_a_blocking_append_waits_for_missing_ids(
    quire_blocking_client: quire.blocking.Client,
) -> None:
    """An append after a missing id waits for another thread."""
    with quire_blocking_client.create_ledger(caller_ids=True) as writer:
        threads = [
            threading.Thread(target=writer.append_at, args=(entry_id, payload(entry_id)))
            for entry_id in (3, 1, 2)
        ]
        for thread in threads:
            thread.start()
        assert writer.append_at(0, payload(0)) == 0
        for thread in threads:
            thread.join()
        writer.submit_at(4, payload(4))
        assert writer.wait(4) == 4
    reader = quire_blocking_client.open_ledger(writer.ledger_id)
    assert [entry.payload for entry in reader.read()] == [payload(k) for k in range(5)]
