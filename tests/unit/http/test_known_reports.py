"""The last report of each bookie, which is known after the bookie died."""

from __future__ import annotations

import json

import pytest

from quire.codec.metadata.registration import Endpoint
from quire.http.views.bookie_report import PATH
from quire.http.watch import known_reports
from quire.http.watch.known_reports import KNOWN_INTERVAL_S, KnownReports
from quire.http.watch.rates import ENDPOINT
from quire.metadata.interface import BookieAddress

PATIENT_S = 60.0


def address(name: str, *, http: bool = True) -> BookieAddress:
    others = (Endpoint(ENDPOINT, name, 8080, "http"),) if http else ()
    return BookieAddress(name, name, 3181, others=others)


class Bookies:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[str] = []
        self.answers: dict[str, str] = {}
        self.unix_ms = 1_000_000
        self.reports = KnownReports(
            lambda: self.now_s, self.fetch, PATIENT_S, now_ms=lambda: self.unix_ms
        )

    async def fetch(self, url: str) -> str:
        self.asked.append(url)
        if (answer := self.answers.get(url)) is None:
            raise OSError("it does not answer")
        return answer

    def serve(self, name: str, *words: str) -> None:
        self.answers[f"http://{name}:8080{PATH}"] = json.dumps({"command": words})

    async def commands(self, *names: str) -> dict[str, list[str]]:
        found = await self.reports.of({name: address(name) for name in names})
        return {name: report["command"] for name, report in found.items()}


async def test_the_last_report_is_kept_when_the_bookie_dies() -> None:
    world = Bookies()
    world.serve("a", "quire", "bookie", "start", "--http", "a:8080")
    assert (await world.commands("a"))["a"][-1] == "a:8080"
    world.answers.clear()
    world.now_s += KNOWN_INTERVAL_S
    assert (await world.commands("a"))["a"][-1] == "a:8080", "it is silent"
    assert len(world.asked) == 2
    world.now_s += KNOWN_INTERVAL_S
    assert (await world.commands())["a"][-1] == "a:8080", "it is gone"


async def test_reports_are_read_once_per_interval_and_for_a_new_bookie() -> None:
    world = Bookies()
    world.serve("a")
    world.serve("b")
    await world.commands("a")
    await world.commands("a")
    assert len(world.asked) == 1
    assert set(await world.commands("a", "b")) == {"a", "b"}
    await world.commands("b")
    assert len(world.asked) == 3


async def test_bookies_without_a_report_have_no_start_command() -> None:
    world = Bookies()
    world.answers[f"http://a:8080{PATH}"] = "no report"
    assert await world.commands("a") == {}
    assert await world.reports.of({"b": address("b", http=False)}) == {}
    assert len(world.asked) == 1


async def test_the_number_of_known_reports_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_reports, "KNOWN_MAX", 2)
    world = Bookies()
    for name in "abc":
        world.serve(name)
        await world.commands(name)
    assert set(await world.commands()) == {"b", "c"}


async def test_the_report_of_a_bookie_without_an_http_server_is_dropped() -> None:
    """Its old certificate was reported as expiring for ever."""
    world = Bookies()
    world.serve("a", "quire", "bookie", "start")
    assert set(await world.commands("a")) == {"a"}
    assert await world.reports.of({}), "it is down"
    world.now_s += KNOWN_INTERVAL_S
    assert await world.reports.of({"a": address("a", http=False)}) == {}


async def test_a_report_says_how_far_the_clock_of_the_bookie_is_ahead() -> None:
    world = Bookies()
    world.answers[f"http://a:8080{PATH}"] = json.dumps({"now_ms": world.unix_ms + 5_000})
    world.answers[f"http://old:8080{PATH}"] = "{}"
    fetch = world.fetch

    async def slow(url: str) -> str:
        world.unix_ms += 2_000  # the bookie says the time in the middle of the request
        return await fetch(url)

    world.reports._fetch = slow
    found = await world.reports.of({"a": address("a")})
    assert found["a"]["clock_ahead_ms"] == 4_000
    found = await world.reports.of({"old": address("old")})
    assert found["old"]["clock_ahead_ms"] is None, "bookies of earlier versions do not tell it"


class RefusedError(Exception):
    status = 401


async def test_bookies_that_refuse_the_token_are_known() -> None:
    world = Bookies()
    world.serve("a")
    serve = world.fetch

    async def guarded(url: str) -> str:
        if "//b:" in url and world.now_s == 0:
            raise RefusedError
        return await serve(url)

    world.reports._fetch = guarded
    await world.commands("a", "b")
    assert world.reports.refused == {"b"}
    world.serve("b")
    world.now_s += KNOWN_INTERVAL_S
    await world.commands("a", "b")
    assert world.reports.refused == set()
