"""A builder that fills one ledger with records, as a segment to be published (`publishing`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from quire.client import Client, LedgerWriter
from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.control_record import CreationTime, encode_control
from quire.codec.distributedlog.envelope import MAX_BODY_BYTES
from quire.codec.distributedlog.record import HEAD_BYTES, entry_ends
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.wire.v2 import Buffer
from quire.errors import TxidOrderError
from quire.streams.namespace.settings import StreamSettings
from quire.streams.write.pending_entry import PendingEntry
from quire.streams.write.segments import APPLICATION, SegmentWriter

JOB_KEY = "quire.job"
"""The key in a ledger's custom metadata for the job that created the ledger (`BatchKey.job`)."""
LIFE_KEY = "quire.life"
"""The key in a ledger's custom metadata for the life of the stream that the ledger was built for. A
stream that gets the name of another one later has another life."""
UNACKED_ENTRIES_MAX = 64
NO_NUMBER = 0
"""The segment number in use while a ledger is filled, before `publish` assigns the real one."""
NEVER_DUE_S = float("inf")


@dataclass(frozen=True, slots=True)
class BuiltSegment:
    """A closed ledger that `SegmentBuilder` has filled with records, and that is not published yet.

    All fields are plain values, so a task can send it to the driver.
    """

    ledger_id: int
    record_count: int
    first_txid: int
    last_txid: int
    last_entry_id: int
    last_slot_id: int
    size_bytes: int


class SegmentBuilder:
    """A builder that fills one new ledger with records, which `publish` then makes a segment.

    Use a builder in one task only. End it with `close`, or with `discard` to delete the ledger.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        settings: StreamSettings,
        *,
        password: bytes = b"",
        job: str = "",
        life: str = "",
        snapshot: bytes | None = None,
    ) -> None:
        """Create a builder for the stream at `path`, which is `Namespace.path` + "/" + its name.

        `job` (`BatchKey.job`) and `life` (`StreamBatch.life`) are stored with the ledger, so that
        `sweep_job` can find the ledger.
        `snapshot` is explained at `StreamBatch`.
        """
        self._client = client
        self._settings = settings
        self._custom = {**APPLICATION, "stream": path.encode(), JOB_KEY: job.encode()}
        if life:
            self._custom[LIFE_KEY] = life.encode()
        self._password = password
        self._snapshot = snapshot
        self._last_txid = 0
        self._writer: SegmentWriter | None = None
        self._entry = PendingEntry(0)
        self._ledger: LedgerWriter | None = None

    async def append(
        self, payloads: Sequence[Buffer], txids: Sequence[int], envelopes: bytes = b""
    ) -> None:
        """Add records in order. Nothing is durable before `close`.

        `envelopes` has one byte for each record, 1 if its payload begins with an envelope, or is
        empty if none does.

        Raises TxidOrderError if txids decrease. Nothing was appended then. Raises also the errors
        of `Client.create_ledger` and of `LedgerWriter.append`.
        """
        if not payloads:
            return
        if txids[0] < self._last_txid or list(txids) != sorted(txids):  # fast if they are sorted
            before, after = next(
                pair for pair in pairwise((self._last_txid, *txids)) if pair[0] > pair[1]
            )
            raise TxidOrderError(
                f"the txids of the batch for a stream are not in order: {after} follows {before}. "
                "Nothing was appended",
                remedy="Sort the batch by txid",
            )
        self._last_txid = txids[-1]
        writer = self._writer or await self._open(txids[0])
        limit, first = self._settings.entry_bytes, 0
        for end in entry_ends(payloads, limit, self._entry.size_bytes):
            if first or not end:
                writer.send(self._entry)
                self._entry = PendingEntry(0)
                while len(writer.in_flight) > UNACKED_ENTRIES_MAX:
                    await writer.acknowledged()
            if end > first:
                if not self._entry.size_bytes and self._settings.txids == "given":
                    # A search for a time cannot use the txids of such a stream.
                    now = CreationTime(self._client.clock.now_ms())
                    self._entry.mark(encode_control(now))
                self._entry.add(payloads[first:end], txids[first:end], envelopes[first:end])
            first = end

    async def _open(self, first_txid: int) -> SegmentWriter:
        settings = self._settings
        self._ledger = await self._client.create_ledger(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            digest=settings.digest,
            password=self._password,
            custom=self._custom,
        )
        segment = StreamSegment(NO_NUMBER, self._ledger.ledger_id, first_txid)
        compression = Compression[settings.compression.upper()]
        self._writer = SegmentWriter(segment, self._ledger, compression, 0, NEVER_DUE_S)
        return self._writer

    async def close(self) -> BuiltSegment | None:
        """Make all records durable, close the ledger, and return it as a segment.

        Returns None if there were no records, and therefore no ledger was created. Raises the
        errors of `LedgerWriter.append` and of its `close`.
        """
        writer = self._writer
        if writer is None:
            return None
        if self._snapshot:
            if self._entry.size_bytes + HEAD_BYTES + len(self._snapshot) > MAX_BODY_BYTES:
                writer.send(self._entry)
                self._entry = PendingEntry(0)
            self._entry.control = not len(self._entry)
            self._entry.mark(self._snapshot)
        if len(self._entry) or self._entry.control:
            writer.send(self._entry)
        while writer.in_flight:
            await writer.acknowledged()
        await writer.ledger.close()
        return BuiltSegment(
            ledger_id=writer.ledger.ledger_id,
            record_count=writer.count,
            first_txid=writer.segment.first_txid,
            last_txid=writer.last_txid,
            last_entry_id=writer.last.entry_id,
            last_slot_id=writer.last.slot_id,
            size_bytes=writer.ledger.length,
        )

    async def discard(self) -> None:
        """Abandon and delete the ledger, if one was created."""
        if self._ledger is not None:
            self._ledger.abandon()
            await self._client.delete_ledger(self._ledger.ledger_id)
