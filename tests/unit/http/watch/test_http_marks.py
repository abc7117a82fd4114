"""Marked ledgers are counted once for all requests, at intervals and up to a limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, cast

import pytest

import quire
from quire.client import Client
from quire.errors import MetadataUnavailableError
from quire.http.views.problems.cluster import problems
from quire.http.watch import observations
from quire.http.watch.observations import MARKS_INTERVAL_S, MarkCounts
from quire.metadata import open_metadata
from quire.metadata.ledgers.underreplicated import mark_ledger
from quire.replication.explain import status
from quire.replication.explain.status import MarkCount, overview
from quire.replication.marks.notes import LastFailure, note_failure
from quire_simulator.metadata.store import forget_memory

URI = "memory://marks"
LONG_S = 30.0


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    store = await open_metadata(URI, create=True)
    await store.initialise()
    for ledger_id in range(7):
        await mark_ledger(store, ledger_id, ["10.0.0.1:3181"], 7)
    await note_failure(store, 3, LastFailure("no room", 7, 1, 8, "a worker"))
    async with quire.connect(URI) as connected:
        yield connected
    await store.close()
    forget_memory("marks")


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each walk over all marks, counted in twos."""
    begun: list[int] = []
    monkeypatch.setattr(status, "COUNTED_AT_ONCE", 2)
    walk = status.ReplicationMarks.walk

    def counted(self: status.ReplicationMarks, **how: Any) -> AsyncIterator[int]:
        begun.append(1)
        return walk(self, **how)

    monkeypatch.setattr(status.ReplicationMarks, "walk", counted)
    return begun


async def test_concurrent_requests_share_one_count(client: Client, walks: list[int]) -> None:
    now_s = 0.0
    counts = MarkCounts(lambda: now_s, LONG_S)
    found = await asyncio.gather(*(counts.of(client) for _ in range(5)))
    assert {(one.marked, one.failing, one.whole) for one in found} == {(7, 1, True)}
    assert found[0].failures[0].ledger == 3
    await mark_ledger(client.metadata, 8, ["10.0.0.1:3181"], 7)
    now_s = MARKS_INTERVAL_S * 0.9
    assert (await counts.of(client)).marked == 7
    assert len(walks) == 1
    now_s = MARKS_INTERVAL_S
    assert (await counts.of(client)).marked == 8
    assert len(walks) == 2
    await counts.close()


async def test_no_request_waits_for_the_end_of_a_count(
    client: Client, walks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "PAUSE_S", LONG_S)
    counts = MarkCounts(lambda: 0.0, 0.0)
    async with asyncio.timeout(LONG_S / 2):
        while not (found := await counts.of(client)).marked:
            await asyncio.sleep(0)
    assert (found.marked, found.whole) == (2, False)
    told = await overview(client.metadata, counted=found)
    said = [one.what for one in problems([], asdict(told))]
    assert any(one.startswith("Under-replicated ledgers: at least 2, such as") for one in said)
    assert len(walks) == 1
    await counts.close()


async def test_a_count_that_took_long_is_not_repeated_soon(
    client: Client, walks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0

    async def slow(*_: object, **__: object) -> AsyncIterator[MarkCount]:
        nonlocal now_s
        now_s += 10 * MARKS_INTERVAL_S
        yield MarkCount(1)

    monkeypatch.setattr(observations, "count_marks", slow)
    counts = MarkCounts(lambda: now_s, LONG_S)
    assert (await counts.of(client)).marked == 1
    assert counts.interval_s == 100 * MARKS_INTERVAL_S
    await counts.close()


async def test_an_error_in_a_long_count_is_soon_retried(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every page was an error for ten times as long as the failed count had taken."""
    now_s, failing = 0.0, False

    async def slow(*_: object, **__: object) -> AsyncIterator[MarkCount]:
        nonlocal now_s
        now_s += 10 * MARKS_INTERVAL_S
        if failing:
            raise MetadataUnavailableError("a moment without an answer")
        yield MarkCount(1)

    monkeypatch.setattr(observations, "count_marks", slow)
    counts = MarkCounts(lambda: now_s, LONG_S)
    assert (await counts.of(client)).marked == 1
    now_s, failing = now_s + 100 * MARKS_INTERVAL_S, True
    with pytest.raises(MetadataUnavailableError):
        await counts.of(client)
    now_s, failing = now_s + MARKS_INTERVAL_S, False
    assert (await counts.of(client)).marked == 1
    assert counts.interval_s == 100 * MARKS_INTERVAL_S
    # An error that stays does not cost more than a success.
    now_s, failing = now_s + 100 * MARKS_INTERVAL_S, True
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            await counts.of(client)
        now_s += MARKS_INTERVAL_S
    assert counts.interval_s == 100 * MARKS_INTERVAL_S
    await counts.close()


async def test_an_undecodable_failure_note_hides_no_other(client: Client) -> None:
    """A later version wrote the note, or a worker deleted it between two reads of the count."""
    key = ("autorecovery", "failures", "1")
    later = {**asdict(LastFailure("no room", 7, 1, 8, "a worker")), "of_a_later_version": 1}
    await client.metadata.write_value(key, json.dumps(later).encode(), None)
    told = await overview(client.metadata)
    assert (told.failing, [one.ledger for one in told.failures]) == (2, [3])
    said = [one.what for one in problems([], asdict(told))]
    assert "2 ledgers could not be repaired, such as ledger 3: no room" in said


async def test_a_ledger_repaired_during_the_count_is_not_an_error(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def repaired(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(status, "why_not", repaired)
    told = await overview(client.metadata)
    assert (told.failing, told.failures) == (0, ())


async def test_a_count_reports_a_store_that_does_not_answer() -> None:
    counts = MarkCounts(lambda: 0.0, LONG_S)

    class Away:
        def __getattr__(self, name: str) -> object:
            raise MetadataUnavailableError("it is away")

    with pytest.raises(MetadataUnavailableError):
        await counts.of(cast(Client, Away()))
    await counts.close()
