"""The store on the real disk with its threads: restarts, and SIGKILL."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from quire.storage.read.read_exceptions import WouldBlock
from tests.support.storage.storage import make_entry
from tests.support.storage.storage_program import CONFIG, FENCED, LEDGERS, Opened, payload_of

ROOT = Path(__file__).parents[3]
LIMIT_S = 60


async def read_all(opened: Opened, ledger_id: int) -> list[bytes]:
    found: list[bytes] = []
    last = opened.store.last_entry_id(ledger_id)
    while len(found) <= last:
        try:
            more = opened.store.read(ledger_id, len(found), 1000, 200_000)
        except WouldBlock:
            more = await opened.store.read_blocking(ledger_id, len(found), 1000, 200_000)
        found += map(bytes, more)
    return found


def expected(ledger_id: int, count: int) -> list[bytes]:
    return [make_entry(ledger_id, i, payload_of(ledger_id, i)) for i in range(count)]


async def write(opened: Opened, ledger_id: int, batches: int, per_batch: int) -> None:
    for _ in range(batches):
        first = opened.next_entry(ledger_id)
        await opened.append(
            [(ledger_id, i, payload_of(ledger_id, i)) for i in range(first, first + per_batch)]
        )


async def sealed(opened: Opened) -> None:
    """Wait until maintenance has nothing left to seal."""
    async with asyncio.timeout(LIMIT_S):
        while opened.store.stats().segments_to_seal:
            await asyncio.sleep(0.01)


async def test_entries_of_several_writers_are_readable_before_and_after_a_restart(
    tmp_path: Path,
) -> None:
    opened = Opened(str(tmp_path))
    async with asyncio.TaskGroup() as tasks:
        for ledger_id in range(1, 9):
            tasks.create_task(write(opened, ledger_id, 40, 1 + ledger_id))
    for ledger_id in range(1, 9):
        want = expected(ledger_id, 40 * (1 + ledger_id))
        assert await read_all(opened, ledger_id) == want
    await sealed(opened)
    assert opened.store.stats().sealed_segments >= 1
    assert opened.store.stats().groups < 8 * 40 + 50
    await opened.close()
    names = os.listdir(tmp_path / "log")
    opened = Opened(str(tmp_path))
    assert opened.report.clean
    assert opened.report.groups_scanned == 0
    assert len(names) >= 3
    for ledger_id in range(1, 9):
        want = expected(ledger_id, 40 * (1 + ledger_id))
        assert await read_all(opened, ledger_id) == want
    opened.store.drop_ledgers(range(1, 9))
    async with asyncio.timeout(LIMIT_S):
        while opened.store.stats().segments > 1:
            await asyncio.sleep(0.01)
    await opened.close()
    assert len(os.listdir(tmp_path / "log")) < len(names) + 3
    opened = Opened(str(tmp_path))
    assert opened.store.ledgers == {}
    assert opened.report.problems == ()
    await opened.close()


async def test_a_directory_cannot_be_opened_by_two_stores(tmp_path: Path) -> None:
    opened = Opened(str(tmp_path))
    with pytest.raises(BlockingIOError):
        Opened(str(tmp_path))
    await opened.close()


async def test_an_idle_log_is_marked_without_a_request(tmp_path: Path) -> None:
    opened = Opened(str(tmp_path), replace(CONFIG, seal_idle_s=0.001))
    await opened.append([(1, opened.next_entry(1), b"x")])
    async with asyncio.timeout(LIMIT_S):
        while opened.store.stats().groups < 2:
            await asyncio.sleep(0.005)
    await opened.close()


def run_until(path: Path, lines: int) -> dict[int, int]:
    """Run a writing process until it has acknowledged enough, and kill it.

    Return the last acknowledged entry of each ledger.
    """
    command = [sys.executable, "-m", "tests.support.storage.storage_program", str(path)]
    last: dict[int, int] = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(lines):
                ledger_id, entry_id = map(int, process.stdout.readline().split())
                last[ledger_id] = entry_id
        finally:
            process.send_signal(signal.SIGKILL)
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                ledger_id, entry_id = map(int, line.split())
                last[ledger_id] = entry_id
    return last


async def test_entries_acknowledged_by_a_killed_process_are_readable(tmp_path: Path) -> None:
    for lines in (1, 150, 400):
        acknowledged = await asyncio.to_thread(run_until, tmp_path, lines)
        assert acknowledged
        opened = Opened(str(tmp_path))
        assert opened.report.problems == ()
        assert not opened.report.clean
        assert opened.store.ledgers[FENCED].fenced
        for ledger_id in LEDGERS:
            count = opened.next_entry(ledger_id)
            assert count > acknowledged.get(ledger_id, -1)
            assert await read_all(opened, ledger_id) == expected(ledger_id, count)
        await opened.close()
