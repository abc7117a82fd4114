"""The functions that kill Spark's drivers in tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.sessions import in_session, kill_session

GENERATIONS = r"""
import os, time
def live(below):
    os.setpgid(0, 0) if below < 2 else None
    if below and not os.fork():
        live(below - 1)
    os.write(1, b"%d\n" % os.getpid())
    time.sleep(600)
live(2)
"""


@pytest.fixture
def generations() -> Iterator[list[int]]:
    """Run a process that leads a session, its child and its grandchild, in separate groups."""
    with subprocess.Popen(
        [sys.executable, "-c", GENERATIONS], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            pids = {int(process.stdout.readline()) for _ in range(3)}
            child = next(iter(pids & children(process.pid)))
            yield [process.pid, child, *(pids - {process.pid, child})]
        finally:
            kill_session(process.pid)


def children(pid: int) -> set[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return {int(word) for word in file.read().split()}


def test_children_are_killed_before_their_parents(generations: list[int]) -> None:
    assert in_session(generations[0]) == generations[::-1]


def test_the_spared_process_is_not_killed(generations: list[int]) -> None:
    kill_session(generations[0], spared=generations[2])
    assert in_session(generations[0]) == [generations[2]]
