"""Apache's DistributedLog in Python (JPype), to which Quire's streams are compared."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from tests.support.interop.apache_java import from_java, java, to_java
from tests.support.interop.sides import CALL_LIMIT_S
from tests.support.interop.stream_sides import Got, Sent, StreamError

T = TypeVar("T")

DL = "org.apache.distributedlog"
BULK = 500
"""The number of records that a bulk read requests at once."""
SETTINGS: Mapping[str, object] = {
    "enableImmediateFlush": True,
    "writerOutputBufferSize": 0,
    "logSegmentRollingMinutes": 0,
    "maxLogSegmentBytes": 1 << 30,
    # Otherwise there is one roll per minute, and only of one stream at a time.
    "logSegmentRollingConcurrency": 1_000,
    "logSegmentRetentionHours": 0,
    # Otherwise entries are cached for ten minutes, so truncations by others are noticed that late.
    "logSegmentCacheEnabled": False,
    "lockTimeoutSeconds": 5,
    "zkSessionTimeoutSeconds": 6,
    "bkcZKSessionTimeoutSeconds": 6,
}
"""The settings of Apache's client in tests: each record is an entry and is visible at once.

A test sets all other settings that it needs.
"""


def attempt(call: Callable[..., T], *arguments: object) -> T:
    """Call `call`, and raise an exception of Java's as a StreamError."""
    try:
        return call(*arguments)
    except java("java.util.concurrent.ExecutionException") as error:
        cause = error.getCause()
    except java("java.lang.Exception") as error:
        cause = error
    raise StreamError(str(cause.getClass().getSimpleName()), str(cause.getMessage())) from None


def result(future: Any) -> Any:
    seconds = java("java.util.concurrent.TimeUnit").SECONDS
    return attempt(future.get, CALL_LIMIT_S, seconds)


def to_dlsn(position: DLSN) -> Any:
    return java(f"{DL}.DLSN")(*position)


def from_dlsn(position: Any) -> DLSN:
    return DLSN(
        int(position.getLogSegmentSequenceNo()),
        int(position.getEntryId()),
        int(position.getSlotId()),
    )


def configuration(**settings: object) -> Any:
    made = java(f"{DL}.DistributedLogConfiguration")()
    for key, value in {**SETTINGS, **settings}.items():
        made.setProperty(key, value)
    return made


def bind(uri: str, zookeeper: str, ledgers_path: str = "/ledgers", federated: bool = False) -> None:
    """Bind a namespace as `dlog admin bind` does."""
    config = java(f"{DL}.impl.metadata.BKDLConfig")(zookeeper, ledgers_path)
    config.setFederatedNamespace(federated)
    where = java("java.net.URI").create(uri)
    attempt(java(f"{DL}.metadata.DLMetadata").create(config).create, where)


class ApacheStreams:
    """Apache's streams: one `org.apache.distributedlog.api.namespace.Namespace`.

    `settings` have the names of `DistributedLogConfiguration`.
    """

    name = "apache"

    def __init__(self, uri: str, client_id: str = "java", **settings: object) -> None:
        """Open the namespace at `uri`, which is distributedlog://HOST:PORT/PATH."""
        java(f"{DL}.impl.metadata.BKDLConfig").clearCachedDLConfigs()
        self.configuration = configuration(**settings)
        builder = (
            java(f"{DL}.api.namespace.NamespaceBuilder")
            .newBuilder()
            .conf(self.configuration)
            .uri(java("java.net.URI").create(uri))
            .clientId(client_id)
        )
        self.java = attempt(builder.build)
        self._managers: dict[str, Any] = {}

    def manager(self, stream: str) -> Any:
        if stream not in self._managers:
            self._managers[stream] = attempt(self.java.openLog, stream)
        return self._managers[stream]

    # -- the namespace ------------------------------------------------------------------------

    def create(self, stream: str) -> None:
        attempt(self.java.createLog, stream)

    def delete(self, stream: str) -> None:
        attempt(self.java.deleteLog, stream)

    def rename(self, stream: str, new: str) -> None:
        self._managers.pop(stream, None)
        result(self.java.renameLog(stream, new))

    def names(self) -> list[str]:
        found = attempt(self.java.getLogs)
        names = []
        while found.hasNext():
            names.append(str(found.next()))
        return sorted(names)

    # -- streams ------------------------------------------------------------------------------

    def writer(self, stream: str) -> ApacheStreamWriter:
        # A manager has one write handler, so a second writer needs its own manager.
        manager = attempt(self.java.openLog, stream)
        try:
            return ApacheStreamWriter(manager, result(manager.openAsyncLogWriter()))
        except StreamError:
            manager.asyncClose()
            raise

    def reader(self, stream: str, start: DLSN | int | None = None) -> ApacheStreamReader:
        manager = attempt(self.java.openLog, stream)
        begin = java(f"{DL}.DLSN").InitialDLSN if start is None else start
        if isinstance(start, DLSN):
            begin = to_dlsn(start)
        return ApacheStreamReader(manager, begin)

    def read(self, stream: str, count: int, start: DLSN | int | None = None) -> list[Got]:
        reader = self.reader(stream, start)
        try:
            return reader.take(count)
        finally:
            reader.close()

    def subscribed(self, stream: str, subscriber: str) -> ApacheStreamReader:
        """Return a reader that begins at the stored position of a subscriber.

        The reader holds the subscriber's lock, so no other reader can use the name.
        """
        manager = attempt(self.java.openLog, stream)
        reader = result(manager.getAsyncLogReaderWithLock(subscriber))
        return ApacheStreamReader(manager, None, reader)

    def read_blocking(self, stream: str, count: int, start: DLSN | int) -> list[Got]:
        """Read `count` records with Apache's blocking reader, which has its own implementation."""
        manager = attempt(self.java.openLog, stream)
        begin = to_dlsn(start) if isinstance(start, DLSN) else start
        reader = attempt(manager.openLogReader, begin)
        got: list[Got] = []
        try:
            while len(got) < count:
                record = attempt(reader.readNext, False)
                if record is not None:
                    got.append(_got(record))
        finally:
            attempt(reader.close)
            manager.asyncClose()
        return got

    def segments(self, stream: str) -> list[StreamSegment]:
        """Return the segments as Java parses their nodes."""
        found = attempt(self.manager(stream).getLogSegments)
        return [StreamSegment.from_bytes(str(s.getFinalisedData()).encode()) for s in found]

    def find_txid(self, stream: str, txid: int) -> DLSN:
        return from_dlsn(result(self.manager(stream).getDLSNNotLessThanTxId(txid)))

    def last_position(self, stream: str) -> DLSN:
        return from_dlsn(attempt(self.manager(stream).getLastDLSN))

    def count(self, stream: str) -> int:
        return int(attempt(self.manager(stream).getLogRecordCount))

    def recover(self, stream: str) -> None:
        attempt(self.manager(stream).recover)

    def purge(self, stream: str, txid: int) -> None:
        attempt(self.manager(stream).purgeLogsOlderThan, txid)

    def truncate(self, stream: str, before: DLSN) -> None:
        """Truncate a stream before a position. Java truncates through a writer."""
        writer = self.writer(stream)
        writer.truncate(before)
        writer.close()

    def committed(self, stream: str, subscriber: str) -> DLSN | None:
        store = self.manager(stream).getSubscriptionsStore()
        return from_dlsn(result(store.getLastCommitPosition(subscriber)))

    def commit(self, stream: str, subscriber: str, position: DLSN) -> None:
        store = self.manager(stream).getSubscriptionsStore()
        result(store.advanceCommitPosition(subscriber, to_dlsn(position)))

    def close(self) -> None:
        """Begin to close without waiting, because it may take seconds."""
        threading.Thread(target=self.java.close, daemon=True).start()


class ApacheStreamWriter:
    """Apache's writer of a stream: one `AsyncLogWriter`."""

    def __init__(self, manager: Any, writer: Any) -> None:
        self._manager = manager
        self.java = writer

    def write(self, txid: int, payload: bytes) -> DLSN:
        return from_dlsn(result(self.java.write(self._record(txid, payload))))

    def write_all(self, records: Sequence[Sent]) -> list[DLSN]:
        made = java("java.util.ArrayList")()
        for txid, payload in records:
            made.add(self._record(txid, payload))
        begun = result(self.java.writeBulk(made))
        return [from_dlsn(result(future)) for future in begun]

    def write_each(self, records: Sequence[Sent]) -> list[DLSN]:
        """Write each record as an entry of its own, without waiting in between."""
        begun = [self.java.write(self._record(txid, payload)) for txid, payload in records]
        return [from_dlsn(result(future)) for future in begun]

    def write_set(self, txid: int, payloads: Sequence[bytes], compression: str = "NONE") -> DLSN:
        """Write all payloads as one record set, and return the position of the first."""
        codec = java(f"{DL}.io.CompressionCodec$Type").valueOf(compression)
        packed = java(f"{DL}.LogRecordSet").newWriter(1 << 16, codec)
        future = java("java.util.concurrent.CompletableFuture")
        for payload in payloads:
            packed.writeRecord(java("java.nio.ByteBuffer").wrap(to_java(payload)), future())
        record = java(f"{DL}.LogRecord")(txid, packed.getBuffer())
        record.setRecordSet()
        return from_dlsn(result(self.java.write(record)))

    @staticmethod
    def _record(txid: int, payload: bytes) -> Any:
        return java(f"{DL}.LogRecord")(txid, to_java(payload))

    def truncate(self, before: DLSN) -> None:
        result(self.java.truncate(to_dlsn(before)))

    def end_stream(self) -> None:
        result(self.java.markEndOfStream())
        self.close()

    def close(self) -> None:
        result(self.java.asyncClose())
        result(self._manager.asyncClose())

    def abandon(self) -> None:
        result(self.java.asyncAbort())
        result(self._manager.asyncClose())


class ApacheStreamReader:
    """Apache's reader of a stream: one `AsyncLogReader`, or several one after the other.

    Apache's reader may close one of its own segment readers while it reads, which was seen once in
    some thousands of reads. It stays unusable, so another one is opened where it has stopped.
    """

    def __init__(self, manager: Any, begin: Any, reader: Any = None) -> None:
        """Open a reader at `begin`. A `reader` that is given is not replaced by another one."""
        self._manager = manager
        self._begin = begin
        self._may_reopen = reader is None
        self.java = result(manager.openAsyncLogReader(begin)) if reader is None else reader
        self.ended = False
        self._ready: deque[Got] = deque()

    def take(self, count: int) -> list[Got]:
        while len(self._ready) < count and not self.ended:
            self._more()
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def _more(self) -> None:
        try:
            found = result(self.java.readBulk(BULK))
        except StreamError as error:
            if error.kind == "EndOfStreamException":
                self.ended = True
                return
            if error.kind != "ReadCancelledException" or not self._may_reopen:
                raise
            # A reader that fails again before it has read anything raises the error.
            self._may_reopen = False
            result(self.java.asyncClose())
            self.java = result(self._manager.openAsyncLogReader(self._begin))
            return
        got = [_got(record) for record in found]
        if got and self._begin is not None:
            self._begin = to_dlsn(got[-1].position.next_slot())
            self._may_reopen = True
        self._ready.extend(got)

    def close(self) -> None:
        result(self.java.asyncClose())
        result(self._manager.asyncClose())


def _got(record: Any) -> Got:
    return Got(
        from_dlsn(record.getDlsn()),
        int(record.getTransactionId()),
        from_java(record.getPayload()),
        int(record.getSequenceId()),
    )
