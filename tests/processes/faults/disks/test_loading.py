"""A bookie without its index cache serves what it has loaded, shows progress, and stops at once."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import quire
from quire.errors import ReadError
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.testing import cluster as local
from tests.support.waiting import until

pytestmark = pytest.mark.slow

SETTINGS = ["--set", "min_free_bytes=0", "--set", "segment_bytes=1048576"]
ENTRIES, SIZE_BYTES = 200, 9000
LIMIT_S = 60.0

HOOK = """
import os
import quire.bookie.protocol.loading_store as loading_store
import quire.bookie.server as server
from quire.storage.recovery.loading import LoadProgress

advance = LoadProgress.advance

def held(progress, segments=1):
    if progress.sealed:
        os.read(0, 1)  # until the test says so
    advance(progress, segments)

LoadProgress.advance = held
server.SERVE_EARLY_AFTER_S = 0.0
loading_store.WAIT_S = 0.2
server.LOADING_SHOWN_S = server.LOADING_TOLD_S = 0.01
from quire.cli.main import main
main()
"""


class Loading:
    """A bookie that waits for the test before each segment."""

    def __init__(self, cluster: local.LocalCluster, stderr: int) -> None:
        [bookie] = cluster.bookies
        command = [
            sys.executable, "-c", HOOK, "bookie", "--metadata", cluster.uri,
            "--dir", str(bookie.directory), "--port", str(bookie.port),
            "--advertise", "127.0.0.1", *SETTINGS,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0
        )

    def load_one_more(self) -> None:
        """Segment. The first is loaded without."""
        assert self.process.stdin is not None
        self.process.stdin.write(b".")

    def load_all(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def loading(cluster: local.LocalCluster, stderr: int) -> Iterator[Loading]:
    [bookie] = cluster.bookies
    bookie.stop()
    (bookie.directory / CACHE_NAME).unlink()
    one = Loading(cluster, stderr)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(LIMIT_S)
        one.load_all()
        assert one.process.stdout is not None
        one.process.stdout.close()


async def written(client: quire.Client) -> list[int]:
    ids = []
    for number in range(2):
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append_many([bytes([number]) * SIZE_BYTES for _ in range(ENTRIES)])
        await writer.close()
        ids.append(writer.ledger_id)
    return ids


def watch(screen: int, shown: bytearray) -> None:
    """Wait until no process has the terminal open."""
    with suppress(OSError):
        while data := os.read(screen, 4096):
            shown += data
    os.close(screen)


async def test_reads_are_served_while_the_log_is_loaded(tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    shown = bytearray()
    watching = threading.Thread(target=watch, args=(screen, shown))
    watching.start()
    with local.LocalCluster(1, tmp_path / "cluster", bookie_args=SETTINGS) as cluster:
        async with quire.connect(cluster.uri) as client:
            first, second = await written(client)
        with loading(cluster, terminal) as bookie:
            os.close(terminal)
            async with quire.connect(cluster.uri) as client:
                await until(
                    client.bookies,
                    "the bookie, read-only",
                    right=lambda now: cluster.bookies[0].id in now.readonly,
                    limit_s=LIMIT_S,
                )
                reader = await client.open_ledger(first)
                assert (await reader.read_entry(0)).payload == b"\0" * SIZE_BYTES
                assert not (await client.bookies()).writable
                late = await client.open_ledger(second)
                with pytest.raises(ReadError) as told:  # and not that there is no such entry
                    await late.read_entry(ENTRIES - 1)
                assert type(told.value) is ReadError
                bookie.load_all()
                assert bookie.process.stdout is not None
                assert bookie.process.stdout.readline().decode().strip() == cluster.bookies[0].id
                assert (await late.read_entry(ENTRIES - 1)).payload == b"\1" * SIZE_BYTES
            bookie.process.send_signal(signal.SIGTERM)
            assert bookie.process.wait(LIMIT_S) == 0
    watching.join(LIMIT_S)
    assert b"load the log" in shown
    assert b'"event": "loading"' not in shown


async def until_said(log: Path, what: str) -> None:
    await until(
        lambda: asyncio.to_thread(log.read_text), right=lambda said: what in said, poll_s=0.05
    )


async def test_a_stop_while_the_log_is_loaded_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    with local.LocalCluster(1, tmp_path / "cluster", bookie_args=SETTINGS) as cluster:
        async with quire.connect(cluster.uri) as client:
            ids = await written(client)
        with log.open("w") as stderr, loading(cluster, stderr.fileno()) as bookie:
            await until_said(log, '"loading"')
            bookie.process.send_signal(signal.SIGTERM)
            await until_said(log, '"loading_stopped"')
            bookie.load_one_more()  # The one at which it is: it would wait at the next.
            assert bookie.process.wait(LIMIT_S) == 0
        events = [json.loads(line) for line in log.read_text().splitlines()]
        assert "recovered" not in {one["event"] for one in events}
        cluster.bookies[0].start()
        async with quire.connect(cluster.uri) as client:
            for number, ledger_id in enumerate(ids):
                reader = await client.open_ledger(ledger_id)
                found = [entry.payload async for entry in reader.read()]
                assert found == [bytes([number]) * SIZE_BYTES] * ENTRIES
