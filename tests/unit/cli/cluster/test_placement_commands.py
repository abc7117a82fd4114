"""`quire cluster locations`, and `--placement` of writing commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from quire.cli.main import cli
from quire.metadata import open_metadata
from quire.metadata.tree import Put


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("QUIRE_PLACEMENT", raising=False)
    monkeypatch.setenv("QUIRE_METADATA", f"sqlite:///{tmp_path}/metadata.db")
    assert run("cluster", "init") == 0
    return f"sqlite:///{tmp_path}/metadata.db"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    return int(ended.value.code or 0)


async def node(uri: str, value: bytes | None = None) -> Any:
    store = await open_metadata(uri)
    try:
        if value is not None:
            await store.tree.make_path("/bookies")
            await store.tree.commit(Put("/bookies", value))
        return json.loads((await store.tree.read("/bookies")).value)
    finally:
        await store.close()


def wait(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_the_location_table_is_written_and_listed(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("cluster", "locations", "list") == 0
    assert "the table is empty" in capsys.readouterr().err
    assert run("cluster", "locations", "set", "b1:3181", "/wrong") == 0
    assert run("cluster", "locations", "set", "b1:3181", "a") == 0
    assert run("cluster", "locations", "set", "b1:3181", "/a") == 0
    assert capsys.readouterr().err.splitlines() == [
        "the location of b1:3181 is /wrong",
        "the location of b1:3181 is /a (before: /wrong)",
        "the location of b1:3181 is /a",
    ]
    arguments = ("b2:3181", "/w/b", "--group", "west", "--hostname", "host2")
    assert run("cluster", "locations", "set", *arguments) == 0
    assert wait(node(uri)) == {
        "default": {"b1:3181": {"rack": "/a"}},
        "west": {"b2:3181": {"rack": "/w/b", "hostname": "host2"}},
    }
    capsys.readouterr()
    assert run("cluster", "locations", "list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "b1:3181 /a (not registered)",
        "b2:3181 /w/b (not registered)",
    ]
    assert run("cluster", "locations", "remove", "b1:3181") == 0
    assert run("cluster", "locations", "remove", "b1:3181") == 0
    assert capsys.readouterr().err.splitlines() == [
        "b1:3181 has no location any more (before: /a)",
        "b1:3181 has no location in the table",
    ]
    assert run("cluster", "locations", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "id": "b2:3181", "location": "/w/b", "group": "west", "hostname": "host2",
        "registered": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [("list",), ("set", "b1:3181", "/a"), ("remove", "b1:3181")],
    ids=lambda words: words[0],
)
def test_a_malformed_location_table_is_not_changed(
    words: tuple[str, ...], uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wait(node(uri, b"[1]"))
    capsys.readouterr()
    assert run("cluster", "locations", *words) == 1
    assert capsys.readouterr().err == (
        "error: the table of locations at /bookies cannot be read: its content is not a table of "
        "groups of bookies, {group: {bookie: {...}}}. Nothing was changed. Correct the JSON in "
        "this node, or write {} into it for an empty table\n"
    )
    assert wait(node(uri)) == [1]


@pytest.mark.parametrize(("bookie", "location"), [("b/1", "/a"), ("b1:3181", "//")])
def test_invalid_locations_are_refused(uri: str, bookie: str, location: str) -> None:
    assert run("cluster", "locations", "set", bookie, location) == 2


def test_the_placement_options_configure_the_client(
    uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("ledger", "write", "--placement", "rack-aware,min_rack=2") == 2
    assert "Did you mean min_racks?" in capsys.readouterr().err
    monkeypatch.setenv("QUIRE_PLACEMENT", "nowhere")
    assert run("cluster", "bookies", "--space") == 2
    assert "'nowhere' is not a placement policy" in capsys.readouterr().err


def test_bookies_that_are_gone_are_listed_with_the_space_of_the_others(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The free space of a cluster fell by a quarter, and the list had one line less."""

    async def lose() -> None:
        store = await open_metadata(uri)
        try:
            await store.write_cookie("bookie-3", b"cookie", None)
        finally:
            await store.close()

    wait(lose())
    assert run("cluster", "bookies", "--space") == 0
    assert capsys.readouterr().out == "bookie-3 gone: its space is not known\n"
    assert run("cluster", "bookies", "--space", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "id": "bookie-3", "state": "gone", "host": None, "port": None, "unwritable": None,
        "free_bytes": None, "total_bytes": None,
    }  # fmt: skip
    assert run("cluster", "bookies") == 0
    assert capsys.readouterr().out == ""
