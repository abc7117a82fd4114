"""Operators' jobs with real processes.

A lost bookie is recovered, a live one is drained, a new one is filled, and a ledger is explained.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire import blocking
from quire.blocking import Client
from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import Quire
from tests.support.waiting import wait_for

PAYLOADS = [b"entry %d of a ledger that is moved" % n for n in range(400)]


@pytest.fixture
def cluster() -> Any:
    with LocalCluster(bookies=4) as local:
        yield local


class Watcher:
    """A client of the test's own: commands are for what is tested."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def write(self, count: int) -> list[int]:
        ids = []
        for _ in range(count):
            with self.client.create_ledger() as writer:
                writer.append_many(PAYLOADS)
            ids.append(writer.ledger_id)
        return ids

    def naming(self, bookie: str) -> list[int]:
        """The ledgers that name the bookie."""
        return [
            one
            for one in self.client.list_ledgers()
            if any(bookie in s.ensemble for s in self.client.ledger_metadata(one).segments)
        ]

    def state(self, bookie: str) -> str:
        found = self.client.bookies()
        if bookie in found.writable:
            return "writable"
        return "read-only" if bookie in found.readonly else "gone"

    def all_is_there(self) -> None:
        for one in self.client.list_ledgers():
            with self.client.open_ledger(one) as reader:
                assert [entry.payload for entry in reader.read()] == PAYLOADS


@contextmanager
def watched(local: LocalCluster) -> Iterator[Watcher]:
    with blocking.connect(local.uri) as client:
        yield Watcher(client)


def test_a_lost_bookie_is_recovered(cluster: LocalCluster) -> None:
    quire = Quire(cluster.uri)
    with watched(cluster) as seen:
        seen.write(4)
        lost = next(bookie for bookie in cluster.bookies if seen.naming(bookie.id))
        quire("bookie", "recover", lost.id).fails(2, lost.id, "is running")
        lost.kill()
        wait_for(lambda: seen.state(lost.id) == "gone")
        concerned = seen.naming(lost.id)
        explained = quire("explain", "ledger", str(concerned[0])).ok().decode()
        assert explained.splitlines()[-1].endswith(f"quire bookie recover {lost.id}"), explained
        assert "unreachable" in explained
        planned = json.loads(quire("bookie", "recover", lost.id, "--dry-run", "--json").ok())
        assert [one["ledger"] for one in planned["moves"]] == concerned == seen.naming(lost.id)
        assert planned["to_move"]["bytes"] > 0
        done = json.loads(quire("bookie", "recover", lost.id, "--json", "--parallel", "2").ok())
        assert done["complete"]
        assert done["entries"] == planned["to_move"]["entries"]
        assert seen.naming(lost.id) == []
        seen.all_is_there()
        deep = json.loads(quire("explain", "ledger", str(concerned[0]), "--deep", "--json").ok())
        assert deep["verdict"]["command"] == "", deep
        again = quire("bookie", "recover", lost.id).ok().decode()
        assert again.startswith(f"0 of 0 ledgers no longer use {lost.id}"), again


def test_a_running_bookie_is_decommissioned_and_a_new_one_filled(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    quire = Quire(cluster.uri)
    with watched(cluster) as seen:
        seen.write(5)
        leaving = next(bookie for bookie in cluster.bookies if seen.naming(bookie.id))
        # Interrupted it stays read-only, and can be called off.
        with quire.start("bookie", "decommission", leaving.id, "--bytes-per-s", "1k") as slow:
            wait_for(lambda: seen.state(leaving.id) == "read-only")
            done = slow.end(signal.SIGINT)
        assert done.status == 130
        assert "--cancel" in done.err
        out = quire("bookie", "decommission", leaving.id, "--cancel").ok()
        assert b"may accept entries again" in out
        wait_for(lambda: seen.state(leaving.id) == "writable")
        slip = quire("cluster", "pause", "decommission", f"{leaving.id}1")
        slip.fails(2, f"the cluster knows no bookie {leaving.id}1", f"Did you mean {leaving.id}?")
        assert quire("cluster", "pause").ok() == b""
        out = quire("bookie", "decommission", leaving.id).ok()
        assert f"bookie {leaving.id} is decommissioned" in out.decode()
        assert b"Erase its directories" in out
        assert seen.state(leaving.id) == "gone"
        assert seen.naming(leaving.id) == []
        quire("bookie", "decommission", leaving.id, "--cancel").fails(
            2, f"the cluster knows no bookie {leaving.id}", "cannot be cancelled any more"
        )
        seen.all_is_there()
        # A new bookie gets its share.
        with quire.start("bookie", "--dir", str(tmp_path / "new"), "--port", "0") as added:
            bookie = added.line()
            plan = json.loads(quire("cluster", "rebalance", "--dry-run", "--json").ok())
            assert plan["to_move"]["replicas"] > 0
            assert seen.naming(bookie) == []
            moved = json.loads(quire("cluster", "rebalance", "--json").ok())
            assert moved["moved"] == plan["to_move"]["replicas"] == len(seen.naming(bookie))
            assert moved["spread_after_percent"] < moved["spread_before_percent"]
            seen.all_is_there()
            assert added.end(signal.SIGTERM).status == 0


def test_a_job_that_cannot_succeed_is_refused_before_it_begins(tmp_path: Path) -> None:
    """It was once begun, left the bookie read-only, and failed ledger by ledger."""
    with LocalCluster(3, tmp_path) as local, watched(local) as seen:
        quire = Quire(local.uri)
        ledgers = seen.write(3)
        bookie = local.bookies[0]
        for dry_run in ((), ("--dry-run",)):
            error = quire("bookie", "decommission", bookie.id, *dry_run).fails(
                1, "3 of its 3 ledgers", f"1 bookie instead of {bookie.id} is wanted",
                "Nothing was changed", "Start another bookie first", "--no-check",
            )  # fmt: skip
            assert error.count("is wanted") == 1
            assert seen.state(bookie.id) == "writable"
        begun = quire("bookie", "decommission", bookie.id, "--no-check")
        assert begun.status == 1
        assert f"quire bookie decommission {bookie.id} --cancel" in begun.out.decode()
        (line,) = begun.err.splitlines()
        assert line.startswith(f"ledgers {', '.join(map(str, ledgers))}: 1 bookie instead of")
        quire("bookie", "decommission", bookie.id, "--cancel").ok()
        bookie.kill()
        wait_for(lambda: seen.state(bookie.id) == "gone")
        quire("bookie", "recover", bookie.id).fails(
            1, "cannot be recovered", "3 of its 3 ledgers", "Nothing was changed"
        )
        local.bookies[1].kill()
        wait_for(lambda: seen.state(local.bookies[1].id) == "gone")
        quire("cluster", "rebalance").fails(1, "1 bookie is writable, and a move needs two")


def test_a_recovery_of_chosen_ledgers_starts(tmp_path: Path) -> None:
    with LocalCluster(3, tmp_path) as local, watched(local) as seen:
        quire = Quire(local.uri)
        (stuck,) = seen.write(1)
        lost = local.bookies[0]
        while True:
            quorums = ("--ensemble", "2", "--write-quorum", "2")
            ledger_id = int(quire.write(b"".join(one + b"\n" for one in PAYLOADS), *quorums))
            if ledger_id in seen.naming(lost.id):
                break
        lost.kill()
        wait_for(lambda: seen.state(lost.id) == "gone")
        done = quire("bookie", "recover", lost.id)
        assert (done.status, seen.naming(lost.id)) == (1, [stuck])
        assert f"ledger {stuck}: 1 bookie instead of {lost.id} is wanted" in done.err
