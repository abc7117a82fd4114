"""Reading from one bookie while connections to it break."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from quire.client import Client
from quire.client.client import pool_of
from quire.codec.wire.v2 import Code
from quire.config import KIB, MIB
from quire.core.fragments import stored_by
from quire.core.replicas import Bad, Copies, Kind
from quire.errors import BookieTimeoutError, BookieUnavailableError
from quire.net.answer_codes import error_of
from quire.net.channel import BookieChannel
from quire.replication.budget import Budget
from quire.replication.repair.replica_reader import (
    ASKED_BYTES_MIN,
    ATTEMPTS,
    BUSY_ATTEMPTS,
    FIRST_WINDOW_ENTRIES,
    LOST_ATTEMPTS,
    PATIENCE_ROUNDS,
    WINDOW_ENTRIES_MAX,
    ReplicaReader,
    answers,
)
from tests.support.bookies.fake_bookies import (
    CONFIG,
    LEDGER,
    Ask,
    FakeCluster,
    FakeLink,
    payload,
    simulated,
)


class Stale(FakeLink):
    """A connection from before the bookie's restart, which nobody notices until it is used."""

    async def read(self, *how: Any, **more: Any) -> bytes:
        self.lose()
        raise BookieUnavailableError("stale")

    batch_read = read

    async def read_many(self, *how: Any, **more: Any) -> list[bytes | BaseException]:
        return [await self.read()]


async def reading(cluster: FakeCluster, client: Client) -> list[Copies | Bad]:
    metadata = await cluster.stored()
    reader = ReplicaReader(client, LEDGER, metadata, cluster.codec, "b0")
    return [part async for part in reader.parts(0, 0, 4)]


def stale(cluster: FakeCluster, client: Client, count: int) -> None:
    for _ in range(count):
        pool_of(client)._channels.add(Stale(cluster["b0"]))


@pytest.mark.parametrize("shape", [(3, 3, 2), (5, 3, 2)])
@pytest.mark.parametrize("failed_before", [False, True])
@pytest.mark.parametrize("count", range(LOST_ATTEMPTS))
def test_connections_from_before_a_restart_do_not_hide_the_bookie(
    count: int, failed_before: bool, shape: tuple[int, int, int]
) -> None:
    """Reads work in batches, and entry by entry."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(5))
        async with cluster.client() as client:
            if failed_before:
                pool_of(client).mark_failed("b0")
            stale(cluster, client, count)
            found = await reading(cluster, client)
            assert all(isinstance(part, Copies) for part in found), found
            copies = [pair for part in found for pair in zip(part.ids, part.payloads)]  # type: ignore[union-attr]
            assert copies == [(k, payload(k)) for k in range(5) if k in cluster["b0"].entries]
            stale(cluster, client, count)
            assert await answers(client, "b0") == ""

    simulated(main)


def test_a_read_ends_if_connections_keep_breaking() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        async with cluster.client() as client:
            stale(cluster, client, 100)
            [bad] = await reading(cluster, client)
            assert isinstance(bad, Bad)
            assert (bad.kind, bad.first, bad.last) == (Kind.UNREACHABLE, 0, 4)
            assert await answers(client, "b0") == "", "a new connection works"
            assert len(cluster["b0"].links) == 101

    simulated(main)


def test_a_silent_bookie_is_retried_less_often() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        cluster["b0"].says = cluster["b0"].silent
        async with cluster.client() as client:
            began = asyncio.get_running_loop().time()
            [bad] = await reading(cluster, client)
            assert isinstance(bad, Bad)
            assert bad.kind is Kind.UNREACHABLE
            waited_s = asyncio.get_running_loop().time() - began
            assert waited_s <= ATTEMPTS * CONFIG.read_timeout_s + 1

    simulated(main)


@pytest.mark.parametrize(
    ("sends_for", "answers_after", "ends_after"),
    [
        (0.0, 0.9, 0.9),
        (0.0, 1.5, 1.0),  # nothing comes
        (99.0, 3.5, 3.5),  # a large answer comes in pieces
        (2.5, 99.0, 4.0),  # And then no more: noticed at the next check but one.
        (99.0, 99.0, PATIENCE_ROUNDS),  # no more time than that
    ],
)
def test_a_bookie_that_keeps_sending_gets_more_time(
    monkeypatch: pytest.MonkeyPatch, sends_for: float, answers_after: float, ends_after: float
) -> None:
    """The time limit is extended in units of `read_timeout_s`."""

    async def main() -> None:
        loop, limit = asyncio.get_running_loop(), CONFIG.read_timeout_s
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        async with cluster.client() as client:
            began = loop.time()

            def received_bytes(bookie: str) -> int:
                return int(1e6 * min(loop.time() - began, sends_for * limit))

            async def ask(channel: BookieChannel) -> str:
                await asyncio.sleep(answers_after * limit)
                return "here"

            monkeypatch.setattr(pool_of(client), "received_bytes", received_bytes)
            reader = ReplicaReader(client, LEDGER, await cluster.stored(), cluster.codec, "b0")
            if ends_after == answers_after:
                assert await reader._in_time(ask) == "here"
            else:
                waited = rf"b0 did not answer a read of a replica within {ends_after * limit:g} s"
                with pytest.raises(BookieTimeoutError, match=waited):
                    await reader._in_time(ask)
            assert loop.time() - began == pytest.approx(ends_after * limit, abs=0.1 * limit)

    simulated(main)


# -- how much is asked for --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request for several entries."""

    first: int
    count: int
    size_bytes: int


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """All batch reads of the fake bookies, in order."""
    found: list[Asked] = []
    real = FakeLink.batch_read

    async def batch_read(
        link: FakeLink, ledger_id: int, first: int, count: int, size: int, *more: Any
    ) -> bytes:
        found.append(Asked(first, count, size))
        return await real(link, ledger_id, first, count, size, *more)

    monkeypatch.setattr(FakeLink, "batch_read", batch_read)
    return found


async def with_sizes(cluster: FakeCluster, sizes: Sequence[int]) -> None:
    """Create a ledger whose entries have payloads of these sizes."""
    await cluster.ledger((3, 3, 2), range(len(sizes)))
    for entry, size in enumerate(sizes):
        stored = cluster.entry(entry, bytes(size))
        for name in ("b0", "b1", "b2"):
            cluster[name].entries[entry] = stored


async def read_all(cluster: FakeCluster, client: Client, count: int, **how: Any) -> None:
    """Read all entries, and check that each of them comes once."""
    reader = ReplicaReader(client, LEDGER, await cluster.stored(), cluster.codec, "b0", **how)
    found: list[int] = []
    async for part in reader.parts(0, 0, count - 1):
        assert isinstance(part, Copies), part
        found += part.ids
    assert found == list(range(count))


@pytest.mark.parametrize("rate", [None, 1_000_000.0, 5_000_000.0])
@pytest.mark.parametrize("size", [1, 300, 5_000])
def test_the_size_of_requests_follows_the_size_of_earlier_entries(
    asked: list[Asked], size: int, rate: float | None
) -> None:
    """After the first request. A budget makes them smaller, so that appends wait for less."""

    async def main() -> None:
        count = 3_000
        config = dataclasses.replace(CONFIG, read_window_bytes=64 * KIB)
        cluster = await FakeCluster.made(3, config)
        await with_sizes(cluster, [size] * count)
        async with cluster.client() as client:
            await read_all(cluster, client, count, budget=Budget(rate))
        entry_bytes = size + cluster.codec.head_bytes
        limit = Budget(rate).slice_bytes(64 * KIB)
        fits = min(max(limit // entry_bytes, 1), WINDOW_ENTRIES_MAX)
        first, *rest = asked
        assert (first.first, first.count) == (0, FIRST_WINDOW_ENTRIES)
        later = [one for one in rest if one.first >= FIRST_WINDOW_ENTRIES]
        assert {one.count for one in later[:-1]} <= {fits}
        assert later[-1].count <= fits
        assert first.size_bytes == 2 * 64 * KIB
        for one in rest:
            wanted = max(2 * one.count * entry_bytes, ASKED_BYTES_MIN)
            assert one.size_bytes == min(2 * 64 * KIB, wanted)

    simulated(main)


def test_the_size_of_a_small_request_follows_the_size_of_its_entries(asked: list[Asked]) -> None:
    """A bookie answers small requests at once. Entries may be larger than earlier ones."""

    async def main() -> None:
        config = dataclasses.replace(CONFIG, read_window_bytes=16 * MIB)
        cluster = await FakeCluster.made(3, config)
        await with_sizes(cluster, [1_000] * 1_300)
        entry_bytes = 1_000 + cluster.codec.head_bytes
        async with cluster.client() as client:
            reader = ReplicaReader(client, LEDGER, await cluster.stored(), cluster.codec, "b0")
            for entries in (range(10), range(10, 20), range(20, 1_020)):
                [part] = await reader.read(entries)
                assert isinstance(part, Copies)
        assert [one.size_bytes for one in asked] == [
            2 * 16 * MIB, ASKED_BYTES_MIN, 2 * 1_000 * entry_bytes
        ]  # fmt: skip

    simulated(main)


def test_no_request_exceeds_the_limit_of_entries(
    asked: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.replication.repair.replica_reader.WINDOW_ENTRIES_MAX", 300)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await with_sizes(cluster, [1] * 2_000)
        async with cluster.client() as client:
            await read_all(cluster, client, 2_000)
        assert [one.count for one in asked[1:-1]] == [300] * 5

    simulated(main)


def test_the_size_of_entries_is_a_running_mean(asked: list[Asked]) -> None:
    """Requests become smaller when entries become larger, and larger again."""

    async def main() -> None:
        config = dataclasses.replace(CONFIG, read_window_bytes=64 * KIB, read_windows=1)
        cluster = await FakeCluster.made(3, config)
        sizes = [100] * 2_000 + [8_000] * 200 + [100] * 6_000
        await with_sizes(cluster, sizes)
        async with cluster.client() as client:
            await read_all(cluster, client, len(sizes))
        head = cluster.codec.head_bytes
        small, large = 64 * KIB // (100 + head), 64 * KIB // (8_000 + head)
        before = [one.count for one in asked if 300 < one.first < 1_500]
        during = [one.count for one in asked if 2_000 < one.first < 2_200]
        after = [one.count for one in asked if 7_000 < one.first < 8_200 - small]
        assert set(before) == {small}
        assert min(during) in (large, large + 1)
        assert 0.9 * small < max(after) <= small

    simulated(main)


def test_a_budget_limits_the_rate_of_reads() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await with_sizes(cluster, [100] * 2_000)
        size = 2_000 * (100 + cluster.codec.head_bytes)
        async with cluster.client() as client:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await read_all(cluster, client, 2_000, budget=Budget(100_000.0))
            assert loop.time() - began_s == pytest.approx(size / 100_000, rel=0.02)

    simulated(main)


# -- what is wrong ----------------------------------------------------------------------------

SHAPES = [(3, 3, 2), (5, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
@pytest.mark.parametrize(
    ("code", "kind", "why"),
    [
        (Code.NO_ENTRY, Kind.MISSING, "no such entry"),
        (Code.NO_LEDGER, Kind.MISSING, "no such entry"),
        (Code.IO_ERROR, Kind.DAMAGED, "I/O error"),
        (Code.UNKNOWN_LEDGER_STATE, Kind.DAMAGED, "does not know which entries"),
        (Code.FENCED, Kind.DAMAGED, "makes no sense for a read"),
        (None, Kind.DAMAGED, "digest"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named_with_its_reason(
    shape: tuple[int, int, int], code: Code | None, kind: Kind, why: str
) -> None:
    """All others are returned. Damage never counts as absence, nor absence as damage."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(40))
        metadata = await cluster.stored()
        mine = list(stored_by(metadata, 0, 0, 39))
        broken = {mine[0], mine[7], mine[8], mine[-1]}
        damaged = {entry: cluster.entry(entry)[:-1] + b"?" for entry in broken}

        def says(ask: Ask) -> Any:
            if ask.entry not in broken:
                return ...
            return damaged[ask.entry] if code is None else error_of(code, LEDGER, ask.entry, "b0")

        cluster["b0"].says = says
        async with cluster.client() as client:
            reader = ReplicaReader(client, LEDGER, metadata, cluster.codec, "b0")
            parts = [part async for part in reader.parts(0, 0, 39)]
        good = {
            entry: data
            for part in parts if isinstance(part, Copies)
            for entry, data in zip(part.ids, part.payloads)
        }  # fmt: skip
        assert good == {entry: payload(entry) for entry in mine if entry not in broken}
        bad = [part for part in parts if isinstance(part, Bad)]
        assert {entry for part in bad for entry in mine if part.first <= entry <= part.last} == (
            broken
        )
        assert {part.kind for part in bad} == {kind}
        assert all(why in part.detail for part in bad)
        order = [part.first if isinstance(part, Bad) else part.ids[0] for part in parts]
        assert order == sorted(order)

    simulated(main)


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
def test_a_bookie_that_refuses_this_client_is_unreachable(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(5))
        cluster["b0"].says = lambda ask: error_of(Code.UNAUTHORIZED, LEDGER, ask.entry, "b0")
        async with cluster.client() as client:
            [bad] = await reading(cluster, client)
        assert isinstance(bad, Bad)
        assert (bad.kind, bad.first, bad.last) == (Kind.UNREACHABLE, 0, 4)
        assert "refuses to serve this client" in bad.detail

    simulated(main)


@pytest.mark.parametrize("busy", [1, BUSY_ATTEMPTS - 1, BUSY_ATTEMPTS])
def test_a_busy_bookie_is_retried_a_few_times(busy: int) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        count = 0

        def says(ask: Ask) -> Any:
            nonlocal count
            count += 1
            too_many = error_of(Code.TOO_MANY_REQUESTS, LEDGER, ask.entry, "b0")
            return too_many if count <= busy else ...

        cluster["b0"].says = says
        async with cluster.client() as client:
            [part] = await reading(cluster, client)
        if busy < BUSY_ATTEMPTS:
            assert isinstance(part, Copies)
        else:
            assert isinstance(part, Bad)
            assert (part.kind, part.first, part.last) == (Kind.UNREACHABLE, 0, 4)
            assert "too busy" in part.detail

    simulated(main)


@pytest.mark.parametrize("lists", [True, False])
def test_a_long_missing_range_is_found_from_the_bookies_entry_list(*, lists: bool) -> None:
    """A bookie that cannot list its entries is asked for each of them."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(1_000))
        bookie = cluster["b0"]
        bookie.lists = lists
        for entry in [*range(100, 400), *range(700, 1_000)]:
            del bookie.entries[entry]
        async with cluster.client() as client:
            metadata = await cluster.stored()
            reader = ReplicaReader(client, LEDGER, metadata, cluster.codec, "b0")
            parts = [part async for part in reader.parts(0, 0, 999)]
        lacking = {
            entry
            for part in parts if isinstance(part, Bad)
            for entry in range(part.first, part.last + 1)
        }  # fmt: skip
        assert lacking == {*range(100, 400), *range(700, 1_000)}
        assert {part.kind for part in parts if isinstance(part, Bad)} == {Kind.MISSING}
        assert sum(len(part.ids) for part in parts if isinstance(part, Copies)) == 400
        asked = [ask.entry for ask in bookie.asked if ask.entry in lacking]
        assert len(asked) < 20 if lists else len(set(asked)) == 600

    simulated(main)


@pytest.mark.parametrize("entry", [4, 5, 9, 10])
def test_an_entry_in_a_bookies_own_list_is_requested_again(entry: int) -> None:
    """It denies the entry once, for example because it just got it."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(15))
        bookie, denied = cluster["b0"], 0
        bookie.lists = True
        for one in (*range(4), *range(11, 15)):
            del bookie.entries[one]

        def says(ask: Ask) -> Any:
            nonlocal denied
            if ask.entry == entry and not denied:
                denied += 1
                return bookie.no(ask)
            return ...

        bookie.says = says
        async with cluster.client() as client:
            metadata = await cluster.stored()
            reader = ReplicaReader(client, LEDGER, metadata, cluster.codec, "b0")
            parts = [part async for part in reader.parts(0, 0, 14)]
        found = [one for part in parts if isinstance(part, Copies) for one in part.ids]
        assert found == list(range(4, 11))
        bad = [part for part in parts if isinstance(part, Bad)]
        assert {part.kind for part in bad} == {Kind.MISSING}
        lacking = [one for part in bad for one in range(part.first, part.last + 1)]
        assert lacking == [*range(4), *range(11, 15)]
        assert denied == 1

    simulated(main)


def test_a_bookie_without_batch_reads_is_read_entry_by_entry() -> None:
    """Apache's bookies before 4.17 close the connection of a batch read."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5))
        batches = 0

        async def closes(link: FakeLink, *how: Any, **more: Any) -> bytes:
            nonlocal batches
            batches += 1
            link.lose()
            raise BookieUnavailableError("closed")

        async with cluster.client() as client:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FakeLink, "batch_read", closes)
                metadata = await cluster.stored()
                reader = ReplicaReader(client, LEDGER, metadata, cluster.codec, "b0")
                for _ in range(2):
                    found = [part async for part in reader.parts(0, 0, 4)]
                    [part] = found
                    assert isinstance(part, Copies)
                    assert list(part.payloads) == [payload(entry) for entry in range(5)]
        assert batches == LOST_ATTEMPTS, "it is not tried a second time"

    simulated(main)
