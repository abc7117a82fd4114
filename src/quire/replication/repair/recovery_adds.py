"""Entries written again to one bookie, as recovery adds: accepted although the ledger is fenced
(replication spec, rule 23), equal to the original in id, payload and cumulative length (rule 22).
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
"""Of one bookie: behind it `write` waits."""
UNACKED_SLICES_MAX = 4
"""The same where a budget says how much goes at a time: what it gives in 32 ms, for a bookie lets
copies wait 10 ms for the sync of others. A disk that cannot keep pace is not made to take what was
paid for before the appends of others."""


class RecoveryAdds:
    """Adds to one ledger on one bookie: an `AddSink`. Use as `async with`; leaving it without an
    error waits until everything is durable there."""

    def __init__(
        self,
        client: Client,
        ledger: OpenedLedger,
        bookie: str,
        *,
        in_place: bool = False,
        budget: Budget = UNBOUNDED,
    ) -> None:
        """Every entry carries the LAC of the opened ledger. `in_place`: the bookie is a member that
        should have these entries, and takes them while it is read-only, too."""
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
        """entry -> bytes"""
        self._unacked_bytes = 0
        self._failure: QuireError | None = None
        self._changed = asyncio.Event()
        self.entries = 0
        self.size_bytes = 0
        """Payload that was written."""

    @property
    def failed(self) -> bool:
        """Whether the bookie failed. Then entries that were written to it may not be durable."""
        return self._failure is not None

    async def __aenter__(self) -> RecoveryAdds:
        """BookieUnavailableError."""
        ledger_id = self._codec.ledger_id
        while True:
            link = await self._pool.channel(self._bookie, adds_of=ledger_id)
            if link.takes_adds_of(ledger_id):  # not taken while this task was woken
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
        """Send; waits where too much is on the way. Raises what the bookie answered to any add
        before, BookieUnavailableError, BookieTimeoutError."""
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
        """Until everything that was sent is durable on the bookie. Raises as `write`."""
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
                    f"bookie {self._bookie} left adds of ledger {self._codec.ledger_id} "
                    f"unanswered for {limit:g} s"
                )
                self._fail(error)
                raise error from None
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

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
