"""The routes of streams and topics."""

from __future__ import annotations

from typing import Any

import pytest

from quire.client import Client
from quire.errors import NoSuchStreamError
from quire.http.routes.jobs import Jobs
from quire.http.routes.quire_api import QuireRoutes
from quire.http.server.error_responses import status_of
from quire.http.views.cluster_view import ClusterView
from quire.streams.namespace.removal import delete_stream
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.topics.topic_metadata import TopicMetadata
from tests.support.streams import Bench, run

NAMESPACE = "/acme/test"


class Asked:
    """The routes of one client, called as the server calls them."""

    def __init__(self, client: Client) -> None:
        async def connect() -> Client:
            return client

        self.view = ClusterView(client.clock.monotonic, no_metrics)
        routes = QuireRoutes(connect, Jobs(client.clock), self.view, "x").routes()
        self._routes = {route.path.rpartition("/")[2]: route for route in routes}

    async def __call__(self, route_name: str, /, **query: Any) -> dict[str, Any]:
        route = self._routes[route_name]
        query = {"namespace": NAMESPACE, **query}
        given = [(key, "true" if value is True else str(value)) for key, value in query.items()]
        found: dict[str, Any] = await route.handler(route.check({}, given, {}))
        return found


async def no_metrics(*_: object) -> str:
    raise ConnectionError


VISITS = {"name": "visits", "partitions": 2, "deleting": False}


def test_the_list_has_topics_and_their_streams() -> None:
    async def scene(b: Bench) -> None:
        ask = Asked(b.client)
        await b.streams.create_topic("visits", 2)
        for name in ("orders", "zoo"):
            await b.streams.create_stream(name)
        assert await ask("streams") == {
            "streams": ["orders", "visits/0", "visits/1", "zoo"],
            "topics": [VISITS],
            "unreadable": "",
            "next": None,
        }
        page = await ask("streams", limit=2)
        assert (page["streams"], page["next"]) == (["orders", "visits/0", "visits/1"], "visits")
        rest = await ask("streams", after="visits")
        assert (rest["streams"], rest["topics"]) == (["zoo"], [])
        async with await b.streams.open_writer("visits/1") as writer:
            await writer.append_many([b"1"] * 5)
        try:
            while (page := await ask("streams", statistics=True))["statistics"]["visits"] is None:
                pass
            assert set(page["statistics"]) == {"orders", "visits/0", "visits/1", "zoo", "visits"}
            assert page["statistics"]["visits"]["records"] == 5
        finally:
            await ask.view.close()

    run(scene)


def test_a_topic_is_shown_with_its_partitions() -> None:
    async def scene(b: Bench) -> None:
        ask = Asked(b.client)
        await b.streams.create_stream("visits/2")  # refused once there is a topic of 2 partitions
        await b.streams.create_topic("visits", 2)
        try:
            found = await ask("topic", name="visits")
            while found["statistics"]["visits"] is None or found["replicas"]["visits"] is None:
                found = await ask("topic", name="visits")
            streams = ["visits/0", "visits/1"]
            assert {key: found[key] for key in VISITS} == VISITS
            assert found["streams"] == streams
            assert set(found["statistics"]) == {*streams, "visits"}
            assert set(found["replicas"]) == {*streams, "visits"}
            assert (found["subscriptions"], found["copies"]) == ([], [])
            assert (await ask("stream", name="visits/1"))["topic"] == VISITS
            assert (await ask("stream", name="visits/2"))["topic"] is None
            for name in ("nothing", "visits/1"):
                with pytest.raises(NoSuchStreamError) as missing:
                    await ask("topic", name=name)
                assert status_of(missing.value) == 404
        finally:
            await ask.view.close()

    run(scene)


def test_a_partly_deleted_topic_is_shown_with_its_remaining_partitions() -> None:
    """It is shown with the partitions that are left, so that somebody can complete the deletion."""

    async def scene(b: Bench) -> None:
        ask = Asked(b.client)
        await b.streams.create_topic("visits", 2)

        async def delete(stream: StreamMetadata, _: object) -> None:
            if stream.paths.name == "visits/1":
                raise ConnectionError
            await delete_stream(b.client, stream, b"")

        with pytest.raises(ConnectionError):
            await TopicMetadata(b.client, NAMESPACE).delete("visits", delete)
        try:
            page = await ask("streams", statistics=True)
            assert (page["topics"], page["streams"]) == (
                [{**VISITS, "deleting": True}],
                ["visits/1"],
            )
            assert set(page["statistics"]) == {"visits/1"}
            found = await ask("topic", name="visits")
            assert (found["deleting"], found["streams"]) == (True, ["visits/1"])
        finally:
            await ask.view.close()

    run(scene)
