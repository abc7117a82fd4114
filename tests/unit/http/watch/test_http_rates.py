"""Rates computed from two reads of bookies' metrics."""

from __future__ import annotations

import asyncio
import json

from quire.codec.metadata.registration import Endpoint
from quire.http.views.bookie_list import _described
from quire.http.watch.observations import BackgroundObservation
from quire.http.watch.rates import (
    BOOKIES_AT_ONCE,
    ENDPOINT,
    LOOK_AGE_MAX_S,
    LOOK_INTERVAL_S,
    Rates,
    metrics_url,
    parsed,
    together,
)
from quire.metadata.interface import BookieAddress
from quire.metadata.interface import Bookies as Found

ADDS = 'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"}'
PATIENT_S = 60.0
"""Seconds to wait for an observation. The default is so short that a loaded machine misses it."""
P99 = 'bookkeeper_server_ADD_ENTRY_REQUEST{success="true",quantile="0.99"}'


def address(name: str, protocol: str = "http", host: str = "10.0.0.1") -> BookieAddress:
    return BookieAddress(name, host, 3181, others=(Endpoint(ENDPOINT, host, 8080, protocol),))


class Bookies:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.adds = 0
        self.asked: list[str] = []
        self.fails = False
        self.at_once = self.most_at_once = 0

    async def fetch(self, url: str) -> str:
        self.asked.append(url)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.fails:
            raise OSError("it does not answer")
        return f"# HELP x y\n{ADDS} {self.adds}\n{P99} 1.5\nbookie_ledgers_count 7\n"


async def test_a_rate_needs_two_observations() -> None:
    world, known = Bookies(), {"a": address("a")}
    rates = Rates(lambda: world.now_s, world.fetch, PATIENT_S)
    (first,) = (await rates.of(known)).values()
    assert (first["adds_per_s"], first["add_p99_ms"], first["ledgers"]) == (None, 1.5, 7)
    world.adds, world.now_s = 100, 4.0
    assert (await rates.of(known))["a"]["adds_per_s"] == 25
    assert world.asked == ["http://10.0.0.1:8080/metrics"] * 2


async def test_damage_and_the_limit_of_free_space_are_read() -> None:
    async def fetch(url: str) -> str:
        if "10.0.0.2" in url:
            return "quire_storage_damaged_segments 0\nquire_storage_damaged_ledgers 0\n"
        return (
            "quire_storage_damaged_segments 1\nquire_storage_damaged_ledgers 2\n"
            "quire_bookie_min_free_bytes 268435456\n"
        )

    rates = Rates(lambda: 0.0, fetch, PATIENT_S)
    await rates.of({"a": address("a"), "b": address("b", host="10.0.0.2")})
    assert rates.damaged == {"a": {"segments": 1, "ledgers": 2}}
    assert rates.min_free_bytes == {"a": 268435456}


async def test_concurrent_requests_share_one_observation() -> None:
    world, known = Bookies(), {"a": address("a")}
    rates = Rates(lambda: world.now_s, world.fetch, PATIENT_S)
    await asyncio.gather(*(rates.of(known) for _ in range(10)))
    world.now_s = LOOK_INTERVAL_S * 0.9
    await rates.of(known)
    assert len(world.asked) == 1


async def test_a_failed_observation_is_not_repeated_at_once() -> None:
    """Each request once started another observation."""
    looks, now_s, told = 0, 0.0, []
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: told.append(what))

    async def look() -> None:
        nonlocal looks
        looks += 1
        raise RuntimeError("nobody expected this")

    background = BackgroundObservation(lambda: now_s, LOOK_INTERVAL_S, PATIENT_S)
    for _ in range(5):
        await background.refresh(look)
    assert (looks, len(told), background.age_s) == (1, 1, None)
    now_s = LOOK_INTERVAL_S
    await background.refresh(look)
    assert looks == 2


async def test_no_rate_is_computed_after_a_restart_or_an_old_observation() -> None:
    """A restarted bookie or an old read gives no rate."""
    world, known = Bookies(), {"a": address("a")}
    rates = Rates(lambda: world.now_s, world.fetch, PATIENT_S)
    world.adds = 100
    await rates.of(known)
    world.adds, world.now_s = 10, 2.0
    assert (await rates.of(known))["a"]["adds_per_s"] is None
    world.adds, world.now_s = 20, 4.0
    assert (await rates.of(known))["a"]["adds_per_s"] == 5
    world.now_s += LOOK_AGE_MAX_S + 1
    assert (await rates.of(known))["a"]["adds_per_s"] is None


async def test_a_bookie_with_malformed_metrics_does_not_affect_the_others() -> None:
    """Its sizes were no numbers, and no bookie had rates any more."""
    told = ("1.2.3", "1e999", "..")

    async def fetch(url: str) -> str:
        text = "bookie_ledgers_count 7\n"
        for number, size in enumerate(told):
            for which in ("free", "total"):
                text += f'quire_directory_{which}_bytes{{directory="/{number}"}} {size}\n'
        for which, size in (("free", "1e9"), ("total", "4000000000")):
            text += f'quire_directory_{which}_bytes{{directory="/good"}} {size}\n'
        return text + 'quire_directory_total_bytes{directory="/bad\n\x1b[2J"} 7\n'

    rates = Rates(lambda: 0.0, fetch, PATIENT_S)
    found = await rates.of({"a": address("a"), "b": address("b")})
    assert [one["ledgers"] for one in found.values()] == [7, 7]
    assert rates.directories == {"a": {"/good": 0.25}, "b": {"/good": 0.25}}


async def test_a_bookie_with_false_metrics_cannot_make_the_sums_infinite() -> None:
    """No page could be shown any more, because JSON has no infinite numbers."""
    now_s, told = 0.0, "-1.7e308"
    tiny = "0." + "0" * 300 + "1"

    async def fetch(url: str) -> str:
        return (
            f"bookie_WRITE_BYTES {told}\nquire_bookie_min_free_bytes {told}\n"
            f'quire_directory_free_bytes{{directory="/d"}} 9e300\n'
            f'quire_directory_total_bytes{{directory="/d"}} {tiny}\n'
            f'quire_directory_free_bytes{{directory="/e"}} 2\n'
            f'quire_directory_total_bytes{{directory="/e"}} 1\n'
        )

    rates, known = Rates(lambda: now_s, fetch, PATIENT_S), {n: address(n) for n in ("a", "b")}
    await rates.of(known)
    now_s, told = 1.5, "1.7e308"
    found = await rates.of(known)
    shown = [found, together(found), rates.directories, rates.disks, rates.min_free_bytes]
    assert json.dumps(shown, allow_nan=False)
    assert rates.directories == {"a": {}, "b": {}}


async def test_a_bookie_that_does_not_answer_has_no_rates() -> None:
    world, known = Bookies(), {"a": address("a"), "b": BookieAddress("b", "h", 1)}
    world.fails = True
    rates = Rates(lambda: world.now_s, world.fetch, PATIENT_S)
    assert await rates.of(known) == {}
    world.fails, world.now_s = False, 2.0
    assert set(await rates.of(known)) == {"a"}


async def test_the_number_of_concurrent_requests_for_metrics_is_limited() -> None:
    world = Bookies()
    known = {f"b{n}": address(f"b{n}") for n in range(3 * BOOKIES_AT_ONCE)}
    await Rates(lambda: world.now_s, world.fetch, PATIENT_S).of(known)
    assert len(world.asked) == len(known)
    assert world.most_at_once == BOOKIES_AT_ONCE


def test_the_metrics_url_comes_from_the_registration() -> None:
    assert metrics_url(address("a", "https", "fe80::1")) == "https://[fe80::1]:8080/metrics"
    found = Found(writable={"a": address("a", "https", "fe80::1")}, readonly={})
    assert _described(found, "a")["http"] == ["https://[fe80::1]:8080"]
    assert metrics_url(address("a", "file")) is None
    assert metrics_url(BookieAddress("a", "h", 1)) is None


def test_only_known_numeric_metrics_are_parsed() -> None:
    text = f"{ADDS} 3\n{P99} NaN\nbookie_WRITE_BYTES many\nquire_other 5\n{ADDS}x 9\n"
    assert parsed(text) == {ADDS: 3.0}


def test_rates_of_several_bookies_are_combined() -> None:
    """Counters are summed, the largest latency counts, and unknown values are None."""
    one = dict.fromkeys(together({}), None)
    slow = {**one, "adds_per_s": 2.0, "add_p99_ms": 9.0}
    fast = {**one, "adds_per_s": 5.0, "add_p99_ms": 1.0}
    found = together({"a": slow, "b": fast})
    assert (found["bookies"], found["adds_per_s"], found["add_p99_ms"]) == (2, 7.0, 9.0)
    assert found["reads_per_s"] is None


async def test_no_request_waits_for_a_slow_bookie() -> None:
    """The previous result is shown meanwhile, and only one read runs at a time."""
    world, known = Bookies(), {"a": address("a")}
    go = asyncio.Event()

    async def slowly(url: str) -> str:
        await go.wait()
        return await world.fetch(url)

    rates = Rates(lambda: world.now_s, slowly)
    assert await rates.of(known) == {}
    assert await rates.of(known) == {}
    go.set()
    while not await rates.of(known):
        await asyncio.sleep(0)
    assert len(world.asked) == 1
    go.clear()
    world.now_s = 2.0
    assert set(await rates.of(known)) == {"a"}
    await rates.close()
