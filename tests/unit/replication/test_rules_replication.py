"""The rules of re-replication (docs/internals/replication-rules.md) about single requests."""

from __future__ import annotations

import asyncio
import random

import pytest

from quire.codec.metadata.ledger_metadata import LedgerState, Segment
from quire.codec.wire.v2 import Flag
from quire.core.fragments import stored_by
from quire.errors import UsageError
from quire.replication import ReplicationLocks
from quire.replication.autorecovery.auditor import Auditor
from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
from quire.replication.repair.opened_ledger import open_for_repair
from tests.support.bookies.fake_bookies import LEDGER, FakeCluster, payload, simulated
from tests.support.replication import replicate_fragment


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 3, 2)], ids=["plain", "striped"])
def test_rule_23_entries_are_copied_to_a_bookie_where_the_ledger_is_fenced(
    shape: tuple[int, int, int],
) -> None:
    """Unchanged in payload and length (rule 22), and only those that belong there."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        metadata = await cluster.ledger(shape, range(9), state=LedgerState.CLOSED)
        target = cluster["b4"]
        target.fenced = True
        cluster["b1"].die()
        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            [fragment] = opened.fragments()
            await replicate_fragment(client, opened, fragment, {1: "b4"})
        expected = list(stored_by(metadata, 1, 0, 8))
        assert sorted(target.entries) == expected
        assert [entry for entry, _, _ in target.added] == expected
        for entry, flags, data in target.added:
            assert flags & Flag.RECOVERY_ADD
            whole = cluster.codec.unpack(data, entry)
            assert (whole.payload, whole.ledger_length) == (payload(entry), cluster.length(entry))
        assert "b1" not in (await cluster.stored()).segments[0].ensemble

    simulated(main)


def test_rule_24_what_is_still_written_is_not_copied() -> None:
    """Only the segments before the last one of an open ledger are complete."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(4, ("b0", "b1", "b3")))
        await cluster.ledger((3, 3, 2), range(9), segments=segments)
        async with cluster.client() as client:
            opened = await open_for_repair(client, LEDGER)
            complete, newest = opened.fragments()
            with pytest.raises(UsageError, match="still being written"):
                await replicate_fragment(client, opened, newest, {0: "b4"})
            assert cluster["b4"].added == []
            assert await cluster.stored() == opened.metadata
            await replicate_fragment(client, opened, complete, {0: "b4"})
            assert sorted(cluster["b4"].entries) == [0, 1, 2, 3]
        expected = (Segment(0, ("b4", "b1", "b2")), segments[1])
        assert (await cluster.stored()).segments == expected

    simulated(main)


def test_rule_29_bookies_that_died_before_an_auditor_began_are_noticed() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger((3, 3, 2), range(9), state=LedgerState.CLOSED)
        for name in cluster.bookies:
            await cluster.store.write_cookie(name, b"4\nbookieHost: x\n", None)
        await cluster.registrations["b1"].close()
        async with cluster.client() as client:
            locks = ReplicationLocks(cluster.store, "auditor", cluster.clock)
            auditor = Auditor(
                client,
                locks,
                settings=AutorecoverySettings(),
                stats=AutorecoveryStats(),
                clock=cluster.clock,
                rng=random.Random(1),
                log=lambda event, **fields: None,
            )
            running = asyncio.ensure_future(auditor.run())
            try:
                while (mark := await locks.marked(LEDGER)) is None:
                    await asyncio.sleep(0.1)
                assert list(mark.value.replicas) == ["b1"]
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    simulated(main)
