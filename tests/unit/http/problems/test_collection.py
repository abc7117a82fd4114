"""The problems of garbage collection."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quire._runtime.clock import SystemClock
from quire.cli.main import cli
from quire.client import Client
from quire.errors import LaterMetadataError
from quire.http.views.cluster_view import ClusterView
from quire.http.views.problems.cluster import problems
from quire.http.views.problems.collection import Collection
from quire.metadata import MetadataStore, open_metadata
from quire.metadata.bookies.collection import (
    BookieMark,
    CollectionMark,
    CollectionRefusal,
    check_not_back,
    mark_path,
    write_mark,
)
from quire.metadata.tree import Create
from tests.support.http.problems import WELL, bookie


def test_uncollected_garbage_is_a_problem() -> None:
    found = Collection("garbage collection is switched off by h.1", ("b:1", "b:2"))
    refused, off = problems([bookie("a")], WELL, collection=found)
    assert refused.severity == "bad"
    assert refused.what.startswith("The metadata store went back in time, as detected by b:1, b:2")
    assert "quire cluster gc status" in refused.next
    assert "quire cluster gc accept" in refused.doing
    assert (off.severity, off.what) == ("warn", "Garbage collection is switched off by h.1")
    assert off.next == "quire cluster gc on"


async def store_with_marks(directory: Path) -> MetadataStore:
    """Return a store with the mark of a bookie that refuses, and one of a later version."""
    opened = await open_metadata(f"sqlite:///{directory}/meta.db", create=True)
    await opened.initialise()
    mark = CollectionMark(3, "token")
    await write_mark(opened, "b:1", BookieMark(mark, CollectionRefusal(mark, 7)), None)
    later = json.dumps({**mark.as_json(), "of_a_later_version": 1}).encode()
    await opened.tree.commit(Create(mark_path(opened.uri, "a:1"), later))
    return opened


async def test_a_mark_of_a_later_version_hides_no_other_problem(tmp_path: Path) -> None:
    async def nothing(url: str) -> str:
        return ""

    store = await store_with_marks(tmp_path)
    async with Client(store) as client:
        view = ClusterView(SystemClock().monotonic, nothing, wait_s=10)
        seen = await view.look(client)
        await view.close()
        # A deletion must not take it for consent.
        with pytest.raises(LaterMetadataError):
            await check_not_back(store)
    assert (seen.collection.refusing, seen.collection.later) == (("b:1",), ("a:1",))
    told = [(one.severity, one.what) for one in seen.problems]
    assert any(severity == "bad" and "as detected by b:1" in what for severity, what in told)
    assert any(severity == "note" and "the marks of a:1" in what for severity, what in told)


def test_the_command_names_the_mark_of_a_later_version(tmp_path: Path) -> None:
    async def made() -> None:
        await (await store_with_marks(tmp_path)).close()

    def run(*words: str) -> Result:
        uri = f"sqlite:///{tmp_path}/meta.db"
        return CliRunner().invoke(cli, ["cluster", "gc", *words, "--metadata", uri])

    asyncio.run(made())
    shown = run("status")
    assert shown.exit_code == 0, shown.output
    assert "b:1 collects no garbage" in shown.output
    assert "a:1 may collect garbage or not: " in shown.output
    refused = run("accept", "a:1", "--yes")
    assert refused.exit_code == 2
    assert "nothing was changed" in refused.output
