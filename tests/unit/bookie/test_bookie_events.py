"""What a bookie says of its state and of the failures of its passes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.server import Bookie
from quire.errors import (
    CollectionOffError,
    KeyExistsError,
    MetadataUnavailableError,
    MetadataWentBackError,
    StorageError,
)
from tests.support.bookies.bookie import running_bookie


class Told:
    def __init__(self, bookie: Bookie, events: list[tuple[str, dict[str, Any]]]) -> None:
        self.bookie: Any = bookie
        self._events = events

    def names(self) -> list[str]:
        return [event for event, _ in self._events]

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the events since the last call."""
        events = list(self._events)
        self._events.clear()
        return events


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    events: list[tuple[str, dict[str, Any]]] = []

    def log(event: str, **fields: Any) -> None:
        events.append((event, fields))

    async with running_bookie(tmp_path, bookie_id="b", log=log) as bookie:
        events.clear()
        yield Told(bookie, events)


class Ordered:
    draining = True

    def sentence(self) -> str:
        return "it is being decommissioned"


class Raising:
    """A pass that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.unread: list[int] = []

    async def collect(self, *given: object) -> None:
        raise self.error

    report = follow = check = check_store = collect


async def test_each_reason_of_a_read_only_bookie_is_explained(told: Told) -> None:
    bookie = told.bookie
    assert (bookie.explain_unwritable(), bookie.unwritable, bookie.status) == ([], (), 1)
    bookie.hold_readonly(True)
    assert [(one.why, words) for one, words in bookie.explain_unwritable()] == [
        ("held", "an operator holds it until its next start")
    ]
    assert (bookie.writable, bookie.service.writable, bookie.status) == (False, False, 0)
    [(event, fields)] = told.take()
    assert (event, fields["why"]) == ("read_only", "an operator has made it read-only")
    bookie.hold_readonly(True)  # This changes nothing.
    assert told.take() == []
    orders, bookie._orders = bookie._orders, Ordered()
    assert [words for _, words in bookie.explain_unwritable()] == [
        "an operator holds it until its next start",
        "it is being decommissioned",
    ]
    bookie._orders = None
    assert len(bookie.explain_unwritable()) == 1
    bookie._orders = orders
    bookie.hold_readonly(False)
    assert (bookie.writable, bookie.service.writable) == (True, True)
    assert told.take() == [("writable", {"bookie": "b"})]
    bookie._recovered = False
    [(one, words)] = bookie.explain_unwritable()
    assert (one.why, words.endswith("% of its log is loaded")) == ("loading", True)
    bookie.hold_readonly(True)  # The registration at the end of the start considers it.
    bookie._on_orders()
    assert told.take() == []
    bookie._recovered = True


async def test_orders_are_told(told: Told) -> None:
    bookie = told.bookie
    orders, bookie._orders = bookie._orders, Ordered()
    bookie._on_orders()
    assert told.names() == ["draining", "read_only"]
    assert not bookie.service.writable
    told.take()
    bookie._orders = orders
    bookie._on_orders()
    assert told.names() == ["not_draining", "writable"]


async def test_a_file_system_that_does_not_answer_has_no_space(told: Told) -> None:
    bookie = told.bookie
    [(path, total_bytes, free_bytes)] = bookie.spaces()
    assert path == bookie._disks[0].path
    assert 0 < free_bytes <= total_bytes

    class Gone:
        path = "/gone"

        def total_bytes(self) -> int:
            raise OSError(errno.EIO, "it does not answer")

    disks = bookie._disks
    bookie._disks = [Gone(), *disks]
    assert [one[0] for one in bookie.spaces()] == [path]
    assert bookie.space()[0] == total_bytes
    bookie._disks = disks


async def test_the_first_failure_ends_the_bookie(told: Told) -> None:
    bookie = told.bookie
    error, lost = StorageError("fdatasync failed"), KeyExistsError("another has its id")
    bookie._on_failure(error)
    assert bookie.status == -1
    future: asyncio.Future[KeyExistsError] = asyncio.get_running_loop().create_future()
    future.set_result(lost)
    bookie._on_registration_lost(future)
    assert bookie.failed.result() is error
    names = [name for name, _ in told.take()]
    assert names == ["storage_failed", "registration_lost"]
    ended: asyncio.Future[KeyExistsError] = asyncio.get_running_loop().create_future()
    ended.cancel()
    bookie._on_registration_lost(ended)
    assert told.take() == []


async def test_a_registration_that_another_has_ends_the_bookie(told: Told) -> None:
    lost = KeyExistsError("another has its id")
    future: asyncio.Future[KeyExistsError] = asyncio.get_running_loop().create_future()
    future.set_result(lost)
    told.bookie._on_registration_lost(future)
    assert told.bookie.failed.result() is lost


async def test_a_port_that_cannot_be_used_is_explained(told: Told) -> None:
    used = told.bookie._port_error(OSError(errno.EADDRINUSE, "in use"))
    assert "the port is in use by another process" in str(used)
    assert "--port" in str(used.remedy)
    other = told.bookie._port_error(OSError(errno.EADDRNOTAVAIL, "no such address"))
    assert str(other).startswith("the bookie cannot listen on 127.0.0.1:0: no such address")
    assert "--bind" in str(other.remedy)


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (CollectionOffError("an operator switched it off"), "over_replicated_off"),
        (MetadataUnavailableError("no answer"), "over_replicated_skipped"),
    ],
)
async def test_a_pass_for_superfluous_copies_that_fails(
    told: Told, error: Exception, event: str
) -> None:
    bookie, failing = told.bookie, Raising(error)
    failing.unread = [1, 2]
    own, bookie._over_replicated = bookie._over_replicated, failing
    await bookie.collect_over_replicated()
    [(name, fields)] = told.take()
    assert (name, str(error) in fields["error"]) == (event, True)
    assert bookie.ledgers_unreadable == 2
    bookie._over_replicated = None
    assert bookie.ledgers_unreadable == 0
    bookie._over_replicated = own


async def test_garbage_collection_that_is_off_is_told_once(told: Told) -> None:
    bookie = told.bookie
    own = bookie.collection
    bookie.collection = Raising(CollectionOffError("it is off"))
    for _ in range(3):
        assert "it is off" in await bookie.collect_garbage()
        assert told.names() == ["garbage_collection_off"]
    bookie.collection = Raising(MetadataUnavailableError("no answer"))
    for _ in range(2):
        assert "no answer" in await bookie.collect_garbage()
    assert told.names()[1:] == ["garbage_collection_skipped"] * 2
    told.take()
    bookie.collection = Raising(MetadataWentBackError("the store went back"))
    assert "went back" in await bookie.collect_garbage()
    assert told.names() == ["garbage_collection_skipped", "garbage_unnamed"]
    bookie.collection = own


async def test_ledgers_that_the_store_lost_are_named_while_collection_is_off(told: Told) -> None:
    """The guide to restoring a backup switches collection off before the bookies start."""
    bookie = told.bookie

    class WentBack(Raising):
        went_back = False

        async def raise_in_turn(self) -> None:
            self.went_back = True

    own, bookie.collection = bookie.collection, WentBack(CollectionOffError("it is off"))
    for _ in range(2):
        await bookie.raise_mark()
        assert told.names() == ["garbage_unnamed"]  # once, however often the mark is tried
    bookie.collection = own


async def test_damage_reports_that_fail_are_told(told: Told) -> None:
    bookie = told.bookie
    own, notes = bookie.damage_reports, bookie._damage_notes
    bookie.damage_reports = Raising(MetadataUnavailableError("no answer"))
    bookie._damage_notes = Raising(MetadataUnavailableError("no note"))
    for _ in range(2):
        await bookie.report_damage()
    # The same failure of the notes is told once.
    assert told.names() == ["damage_not_noted", "damage_report_failed", "damage_report_failed"]
    told.take()
    bookie._damage_notes = notes
    await bookie.report_damage()
    bookie._damage_notes = Raising(MetadataUnavailableError("no note"))
    await bookie.report_damage()
    assert told.names().count("damage_not_noted") == 1
    bookie.damage_reports, bookie._damage_notes = own, notes


async def test_damage_that_is_found_and_healed_is_told(told: Told) -> None:
    bookie = told.bookie
    seen: list[tuple[str, int]] = []

    class Notes:
        def see(self, path: str, damage: Any) -> None:
            seen.append((path, damage.number))

        async def follow(self) -> None:
            pass

    class Damage:
        number = 7

        def describe(self) -> str:
            return "a group is damaged"

    notes, bookie._damage_notes = bookie._damage_notes, Notes()
    bookie._on_damage("/d", Damage(), False)
    bookie._on_damage("/d", Damage(), True)
    found = {"directory": "/d", "segment": 7}
    assert told.take() == [
        ("damage_found", {**found, "what": "a group is damaged"}),
        ("damage_healed", found),
    ]
    assert seen == [("/d", 7)]
    await asyncio.sleep(0)
    bookie._damage_notes = notes


async def test_an_unexpected_error_does_not_end_the_periodic_work(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage was never collected again, and only one line of the log said so."""
    bookie, reported, calls = told.bookie, list[str](), list[int]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    again = asyncio.Event()

    async def collect() -> None:
        calls.append(1)
        if len(calls) == 3:
            again.set()
        raise KeyError("a defect")

    bookie._repeat(0.001, collect)
    async with asyncio.timeout(10):
        await again.wait()
    assert bookie.background_errors.count >= 2
    assert len(reported) == 1
