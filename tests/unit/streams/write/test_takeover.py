"""The last record of a segment whose writer died, by which its successor completes the segment."""

from __future__ import annotations

import pytest

from quire.codec.distributedlog.control_record import MARK, CreationTime, encode_control
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.record import control_record, encode_record
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.metadata.ledger_metadata import LedgerState
from quire.errors import StreamDamagedError
from quire.streams.read.positions import AtTime, find
from quire.streams.write.producers import ControlState, encode_mark, read_marks
from quire.streams.write.takeover import last_record
from tests.support.bookies.fake_bookies import LEDGER, PASSWORD, FakeCluster, simulated

SEGMENT = StreamSegment(1, LEDGER, 0, layout=2)
"""A segment whose entries have no envelopes."""
ONE_RECORD = encode_mark("p", 5, 1)
NO_RECORDS = ONE_RECORD.replace(MARK.pack(5, 1), MARK.pack(5, 0))
"""A producer mark that no writer of Quire can have written."""


@pytest.mark.parametrize("at", [0, 1, 7, 8, 11, 12, 19])
@pytest.mark.parametrize("control", [False, True])
def test_the_last_record_is_found_before_any_number_of_entries_without_records(
    at: int, *, control: bool
) -> None:
    """A segment that ended before it would deny the records after its end."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(20), state=LedgerState.CLOSED)
        body = b"".join(encode_record(5 + at + n, 100 + n, b"%d" % n) for n in range(3))
        if control:
            body += control_record(8 + at, 0, encode_control(CreationTime(9)))
        for bookie in cluster.bookies.values():
            for entry in range(20):
                earlier = encode_record(entry, entry, b"x")
                content = earlier if entry < at else body if entry == at else b""
                bookie.entries[entry] = cluster.entry(entry, content)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            found = await last_record(reader, SEGMENT)
            assert found is not None
            assert (found.entry_id, found.slot) == (at, 2 + control)
            assert found.count == (8 + at if control else 7 + at)
            for bookie in cluster.bookies.values():
                for entry in range(20):
                    bookie.entries[entry] = cluster.entry(entry, b"")
            assert await last_record(reader, SEGMENT) is None

    simulated(main)


@pytest.mark.parametrize("snapshot_at", [None, 0, 2, 3, 5, 6, 9])
def test_the_producers_of_all_entries_are_known_to_the_successor(
    snapshot_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search goes backward to the last snapshot, in windows of a few entries."""
    monkeypatch.setattr("quire.streams.write.producers.ENTRIES_AT_ONCE", 3)

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(10), state=LedgerState.CLOSED)
        state = ControlState()
        for entry in range(10):
            if entry == snapshot_at:
                state.producers.clear()  # as if they had not been known
                state.sent("earlier", 4, DLSN(1, 0, 0))
                body = control_record(entry, 0, state.snapshot() or b"")
            else:
                body = control_record(entry, 0, encode_mark(f"p{entry}", 10 * entry, 1))
                body += encode_record(entry, 0, b"x")
                state.sent(f"p{entry}", 10 * entry, DLSN(1, entry, 1))
            for bookie in cluster.bookies.values():
                bookie.entries[entry] = cluster.entry(entry, body)
        async with cluster.client() as client:
            found = await read_marks(client, [SEGMENT], PASSWORD)
        assert found.producers == state.producers

    simulated(main)


def test_an_empty_ledger_has_no_last_record() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), (), state=LedgerState.CLOSED)
        async with cluster.client() as client:
            reader = await client.open_ledger(LEDGER, password=PASSWORD)
            assert await last_record(reader, SEGMENT) is None

    simulated(main)


@pytest.mark.parametrize("snapshot", [False, True], ids=["marks", "snapshot"])
@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (NO_RECORDS, "has an invalid producer mark: 0 records from sequence number 5"),
        (ONE_RECORD[:-1], "ends within its item"),
        (encode_mark("p", 5, 3), "marks 3 records, but fewer follow it"),
    ],
    ids=["invalid", "short", "too many"],
)
def test_a_control_record_that_cannot_be_decoded_is_named(
    payload: bytes, why: str, *, snapshot: bool
) -> None:
    """Otherwise nobody knows which entry of the stream is damaged."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(3), state=LedgerState.CLOSED)
        state = ControlState()
        state.sent("earlier", 4, DLSN(1, 0, 0))
        for bookie in cluster.bookies.values():
            first = control_record(0, 0, state.snapshot() or b"") if snapshot else b""
            bookie.entries[0] = cluster.entry(0, first)
            body = control_record(1, 0, payload) + encode_record(1, 0, b"x")
            bookie.entries[1] = cluster.entry(1, body)
            bookie.entries[2] = cluster.entry(2, encode_record(2, 0, b"y"))
        place = rf"entry 1 of segment 1 \(ledger {LEDGER}\) cannot be decoded: a control record "
        async with cluster.client() as client:
            with pytest.raises(StreamDamagedError, match=place + f"in the entry {why}"):
                await read_marks(client, [SEGMENT], PASSWORD)
            if why.startswith("marks"):
                return
            with pytest.raises(StreamDamagedError, match=place + f"in the entry {why}"):
                await find(client, [SEGMENT], AtTime(1), PASSWORD)

    simulated(main)
