"""Memory for frames from which an answer is made at once."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

import pytest

from quire.codec.entry.digest import master_key
from quire.codec.entry.frame_runs import FrameRun
from quire.codec.wire.v2 import FRAME_HEADER_BYTES, add_request
from quire.errors import DamagedError
from quire.storage.read import fetched as scratch
from quire.storage.read.fetched import FRAMES_AT, ScratchBuffer
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.reads import answer, only_sealed, sealed, written_of
from tests.support.storage.storage import disk_of, sim_disk

KEY = master_key(b"")


def frames_of(sizes: list[int]) -> tuple[list[bytes], list[bytes]]:
    """Return entries of this size, and their frames."""
    entries = []
    for entry_id, size in enumerate(sizes):
        body = random.Random(entry_id).randbytes(size)
        entries.append(struct.pack(">qqqq", 1, entry_id, -1, 0) + body)
    return entries, [add_request(KEY, entry) for entry in entries]


def on(table: ScratchBuffer, frames: list[bytes], skip: int) -> FrameRun:
    """A run of these frames, read from a file in which they begin after `skip` bytes."""
    disk = sim_disk(1)
    file = disk.create("some")
    data = b"".join(frames)
    file.write([bytes(skip), data], 0)
    part = table.read(file, 0, skip + len(data), skip)
    assert part is not None
    assert bytes(part[skip:]) == data
    equal = len(set(map(len, frames))) == 1
    view = table.view[FRAMES_AT : FRAMES_AT + len(data)]
    size, sizes = (len(frames[0]), ()) if equal else (0, list(map(len, frames)))
    return FrameRun(view, len(frames), size, sizes)


def test_a_run_is_packed_correctly_whatever_the_buffer_held_before() -> None:
    table = ScratchBuffer(1 << 16)
    for sizes in ([100] * 50, [100] * 20, [33] * 200, [100] * 60, [7, 900, 100], [64], [33] * 3):
        for skip in (0, 1, 4095):
            entries, frames = frames_of(sizes)
            found = on(table, frames, skip)
            table.pack(found)
            joined = b"".join(found.pack())
            assert joined == b"".join(struct.pack(">I", len(one)) + one for one in entries)
            assert list(map(bytes, found.entries())) == entries


def test_a_run_outside_the_buffer_is_not_packed_from_it() -> None:
    table = ScratchBuffer(1 << 16)
    _, frames = frames_of([100] * 10)
    table.pack(on(table, frames, 0))
    entries, others = frames_of([101 - 1] * 10)
    elsewhere = bytearray(b"".join(others))
    elsewhere[FRAME_HEADER_BYTES + 40] ^= 1
    found = FrameRun(memoryview(elsewhere), 10, len(others[0]))
    table.pack(found)
    assert bytes(found.first()) != entries[0]
    assert list(map(bytes, found.entries()))[1:] == entries[1:]


def test_the_number_of_cached_views_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "VIEWS_MAX", 20)
    table = ScratchBuffer(1 << 16)
    for count in (20, 21):
        entries, frames = frames_of([50] * count)
        found = on(table, frames, 5)
        table.pack(found)
        assert list(map(bytes, found.entries())) == entries
    assert len(table._bodies) == 20


def test_uncached_and_oversized_reads_do_not_use_the_buffer() -> None:
    disk = sim_disk(1)
    file = disk.create("some")
    file.write([bytes(100_000)], 0)
    table = ScratchBuffer(50_000)
    assert table.read(file, 0, 50_000, 10) is not None
    assert table.read(file, 0, 70_000, 10) is None
    assert table.read(file, 60_000, 50_000, 10) is None  # After the end.
    disk.cold_read_probability = 1.0
    assert table.read(file, 0, 50_000, 10) is None


async def test_concurrent_readers_share_the_buffer_without_mixing_entries() -> None:
    box, recorder = sealed(0.0, 300, 20_000, ledgers=1)
    whole = list(box.written.values())

    async def read(first: int) -> list[bytes]:
        found = await box.store.read_blocking(1, first, 1_000, 1 << 30)
        await asyncio.sleep(0)
        return list(map(bytes, found))

    results = await asyncio.gather(*(read(first) for first in range(0, 100, 7)))
    assert [found == whole[first:] for first, found in zip(range(0, 100, 7), results)] == [
        True
    ] * 15
    assert not recorder.reads


@pytest.mark.parametrize("entry_id", [0, 1, 30, 51, 52, 119])
def test_damage_is_found_in_reads_through_the_buffer(entry_id: int) -> None:
    box, _ = sealed(0.0, 120, 20_000)
    disk: Any = disk_of(box)
    assert isinstance(disk, SimDisk)
    written = written_of(box, 1)
    box.read(1, 0)  # The index is known then.
    wanted = box.store._reader.upcoming(box.store.ledgers[1], entry_id, 1, 1 << 20, 4)
    assert wanted is not None
    disk.flip_bit(only_sealed(box).name, wanted.offset + 8_000, 3)
    before = [] if entry_id == 0 else answer(box, 1, 0, 1 << 30)
    assert before == written[: len(before)]
    assert len(before) == entry_id
    with pytest.raises(DamagedError):
        answer(box, 1, entry_id, 1 << 30)
    assert box.store.stats().damaged_reads > 0
    if entry_id < 115:
        assert answer(box, 1, entry_id + 2, 1 << 30) == written[entry_id + 2 :]
