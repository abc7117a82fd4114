"""The programs of the cookbook on a real cluster: started, killed, stopped and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quire import blocking
from quire.testing.cluster import LocalCluster, free_ports
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 60.0


class Program:
    """A program that runs, with its input, and all that it has printed so far."""

    def __init__(self, command: list[str], uri: str, directory: Path, number: int) -> None:
        self._out, self._err = directory / f"{number}.out", directory / f"{number}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=EXAMPLES,
                env={**os.environ, "QUIRE_METADATA": uri, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until a line of its output matches."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.out, re.MULTILINE)
            assert match or self.process.poll() is None, (self.out, self.err)
            return match

        match = wait_for(found, f"{pattern!r} from {self.process.args!r}")
        assert match
        return match

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        return self.process.wait(LIMIT_S)


Start = Callable[..., Program]


@pytest.fixture
def start(quire_cluster: LocalCluster, tmp_path: Path) -> Iterator[Start]:
    """Start a program of examples/; none of them outlives the test."""
    started: list[Program] = []

    def start(*command: str) -> Program:
        started.append(Program(list(command), quire_cluster.uri, tmp_path, len(started)))
        return started[-1]

    yield start
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
        program.process.communicate()


def test_the_bank_example_takes_over_from_killed_and_running_copies(start: Start) -> None:
    first = start("wal_takeover.py")
    first.says("^ready: {}")
    for line in ("alice 5", "bob 7", "alice -9", "no amount at all", "alice -1"):
        first.type(line)
    assert first.says("^refused: alice")
    assert first.says("^alice has 4")
    first.signal(signal.SIGKILL)

    second = start("wal_takeover.py")
    second.says("^ready: {'alice': 4, 'bob': 7}")
    second.type("bob 1")
    second.says("^bob has 8")
    second.signal(signal.SIGSTOP)
    third = start("wal_takeover.py")
    third.says("^ready: {'alice': 4, 'bob': 8}")
    second.type("alice 1000")
    second.signal(signal.SIGCONT)
    assert second.ends() == 1
    assert "another copy has taken over" in second.err
    assert "1004" not in second.out
    third.type("alice 1")
    third.says("^alice has 5")


def test_a_killed_consumer_repeats_at_most_one_batch(
    start: Start, quire_blocking_client: blocking.Client, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    command = ("tailing_consumer.py", "/tailed", "numbers", str(output))
    count, killed_at = 2_000, (300, 900, 1_400)
    with quire_blocking_client.namespace("/tailed", create=True) as streams:
        streams.create_stream("numbers")
        consumer = start(*command)
        consumer.says("^reading from earliest")
        with streams.open_writer("numbers") as writer:
            for first in range(0, count, 10):
                writer.append_many([b"number %d" % n for n in range(first, first + 10)])
                if first in killed_at:
                    wait_for(lambda: len(numbers(output)) > first / 2)  # noqa: B023
                    consumer.signal(signal.SIGKILL)
                    consumer.ends()
                    consumer = start(*command)
        wait_for(lambda: count - 1 in numbers(output))
        position = streams.subscription("numbers", "files").position
        wait_for(lambda: position() is not None and position().slot_id > 0)
        consumer.signal(signal.SIGTERM)
        assert consumer.ends() == 0

        seen = numbers(output)
        assert sorted(set(seen)) == list(range(count))
        steps_back = [(before, after) for before, after in pairwise(seen) if after <= before]
        assert len(steps_back) <= len(killed_at)
        # A step back repeats the records of one batch, which is one entry of the stream.
        assert all(before - after < 100 for before, after in steps_back)

        again = start(*command)
        again.says("^reading from (?!earliest)")
        again.signal(signal.SIGTERM)
        assert again.ends() == 0
        assert numbers(output) == seen


def numbers(output: Path) -> list[int]:
    """The sequences of all whole lines."""
    lines = output.read_bytes().splitlines(keepends=True) if output.exists() else []
    found = [line.split() for line in lines if line.endswith(b"\n")]
    assert all(line[0] == line[2] for line in found), found
    return [int(line[0]) for line in found]


def test_the_next_leader_continues_counting(start: Start) -> None:
    copies = [start("leader_election.py", name) for name in ("ann", "bob", "cid")]

    def counts(copy: Program) -> list[int]:
        return [int(number) for number in re.findall(r"^count (\d+)", copy.out, re.MULTILINE)]

    def leader_behind(number: int) -> tuple[Program, int]:
        """The copy that has counted furthest, once that is past `number`, and its count."""
        count, at = wait_for(
            lambda: max((max(counts(copy), default=0), at) for at, copy in enumerate(copies)),
            right=lambda found: found[0] > number,
        )
        return copies[at], count

    leader, number = leader_behind(3)
    leader.signal(signal.SIGKILL)
    leader.ends()
    second, number = leader_behind(number + 2)
    assert second is not leader
    second.signal(signal.SIGSTOP)
    third, number = leader_behind(number + 2)
    assert third not in (leader, second)
    second.signal(signal.SIGCONT)
    second.says("^replaced$")
    every = [number for copy in copies for number in counts(copy)]
    assert len(every) == len(set(every))  # no number was given twice


def ask(url: str, data: bytes | None = None) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, data, timeout=LIMIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_events_of_a_killed_web_service_survive(start: Start) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    ports = free_ports(3)

    def serve(port: int) -> Program:
        server = start("-m", "uvicorn", "fastapi_log:app", "--port", str(port))
        wait_for(lambda: "Uvicorn running" in server.err, server.err)
        return server

    first = serve(ports[0])
    url = [f"http://127.0.0.1:{port}" for port in ports]
    positions = [ask(f"{url[0]}/events", b"event %d" % n) for n in range(3)]
    assert [status for status, _ in positions] == [201] * 3
    first.signal(signal.SIGKILL)
    first.ends()

    serve(ports[1])
    status, events = ask(f"{url[1]}/events")
    assert status == 200
    assert [one["event"] for one in events] == [f"event {n}" for n in range(3)]
    assert [one["position"] for one in events] == [found["position"] for _, found in positions]
    assert ask(f"{url[1]}/events?after={events[1]['position']}")[1] == events[2:]
    assert ask(f"{url[1]}/events?after=somewhere")[0] == 422
    assert ask(f"{url[1]}/events", bytes(2_000_000))[0] == 422
    assert ask(f"{url[1]}/healthy") == (200, {"healthy": True})

    last = serve(ports[2])
    assert ask(f"{url[1]}/events", b"too late")[0] == 503
    assert ask(f"{url[1]}/healthy")[0] == 503
    assert ask(f"{url[2]}/events", b"event 3")[0] == 201
    assert len(ask(f"{url[2]}/events")[1]) == 4
    last.signal(signal.SIGTERM)
    last.ends()


def test_shipped_records_are_in_the_files_exactly_once(
    start: Start, quire_blocking_client: blocking.Client, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    with quire_blocking_client.namespace("/streams", create=True) as streams:

        def append(first: int, last: int) -> None:
            with streams.open_writer("lines", create=True) as writer:
                writer.append_many([b"line %d" % n for n in range(first, last)])

        def ship() -> list[str]:
            shipping = start("logs_to_parquet.py", "lines", str(target))
            assert shipping.ends() == 0, shipping.err
            return shipping.out.splitlines()

        append(0, 100)
        assert ship() == ["000000000000.parquet: records 0 to 99"]
        append(100, 150)
        assert ship() == ["000000000100.parquet: records 100 to 149"]
        assert ship() == []
        # As after a crash between the file and the commit: the position is that of before.
        streams.subscription("lines", "parquet").delete()
        (target / "000000000100.parquet").unlink()
        assert ship() == ["000000000000.parquet: records 0 to 149"]
    lines = pq.read_table(target)["line"].to_pylist()
    assert lines == [f"line {n}" for n in range(150)]


def test_the_tests_of_the_example_pass(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_with_fixture.py"],
        cwd=EXAMPLES,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
