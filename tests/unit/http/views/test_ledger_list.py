"""Pages of the list of ledgers: order, filters, limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.http.routes.quire_api import STATES
from quire.http.views import ledger_list
from quire.http.views.ledger_json import time_text
from quire.http.views.ledger_list import LedgerQuery, ledger_page
from quire.replication.marks.locks import ReplicationLocks
from quire.streams.objects.format import BUCKET_KEY, NAME_KEY
from quire.streams.ownership.named_ledgers import NamedLedger, Owner
from quire.streams.ownership.owner_index import OwnerIndex
from tests.support.bookies.fake_bookies import FakeCluster, simulated

COUNT = 300
GONE = "b9"


def owners_of(ledger_ids: dict[int, Owner]) -> OwnerIndex:
    index = OwnerIndex(2**62)
    index.add([NamedLedger(one, owner, "all of it") for one, owner in ledger_ids.items()])
    index.whole = True
    return index


async def filled(cluster: FakeCluster) -> OwnerIndex:
    """Ledgers 0 to 299. Every tenth is open, every seventh is on a lost bookie, every fifth belongs
    to a stream, and every thirtieth to an object."""
    owners: dict[int, Owner] = {}
    for ledger_id in range(COUNT):
        third = GONE if ledger_id % 7 == 0 else "b2"
        metadata = LedgerMetadata(
            3, 3, 2, (Segment(0, ("b0", "b1", third)),), ctime_ms=1_000 + ledger_id
        )
        if ledger_id % 10:
            metadata = metadata.with_close(9, 90)
        await cluster.store.create_ledger(metadata, ledger_id)
        if ledger_id % 30 == 0:
            owners[ledger_id] = Owner("object", f"name-{ledger_id}", "bucket")
        elif ledger_id % 5 == 0:
            owners[ledger_id] = Owner("stream", "orders", "/team")
    return owners_of(owners)


def ids(page: dict[str, Any]) -> list[int]:
    return [one["ledger_id"] for one in page["ledgers"]]


async def all_pages(client: Client, index: OwnerIndex, **query: Any) -> list[int]:
    found: list[int] = []
    after: int | None = None
    while True:
        page = await ledger_page(client, index, LedgerQuery(after=after, **query))
        found += ids(page)
        after = page["next"]
        if after is None:
            return found


def test_ledgers_are_listed_in_both_orders_and_by_range() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        index = await filled(cluster)
        async with cluster.client() as client:
            up = await ledger_page(client, index, LedgerQuery(20))
            assert (ids(up), up["next"], up["looked_at"]) == (list(range(20)), 19, 20)
            down = await ledger_page(client, index, LedgerQuery(20, newest=True))
            assert (ids(down), down["next"]) == (list(range(299, 279, -1)), 280)
            for newest in (False, True):
                for limit in (7, 100, COUNT, COUNT + 1):
                    found = await all_pages(client, index, limit=limit, newest=newest)
                    assert found == sorted(range(COUNT), reverse=newest)
                found = await all_pages(client, index, limit=9, newest=newest, first=40, last=70)
                assert found == sorted(range(40, 71), reverse=newest)
                assert not await all_pages(client, index, limit=9, newest=newest, first=70, last=40)
                assert not await all_pages(client, index, limit=9, newest=newest, first=10**6)
            assert "replication" not in up["ledgers"][0]

    simulated(main)


FILTERS: list[tuple[dict[str, Any], Callable[[int], bool]]] = [
    ({"state": "OPEN"}, lambda k: k % 10 == 0),
    ({"state": "CLOSED"}, lambda k: k % 10 != 0),
    ({"owner": "object"}, lambda k: k % 30 == 0),
    ({"owner": "stream"}, lambda k: k % 5 == 0 and k % 30 != 0),
    ({"owner": "none"}, lambda k: k % 5 != 0),
    ({"owner": "dataset"}, lambda k: False),
    ({"owner_name": "orders"}, lambda k: k % 5 == 0 and k % 30 != 0),
    ({"owner_name": "bucket/name-6"}, lambda k: k == 60),
    ({"owner": "stream", "state": "CLOSED"}, lambda k: k % 5 == 0 and k % 10 != 0),
    ({"replication": "lacking"}, lambda k: k % 7 == 0 and k not in (7, 14, 21)),
    ({"replication": "marked"}, lambda k: k in (7, 14)),
    ({"replication": "repairing"}, lambda k: k == 21),
    ({"replication": "complete"}, lambda k: k % 7 != 0),
    ({"replication": "any"}, lambda k: True),
    ({"replication": "lacking", "owner": "object"}, lambda k: k % 210 == 0),
]


def test_ledgers_are_filtered() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        index = await filled(cluster)
        locks = ReplicationLocks(cluster.store, "worker", cluster.clock)
        for ledger_id in (7, 14, 21):
            await locks.mark(ledger_id, [GONE])
        async with locks.hold(21), cluster.client() as client:
            for (query, wanted), newest, limit in product(FILTERS, (False, True), (1_000, 17)):
                expected = sorted(filter(wanted, range(COUNT)), reverse=newest)
                found = await all_pages(client, index, limit=limit, newest=newest, **query)
                assert found == expected, (query, newest, limit)

    simulated(main)


def test_the_state_of_replicas_names_the_lost_bookies() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        index = await filled(cluster)
        async with cluster.client() as client:
            page = await ledger_page(client, index, LedgerQuery(2, replication="any"))
            assert [one["replication"] for one in page["ledgers"]] == [
                {"state": "lacking", "gone": [GONE]},
                {"state": "complete", "gone": []},
            ]

    simulated(main)


def test_a_page_ends_in_time_and_names_the_next_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_list, "LOOK_S", 0.0)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        index = await filled(cluster)
        async with cluster.client() as client:
            page = await ledger_page(
                client, index, LedgerQuery(5, owner="object", owner_name="-270")
            )
            assert ids(page) == []
            assert page["looked_at"] == page["next"] + 1 == ledger_list.LOOKED_AT_ONCE
            assert await all_pages(client, index, limit=5, owner_name="-270") == [270]

    simulated(main)


def test_ledgers_with_unreadable_metadata_are_listed_with_the_reason() -> None:
    """They are listed with the reason, and no filter can say whether they are meant."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        index = await filled(cluster)
        cluster.metadata.ledgers[3].data = b"garbage"
        async with cluster.client() as client:
            page = await ledger_page(client, index, LedgerQuery(5))
            assert ids(page) == [0, 1, 2, 3, 4]
            assert page["ledgers"][3]["error"]
            page = await ledger_page(client, index, LedgerQuery(5, state="CLOSED"))
            assert ids(page) == [1, 2, 4, 5, 6]

    simulated(main)


def test_marked_ledgers_with_unreadable_metadata_are_listed() -> None:
    """The list of what waits for a repair left out what no worker can repair."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        index = await filled(cluster)
        async with cluster.client() as client:
            locks = ReplicationLocks(client.metadata, "worker", client.clock)
            for ledger_id in (2, 3, 4):
                await locks.mark(ledger_id, ["b1"])
            cluster.metadata.ledgers[3].data = b"garbage"
            cluster.metadata.ledgers[5].data = b"garbage"
            page = await ledger_page(client, index, LedgerQuery(5, replication="marked"))
            assert ids(page) == [2, 3, 4]
            assert page["ledgers"][1]["error"]
            assert page["ledgers"][1]["replication"]["state"] == "marked"
            assert await all_pages(client, index, limit=5, replication="marked", state="OPEN") == []
            async with locks.hold(3):
                found = await all_pages(client, index, limit=5, replication="repairing")
                assert found == [3]
            lacking = await all_pages(client, index, limit=100, replication="complete")
            assert 5 not in lacking, "the state of ledger 5 is not known"

    simulated(main)


def test_an_owner_that_is_not_known_yet_is_shown_as_such() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await filled(cluster)
        custom = {BUCKET_KEY: b"b", NAME_KEY: b"n"}
        made = LedgerMetadata(1, 1, 1, (Segment(0, ("b0",)),), custom=custom, ctime_ms=1)
        await cluster.store.create_ledger(made, 1_000)
        async with cluster.client() as client:
            index = OwnerIndex(0)
            found = await all_pages(client, index, limit=50, owner="unknown")
            assert found == list(range(COUNT))
            assert await all_pages(client, index, limit=50, owner="object") == [1_000]

    simulated(main)


def test_the_states_of_the_filter_match_the_metadata() -> None:
    assert set(STATES) == {state.name for state in LedgerState}


@pytest.mark.parametrize("milliseconds", [-1, -(2**63), 2**63 - 1, 253_402_300_800_000])
def test_a_number_outside_the_calendar_is_not_shown_as_a_time(milliseconds: int) -> None:
    """Transaction ids, which may be times, may be any number."""
    assert time_text(milliseconds) is None
    assert time_text(253_402_300_799_000) == "9999-12-31T23:59:59.000Z"
