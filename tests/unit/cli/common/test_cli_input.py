"""Standard input as entries: every byte counts, and a typed line does not wait for more."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.common import input as command_input
from quire.cli.common.input import LineSource, LineSplitter
from quire.errors import EntryTooLargeError

LIMIT = 1_000_000
TIMEOUT_S = 30.0


def expected(data: bytes) -> list[bytes]:
    """Return the lines without their newlines, including a last line without one."""
    found = data.split(b"\n")
    return found[:-1] if found[-1] == b"" else found


@given(
    st.lists(st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"\x00\xff", b"\x85"])), max_size=8)
)
def test_any_division_into_chunks_gives_the_same_lines(chunks: list[list[bytes]]) -> None:
    pieces = [b"".join(chunk) for chunk in chunks]
    splitter = LineSplitter(LIMIT)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    found += splitter.finish()
    assert found == expected(b"".join(pieces))


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\n", [b"a", b""]),
        (b"a\r\nb\r", [b"a\r", b"b\r"]),
        (b"\x00\n\xff", [b"\x00", b"\xff"]),
    ],
)
def test_bytes_are_split_into_lines(data: bytes, wanted: list[bytes]) -> None:
    assert expected(data) == wanted
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(data) + splitter.finish() == wanted


def test_a_line_of_exactly_the_limit_is_accepted() -> None:
    splitter = LineSplitter(10)
    assert splitter.feed(b"0123456789\n0123456789") == [b"0123456789"]
    assert splitter.feed(b"\nx") == [b"0123456789"]


@pytest.mark.parametrize("chunks", [[b"ab\nc\n01234", b"567890"], [b"ab\nc\n01234", b"567890\n"]])
def test_a_line_over_the_limit_is_named_by_its_number(chunks: list[bytes]) -> None:
    splitter = LineSplitter(10)
    assert splitter.feed(chunks[0]) == [b"ab", b"c"]
    with pytest.raises(EntryTooLargeError, match=r"line 3 is longer than 10 bytes"):
        splitter.feed(chunks[1])


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """[reading end, writing end]; a test that closes one takes it out."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


async def test_each_line_is_delivered_before_the_next_arrives(pipe: list[int]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        with closing(LineSource(pipe[0], LIMIT)) as source:
            incoming = aiter(source)
            for line in (b"one", b"two", b""):
                os.write(pipe[1], line + b"\n")
                assert await anext(incoming) == [line]
            os.write(pipe[1], b"last")
            os.close(pipe.pop())
            assert await anext(incoming) == [b"last"]
            assert await anext(incoming, None) is None


async def test_stopping_ends_a_wait_for_input(pipe: list[int]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        with closing(LineSource(pipe[0], LIMIT)) as source:
            asyncio.get_running_loop().call_soon(source.stop)
            assert [found async for found in source] == []


async def test_closing_ends_the_thread_that_waits_for_room(
    pipe: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes lines, so the thread reads `CHUNKS_WAITING_MAX` chunks, and must still end."""
    monkeypatch.setattr(command_input, "CHUNK_BYTES", 2)
    os.write(pipe[1], b"x\n" * (2 * command_input.CHUNKS_WAITING_MAX))
    async with asyncio.timeout(TIMEOUT_S):
        with closing(LineSource(pipe[0], LIMIT)) as source:
            while source._pieces.qsize() < command_input.CHUNKS_WAITING_MAX:
                await asyncio.sleep(0.001)
        assert not source._thread.is_alive()
        # The pieces that the thread has handed over, and the end mark.
        assert source._pieces.qsize() == command_input.CHUNKS_WAITING_MAX + 1


async def test_closing_leaves_a_thread_behind_that_is_blocked_in_a_read(
    pipe: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program has read what `poll` saw. Signals could not end the process otherwise."""
    new_poll, reading = command_input.select.poll, threading.Event()

    class Misled:
        def __init__(self) -> None:
            self.real = new_poll()
            self.register = self.real.register

        def poll(self) -> list[tuple[int, int]]:
            if reading.is_set():
                return self.real.poll()
            reading.set()
            return [(pipe[0], select.POLLIN)]

    monkeypatch.setattr(command_input.select, "poll", Misled)
    monkeypatch.setattr(command_input, "CLOSE_TIMEOUT_S", 0.01, raising=False)
    source = LineSource(pipe[0], LIMIT)
    assert reading.wait(TIMEOUT_S)
    ending = threading.Thread(target=source.close, daemon=True)
    ending.start()
    ending.join(TIMEOUT_S)
    stuck = ending.is_alive()
    os.write(pipe[1], b"late")
    source._thread.join(TIMEOUT_S)
    assert (stuck, source._thread.is_alive()) == (False, False)
    os.close(source._wake_read)
    os.close(source._wake_write)


async def test_input_may_have_any_descriptor(pipe: list[int]) -> None:
    """`select.select` refuses descriptors above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    high = 2_000
    if soft <= high:
        resource.setrlimit(resource.RLIMIT_NOFILE, (high + 1, hard))
    try:
        os.dup2(pipe[0], high)
        os.write(pipe[1], b"one\n")
        async with asyncio.timeout(TIMEOUT_S):
            with closing(LineSource(high, LIMIT)) as source:
                assert await anext(aiter(source)) == [b"one"]
    finally:
        os.close(high)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_large_input_arrives_whole(tmp_path: Path) -> None:
    data = b"".join(b"%d" % number * (number % 50) + b"\n" for number in range(100_000))
    path = tmp_path / "lines"
    path.write_bytes(data)
    assert len(data) > 5 * command_input.CHUNK_BYTES
    descriptor = os.open(path, os.O_RDONLY)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            with closing(LineSource(descriptor, LIMIT)) as source:
                found = [line async for piece in source for line in piece]
    finally:
        os.close(descriptor)
    assert found == expected(data)


async def test_lines_before_an_oversized_line_are_delivered(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n" + b"x" * (LIMIT + command_input.CHUNK_BYTES) + b"\nfour\n")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            with closing(LineSource(descriptor, LIMIT)) as source:
                incoming = aiter(source)
                assert await anext(incoming) == [b"one", b"two"]
                with pytest.raises(EntryTooLargeError, match="line 3"):
                    await anext(incoming)
    finally:
        os.close(descriptor)


async def test_an_unreadable_input_is_reported() -> None:
    descriptor = os.open("/", os.O_RDONLY)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            with closing(LineSource(descriptor, LIMIT)) as source:
                incoming = aiter(source)
                with pytest.raises(IsADirectoryError):
                    await anext(incoming)
    finally:
        os.close(descriptor)
