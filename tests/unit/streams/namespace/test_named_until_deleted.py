"""A node names every ledger of a stream until the ledger is deleted.

Each call that deletes a ledger is interrupted after each of its steps: its process ends, or it does
not learn that a step was done and another writer takes over. The next writer must find every ledger
that is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from quire.errors import MetadataUnavailableError, QuireError
from quire.metadata.tree import Operation, Put, Result
from quire.streams.namespace.stream_metadata import StreamMetadata
from quire.streams.ownership.orphans import find_orphans
from quire.streams.write.pending_entry import PendingEntry
from quire.streams.write.segments import APPLICATION
from quire.streams.write.takeover import take_over
from tests.support.streams import Bench, run

T = TypeVar("T")

YOUNGEST_S = -3_600.0
INTERRUPTIONS = ("the process ends", "another writer comes", "another writer comes first")
STEPS_MAX = 60


async def make(b: Bench, metadata: StreamMetadata) -> int:
    path = metadata.paths.stream.encode()
    writer = await b.client.create_ledger(custom={**APPLICATION, "stream": path})
    writer.abandon()
    return writer.ledger_id


async def leave_ledgers(b: Bench) -> None:
    """Be a writer that dies with an empty segment in progress and a ledger created ahead."""
    await b.streams.create_stream("s")
    writer = await b.streams.open_writer("s")
    await writer.append(b"0")
    await writer.close()
    metadata = b.streams.metadata("s")
    claim = (await take_over(b.client, metadata, b"")).claim
    segment = (await metadata.segments())[-1]
    ledger_id = await make(b, metadata)
    await metadata.allocate(claim, ledger_id)
    begun = type(segment)(segment.lssn + 1, ledger_id, segment.last_txid)
    await metadata.change(claim, begin=begun)
    await metadata.allocate(claim, await make(b, metadata))
    assert await b.numbers("s") == [1, -2]


async def succeed(b: Bench) -> None:
    """Take over, and leave without having written."""
    if await b.streams.exists("s"):
        await take_over(b.client, b.streams.metadata("s"), b"")


class Interruption:
    """Interrupts a call at one of its steps, which are transactions and deletions of ledgers."""

    def __init__(self, b: Bench, kind: str, step: int) -> None:
        self._b = b
        self._kind = kind
        self.left = step
        self._commit = b.client.metadata.tree.commit
        self._delete = b.client.delete_ledger
        b.client.metadata.tree.commit = self._on_commit  # type: ignore[method-assign]
        b.client.delete_ledger = self._on_delete  # type: ignore[method-assign]

    def end(self) -> None:
        self._b.client.metadata.tree.commit = self._commit  # type: ignore[method-assign]
        self._b.client.delete_ledger = self._delete  # type: ignore[method-assign]

    async def _on_commit(self, *operations: Operation) -> list[Result]:
        return await self._step(lambda: self._commit(*operations))

    async def _on_delete(self, ledger_id: int) -> None:
        await self._step(lambda: self._delete(ledger_id))

    async def _step(self, work: Callable[[], Awaitable[T]]) -> T:
        self.left -= 1
        if self.left != -1:
            return await work()
        self.end()
        if self._kind == "the process ends":
            await work()
            raise asyncio.CancelledError
        if self._kind == "another writer comes":
            await work()
        await succeed(self._b)
        raise MetadataUnavailableError("the answer was lost")


async def opens(b: Bench) -> None:
    await take_over(b.client, b.streams.metadata("s"), b"")


async def deletes(b: Bench) -> None:
    await b.streams.delete_stream("s")


async def renames(b: Bench) -> None:
    await b.streams.rename_stream("s", "t")
    await b.streams.rename_stream("t", "s")


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize("call", [opens, deletes, renames])
def test_every_ledger_of_a_dead_writer_is_named_until_deleted(
    call: Callable[[Bench], Awaitable[None]], kind: str
) -> None:
    async def scene(b: Bench, step: int) -> bool:
        await leave_ledgers(b)
        interruption = Interruption(b, kind, step)
        try:
            await call(b)
        except (QuireError, asyncio.CancelledError):
            pass
        interruption.end()
        await is_complete(b)
        return interruption.left >= 0

    at_each_step(scene, least=4)


@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_an_empty_segment_is_named_until_its_ledger_is_deleted(kind: str) -> None:
    async def scene(b: Bench, step: int) -> bool:
        writer = await b.streams.open_writer("s", create=True)
        segments = writer._segments
        await segments.begin(PendingEntry(0))
        segments.prepare()
        await asyncio.sleep(1)  # the next ledger is noted
        interruption = Interruption(b, kind, step)
        try:
            await segments.mend(lambda entries: None)
            await segments.release()
        except (QuireError, asyncio.CancelledError):
            pass
        interruption.end()
        writer.abandon()
        await asyncio.sleep(1)
        await is_complete(b)
        return interruption.left >= 0

    at_each_step(scene, least=4)


@pytest.mark.parametrize("noting", [True, False])
def test_a_ledger_that_could_not_be_noted_is_deleted(*, noting: bool) -> None:
    """The writer is abandoned while it notes the ledger, or when it has given that up."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        tree = b.client.metadata.tree
        real, allocation = tree.commit, b.streams.metadata("s").paths.allocation

        async def commit(*operations: Operation) -> list[Result]:
            if any(isinstance(one, Put) and one.path == allocation for one in operations):
                raise MetadataUnavailableError("the request was lost")
            return await real(*operations)

        tree.commit = commit  # type: ignore[method-assign]
        writer = await b.streams.open_writer("s")
        segments = writer._segments
        async with asyncio.timeout(60):
            while segments._made is None or (segments._preparing is None) == noting:
                await asyncio.sleep(0.1)
        writer.abandon()
        await asyncio.sleep(30)
        assert await b.ledgers() == []

    run(scene)


def at_each_step(scene: Callable[[Bench, int], Awaitable[bool]], least: int) -> None:
    """Run the scene with each step, until it says that the call has fewer steps."""
    done = False
    for step in range(STEPS_MAX):

        async def once(b: Bench, step: int = step) -> None:
            nonlocal done
            done = await scene(b, step)

        run(once)
        if done:
            assert step >= least
            return
    raise AssertionError(f"the call has more than {STEPS_MAX} steps")


async def is_complete(b: Bench) -> None:
    """Check that every ledger is named, and that the next writer leaves only those of segments."""
    assert await find_orphans(b.client, YOUNGEST_S) == []
    for name in await b.streams.streams():
        async with await b.streams.open_writer(name) as writer:
            await writer.append(b"last")
        segments = {segment.ledger_id for segment in await b.streams.segments(name)}
        assert set(await b.ledgers()) <= segments  # a deletion may have begun
        await b.streams.delete_stream(name)
    assert await b.ledgers() == []
