"""Commands after a metadata store was restored from an older backup."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.cli import Quire, Running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

ONE = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
NEWER = 5


def event(bookie: Running, *names: str) -> dict[str, Any]:
    while line := bookie.error_line():
        found: dict[str, Any] = json.loads(line)
        if found["event"] in names:
            return found
    raise AssertionError(f"no event {names}: {bookie.why_ended()}")


def mark(file: Path) -> int:
    """The count of the bookie's mark in a store."""
    store = sqlite3.connect(file)
    query = "SELECT data FROM tree WHERE path LIKE '%quire-collection-marks/b'"
    row = store.execute(query).fetchone()
    store.close()
    return 0 if row is None else int(json.loads(row[0])["count"])


def test_restoring_an_older_backup_on_a_full_disk_loses_no_ledger(tmp_path: Path) -> None:
    """The guide said `gc_interval_s=24h`; below `min_free_bytes` it collected all the same, and
    dropped the ledgers that were newer than the backup."""
    file, backup = tmp_path / "metadata.db", tmp_path / "backup.db"
    quire = Quire(f"sqlite:///{file}").initialised()
    start = (
        "bookie", "--dir", str(tmp_path / "data"), "--port", "0", "--bookie-id", "b",
        "--set", "segment_bytes=1m", "--set", "gc_interval_s=24h",
        "--set", "metadata_mark_interval_s=0.1",
    )  # fmt: skip
    with quire.start(*start) as bookie:
        assert bookie.line() == "b"
        old = quire.write(b"old\n", *ONE)
        source, target = sqlite3.connect(file), sqlite3.connect(backup)
        source.backup(target)
        source.close()
        target.close()
        newer = [quire.write(b"newer\n", *ONE) for _ in range(NEWER)]
        wait_for(lambda: mark(file) > mark(backup) + 1)
        assert bookie.end(signal.SIGTERM).status == 0
    backup.replace(file)
    quire("cluster", "gc", "off").ok()  # before a bookie starts, as the guide says
    with quire.start(*start) as bookie:
        assert bookie.line() == "b"
        event(bookie, "metadata_went_back")
        assert list(map(str, event(bookie, "garbage_unnamed")["ledgers"])) == newer
        assert bookie.end(signal.SIGTERM).status == 0
    quire("cluster", "gc", "on").ok()
    full = ("--set", "min_free_bytes=1000000g", "--set", "gc_full_interval_s=0.1")
    with quire.start(*start, *full) as bookie:
        assert bookie.line() == "b"
        event(bookie, "metadata_went_back")
        for _ in range(3):
            unnamed = event(bookie, "garbage_unnamed", "ledgers_dropped")
            assert unnamed["event"] == "garbage_unnamed"
            assert list(map(str, unnamed["ledgers"])) == newer
        assert b"b collects no garbage" in quire("cluster", "gc", "status").ok()
        assert b"The metadata store went back in time, as detected by b" in quire("explain").ok()
        # No new ledger gets the id of one that the store has forgotten.
        quire("cluster", "skip-ids", newer[-1]).ok()
        # The switch stops it as well, and is stronger than the acceptance.
        quire("cluster", "gc", "off", "--why", "a restore").ok()
        event(bookie, "garbage_collection_off")
        quire("cluster", "gc", "accept").fails(2, "--yes")
        assert b"b would resume" in _said(quire, "cluster", "gc", "accept", "--dry-run")
        assert b"b resumes" in _said(quire, "cluster", "gc", "accept", "--yes")
        shown = json.loads(quire("cluster", "gc", "status", "--json").ok())
        assert (shown["off"], shown["why"], shown["refusing"]) == (True, "a restore", {})
        quire("cluster", "gc", "on").ok()
        dropped = event(bookie, "ledgers_dropped")
        assert dropped["count"] == NEWER
        assert quire("cluster", "gc", "status").ok() == b"garbage collection is on\n"
        assert quire("ledger", "read", old).ok() == b"old\n"
        bookie.end(signal.SIGTERM).ok()
    with quire.start(*start) as bookie:
        assert bookie.line() == "b"
        assert int(quire.write(b"next\n", *ONE)) > int(newer[-1])


def _said(quire: Quire, *command: str) -> bytes:
    done = quire(*command)
    done.ok()
    return done.err.encode()
