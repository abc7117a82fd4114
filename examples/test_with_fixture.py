"""Tests of a program that uses Quire, with the fixtures that Quire brings for pytest.

    pip install pytest .    # in the directory of the source
    pytest test_with_fixture.py

pytest finds the fixture `quire_blocking_client` by itself. It starts three bookies on this machine,
once for all tests, and stops them at the end.
"""

from __future__ import annotations

import pytest

from quire import blocking
from quire.errors import NoSuchStreamError, StreamFencedError
from quire.testing import LocalCluster


class Inbox:
    """The program under test: messages that are kept in a stream."""

    def __init__(self, streams: blocking.Namespace, name: str) -> None:
        self._streams = streams
        self._name = name
        self._writer = streams.open_writer(name, create=True)

    def put(self, message: str) -> None:
        self._writer.append(message.encode())

    def messages(self) -> list[str]:
        return [one.payload.decode() for one in self._streams.open_reader(self._name)]


@pytest.fixture
def streams(quire_blocking_client: blocking.Client) -> blocking.Namespace:
    return quire_blocking_client.namespace("/test/inbox", create=True)


# All tests share the cluster: each one uses a stream of its own.


def test_messages_come_back_in_order(streams: blocking.Namespace) -> None:
    inbox = Inbox(streams, "order")
    for message in ("one", "two", "three"):
        inbox.put(message)
    assert inbox.messages() == ["one", "two", "three"]


def test_a_new_inbox_takes_over(streams: blocking.Namespace) -> None:
    old = Inbox(streams, "takeover")
    old.put("from the old one")
    new = Inbox(streams, "takeover")
    with pytest.raises(StreamFencedError):
        old.put("too late")
    assert new.messages() == ["from the old one"]


def test_a_missing_stream_is_an_error(streams: blocking.Namespace) -> None:
    with pytest.raises(NoSuchStreamError):
        list(streams.open_reader("missing"))


def test_nothing_is_lost_when_a_bookie_dies() -> None:
    # A test that kills a bookie uses a cluster of its own.
    with LocalCluster(bookies=4) as cluster, blocking.connect(cluster.uri) as client:
        inbox = Inbox(client.namespace("/inbox", create=True), "messages")
        inbox.put("before")
        cluster.bookies[0].kill()
        inbox.put("after")
        assert inbox.messages() == ["before", "after"]
