"""The routes that return entries: on damaged replicas, within limits, and without any change."""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import pytest

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.codec.wire.v2 import Flag
from quire.errors import NoSuchEntryError, NoSuchLedgerError, ReadError, UnauthorizedError
from quire.errors import UsageError as Usage
from quire.http.routes import payloads
from quire.http.routes.payloads import ITEMS, ITEMS_MAX, PayloadRoutes
from quire.http.server.api import Route
from quire.http.views import payload_json
from tests.support.bookies.fake_bookies import (
    LEDGER,
    PASSWORD,
    Ask,
    FakeCluster,
    payload,
    simulated,
)

SECRET = PASSWORD.decode()
SHAPE = (3, 3, 2)


class Viewer:
    """The routes of one client, called as the server calls them."""

    def __init__(self, client: Client) -> None:
        async def connect() -> Client:
            return client

        routes = PayloadRoutes(connect).routes()
        self._entries, self._entry, *_ = routes

    async def entries(self, **body: Any) -> dict[str, Any]:
        path = {"ledger_id": str(LEDGER)}
        return await asked(self._entries, path, {"password": SECRET, **body})

    async def entry(self, entry_id: int, **body: Any) -> dict[str, Any]:
        path = {"ledger_id": str(LEDGER), "entry_id": str(entry_id)}
        return await asked(self._entry, path, {"password": SECRET, **body})


async def asked(route: Route, path: Mapping[str, str], body: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in body.items() if value is not None}
    found: dict[str, Any] = await route.handler(route.check(path, [], given))
    return found


def payloads_of(found: Mapping[str, Any]) -> dict[int, bytes]:
    return {
        one["entry_id"]: b64decode(one["payload"]) for one in found["entries"] if "payload" in one
    }


def test_a_closed_ledger_is_read_in_pages() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger(SHAPE, range(45), state=LedgerState.CLOSED)
        async with cluster.client() as client:
            view = Viewer(client)
            first = await view.entries()
            assert payloads_of(first) == {k: payload(k) for k in range(ITEMS)}
            assert (first["state"], first["last_entry_id"], first["next"]) == ("CLOSED", 44, ITEMS)
            last = await view.entries(first=first["next"], limit=ITEMS_MAX)
            assert sorted(payloads_of(last)) == list(range(ITEMS, 45))
            assert (last["next"], last["stopped"]) == (None, None)
            assert sorted(payloads_of(await view.entries(from_end=True, limit=3))) == [42, 43, 44]
            beyond = await view.entries(first=100)
            assert (beyond["entries"], beyond["next"]) == ([], None)
            with pytest.raises(Usage, match="limit must be an integer from 1 to"):
                await view.entries(limit=ITEMS_MAX + 1)

    simulated(main)


def test_an_open_ledger_is_read_to_its_lac_and_never_fenced() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger(SHAPE, range(5))
        async with cluster.client() as client:
            view = Viewer(client)
            found = await view.entries()
            # The LAC of the last entry is the entry before.
            assert sorted(payloads_of(found)) == [0, 1, 2, 3]
            assert (found["state"], found["last_entry_id"]) == ("OPEN", 3)
            with pytest.raises(ReadError, match="only entries up to 3 are known"):
                await view.entry(4)
            assert (await view.entry(3))["copies"]
        assert (await cluster.stored()).state is LedgerState.OPEN
        for bookie in cluster.bookies.values():
            assert not bookie.fenced
            assert not any(ask.flags & Flag.DO_FENCING for ask in bookie.asked)

    simulated(main)


@pytest.mark.parametrize("shape", [SHAPE, (4, 3, 2)])
def test_entries_that_cannot_be_read_do_not_hide_others(shape: tuple[int, int, int]) -> None:
    """In ledgers that are read in batches, and in striped ones."""
    bad = {0, 5, 6, 17, 39}

    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(shape, range(40), state=LedgerState.CLOSED)
        for bookie in cluster.bookies.values():
            for entry_id in bad & bookie.entries.keys():
                bookie.entries[entry_id] = cluster.entry(entry_id)[:-1] + b"?"
        async with cluster.client() as client:
            found = await Viewer(client).entries(limit=40)
            assert [one["entry_id"] for one in found["entries"]] == list(range(40))
            assert {one["entry_id"] for one in found["entries"] if "error" in one} == bad
            good = {k: payload(k) for k in range(40) if k not in bad}
            assert payloads_of(found) == good

    simulated(main)


def test_the_problem_of_each_replica_is_shown() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        await cluster.ledger(SHAPE, range(3), state=LedgerState.CLOSED)
        for name in ("b0", "b1", "b2"):
            cluster[name].entries[1] = cluster.entry(1)[:-1] + b"?"  # the digest is wrong
        del cluster["b0"].entries[2]
        cluster["b1"].entries[2] = cluster.entry(2, b"other bytes")  # and its digest is right
        async with cluster.client() as client:
            view = Viewer(client)
            found = await view.entries()
            assert sorted(payloads_of(found)) == [0, 2]
            wrong = found["entries"][1]["error"]
            assert wrong["kind"] == "DigestError"
            assert wrong["causes"].keys() == {"b0", "b1", "b2"}
            assert "digest" in wrong["causes"]["b0"]
            damaged = await view.entry(1)
            assert [one["state"] for one in damaged["copies"]] == ["damaged"] * 3
            assert (damaged["from"], damaged["verified"]) == (None, False)
            assert "payload" not in damaged
            as_sent = await view.entry(1, bookie="b1")
            assert (as_sent["from"], as_sent["verified"]) == ("b1", False)
            assert b64decode(as_sent["payload"]) == payload(1)[:-1] + b"?"
            mixed = {one["bookie"]: one for one in (await view.entry(2))["copies"]}
            assert mixed["b0"]["state"] == "missing"
            assert {mixed["b1"]["state"], mixed["b2"]["state"]} == {"good", "different"}
            with pytest.raises(Usage, match="b3 stores no copy"):
                await view.entry(1, bookie="b3")

    simulated(main)


def test_silent_bookies_are_shown() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger(SHAPE, range(2), state=LedgerState.CLOSED)
        cluster["b0"].die()
        cluster["b1"].says = cluster["b1"].silent
        async with cluster.client() as client:
            view = Viewer(client)
            states = {one["bookie"]: one for one in (await view.entry(0))["copies"]}
            assert states["b0"]["state"] == states["b1"]["state"] == "unreachable"
            assert "down" in states["b0"]["detail"]
            assert "did not answer within" in states["b1"]["detail"]
            assert states["b2"]["state"] == "good"
            await cluster.registrations["b0"].close()
            gone = (await view.entry(0))["copies"][0]
            assert (gone["bookie"], gone["registered"]) == ("b0", "gone")

    simulated(main)


def test_the_time_for_one_answer_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries before the silent one are returned."""
    monkeypatch.setattr(payloads, "VIEW_TIMEOUT_S", 3.0)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger(SHAPE, range(40), state=LedgerState.CLOSED)
        for bookie in cluster.bookies.values():
            bookie.says = lambda ask: None if ask.entry == 30 else ...
        async with cluster.client() as client:
            found = await Viewer(client).entries(limit=40)
            assert found["stopped"] == "time"
            assert sorted(payloads_of(found)) == list(range(20))
            assert found["next"] == 20

    simulated(main)


def test_the_bytes_of_one_answer_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(payload(10))
    monkeypatch.setattr(payload_json, "ANSWER_BYTES_MAX", 3 * size)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger(SHAPE, range(10, 40), state=LedgerState.CLOSED)
        async with cluster.client() as client:
            view = Viewer(client)
            found = await view.entries(first=10)
            assert sorted(payloads_of(found)) == [10, 11, 12]
            assert (found["stopped"], found["next"]) == ("bytes", 13)
            cut = (await view.entries(first=10, shown_bytes=4))["entries"][0]
            assert b64decode(cut["payload"]) == payload(10)[:4]
            assert (cut["bytes"], cut["shown_bytes"]) == (size, 4)
            rest = await view.entry(10, offset=4, shown_bytes=3)
            assert b64decode(rest["payload"]) == payload(10)[4:7]
            after = await view.entry(10, offset=10**6)
            assert (after["payload"], after["offset"]) == ("", size)
            monkeypatch.setattr(payload_json, "READ_BYTES_MAX", size)
            assert sorted(payloads_of(await view.entries(first=10, shown_bytes=1))) == [10]

    simulated(main)


def test_the_number_of_concurrent_payload_requests_is_limited() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger(SHAPE, range(1), state=LedgerState.CLOSED)
        running, most = 0, 0

        def watch(ask: Ask) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            asyncio.get_running_loop().call_later(0.5, done)
            return ...

        def done() -> None:
            nonlocal running
            running -= 1

        for bookie in cluster.bookies.values():
            bookie.says = watch
            bookie.answers_in_s = 0.5
        async with cluster.client() as client:
            view = Viewer(client)
            await asyncio.gather(*(view.entries() for _ in range(12)))
            assert 1 < most <= payloads.VIEWS_AT_ONCE

    simulated(main)


def test_a_wrong_password_is_refused() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger(SHAPE, range(2), state=LedgerState.CLOSED)
        async with cluster.client() as client:
            view = Viewer(client)
            for call in (view.entries(password="wrong"), view.entry(0, password="wrong")):
                with pytest.raises(UnauthorizedError, match="the password for ledger 7 is wrong"):
                    await call
            for call in (view.entries(password=None), view.entry(0, password=None)):
                assert "a password is needed" in (await call)["locked"]
            assert all(not bookie.asked for bookie in cluster.bookies.values())
            assert (await view.entries())["locked"] is None

    simulated(main)


def test_missing_ledgers_and_entries_are_not_found() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        async with cluster.client() as client:
            with pytest.raises(NoSuchLedgerError):
                await Viewer(client).entries()
            await cluster.ledger(SHAPE, range(2), state=LedgerState.CLOSED)
            with pytest.raises(NoSuchEntryError, match="ends at entry 1"):
                await Viewer(client).entry(2)

    simulated(main)


def test_payloads_of_any_bytes_are_returned_unchanged() -> None:
    bytes_of_all_kinds = random.Random(1).randbytes(1000) + bytes(range(256))

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger(SHAPE, range(1), state=LedgerState.CLOSED)
        for bookie in cluster.bookies.values():
            bookie.entries[0] = cluster.entry(0, bytes_of_all_kinds)
        async with cluster.client() as client:
            assert payloads_of(await Viewer(client).entries()) == {0: bytes_of_all_kinds}

    simulated(main)
