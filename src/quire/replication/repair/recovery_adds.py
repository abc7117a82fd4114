"""Writing entries to one bookie as recovery adds.

A bookie accepts recovery adds even if the ledger is fenced. They are equal to the original entries
in id, payload and cumulative length (rules 23 and 22 of docs/internals/replication-rules.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.client import Client
from quire.client.client import pool_of
from quire.codec.entry.digest import master_key
from quire.codec.entry.entry import META, AddEncoder
from quire.codec.wire.v2 import Buffer, Flag
from quire.config import MIB
from quire.core.replicas import Copies
from quire.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    QuireError,
    SilentConnectionError,
)
from quire.net.link import Link
from quire.replication.budget import UNBOUNDED, Budget
from quire.replication.repair.opened_ledger import OpenedLedger

UNACKED_BYTES_MAX = 4 * MIB
"""The number of bytes that were sent to one bookie and not acknowledged, at which `write` waits."""
UNACKED_SLICES_MAX = 4
"""The number of unacknowledged slices at which `write` waits if a budget limits the rate. Four
slices are 32 ms of the budget; a bookie delays copies by up to 10 ms to sync them with other adds.
On a slow disk, the limit keeps copies from queuing ahead of the appends of other clients."""


class RecoveryAdds:
    """Recovery adds to one ledger on one bookie. Use with `async with`.

    Leaving the block without an error waits until everything is durable on the bookie.
    """

    def __init__(
        self,
        client: Client,
        ledger: OpenedLedger,
        bookie: str,
        *,
        in_place: bool = False,
        budget: Budget = UNBOUNDED,
    ) -> None:
        """Prepare adds, which carry the LAC of the opened ledger.

        Set `in_place` if the metadata names the bookie for these entries. The bookie then accepts
        them even while it is read-only.
        """
        self._pool = pool_of(client)
        self._timeout_s = client.config.add_timeout_s
        self._codec = ledger.codec
        self._bookie = bookie
        self._lac = ledger.last_add_confirmed
        flags = Flag.RECOVERY_ADD | (Flag.HIGH_PRIORITY if in_place else Flag.NONE)
        self._encoder = AddEncoder(ledger.codec, master_key(ledger.password), flags)
        self._budget = budget
        slice_bytes = budget.slice_bytes(UNACKED_BYTES_MAX // UNACKED_SLICES_MAX)
        self._unacked_bytes_max = slice_bytes * UNACKED_SLICES_MAX
        self._link: Link | None = None
        self._unacked: dict[int, int] = {}
        """The number of bytes of each unacknowledged entry, by entry id."""
        self._unacked_bytes = 0
        self._failure: QuireError | None = None
        self._changed = asyncio.Event()
        self.entries = 0
        self.size_bytes = 0
        """The number of payload bytes that were sent."""

    @property
    def failed(self) -> bool:
        """Whether the bookie failed at any time.

        If it did, no entry that was written to it counts as durable.
        """
        return self._failure is not None

    async def __aenter__(self) -> RecoveryAdds:
        """Connect to the bookie. Raises BookieUnavailableError."""
        ledger_id = self._codec.ledger_id
        while True:
            link = await self._pool.channel(self._bookie, adds_of=ledger_id)
            if link.takes_adds_of(ledger_id):  # another task may have attached to it meanwhile
                break
        link.attach(ledger_id, self)
        self._link = link
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *more: object) -> None:
        try:
            if kind is None:
                await self.drain()
        finally:
            if self._link is not None:
                unanswered = bool(self._unacked)
                self._link.detach(self._codec.ledger_id, self, unanswered=unanswered)
                self._link = None

    async def write(self, copies: Copies) -> None:
        """Send entries, and wait while too many bytes are unacknowledged.

        The entries are durable only after `drain`, or when the block ends without an error. Raises
        the error that the bookie returned for any earlier add, BookieUnavailableError if the
        connection is lost, and BookieTimeoutError if the bookie does not answer in time.
        """
        ledger, lac, head = self._codec.ledger_id, self._lac, self._codec.head_bytes
        of, prefix, pack = self._codec.of, self._encoder.prefix, META.pack
        pieces: list[Buffer] = []
        for entry, payload, length in zip(copies.ids, copies.payloads, copies.lengths):
            meta = pack(ledger, entry, lac, length)
            pieces += (prefix(len(payload)), meta, of(meta, payload), payload)
            self._unacked[entry] = head + len(payload)
        payload_bytes, count = copies.size_bytes, len(copies.ids)
        size = payload_bytes + head * count
        await self._budget.take(size)
        self._check()
        assert self._link is not None
        self._unacked_bytes += size
        self._link.send(b"".join(pieces))
        self.entries += count
        self.size_bytes += payload_bytes
        await self._until(self._unacked_bytes_max)

    async def drain(self) -> None:
        """Wait until everything that was sent is durable on the bookie.

        Raises the errors of `write`.
        """
        await self._until(0)

    async def _until(self, unacked_bytes: int) -> None:
        limit = self._timeout_s
        while self._unacked_bytes > unacked_bytes:
            self._check()
            self._changed.clear()
            try:
                async with asyncio.timeout(limit):
                    await self._changed.wait()
            except TimeoutError:
                self._pool.examine_links(self._bookie)
                error = BookieTimeoutError(
                    f"bookie {self._bookie} did not acknowledge copies of entries of ledger "
                    f"{self._codec.ledger_id} within {limit:g} s"
                )
                self._fail(error)
                raise error from None
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    # -- AddSink ------------------------------------------------------------------------------

    def on_acked_run(self, first: int, last: int) -> None:
        self.on_acked(range(first, last + 1))

    def on_acked(self, entries: Sequence[int]) -> None:
        for entry in entries:
            self._unacked_bytes -= self._unacked.pop(entry, 0)
        self._changed.set()

    def on_add_error(self, entry_id: int, error: QuireError) -> None:
        self._unacked_bytes -= self._unacked.pop(entry_id, 0)
        self._fail(error)

    def on_lost(self, error: BookieUnavailableError) -> None:
        self._unacked.clear()
        self._unacked_bytes = 0
        self._fail(error)

    def _fail(self, error: QuireError) -> None:
        if not isinstance(error, SilentConnectionError):
            self._pool.mark_failed(self._bookie)
        self._failure = self._failure or error
        self._changed.set()
