"""Bookies are killed and stopped while a writer runs. Nothing acknowledged is lost or changed.

The tests wait for acknowledged entries, never for a fixed time.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire
from quire.testing.cluster import LocalCluster
from tests.support.processes import writer_program

pytestmark = pytest.mark.slow

PROGRESS_TIMEOUT_S = 60.0
PAUSE_MS = 250
"""The pause of the writer after each burst."""


class Writer:
    """The writer program, and what it said."""

    def __init__(
        self, uri: str, ensemble: int = 3, write: int = 3, ack: int = 2, pause_ms: int = PAUSE_MS
    ) -> None:
        program = Path(writer_program.__file__)
        given = map(str, (ensemble, write, ack, 40, pause_ms))
        self.process = subprocess.Popen(
            [sys.executable, str(program), uri, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said = threading.Condition()
        self.ledger_id = -1
        self.acked = -1
        self.end = ""
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, value = line.strip().partition(" ")
            with self._said:
                if word == "ledger":
                    self.ledger_id = int(value)
                elif word == "acked":
                    self.acked = int(value)
                else:
                    self.end = line.strip()
                self._said.notify_all()
        with self._said:
            self.end = self.end or "gone"
            self._said.notify_all()

    def wait_acked(self, more: int) -> int:
        """Wait until `more` further entries are acknowledged."""
        with self._said:
            target = self.acked + more
            reached = self._said.wait_for(
                lambda: self.acked >= target or self.end, PROGRESS_TIMEOUT_S
            )
            assert reached, f"no progress after entry {self.acked}"
            assert not self.end, self.end
            return self.acked

    def wait_end(self) -> str:
        with self._said:
            assert self._said.wait_for(lambda: self.end, PROGRESS_TIMEOUT_S), "does not end"
            return self.end

    def finish(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.wait_end()

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    made: list[Writer] = []
    yield made
    for writer in made:
        writer.close()


async def read_all(uri: str, ledger_id: int, recover: bool = True) -> list[bytes]:
    async with (
        quire.connect(uri) as client,
        await client.open_ledger(ledger_id, recover=recover) as reader,
    ):
        assert reader.ledger_closed
        return [entry.payload async for entry in reader.read()]


def check(uri: str, writer: Writer) -> int:
    """Check all entries and return the last one.

    Everything acknowledged must exist, and further entries must be what the writer sent.
    """
    found = asyncio.run(read_all(uri, writer.ledger_id))
    assert len(found) > writer.acked, "an acknowledged entry is missing"
    for entry_id, payload in enumerate(found):
        assert payload == writer_program.payload(writer.ledger_id, entry_id), entry_id
    return len(found) - 1


@pytest.fixture(scope="module")
def cluster_of_five() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=5) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster_of_three() -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3) as cluster:
        yield cluster


@pytest.fixture
def five(cluster_of_five: LocalCluster) -> LocalCluster:
    """Two more than most ensembles have."""
    return revived(cluster_of_five)


@pytest.fixture
def three(cluster_of_three: LocalCluster) -> LocalCluster:
    """An ensemble, and no more."""
    return revived(cluster_of_three)


def revived(cluster: LocalCluster) -> LocalCluster:
    """Start all bookies of the cluster, even after a failed test."""
    for bookie in cluster.bookies:
        if not bookie.alive:
            bookie.start()
    return cluster


@pytest.mark.parametrize(
    "shape", [(3, 3, 2), pytest.param((4, 2, 2), marks=pytest.mark.long)], ids=["E3W3A2", "E4W2A2"]
)
def test_a_ledger_survives_the_kill_of_any_bookie(
    five: LocalCluster, writers: list[Writer], shape: tuple[int, int, int]
) -> None:
    for victim in range(3):
        writer = Writer(five.uri, *shape)
        writers.append(writer)
        writer.wait_acked(400)
        five.bookies[victim].kill()
        writer.wait_acked(400)
        assert writer.finish() == f"closed {writer.acked}"
        assert check(five.uri, writer) == writer.acked
        five.bookies[victim].start()


def test_a_writer_continues_with_two_of_three_bookies(
    three: LocalCluster, writers: list[Writer]
) -> None:
    """Two bookies are an ack quorum, so the writer continues and uses the third again later."""
    writer = Writer(three.uri)
    writers.append(writer)
    writer.wait_acked(400)
    three.bookies[1].kill()
    writer.wait_acked(400)
    three.bookies[1].start()
    writer.wait_acked(400)
    assert writer.finish() == f"closed {writer.acked}"
    check(three.uri, writer)


def test_a_ledger_survives_two_killed_bookies_of_five(
    five: LocalCluster, writers: list[Writer]
) -> None:
    writer = Writer(five.uri)
    writers.append(writer)
    for victim in (0, 1, 2, 3, 4, 0):
        writer.wait_acked(300)
        five.bookies[victim].kill()
        writer.wait_acked(300)
        five.bookies[victim].start()
    assert writer.finish() == f"closed {writer.acked}"
    check(five.uri, writer)


def test_a_stopped_bookie_is_replaced(tmp_path: Path, writers: list[Writer]) -> None:
    with LocalCluster(bookies=4, directory=tmp_path) as cluster:
        writer = Writer(cluster.uri, pause_ms=0)
        writers.append(writer)
        writer.wait_acked(400)
        paused = cluster.bookies[0]
        paused.pause()
        try:
            # Far more than what is in flight when the timeout expires.
            writer.wait_acked(20_000)
        finally:
            paused.resume()
        writer.wait_acked(400)
        assert writer.finish() == f"closed {writer.acked}"
        check(cluster.uri, writer)


def test_a_killed_writer_is_recovered_and_two_openers_agree(
    three: LocalCluster, writers: list[Writer]
) -> None:
    async def open_twice(uri: str, ledger_id: int) -> list[list[bytes]]:
        return await asyncio.gather(read_all(uri, ledger_id), read_all(uri, ledger_id))

    for _ in range(3):
        writer = Writer(three.uri)
        writers.append(writer)
        writer.wait_acked(500)
        writer.kill()
        one, other = asyncio.run(open_twice(three.uri, writer.ledger_id))
        assert one == other
        assert len(one) > writer.acked
        check(three.uri, writer)


def test_a_resumed_old_writer_is_fenced_out(three: LocalCluster, writers: list[Writer]) -> None:
    writer = Writer(three.uri)
    writers.append(writer)
    writer.wait_acked(400)
    writer.process.send_signal(signal.SIGSTOP)
    last = check(three.uri, writer)
    writer.process.send_signal(signal.SIGCONT)
    assert writer.wait_end() in ("failed LedgerFencedError", "failed LedgerClosedError")
    assert writer.acked <= last
    assert check(three.uri, writer) == last


def test_acknowledged_entries_survive_the_kill_of_all_processes(
    three: LocalCluster, writers: list[Writer]
) -> None:
    for _ in range(2):
        writer = Writer(three.uri)
        writers.append(writer)
        writer.wait_acked(500)
        for bookie in three.bookies:
            bookie.kill()
        writer.kill()
        for bookie in three.bookies:
            bookie.start()
        check(three.uri, writer)
