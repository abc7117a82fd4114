"""Files of an archive whose store fails while they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from pyarrow import fs

from quire.errors import HistoryError
from quire.spark.jobs.archive.store import ArchiveDirectory

DATA = b"0123456789"


class Partial:
    """A stream that fails after half of the data, or after all of it, and whose `close` publishes
    what it has."""

    def __init__(self, store: Any, path: str, size_bytes: int) -> None:
        self._store, self._path, self._size_bytes = store, path, size_bytes

    def __enter__(self) -> Partial:
        return self

    def write(self, data: bytes) -> None:
        self._data = data[: self._size_bytes]
        raise OSError("the connection was lost")

    def __exit__(self, *_: object) -> None:
        with self._store.open_output_stream(self._path) as stream:
            stream.write(self._data)


class Failing:
    """A store whose writes fail. Other calls fail too if it is `gone`."""

    def __init__(self, size_bytes: int, gone: bool) -> None:
        self._inner = fs.PyFileSystem(fs.FSSpecHandler(MemoryFileSystem()))
        self._size_bytes, self._gone = size_bytes, gone

    def open_output_stream(self, path: str) -> Partial:
        return Partial(self._inner, path, self._size_bytes)

    def __getattr__(self, name: str) -> Any:
        if self._gone:
            raise OSError("no answer")
        return getattr(self._inner, name)


@pytest.mark.parametrize(("size_bytes", "there"), [(5, None), (0, None), (10, 10)])
def test_a_file_is_complete_or_missing_after_an_error(size_bytes: int, there: int | None) -> None:
    store = ArchiveDirectory("/archive", Failing(size_bytes, gone=False))
    with pytest.raises(HistoryError, match="the connection was lost"):
        store.write(f"manifest-{size_bytes}", DATA)
    assert store.size(f"manifest-{size_bytes}") == there


def test_an_incomplete_file_that_cannot_be_removed_is_named() -> None:
    store = ArchiveDirectory("/archive", Failing(5, gone=True))
    with pytest.raises(HistoryError, match="not known whether an incomplete one exists"):
        store.write("manifest", DATA)


def test_a_failed_write_of_a_local_file_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(HistoryError, match="no space left"):
        ArchiveDirectory(str(tmp_path)).write("manifest", DATA)
    assert list(tmp_path.iterdir()) == []
