"""The lists of objects, datasets and state machines, and the page of each."""

from __future__ import annotations

from typing import Any

import pytest

from quire.client import Client
from quire.client.datasets.format import DatasetLedger
from quire.client.datasets.schema import make_schema
from quire.errors import NoSuchObjectError, UsageError
from quire.http.routes.contents import ContentRoutes
from quire.http.server.error_responses import NotFoundError, status_of
from quire.streams.objects.format import head_key
from quire.streams.objects.objects import Objects
from quire.streams.statemachine.state_machine import BUCKET, lead
from tests.support.state_machines import Counter
from tests.support.streams import Bench, run

HOSTILE = "<img src=x>/\u202ename"


class Routes:
    """The routes of one client, called as the server calls them."""

    def __init__(self, client: Client) -> None:
        async def connect() -> Client:
            return client

        self._routes = {
            route.path.rpartition("/")[2]: route for route in ContentRoutes(connect).routes()
        }

    async def __call__(self, route_name: str, /, **query: Any) -> dict[str, Any]:
        route = self._routes[route_name]
        given = [(key, str(value)) for key, value in query.items()]
        found: dict[str, Any] = await route.handler(route.check({}, given, {}))
        return found


def test_objects_are_listed_by_bucket_prefix_and_page() -> None:
    async def scene(b: Bench) -> None:
        ask = Routes(b.client)
        assert (await ask("buckets"))["buckets"] == []
        objects = Objects(b.client)
        names = sorted([f"jobs/{number:02}" for number in range(7)] + ["other"])
        for name in names:
            await objects.put(name, b"12345", metadata={"by": HOSTILE})
        await Objects(b.client, "second").put("one", b"")
        assert await ask("buckets") == {"buckets": ["default", "second"], "more": False}
        found: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = await ask("objects", limit=3, **after)
            found += [one["name"] for one in page["objects"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert found == names
        some = await ask("objects", prefix="jobs/")
        assert [one["name"] for one in some["objects"]] == names[:-1]
        one = await ask("object", name="jobs/03")
        assert (one["bytes"], one["ledger"], one["metadata"]) == (5, "CLOSED", {"by": HOSTILE})
        await b.client.delete_ledger(one["ledger_id"])
        assert (await ask("object", name="jobs/03"))["ledger"] == "lost"
        with pytest.raises(NoSuchObjectError) as missing:
            await ask("object", name="nothing")
        assert status_of(missing.value) == 404
        with pytest.raises(UsageError):
            await ask("objects", bucket="a/b")

    run(scene)


def test_an_unreadable_object_is_reported() -> None:
    async def scene(b: Bench) -> None:
        objects = Objects(b.client)
        await objects.put("good", b"1")
        await b.client.metadata.write_value(head_key("default", "bad"), b"garbage", None)
        page = await Routes(b.client)("objects")
        assert [one["name"] for one in page["objects"]] == ["good"]
        assert "bad" in page["unreadable"]

    run(scene)


def test_every_page_names_the_unreadable_objects_in_its_range() -> None:
    """Only the last page named them, and only those after the page before it."""

    async def scene(b: Bench) -> None:
        objects = Objects(b.client)
        for name in ("a", "c", "e", "g"):
            await objects.put(name, b"1")
        for name in ("b", "d", "f"):
            await b.client.metadata.write_value(head_key("default", name), b"garbage", None)
        pages: list[tuple[list[str], list[str]]] = []
        after: dict[str, str] = {}
        while True:
            page = await Routes(b.client)("objects", limit=2, **after)
            named = [one for one in "bdf" if f"object '{one}'" in page["unreadable"]]
            pages.append(([one["name"] for one in page["objects"]], named))
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert pages == [(["a", "c"], ["b"]), (["e", "g"], ["d", "f"])]

    run(scene)


def test_datasets_are_shown_with_their_ledgers() -> None:
    async def scene(b: Bench) -> None:
        ask = Routes(b.client)
        assert (await ask("datasets"))["datasets"] == []
        ids = []
        for _ in range(5):
            async with await b.client.create_ledger() as writer:
                await writer.append_many([b"x"] * 10)
                ids.append(writer.ledger_id)
        datasets = b.client.datasets
        for name in ("a", "dropped", "flights", "z"):
            parts = [DatasetLedger(one, 0, 9, 10, 10) for one in ids]
            await datasets.publish(name, parts, txn=f"first {name}")
        await datasets.publish("flights", [DatasetLedger(ids[0], 0, 4, 5, 5)], txn="second")
        await datasets.drop("dropped")
        pages = await ask("datasets", limit=2)
        assert [one["name"] for one in pages["datasets"]] == ["a", "flights"]
        rest = await ask("datasets", limit=2, after=pages["next"])
        assert ([one["name"] for one in rest["datasets"]], rest["next"]) == (["z"], None)
        assert [one["name"] for one in (await ask("datasets", search="igh"))["datasets"]] == [
            "flights"
        ]
        flights = await ask("dataset", name="flights", limit=4)
        assert (flights["ledgers"], flights["rows"], flights["sequence"]) == (5, 55, 2)
        assert [one["ledger_id"] for one in flights["parts"]] == ids[:4]
        assert [one["key"] for one in flights["transactions"]] == ["second", "first flights"]
        rest = await ask("dataset", name="flights", limit=4, after=flights["next"])
        assert [one["ledger_id"] for one in rest["parts"]] == [ids[4], ids[0]]
        assert rest["next"] is None
        assert (rest["part_count"], rest["columns"], rest["partition_by"]) == (6, None, [])
        schema = make_schema([{"name": "day", "type": "date", "nullable": True}], ("day",))
        divided = [DatasetLedger(ids[0], 0, 4, 5, 5, (("day", None),))]
        await datasets.publish("typed", divided, schema=schema)
        typed = await ask("dataset", name="typed")
        assert (typed["columns"], typed["partition_by"]) == ({"day": "date"}, ["day"])
        assert typed["parts"][0]["partition"] == {"day": None}
        await datasets.drop("typed")
        for gone in ("dropped", "never"):
            with pytest.raises(NotFoundError):
                await ask("dataset", name=gone)
        await b.client.metadata.write_value(("datasets", "broken"), b"garbage", None)
        items = {one["name"]: one for one in (await ask("datasets"))["datasets"]}
        assert "error" in items["broken"]
        assert items["a"]["rows"] == 50

    run(scene)


def test_state_machines_are_shown_with_the_commands_after_their_snapshot() -> None:
    async def scene(b: Bench) -> None:
        ask = Routes(b.client)
        assert (await ask("state_machines"))["state_machines"] == []
        leader = await lead(b.streams, "accounts", Counter())
        for _ in range(5):
            await leader.execute(b"deposit")
        await leader.snapshot()
        for _ in range(3):
            await leader.execute(b"deposit")
        await leader.close()
        (item,) = (await ask("state_machines"))["state_machines"]
        assert (item["namespace"], item["stream"], item["applied"]) == (
            "/acme/test",
            "accounts",
            5,
        )
        assert (await ask("buckets"))["buckets"] == []
        machine = await ask("state_machine", name=item["name"])
        assert (machine["commands_since"], machine["problem"], machine["ledger"]) == (
            3,
            "",
            "CLOSED",
        )
        await b.streams.delete_stream("accounts")
        machine = await ask("state_machine", name=item["name"])
        assert machine["commands_since"] is None
        assert "does not exist" in machine["problem"]
        await b.streams.create_stream("accounts")
        machine = await ask("state_machine", name=item["name"])
        assert "deleted or renamed" in machine["problem"]

    run(scene)


def test_a_snapshot_of_a_later_version_is_reported() -> None:
    async def scene(b: Bench) -> None:
        snapshots = Objects(b.client, BUCKET)
        await snapshots.put(
            "acme/test/a", b"", metadata={"position": "1:0:0", "applied": "1", "new": ""}
        )
        await snapshots.put("acme/test/b", b"", metadata={"position": "nowhere", "applied": "1"})
        ask = Routes(b.client)
        later, damaged = (await ask("state_machines"))["state_machines"]
        assert "later version" in later["error"]
        assert "cannot be decoded" in damaged["error"]
        assert (await ask("state_machine", name="acme/test/a"))["problem"] == later["error"]

    run(scene)
