"""The reader of Apache's streams that the tests of interop use, on a reader that gives up."""

from __future__ import annotations

from typing import Any

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from tests.support.interop.stream_sides import Got, StreamError

pytest.importorskip("jpype")

from tests.support.interop import apache_streams


class Manager:
    """A manager of a stream of five records, whose readers give up when `gives_up` says so."""

    def __init__(self, gives_up: set[int]) -> None:
        self.begun: list[Any] = []
        self.gives_up = gives_up

    def openAsyncLogReader(self, begin: Any) -> Reader:
        self.begun.append(begin)
        return Reader(self, 0 if begin == "begin" else begin.entry_id + 1)


class Reader:
    def __init__(self, manager: Manager, first: int) -> None:
        self.manager, self.at = manager, first

    def readBulk(self, count: int) -> list[Got]:
        if self.at in self.manager.gives_up:
            self.manager.gives_up.remove(self.at)
            raise StreamError("ReadCancelledException", "its segment reader was closed")
        self.at += 1
        return [Got(DLSN(1, self.at - 1, 0), self.at, b"%d" % self.at, self.at - 1)]

    def asyncClose(self) -> None:
        pass


def test_a_follower_that_apache_gave_up_continues_after_its_last_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only readers of a whole stream were opened again, so a test with a follower failed."""
    monkeypatch.setattr(apache_streams, "result", lambda found: found)
    monkeypatch.setattr(apache_streams, "to_dlsn", lambda position: position)
    monkeypatch.setattr(apache_streams, "_got", lambda record: record)
    manager = Manager({0, 3})
    follower = apache_streams.ApacheStreamReader(manager, "begin")
    assert [got.payload for got in follower.take(5)] == [b"1", b"2", b"3", b"4", b"5"]
    assert manager.begun == ["begin", "begin", DLSN(1, 2, 1)]


def test_a_reader_that_apache_gives_up_again_raises_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apache_streams, "result", lambda found: found)
    manager = Manager({0})
    follower = apache_streams.ApacheStreamReader(manager, "begin")
    follower._more()
    manager.gives_up.add(0)
    with pytest.raises(StreamError, match="ReadCancelled"):
        follower.take(1)
