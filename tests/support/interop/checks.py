"""The comparisons and waits of the interoperability tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from tests.support.interop.sides import Client, ClientError, Code, Described, Reader, Shape, Writer
from tests.support.waiting import wait_for

POLL_MS = 500
"""The timeout of one long poll in milliseconds. A poll does not end when the writer closes."""


@dataclass(frozen=True, slots=True)
class Pair:
    one: Client
    other: Client
    one_with_explicit_lac: Callable[[], Client]

    @property
    def both(self) -> tuple[Client, Client]:
        return self.one, self.other

    @property
    def turns(self) -> tuple[tuple[Client, Client], ...]:
        """Pairs of clients for two roles: (one, other), (other, one) and (one, one)."""
        return (self.one, self.other), (self.other, self.one), (self.one, self.one)


def check_closed(
    clients: Sequence[Client],
    ledger_id: int,
    sent: Sequence[bytes],
    shape: Shape,
    closed_by: Client | None = None,
) -> Described:
    """Check that all clients find exactly these payloads in a closed ledger.

    `closed_by` is the client that recovered the ledger from a writer that was busy or had just
    replaced a bookie. The length that Apache's client stores may then be wrong, so it is not
    checked. Returns the metadata.
    """
    length_counts = closed_by is None or closed_by.name == "quire"
    descriptions = [client.describe(ledger_id) for client in clients]
    for described in descriptions:
        assert described.closed
        assert described.last_entry_id == len(sent) - 1
        if length_counts:
            assert described.length == sum(map(len, sent)), described
        assert described.shape == shape
        assert described == descriptions[0]
    for client in clients:
        reader = client.open(ledger_id, password=shape.password, digest=shape.digest)
        assert reader.closed
        assert reader.last_add_confirmed == len(sent) - 1
        if sent:
            check_read(reader, sent)
        reader.close()
    return descriptions[0]


def check_read(reader: Reader, sent: Sequence[bytes]) -> None:
    """Check that a reader that has read nothing yet reads exactly these payloads."""
    last = len(sent) - 1
    # This must come first. If Apache's client recovers a ledger that its busy writer then closes
    # lower, bookies keep a LAC beyond the end, and Apache's readers trust a LAC that they have
    # read.
    refused(partial(reader.read, last + 1, last + 1), Code.READ, Code.NO_SUCH_ENTRY)
    assert reader.read(0, last) == list(sent)
    for entry_id in {0, last // 2, last}:
        assert reader.read(entry_id, entry_id) == [sent[entry_id]]


def refused(call: Callable[[], object], *codes: int) -> None:
    with pytest.raises(ClientError) as error:
        call()
    assert error.value.code in codes, error.value


def wait_confirmed(reader: Reader, entry_id: int) -> None:
    wait_for(lambda: reader.refresh() >= entry_id, f"{entry_id} is known to be confirmed")


def tailed(reader: Reader, entry_id: int) -> bytes:
    found = wait_for(
        lambda: (payload := reader.tail(entry_id, POLL_MS)) is not None and (payload,),
        f"entry {entry_id} arrives",
    )
    return found[0]


class Stream:
    """A thread that appends entries with a writer until an append is refused."""

    BATCH = 20

    def __init__(self, writer: Writer, pause_s: float = 0.0) -> None:
        """Start the thread, with pauses of `pause_s` seconds between two batches."""
        self.writer = writer
        self.acknowledged = 0
        self.error: ClientError | None = None
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @staticmethod
    def payload(number: int) -> bytes:
        return b"%d/" % number * (1 + number % 40)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause_s):
                first = self.acknowledged
                sent = [self.payload(number) for number in range(first, first + self.BATCH)]
                assert self.writer.append_all(sent) == list(range(first, first + self.BATCH))
                self.acknowledged = first + self.BATCH
        except ClientError as error:
            self.acknowledged += error.done
            self.error = error

    def reaches(self, count: int) -> None:
        def there() -> bool:
            assert self.error is None, self.error
            return self.acknowledged >= count

        wait_for(there, f"{count} entries are acknowledged")

    def goes_on(self, count: int = 200) -> None:
        """Wait until `count` further entries are acknowledged."""
        self.reaches(self.acknowledged + count)

    @classmethod
    def sent(cls, count: int) -> list[bytes]:
        """Return the payloads of the first `count` entries."""
        return [cls.payload(number) for number in range(count)]

    def stop(self) -> int:
        """Stop appending, and return the number of acknowledged entries.

        Raises the error with which an append was refused, if there was one.
        """
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self.acknowledged

    def ends(self) -> ClientError:
        """Wait until an append is refused, and return its error."""
        self._thread.join()
        assert self.error is not None
        return self.error
