"""The position that `quire stream read --subscription` stores while it reads and at its end."""

from __future__ import annotations

import asyncio
import signal

import pytest

from quire.cli.stream import read
from quire.errors import MetadataUnavailableError


async def test_a_commit_in_flight_at_the_end_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end cancelled the commit of the newest position, took it for stored, and left it out."""
    monkeypatch.setattr(read, "COMMIT_INTERVAL_S", 0)
    begun, stored = asyncio.Event(), list[int]()

    async def commit(position: int) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()  # the metadata store does not answer
        stored.append(position)

    async with read._committed(commit) as done:
        done(7)
        await begun.wait()
    assert stored == [7]


async def test_an_earlier_commit_has_ended_before_the_last_one_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read, "COMMIT_INTERVAL_S", 0)
    begun, running = asyncio.Event(), list[int]()

    async def commit(position: int) -> None:
        assert not running
        running.append(position)
        try:
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            running.remove(position)

    async with read._committed(commit) as done:
        done(7)
        await begun.wait()
        done(8)


async def test_a_failed_commit_of_a_position_is_retried_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read, "COMMIT_INTERVAL_S", 0)
    tried = list[int]()

    async def commit(position: int) -> None:
        tried.append(position)
        if len(tried) == 1:
            raise MetadataUnavailableError("the metadata store does not answer")

    async def read_on() -> None:
        async with read._committed(commit) as done:
            done(7)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await read_on()
    assert tried == [7, 7]


@pytest.mark.parametrize("when", ["before", "within", "after"])
async def test_a_signal_does_not_cancel_the_last_commit(when: str) -> None:
    """SIGTERM during the last commit left the position as it was, with an unexpected error."""
    stored, went_on = list[int](), False

    async def commit(position: int) -> None:
        if when == "after":
            signal.raise_signal(signal.SIGTERM)
        for _ in range(3):
            await asyncio.sleep(0.001)  # the event loop sees the signal
        stored.append(position)

    with read._terminated() as terminated:
        async with read._committed(commit) as done:
            done(7)
            if when == "before":
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(0.001)
            with terminated.ending():
                if when == "within":
                    signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(0 if when == "after" else 60)
                went_on = True
    assert (stored, went_on, bool(terminated)) == ([7], when == "after", True)
