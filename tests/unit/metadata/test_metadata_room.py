"""If a ledger's metadata is full, its writer keeps its bookies, and recovery closes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from quire.client import LedgerWriter
from quire.client.client import pool_of
from quire.client.write.ensemble_changes import REJOIN_DELAY_S
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.codec.metadata.ledger_metadata_format import encode
from quire.codec.wire.v2 import Code
from quire.core.fragments import Fragment
from quire.errors import MetadataTooLargeError, NotEnoughBookiesError, UsageError
from quire.metadata.common import NODE_BYTES_MAX
from quire.metadata.ledgers.size import CLOSING_BYTES
from quire.replication.repair.opened_ledger import open_for_repair
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    FakeBookie,
    FakeCluster,
    created,
    payload,
    simulated,
)
from tests.support.metadata.room import fill
from tests.support.replication import replicate_fragment
from tests.support.waiting import until

WAITS = replace(CONFIG, lost_quorum_wait_s=10.0)


async def full_ledger(
    cluster: FakeCluster, client: Any
) -> tuple[LedgerWriter, list[FakeBookie], FakeBookie]:
    """Return a writer that has appended entry 0 and has no room for another ensemble, its bookies
    in order, and the one bookie that is left."""
    writer = await created(client)
    members = [cluster[name] for name in writer.metadata.last_segment.ensemble]
    await writer.append(payload(0))
    await until(lambda: all(0 in bookie.entries for bookie in members))
    await fill(cluster)
    [other] = [bookie for bookie in cluster.bookies.values() if bookie not in members]
    return writer, members, other


def test_a_writer_with_full_metadata_continues_with_fewer_bookies_and_closes() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client(WAITS) as client:
            writer, members, other = await full_ledger(cluster, client)
            members[1].die()
            for entry in range(1, 20):
                assert await writer.append(payload(entry)) == entry
            await asyncio.sleep(10 * REJOIN_DELAY_S)
            assert await writer.append(payload(20)) == 20
            assert not other.entries
            assert pool_of(client).counters.ensemble_changes_without_room == 1
            assert await writer.close() == 20
        stored = await cluster.stored()
        assert (stored.closed, len(stored.segments)) == (True, 1)

    simulated(main)


def test_a_lost_member_returns_if_the_metadata_has_no_space_for_a_replacement() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client(WAITS) as client:
            writer, members, other = await full_ledger(cluster, client)
            members[1].die()
            assert await writer.append(payload(1)) == 1
            members[1].down = False
            await until(lambda: bool(members[1].links))
            assert await writer.append(payload(2)) == 2
            await until(lambda: 2 in members[1].entries)
            assert await writer.close() == 2
            assert not other.entries

    simulated(main)


def test_without_an_ack_quorum_the_writer_fails_and_recovery_closes_the_ledger() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        async with cluster.client(WAITS) as client:
            writer, members, other = await full_ledger(cluster, client)
            members[1].die()
            members[2].die()
            with pytest.raises(NotEnoughBookiesError) as told:
                await writer.append(payload(1))
            for word in (members[1].name, "no room", "1,000,000 bytes", "open the ledger with"):
                assert word in str(told.value)
            members[1].down = False
            members[1].add_error = Code.READ_ONLY  # it is replaced by the recovery
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 1
        stored = await cluster.stored()
        assert (stored.closed, stored.last_entry_id) == (True, 1)
        assert len(encode(stored)) > NODE_BYTES_MAX
        assert other.name in stored.last_segment.ensemble

    simulated(main)


def test_a_recovery_with_full_metadata_continues_with_its_bookies() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(10), state=LedgerState.IN_RECOVERY)
        await fill(cluster, NODE_BYTES_MAX + CLOSING_BYTES - 20)  # a segment takes more
        async with cluster.client(WAITS) as client:
            cluster["b1"].add_error = Code.READ_ONLY
            reader = await client.open_ledger(LEDGER, password=PASSWORD, recover=True)
            assert reader.last_add_confirmed == 9
        stored = await cluster.stored()
        assert (stored.closed, len(stored.segments)) == (True, 1)

    simulated(main)


def test_a_copy_is_not_started_if_its_bookies_do_not_fit_into_the_metadata() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        long = "b3-" + "x" * 50
        cluster.bookies[long] = FakeBookie(long)
        await cluster.ledger((3, 3, 2), range(10), state=LedgerState.CLOSED)
        await fill(cluster, NODE_BYTES_MAX + CLOSING_BYTES)
        async with cluster.client() as client:
            ledger = await open_for_repair(client, LEDGER, password=PASSWORD)
            [fragment] = ledger.fragments()
            assert isinstance(fragment, Fragment)
            with pytest.raises(MetadataTooLargeError, match="would become too large"):
                await replicate_fragment(client, ledger, fragment, {0: long})
            assert not cluster[long].entries

    simulated(main)


def test_a_ledger_with_too_much_custom_metadata_is_refused_before_anything_is_written() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            with pytest.raises(UsageError, match="999,900 are custom metadata"):
                await client.create_ledger(custom={"k": bytes(999_899)})
            assert [one async for one in client.list_ledgers()] == []

    simulated(main)
