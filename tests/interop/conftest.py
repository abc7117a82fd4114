"""Shared clusters, with the logs of their servers if a test fails."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import jpype
import pytest

from tests.support.interop.apache_cluster import Cluster
from tests.support.interop.make_cluster import MakeCluster
from tests.support.interop.stream_place import Place

SAID_LINES = 15


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """The last lines of every server's log, below the failure."""
    report = yield
    if report.failed:
        for cluster in Cluster.running:
            for path in sorted(cluster.directory.glob("*.log")):
                lines = path.read_text(errors="replace").splitlines()[-SAID_LINES:]
                report.sections.append((str(path), "\n".join(lines)))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if jpype.isJVMStarted():
        atexit.register(_end, session)  # the last to be registered is the first to be called


def _end(session: pytest.Session) -> None:
    """Now, with pytest's status. Otherwise one of Java's own threads may ask for an interpreter
    that is gone, which aborts the process; and ending the virtual machine first would wait for
    every thread that any library has left."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(session.exitstatus))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Empty, for one test."""
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeCluster]:
    """A cluster of four bookies of a kind ("quire", or a storage of Apache's), for the tests of a
    module that leave it as it is. One at a time: the next kind ends the one before."""
    running: dict[str, Cluster] = {}

    def end() -> None:
        for cluster in running.values():
            cluster.close()
        running.clear()

    def make(kind: str) -> Cluster:
        if kind not in running:
            end()
            cluster = Cluster(tmp_path_factory.mktemp(kind)).__enter__()
            running[kind] = cluster
            if kind == "quire":
                cluster.add_quire(4)
            else:
                cluster.add_apache(4, kind)
            cluster.wait_ready()
        return running[kind]

    yield make
    end()


@pytest.fixture(scope="module", params=["quire", pytest.param("sorted", marks=pytest.mark.slow)])
def bookies(request: pytest.FixtureRequest) -> str:
    """The kind of bookies for tests of streams."""
    return str(request.param)


@pytest.fixture
def place(bookies: str, shared_cluster: MakeCluster) -> Iterator[Place]:
    place = Place(shared_cluster(bookies))
    yield place
    place.close()
