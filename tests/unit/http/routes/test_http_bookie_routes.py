"""The routes about single bookies, their ledgers, the topology and configuration, over sockets.

Two servers: one of the cluster, and one in the process of a bookie.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire._runtime.metrics import gauge
from quire._runtime.tasks import TaskSet
from quire.bookie.server import Bookie
from quire.client import Client, connect
from quire.codec.metadata.registration import Endpoint
from quire.config import ClientConfig
from quire.core.placement.tables import with_location
from quire.http.routes import bookie_pages
from quire.http.routes.bookie import BookieRoutes
from quire.http.routes.configuration import ConfigurationRoutes
from quire.http.server import run
from quire.http.server.api import Api
from quire.http.server.run import serve_cluster
from quire.http.server.security import HttpOptions
from quire.http.server.server import HttpServer
from quire.http.views.bookie_list import LOCATIONS_NODE
from quire.http.watch.rates import ENDPOINT
from quire.metadata import open_metadata
from quire.metadata.bookies.orders import Order, What, give_order, stored_order
from quire.metadata.interface import BookieAddress
from quire.metadata.tree import Create
from quire.replication.autorecovery.settings import AutorecoveryStats
from quire_simulator.metadata.store import forget_memory
from tests.support.bookies.bookie import running_bookie
from tests.support.processes.http import TOKEN, Http
from tests.support.waiting import until

URI = "memory://bookie-routes"
OTHER_TOKEN = "a-token-that-nobody-guesses"
SETTINGS: dict[str, Any] = {
    "file": "/etc/quire/quire.toml",
    "keys": [{
        "key": "bookie.port", "value": "7", "default": "3181", "changed": True, "origin": "--port",
        "unit": "", "environment": "QUIRE_BOOKIE_PORT", "meaning": "The port.", "applies": True,
    }],
}  # fmt: skip


def quiet(event: str, **fields: object) -> None:
    pass


@dataclass
class World:
    http: Http
    bookie: Bookie
    client: Client
    own: HttpServer
    """The HTTP server of the bookie."""

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return await asyncio.to_thread(self.http, method, path, body)

    async def get(self, path: str) -> Any:
        status, value = await self.ask("GET", path)
        assert status == 200, value
        return value

    @property
    def page(self) -> str:
        return f"/api/v1/quire/bookies/{self.bookie.bookie_id}"


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Yield a cluster of one bookie. The parameter has the options of the bookie's HTTP server."""
    store = await open_metadata(URI, create=True)
    await store.initialise()
    async with running_bookie(tmp_path, metadata=store) as bookie, connect(URI) as client:

        async def connected() -> Client:
            return client

        async def fetch(url: str) -> str:
            raise AssertionError(url)

        tasks, api = TaskSet(), Api("bookie")
        api.add(BookieRoutes(bookie, connected, tasks, version="9.9").routes())
        api.add(ConfigurationRoutes(connected, fetch, SETTINGS, "x", "9.9", bookie).routes())
        options = getattr(request, "param", HttpOptions(token=TOKEN, reads_open=True))
        clock = SystemClock()
        own = HttpServer(api, options, version="1", monotonic=clock.monotonic, log=quiet)
        await own.start()
        # As if the bookie had started together with its HTTP server.
        await bookie._announcement.withdraw()
        http = Endpoint(ENDPOINT, "127.0.0.1", own.port, "http")
        assert bookie._port is not None
        here = BookieAddress(bookie.bookie_id, "127.0.0.1", bookie._port.number, others=(http,))
        registered = await store.register_bookie(here)
        ours = HttpOptions(token=TOKEN, bookies_token=TOKEN)
        served = serve_cluster(ours, URI, ClientConfig(), "1", quiet, owner="test")
        async with served as server:
            yield World(Http(server.url, TOKEN), bookie, client, own)
        await registered.close()
        await own.stop()
        await tasks.close()
    await store.close()
    forget_memory("bookie-routes")


async def test_a_server_beside_autorecovery_opens_no_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client would read the addresses of all bookies, and there is one beside every bookie."""
    connected = False

    def refused(uri: str, **config: object) -> object:
        nonlocal connected
        connected = True
        raise AssertionError(uri)

    probes = 0

    async def instance_id() -> str:
        nonlocal probes
        probes += 1
        return "cluster"

    monkeypatch.setattr(run, "connect", refused)
    served = serve_cluster(
        HttpOptions(token=TOKEN), URI, ClientConfig(), "1", quiet, owner="test",
        autorecovery=AutorecoveryStats(), instance_id=instance_id,
        of_client=lambda: [gauge("quire_client_of_repairs", "x", 7)],
    )  # fmt: skip
    async with served as server:
        await until(lambda: probes > 0)
        metrics = await asyncio.to_thread(Http(server.url, TOKEN).metrics)
        assert any(name.startswith("quire_autorecovery") for name in metrics)
        assert metrics["quire_client_of_repairs"] == 7, "what its own client knows of bookies"
    assert not connected


async def test_the_programs_that_suspect_a_bookie_are_this_server_without_prometheus(
    world: World,
) -> None:
    nothing = {"reasons": [], "wrong_answers": {}}
    expected = {"own": nothing, "prometheus": False, "clients": [], "missing": None}
    assert await world.get(f"{world.page}/clients") == expected


async def test_the_route_of_a_bookie_returns_its_page(world: World) -> None:
    found = await until(
        lambda: world.get(world.page), "its report", right=lambda one: one["report"] is not None
    )
    assert found["bookie"]["state"] == "writable"
    assert found["report"]["version"] == "9.9"
    assert found["report_missing"] is None
    assert (found["order"], found["jobs"], found["elsewhere"]) == (None, [], [])
    # A cluster of one bookie cannot create ledgers of the default shape. That is a problem of the
    # cluster, and not of this bookie.
    overview = await world.get("/api/v1/quire/overview")
    assert any("No ledger with the default" in one["what"] for one in overview["problems"])
    assert all(one["bookies"] == [world.bookie.bookie_id] for one in found["problems"])
    assert found["actions"]["decommission"]["possible"]


async def test_an_unknown_bookie_is_not_found(world: World) -> None:
    near = world.bookie.bookie_id[:-1]
    status, answer = await world.ask("GET", f"/api/v1/quire/bookies/{near}")
    assert status == 404
    assert answer["error"]["remedy"] == f"Did you mean {world.bookie.bookie_id}?"
    for method, path in (("PUT", "readonly"), ("DELETE", "decommission")):
        body = {"readOnly": True} if method == "PUT" else None
        status, _ = await world.ask(method, f"/api/v1/quire/bookies/{near}/{path}", body)
        assert status == 404, path


@pytest.mark.parametrize("name", ["readonly", "a%20b", "a%2Fb", "x" * 2000])
async def test_an_impossible_bookie_id_is_refused(world: World, name: str) -> None:
    status, _ = await world.ask("GET", f"/api/v1/quire/bookies/{name}")
    assert status in (400, 404)


async def test_the_ledgers_of_a_bookie_are_paged(world: World) -> None:
    for _ in range(5):
        await (await world.client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1
        )).close()  # fmt: skip
    path = f"{world.page}/ledgers?limit=2"
    first = await until(lambda: world.get(path), "all", right=lambda one: one["whole"])
    assert ([one["ledger_id"] for one in first["ledgers"]], first["next"]) == ([4, 3], 3)
    assert first["count"] == 5
    second = await world.get(f"{path}&after=3")
    assert ([one["ledger_id"] for one in second["ledgers"]], second["next"]) == ([2, 1], 1)
    third = await world.get(f"{path}&after=1")
    assert ([one["ledger_id"] for one in third["ledgers"]], third["next"]) == ([0], None)
    assert (await world.ask("GET", f"{world.page}/ledgers?limit=1001"))[0] == 400


async def test_a_bookie_is_made_read_only_and_writable(world: World) -> None:
    path = f"{world.page}/readonly"
    assert await world.ask("PUT", path, {"readOnly": True}) == (200, {"readOnly": True})
    assert not world.bookie.writable
    assert await world.ask("PUT", path, {"readOnly": False}) == (200, {"readOnly": False})
    assert world.bookie.writable
    status, _ = await world.ask("PUT", path, {})
    assert status == 400


@pytest.mark.parametrize("world", [HttpOptions(token=OTHER_TOKEN)], indirect=True, ids=["other"])
async def test_a_bookie_whose_token_this_server_lacks_is_reported(world: World) -> None:
    status, answer = await world.ask("PUT", f"{world.page}/readonly", {"readOnly": True})
    assert status == 400
    assert "needs a token" in answer["error"]["what"]
    assert "--http-bookies-token-file" in answer["error"]["remedy"]
    assert world.bookie.writable
    found = await until(
        lambda: world.get(world.page), "it was asked",
        right=lambda one: "not asked yet" not in one["report_missing"]["what"],
    )  # fmt: skip
    assert "status 401" in found["report_missing"]["what"]
    assert not found["actions"]["read_only"]["possible"]
    status, answer = await world.ask(
        "GET", f"/api/v1/quire/configuration?bookie={world.bookie.bookie_id}"
    )
    assert status == 503
    assert "status 401" in answer["error"]["what"]


@pytest.mark.parametrize("world", [HttpOptions()], indirect=True, ids=["none"])
async def test_a_bookie_without_a_token_refuses_changes(world: World) -> None:
    status, answer = await world.ask("PUT", f"{world.page}/readonly", {"readOnly": True})
    assert status == 400
    assert "says: this server has no token, so it changes nothing" in answer["error"]["what"]
    assert "--http-token-file" in answer["error"]["remedy"]
    assert world.bookie.writable


async def test_the_route_does_not_wait_for_a_hanging_bookie(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_pages, "FORWARD_TIMEOUT_S", 0.01)
    await world.own.stop()
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", world.own.port):
        status, answer = await world.ask("PUT", f"{world.page}/readonly", {"readOnly": True})
        ended.set()
    assert status == 504
    assert answer["error"]["outcome_known"] is False


async def test_a_decommissioning_can_be_taken_back(world: World) -> None:
    store, name = world.client.metadata, world.bookie.bookie_id
    await give_order(store, name, Order(What.DRAIN, 0, "ops-1"), None)
    found = await world.get(world.page)
    assert found["order"]["by"] == "ops-1"
    assert found["actions"]["take_back"]["possible"]
    path = f"{world.page}/decommission"
    assert await world.ask("DELETE", path) == (200, {"changed": True})
    assert await stored_order(store, name) is None
    assert await world.ask("DELETE", path) == (200, {"changed": False})
    await give_order(store, name, Order(What.RETIRED, 0, "ops-1"), None)
    status, answer = await world.ask("DELETE", path)
    assert (status, "cannot be cancelled" in answer["error"]["what"]) == (400, True)


async def test_the_topology_route_shows_regions_and_racks(world: World) -> None:
    name = world.bookie.bookie_id
    table = with_location(b"", name, "/eu/r1")
    await world.client.metadata.tree.commit(Create(LOCATIONS_NODE, table))
    (region,) = (await world.get("/api/v1/quire/topology"))["regions"]
    (rack,) = region["racks"]
    assert (region["name"], rack["name"], rack["bookies"][0]["id"]) == ("eu", "r1", name)


async def test_the_configuration_of_a_bookie_is_shown(world: World) -> None:
    found = await world.get(f"/api/v1/quire/configuration?bookie={world.bookie.bookie_id}")
    assert found == {"process": world.bookie.bookie_id, "version": "9.9", **SETTINGS}
    status, answer = await world.ask("GET", "/api/v1/quire/configuration")
    assert (status, "not known" in answer["error"]["what"]) == (404, True)
    status, _ = await world.ask("GET", "/api/v1/quire/configuration?bookie=10.0.0.9:1")
    assert status == 404


async def test_the_settings_of_the_cluster_are_shown(world: World) -> None:
    async def settings() -> dict[str, Any]:
        found = await world.get("/api/v1/quire/settings")
        return {one["name"]: one for one in found["settings"]}

    found = await settings()
    assert not any(one["changed"] for one in found.values())
    assert found["autorecovery"]["value"] == "on"
    assert found["metadata"]["value"] == URI
    status, _ = await world.ask("PUT", "/api/v1/autorecovery/status?enabled=false")
    assert status == 200
    body = {"delay_seconds": "15m"}
    await world.ask("PUT", "/api/v1/autorecovery/lost_bookie_recovery_delay", body)
    await give_order(
        world.client.metadata, world.bookie.bookie_id, Order(What.DRAIN, 0, "ops-1"), None
    )
    found = await settings()
    assert {name for name, one in found.items() if one["changed"]} == {
        "autorecovery", "lost bookie delay", "bookies being decommissioned",
    }  # fmt: skip
    assert found["autorecovery"]["command"] == "quire autorecovery enable"
    assert found["lost bookie delay"]["value"] == "900 seconds"
    assert found["bookies being decommissioned"]["value"] == world.bookie.bookie_id


async def test_a_starting_bookie_is_not_shutting_down_and_refuses_collection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is loaded, but it waits for its registration, and its store may not have started."""
    http = Http(world.own.url, TOKEN)
    monkeypatch.setattr(world.bookie, "_serving", False)
    _, state = await asyncio.to_thread(http, "GET", "/api/v1/bookie/state", None)
    assert (state["running"], state["shuttingDown"]) == (False, False)
    status, answer = await asyncio.to_thread(http, "PUT", "/api/v1/bookie/gc", {})
    assert (status, "no garbage collection" in answer["error"]["what"]) == (503, True)
    monkeypatch.setattr(world.bookie, "_serving", True)
    assert (await asyncio.to_thread(http, "PUT", "/api/v1/bookie/gc", {}))[0] == 200
    monkeypatch.setattr(world.bookie, "stopping", True)
    _, state = await asyncio.to_thread(http, "GET", "/api/v1/bookie/state", None)
    assert state["shuttingDown"]
