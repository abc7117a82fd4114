"""Failures of real processes as reported by `quire explain`, the dashboard and the metrics.

A bookie is killed, a rack is lost, a disk fills, ZooKeeper stops or ends. Each report says what
happened and to what, what is at risk, what is being done, and what to type. tests/ui tests how the
pages show the dashboard's answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.core.placement.tables import with_location
from quire.http.views.bookie_list import LOCATIONS_NODE
from quire.metadata.tree import Create
from quire.testing.cluster import BookieProcess, LocalCluster
from tests.support.processes.cli import COMMAND, Done, Quire, Running, descendants
from tests.support.storage.small_disk import MIB, SmallDisk
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

TOLD_WITHIN_S = 60.0
"""Reached only in a failing test. On a free machine, reports need less than ten seconds."""
POLL_S = 0.1
DELAY_S = 600
"""Seconds that the auditor waits: ten minutes."""
seen = partial(wait_for, limit_s=TOLD_WITHIN_S, poll_s=POLL_S)
BOOKIE = ("--http", "127.0.0.1:0", "--set", "min_free_bytes=0")


def text_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TOLD_WITHIN_S) as answer:
        found: str = answer.read().decode()
        return found


@dataclass
class Watched:
    """A cluster's dashboard and command line."""

    run: Quire
    url: str

    def get(self, path: str) -> tuple[int, Any]:
        try:
            return 200, json.loads(text_of(self.url + path))
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def overview(self) -> dict[str, Any]:
        status, found = self.get("/api/v1/quire/overview")
        assert status == 200, found
        shown: dict[str, Any] = found
        return shown

    def problem(self, what: str) -> dict[str, str] | None:
        """Return the dashboard's problem with this text."""
        found = self.overview()["problems"]
        return next((one for one in found if what in one["what"]), None)

    def told(self, fault: str, **parts: str) -> dict[str, str]:
        """Return it once its other parts match these."""

        def right(one: dict[str, str] | None) -> bool:
            return one is not None and all(
                re.search(wanted, one[name]) for name, wanted in parts.items()
            )

        found = seen(lambda: self.problem(fault), right=right)
        assert found is not None
        return found

    def explain(self) -> str:
        return self.run("explain").ok().decode()

    def metric(self, name: str) -> float | None:
        return metric(self.url, name)


def metric(url: str, name: str) -> float | None:
    """Return the metric, or None if it does not exist."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", text_of(f"{url}/metrics"), re.MULTILINE)
    return float(found[1]) if found else None


def http_of(watched: Watched, bookie: str) -> str:
    _, found = watched.get("/api/v1/quire/bookies")
    url: str = next(one["http"][0] for one in found["bookies"] if one["id"] == bookie)
    return url


@contextmanager
def watching(uri: str) -> Iterator[Watched]:
    run = Quire(uri)
    with run.start("ui", "--http", "127.0.0.1:0") as server:
        yield Watched(run, server.line())


# -- bookies and racks ------------------------------------------------------------------------


async def fill(cluster: LocalCluster) -> tuple[int, dict[str, int]]:
    """Racks, and ledgers: one of which each bookie has a part, and how many name each bookie."""
    racks = b""
    for at, bookie in enumerate(cluster.bookies):
        racks = with_location(racks, bookie.id, f"/rack{at % 2}")
    async with quire.connect(cluster.uri) as client:
        await client.metadata.tree.commit(Create(LOCATIONS_NODE, racks))
        named: dict[str, int] = {bookie.id: 0 for bookie in cluster.bookies}
        ledgers = []
        for size in (4, 4, 2):
            writer = await client.create_ledger(ensemble_size=size, write_quorum=2, ack_quorum=2)
            async with writer:
                await writer.append_many([b"entry"] * 20)
            ledgers.append(writer.ledger_id)
            for bookie_id in writer.metadata.segments[0].ensemble:
                named[bookie_id] += 1
        return ledgers[0], named


def test_the_loss_of_a_bookie_and_then_of_its_rack_is_reported(tmp_path: Path) -> None:
    with (
        LocalCluster(4, tmp_path / "cluster", bookie_args=BOOKIE) as cluster,
        watching(cluster.uri) as watched,
    ):
        ledger_id, named = asyncio.run(fill(cluster))
        watched.run("autorecovery", "delay", str(DELAY_S)).ok()
        first, second = cluster.bookies[1], cluster.bookies[3]
        address = http_of(watched, first.id)
        assert metric(address, "bookie_SERVER_STATUS") == 1
        with watched.run.start("autorecovery", "start", "--name", "healer") as healer:
            assert healer.line() == "healer"
            seen(watched.overview, right=lambda one: one["autorecovery"]["auditor"] == "healer")
            # The disk of the machine that runs the tests may be nearly full.
            assert not [
                one for one in watched.overview()["problems"] if "nearly full" not in one["what"]
            ]
            first.kill()
            _one_is_gone(watched, first, named[first.id])
            assert watched.run("explain", "--exit-code").status == 4
            _its_replica_is_missing(watched, first, ledger_id)
            with pytest.raises(urllib.error.URLError):
                text_of(f"{address}/metrics")
            second.kill()
            _rack_is_gone(watched, [first, second])


def _one_is_gone(watched: Watched, lost: BookieProcess, ledgers: int) -> None:
    said = watched.told(
        f"{lost.id} is gone",
        risk=rf"^{ledgers} of 3 ledgers lack",
        doing=rf"^The auditor healer waits [1-9][0-9]* (s|min|h) more for {lost.id}",
        # The bookie has noted its options, and ledgers on all bookies leave none to copy to.
        next="--http 127.0.0.1:0 --set min_free_bytes=0.* cannot take all of its copies$",
    )
    assert re.search(r"waits (9|10) min more", said["doing"])  # of DELAY_S
    text = seen(watched.explain, right=lambda text: "healer waits" in text)
    for part in (said["what"], said["risk"], said["next"]):
        assert part in text
    assert watched.metric('quire_cluster_bookies{state="gone"}') == 1
    assert watched.metric("quire_cluster_ledgers_lacking") == ledgers
    assert watched.metric("quire_cluster_ledgers_unreadable") == 0


def _its_replica_is_missing(watched: Watched, lost: BookieProcess, ledger_id: int) -> None:
    _, ledger = watched.get(f"/api/v1/quire/ledgers/{ledger_id}/explain")
    states = {one["bookie"]: one["state"] for one in ledger["segments"][0]["replicas"]}
    assert states.pop(lost.id) == "unreachable"
    assert set(states.values()) == {"present"}
    done = watched.run("explain", "ledger", str(ledger_id), "--json")
    verdict = json.loads(done.ok())["verdict"]
    assert lost.id in verdict["sentence"]
    assert verdict["command"]


def _rack_is_gone(watched: Watched, lost: list[BookieProcess]) -> None:
    """Several bookies are lost, so everything that can be copied is copied at once."""
    said = watched.told(
        "All bookies of /rack1 are gone", risk="of 3 ledgers lack|^No ledger", doing="repair|copied"
    )
    assert all(one.id in said["what"] for one in lost)
    assert "quire autorecovery trigger" in said["next"]
    assert watched.problem("is gone: ") is None
    assert said["what"] in watched.explain()
    assert watched.metric("quire_cluster_locations_lost") == 1
    assert watched.metric('quire_cluster_bookies{state="gone"}') == 2


# -- disks ------------------------------------------------------------------------------------


@pytest.mark.small_disk
def test_a_filling_disk_is_reported(tmp_path: Path) -> None:
    run = Quire(f"sqlite:///{tmp_path}/metadata.db")
    run("cluster", "init").ok()
    with SmallDisk(tmp_path / "disk", 64) as disk:
        settings = {
            "segment_bytes": 4 * MIB, "min_free_bytes": 8 * MIB, "read_only_dwell_s": 1,
            "compact_reserve_bytes": 4 * MIB, "check_space_s": 0.2,
        }  # fmt: skip
        given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        directory = str(disk.path / "bookie")
        command = [
            *disk.prefix, *COMMAND, "bookie", "--dir", directory, "--port", "0",
            "--bookie-id", "small", "--http", "127.0.0.1:0", *given,
        ]  # fmt: skip
        with Running(command, run.environment) as bookie, watching(run.uri) as watched:
            assert bookie.line() == "small"
            watched.told(
                "No ledger with the default ensemble can be created",
                what="1 is writable: small$",
                next="^Start another bookie",  # An ensemble of one would have a single copy.
            )
            assert watched.problem("its disk is full") is None
            assert watched.run("explain", "--exit-code").status == 4
            disk.leave(12 * MIB)
            said = watched.told(
                "nearly full",
                what=rf"[89]. % of the disk of small is used \({directory}: .* of 67.1 MB free\)$",
                next=f"^Run this on the machine of small: quire bookie explain space {directory}$",
            )
            assert said["what"] in seen(watched.explain, right=lambda text: "nearly" in text)
            disk.leave(MIB)
            said = watched.told(
                "small is read-only",
                what=rf"its disk is full: {directory}: [0-9.]+ k?M?B of 67.1 MB free"
                r"(, less than min_free_bytes \(8.4 MB\))?; the files of this bookie take [0-9.]+ "
                r"MB, and other files [0-9.]+ MB$",
                risk="^No stored entry is lost",
                doing="^Nothing that helps: even if the bookie deleted its whole log",
                next=f"^Run this on the machine of small: quire bookie explain space {directory}. "
                "It also says how to find the files that are not the bookie's$",
            )
            listed = json.loads(watched.run("cluster", "bookies", "--json").ok())
            assert listed["unwritable"] == [{"why": "full", "directory": directory}]
            text = seen(watched.explain, right=lambda text: directory in text)
            assert said["risk"] in text
            assert said["next"] in text
            assert "No bookie accepts entries" in text
            address = http_of(watched, "small")
            assert metric(address, "bookie_SERVER_STATUS") == 0
            assert metric(address, "quire_storage_writable") == 0
            assert watched.metric('quire_cluster_bookies{state="read-only"}') == 1


# -- the metadata store -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.zookeeper
def test_a_silent_and_then_stopped_zookeeper_is_reported(tmp_path: Path) -> None:
    with (
        LocalCluster(1, tmp_path / "cluster", zookeeper=True, bookie_args=BOOKIE) as cluster,
        watching(cluster.uri) as watched,
    ):
        assert cluster.zookeeper is not None
        (bookie,) = cluster.bookies
        address = http_of(watched, bookie.id)
        for url in (address, watched.url):
            seen(
                lambda url=url: metric(url, "quire_metadata_reachable"),
                right=lambda found: found == 1,
            )
        for page in ("overview", "work"):
            assert watched.get(f"/api/v1/quire/{page}")[1]["old_since_ms"] is None
        begun_s = time.time()
        servers = descendants(cluster.zookeeper.pid)  # Java
        assert servers
        _signal(servers, signal.SIGSTOP)
        try:
            _store_is_away(watched, address, cluster.uri, begun_s)
        finally:
            _signal(servers, signal.SIGCONT)
        seen(lambda: metric(address, "quire_metadata_reachable"), right=lambda found: found == 1)
        assert metric(address, "quire_metadata_unreachable_since_seconds") == 0
        seen(lambda: watched.overview()["old_since_ms"], right=lambda since: since is None)
        for event in ("metadata_lost", "metadata_back"):
            seen(
                lambda name=f'"event": "{event}"': bookie.log_path.read_text().count(name),
                right=lambda count: count == 1,
            )
        _signal(servers, signal.SIGKILL)
        error = _store_is_away(watched, address, cluster.uri, begun_s)
        assert "refused" in error.err
        bookie.kill()  # it would wait for ZooKeeper to withdraw


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _store_is_away(watched: Watched, address: str, uri: str, begun_s: float) -> Done:
    """Bookies still export metrics, with the time since when the store is unreachable."""
    since_s = seen(
        lambda: metric(address, "quire_metadata_unreachable_since_seconds"),
        right=lambda found: found,
    )
    assert since_s is not None
    assert begun_s - 60 < since_s <= time.time()
    assert metric(address, "quire_metadata_reachable") == 0
    assert metric(address, "bookie_SERVER_STATUS") is not None
    lost = watched.told(f"The metadata store {uri} has not answered", risk="last known state")
    assert lost["severity"] == "bad"
    assert re.search(r"since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", lost["what"])
    known = watched.overview()
    assert known["bookies"]["writable"] == 1, "the page shows the last known state"
    for old in (known, watched.get("/api/v1/quire/work")[1]):
        assert begun_s - 60 < old["old_since_ms"] / 1000 <= time.time()
    for page in ("ledgers", "streams"):
        status, found = seen(
            lambda page=page: watched.get(f"/api/v1/quire/{page}"), right=lambda one: one[0] == 503
        )
        assert found["error"]["kind"] == "MetadataUnavailableError"
        assert "Open ledgers can still be written and read" in found["error"]["remedy"], status
    assert uri in found["error"]["what"]
    assert watched.metric("quire_metadata_reachable") == 0
    assert text_of(f"{watched.url}/heartbeat") == "OK\n"
    watched.run("explain", "--exit-code").fails(5, "Open ledgers can still be written and read")
    known = watched.run("explain", "--server", watched.url)
    assert known.status == 1
    said = known.out.decode().splitlines()
    assert re.match(rf"the last state that {watched.url} knows, of \d+ (s|min) ago:$", said[0])
    assert said[1] == "bookies: 1 writable, 0 read-only, 0 gone"
    assert said[2].startswith(f"✗ wrong: The metadata store {uri} has not answered since ")
    nobody = watched.run("explain", "--server", "http://127.0.0.1:1")
    assert "the last known state cannot be read from http://127.0.0.1:1" in nobody.err
    done = watched.run("explain")
    done.fails(1, "ZooKeeper", "Open ledgers can still be written and read")
    return done
