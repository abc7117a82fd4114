"""What `quire stream write` and `quire ledger write` count when the input or an append fails."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from quire.cli.common.input import unreadable
from quire.cli.ledger.write import _append_and_close
from quire.cli.stream.input_records import LineFormat
from quire.cli.stream.write import InputAppender
from quire.errors import QuireError, StreamFencedError


class Appends:
    """A writer of a topic or a ledger, whose appends are acknowledged or fail at once."""

    name, partitions, ledger_id, length, last_add_pushed = "t", 2, 5, 6, -1

    def __init__(self, *failing: bytes) -> None:
        self.failing = failing
        self.closed = False

    async def submit_many(self, payloads: list[bytes]) -> Appended:
        return Appended(payloads, bool({*payloads} & {*self.failing}))

    def submit(self, payload: bytes) -> None:
        self.last_add_pushed += 1

    @property
    def last_add_confirmed(self) -> int:
        return self.last_add_pushed

    async def room(self) -> None:
        pass

    async def close(self) -> int:
        self.closed = True
        return self.last_add_pushed


class Appended:
    def __init__(self, payloads: list[bytes], fails: bool) -> None:
        self._payloads, self._fails = payloads, fails

    def __len__(self) -> int:
        return len(self._payloads)

    async def wait(self) -> None:
        if self._fails:
            raise StreamFencedError("another writer has taken over")


class Lines:
    """An input that ends with an error, or arrives in several pieces."""

    def __init__(self, *pieces: list[bytes], error: OSError | None = None) -> None:
        self._pieces, self._error = pieces, error

    async def __aiter__(self) -> Any:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error


async def test_appends_acknowledged_after_a_failed_one_are_counted() -> None:
    """Other partitions of a topic acknowledge them. They were not counted, and sent again."""
    writer: Any = Appends(b"lost")
    input_ = InputAppender(writer, LineFormat(), None, "")
    source: Any = Lines([b"a"], [b"lost"], [b"b", b"c"])
    with pytest.raises(QuireError):
        await input_.append_all(source)
    await input_.settle()
    assert (input_.records, input_.size_bytes) == (3, 3)


async def test_an_input_error_waits_for_the_records_in_flight() -> None:
    """The command gave up the lines in flight, and said only `Input/output error`."""
    writer: Any = Appends()
    input_ = InputAppender(writer, LineFormat(), None, "")
    source: Any = Lines([b"a", b"b"], error=OSError(errno.EIO, os.strerror(errno.EIO)))
    await input_.append_all(source)
    assert (input_.records, writer.closed) == (2, True)
    assert isinstance(input_.refused, OSError)


async def test_an_input_error_closes_the_ledger() -> None:
    """The ledger was left open, and the command did not say so."""
    writer: Any = Appends()
    source: Any = Lines([b"a", b"b"], error=OSError(errno.EIO, os.strerror(errno.EIO)))
    closed, broken = await _append_and_close(writer, source)
    assert (writer.closed, closed) == (True, "ledger 5 closed: 2 entries, 6 bytes")
    assert broken is not None
    assert unreadable(broken) == "the input cannot be read any further: Input/output error"
