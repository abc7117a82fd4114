"""Many followers of one ledger in one client: what they share, and what each has for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from quire._runtime.retry import Backoff
from quire.client import LedgerReader
from quire.client.read import follow
from quire.client.read.follow import Feed, LedgerFollower
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.codec.wire import v3
from quire.core.recovery import HONEST_BOOKIES, TrustModel
from quire.errors import ClientClosedError, NoSuchLedgerError, ReadError, UsageError
from quire.metadata.interface import Watch
from quire_simulator.metadata.store import MemoryStore
from tests.support.bookies.tail import (
    CONFIG,
    LEDGER,
    PATIENT,
    GivesTheLast,
    Honest,
    World,
    polling,
    world,
)

MANY = 20


async def taken(reader: LedgerReader, first: int, count: int) -> list[int]:
    """The ids of the next entries, checked."""
    found: list[int] = []
    async with asyncio.timeout(20), aclosing(reader.tail(first)) as tail:
        async for entry in tail:
            assert entry.payload == b"%02d" % entry.entry_id
            found.append(entry.entry_id)
            if len(found) == count:
                break
    return found


def start(readers: Sequence[LedgerReader], count: int) -> list[asyncio.Task[list[int]]]:
    return [asyncio.ensure_future(taken(reader, 0, count)) for reader in readers]


async def asked_again(bookie: Honest, before: int) -> None:
    """Wait for a poll after this number of requests."""
    async with asyncio.timeout(10):
        while len(bookie.requests) <= before or not bookie.waiting:
            await asyncio.sleep(0.001)


def polls(bookie: Honest) -> int:
    return sum(request.header.operation == v3.Op.READ for request in bookie.requests)


def the_feed(w: World) -> Feed:
    [feed] = w.client._feeds._open.values()
    return feed


async def write_slowly(w: World, bookie: Honest, first: int, last: int) -> None:
    """Write each entry when a follower waits for it."""
    for entry in range(first, last + 1):
        await polling(bookie)
        bookie.has(w, (entry, entry - 1))


async def test_new_entries_are_requested_once_for_all_followers() -> None:
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        readers = [await w.open() for _ in range(MANY)]
        tasks = start(readers, 11)
        await write_slowly(w, bookie, 2, 11)
        assert [await task for task in tasks] == [list(range(11))] * MANY
        assert polls(bookie) <= 12
        assert all(bookie.reads.count(entry) <= 1 for entry in range(1, 12))
        assert len(bookie.reads) <= MANY + 12, "each follower reads entry 0, which existed before"
        assert {reader.last_add_confirmed for reader in readers} == {10}
        assert len(w.client._feeds) == 0, "the feed ends with its last follower"


async def test_a_single_follower_caches_no_entries() -> None:
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1))
        [task] = start([await w.open()], 10)
        for entry in range(1, 11):
            await asked_again(bookie, entry)
            assert len(the_feed(w)._kept) <= 1
            bookie.has(w, (entry, entry - 1))
        assert await task == list(range(10))


async def test_a_slow_follower_reads_separately_and_does_not_delay_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "KEPT_RUNS_MAX", 4)
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        slow = (await w.open()).tail(0)
        assert (await anext(slow)).entry_id == 0
        tasks = start([await w.open() for _ in range(3)], 31)
        await write_slowly(w, bookie, 2, 20)
        assert len(the_feed(w)._kept) <= 4
        found = [(await anext(slow)).entry_id for _ in range(19)]
        await write_slowly(w, bookie, 21, 31)
        assert [await task for task in tasks] == [list(range(31))] * 3
        found += [(await anext(slow)).entry_id for _ in range(11)]
        assert found == list(range(1, 31))
        await slow.aclose()


async def test_the_bytes_cached_for_followers_are_limited() -> None:
    bookie = Honest()
    small = replace(PATIENT, read_windows=2, read_window_bytes=5)
    async with world(bookie, config=small) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(3)], 21)
        for entry in range(2, 22):
            await polling(bookie)
            assert the_feed(w)._kept_bytes <= 10
            bookie.has(w, (entry, entry - 1))
        assert [await task for task in tasks] == [list(range(21))] * 3


async def test_followers_that_join_late_receive_every_entry() -> None:
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = []
        for entry in range(2, 22):
            tasks += start([await w.open()], 21)
            await polling(bookie)
            bookie.has(w, (entry, entry - 1))
        assert [await task for task in tasks] == [list(range(21))] * 20


async def test_another_follower_takes_over_when_the_requesting_one_leaves() -> None:
    """The first waiting follower sends the requests for all."""
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(5)], 2)
        await polling(bookie)
        for leaving in tasks[:3]:
            before = len(bookie.requests)
            leaving.cancel()
            await asked_again(bookie, before)
        bookie.has(w, (2, 1))
        assert [await task for task in tasks[3:]] == [[0, 1]] * 2
        assert all(task.cancelled() for task in tasks[:3])


async def test_no_requests_are_sent_after_all_followers_have_left() -> None:
    bookie = Honest()
    async with world(bookie) as w:  # its polls are short
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(5)], 2)
        await polling(bookie)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(w.client._feeds) == 0
        asked = len(bookie.requests)
        await w.client.bookies()
        await asyncio.sleep(3 * CONFIG.long_poll_s)
        assert len(bookie.requests) == asked


async def test_every_follower_sees_the_end_of_the_ledger() -> None:
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(5)], 100)
        await polling(bookie)
        stored = await w.store.read_ledger(LEDGER)
        await w.store.write_ledger(LEDGER, stored.value.with_close(1, 4), stored.version)
        assert [await task for task in tasks] == [[0, 1]] * 5


async def test_every_follower_gets_its_own_error_when_the_ledger_is_deleted() -> None:
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(5)], 100)
        await polling(bookie)
        await w.store.delete_ledger(LEDGER)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, NoSuchLedgerError) for error in errors)
        assert len(set(map(id, errors))) == 5, (
            "each follower gets its own error with its own traceback"
        )


async def test_every_follower_gets_an_error_when_the_client_is_closed() -> None:
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(5)], 100)
        await polling(bookie)
        await w.client.close()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, ClientClosedError) for error in errors)


@pytest.mark.parametrize("which", [0, 3])
async def test_closing_a_reader_ends_only_its_own_tails(which: int) -> None:
    """This also holds for the reader whose requests serve all."""
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        readers = [await w.open() for _ in range(5)]
        tasks = start(readers, 2)
        await polling(bookie)
        before = len(bookie.requests)
        readers[which].close()
        with pytest.raises(UsageError, match="is closed"):
            await tasks.pop(which)
        await asked_again(bookie, before)
        bookie.has(w, (2, 1))
        assert [await task for task in tasks] == [[0, 1]] * 4


async def test_a_follower_that_waits_for_a_far_entry_does_not_delay_the_others() -> None:
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        far = asyncio.ensure_future(taken(await w.open(), 8, 2))
        waits = asyncio.ensure_future((await w.open()).wait_confirmed(9))
        await polling(bookie)
        near = start([await w.open(), await w.open()], 10)
        await write_slowly(w, bookie, 2, 10)
        assert [await task for task in near] == [list(range(10))] * 2
        assert await far == [8, 9]
        assert await waits == 9


async def test_waiting_for_a_confirmation_reads_no_entries() -> None:
    """The LAC arrives in a packet, so no entry has to be read to prove it."""
    bookie = GivesTheLast()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        waits = [asyncio.ensure_future((await w.open()).wait_confirmed(1)) for _ in range(5)]
        await polling(bookie)
        bookie.packet, bookie.lac = w.codec.pack_lac(1), 1
        bookie.has(w)
        assert [await task for task in waits] == [1] * 5
        assert bookie.reads == []


async def test_every_follower_gets_an_error_for_an_unreadable_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "READ_BACKOFF", Backoff(0.001))
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(3)], 100)
        await polling(bookie)
        bookie.entries.clear()
        bookie.packet, bookie.lac = w.codec.pack_lac(3), 3
        bookie.has(w)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, ReadError) for error in errors)
        assert len(w.client._feeds) == 0


async def test_every_follower_gets_an_error_for_an_unreadable_entry_after_cached_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The unreadable position is after the kept entries, and followers once looked before these.

    They looked forever and blocked the client's event loop.
    """
    monkeypatch.setattr(follow, "READ_BACKOFF", Backoff(0.001))
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(3)], 100)
        await write_slowly(w, bookie, 2, 10)
        await polling(bookie)
        assert the_feed(w)._kept
        bookie.entries.clear()
        bookie.packet, bookie.lac = w.codec.pack_lac(13), 13
        bookie.has(w)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, ReadError) for error in errors)
        assert len(w.client._feeds) == 0


async def test_waiting_readers_see_the_end_that_a_later_reader_saw_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch reported what was known already, and the waiting readers were not notified."""
    watch, told = MemoryStore.watch_ledger, asyncio.Event()

    def late(store: MemoryStore, ledger_id: int, changed: Callable[[Any], None]) -> Watch:
        async def tell(stored: Any) -> None:
            await told.wait()
            changed(stored)

        return watch(store, ledger_id, lambda stored: telling.append(tell(stored)))

    telling: list[Coroutine[Any, Any, None]] = []
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        stored = await w.store.read_ledger(LEDGER)
        recovered = stored.value.with_state(LedgerState.IN_RECOVERY)
        stored = await w.store.write_ledger(LEDGER, recovered, stored.version)
        monkeypatch.setattr(MemoryStore, "watch_ledger", late)
        [waiting] = start([await w.open()], 100)
        async with asyncio.timeout(10):
            while len(w.client._feeds) == 0 or not the_feed(w)._driven:
                await asyncio.sleep(0.001)
        await w.store.write_ledger(LEDGER, recovered.with_close(0, 2), stored.version)
        assert await taken(await w.open(), 0, 100) == [0]
        told.set()
        await asyncio.gather(*telling)
        async with asyncio.timeout(10):
            assert await waiting == [0]


async def test_a_reader_that_knew_a_higher_lac_before_a_recovery_reads_up_to_it() -> None:
    """Other readers get only what was known when they learned of the recovery."""
    bookie = Honest()
    async with world(bookie, config=PATIENT) as w:
        bookie.has(w, (0, -1), (1, 0))
        knows = await w.open()
        stored = await w.store.read_ledger(LEDGER)
        recovered = stored.value.with_state(LedgerState.IN_RECOVERY)
        await w.store.write_ledger(LEDGER, recovered, stored.version)
        [waiting] = start([await w.open()], 100)
        async with asyncio.timeout(10):
            while len(w.client._feeds) == 0 or not the_feed(w)._driven:
                await asyncio.sleep(0.001)
        knows._view.confirmed(1)
        assert await taken(knows, 1, 1) == [1]
        await w.store.delete_ledger(LEDGER)
        with pytest.raises(NoSuchLedgerError):
            await waiting


async def test_a_new_reader_with_a_higher_lac_advances_all_followers() -> None:
    """It is opened while the others wait on a bookie that reports nothing new."""
    bookie = Honest()
    async with world(bookie, config=replace(PATIENT, speculative_read_s=60.0)) as w:
        bookie.has(w, (0, -1), (1, 0))
        tasks = start([await w.open() for _ in range(3)], 5)
        await polling(bookie)
        silent, bookie.waiting = bookie.waiting, []
        bookie.has(w, *((entry, entry - 1) for entry in range(2, 6)))
        assert silent
        assert not any(task.done() for task in tasks)
        assert await taken(await w.open(), 0, 5) == list(range(5))
        assert [await task for task in tasks] == [list(range(5))] * 3


async def test_readers_with_other_passwords_or_trust_models_share_no_feed() -> None:
    bookie = Honest()
    async with world(bookie) as w:
        bookie.has(w, (0, -1))
        reader = await w.open()
        feeds, view, codec = w.client._feeds, reader._view, reader._codec

        def one() -> LedgerFollower:
            return LedgerFollower(view, reader._engine, 0)

        with (
            feeds.joined(one(), view, codec, b"", HONEST_BOOKIES) as first,
            feeds.joined(one(), view, codec, b"", HONEST_BOOKIES) as same,
            feeds.joined(one(), view, codec, b"other", HONEST_BOOKIES) as other_password,
            feeds.joined(one(), view, codec, b"", TrustModel(1, True)) as comparing,
        ):
            assert first is same
            assert len({id(first), id(other_password), id(comparing)}) == 3
        assert len(feeds) == 0
