"""The effect of lost bookies on ledgers, computed from the metadata."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

import quire_simulator.metadata  # noqa: F401 - the driver of memory://
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.metadata import open_metadata
from quire.replication.explain import at_risk as counting
from quire.replication.explain.at_risk import AtRisk, at_risk

NAMES = itertools.count()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    store = await open_metadata(f"memory://at-risk-{next(NAMES)}", create=True)
    found = Client(store)
    yield found
    await found.close()


async def ledger(
    client: Client,
    *ensembles: str,
    copies: int = 2,
    closed: int | None = 9,
    step: int = 5,
    acks: int = 1,
) -> int:
    """One segment for each ensemble of one-letter bookies, `step` entries apart. `closed`: its
    last entry; None: it is open."""
    segments = tuple(Segment(at * step, tuple(one)) for at, one in enumerate(ensembles))
    metadata = LedgerMetadata(len(ensembles[0]), copies, acks, segments)
    if closed is not None:
        metadata = metadata.with_close(closed, 10)
    ledger_id, _ = await client.metadata.create_ledger(metadata)
    return ledger_id


async def counted(client: Client, there: str, **groups: str) -> AtRisk:
    named = {name: set(of) for name, of in groups.items()}
    return [found async for found in at_risk(client, set(there), named)][-1]


async def test_ledgers_that_lack_copies_are_counted(client: Client) -> None:
    await ledger(client, "ab")
    await ledger(client, "bc")
    await ledger(client, "cd")
    found = await counted(client, "bcd", x="a", y="ad")
    assert (found.ledgers, found.whole) == (3, True)
    assert (found.lacking, found.last_copy, found.unreadable) == (1, 1, 0)
    assert found.by_group == {"x": 1, "y": 1}
    found = await counted(client, "c", x="ab")
    assert (found.lacking, found.last_copy, found.unreadable) == (3, 2, 1)


async def test_copies_of_a_striped_ledger_are_counted_by_write_set(client: Client) -> None:
    """Neighbours lost together take the entries of one write set; others do not."""
    await ledger(client, "abcd")
    assert (await counted(client, "bd", x="ac")).unreadable == 0
    assert (await counted(client, "cd", x="ab")).unreadable == 1


async def test_only_segments_with_entries_are_counted(client: Client) -> None:
    """The end of a closed ledger is known, so its last segment may be empty.

    No bookie has the entries that a short ledger lacks.
    """
    await ledger(client, "ab", "ac", closed=4)
    assert (await counted(client, "ab", x="c")).lacking == 0
    await ledger(client, "ab", closed=-1)
    assert (await counted(client, "b", x="a")).lacking == 1, (
        "only the ledger with entries is counted"
    )
    await ledger(client, "cde", copies=1, closed=0)
    assert (await counted(client, "abc", x="de")).lacking == 0
    assert (await counted(client, "abde", x="c")).unreadable == 1


async def test_an_open_ledger_may_have_entries_on_each_member(client: Client) -> None:
    await ledger(client, "abc", closed=None)
    found = await counted(client, "bc", x="a")
    assert (found.lacking, found.last_copy) == (1, 1)


async def test_the_only_copy_of_an_unreplicated_entry_is_not_a_last_copy(client: Client) -> None:
    await ledger(client, "ab", copies=1)
    found = await counted(client, "ab")
    assert found == AtRisk(1, True, 0, 0, 0, {})


async def test_a_count_that_stops_early_is_a_lower_bound(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are then lower bounds, and say so."""
    for _ in range(7):
        await ledger(client, "ab")
    monkeypatch.setattr(counting, "PAGE_LEDGERS", 2)
    monkeypatch.setattr(counting, "LEDGERS_MAX", 4)
    found = await counted(client, "b", x="a")
    assert found == AtRisk(4, False, 4, 4, 0, {"x": 4}, without_spare=4)


async def test_ledgers_whose_copies_no_other_bookie_can_take_are_counted(client: Client) -> None:
    await ledger(client, "abc")
    assert (await counted(client, "bc", x="a")).without_spare == 1
    assert (await counted(client, "bcd", x="a")).without_spare == 0
    assert (await counted(client, "cd", x="ab")).without_spare == 1, "one for two"
    assert (await counted(client, "cde", x="ab")).without_spare == 0
    found = [one async for one in at_risk(client, "bcd", {"x": "a"}, "bc")]
    assert found[-1].without_spare == 1, "d is read-only"


async def test_open_ledgers_that_cannot_be_recovered_are_counted(client: Client) -> None:
    """An ack quorum of 2 among 3 bookies may be the 2 that are lost."""
    await ledger(client, "abc", copies=3, closed=None, acks=2)
    await ledger(client, "abc", copies=3, acks=2)
    assert (await counted(client, "bc", x="a")).without_quorum == 0
    found = await counted(client, "c", x="ab")
    assert (found.lacking, found.without_quorum) == (2, 1), "a closed ledger needs no recovery"
    await ledger(client, "defg", closed=None, acks=2)
    assert (await counted(client, "abcdf", x="eg")).without_quorum == 0, "not in one write set"
    assert (await counted(client, "abcdg", x="ef")).without_quorum == 1
