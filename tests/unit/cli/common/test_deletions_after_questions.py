"""Commands that delete by name or id, and things that get the name or id while they wait."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import quire
from quire.cli.main import cli
from quire.client.datasets.format import DatasetLedger
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.metadata import open_metadata
from quire.metadata.bookies.collection import (
    BookieMark,
    CollectionMark,
    CollectionRefusal,
    refusals,
    write_mark,
)
from quire.metadata.bookies.directories import BookieDirectories, LogMark, write_directories
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.streams.objects.format import encode_head, head_key
from quire.streams.objects.objects import ObjectInfo

METADATA = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),), ctoken=1)
Change = Callable[[quire.Client], Awaitable[Any]]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = f"sqlite:///{tmp_path}/cluster.db"

    async def initialise() -> None:
        store = await open_metadata(uri, create=True)
        await store.initialise()
        await store.close()

    asyncio.run(initialise())
    return uri


def done(uri: str, change: Change) -> Any:
    """Return the result of `change` with a client of its own, as another process has."""

    async def run() -> Any:
        async with quire.connect(uri) as client:
            return await change(client)

    return asyncio.run(run())


def answered(
    words: list[str], uri: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Change
) -> Result:
    """Run a command on a terminal, whose question is answered after `meanwhile`."""

    def agree(*question: object, **how: object) -> bool:
        other = threading.Thread(target=done, args=(uri, meanwhile))
        other.start()
        other.join()
        return True

    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True), stdout=sys.stdout)
    for module in (
        "bookie.cookie",
        "cluster.gc",
        "common.options",
        "ledger.manage",
        "stream.manage",
        "object.manage",
        "dataset.manage",
    ):
        monkeypatch.setattr(f"quire.cli.{module}.sys", terminal)
    monkeypatch.setattr("click.confirm", agree)
    where = ["--metadata", uri]
    if words[0] == "shell":  # its options come before the verb
        monkeypatch.setattr("quire.cli.shell.session.sys", terminal)
        return CliRunner().invoke(cli, ["shell", *where, *words[1:]])
    return CliRunner().invoke(cli, [*words, *where])


@pytest.mark.parametrize("force", [False, True])
def test_a_ledger_that_was_created_again_is_spared(
    uri: str, monkeypatch: pytest.MonkeyPatch, *, force: bool
) -> None:
    done(uri, lambda client: client.metadata.create_ledger(METADATA, 7))

    async def again(client: quire.Client) -> None:
        await client.delete_ledger(7)
        other = LedgerMetadata(1, 1, 1, (Segment(0, ("b:1",)),), ctoken=2)
        await client.metadata.create_ledger(other, 7)

    words = ["ledger", "delete", "7", *["--force"] * force]
    result = answered(words, uri, monkeypatch, again)
    assert (result.exit_code, "deleted and created again" in result.stderr) == (1, True)
    assert done(uri, lambda client: client.ledger_metadata(7)).ctoken == 2


def test_a_ledger_that_was_closed_meanwhile_is_deleted(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(uri, lambda client: client.metadata.create_ledger(METADATA, 7))

    async def closed(client: quire.Client) -> None:
        await client.metadata.write_ledger(7, METADATA.with_close(-1, 0), 0)

    assert answered(["ledger", "delete", "7"], uri, monkeypatch, closed).exit_code == 0


@pytest.mark.parametrize("words", [["ledger", "delete", "7"], ["shell", "deleteledger", "-l", "7"]])
def test_a_ledger_that_a_dataset_took_meanwhile_is_spared(
    uri: str, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """The dataset lost its rows, although the command deletes no ledger that something needs."""
    done(uri, lambda client: client.metadata.create_ledger(METADATA.with_close(0, 1), 7))

    async def publish(client: quire.Client) -> None:
        await client.datasets.publish("d", [DatasetLedger(7, 0, 0, 1, 1)])

    given = answered(words, uri, monkeypatch, publish)
    assert (given.exit_code, "dataset d" in given.stderr) == (1, True), given.output
    assert done(uri, lambda client: client.ledger_metadata(7)).closed


def test_an_object_that_was_replaced_is_spared(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def head(ledger_id: int, version: int | None) -> Change:
        async def write(client: quire.Client) -> None:
            info = ObjectInfo("o", ledger_id, 1, 4096, "0" * 64, 0)
            await client.metadata.write_value(head_key("b", "o"), encode_head(info), version)

        return write

    done(uri, head(1, None))
    result = answered(["object", "delete", "--bucket", "b", "o"], uri, monkeypatch, head(2, 0))
    assert (result.exit_code, "was replaced while" in result.stderr) == (1, True)
    assert done(uri, lambda client: client.metadata.read_value(head_key("b", "o"))).version == 1


def test_an_object_that_does_not_exist_is_no_error(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command failed on a terminal, and succeeded elsewhere."""

    async def nothing(client: quire.Client) -> None:
        pass

    result = answered(["object", "delete", "--bucket", "b", "o"], uri, monkeypatch, nothing)
    assert (result.exit_code, "object o does not exist" in result.stderr) == (0, True)


def test_a_dataset_that_was_created_again_is_spared(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def publish(client: quire.Client) -> None:
        await client.datasets.drop("d")
        ledger_id, _ = await client.metadata.create_ledger(METADATA.with_close(0, 1))
        await client.datasets.publish("d", [DatasetLedger(ledger_id, 0, 0, 1, 1)])

    done(uri, publish)
    result = answered(["dataset", "delete", "d"], uri, monkeypatch, publish)
    assert (result.exit_code, "dropped and created again" in result.stderr) == (1, True)
    assert len(done(uri, lambda client: client.datasets.read("d")).ledger_ids) == 1


async def streams(client: quire.Client) -> Namespace:
    return await open_namespace(client, "/streams", create=True)


def test_a_topic_that_was_created_again_is_spared(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create(client: quire.Client) -> None:
        opened = await streams(client)
        await opened.delete_topic("t")
        await opened.create_topic("t", 2)

    async def topics(client: quire.Client) -> list[str]:
        return await (await streams(client)).topics()

    done(uri, create)
    result = answered(["stream", "delete", "t"], uri, monkeypatch, create)
    assert (result.exit_code, "another topic has its name" in result.stderr) == (1, True)
    assert done(uri, topics) == ["t"]


def test_a_stream_that_was_created_again_is_not_truncated(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position was found in the former stream, and the present one was truncated there."""
    find = Namespace.find

    async def create(client: quire.Client) -> None:
        opened = await streams(client)
        await opened.delete_stream("s")
        await opened.create_stream("s")

    async def find_slowly(self: Namespace, name: str, start: Any) -> Any:
        found = await find(self, name, start)
        await self.delete_stream("s")
        await self.create_stream("s")
        return found

    done(uri, create)
    monkeypatch.setattr(Namespace, "find", find_slowly)
    words = ["stream", "truncate", "s", "--before", "latest", "--metadata", uri]
    result = CliRunner().invoke(cli, words)
    assert (result.exit_code, "The other stream was not truncated" in result.stderr) == (1, True)


def test_a_newer_refusal_to_collect_garbage_is_not_accepted(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(count: int, version: int | None) -> Change:
        mark = CollectionMark(count, "t")
        made = BookieMark(CollectionMark(1, "s"), CollectionRefusal(mark, since_ms=count))
        return lambda client: write_mark(client.metadata, "b:1", made, version)

    done(uri, refuse(7, None))
    result = answered(["cluster", "gc", "accept"], uri, monkeypatch, refuse(9, 0))
    assert (result.exit_code, "newer reason" in result.stderr) == (1, True)
    left = done(uri, lambda client: refusals(client.metadata))
    assert left["b:1"].remembered.count == 9


@pytest.mark.parametrize("apache", [False, True], ids=["quire", "apache"])
@pytest.mark.parametrize("named", [False, True])
def test_the_cookie_of_a_bookie_that_was_started_meanwhile_is_kept(
    uri: str, monkeypatch: pytest.MonkeyPatch, *, named: bool, apache: bool
) -> None:
    """It had stored entries and was stopped again, and the next bookie with its id denied them."""

    def started(times: int) -> BookieDirectories:
        return BookieDirectories({"/data": "aa"}, marks={"aa": LogMark(times, "n")})

    async def create(client: quire.Client) -> None:
        await client.metadata.write_cookie("b:1", b"cookie", None)
        if not apache:
            await write_directories(client.metadata, "b:1", started(1), None)

    async def start(client: quire.Client) -> None:
        if named:
            await client.metadata.create_ledger(METADATA)
        if not apache:
            await write_directories(client.metadata, "b:1", started(2), 0)

    done(uri, create)
    result = answered(["bookie", "cookie", "delete", "b:1"], uri, monkeypatch, start)
    kept = named or not apache
    assert (result.exit_code != 0) == kept, result.stderr
    assert done(uri, lambda client: client.metadata.list_cookies()) == ["b:1"] * kept
