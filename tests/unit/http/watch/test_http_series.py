"""The last hour of rates, latencies and disk use: how it is kept, sampled and returned."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest

from quire.codec.metadata.registration import Endpoint
from quire.errors import MetadataUnavailableError, UsageError
from quire.http.routes.series import RANGE_MIN_S, SeriesRoutes
from quire.http.server.api import Call
from quire.http.server.error_responses import NotFoundError
from quire.http.watch import recorder as recording
from quire.http.watch import series as module
from quire.http.watch.observations import DiskSpace
from quire.http.watch.rates import ENDPOINT
from quire.http.watch.recorder import SeriesRecorder
from quire.http.watch.series import OF_BOOKIES, OF_CLUSTER, SLOTS, SPAN_S, STEP_S, SeriesStore
from quire.metadata.interface import BookieAddress
from quire.metadata.interface import Bookies as Found
from quire.replication.explain.status import MarkCount

BEGIN_S = 1_780_000_000
ADDS = 'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"}'


class World:
    """A clock, a cluster whose bookies report their adds, and a metadata store that may be away."""

    def __init__(self, *names: str) -> None:
        self.passed_s = 0.0
        self.set_back_s = 0.0
        self.slept_s = 0.0
        self.adds: dict[str, float] = dict.fromkeys(names, 0.0)
        self.silent: set[str] = set()
        self.away = False
        self.marked = MarkCount(marked=3)
        self.asked = 0

    # -- a clock

    def monotonic(self) -> float:
        return self.passed_s

    def now_ms(self) -> int:
        return round(1000 * (BEGIN_S + self.passed_s + self.slept_s - self.set_back_s))

    # -- a client, and what the recorder uses besides

    async def connect(self) -> Any:
        if self.away:
            raise MetadataUnavailableError("the store is away")
        return self

    async def bookies(self) -> Found:
        where = {
            name: BookieAddress(name, name, 3181, others=(Endpoint(ENDPOINT, name, 8080, "http"),))
            for name in self.adds
        }
        return Found(writable=where, readonly={})

    async def fetch(self, url: str) -> str:
        self.asked += 1
        name = url.removeprefix("http://").partition(":")[0]
        if name in self.silent:
            raise OSError("it does not answer")
        return f"{ADDS} {self.adds[name]}\n"

    async def of(self, client: Any, names: Collection[str] = ()) -> Any:
        """Return the marks, or the space of the bookies if there are names."""
        if not names:
            return self.marked
        return {one: None if one in self.silent else DiskSpace(25, 100) for one in names}

    def recorder(self, *, always: bool = True) -> SeriesRecorder:
        same = cast(Any, self)
        self.events: list[str] = []
        return SeriesRecorder(
            self.connect, self, self.fetch, same, same,
            lambda event, **fields: self.events.append(event), always=always,
        )  # fmt: skip

    async def samples(self, recorder: SeriesRecorder, count: int, adds: int = 0) -> None:
        for _ in range(count):
            await recorder.sample()
            self.passed_s += STEP_S
            for name in self.adds:
                self.adds[name] += adds


def put(store: SeriesStore, world: World, value: float | None, *names: str) -> None:
    """Store one sample of `adds_per_s`, and let the time of a step pass."""
    tick = store.begin()
    store.add(tick, {"adds_per_s": value}, {name: {"adds_per_s": value} for name in names})
    world.passed_s += STEP_S


# -- the store --------------------------------------------------------------------------------


def test_recorded_values_are_returned_in_order_with_their_times() -> None:
    world = World()
    store = SeriesStore(world)
    for value in (1.0, 2.0, 3.0):
        put(store, world, value, "a")
    found = store.read(900)
    assert (found.first_s, found.step_s) == (BEGIN_S, STEP_S)
    assert found.values["adds_per_s"] == [1, 2, 3]
    assert found.values["disk_used"] == [None, None, None]
    assert set(found.values) == set(OF_CLUSTER)
    assert store.read(900, "a").values["adds_per_s"] == [1, 2, 3]
    assert set(store.read(900, "a").values) == set(OF_BOOKIES)
    assert store.read(900, "b").values["adds_per_s"] == []


def test_the_oldest_values_are_overwritten() -> None:
    world = World()
    store = SeriesStore(world)
    for value in range(SLOTS + 5):
        put(store, world, float(value))
    world.passed_s -= STEP_S  # to the time of the last sample
    found = store.read(SPAN_S)
    assert found.values["adds_per_s"] == [float(value) for value in range(5, SLOTS + 5)]
    assert found.first_s == BEGIN_S + 5 * STEP_S
    assert len(store.read(900).values["adds_per_s"]) == 900 // STEP_S + 1


def test_time_without_samples_is_a_gap() -> None:
    """Both clocks continue while a process is stopped, and one of them while a computer sleeps."""
    world = World()
    store = SeriesStore(world)
    put(store, world, 1.0, "a")
    world.passed_s += 2 * STEP_S
    put(store, world, 2.0, "a")
    world.slept_s += 3 * STEP_S
    put(store, world, 3.0, "a")
    wanted = [1, None, None, 2, None, None, None, 3]
    assert store.read(900).values["adds_per_s"] == wanted
    assert store.read(900, "a").values["adds_per_s"] == wanted
    world.passed_s += 10 * SPAN_S
    put(store, world, 4.0, "a")
    world.passed_s -= STEP_S
    assert store.read(SPAN_S).values["adds_per_s"] == [None] * (SLOTS - 1) + [4]


def test_setting_the_calendar_back_moves_no_value() -> None:
    world = World()
    store = SeriesStore(world)
    put(store, world, 1.0)
    world.set_back_s = 600
    put(store, world, 2.0)
    found = store.read(900)
    assert found.values["adds_per_s"] == [1, 2]
    assert found.first_s == BEGIN_S - 600


def test_slightly_late_samples_leave_no_gap() -> None:
    world = World()
    store = SeriesStore(world)
    for late_s in (0.0, 2.0, -1.0, 3.0):
        world.passed_s += late_s
        put(store, world, 1.0)
        world.passed_s -= late_s
    assert store.read(900).values["adds_per_s"] == [1, 1, 1, 1]


def test_values_older_than_the_range_are_omitted() -> None:
    """Also if no sample was taken since."""
    world = World()
    store = SeriesStore(world)
    put(store, world, 1.0)
    world.passed_s += 600
    assert store.read(60).values["adds_per_s"] == []
    assert store.read(900).values["adds_per_s"] == [1]


def test_a_bookie_without_values_for_an_hour_is_forgotten() -> None:
    world = World()
    store = SeriesStore(world)
    put(store, world, 1.0, "a", "b")
    for _ in range(SLOTS):
        put(store, world, 1.0, "b")
    assert store.bookies == {"b"}


def test_the_number_of_bookies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOOKIES_MAX", 2)
    world = World()
    store = SeriesStore(world)
    put(store, world, 1.0, "a", "b", "c", "d")
    assert (store.bookies, store.left_out) == ({"a", "b"}, 2)


def test_the_memory_for_a_hundred_bookies_matches_the_documentation() -> None:
    """The page on the dashboard says 2.4 MB."""
    world = World()
    tracemalloc.start()
    try:
        store = SeriesStore(world)
        for _ in range(3):
            put(store, world, 1.0, *(f"10.0.0.{number}:3181" for number in range(100)))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 2_500_000


# -- the recorder -----------------------------------------------------------------------------


async def test_a_sample_has_the_cluster_and_each_bookie() -> None:
    world = World("a", "b")
    recorder = world.recorder()
    await world.samples(recorder, 3, adds=50)
    cluster = recorder.store.read(900).values
    assert cluster["adds_per_s"] == [None, 10, 10]  # a rate needs two readings
    assert cluster["under_replicated"] == [3, 3, 3]
    assert cluster["bookies"] == cluster["bookies_writable"] == [2, 2, 2]
    assert cluster["disk_used"] == cluster["disk_used_max"] == [0.75] * 3
    assert recorder.store.read(900, "a").values["adds_per_s"] == [None, 5, 5]


async def test_an_absent_bookie_has_a_gap() -> None:
    world = World("a", "b")
    recorder = world.recorder()
    await world.samples(recorder, 2, adds=50)
    world.silent.add("a")
    await world.samples(recorder, 2, adds=50)
    world.silent.clear()
    await world.samples(recorder, 2, adds=50)
    assert recorder.store.read(900, "a").values["adds_per_s"] == [None, 5, None, None, None, 5]
    assert recorder.store.read(900, "a").values["disk_used"] == [0.75] * 2 + [None] * 2 + [0.75] * 2
    assert recorder.store.read(900).values["adds_per_s"] == [None, 10, 5, 5, 5, 10]


async def test_the_bookies_are_sampled_while_the_metadata_store_is_away() -> None:
    world = World("a")
    recorder = world.recorder()
    await world.samples(recorder, 2, adds=50)
    world.away = True
    await world.samples(recorder, 2, adds=50)
    found = recorder.store.read(900).values
    assert found["adds_per_s"] == [None, 5, 5, 5]
    assert found["under_replicated"] == [3, 3, None, None]
    assert found["bookies"] == [1, 1, None, None]


async def test_an_incomplete_count_is_not_shown() -> None:
    world = World("a")
    world.marked = MarkCount(marked=3, whole=False)
    recorder = world.recorder()
    await world.samples(recorder, 1)
    assert recorder.store.read(900).values["under_replicated"] == [None]


async def until(world: World, asked: int) -> None:
    async with asyncio.timeout(5):
        while world.asked < asked:
            await asyncio.sleep(0)


async def test_sampling_runs_always_or_only_while_it_is_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "STEP_S", 0.001)
    world = World("a")
    always, asked = world.recorder(), world.recorder(always=False)
    asked.start()
    await asyncio.sleep(0)
    assert world.asked == 0
    always.start()
    await until(world, 2)
    await always.close()
    assert always.samples
    asked.touch()
    asked.touch()
    begun = world.asked
    await until(world, begun + 2)
    world.passed_s += recording.IDLE_S
    assert asked._running is not None
    await asyncio.wait_for(asked._running, 5)
    await asked.close()


async def test_an_unexpected_error_does_not_end_the_sampling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "STEP_S", 0.001)
    world = World("a")
    recorder = world.recorder()
    monkeypatch.setattr(world, "bookies", lambda: 1 / 0)
    recorder.start()
    async with asyncio.timeout(5):
        while len(world.events) < 2:
            await asyncio.sleep(0)
    await recorder.close()
    assert set(world.events) == {"series_failed"}


# -- the route --------------------------------------------------------------------------------


async def ask(routes: SeriesRoutes, query: Mapping[str, str]) -> Any:
    (route,) = routes.routes()
    call = route.check({}, list(query.items()), {})
    assert isinstance(call, Call)
    return await route.handler(call)


async def test_the_series_route_returns_the_recorded_values() -> None:
    world = World("a")
    recorder = world.recorder()
    await world.samples(recorder, 2, adds=50)
    routes = SeriesRoutes(recorder, None)
    found = await ask(routes, {"range": "15m"})
    assert found["series"]["adds_per_s"] == [None, 5]
    assert {name: found[name] for name in found if name != "series"} == {
        "source": "memory",
        "bookie": None,
        "range_s": 900,
        "to_s": BEGIN_S + 2 * STEP_S,
        "ranges_s": [900, SPAN_S],
        "first_s": BEGIN_S,
        "step_s": STEP_S,
    }
    assert (await ask(routes, {"bookie": "a"}))["series"]["adds_per_s"] == [None, 5]
    with pytest.raises(NotFoundError, match="no series of bookie 'b'"):
        await ask(routes, {"bookie": "b"})
    for range_s in (RANGE_MIN_S - 1, 10**9):
        with pytest.raises(UsageError):
            await ask(routes, {"range": str(range_s)})
    with pytest.raises(UsageError, match="keeps the series of the last hour") as caught:
        await ask(routes, {"range": "6h"})
    assert "--prometheus" in caught.value.remedy


async def test_the_series_route_accepts_any_bookie_before_the_first_sample() -> None:
    recorder = World("a").recorder(always=False)
    found = await ask(SeriesRoutes(recorder, None), {"bookie": "a"})
    assert found["series"]["adds_per_s"] == []
    await recorder.close()
