"""Something fails, in real processes: what the dashboard's answers, `quire explain` and the metrics
say of it within ten seconds. What the pages make of it is tested beside this, in a browser."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.testing.cluster import LocalCluster

from ..processes.cli import COMMAND, Quire, Running
from ..support.small_disk import MIB, SmallDisk
from .conftest import Dashboard

pytestmark = pytest.mark.slow

TOLD_WITHIN_S = 10.0
POLL_S = 0.1


def told(look: Callable[[], list[str]], part: str) -> str:
    """The first line with `part` in it. It has to be there within `TOLD_WITHIN_S`."""
    deadline = time.monotonic() + TOLD_WITHIN_S
    while True:
        lines = look()
        found = next((line for line in lines if part in line), None)
        if found is not None:
            return found
        assert time.monotonic() < deadline, f"nobody told of {part!r} in time, but: {lines}"
        time.sleep(POLL_S)


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TOLD_WITHIN_S) as answer:
        found: str = answer.read().decode()
        return found


def verdict(dashboard: Dashboard) -> str:
    run = Quire(dashboard.cluster.uri)
    done = run("explain", "ledger", str(dashboard.ledger), "--json")
    sentence: str = json.loads(done.out)["verdict"]["sentence"]
    return sentence


def test_a_bookie_is_killed_then_its_rack(dashboard: Dashboard) -> None:
    first, second = dashboard.cluster.bookies[1], dashboard.cluster.bookies[3]
    _, before = dashboard.get("/api/v1/quire/bookies?rates=true")
    (address,) = next(one["http"] for one in before["bookies"] if one["id"] == first.id)
    assert "bookie_SERVER_STATUS 1" in text_of(f"{address}/metrics")
    try:
        first.kill()
        told(dashboard.problems, f"{first.id} is not registered")
        _, ledger = dashboard.get(f"/api/v1/quire/ledgers/{dashboard.ledger}/explain")
        states = {one["bookie"]: one["state"] for one in ledger["segments"][0]["replicas"]}
        assert states.pop(first.id) == "unreachable"
        assert set(states.values()) == {"present"}
        assert first.id in verdict(dashboard)
        with pytest.raises(urllib.error.URLError):
            text_of(f"{address}/metrics")

        second.kill()
        assert second.id in told(dashboard.problems, "All of /rack1 is gone")
        assert not any("not registered" in line for line in dashboard.problems())
        assert all(one.id in verdict(dashboard) for one in (first, second))
    finally:
        for bookie in (first, second):
            if not bookie.alive:
                bookie.start()
    assert not any("gone" in line for line in dashboard.problems())


@pytest.mark.small_disk
def test_a_disk_fills(tmp_path: Path) -> None:
    run = Quire(f"sqlite:///{tmp_path}/metadata.db")
    run("cluster", "init").ok()
    with SmallDisk(tmp_path / "disk", 64) as disk:
        settings = {
            "segment_bytes": 4 * MIB, "min_free_bytes": 8 * MIB,
            "compact_reserve_bytes": 4 * MIB, "check_space_s": 0.2,
        }  # fmt: skip
        given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        command = [
            *disk.prefix, *COMMAND, "bookie", "--dir", str(disk.path / "bookie"), "--port", "0",
            "--bookie-id", "small", "--http", "127.0.0.1:0", *given,
        ]  # fmt: skip
        with (
            Running(command, run.environment) as bookie,
            run.start("ui", "--http", "127.0.0.1:0") as server,
        ):
            assert bookie.line()
            shown = Dashboard(LocalCluster(), server, server.line())
            assert not any("small" in line for line in shown.problems())
            disk.leave(MIB)
            line = told(shown.problems, "small is read-only")
            assert "its disk is full" in line
            assert "No bookie takes entries" in shown.problems()[0]
            _, found = shown.get("/api/v1/quire/bookies?space=true")
            (one,) = found["bookies"]
            assert one["free_bytes"] <= 2 * MIB
            assert "bookie_SERVER_STATUS 0" in text_of(f"{one['http'][0]}/metrics")


@pytest.mark.zookeeper
def test_zookeeper_stops(tmp_path: Path) -> None:
    with (
        LocalCluster(1, tmp_path / "cluster", zookeeper=True) as cluster,
        Quire(cluster.uri).start("ui", "--http", "127.0.0.1:0") as server,
    ):
        shown = Dashboard(cluster, server, server.line())
        assert shown.get("/api/v1/quire/overview")[0] == 200
        assert cluster.zookeeper is not None
        cluster.zookeeper.kill()
        begun = time.monotonic()
        status, found = shown.get("/api/v1/quire/overview")
        assert status == 503, found
        assert time.monotonic() - begun < TOLD_WITHIN_S
        assert found["error"]["kind"] == "MetadataUnavailableError"
        assert found["error"]["remedy"]
        assert text_of(f"{shown.url}/heartbeat") == "OK\n"
        assert "quire_http_failed_total 1" in text_of(f"{shown.url}/metrics")
        cluster.bookies[0].kill()  # it would wait for ZooKeeper to withdraw
