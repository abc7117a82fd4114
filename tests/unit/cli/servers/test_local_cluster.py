"""`quire local` checks its directory before it starts anything."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import quire
from quire import testing
from quire.cli.servers.local import stop_on_signals
from quire.errors import StartError
from quire.testing.cluster import LocalCluster
from tests.support.waiting import until


def test_no_empty_metadata_file_is_created_beside_bookies_with_data(tmp_path: Path) -> None:
    """Bookies would refuse to start on it, and clients would see that nothing was ever stored."""
    (tmp_path / "bookie-1" / "current").mkdir(parents=True)
    (tmp_path / "bookie-1" / "current" / "VERSION").write_bytes(b"5\n")
    with pytest.raises(StartError, match=r"metadata.db is missing, but bookie-1 next to it has"):
        LocalCluster(3, tmp_path).start()
    assert not (tmp_path / "metadata.db").exists()


def test_the_end_of_a_terminal_does_not_end_a_cluster_under_nohup() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.getsignal(number) for number in numbers}
    try:
        for hung_up in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGHUP, hung_up)
            stopping = threading.Event()
            stop_on_signals(stopping)
            if hung_up is signal.SIG_IGN:
                assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            else:
                signal.raise_signal(signal.SIGHUP)
                assert stopping.is_set()
            stopping.clear()
            signal.raise_signal(signal.SIGTERM)
            assert stopping.is_set()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def test_the_testing_package_exports_its_documented_names() -> None:
    fixtures = ("quire_cluster", "quire_blocking_client", "quire_client")
    for name in (*testing.__all__, *fixtures):
        assert getattr(testing, name) is not None
    assert {*testing.__all__, *fixtures} <= set(dir(testing))


def test_the_plugin_imports_nothing_in_a_run_without_its_fixtures() -> None:
    """pytest loads it wherever Quire is installed."""
    code = (
        "import sys, quire.testing.pytest_plugin\n"
        "print(*[m for m in sys.modules if m.startswith(('quire.client', 'quire.testing.c'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
async def test_a_cluster_is_entered_with_asyncio() -> None:
    async with testing.LocalCluster(bookies=1) as cluster:
        (bookie,) = cluster.bookies
        assert bookie.alive
        async with quire.connect(cluster.uri) as client:
            assert (await client.bookies()).writable.keys() == {bookie.id}
        directory = cluster.directory
    assert not bookie.alive
    assert not directory.exists()


@pytest.mark.slow
async def test_a_cancelled_start_leaves_no_bookie() -> None:
    cluster = testing.LocalCluster(bookies=1)
    task = asyncio.create_task(cluster.__aenter__())
    await until(lambda: cluster.bookies)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster.bookies == []
