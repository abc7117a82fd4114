"""Pages rot on the disk of one bookie of a real cluster.

The damage is found without a read, reported, repaired from other bookies, and finally compacted
away. Nobody types a command.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.testing.cluster import LocalCluster
from tests.support.processes.cli import Quire
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ENTRIES = 6_000
PATIENCE_S = 90.0
PAGE_BYTES = 4_096
BOOKIE = (
    "--set", "segment_bytes=1048576", "--set", "scrub_interval_s=1", "--set", "scrub_bytes_per_s=0",
    "--set", "check_space_s=0.2", "--set", "damage_report_interval_s=0.5",
)  # fmt: skip
QUICK = ("--set", "backoff_s=0.2", "--set", "poll_s=0.2", "--set", "bytes_per_s=none")


def payload(entry: int) -> bytes:
    return b"%d." % entry * 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(3, tmp_path / "cluster", bookie_args=BOOKIE) as running:
        yield running


def scrub(command: Quire, directory: str) -> tuple[int, list[dict[str, Any]]]:
    done = command("bookie", "scrub", directory, "--json")
    assert done.err == ""
    return done.status, [json.loads(line) for line in done.out.splitlines()]


def rot(directory: str, pages: Sequence[int]) -> None:
    """Damage the oldest segment."""
    with min(Path(directory, "log").glob("*.seg")).open("r+b") as file:
        for page in pages:
            file.seek(page * PAGE_BYTES + 99)
            file.write(b"rot")


def records(directory: str) -> list[Path]:
    """Return the records of damaged segments."""
    return list(Path(directory, "log").glob("*.damaged*"))


async def test_damaged_pages_are_found_repaired_and_removed(cluster: LocalCluster) -> None:
    command = Quire(cluster.uri)
    victim = cluster.bookies[0]
    directory = str(victim.directory)
    async with quire.connect(cluster.uri) as client:
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
        for start in range(0, ENTRIES, 500):
            await writer.append_many([payload(n) for n in range(start, start + 500)])
        await writer.close()
        status, [whole] = await asyncio.to_thread(scrub, command, directory)
        assert status == 0
        assert whole["damaged_segments"] == 0
        rot(directory, (20, 21, 77))
        status, [segment, whole] = await asyncio.to_thread(scrub, command, directory)
        assert status == 1
        assert segment["damaged_blocks"] == [[20, 21], [77, 77]]
        assert list(segment["lacking_entries"]) == [str(writer.ledger_id)]
        assert whole["lacking_entries"] > 0
        with command.start("autorecovery", "start", "--name", "one", *QUICK) as healer:
            await until(
                lambda: asyncio.to_thread(scrub, command, directory),
                "the healing",
                right=lambda scrubbed: scrubbed[0] == 0,
                limit_s=PATIENCE_S,
                poll_s=0.5,
            )
            healer.process.terminate()
            _, err = healer.process.communicate(timeout=30)
        counted = json.loads(err.splitlines()[-1])
        assert counted["replicas_repaired"] == whole["lacking_entries"]
    report = json.loads(command("bookie", "explain", "space", directory, "--json").ok())
    assert {one["state"] for one in report["segments"]} <= {"sealed", "open", "prepared"}
    assert records(directory) == []
    # The damage is repaired, and the bookie has no HTTP server. People see it all the same, also
    # after a restart of the bookie.
    victim.kill()
    victim.start()
    found = json.loads(command("explain", "cluster", "--json").ok())
    (note,) = found["damage_found"]
    assert (note["bookie"], note["directory"]) == (victim.id, directory)
    assert note["named"] == [writer.ledger_id]
    assert note["entries"] >= whole["lacking_entries"]
    assert note["repaired_ms"] >= note["found_ms"]
    (problem,) = [one for one in found["problems"] if "found damage in" in one["what"]]
    assert f"{directory}/{note['file']}" in problem["what"]
    assert "smartctl" in problem["next"]
    # From this bookie alone, after a kill.
    victim.kill()
    victim.start()
    for other in cluster.bookies[1:]:
        other.kill()
    async with quire.connect(cluster.uri) as client:
        reader = await client.open_ledger(writer.ledger_id)
        found = [entry.payload async for entry in reader.read()]
    assert found == [payload(n) for n in range(ENTRIES)]
