"""A bookie with three data directories loses one, and an empty one replaces it.

The lost entries come back from other bookies, with no wrong answer meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quire
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Code
from quire.testing.cluster import BookieProcess, LocalCluster
from tests.support.bookies.bookie import Peer
from tests.support.processes.cli import Quire
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LEDGERS = 9
ENTRIES = 40
PATIENCE_S = 90.0
BOOKIE = (
    "--set", "segment_bytes=1048576", "--set", "min_free_bytes=0", "--set", "check_space_s=0.2",
    "--set", "damage_report_interval_s=0.5",
)  # fmt: skip
QUICK = ("--set", "backoff_s=0.2", "--set", "poll_s=0.2", "--set", "bytes_per_s=none")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(3, tmp_path / "cluster", bookie_args=BOOKIE, data_directories=3) as running:
        yield running


def payload(ledger: int, entry: int) -> bytes:
    return b"%d %d" % (ledger, entry)


async def write(client: quire.Client) -> list[int]:
    ids = []
    for number in range(LEDGERS):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        await writer.append_many([payload(number, entry) for entry in range(ENTRIES)])
        await writer.close()
        ids.append(writer.ledger_id)
    return ids


async def entries(client: quire.Client, ids: list[int]) -> dict[int, list[bytes]]:
    found = {}
    for ledger_id in ids:
        reader = await client.open_ledger(ledger_id)
        found[ledger_id] = [one.payload async for one in reader.read()]
    return found


async def codes(bookie: BookieProcess, ids: list[int]) -> dict[int, int]:
    """Return the codes of reads of the first entry of each ledger."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
    peer, answers = Peer(reader, writer), {}
    for ledger_id in ids:
        answer = await peer.ask(frames.read_request(ledger_id, 0))
        answers[ledger_id] = frames.RESPONSE.unpack_from(answer)[2]
    writer.close()
    await writer.wait_closed()
    return answers


async def seen(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition without blocking others, because a check may take a while."""
    await until(lambda: asyncio.to_thread(condition), what, limit_s=PATIENCE_S, poll_s=0.2)


async def test_a_lost_directory_is_replaced_and_its_entries_restored(cluster: LocalCluster) -> None:
    command = Quire(cluster.uri)
    victim = cluster.bookies[0]
    async with quire.connect(cluster.uri) as client:
        ids = await write(client)
        whole = await entries(client, ids)
    assert list(whole.values()) == [
        [payload(number, entry) for entry in range(ENTRIES)] for number in range(LEDGERS)
    ]
    lost = victim.directories[1]
    replace = ("bookie", "disk", "replace", victim.id, str(lost))
    command(*replace).fails(2, "is registered", "Stop it first")
    victim.stop()
    command(*replace).fails(1, str(lost), "can be read", "it is not lost")
    shutil.rmtree(lost)
    lost.mkdir()
    planned = json.loads(command(*replace, "--dry-run", "--json").ok())
    assert list(lost.iterdir()) == [lost / "LOCK"]
    gone = planned["loss"]["ledgers"]["ledger_ids"]
    assert len(gone) == LEDGERS // 3
    remove = ("bookie", "disk", "remove", victim.id, str(lost))
    command(*remove).fails(2, f"{len(gone)} ledgers name bookie {victim.id}")
    text = command(*replace).ok().decode()
    assert f"{len(gone)} ledgers name bookie {victim.id}" in text
    assert "already" in command(*replace).ok().decode()

    victim.start()
    assert "directory_failed" not in victim.log_path.read_text()
    expected = {one: Code.UNKNOWN_LEDGER_STATE if one in gone else Code.OK for one in ids}
    assert await codes(victim, ids) == expected
    async with quire.connect(cluster.uri) as client:
        assert victim.id in (await client.bookies()).readonly
        assert await entries(client, ids) == whole
        await seen(lambda: "damage_reported" in victim.log_path.read_text(), "a report")
        with command.start("autorecovery", "start", "--name", "one", *QUICK) as healer:
            await seen(lambda: not command("autorecovery", "list").ok(), "the repair of all")
            healer.process.terminate()
            healer.process.communicate(timeout=30)
        # Its next round of the cluster is ten minutes away, or comes after a start.
        victim.kill()
        victim.start()
        await seen(lambda: "loss_healed" in victim.log_path.read_text(), "the end of the loss")
        await until(
            client.bookies, "the bookie, writable", right=lambda now: victim.id in now.writable
        )
    for other in cluster.bookies[1:]:
        other.kill()
    async with quire.connect(cluster.uri) as client:
        assert await entries(client, ids) == whole


def test_a_replaced_disk_that_is_mounted_again_is_refused(tmp_path: Path) -> None:
    """Its cookie is right and its log is complete, but the bookie must not start with it."""
    command = Quire(f"sqlite:///{tmp_path / 'metadata.db'}").initialised()
    one, two, kept = (tmp_path / name for name in ("one", "two", "kept"))
    start = ("bookie", "--port", "0", "--bookie-id", "b", "--dir", str(one), "--dir", str(two))
    alone = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    with command.start(*start, *BOOKIE) as bookie:
        assert bookie.line() == "b"
        named = (*alone, "--custom", "quire.object.name=jobs/1", "--custom",
                 "quire.object.bucket=default")  # fmt: skip
        ledgers = [command.write(b"kept\n", *named) for _ in range(2)]
        bookie.end(signal.SIGTERM).ok()
    two.rename(kept)
    two.mkdir()
    planned = command("bookie", "disk", "replace", "b", str(two), "--dry-run").ok().decode()
    assert "They were created for object jobs/1 in bucket default" in planned
    loss = json.loads(command("bookie", "disk", "replace", "b", str(two), "--json").ok())["loss"]
    gone = str(loss["only_here"]["ledger_ids"][0])
    assert loss["owners"] == ["object jobs/1 in bucket default"]
    with command.start(*start, *BOOKIE) as bookie:
        assert bookie.line() == "b"
        codes = {command("ledger", "read", ledger).status for ledger in ledgers}
        assert codes == {0, 1}
        assert "may have lost data of this ledger" in command("ledger", "read", gone).err
        bookie.end(signal.SIGTERM).ok()
    new = tmp_path / "new"
    two.rename(new)
    kept.rename(two)
    ids = [_id_in(two), _id_in(new)]
    refused = command(*start, *BOOKIE)
    line = refused.err.splitlines()[-1]
    assert (refused.status, refused.out) == (1, b"")
    assert line.startswith(f"error: {two} holds directory {ids[0]} of bookie b"), refused.err
    assert f"directory {ids[1]} took its place" in line
    assert f"Put directory {ids[1]} back at {two}" in line
    shown = command("bookie", "disk", "check", str(two), "--json")
    assert shown.status == 1
    assert ids[1] in json.loads(shown.out.splitlines()[-1])["old"]
    two.rename(kept)
    new.rename(two)
    with command.start(*start, *BOOKIE) as bookie:
        assert bookie.line() == "b"
        bookie.end(signal.SIGTERM).ok()


def _id_in(directory: Path) -> str:
    lines = (directory / "current" / "DIRECTORY").read_text().splitlines()
    (found,) = [line.removeprefix("directory: ") for line in lines if "directory: " in line]
    return found
