"""The index of the ledgers that name each bookie."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import quire
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import MetadataUnavailableError
from quire.http.watch import ledger_index
from quire.http.watch.ledger_index import INDEX_INTERVAL_S, LedgerIndex
from quire.metadata import open_metadata
from quire_simulator.metadata.store import forget_memory

URI = "memory://index"
LONG_S = 30.0


def ledger(*ensembles: tuple[str, ...]) -> LedgerMetadata:
    segments = tuple(Segment(10 * at, one) for at, one in enumerate(ensembles))
    size = len(ensembles[0])
    return LedgerMetadata(ensemble_size=size, write_quorum=size, ack_quorum=size, segments=segments)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    store = await open_metadata(URI, create=True)
    await store.initialise()
    for at in range(6):
        await store.create_ledger(
            ledger(("a", "b"), ("b", "c")) if at % 2 else ledger(("a", "d")), at
        )
    async with quire.connect(URI) as connected:
        yield connected
    await store.close()
    forget_memory("index")


async def test_each_bookie_has_its_ledgers_once(client: Client) -> None:
    found = await LedgerIndex(lambda: 0.0, LONG_S).of(client)
    assert {name: list(ids) for name, ids in found.by_bookie.items()} == {
        "a": [0, 1, 2, 3, 4, 5], "b": [1, 3, 5], "c": [1, 3, 5], "d": [0, 2, 4],
    }  # fmt: skip
    assert (found.ledgers, found.whole, found.count("b"), found.count("x")) == (6, True, 3, 0)


async def test_pages_begin_with_the_newest(client: Client) -> None:
    found = await LedgerIndex(lambda: 0.0, LONG_S).of(client)
    assert found.newest("b", 2) == [5, 3]
    assert found.newest("b", 2, below=3) == [1]
    assert found.newest("b", 2, below=1) == []
    assert found.newest("x", 2) == []


async def test_the_ledger_index_is_rebuilt_after_its_interval(client: Client) -> None:
    now_s = 0.0
    index = LedgerIndex(lambda: now_s, LONG_S)
    await index.of(client)
    await client.delete_ledger(5)
    assert (await index.of(client)).count("b") == 3
    now_s += INDEX_INTERVAL_S
    assert (await index.of(client)).count("b") == 2


async def test_an_index_of_too_many_ledgers_is_a_lower_bound(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_index, "PAGE_LEDGERS", 2)
    monkeypatch.setattr(ledger_index, "INDEX_LEDGERS_MAX", 4)
    found = await LedgerIndex(lambda: 0.0, LONG_S).of(client)
    assert (found.ledgers, found.whole, list(found.by_bookie["a"])) == (4, False, [0, 1, 2, 3])


async def test_the_last_index_is_used_while_the_store_does_not_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    index = LedgerIndex(lambda: now_s, LONG_S)
    await index.of(client)
    now_s += INDEX_INTERVAL_S

    async def away(self: object, ledger_id: int) -> None:
        raise MetadataUnavailableError("gone")

    monkeypatch.setattr(type(client.metadata), "read_ledger", away)
    assert (await index.of(client)).count("a") == 6
    assert index.age_s == INDEX_INTERVAL_S, "the index was not rebuilt"


async def test_unreadable_metadata_is_counted(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.errors import UnreadableMetadataError

    read = type(client.metadata).read_ledger

    async def damaged(self: object, ledger_id: int) -> object:
        if ledger_id == 3:
            raise UnreadableMetadataError("nonsense")
        return await read(self, ledger_id)  # type: ignore[arg-type]

    monkeypatch.setattr(type(client.metadata), "read_ledger", damaged)
    found = await LedgerIndex(lambda: 0.0, LONG_S).of(client)
    assert (found.skipped, found.ledgers, found.count("b")) == (1, 5, 2)
