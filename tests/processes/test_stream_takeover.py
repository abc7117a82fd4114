"""A stream whose writer moves from process to process, killed or still running: every acknowledged
record is there exactly once and in order, and a reader that follows sees neither gap nor duplicate.

`QUIRE_STREAM_MOVES` is how often it moves (`make soak` moves it more often).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

import quire
from quire.streams.namespace import Namespace
from quire.testing.cluster import LocalCluster

from . import stream_program
from .stream_program import payload

pytestmark = pytest.mark.slow

MOVES = int(os.environ.get("QUIRE_STREAM_MOVES", "12"))
PATH = "/moves"
PIECE = 25
PROGRESS_S = 60.0
FOLLOW_S = 60.0


class Writer:
    """The program, and what it said."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.acked = -1
        self.end = ""

    @classmethod
    async def start(cls, uri: str, stream: str, last: int) -> Writer:
        program = str(Path(stream_program.__file__))
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, program, uri, PATH, stream, str(PIECE), str(last),
                stdout=PIPE, stderr=PIPE,
            )
        )  # fmt: skip

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(PROGRESS_S):
            text = (await self.process.stdout.readline()).decode().strip()
        word, _, value = text.partition(" ")
        if word == "acked":
            self.acked = int(value)
        elif word != "begin":
            self.end = text or "gone"
        return text

    async def until_acked(self, pieces: int) -> None:
        for _ in range(pieces + 1):  # the first line says where it begins
            if self.end:
                return
            await self.line()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        assert self.process.stdout is not None
        while not self.end:  # what it said before it died
            await self.line()
        await self.process.communicate()


async def follow(streams: Namespace, stream: str, upto: int, seen: list[int]) -> None:
    reader = await streams.open_reader(stream, follow=True)
    async for record in reader:
        number = len(seen)
        assert record.payload == payload(number), (number, record)
        assert record.sequence == number
        seen.append(number)
        if number == upto:
            return


async def move(uri: str, stream: str, moves: int, chance: random.Random) -> tuple[int, int]:
    """(highest acknowledged record, how many writers were killed)."""
    endless = 10**9
    acked, killed = -1, 0
    writer = await Writer.start(uri, stream, endless)
    for _ in range(moves):
        await writer.until_acked(chance.randint(1, 4))
        if chance.random() < 0.5:  # the next one comes while this one still writes
            successor = await Writer.start(uri, stream, endless)
            await successor.until_acked(1)
        else:
            await writer.kill()
            successor = await Writer.start(uri, stream, endless)
        await writer.kill()
        killed += 1
        acked = max(acked, writer.acked)
        writer = successor
    await writer.until_acked(2)
    await writer.kill()
    return max(acked, writer.acked), killed + 1


def test_a_writer_that_moves_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async def main(uri: str) -> None:
        chance = random.Random(f"moves {MOVES}")
        async with quire.connect(uri) as client, await Namespace.create(client, PATH) as streams:
            await streams.create_stream("s", settings={"roll_bytes": 20_000})
            seen: list[int] = []
            async with asyncio.TaskGroup() as group:
                end = group.create_task(move(uri, "s", MOVES, chance))
                following = group.create_task(follow(streams, "s", 10**9, seen))
                acked, killed = await end
                # More than a writer can have had under way. The last one closes the stream.
                last = acked + 10 * PIECE
                writer = await Writer.start(uri, "s", last)
                while not writer.end:
                    await writer.line()
                _, said = await writer.process.communicate()
                assert writer.end == "done", (writer.end, said.decode())
                try:
                    async with asyncio.timeout(FOLLOW_S):
                        while len(seen) <= last:
                            await asyncio.sleep(0.05)
                except TimeoutError:
                    pytest.fail(f"the reader that follows got {len(seen)} of {last + 1} records")
                following.cancel()
            assert len(seen) == last + 1
            found = [r async for r in await streams.open_reader("s")]
            assert [r.payload for r in found] == [payload(n) for n in range(last + 1)]
            assert [r.sequence for r in found] == list(range(last + 1))
            print(f"{killed} writers killed, {len(found)} records, each once and in order")

    with LocalCluster(3, directory=tmp_path) as cluster:
        asyncio.run(main(cluster.uri))
