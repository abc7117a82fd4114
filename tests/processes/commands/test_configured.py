"""Bookies configured by a file, the environment and Apache's `bk_server.conf`."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.processes.cli import Quire, Running
from tests.support.waiting import wait_for


def event(bookie: Running, name: str) -> dict[str, object]:
    """The next one of that name; all before it are read as well."""
    while line := bookie.error_line():
        found: dict[str, object] = json.loads(line)
        if found["event"] == name:
            return found
        if found["event"] == "serving":
            break  # The expected event comes before this one.
    raise AssertionError(f"no event {name}")


def test_a_bookie_is_configured_by_a_file_the_environment_and_options(tmp_path: Path) -> None:
    (tmp_path / "quire.toml").write_text(
        f'metadata = "sqlite:///{tmp_path}/metadata.db"\n'
        f'[bookie]\ndirectories = ["{tmp_path}/data"]\nport = 1\nbookie_id = "by-file"\n'
        'segment_bytes = "1m"\nreserve = 0\nhttp = "127.0.0.1:0"\n'
    )
    quire = Quire(directory=tmp_path)
    quire.environment["QUIRE_CONFIG"] = str(tmp_path / "quire.toml")
    quire("bookie", "start").fails(2, "quire.toml:7", "[bookie] has no key 'reserve'")
    text = (tmp_path / "quire.toml").read_text().replace("reserve = 0\n", "")
    (tmp_path / "quire.toml").write_text(text)
    quire.initialised()
    quire.environment |= {"QUIRE_BOOKIE_PORT": "2", "QUIRE_BOOKIE_BOOKIE_ID": "by-environment"}
    with quire.start("bookie", "start", "--port", "0") as bookie:
        assert bookie.line() == "by-environment"
        [listed] = quire("cluster", "bookies", "--json").ok().splitlines()
        one = json.loads(listed)
        assert (one["id"], one["state"]) == ("by-environment", "writable")
        assert one["port"] > 2
        url = event(bookie, "http_serving")["url"]
        with urllib.request.urlopen(f"{url}/heartbeat", timeout=30) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"{url}/api/v1/bookie/is_ready", timeout=30) as answer:
            assert answer.status == 200
        assert bookie.end(signal.SIGTERM).status == 0
    files = [path.stat().st_size for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert 1 << 19 < max(files) <= 1 << 20  # 64 MiB, unless the file counts


def test_a_bookie_accepts_bookkeepers_configuration(tmp_path: Path) -> None:
    (tmp_path / "bk_server.conf").write_text(
        f"bookiePort=0\nadvertisedAddress=127.0.0.1\nledgerDirectories={tmp_path}/data\n"
        "journalDirectories=/mnt/journal\njournalSyncData=true\ngcWaitTime=900000\n"
    )
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db", tmp_path).initialised()
    file = str(tmp_path / "bk_server.conf")
    conf = ("--bk-server-conf", file, "--bind", "127.0.0.1", "--bookie-id", "old-b")
    with quire.start("bookie", "start", *conf, "--set", "segment_bytes=1m") as bookie:
        told = event(bookie, "bk_server_conf")
        assert bookie.line() == "old-b"
        assert bookie.end(signal.SIGTERM).status == 0
    assert told["implied"] == ["journalSyncData"]
    assert list(told["ignored"]) == ["journalDirectories"]  # type: ignore[call-overload]
    taken = told["taken"]
    assert isinstance(taken, dict)
    assert taken["bookie.gc_interval_s"] == 900.0
    assert (tmp_path / "data").is_dir()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux")
@pytest.mark.parametrize("batch", [True, False])
def test_bookie_threads_use_batch_scheduling_unless_disabled(
    tmp_path: Path, *, batch: bool
) -> None:
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db", tmp_path).initialised()
    options = ("--dir", f"{tmp_path}/data", "--port", "0", "--set", "segment_bytes=1m")
    switch = ("--set", f"batch_scheduling={str(batch).lower()}")
    with quire.start("bookie", "start", *options, *switch) as bookie:
        assert bookie.line()
        expected = {os.SCHED_BATCH if batch else os.SCHED_OTHER}
        wait_for(lambda: policies(bookie.process.pid), right=lambda found: found == expected)
        assert bookie.end(signal.SIGTERM).status == 0


def policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}
