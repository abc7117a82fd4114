"""Reports of how far a bookie's logs reach: when they are due, and what ends them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from quire.bookie.directories import rollback
from quire.bookie.directories.rollback import Known, Rollbacks, why_behind
from quire.errors import CookieError, MetadataUnavailableError, StorageError
from quire.metadata.bookies.directories import (
    BookieDirectories,
    LogMark,
    read_directories,
    write_directories,
)
from quire.metadata.interface import Versioned
from quire.storage.directory import CURRENT_DIRECTORY
from quire.storage.disk import RealDisk
from quire.storage.recovery.incarnation import Incarnation, LogPosition, read_incarnation
from tests.support.bookies.bookie import memory_metadata

PATH, OWN = "/d", "0a"
MARK = LogMark(3, "aa", 7, 20)


class Logs:
    """The logs of one bookie, as far as reports ask for them."""

    def __init__(self) -> None:
        self.at = {PATH: LogPosition(7, 20)}
        self.state = "failed"

    def positions(self) -> dict[str, LogPosition]:
        return self.at

    def directories(self) -> list[Any]:
        class State:
            state, reason = self.state, "the disk failed"

        return [State]


class Scene:
    def __init__(self) -> None:
        self.logs = Logs()
        self.metadata = memory_metadata()
        self.events: list[str] = []
        self.now_s = 100.0
        self.rollbacks = Rollbacks(
            cast(Any, self.logs), self.metadata, "b", self._log, lambda: self.now_s, interval_s=60.0
        )

    def _log(self, event: str, **fields: object) -> None:
        self.events.append(event)

    async def begun(self) -> Rollbacks:
        """Return the reports of a process that has started and written its mark."""
        await self.metadata.initialise()
        value = BookieDirectories({PATH: OWN}, marks={OWN: MARK})
        version = await write_directories(self.metadata, "b", value, None)
        self.rollbacks._found = Versioned(value, version)
        self.rollbacks._known = {PATH: Known(OWN, 3, MARK)}
        self.rollbacks.reported_s = self.now_s
        return self.rollbacks

    async def stored(self) -> BookieDirectories:
        found = await read_directories(self.metadata, "b")
        assert found is not None
        return found.value

    async def other(self, **marks: LogMark) -> None:
        """Change the record as another process does."""
        found = await read_directories(self.metadata, "b")
        assert found is not None
        value = replace(found.value, marks={**found.value.marks, **marks})
        await write_directories(self.metadata, "b", value, found.version)

    def grow(self, newest_file: int, end_group: int) -> None:
        self.logs.at = {PATH: LogPosition(newest_file, end_group)}


async def test_a_report_stores_the_end_of_the_log() -> None:
    s = Scene()
    reports = await s.begun()
    assert await reports.report()  # There is nothing to report.
    assert reports.unreported_s == 0.0
    s.grow(7, 25)
    s.now_s += 5
    assert reports.unreported_s == 5.0
    assert await reports.report()
    assert (await s.stored()).marks[OWN] == replace(MARK, end_group=25)
    assert (reports.unreported_s, reports.reported_s) == (0.0, 105.0)
    s.grow(6, 30)  # A file that was deleted makes no mark go back.
    assert await reports.report()
    assert (await s.stored()).marks[OWN].newest_file == 7
    assert s.events == []


async def test_a_report_counts_from_the_moment_of_the_position_that_it_has() -> None:
    """The log grows while the store is slow, and what it adds meanwhile is not reported yet."""
    s = Scene()
    reports = await s.begun()

    async def slow(name: str, done: bool) -> None:
        if done and name == "tree_commit":
            s.now_s += 40
            s.grow(7, 30)

    s.grow(7, 25)
    s.now_s += 5
    s.metadata._hook = slow
    assert await reports.report()
    assert (await s.stored()).marks[OWN].end_group == 25
    assert (reports.reported_s, reports.unreported_s) == (105.0, 40.0)
    s.now_s += 20  # The interval of 60 s is over since the position was taken.
    assert reports._due(reports._moved())


async def test_a_report_is_due_at_once_for_a_new_segment_and_else_after_its_interval() -> None:
    s = Scene()
    reports = await s.begun()
    assert not reports._due(reports._moved())
    s.grow(7, 21)
    assert not reports._due(reports._moved())
    s.now_s += 60
    assert reports._due(reports._moved())
    s.now_s -= 60
    s.grow(8, 21)
    assert reports._due(reports._moved())


async def test_marks_of_other_directories_are_kept() -> None:
    s = Scene()
    reports = await s.begun()
    await s.other(**{"0b": LogMark(1, "bb", 1, 1)})
    s.grow(7, 25)
    assert await reports.report()
    marks = (await s.stored()).marks
    assert marks["0b"] == LogMark(1, "bb", 1, 1)
    assert marks[OWN].end_group == 25


@pytest.mark.parametrize(
    "mark", [replace(MARK, incarnation=4), replace(MARK, nonce="cc"), LogMark(3, lost="is gone")]
)
async def test_a_replaced_process_reports_nothing_more(mark: LogMark) -> None:
    s = Scene()
    reports = await s.begun()
    await s.other(**{OWN: mark})
    s.grow(7, 25)
    assert not await reports.report()
    assert (await s.stored()).marks[OWN] == mark
    assert s.events == ["log_position_not_mine"]
    assert not await reports.report()
    assert s.events == ["log_position_not_mine"]
    await reports.look()
    assert s.events == ["log_position_not_mine"]


async def test_a_failing_store_is_logged_once_and_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = Scene()
    reports = await s.begun()
    s.grow(7, 25)

    async def fail(*given: object) -> int:
        raise MetadataUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(rollback, "write_directories", fail)
        for _ in range(2):
            assert not await reports.report()
    assert s.events == ["log_position_not_reported"]
    assert reports._known[PATH].mark == MARK  # So the next check finds it moved.
    assert await reports.report()
    assert s.events == ["log_position_not_reported", "log_position_reported"]
    assert (await s.stored()).marks[OWN].end_group == 25


@pytest.mark.parametrize("written", [False, True])
async def test_a_cancelled_report_does_not_count(
    monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """The last report of a bookie that stopped meanwhile found that nothing had moved."""
    s = Scene()
    reports = await s.begun()
    s.grow(8, 25)
    asked = asyncio.Event()

    async def slow(*arguments: Any) -> int:
        if written:
            await write_directories(*arguments)
        asked.set()
        await asyncio.Event().wait()
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(rollback, "write_directories", slow)
        report = asyncio.create_task(reports.report())
        await asked.wait()
        report.cancel()
        with pytest.raises(asyncio.CancelledError):
            await report
    await reports.last()
    assert (await s.stored()).marks[OWN] == replace(MARK, newest_file=8, end_group=25)
    assert reports.unreported_s == 0.0
    assert s.events == []


async def test_a_record_that_keeps_changing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene()
    reports = await s.begun()
    s.grow(7, 25)
    attempts: list[int] = []
    real = write_directories

    async def overtaken(*given: Any) -> int:
        attempts.append(1)
        await s.other(**{"0b": LogMark(len(attempts), "bb", 1, 1)})
        return await real(*given)

    monkeypatch.setattr(rollback, "write_directories", overtaken)
    assert not await reports.report()
    assert len(attempts) == rollback.REPORT_ATTEMPTS
    assert s.events == ["log_position_not_reported"]
    assert (await s.stored()).marks[OWN] == MARK


async def test_the_last_report_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene()
    reports = await s.begun()
    s.grow(7, 25)
    await reports.last()
    assert (await s.stored()).marks[OWN].end_group == 25
    s.grow(7, 30)

    async def hang(*given: object) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(rollback, "write_directories", hang)
    monkeypatch.setattr(rollback, "LAST_REPORT_S", 0.01)
    await reports.last()
    assert s.events == ["log_position_not_reported"]


async def test_a_start_concurrent_with_another_is_refused() -> None:
    s = Scene()
    reports = await s.begun()
    s.logs.state = "writable"
    s.logs.at = {}
    await s.other(**{"0b": LogMark(1, "bb", 1, 1)})
    with pytest.raises(CookieError, match="another process has started it"):
        await reports.begin(bytes, ["/d went back in time"])
    assert reports.found == 1
    assert s.events == ["directory_went_back"]


async def test_a_start_on_failed_directories_only_is_refused() -> None:
    s = Scene()
    reports = await s.begun()
    s.logs.at = {}
    with pytest.raises(StorageError, match="the disk failed"):
        await reports.begin(bytes, [])


async def test_a_directory_has_its_incarnation_before_the_store_has(tmp_path: Path) -> None:
    """A crash between the two must leave a directory that is ahead of its mark, not behind it."""
    disk = RealDisk(tmp_path)
    disk.make_directory(CURRENT_DIRECTORY)
    s = Scene()
    reports = await s.begun()
    reports._disks = {PATH: disk}
    s.logs.state = "writable"
    seen: list[Incarnation | None] = []

    async def look(name: str, done: bool) -> None:
        if not done and name == "tree_commit":
            seen.append(read_incarnation(disk))

    s.metadata._hook = look
    await reports.begin(bytes, [])
    assert seen == [Incarnation(4, bytes(8).hex())]
    mark = (await s.stored()).marks[OWN]
    assert (mark.incarnation, mark.nonce) == (4, bytes(8).hex())
    assert why_behind(MARK, seen[0]) == ""  # as after a crash before the store was written
