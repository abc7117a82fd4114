"""The files that an Iceberg table gets when a stream is offloaded to another directory."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.errors import UsageError
from quire.spark.jobs.archive import tables
from quire.spark.jobs.archive.manifest import HistoryFile, Manifest, OffloadHistory
from quire.streams import DLSN
from quire.streams.read.arrow import COLUMNS


class Table:
    """An Iceberg table, as far as offload uses it. It is its own catalog and transaction."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.properties: dict[str, str] = dict(tables.ICEBERG_KEEPS)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def schema(self) -> Any:
        return SimpleNamespace(fields=[SimpleNamespace(name=name) for name in COLUMNS])

    @contextmanager
    def transaction(self) -> Any:
        yield self

    def add_files(self, paths: list[str], **_: object) -> None:
        self.files += [path.rpartition("/")[2] for path in paths]

    def set_properties(self, values: dict[str, str]) -> None:
        self.properties |= values


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    found = Table()
    monkeypatch.setattr(tables, "_import", lambda *_: found)
    return found


def add(tmp_path: Path, *ranges: tuple[int, int]) -> int:
    """Bring the table up to date with a directory that has a file for each range of segments."""
    files = tuple(
        HistoryFile(
            f"{first}-{last}", 1, 1, DLSN(first, 0, 0), DLSN(last, 9, 0), (0, 1), (0, 1), None,
            commit=number,
        )
        for number, (first, last) in enumerate(ranges, 1)
    )  # fmt: skip
    manifest = Manifest(
        "c", "/n", "s", "/lives/a-1", DLSN(1, 0, 0), DLSN(99, 0, 0), commit=len(files), files=files
    )
    return tables.to_iceberg(OffloadHistory(str(tmp_path), "s"), manifest, "n.t", {}, False)


def test_another_directory_continues_after_the_last_record(tmp_path: Path, table: Table) -> None:
    """Its commits have the numbers of those that the table has from the former directory."""
    assert add(tmp_path / "a", (1, 2), (3, 4)) == 2
    assert add(tmp_path / "b", (5, 6), (7, 8)) == 2  # after a truncation
    assert add(tmp_path / "c", (1, 4), (5, 8), (9, 9)) == 1  # everything again
    assert table.files == ["1-2", "3-4", "5-6", "7-8", "9-9"]
    with pytest.raises(UsageError, match="up to position 9:9:0 from another directory"):
        add(tmp_path / "d", (8, 10))


@pytest.mark.parametrize("more", [False, True])
def test_a_table_of_an_earlier_version_continues(tmp_path: Path, table: Table, more: bool) -> None:
    table.properties["quire.commit.a-1"] = "2"
    ranges = [(1, 2), (3, 4), (5, 6)][: 3 if more else 2]
    assert add(tmp_path, *ranges) == more
    assert table.properties["quire.last.a-1"] == ("6:9:0" if more else "4:9:0")
    assert table.files == (["5-6"] if more else [])
