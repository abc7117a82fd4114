"""A stream's writer moves from process to process, killed or still running.

Every acknowledged record exists exactly once and in order, and a following reader sees neither gaps
nor duplicates. `QUIRE_STREAM_MOVES` is the number of moves (`make soak` has more).
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
from quire.streams.namespace.namespace import Namespace, open_namespace
from quire.testing.cluster import LocalCluster
from tests.support.processes import stream_program
from tests.support.processes.stream_program import payload

pytestmark = pytest.mark.slow

MOVES = int(os.environ.get("QUIRE_STREAM_MOVES", "12"))
PATH = "/moves"
PIECE = 25
PATIENCE_S = 180.0
"""Seconds without output from a writer or a record at the reader.

This is far more than the session of a killed writer, a start and a recovery take on a busy machine.
"""


class Writer:
    """The program, and what it said."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.acked = -1
        self.last_line = ""
        self.end = ""

    async def line(self) -> str:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                text = (await self.process.stdout.readline()).decode().strip()
        except TimeoutError:
            self.process.kill()
            _, said = await self.process.communicate()
            raise AssertionError(
                f"a writer said nothing for {PATIENCE_S:g} s behind {self.last_line!r}: "
                f"{said.decode()}"
            ) from None
        self.last_line = text
        word, _, value = text.partition(" ")
        if word == "acked":
            self.acked = int(value)
        elif word != "begin":
            self.end = text or "gone"
        return text

    async def until_acked(self, pieces: int) -> None:
        for _ in range(pieces + 1):  # The first line names the position at which it begins.
            if self.end:
                return
            await self.line()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        assert self.process.stdout is not None
        while not self.end:  # Its output before it died.
            await self.line()
        await self.process.communicate()


class Writers:
    """All writers that were started. None outlives the test."""

    def __init__(self, uri: str, stream: str) -> None:
        self._uri = uri
        self._stream = stream
        self._started: list[Writer] = []

    async def start(self, last: int = 10**9) -> Writer:
        program = str(Path(stream_program.__file__))
        process = await asyncio.create_subprocess_exec(
            sys.executable, program, self._uri, PATH, self._stream, str(PIECE), str(last),
            stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        self._started.append(Writer(process))
        return self._started[-1]

    async def __aenter__(self) -> Writers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._started:
            if writer.process.returncode is None:
                writer.process.kill()
                await writer.process.communicate()


async def follow(streams: Namespace, stream: str, upto: int, seen: list[int]) -> None:
    reader = await streams.open_reader(stream, follow=True)
    async for record in reader:
        number = len(seen)
        assert record.payload == payload(number), (number, record)
        assert record.sequence == number
        seen.append(number)
        if number == upto:
            return


async def until_seen(seen: list[int], count: int) -> None:
    """Wait as long as there is progress."""
    while len(seen) < count:
        before = len(seen)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(seen) == before:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"the reader that follows got {before} of {count} records, and no more")


async def move(writers: Writers, moves: int, chance: random.Random) -> tuple[int, int]:
    """Move the writer, and return the last acknowledged record and the number of killed writers."""
    acked, killed = -1, 0
    writer = await writers.start()
    for _ in range(moves):
        await writer.until_acked(chance.randint(1, 4))
        if chance.random() < 0.5:  # the next one comes while this one still writes
            successor = await writers.start()
            await successor.until_acked(1)
        else:
            await writer.kill()
            successor = await writers.start()
        await writer.kill()
        killed += 1
        acked = max(acked, writer.acked)
        writer = successor
    await writer.until_acked(2)
    await writer.kill()
    return max(acked, writer.acked), killed + 1


@pytest.mark.long
def test_takeovers_lose_and_repeat_no_record(tmp_path: Path) -> None:
    async def main(uri: str) -> None:
        chance = random.Random(f"moves {MOVES}")
        async with (
            quire.connect(uri) as client,
            await open_namespace(client, PATH, create=True) as streams,
        ):
            await streams.create_stream("s", settings={"roll_bytes": 20_000})
            seen: list[int] = []
            async with Writers(uri, "s") as writers, asyncio.TaskGroup() as group:
                end = group.create_task(move(writers, MOVES, chance))
                following = group.create_task(follow(streams, "s", 10**9, seen))
                acked, killed = await end
                # More than a writer can have had under way. The last one closes the stream.
                last = acked + 10 * PIECE
                writer = await writers.start(last)
                while not writer.end:
                    await writer.line()
                _, said = await writer.process.communicate()
                assert writer.end == "done", (writer.end, said.decode())
                await until_seen(seen, last + 1)
                following.cancel()
            assert len(seen) == last + 1
            found = [r async for r in await streams.open_reader("s")]
            assert [r.payload for r in found] == [payload(n) for n in range(last + 1)]
            assert [r.sequence for r in found] == list(range(last + 1))
            print(f"{killed} writers killed, {len(found)} records, each once and in order")

    with LocalCluster(3, directory=tmp_path) as cluster:
        asyncio.run(main(cluster.uri))
