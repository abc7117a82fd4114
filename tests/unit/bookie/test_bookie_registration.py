"""How a bookie handles its registration."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from quire._runtime.retry import Backoff
from quire.bookie import announcement
from quire.errors import KeyExistsError, MetadataUnavailableError
from quire.metadata.bookies.orders import Order, What, give_order, withdraw_order
from quire.metadata.bookies.unwritable import (
    FAILED,
    FULL,
    HELD,
    LOST,
    ORDERED,
    PROPERTY,
    Unwritable,
    as_properties,
    from_properties,
)
from quire.metadata.interface import BookieAddress, Registration
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.bookie import memory_metadata, running_bookie
from tests.support.waiting import until

TIMEOUT_S = 30.0


async def test_a_bookie_stops_if_another_process_has_taken_its_id(tmp_path: Path) -> None:
    """Two processes under one id would each answer for the other's data."""
    first = memory_metadata()
    mine = MemoryStore(first.cluster, session_timeout_ms=200)
    async with running_bookie(tmp_path / "bookie", metadata=mine) as bookie:
        there = (await mine.bookies()).writable[bookie.bookie_id]
        assert there == BookieAddress(bookie.bookie_id, "127.0.0.1", there.port)
        assert not bookie.failed.done()
        mine.expire_session(back=False)
        await first.register_bookie(replace(there, host="elsewhere"))
        mine.restore_session()
        async with asyncio.timeout(TIMEOUT_S):
            error = await bookie.failed
        assert isinstance(error, KeyExistsError)
        assert bookie.bookie_id in str(error)
    assert (await first.bookies()).writable[bookie.bookie_id].host == "elsewhere"
    await mine.close()
    await first.close()


async def test_a_bookie_registers_again_after_losing_its_session(tmp_path: Path) -> None:
    metadata = memory_metadata()
    async with running_bookie(tmp_path / "bookie", metadata=metadata) as bookie:
        before = await metadata.bookies()
        metadata.expire_session()
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                await asyncio.sleep(0)
                if metadata.cluster.bookies() == before:
                    break
        assert not bookie.failed.done()
    await metadata.close()


async def test_a_bookie_repeats_a_lost_announcement_that_it_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was lost left it registered as writable for good (found by the simulator)."""
    monkeypatch.setattr(announcement, "ANNOUNCE_BACKOFF", Backoff(0.0))
    lost = 3

    async def lose(operation: str, done: bool) -> None:
        nonlocal lost
        if operation == "set_readonly" and not done and lost:
            lost -= 1
            raise MetadataUnavailableError("the request was lost")

    cluster = memory_metadata().cluster
    mine = MemoryStore(cluster, hook=lose)
    async with running_bookie(tmp_path / "bookie", metadata=mine) as bookie:
        bookie.store._catalogue.lossy.add(1)
        bookie.store._space_changed()
        async with asyncio.timeout(TIMEOUT_S):
            while bookie.bookie_id not in cluster.bookies().readonly:
                await asyncio.sleep(0)
        assert lost == 0
        bookie.store._catalogue.lossy.clear()
        bookie.store._space_changed()
        async with asyncio.timeout(TIMEOUT_S):
            while bookie.bookie_id not in cluster.bookies().writable:
                await asyncio.sleep(0)
    await mine.close()


async def test_the_registration_gives_the_reason_why_a_bookie_accepts_no_adds(
    tmp_path: Path,
) -> None:
    metadata = memory_metadata()
    path = str(tmp_path / "bookie")
    async with running_bookie(tmp_path / "bookie", metadata=metadata) as bookie:

        async def says(*reasons: Unwritable) -> None:
            def told() -> bool:
                found = metadata.cluster.bookies().find(bookie.bookie_id)
                return found is not None and from_properties(found.properties) == (reasons or None)

            await until(told)
            there = metadata.cluster.bookies().readonly if reasons else (
                metadata.cluster.bookies().writable
            )  # fmt: skip
            assert bookie.bookie_id in there

        await says()
        bookie.hold_readonly(True)
        await says(Unwritable(HELD))
        # A second reason does not move the bookie to another list, and is published all the same.
        preallocated = bookie.store._preallocated
        preallocated._dwell_s = 0.0
        preallocated._min_free_bytes, enough = 2**60, preallocated._min_free_bytes
        bookie.store.check_space()
        await says(Unwritable(HELD), Unwritable(FULL, path))
        bookie.hold_readonly(False)
        await says(Unwritable(FULL, path))
        preallocated._min_free_bytes = enough
        bookie.store.check_space()
        await says()
        # A deleted directory is no full disk: nobody must look for what takes its space.
        (tmp_path / "bookie").rename(tmp_path / "away")
        bookie.store.check_space()
        await says(Unwritable(FAILED, path))
        (tmp_path / "away").rename(tmp_path / "bookie")
        bookie.store.check_space()
        await says()
        order = Order(What.DRAIN, 1, "admin")
        await give_order(metadata, bookie.bookie_id, order, None)
        await says(Unwritable(ORDERED))
        await withdraw_order(metadata, bookie.bookie_id)
        await says()
        bookie.store._catalogue.lossy.add(1)
        bookie.store._space_changed()
        await says(Unwritable(LOST, path))
    await metadata.close()


def test_reasons_that_cannot_be_decoded_are_ignored() -> None:
    assert from_properties({}) is None
    for text in ("", "7", "{}x", '[{"why": "full"}]', "[7]"):
        assert from_properties({PROPERTY: text}) is None, text
    later = '[{"why": "new", "directory": "/a", "more": 1}]'
    assert from_properties({PROPERTY: later}) == (Unwritable("new", "/a"),)
    assert as_properties([]) == {}


class _ConnectsAtOnce(MemoryStore):
    """A store that connects to each bookie as soon as it is registered."""

    async def register_bookie(self, address: BookieAddress, readonly: bool = False) -> Registration:
        registration = await super().register_bookie(address, readonly)
        socket.create_connection((address.host, address.port), TIMEOUT_S).close()
        return registration


async def test_a_bookie_listens_before_it_registers(tmp_path: Path) -> None:
    """A client that connected at once was once refused."""
    metadata = memory_metadata()
    mine = _ConnectsAtOnce(metadata.cluster)
    async with running_bookie(tmp_path / "bookie", metadata=mine) as bookie:
        assert bookie.serving
    await mine.close()
    await metadata.close()
