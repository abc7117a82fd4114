"""A subscription whose next records were truncated says so, and not only how far it is behind."""

from __future__ import annotations

from quire.cli.stream.show import _lines
from quire.codec.distributedlog.dlsn import DLSN
from quire.http.views.stream_statistics import stream_statistics, subscription_lags
from tests.support.streams import Bench, run

BATCH = 4
"""The number of records in each entry."""


async def write_segments(b: Bench, segments: int, entries: int) -> None:
    for _ in range(segments):
        async with await b.streams.open_writer("orders", create=True) as writer:
            for _ in range(entries):
                await writer.append_many([b"record"] * BATCH)


def test_records_truncated_before_they_were_read_are_reported() -> None:
    async def scene(b: Bench) -> None:
        await write_segments(b, segments=2, entries=3)
        at_end = (await b.streams.segments("orders"))[0].last_dlsn.next_slot()
        for name, position in (
            ("first", DLSN(1, 0, 0)),
            ("last", at_end),  # it has read the whole first segment
            ("within", DLSN(2, 0, 1)),
            ("before", DLSN(2, 0, BATCH)),  # it has read the whole first entry
            ("oldest", DLSN(2, 1, 0)),
            ("later", DLSN(2, 2, 1)),
        ):
            await b.streams.subscription("orders", name).commit(position)

        async def missed() -> set[str]:
            facts = await stream_statistics(b.streams, "orders", b"")
            return {
                one["name"]
                for one in await subscription_lags(b.streams, facts, b"")
                if one["missed"]
            }

        assert await missed() == set()
        await b.streams.truncate("orders", DLSN(2, 0, 0))
        assert await missed() == {"first"}
        await b.streams.truncate("orders", DLSN(2, 1, 0))
        # Nothing tells whether the first entry had records after the position of "within".
        assert await missed() == {"first", "last"}

    run(scene)


def test_stream_show_names_the_records_that_a_subscription_missed() -> None:
    lines = _lines({
        "name": "orders", "namespace": "/streams", "records": 7, "bytes": 7, "first": None,
        "first_time": None, "last": None, "last_time": None, "ended": False, "lost": [],
        "settings": {}, "segments": [], "subscriptions": [
            {"name": "billing", "position": "1:0:0", "lag": 7, "missed": True},
            {"name": "other", "position": "2:0:0", "lag": 7, "missed": False},
        ],
    })  # fmt: skip
    assert lines[-2].endswith("7 records, and records before them were truncated unread")
    assert lines[-1].endswith("7 records")
