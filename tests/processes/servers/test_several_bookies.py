"""Several bookies as one service: `quire bookie start --processes N`."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.testing._process import is_free
from quire.testing.cluster import free_ports
from tests.support.processes.cli import Quire, Running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

TWO = ("--ensemble", "2", "--write-quorum", "2", "--ack-quorum", "2")
LINES = b"".join(b"%d\n" % number for number in range(500))


def ports_in_a_row(count: int) -> int:
    """Return the first of `count` free ports that follow each other."""
    while True:
        (first,) = free_ports(1)
        if all(is_free(first + one) for one in range(count)):
            return first


class Service:
    """A running service of two bookies, with what it writes to standard error."""

    def __init__(self, running: Running, http: int) -> None:
        self.running = running
        self.url = f"http://127.0.0.1:{http}"
        self.events: list[dict[str, Any]] = []
        # The pipe must be emptied, and the events are looked at while the service runs.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while line := self.running.error_line():
            self.events.append(json.loads(line))

    def named(self, event: str) -> list[dict[str, Any]]:
        return [one for one in list(self.events) if one["event"] == event]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def bookies(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.get("/api/v1/quire/processes")[1])["bookies"]
        return found

    def ready(self) -> bool:
        return self.get("/api/v1/bookie/is_ready")[0] == 200

    def stop(self) -> int:
        self.running.process.send_signal(signal.SIGTERM)
        return self.running.process.wait(60)


@contextmanager
def service(quire: Quire, directory: Path, host: str, name: str) -> Iterator[Service]:
    port, http = ports_in_a_row(2), ports_in_a_row(3)
    with quire.start(
        "bookie", "start", "--processes", "2", "--dir", str(directory), "--port", str(port),
        "--advertise", host, "--bookie-id", name, "--http", f"127.0.0.1:{http}",
    ) as running:  # fmt: skip
        assert {running.line(), running.line()} == {f"{name}-0", f"{name}-1"}, running.why_ended()
        yield Service(running, http)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_two_services_store_entries_and_restart_a_killed_bookie(tmp_path: Path) -> None:
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db").initialised()
    with (
        service(quire, tmp_path / "a", "127.0.0.1", "a") as one,
        service(quire, tmp_path / "b", "127.0.0.2", "b") as other,
    ):
        assert one.ready()
        assert other.ready()
        for _ in range(5):  # The host is the fault domain: one replica on each.
            ledger_id = quire.write(LINES, *TWO)
            assert quire("ledger", "read", ledger_id).ok() == LINES
            shown = json.loads(quire("ledger", "show", ledger_id, "--json").ok())
            for segment in shown["segments"]:
                assert sorted(bookie[0] for bookie in segment["bookies"]) == ["a", "b"]

        status, metrics = one.get("/metrics")
        assert status == 200
        for name in ("a-0", "a-1"):
            assert f'quire_service_bookie_up{{bookie="{name}"}} 1\n' in metrics
            assert f'bookie_WRITE_BYTES{{bookie="{name}"}} ' in metrics
        assert metrics.count("# TYPE bookie_WRITE_BYTES ") == 1
        status, refusal = one.get("/api/v1/bookie/state")
        assert status == 404
        assert "a-0 at http://127.0.0.1:" in refusal

        victim = one.bookies()[1]["pid"]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: one.named("bookie_ended"), "the service to notice")
        status, said = one.get("/api/v1/bookie/is_ready")
        assert status == 503
        assert "process 1 (a-1)" in said
        assert "process 0" not in said
        assert one.get("/heartbeat")[0] == 200
        wait_for(one.ready, "the bookie to serve again", limit_s=60)
        assert one.bookies()[1]["pid"] != victim
        assert 'restarts_total{bookie="a-1"} 1' in one.get("/metrics")[1]

        pids = [bookie["pid"] for bookie in one.bookies()]
        assert one.stop() == 0, one.events[-8:]
        assert all(map(gone, pids))
        assert other.stop() == 0


@pytest.mark.long
def test_a_rolling_restart_fails_no_add(tmp_path: Path) -> None:
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db").initialised()
    with (
        service(quire, tmp_path / "a", "127.0.0.1", "a") as one,
        service(quire, tmp_path / "b", "127.0.0.2", "b"),
    ):
        before = [bookie["pid"] for bookie in one.bookies()]
        one.running.process.send_signal(signal.SIGHUP)
        written = []

        def rolled() -> object:
            assert not one.named("rolling_restart_stopped")
            written.append(quire.write(LINES, *TWO))
            return one.named("rolling_restart_done")

        wait_for(rolled, "the rolling restart to end", limit_s=120, poll_s=0)
        assert len(written) > 1
        after = [bookie["pid"] for bookie in one.bookies()]
        assert not set(before) & set(after)
        for ledger_id in written:
            assert quire("ledger", "read", ledger_id).ok() == LINES
        # The second one stops only when the first serves again.
        order = [
            (event["event"], event["process"])
            for event in one.events
            if event["event"] in ("stopped", "bookie_serving") and "process" in event
        ]
        at = order.index(("stopped", 0))
        assert order[at:] == [
            ("stopped", 0), ("bookie_serving", 0), ("stopped", 1), ("bookie_serving", 1),
        ]  # fmt: skip


def test_bookies_end_with_their_supervisor(tmp_path: Path) -> None:
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db").initialised()
    with service(quire, tmp_path / "a", "127.0.0.1", "a") as one:
        pids = [bookie["pid"] for bookie in one.bookies()]
        os.kill(one.running.pid, signal.SIGKILL)
        wait_for(lambda: all(map(gone, pids)), "the bookies to end", limit_s=60)


def test_a_start_that_omits_a_bookie_is_refused(tmp_path: Path) -> None:
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db").initialised()
    with service(quire, tmp_path / "a", "127.0.0.1", "a") as one:
        assert one.stop() == 0, one.events[-8:]
    start = ("bookie", "start", "--dir", str(tmp_path / "a"), "--port", "0")
    quire(*start).fails(2, f"{tmp_path}/a/bookie-0", "one process", "--processes 2")
    (tmp_path / "b").mkdir()
    more = ("--dir", str(tmp_path / "b"), "--processes", "2")
    quire(*start, *more).fails(2, f"{tmp_path}/a/bookie-1")


def test_a_shared_start_error_is_printed_in_one_line(tmp_path: Path) -> None:
    """Both bookies fail, because the cluster does not exist. Only one line says so."""
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db")
    done = quire("bookie", "start", "--processes", "2", "--dir", str(tmp_path / "a"), "--port", "0")
    assert done.status == 1
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.err
    assert "quire cluster init" in errors[0]
