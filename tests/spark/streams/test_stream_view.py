"""The driver's view of a stream, whose offsets are compared with the stream later."""

from __future__ import annotations

import pytest

from quire.client import LedgerReader
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire.spark.streams.offsets import StreamOffset
from quire.spark.streams.view import StreamView
from quire.streams.write.takeover import take_over
from tests.support.streams import Bench, run


def test_a_segment_that_stays_empty_is_no_sign_of_another_stream() -> None:
    """Its number is assigned again, with another ledger. A query had stopped just before it.

    The query then said that another stream had got the name. Found by seed 2600904582 of the
    workload `spark`.
    """

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"0")
        metadata = b.streams.metadata("s")
        taken = await take_over(b.client, metadata, b"")
        ledger = await b.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await metadata.allocate(taken.claim, ledger.ledger_id)
        await metadata.change(taken.claim, begin=StreamSegment(2, ledger.ledger_id, 0))
        view = StreamView(b.streams, "s")
        await view.open()
        reached = view.reached(await view.frontier())
        assert reached == StreamOffset(DLSN(2, 0, 0), None, 1, view.life)

        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"1")
            await view.look()
            assert view.same_stream(reached)
        await view.look()
        assert view.segments[-1].lssn == 2
        assert view.segments[-1].ledger_id != ledger.ledger_id
        assert view.same_stream(reached)
        splits, gaps = await view.splits(reached.position, None, reached.sequence)
        assert [split.origin.segment.lssn for split in splits] == [2]
        assert not gaps
        view.close()

    run(scene)


def test_records_appended_meanwhile_are_not_counted_before_a_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of records before a position identifies the stream later.

    Found by seed 303001740 of the workload `spark`.
    """

    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await writer.append(b"0")  # the first record opens the segment
            view = StreamView(b.streams, "s")
            await view.open()
            refresh = LedgerReader.refresh

            async def slow(reader: LedgerReader) -> int:
                """Return what was acknowledged before another record came."""
                last = await refresh(reader)
                await writer.append(b"1")
                return last

            monkeypatch.setattr(LedgerReader, "refresh", slow)
            mark = await view.mark(DLSN(1, 1, 0))
            assert (mark.position, mark.records) == (DLSN(1, 1, 0), 1)
            view.close()

    run(scene)
