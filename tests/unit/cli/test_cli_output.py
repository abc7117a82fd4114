"""The output of commands, and the arithmetic of `quire bench`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.bench import bench
from quire.cli.bench.core import Load, RoundResult, Shape
from quire.cli.bench.stream import tail
from quire.cli.common.output import OutputThread, ledger_as_json
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.streams.namespace.namespace import Namespace

TIMEOUT_S = 30.0

METADATA = LedgerMetadata(
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=1,
    segments=(Segment(0, ("a:1", "b:2")), Segment(10, ("a:1", "c:3"))),
    custom={"text": "täglich".encode(), "bytes": b"\xff\x00"},
    ctime_ms=1_700_000_000_123,
)


def test_an_open_ledger_as_json() -> None:
    described = ledger_as_json(7, METADATA)
    assert json.loads(json.dumps(described)) == {
        "ledger_id": 7,
        "state": "OPEN",
        "last_entry_id": None,
        "length": None,
        "ensemble": 2,
        "write_quorum": 2,
        "ack_quorum": 1,
        "digest": "CRC32C",
        "ctime_ms": 1_700_000_000_123,
        "ctime": "2023-11-14T22:13:20.123Z",
        "format_version": 3,
        "custom": {"text": "täglich"},
        "custom_base64": {"bytes": "/wA="},
        "segments": [
            {"first_entry_id": 0, "last_entry_id": 9, "bookies": ["a:1", "b:2"]},
            {"first_entry_id": 10, "last_entry_id": None, "bookies": ["a:1", "c:3"]},
        ],
    }


def test_a_closed_ledger_as_json() -> None:
    closed = replace(METADATA.with_close(12, 300), custom={}, ctime_ms=-1, digest=None)
    described = ledger_as_json(7, closed)
    assert (described["state"], described["last_entry_id"], described["length"]) == (
        "CLOSED",
        12,
        300,
    )
    assert [segment["last_entry_id"] for segment in described["segments"]] == [9, 12]
    assert (described["ctime"], described["ctime_ms"], described["digest"]) == (None, None, None)
    assert "custom_base64" not in described


async def test_output_is_written_in_order_and_whole() -> None:
    read, write = os.pipe()
    data = [bytes([65 + number]) * 300_000 for number in range(3)]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output = OutputThread(write)
            # More than a pipe holds, so writing continues only as it is read.
            writing = asyncio.gather(*(output.write(piece) for piece in data))
            found = b""
            while len(found) < 900_000:
                found += await asyncio.to_thread(os.read, read, 65_536)
            await writing
            output.close()
    finally:
        os.close(read)
        os.close(write)
    assert found == b"".join(data)


async def test_a_reader_that_went_away() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output = OutputThread(write)
            with pytest.raises(BrokenPipeError):
                await output.write(b"x")
            output.close()
    finally:
        os.close(write)


@given(st.integers(1, 100_000))
def test_outstanding_entries_are_divided_without_rest(outstanding: int) -> None:
    pieces = Load(1, 1, outstanding).pieces()
    assert sum(pieces) == outstanding
    assert min(pieces) >= 1
    assert max(pieces) - min(pieces) <= 1


@pytest.mark.parametrize("size", [0, 1, 26, 27, 1024])
def test_payloads_have_their_size(size: int) -> None:
    assert len(Load(1, size, 1).payload()) == size


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), min_size=1), st.integers(0, 99))
def test_percentiles_count_every_operation(
    latencies: list[tuple[float, int]], percent: int
) -> None:
    every = sorted(seconds for seconds, count in latencies for _ in range(count))
    found = RoundResult(latencies=latencies).percentile_ms(percent)
    assert found == pytest.approx(every[len(every) * percent // 100] * 1e3)


def test_no_percentile_of_nothing() -> None:
    assert RoundResult().percentile_ms(50) is None


class OneStream:
    """A namespace with one stream, whose readers use much CPU before they follow it."""

    CPU_S = 0.3

    def __init__(self) -> None:
        self._readers: list[asyncio.Queue[Record]] = []

    async def open_writer(self, name: str, *, create: bool) -> OneStream:
        return self

    async def append(self, payload: bytes) -> None:
        for records in self._readers:
            records.put_nowait(Record(payload))

    async def close(self) -> None:
        pass

    async def open_reader(self, name: str, **where: object) -> AsyncIterator[Record]:
        until_s = time.process_time() + self.CPU_S
        while time.process_time() < until_s:
            pass
        self._readers.append(asyncio.Queue())
        return self._records(self._readers[-1])

    async def _records(self, records: asyncio.Queue[Record]) -> AsyncIterator[Record]:
        while True:
            yield await records.get()


class Record(NamedTuple):
    payload: bytes


async def test_the_cpu_time_of_followers_begins_with_the_measured_seconds() -> None:
    """It once began before the readers were opened, so it could exceed the seconds."""
    entries, readers = 5, 2
    measured = await tail(cast("Namespace", OneStream()), Load(entries, 10, 1), readers)
    assert (measured.operations, len(measured.latencies)) == (entries, entries * readers)
    assert measured.cpu_seconds < OneStream.CPU_S


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_benchmark_shows_its_rate_and_the_time_left_on_a_terminal(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(bench, "PROGRESS_INTERVAL_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    load = Load(1_000, 10, 1)
    work = bench.BenchOptions("add", "", load, Shape(), 1, 0, False, as_json)
    done = 0
    async with bench._progress(work):
        load.progress.begin("appending", load.entries, lambda: done)
        await asyncio.sleep(0.1)
        done = 400
        await asyncio.sleep(0.1)
    shown = cast("Terminal", sys.stderr).getvalue()
    if as_json:
        assert shown == ""
        return
    assert "add: appending" in shown
    assert re.search(r"400 of 1,000, [1-9][0-9,]*/s, 0:00:0\d left", shown)
