"""Replacing the id of a bookie in the metadata of ledgers: which ledgers are left as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quire.cli.main import cli
from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import NoSuchEntryError
from quire.metadata import open_metadata
from quire.metadata.interface import BookieAddress, Bookies, MetadataStore
from quire.metadata.sqlite.store import SqliteStore

OLD, NEW, OTHER = "old:1", "new:1", "other:1"


def renamed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    metadata: LedgerMetadata,
    there: list[tuple[int, int]],
) -> tuple[Result, LedgerMetadata]:
    """Rename OLD to NEW in a ledger of which NEW has the entries `there`."""
    uri = f"sqlite:///{tmp_path}/cluster.db"

    async def begin() -> None:
        store = await open_metadata(uri, create=True)
        await store.initialise()
        await store.create_ledger(metadata, 7)
        await store.close()

    async def end() -> LedgerMetadata:
        store = await open_metadata(uri)
        found = (await store.read_ledger(7)).value
        await store.close()
        return found

    async def bookies(client: Client) -> Bookies:
        return Bookies({NEW: BookieAddress(NEW, "new", 1)}, {})

    async def entries(client: Client, bookie_id: str, ledger_id: int) -> list[tuple[int, int]]:
        assert (bookie_id, ledger_id) == (NEW, 7)
        if not there:
            raise NoSuchEntryError("none", ledger_id=ledger_id)
        return there

    asyncio.run(begin())
    monkeypatch.setattr(Client, "bookies", bookies)
    monkeypatch.setattr(Client, "list_entries", entries)
    words = ["shell", "--metadata", uri, "updateBookieInLedger", "-sb", OLD, "-db", NEW]
    return CliRunner().invoke(cli, words), asyncio.run(end())


FIRST, SECOND = Segment(0, (OLD, OTHER)), Segment(10, (NEW, OTHER))
TWO = LedgerMetadata(2, 2, 2, (FIRST, SECOND), ctoken=1)
CLOSED = TWO.with_close(19, 19)


@pytest.mark.parametrize(
    ("metadata", "there", "lacking"),
    [
        (CLOSED, [], "no entries of it"),
        (CLOSED, [(10, 19)], "none of its entries 0 to 9"),
        (TWO, [(10, 15)], "none of its entries 0 to 9"),
        (
            LedgerMetadata(2, 2, 2, (Segment(0, (NEW, OTHER)), Segment(10, (OLD, OTHER)))),
            [(0, 9)],
            "no entries of it from 10 on",
        ),
        (CLOSED, [(3, 3), (10, 19)], ""),
        (TWO, [(0, 15)], ""),
        (LedgerMetadata(2, 2, 2, (Segment(0, (OLD, OTHER)),)), [(0, 0)], ""),
        (LedgerMetadata(2, 1, 1, (FIRST, SECOND)).with_close(19, 19), [(1, 1)], ""),
        (
            # The only entry of the first segment is on the other bookie.
            LedgerMetadata(2, 1, 1, (Segment(0, (OTHER, OLD)), Segment(1, (NEW, OTHER)))),
            [(1, 1)],
            "",
        ),
    ],
)  # fmt: skip
def test_the_destination_must_have_entries_of_each_segment_of_the_source(
    metadata: LedgerMetadata,
    there: list[tuple[int, int]],
    lacking: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries of a segment that it was in itself made it a replica of all others."""
    done, after = renamed(tmp_path, monkeypatch, metadata, there)
    if lacking:
        assert f"ledger 7 is not changed: {NEW} has {lacking}" in done.stderr
        assert (done.exit_code, after.segments) == (1, metadata.segments)
    else:
        assert done.exit_code == 0, done.output
        assert [OLD in one.ensemble for one in after.segments] == [False] * len(after.segments)


@pytest.mark.parametrize("when", ["listed", "written"])
def test_a_ledger_that_meanwhile_has_a_replica_on_the_destination_is_skipped(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination was named twice in one ensemble, so that one disk counted as two replicas."""
    moved = Segment(0, (OLD, NEW))
    reads, writes = SqliteStore.read_ledger, SqliteStore.write_ledger
    count = 0

    async def move(store: MetadataStore) -> None:
        found: Any = await reads(store, 7)  # type: ignore[arg-type]
        wanted = LedgerMetadata(2, 2, 2, (moved,), ctoken=1).with_close(9, 9)
        await writes(store, 7, wanted, found.version)  # type: ignore[arg-type]

    async def read(store: Any, ledger_id: int) -> Any:
        nonlocal count
        count += 1
        if when == "listed" and count == 2:
            await move(store)
        return await reads(store, ledger_id)

    async def write(store: Any, *arguments: Any) -> Any:
        nonlocal count
        if when == "written" and count < 100:
            count = 100
            await move(store)
        return await writes(store, *arguments)

    monkeypatch.setattr(SqliteStore, "read_ledger", read)
    monkeypatch.setattr(SqliteStore, "write_ledger", write)
    metadata = LedgerMetadata(2, 2, 2, (FIRST,), ctoken=1).with_close(9, 9)
    done, after = renamed(tmp_path, monkeypatch, metadata, [(0, 9)])
    assert (done.exit_code, f"it has both {NEW} and {OLD}" in done.stderr) == (1, True)
    assert after.segments == (moved,)
