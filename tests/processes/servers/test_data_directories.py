"""Real bookies with two data directories that are killed, restarted, or missing a directory."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.testing import cluster as local
from tests.support.processes.cli import Quire

pytestmark = pytest.mark.slow

LEDGERS = 6
ENTRIES = 50
ARGUMENTS = ["--set", "min_free_bytes=0", "--set", "segment_bytes=1048576"]


def events(bookie: local.BookieProcess, name: str) -> list[dict[str, Any]]:
    lines = map(json.loads, bookie.log_path.read_text().splitlines())
    return [line for line in lines if line["event"] == name]


async def write(client: quire.Client, ledgers: int = LEDGERS) -> list[int]:
    ids = []
    for number in range(ledgers):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"%d %d" % (number, entry) for entry in range(ENTRIES)])
        await writer.close()
        ids.append(writer.ledger_id)
    return ids


async def check(client: quire.Client, ids: list[int]) -> None:
    for number, ledger_id in enumerate(ids):
        reader = await client.open_ledger(ledger_id)
        found = [entry.payload async for entry in reader.read()]
        assert found == [b"%d %d" % (number, entry) for entry in range(ENTRIES)]


async def test_a_killed_bookie_restarts_without_a_directory(tmp_path: Path) -> None:
    with local.LocalCluster(
        3, tmp_path / "cluster", bookie_args=ARGUMENTS, data_directories=2
    ) as cluster:
        async with quire.connect(cluster.uri) as client:
            ids = await write(client)
            for bookie in cluster.bookies:
                bookie.kill()
                bookie.start()
            await check(client, ids)
        away = cluster.bookies[0]
        away.kill()
        gone, kept = away.directories[1], tmp_path / "kept"
        gone.rename(kept)
        away.start()  # The others continue without it.
        (failed,) = events(away, "directory_failed")
        assert failed["directory"] == str(gone)
        assert "not mounted" in failed["why"]
        assert not gone.exists()
        (told,) = events(away, "read_only")  # `quire explain` sends people to this event
        assert told["why"].startswith(f"{gone}: ")
        async with quire.connect(cluster.uri) as client:
            await check(client, ids)
            assert away.id in (await client.bookies()).readonly
        # Entries in the other directory of this bookie exist, and the rest is not "absent".
        show = Quire()("bookie", "explain", "space", *map(str, away.directories), "--json")
        assert show.status == 1
        there, not_there = map(json.loads, show.out.splitlines())
        assert "is not a data directory" in not_there["error"]
        here = {one["ledger_id"] for one in there["ledgers"]}
        assert here
        assert here < set(ids)
        away.kill()
        shutil.move(kept, gone)
        away.start()
        async with quire.connect(cluster.uri) as client:
            await check(client, ids)
            assert away.id in (await client.bookies()).writable
            await check(client, await write(client))


def test_a_directory_that_is_no_longer_configured_is_refused(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'metadata.db'}"
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    command = ("bookie", "--port", "0", "--bookie-id", "b", "--dir", one)
    with Quire(uri).initialised().start(*command, "--dir", two) as bookie:
        assert bookie.line() == "b"
        assert bookie.end(signal.SIGTERM).status == 0
    done = Quire(uri)(*command)
    assert done.status == 1
    assert f"bookie b has data in the directory {two}, which was not given" in done.err
    assert f"--dir {two}" in done.err
    # Two commands that it names take it out, or put an empty one in its place.
    shutil.rmtree(two)
    replace, remove = re.findall(r"`quire (bookie disk [^`]*)`", done.err)
    Quire()(*shlex.split(replace)).fails(2, "does not exist")
    Quire()(*shlex.split(remove)).ok()
    with Quire(uri).start(*command, "--dir", two) as bookie:
        assert bookie.line() == "b"
        done = bookie.end(signal.SIGTERM)
    assert "directory_added" in done.err
    assert "directory_failed" not in done.err
