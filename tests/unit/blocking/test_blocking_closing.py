"""Closing a handle, or the client, in one thread ends the loops that wait in other threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from quire import blocking
from quire.errors import ClientClosedError, QuireError, UsageError

LIMIT_S = 10.0
"""Shorter than the interval at which a reader checks by itself."""


class Loop:
    """A loop over items in its own thread, with the way in which it ended."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.seen: list[Any] = []
        self.error: QuireError | None = None
        self._some = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(items,), daemon=True)
        self._thread.start()
        assert self._some.wait(LIMIT_S)

    def _run(self, items: Iterable[Any]) -> None:
        try:
            for item in items:
                self.seen.append(item)
                self._some.set()
        except QuireError as error:
            self.error = error

    def ended(self) -> QuireError | None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the loop still waits"
        return self.error


@pytest.fixture
def streams(client: blocking.Client) -> Iterator[blocking.Namespace]:
    with client.namespace("/a", create=True) as streams:
        yield streams


@pytest.mark.parametrize("closed", [True, False])
def test_closing_a_stream_reader_ends_its_blocking_iteration(
    streams: blocking.Namespace, closed: bool
) -> None:
    with streams.open_writer("s", create=True) as writer:
        writer.append(b"one")
        if closed:
            writer.close()
        reader = streams.open_reader("s", follow=True)
        loop = Loop(reader)
        reader.close()
        error = loop.ended()
    assert isinstance(error, UsageError)
    assert "the reader of stream s is closed" in str(error)
    assert len(loop.seen) == 1


def test_closing_a_ledger_reader_ends_its_blocking_iteration(client: blocking.Client) -> None:
    with client.create_ledger() as writer:
        writer.append(b"one")
        writer.append(b"two")  # readers hear of the first with it
        reader = client.open_ledger(writer.ledger_id)
        loop = Loop(reader.tail(0))
        reader.close()
        assert isinstance(loop.ended(), UsageError)


def test_closing_the_client_ends_blocking_iterations(client: blocking.Client) -> None:
    with blocking.connect(client.aio.metadata.uri) as other:
        streams = other.namespace("/a", create=True)
        with client.namespace("/a") as same, same.open_writer("s", create=True) as writer:
            writer.append(b"one")
        loop = Loop(streams.open_reader("s", follow=True))
        other.close()
        assert isinstance(loop.ended(), ClientClosedError)
