"""Autorecovery processes repair after a real bookie is killed, without any command.

`QUIRE_HEALED_LEDGERS` is the number of ledgers (12; the full length is 400).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.testing.cluster import BookieProcess, LocalCluster
from tests.support.processes.cli import Quire, Running
from tests.support.waiting import until

pytestmark = pytest.mark.slow

LEDGERS = int(os.environ.get("QUIRE_HEALED_LEDGERS", "12"))
ENTRIES = 200
PAYLOAD_BYTES = 500
PATIENCE_S = 90.0
SESSION_MS = 1_500
QUICK = ("--set", "backoff_s=0.2", "--set", "poll_s=0.2", "--set", "open_grace_s=1",
         "--set", "bytes_per_s=none")  # fmt: skip
BOOKIE = ("--set", f"session_timeout_s={SESSION_MS / 1000}", "--set", "segment_bytes=4194304")


def payload(ledger_id: int, entry: int) -> bytes:
    return b"%d/%d." % (ledger_id, entry) * (PAYLOAD_BYTES // 8)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(4, tmp_path / "cluster", bookie_args=BOOKIE) as running:
        yield running


async def write(client: quire.Client, close: bool = True) -> int:
    writer = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
    await writer.append_many([payload(writer.ledger_id, n) for n in range(ENTRIES)])
    if close:
        await writer.close()
    return writer.ledger_id


seen = partial(until, limit_s=PATIENCE_S, poll_s=0.05)


async def naming(client: quire.Client, bookie: str) -> list[int]:
    """Ledgers with this bookie in a segment."""
    return [
        ledger_id
        async for ledger_id in client.list_ledgers()
        if any(bookie in s.ensemble for s in (await client.ledger_metadata(ledger_id)).segments)
    ]


async def held_bytes(client: quire.Client, bookie: str) -> tuple[int, int]:
    """Payload of closed ledgers that a bookie should have, by the metadata; and of all."""
    closed = total = 0
    for ledger_id in await naming(client, bookie):
        metadata = await client.ledger_metadata(ledger_id)
        for entry in range(ENTRIES):
            ensemble = metadata.segment_of(entry).ensemble
            index = ensemble.index(bookie) if bookie in ensemble else None
            if index is not None and (index - entry) % 3 < 2:
                total += len(payload(ledger_id, entry))
                closed += len(payload(ledger_id, entry)) if metadata.closed else 0
    return closed, total


def stopped(process: Running) -> dict[str, Any]:
    """End it as an operator does; what it has counted."""
    process.process.send_signal(signal.SIGTERM)
    _, err = process.process.communicate(timeout=30)
    assert process.process.returncode == 0, err
    events = [json.loads(line) for line in err.decode().splitlines()]
    assert events[-1]["event"] == "stopped", err
    counted: dict[str, Any] = events[-1]
    return counted


async def test_the_ledgers_of_a_killed_bookie_are_replicated_automatically(
    cluster: LocalCluster,
) -> None:
    """An open ledger whose writer died is among it. Copied is what was lost, and no more."""
    command = Quire(cluster.uri)
    async with quire.connect(cluster.uri) as client:
        dying = await quire.connect(cluster.uri)
        ledgers = [await write(client) for _ in range(LEDGERS)]
        ledgers.append(await write(dying, close=False))
        await dying.close()
        [segment] = (await client.ledger_metadata(ledgers[-1])).segments
        lost = next(bookie for bookie in cluster.bookies if bookie.id == segment.ensemble[0])
        closed_bytes, lost_bytes = await held_bytes(client, lost.id)
        assert closed_bytes
        with command.start("autorecovery", "start", "--name", "one", *QUICK) as process:
            lost.kill()

            async def healed() -> bool:
                status = json.loads(await asyncio.to_thread(
                    lambda: command("autorecovery", "status", "--json").ok()))  # fmt: skip
                assert status["enabled"]
                return not status["marked"] and not await naming(client, lost.id)

            await seen(healed, f"no ledger names {lost.id}")
            counted = stopped(process)
        assert counted["elections_won"] == 1
        # A recovery may have written open entries to another bookie already.
        assert closed_bytes <= counted["bytes_copied"] <= lost_bytes * 1.05
        assert counted["ledgers_fenced"] == 1
        # Every entry is on both of its bookies: any one of them may go.
        for ledger_id in ledgers:
            metadata = await client.ledger_metadata(ledger_id)
            for segment in metadata.segments:
                for index, bookie in enumerate(segment.ensemble):
                    found = await client.list_entries(bookie, ledger_id)
                    have = {n for first, last in found for n in range(first, last + 1)}
                    end = metadata.segment_end(segment, ENTRIES - 1)
                    wanted = range(segment.first_entry_id, end + 1)
                    assert have.issuperset(n for n in wanted if (index - n) % 3 < 2)
            async with await client.open_ledger(ledger_id) as reader:
                read = [entry.payload async for entry in reader.read()]
            assert read == [payload(ledger_id, n) for n in range(ENTRIES)]


async def test_a_bookie_that_returns_within_the_delay_causes_no_copies(
    cluster: LocalCluster,
) -> None:
    command = Quire(cluster.uri)
    command("autorecovery", "delay", "600").ok()
    assert command("autorecovery", "delay").ok() == b"600\n"
    async with quire.connect(cluster.uri) as client:
        for _ in range(4):
            await write(client)
        # Bookies are chosen at random, so any one of them may have no ledger.
        (away, *_) = [one for one in cluster.bookies if await naming(client, one.id)]
        with command.start("autorecovery", "start", *QUICK) as process:

            async def registered() -> bool:
                return away.id in (await client.bookies()).writable

            async def gone() -> bool:
                return not await registered()

            async def elected() -> bool:
                status = json.loads(await asyncio.to_thread(
                    lambda: command("autorecovery", "status", "--json").ok()))  # fmt: skip
                return status["auditor"] is not None

            await seen(elected, "an auditor")
            await restarted(away, gone)
            await seen(registered, "the bookie is back")
            counted = stopped(process)
    assert counted["ledgers_marked"] == counted["bytes_copied"] == counted["replicas_read"] == 0


async def restarted(bookie: BookieProcess, gone: Callable[[], Any]) -> None:
    bookie.kill()
    await seen(gone, "its session has ended")
    await asyncio.to_thread(bookie.start)


async def test_bookies_with_the_autorecovery_option_repair_ledgers(tmp_path: Path) -> None:
    """One bookie is the auditor. When it is killed, another bookie takes over."""
    arguments = (
        *BOOKIE, "--autorecovery", "--set-autorecovery", "backoff_s=0.2",
        "--set-autorecovery", "poll_s=0.2",
    )  # fmt: skip
    with LocalCluster(4, tmp_path / "cluster", bookie_args=arguments) as cluster:
        command = Quire(cluster.uri)
        async with quire.connect(cluster.uri) as client:
            for _ in range(4):
                await write(client)

            async def auditor() -> str | None:
                status = json.loads(await asyncio.to_thread(
                    lambda: command("autorecovery", "status", "--json").ok()))  # fmt: skip
                found: str | None = status["auditor"]
                return found

            await seen(auditor, "an auditor")
            first = await auditor()
            lost = next(bookie for bookie in cluster.bookies if bookie.id == first)
            lost.kill()

            async def healed() -> bool:
                return await auditor() not in (None, first) and not await naming(client, lost.id)

            await seen(healed, f"no ledger names {lost.id}")
        assert b"marked as lacking replicas" in command("autorecovery", "status").ok()
