"""SQLite metadata stores with a controlled clock and processes, and programs that use them."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire._runtime.clock import SystemClock
from quire.metadata.sqlite.session import ProcessId
from quire.metadata.sqlite.store import SqliteStore
from tests.support.metadata.backends import Backend

LONG_MS = 3_600_000
"""A session timeout in milliseconds that no test waits for.

A session with it ends only when its process dies.
"""


class FakeMachine:
    """The machine as a SQLite store sees it, whose clock and processes the test controls."""

    def __init__(self) -> None:
        self.boot = "boot-1"
        self.time_ms = 1_000
        self.gone: set[int] = set()
        self.process = ProcessId(100, "ns", 7)

    def boot_id(self) -> str:
        return self.boot

    def now_ms(self) -> int:
        return self.time_ms

    def this_process(self) -> ProcessId:
        return self.process

    def exists(self, process: ProcessId) -> bool:
        return process.pid not in self.gone


async def open_store(
    backend: Backend,
    *,
    session_timeout_ms: int = 4_000,
    busy_timeout_ms: int = 5_000,
    machine: FakeMachine | None = None,
    create: bool = False,
) -> SqliteStore:
    return await SqliteStore.open(
        path_of(backend),
        create=create,
        clock=SystemClock(),
        rng=random.Random(),
        session_timeout_ms=session_timeout_ms,
        busy_timeout_ms=busy_timeout_ms,
        machine=machine,
        watch_poll_s=0.02,
    )


def path_of(backend: Backend) -> Path:
    return Path(backend.uri.removeprefix("sqlite:///"))


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program in the block, and kill it at the end."""
    running = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


async def next_line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return (await asyncio.to_thread(running.stdout.readline)).strip()
