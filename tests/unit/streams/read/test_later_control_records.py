"""Every reader stops at a control record of a later version, whose meaning it cannot know."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.codec.distributedlog import control_record as control_records
from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.limits import LaterStreamFormatError
from quire.codec.distributedlog.record import control_record, decode_entry, encode_records
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.entry.entry import EntryRun
from quire.errors import LaterStreamError
from quire.streams.read.arrow import COLUMNS, Origin, RecordColumns
from quire.streams.read.peek import UnreadableEntry, peek
from quire.streams.read.statistics import before_end, records_from, segment_statistics
from tests.support.streams import Bench, run

LATER = b"quire:2 and whatever follows"
OTHERS = (b"control", b"keepalive", b"quire", b"", b"quire:1 ", b"quire:1 z\0\0\0\1?")
SEGMENT = StreamSegment(1, 5, 0)


def entry_of(control: bytes, before: int, after: int, compression: Compression) -> bytes:
    """Return an entry with user records before and after one control record."""
    parts: list[bytes] = []
    for first, count in ((1, before), (before + 1, after)):
        records, _ = encode_records([b"%04d" % n for n in range(count)], [7] * count, first)
        parts += map(bytes, records)
        if first == 1:
            parts.append(control_record(before, 7, control))
    return wrap(parts, sum(map(len, parts)), compression)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 1), (0, 99), (1, 0), (99, 0), (99, 99)])
def test_an_entry_with_a_control_record_of_a_later_version_is_not_decoded(
    before: int, after: int, compression: Compression
) -> None:
    with pytest.raises(LaterStreamFormatError, match="a later version"):
        decode_entry(entry_of(LATER, before, after, compression))
    for other in OTHERS:
        records = decode_entry(entry_of(other, before, after, compression))
        assert records.user_count == before + after


@pytest.mark.parametrize("columns", [COLUMNS, ("value",), ("txid", "slot")], ids=str)
@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 99), (99, 0), (99, 99)])
def test_arrow_columns_stop_at_a_control_record_of_a_later_version(
    before: int, after: int, columns: Sequence[str]
) -> None:
    pytest.importorskip("pyarrow")

    def rows(control: bytes) -> int:
        data = entry_of(control, before, after, Compression.NONE)
        found = RecordColumns(columns)
        found.add(Origin("s", SEGMENT), EntryRun(5, 0, data, [0], [len(data)], [0], -1))
        return found.rows

    with pytest.raises(LaterStreamError, match=r"entry 0 of segment 1 .*a later version"):
        rows(LATER)
    assert [rows(other) for other in OTHERS] == [before + after] * len(OTHERS)


async def fill(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write three records, with a control record of a later version before the third."""
    writer = await b.streams.open_writer("s", create=True)
    await writer.append(b"1")
    await writer.append(b"2")
    with monkeypatch.context() as later:
        later.setattr(control_records, "MAGIC", b"quire:2 ")
        await writer.set_fencing_token("t")
    await writer.append(b"3", token="t")
    await writer.close()


def test_readers_of_a_stream_stop_at_a_control_record_of_a_later_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await fill(b, monkeypatch)
        async with b.streams.open_reader("s", follow=False) as reader:
            records = aiter(reader)
            assert [(await anext(records)).payload for _ in range(2)] == [b"1", b"2"]
            with pytest.raises(LaterStreamError, match="a later version"):
                await anext(records)

        segments = await b.streams.segments("s")
        facts = await segment_statistics(b.client, segments)
        with pytest.raises(LaterStreamError):
            await records_from(b.client, facts, DLSN(1, 1, 0).next_slot())
        with pytest.raises(LaterStreamError):
            await before_end(b.client, facts, 2)
        shown = [item async for item, _ in peek(b.client, segments, DLSN(1, 0, 0))]
        [unread] = [item for item in shown if isinstance(item, UnreadableEntry)]
        assert isinstance(unread.error, LaterStreamError)
        with pytest.raises(LaterStreamError):
            await b.streams.open_writer("s")

    run(scene)
