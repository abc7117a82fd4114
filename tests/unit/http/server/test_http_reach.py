"""An HTTP server reports a metadata store that does not answer."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, cast

import pytest

from quire._runtime.metrics import Metric
from quire.client import Client
from quire.errors import MetadataUnavailableError, UsageError
from quire.http.routes.problem_counts import COUNTS_AGE_MAX_S, OVERVIEW, ProblemCountRoutes
from quire.http.server import run
from quire.http.server.api import Call, Route
from quire.http.views import last_known
from quire.http.views.cluster_view import ClusterState, ClusterView
from quire.http.views.last_known import LastKnown
from quire.http.views.problems.metadata_store import metadata_slow, metadata_unsteady
from quire.http.watch import reachability as module
from quire.http.watch.reachability import MetadataReachability, server_causes
from quire.metadata.outages import START_STORE, Outage

CALL = Call({}, {}, {})


class Store:
    """Answers, fails, or is silent."""

    def __init__(self) -> None:
        self.now_ms_value = 1_000_000
        self.error: Exception | None = None
        self.silent = False
        self.never = asyncio.Event()

    def now_ms(self) -> int:
        return self.now_ms_value

    def monotonic(self) -> float:
        return self.now_ms_value / 1000

    async def ask(self) -> str:
        if self.error is not None:
            raise self.error
        if self.silent:
            await self.never.wait()
        return "instance"


def values(metrics: Any) -> dict[str, float]:
    found: list[Metric] = list(metrics)
    return {one.name: one.samples[0].value for one in found}


async def test_an_unreachable_store_is_reported_with_its_time() -> None:
    store = Store()
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    await reach.look()
    reach.check()
    assert values(reach.metrics())["quire_metadata_reachable"] == 1
    store.error = MetadataUnavailableError("no", causes={"here:2181": "Connection refused"})
    store.now_ms_value += 7_000
    await reach.look()
    with pytest.raises(MetadataUnavailableError) as caught:
        reach.check()
    assert "zk://here/ledgers has not answered for 7 s" in str(caught.value)
    assert "here:2181: Connection refused" in str(caught.value)
    assert caught.value.remedy.startswith(START_STORE)
    assert "echo srvr | curl -sm 3 telnet://here:2181. In the log" in caught.value.remedy
    assert caught.value.remedy.endswith(module.OPEN_LEDGERS)
    shown = values(reach.metrics())
    assert shown["quire_metadata_reachable"] == 0
    assert shown["quire_metadata_unreachable_since_seconds"] == 1_000
    assert shown["quire_metadata_unanswered_total"] == 1
    store.error = None
    await reach.look()
    reach.check()
    assert values(reach.metrics())["quire_metadata_unreachable_since_seconds"] == 0


async def test_a_silent_store_counts_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 0.01)
    store = Store()
    store.silent = True
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    await reach.look()
    assert reach.since_ms == 1_000_000


async def test_an_unexpected_error_does_not_end_the_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store once seemed reachable forever afterwards."""
    monkeypatch.setattr(module, "PROBE_INTERVAL_S", 0.001)
    store = Store()
    store.error = OSError("disk I/O error")
    reach = MetadataReachability("sqlite:///m.db", store.ask, store)
    reach.start()
    async with asyncio.timeout(10):
        while reach.failures < 2:
            await asyncio.sleep(0)
        assert values(reach.metrics())["quire_metadata_reachable"] == 0
        with pytest.raises(MetadataUnavailableError, match="OSError: disk I/O error"):
            reach.check()
        store.error = None
        while reach.since_ms is not None:
            await asyncio.sleep(0)
    await reach.stop()


async def test_a_failing_port_probe_does_not_end_the_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store seemed to be away forever, although it answered again."""
    monkeypatch.setattr(module, "PROBE_INTERVAL_S", 0.001)
    store = Store()
    store.error = TimeoutError()

    async def why() -> dict[str, str]:
        raise RuntimeError("nobody expected this")

    reach = MetadataReachability("zk://here/ledgers", store.ask, store, why)
    reach.start()
    async with asyncio.timeout(10):
        while reach.failures < 2:
            await asyncio.sleep(0)
        with pytest.raises(MetadataUnavailableError, match="nobody expected this"):
            reach.check()
        store.error = None
        while reach.since_ms is not None:
            await asyncio.sleep(0)
    await reach.stop()


@pytest.mark.parametrize("error", [MetadataUnavailableError("no"), TimeoutError()])
async def test_a_metric_shows_that_the_cluster_metrics_are_missing(error: Exception) -> None:
    """No alert fires for a metric that is missing."""

    class Unread(ClusterView):
        async def look(self, client: Client) -> ClusterState:
            raise error

    async def connect() -> Client:
        return cast(Client, None)

    async def nothing(url: str) -> str:
        return ""

    found = await run._cluster_metrics(connect, Unread(lambda: 0.0, nothing))
    assert values(found) == {"quire_cluster_readable": 0}


async def test_a_host_name_that_is_not_valid_is_named() -> None:
    told = await server_causes(f"zk://{'a' * 64}.example:2181/ledgers")
    [why] = told.values()
    assert why.startswith("its host name is not valid")


async def test_pending_reads_are_cancelled_when_the_store_becomes_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests that change something are not cancelled, because their outcome would be unknown."""
    monkeypatch.setattr(module, "PROBE_INTERVAL_S", 0.001)
    store, ended = Store(), []
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)

    async def wait(call: Call) -> None:
        try:
            await store.never.wait()
        finally:
            ended.append(True)

    async def at_once(call: Call) -> str:
        return "done"

    look, change, quick = reach.guarded(
        [
            Route("GET", "/look", "Look", wait),
            Route("PUT", "/change", "Change", wait),
            Route("GET", "/quick", "Quick", at_once),
        ]
    )
    assert change.handler is wait
    reach.start()
    asked = asyncio.ensure_future(look.handler(CALL))
    await asyncio.sleep(0)
    store.error = MetadataUnavailableError("no")
    with pytest.raises(MetadataUnavailableError):
        await asked
    assert ended == [True]
    assert await quick.handler(CALL) == "done", "calls that need no store continue"
    await reach.stop()


async def test_no_client_connects_while_the_store_is_unreachable() -> None:
    store, asked = Store(), []
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)

    async def connect() -> Client:
        asked.append(True)
        return None  # type: ignore[return-value]

    connected = reach.connecting(connect)
    await connected()
    store.error = MetadataUnavailableError("no")
    await reach.look()
    with pytest.raises(MetadataUnavailableError):
        await connected()
    assert asked == [True]


async def test_the_last_known_state_is_marked_with_its_age_and_a_problem() -> None:
    store = Store()
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    known = {"severity": "note", "what": "known", "next": "", "risk": "", "doing": ""}

    async def answer(call: Call) -> dict[str, Any]:
        reach.check()
        return {"bookies": store.now_ms(), "problems": [known]}

    route = LastKnown(reach, store.now_ms).of(Route("GET", "/overview", "", answer))
    await reach.look()
    first = await route.handler(CALL)
    assert first == {
        "bookies": 1_000_000,
        "problems": [known],
        "old_since_ms": None,
        "metadata_away_since_ms": None,
        "metadata_outages": [],
    }
    store.error = MetadataUnavailableError("no", causes={"here:2181": "Connection refused"})
    store.now_ms_value += 300_000
    await reach.look()
    second = await route.handler(CALL)
    assert (second["bookies"], second["old_since_ms"]) == (1_000_000, 1_000_000)
    assert second["metadata_away_since_ms"] == 1_000_000
    lost, *rest = second["problems"]
    assert lost["severity"] == "bad"
    assert lost["what"] == (
        "The metadata store zk://here/ledgers has not answered since "
        "1970-01-01T00:16:40Z (here:2181: Connection refused)"
    )
    assert rest == [known]
    store.error = None
    await reach.look()
    assert (await route.handler(CALL))["old_since_ms"] is None


async def test_the_problem_count_comes_from_the_last_overview() -> None:
    """It costs no overview while there is a recent one, and counts a store that is away."""
    store, looks = Store(), 0
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    severities = ["warn", "note", "warn"]

    async def answer(call: Call) -> dict[str, Any]:
        nonlocal looks
        reach.check()
        looks += 1
        return {"problems": [{"severity": one} for one in severities]}

    known = LastKnown(reach, store.now_ms)
    overview = known.of(Route("GET", OVERVIEW, "", answer))
    counting = ProblemCountRoutes(known, overview.handler, store.monotonic, wait_s=5)
    (route,) = counting.routes()
    await reach.look()
    nothing = {"bad": None, "warn": None, "note": None, "age_s": None, "old_since_ms": None}
    assert known.problem_counts(OVERVIEW) == nothing
    first = {"bad": 0, "warn": 2, "note": 1, "age_s": 0.0, "old_since_ms": None}
    assert await route.handler(CALL) == first
    severities.append("bad")
    store.now_ms_value += 30_000
    assert await route.handler(CALL) == {**first, "age_s": 30.0}
    assert looks == 1
    await overview.handler(CALL)  # somebody has the overview open
    assert await route.handler(CALL) == {**first, "bad": 1}
    store.now_ms_value += int(COUNTS_AGE_MAX_S * 1000)
    assert await route.handler(CALL) == {**first, "bad": 1}
    assert looks == 3
    store.error = MetadataUnavailableError("no")
    store.now_ms_value += 100_000
    await reach.look()
    away = {"bad": 2, "warn": 2, "note": 1, "age_s": 100.0,
            "old_since_ms": store.now_ms() - 100_000}  # fmt: skip
    assert await route.handler(CALL) == away
    assert LastKnown(reach, store.now_ms).problem_counts(OVERVIEW) == {
        "bad": 1, "warn": 0, "note": 0, "age_s": None, "old_since_ms": None,
    }  # fmt: skip
    await counting.close()


async def test_an_unsteady_store_is_one_problem() -> None:
    """The bookies noticed the outages as well, and their problem names more servers."""
    store = Store()
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    reach.outages.extend([Outage(999_000, 999_500)] * 2)
    noticed: list[dict[str, Any]] = []
    slow: list[dict[str, Any]] = []

    async def answer(call: Call) -> dict[str, Any]:
        return {"problems": slow, "metadata_outages_noticed": noticed}

    route = LastKnown(reach, store.now_ms).of(Route("GET", "/overview", "", answer))
    (one,) = (await route.handler(CALL))["problems"]
    assert one["what"].startswith("The metadata store did not answer 2 times")
    slow.extend(asdict(one) for one in metadata_slow("zk://here/ledgers", 6.0))
    assert (await route.handler(CALL))["problems"] == [one], "it says more than one slow answer"
    slow.clear()
    noticed.append({"server": "b1", "outages": [{"since_ms": 1, "until_ms": 2}]})
    assert len((await route.handler(CALL))["problems"]) == 1, "one outage is no problem"
    noticed.append({"server": "b2", "outages": [{"since_ms": 1, "until_ms": 2}] * 2})
    assert (await route.handler(CALL))["problems"] == []


async def test_the_state_is_known_without_an_earlier_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(last_known, "KEEP_INTERVAL_S", 0)
    store = Store()
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    answered, events = 0, []

    async def answer(call: Call) -> dict[str, Any]:
        nonlocal answered
        reach.check()
        answered += 1
        if answered == 2:
            raise ZeroDivisionError
        return {"answered": answered}

    known = LastKnown(reach, store.now_ms)
    route = known.of(Route("GET", "/overview", "", answer))
    keeping = asyncio.get_running_loop().create_task(
        known.keep([(route, {})], lambda event, **fields: events.append(event))
    )
    async with asyncio.timeout(5):
        while answered < 3:
            await asyncio.sleep(0)
    assert events == ["last_known_failed"]
    store.error = MetadataUnavailableError("no")
    await reach.look()
    before = answered
    found = await route.handler(CALL)
    assert (found["answered"], found["old_since_ms"]) == (before, 1_000_000)
    assert not keeping.done(), "an unreachable store ends no request"
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_no_last_state_is_returned_before_the_first_answer() -> None:
    store = Store()
    store.error = MetadataUnavailableError("no")
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    await reach.look()

    async def answer(call: Call) -> dict[str, Any]:
        reach.check()
        return {}

    route = LastKnown(reach, store.now_ms).of(Route("GET", "/overview", "", answer))
    with pytest.raises(MetadataUnavailableError):
        await route.handler(CALL)


async def test_each_request_has_its_own_last_known_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_known, "KEPT_MAX", 2)
    store = Store()
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)

    async def answer(call: Call) -> dict[str, Any]:
        reach.check()
        return {"of": call.path["bookie_id"]}

    route = LastKnown(reach, store.now_ms).of(Route("GET", "/bookies", "", answer))
    calls = {name: Call({"bookie_id": name}, {}, {}) for name in "abcd"}
    await reach.look()
    for name in "abc":
        await route.handler(calls[name])
    store.error = MetadataUnavailableError("no")
    await reach.look()
    assert (await route.handler(calls["b"]))["of"] == "b"
    assert (await route.handler(calls["c"]))["of"] == "c"
    for name in "ad":  # the oldest is forgotten, and nobody asked for the other one
        with pytest.raises(MetadataUnavailableError):
            await route.handler(calls[name])


async def test_other_errors_are_not_hidden_by_the_last_known_state() -> None:
    store = Store()
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    errors: list[Exception] = []

    async def answer(call: Call) -> dict[str, Any]:
        if errors:
            raise errors[0]
        return {}

    route = LastKnown(reach, store.now_ms).of(Route("GET", "/work", "", answer))
    assert await route.handler(CALL) == {
        "old_since_ms": None,
        "metadata_away_since_ms": None,
    }, "a route without problems"
    errors.append(UsageError("wrong"))
    with pytest.raises(UsageError):
        await route.handler(CALL)


async def test_repeated_outages_of_the_store_are_one_problem() -> None:
    store = Store()
    reach = MetadataReachability("zk://here/ledgers", store.ask, store)
    for _ in range(3):
        for error in (MetadataUnavailableError("no"), None):
            store.error = error
            store.now_ms_value += 10_000
            await reach.look()
            await reach.look()
    assert [one.until_ms - one.since_ms for one in reach.outages] == [20_000] * 3
    uri = "zk://zk-1:2181;[::1]:2182/ledgers"
    (found,) = metadata_unsteady(uri, reach.outages, store.now_ms() + 180_000)
    assert found.severity == "warn"
    assert found.what == (
        "The metadata store did not answer 3 times in the last hour, the last time 3 min ago for "
        "20 s"
    )
    assert (
        "echo srvr | curl -sm 3 telnet://zk-1:2181; echo srvr | curl -sm 3 'telnet://[::1]:2182'."
    ) in found.next
    (local,) = metadata_unsteady("sqlite:////q.db", reach.outages, store.now_ms() + 180_000)
    assert local.next.startswith("Look at the load and the disk of the store, whether its process")
    assert metadata_unsteady(uri, reach.outages, store.now_ms() + 3_700_000) == []
    assert metadata_unsteady(uri, [Outage(1, 2)], 3) == [], "a restart"


async def test_a_port_probe_tells_whether_a_store_hangs_or_is_stopped() -> None:
    """A ZooKeeper that hangs accepts connections, and one that was killed does not."""
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    uri = f"zk://127.0.0.1:{port}/ledgers"
    store = Store()
    reach = MetadataReachability(uri, store.ask, store, lambda: server_causes(uri))
    store.error = TimeoutError()
    await reach.look()
    assert reach.error().causes == {
        f"127.0.0.1:{port}": "it accepts connections, but does not answer"
    }
    listening.close()
    await listening.wait_closed()
    await reach.look()
    (why,) = reach.error().causes.values()
    assert str(why).startswith("it accepts no connections: ")
    assert await server_causes("sqlite:////q.db") == {}
