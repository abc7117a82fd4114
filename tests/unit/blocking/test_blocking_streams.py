"""The blocking forms of namespaces, streams and subscriptions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import islice

import pytest

from quire import blocking
from quire.errors import StreamClosedError, StreamFencedError, StreamGapError, UsageError
from quire.streams import DLSN, LATEST, AtSequence, Gap, RecordBatch

WAIT_S = 30.0


@pytest.fixture
def streams(client: blocking.Client) -> Iterator[blocking.Namespace]:
    with client.namespace("/test", create=True) as streams:
        yield streams


def payloads(streams: blocking.Namespace, name: str) -> list[bytes]:
    return [record.payload for record in streams.open_reader(name)]


def test_appended_records_are_read_with_blocking_calls(streams: blocking.Namespace) -> None:
    with streams.open_writer("a", create=True) as writer:
        first = writer.append(b"one")
        positions = writer.append_many([b"two", b"three"])
        assert writer.next_sequence == 3
        assert writer.flush() == positions.last
        writer.roll()
        writer.append(b"four", expect=3)
    assert writer.closed
    assert [record.sequence for record in streams.open_reader("a")] == [0, 1, 2, 3]
    assert payloads(streams, "a") == [b"one", b"two", b"three", b"four"]
    assert streams.find("a", AtSequence(0)) == first
    assert [segment.record_count for segment in streams.segments("a")] == [3, 1]
    with pytest.raises(StreamClosedError):
        writer.append(b"late")


def test_an_error_in_the_block_abandons_the_writer(streams: blocking.Namespace) -> None:
    writer = streams.open_writer("a", create=True)
    writer.append(b"one")
    with pytest.raises(ZeroDivisionError), writer:
        1 / 0  # noqa: B018
    (segment,) = streams.segments("a")
    assert segment.in_progress
    with streams.open_writer("a") as writer:
        writer.append(b"two")
    assert payloads(streams, "a") == [b"one", b"two"]


def test_the_former_writer_is_fenced(streams: blocking.Namespace) -> None:
    old = streams.open_writer("a", create=True)
    old.append(b"one")
    with streams.open_writer("a") as new:
        new.append(b"two")
        with pytest.raises(StreamFencedError):
            old.append(b"late")
    with pytest.raises(StreamFencedError):
        old.close()
    assert payloads(streams, "a") == [b"one", b"two"]


def test_a_reader_continues_where_it_stopped(streams: blocking.Namespace) -> None:
    with streams.open_writer("a", create=True) as writer:
        writer.append_many([b"%d" % number for number in range(10)])
    reader = streams.open_reader("a")
    assert reader.position is None
    assert [record.payload for record in islice(reader, 4)] == [b"0", b"1", b"2", b"3"]
    assert reader.position == DLSN(1, 0, 4)
    assert [record.payload for record in reader] == [b"%d" % number for number in range(4, 10)]
    assert list(reader) == []
    batches = list(streams.open_reader("a", start=DLSN(1, 0, 7)).batches())
    assert [len(batch) for batch in batches if isinstance(batch, RecordBatch)] == [3]


def test_following_waits_for_another_thread(streams: blocking.Namespace) -> None:
    streams.create_stream("a")
    found: list[bytes] = []
    seen = threading.Semaphore(0)

    def follow() -> None:
        for record in streams.open_reader("a", follow=True):
            found.append(record.payload)
            seen.release()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    writer = streams.open_writer("a")
    for number in range(3):
        writer.append(b"%d" % number)
        assert seen.acquire(timeout=WAIT_S)
    writer.end_stream()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert found == [b"0", b"1", b"2"]


def test_truncated_records_are_reported_as_a_gap(streams: blocking.Namespace) -> None:
    with streams.open_writer("a", create=True) as writer:
        writer.append(b"one")
        writer.roll()
        second = writer.append(b"two")
    streams.truncate("a", second)
    assert streams.retain("a") == []
    assert payloads(streams, "a") == [b"two"]
    with pytest.raises(StreamGapError):
        list(streams.open_reader("a", start=DLSN(1, 0, 0)))
    gap, batch = streams.open_reader("a", start=DLSN(1, 0, 0), on_gap="deliver").batches()
    assert (type(gap), type(batch)) == (Gap, RecordBatch)


def test_producers_and_fencing_tokens_work_with_blocking_calls(streams: blocking.Namespace) -> None:
    with streams.open_writer("a", create=True) as writer:
        producer = writer.producer("p")
        assert producer.last_sequence == -1
        assert producer.append(b"one", 0) is not None
        assert producer.append(b"one", 0) is None
        assert len(producer.append_many([b"one", b"two"], 0)) == 1
        assert (producer.producer_id, producer.last_sequence) == ("p", 1)
        writer.set_fencing_token("t")
        writer.append(b"three", token="t")
    assert payloads(streams, "a") == [b"one", b"two", b"three"]


def test_streams_are_configured_and_named_with_blocking_calls(
    client: blocking.Client, streams: blocking.Namespace
) -> None:
    streams.configure({"roll_bytes": 1_000})
    streams.create_stream("a", settings={"compression": "lz4"})
    assert streams.own_settings() == streams.given_settings == {"roll_bytes": 1_000}
    assert streams.own_stream_settings("a") == {"compression": "lz4"}
    streams.configure_stream("a", {"compression": None, "entry_bytes": 2_000})
    assert streams.own_stream_settings("a") == {"entry_bytes": 2_000}
    found = streams.stream_settings("a")
    assert (found.compression, found.roll_bytes, found.entry_bytes) == ("none", 1_000, 2_000)
    with pytest.raises(UsageError, match="write_quorum is 9"):
        streams.configure_stream("a", {"write_quorum": 9})
    streams.configure({"roll_bytes": None})
    assert streams.settings.roll_bytes != 1_000
    assert (streams.exists("a"), streams.streams()) == (True, ["a"])
    streams.rename_stream("a", "b")
    assert streams.streams("b") == ["b"]
    streams.delete_stream("b")
    with client.namespace("/test") as again:
        assert (again.path, again.streams()) == ("/test", [])


def test_subscriptions_store_positions_with_blocking_calls(streams: blocking.Namespace) -> None:
    with streams.open_writer("a", create=True) as writer:
        position = writer.append(b"one")
    subscription = streams.subscription("a", "s")
    assert (subscription.name, subscription.position()) == ("s", None)
    assert subscription.commit(position.next_slot())
    assert not subscription.commit(position)
    assert subscription.position() == position.next_slot()
    assert streams.subscriptions("a") == ["s"]
    subscription.delete()
    assert (subscription.position(), streams.subscriptions("a")) == (None, [])
    assert list(streams.open_reader("a", start=LATEST)) == []


def test_writers_and_readers_belong_to_their_process(
    streams: blocking.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = streams.open_writer("a", create=True)
    producer = writer.producer("p")
    reader = streams.open_reader("a")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    uses = {
        "the writer of stream a": writer.flush,
        "producer p": lambda: producer.append(b"x", 0),
        "the reader of stream a": lambda: list(reader),
    }
    for what, use in uses.items():
        with pytest.raises(UsageError, match=f"{what} belongs to process"):
            use()
    writer.abandon()  # does nothing: it is not ours
    monkeypatch.undo()
    writer.append(b"one")
    writer.close()


def test_submitted_records_can_be_waited_for(streams: blocking.Namespace) -> None:
    with streams.open_writer("a", create=True) as writer:
        appended = writer.submit_many([b"one", b"two"])
        appended.wait()
        assert list(appended) == [appended.first, appended.last] == [DLSN(1, 0, 0), DLSN(1, 0, 1)]
        assert len(appended) == 2
        three = writer.submit_many([b"three"])
        assert writer.flush() == three.last > appended.last
    assert payloads(streams, "a") == [b"one", b"two", b"three"]
