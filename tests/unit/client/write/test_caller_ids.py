"""Entries whose ids the caller chooses: each id is used once, and held entries have a bound."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from quire.client import CallerIdWriter
from quire.errors import ClientClosedError, EntryExistsError, UsageError
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    PASSWORD,
    FakeCluster,
    payload,
    simulated,
)


async def made(client: Any) -> CallerIdWriter:
    writer = await client.create_ledger(ledger_id=LEDGER, password=PASSWORD, caller_ids=True)
    assert isinstance(writer, CallerIdWriter)
    return writer


async def read_back(client: Any) -> list[bytes]:
    reader = await client.open_ledger(LEDGER, password=PASSWORD)
    return [entry.payload async for entry in reader.read()]


def test_an_id_that_is_held_or_sent_cannot_be_used_again() -> None:
    """The first caller would be told that its entry is acknowledged, with the bytes of another."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await made(client)
            first = asyncio.ensure_future(writer.append_at(2, payload(2)))
            await asyncio.sleep(0)
            for _ in range(2):
                with pytest.raises(EntryExistsError, match=r"entry 2 .* already"):
                    writer.submit_at(2, b"another")
            with pytest.raises(UsageError, match="begin at 0"):
                writer.submit_at(-1, b"")
            assert writer.held_entry_ids == [2]
            writer.submit_at(0, payload(0))
            with pytest.raises(EntryExistsError):
                writer.submit_at(0, b"another")
            await writer.append_at(1, payload(1))
            assert await first == 2
            with pytest.raises(EntryExistsError):
                await writer.append_at(2, b"another")
            assert await writer.close() == 2
            assert await read_back(client) == [payload(0), payload(1), payload(2)]

    simulated(main)


def test_held_entries_release_their_byte_budget() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client(dataclasses.replace(CONFIG, max_held_bytes=1_000)) as client:
            writer = await made(client)
            for first in range(0, 40, 4):
                for entry_id in (first + 3, first + 1, first + 2):
                    writer.submit_at(entry_id, bytes(100))
                with pytest.raises(UsageError, match=r"too far ahead: .* 3 entries \(900 bytes\)"):
                    writer.submit_at(first + 4, bytes(100))
                writer.submit_at(first, bytes(100))
                assert writer.held_entry_ids == []
            assert await writer.flush() == 39
            await writer.close()

    simulated(main)


@pytest.mark.parametrize("sent", [False, True])
def test_waiting_for_a_held_entry_ends_when_the_client_is_closed(sent: bool) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await made(client)
            if sent:
                await writer.append_at(0, payload(0))
            held = asyncio.ensure_future(writer.append_at(3, payload(3)))
            await asyncio.sleep(0)
            assert writer.held_entry_ids == [3]
        await asyncio.wait((held,), timeout=1.0)
        assert held.done()
        with pytest.raises(ClientClosedError):
            await held
        with pytest.raises(ClientClosedError):
            await asyncio.wait_for(writer.append_at(5, payload(5)), timeout=1.0)

    simulated(main)


def test_an_entry_held_after_the_client_was_closed_fails_at_once() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            writer = await made(client)
        with pytest.raises(ClientClosedError):
            await asyncio.wait_for(writer.append_at(3, payload(3)), timeout=1.0)

    simulated(main)
