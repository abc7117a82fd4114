"""The output of commands, and the arithmetic of `quire bench`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire._runtime.tasks import cancelled
from quire.cli.bench import bench, core
from quire.cli.bench.core import Load, RoundResult, Shape
from quire.cli.bench.stream import tail
from quire.cli.common.output import OutputThread, ledger_as_json
from quire.cli.object.transfer import _opened_output
from quire.client import Client
from quire.codec.entry.entry import EntryRun
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.errors import NotEnoughBookiesError, QuireError
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


def test_an_open_ledger_is_shown_as_json() -> None:
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


def test_a_closed_ledger_is_shown_as_json() -> None:
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


async def test_output_is_written_completely_and_in_order() -> None:
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


async def test_output_to_a_closed_pipe_ends_with_an_error() -> None:
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


async def test_cancelled_output_is_not_written_to_a_later_file(tmp_path: Path) -> None:
    """After Ctrl-C in `quire object get`, the next file that was opened could get the rest."""
    read, write = os.pipe()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output = OutputThread(write)
            # The first is more than a pipe holds, so the second one waits.
            writing = [asyncio.create_task(output.write(one)) for one in (bytes(300_000), b"rest")]
            await asyncio.sleep(0)
            await cancelled(writing)
            output.close()
            with (tmp_path / "other").open("wb") as other:
                os.dup2(other.fileno(), write)  # the number of the pipe is that of the file now
                found = b""
                while piece := await asyncio.to_thread(os.read, read, 65_536):
                    found += piece
    finally:
        os.close(read)
        os.close(write)
    assert (tmp_path / "other").read_bytes() == b""
    assert found == bytes(300_000) + b"rest"


@pytest.mark.parametrize("mode", [0o600, 0o664, None])
def test_an_object_that_replaces_a_file_gets_its_mode(tmp_path: Path, mode: int | None) -> None:
    """A file that only its owner could read became one that everybody can read."""
    file = tmp_path / "file"
    if mode is not None:
        file.write_bytes(b"before")
        file.chmod(mode)
    before = os.umask(0o022)
    try:
        with _opened_output(str(file)) as descriptor:
            os.write(descriptor, b"after")
    finally:
        os.umask(before)
    assert file.read_bytes() == b"after"
    assert stat.S_IMODE(file.stat().st_mode) == (0o644 if mode is None else mode)


async def test_a_benchmark_deletes_its_ledgers_if_one_cannot_be_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that were created together with it stayed in the cluster."""
    deleted: list[int] = []

    class Writer:
        ledger_id = 7

        def abandon(self) -> None:
            pass

    made: Iterator[Writer | QuireError] = iter([Writer(), NotEnoughBookiesError("too few")])

    async def create(client: object, shape: Shape) -> Writer:
        found = next(made)
        if isinstance(found, QuireError):
            raise found
        return found

    async def delete(client: object, ledger_id: int) -> None:
        deleted.append(ledger_id)

    monkeypatch.setattr(core, "create", create)
    monkeypatch.setattr(core, "delete", delete)
    with pytest.raises(ExceptionGroup):
        async with core.ledgers(cast(Client, None), Shape(), 2):
            pytest.fail("a ledger was not created")
    assert deleted == [7]


async def test_a_benchmark_reads_an_open_ledger_to_its_end_at_the_start() -> None:
    """It failed if an entry was acknowledged meanwhile, and told the user to report that."""

    class Reader:
        last_add_confirmed = 1

        async def __aenter__(self) -> Reader:
            return self

        async def __aexit__(self, *error: object) -> None: ...

        async def read_runs(self, first: int, last: int) -> AsyncIterator[EntryRun]:
            self.last_add_confirmed = 7
            for entry_id in range(first, last + 1):
                yield cast(EntryRun, OneEntry(ledger_lengths=[10 * (entry_id + 1)]))

    class OneEntry(SimpleNamespace):
        def __len__(self) -> int:
            return 1

    class Opening:
        async def open_ledger(self, ledger_id: int, password: bytes) -> Reader:
            return Reader()

    found = await core.read_whole(cast(Client, Opening()), 5)
    assert (found.operations, found.payload_bytes) == (2, 20)


def test_the_result_of_reading_a_given_ledger_has_its_entry_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It had the default of --size, which nothing was written with."""
    work = bench.BenchOptions("read", "", Load(100, 1024, 50), Shape(), 1, 0, False, True)
    result = RoundResult(4, 100, 1.0)
    bench._print(work, 1, result)
    bench._print(replace(work, ledger_id=5), 1, result)
    own, given = map(json.loads, capsys.readouterr().out.splitlines())
    assert (own["size"], own["outstanding"]) == (1024, 50)
    assert (given["size"], given["outstanding"], given["entries"]) == (25, None, 4)


@given(st.integers(1, 100_000))
def test_outstanding_entries_are_divided_without_remainder(outstanding: int) -> None:
    pieces = Load(1, 1, outstanding).pieces()
    assert sum(pieces) == outstanding
    assert min(pieces) >= 1
    assert max(pieces) - min(pieces) <= 1


@pytest.mark.parametrize("size", [0, 1, 26, 27, 1024])
def test_payloads_have_the_requested_size(size: int) -> None:
    assert len(Load(1, size, 1).payload()) == size


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), min_size=1), st.integers(0, 99))
def test_percentiles_count_every_operation(
    latencies: list[tuple[float, int]], percent: int
) -> None:
    every = sorted(seconds for seconds, count in latencies for _ in range(count))
    found = RoundResult(latencies=latencies).percentile_ms(percent)
    assert found == pytest.approx(every[len(every) * percent // 100] * 1e3)


def test_an_empty_result_has_no_percentile() -> None:
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
