"""How often failed reads are logged."""

from __future__ import annotations

import errno
from typing import Any

from quire.bookie.protocol import read_failures
from quire.bookie.protocol.read_failures import SAME_FILE_S, ReadFailures
from quire.errors import DamagedError, StorageError


class Scene:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.lines: list[dict[str, Any]] = []
        self.failures = ReadFailures(self.log, lambda: self.now_s)

    def log(self, event: str, **fields: object) -> None:
        assert event == "read_failed"
        self.lines.append(fields)

    def read(self, file: str, entry: int = 0) -> None:
        self.failures.add(DamagedError(f"entry {entry} is damaged in {file}", file=file))


def test_a_damaged_file_is_logged_once_a_minute() -> None:
    there = Scene()
    for entry in range(1_000):
        there.read("log/1.seg", entry)
        there.read("log/2.seg", entry)
    assert [one["error"] for one in there.lines] == [
        "entry 0 is damaged in log/1.seg", "entry 0 is damaged in log/2.seg",
    ]  # fmt: skip
    there.now_s += SAME_FILE_S
    there.read("log/1.seg", 1_000)
    there.read("log/1.seg", 1_001)
    assert there.lines[2:] == [{"error": "entry 1000 is damaged in log/1.seg", "left_out": 999}]
    there.now_s += SAME_FILE_S
    there.read("log/1.seg", 1_002)
    assert there.lines[3]["left_out"] == 1


def test_other_failures_are_all_logged() -> None:
    there = Scene()
    for _ in range(3):
        there.failures.add(StorageError("the log is not loaded yet"))
        there.failures.add(DamagedError("a block does not match its checksum"))
    assert len(there.lines) == 6


def test_reads_without_a_file_descriptor_are_logged_once_a_minute() -> None:
    there = Scene()
    for number in range(100):
        error = StorageError(f"log/{number}.seg cannot be opened")
        error.__cause__ = OSError(errno.EMFILE, "Too many open files")
        there.failures.add(error)
    assert there.lines == [{"error": "log/0.seg cannot be opened"}]


def test_the_number_of_remembered_files_is_limited(monkeypatch: Any) -> None:
    monkeypatch.setattr(read_failures, "FILES_MAX", 2)
    there = Scene()
    for file in "abc":
        there.read(file)
    there.read("c")
    assert len(there.lines) == 3
    there.read("a")  # it was forgotten
    assert len(there.lines) == 4
    assert len(there.failures._logged_s) == 2
