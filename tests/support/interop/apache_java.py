"""Apache BookKeeper's Java client in Python (JPype), to which Quire's client is compared.

The virtual machine lives in this process, and the first client starts it. Its threads never call
into Python.
"""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jpype

from quire.codec.wire import messages_pb2 as messages
from tests.support.interop.sides import (
    CALL_LIMIT_S,
    DIGEST_BYTES,
    FRAME_BYTES,
    PASSWORD,
    PLAIN,
    V2_ADD_OVERHEAD_BYTES,
    ClientError,
    Described,
    Feature,
    Shape,
)

T = TypeVar("T")

PEER = Path(__file__).parents[3] / "bench" / "peer" / "apache"
LOGGING = Path(__file__).with_name("log4j2.xml")
JARS_LIMIT_S = 600
HEAP_MB = 384
DIRECT_MB = 384
EXPLICIT_LAC_INTERVAL_MS = 50
LENGTH_BYTES = 4
MASTER_KEY_BYTES = 20
ENTRY_BYTES = 32
"""The number of bytes that an entry has besides its digest and its payload."""
THREE_BYTES_FROM = 1 << 15
BATCH_BYTES = 1 << 20

JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    f"-Dlog4j2.configurationFile={LOGGING}",
    "-Djava.net.preferIPv4Stack=true",  # A bookie must not take the address ::1 of `lo` as its id.
    "-Dio.netty.eventLoopThreads=2",
    "-Dio.netty.allocator.numDirectArenas=2",
    "-Dio.netty.allocator.numHeapArenas=2",
)


@functools.cache
def class_path() -> str:
    """Return the class path of Apache's jars, which are downloaded if they are not cached."""
    done = subprocess.run(
        [str(PEER), "jars"], capture_output=True, text=True, timeout=JARS_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@functools.cache
def start_jvm() -> None:
    """Start the JVM. With QUIRE_INTEROP_LOG=warn, the client's log is shown."""
    jpype.startJVM(
        f"-Xmx{HEAP_MB}m",
        f"-XX:MaxDirectMemorySize={DIRECT_MB}m",
        *JVM_OPTIONS,
        f"-Dinterop.level={os.environ.get('QUIRE_INTEROP_LOG', 'off')}",
        classpath=class_path().split(":"),
        convertStrings=True,
    )


@functools.cache
def java(name: str) -> Any:
    start_jvm()
    return jpype.JClass(name)


def attempt(call: Callable[..., T], *arguments: object) -> T:
    """Call `call`, and raise an exception of Java's as a ClientError."""
    try:
        return call(*arguments)
    except java("java.util.concurrent.ExecutionException") as error:
        cause = error.getCause()
    except java("org.apache.bookkeeper.client.api.BKException") as error:
        cause = error
    code = (
        int(cause.getCode())
        if isinstance(cause, java("org.apache.bookkeeper.client.api.BKException"))
        else 0
    )
    raise ClientError(code, str(cause.toString())) from None


def result(future: Any) -> Any:
    seconds = java("java.util.concurrent.TimeUnit").SECONDS
    return attempt(future.get, CALL_LIMIT_S, seconds)


def to_java(payload: bytes) -> Any:
    return jpype.JArray(jpype.JByte)(payload)


def from_java(payload: Any) -> bytes:
    return memoryview(payload).tobytes() if len(payload) else b""


FEATURES = {
    "v2": frozenset({Feature.BATCH_READ, Feature.EXPLICIT_LAC, Feature.UNCONFIRMED_READ}),
    "v3": frozenset(Feature) - {Feature.BATCH_READ},
}
"""The optional features of Apache's client, by protocol version."""


class ApacheClient:
    """Apache's client, one `org.apache.bookkeeper.client.BookKeeper`."""

    close_cuts = True

    def __init__(
        self,
        uri: str,
        protocol: str = "v3",
        *,
        explicit_lac: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Connect to the cluster at `uri`. `settings` are keys of a client's configuration."""
        self.name = f"apache-{protocol}"
        self.features = FEATURES[protocol]
        self.v2 = protocol == "v2"
        configuration = java("org.apache.bookkeeper.conf.ClientConfiguration")()
        configuration.setMetadataServiceUri(uri)
        configuration.setUseV2WireProtocol(self.v2)
        configuration.setThrottleValue(0)
        configuration.setNumIOThreads(1)
        configuration.setNumWorkerThreads(2)
        if explicit_lac:
            configuration.setExplictLacInterval(EXPLICIT_LAC_INTERVAL_MS)
        for key, value in (settings or {}).items():
            configuration.setProperty(key, value)
        self._configuration = configuration
        self.java = attempt(java("org.apache.bookkeeper.client.BookKeeper"), configuration)

    def create(
        self,
        shape: Shape = PLAIN,
        *,
        custom: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
    ) -> ApacheWriter:
        operation = self._create(shape)
        if custom:
            values = java("java.util.HashMap")()
            for key, value in custom.items():
                values.put(key, to_java(value))
            operation = operation.withCustomMetadata(values)
        if deferred_sync:
            flag = java("org.apache.bookkeeper.client.api.WriteFlag").DEFERRED_SYNC
            operation = operation.withWriteFlags(java("java.util.EnumSet").of(flag))
        return ApacheWriter(result(operation.execute()))

    def create_adv(self, shape: Shape = PLAIN, ledger_id: int | None = None) -> ApacheAdvWriter:
        operation = self._create(shape).makeAdv()
        if ledger_id is not None:
            operation = operation.withLedgerId(ledger_id)
        return ApacheAdvWriter(result(operation.execute()))

    def _create(self, shape: Shape) -> Any:
        digests = java("org.apache.bookkeeper.client.api.DigestType")
        return (
            self.java.newCreateLedgerOp()
            .withEnsembleSize(shape.ensemble)
            .withWriteQuorumSize(shape.write_quorum)
            .withAckQuorumSize(shape.ack_quorum)
            .withDigestType(digests.valueOf(shape.digest))
            .withPassword(to_java(shape.password))
        )

    def open(
        self,
        ledger_id: int,
        *,
        recover: bool = False,
        password: bytes = PASSWORD,
        digest: str = "CRC32C",
    ) -> ApacheReader:
        digests = java("org.apache.bookkeeper.client.api.DigestType")
        operation = (
            self.java.newOpenLedgerOp()
            .withLedgerId(ledger_id)
            .withRecovery(recover)
            .withPassword(to_java(password))
            .withDigestType(digests.valueOf(digest))
        )
        return ApacheReader(result(operation.execute()))

    def delete(self, ledger_id: int) -> None:
        result(self.java.newDeleteLedgerOp().withLedgerId(ledger_id).execute())

    def largest_payload(self, ledger_id: int, shape: Shape) -> int:
        overhead = V2_ADD_OVERHEAD_BYTES if self.v2 else v3_add_overhead_bytes(ledger_id)
        return FRAME_BYTES - overhead - DIGEST_BYTES[shape.digest]

    def describe(self, ledger_id: int) -> Described:
        found = result(self.java.getLedgerManager().readLedgerMetadata(ledger_id)).getValue()
        return described(found)

    def entries_of(self, bookie_id: str, ledger_id: int, count: int) -> list[int]:
        """Return which of the ledger's entries 0 to `count` - 1 a bookie reports to have."""
        admin = java("org.apache.bookkeeper.client.BookKeeperAdmin")(self.java, self._configuration)
        bookie = java("org.apache.bookkeeper.net.BookieId").parse(bookie_id)
        found = result(admin.asyncGetListOfEntriesOfLedger(bookie, ledger_id))
        return [number for number in range(count) if found.isEntryAvailable(number)]

    def disk_space(self) -> dict[str, tuple[int, int]]:
        """Return the free and the total bytes of each bookie, by its id."""
        return {
            str(entry.getKey().toString()): (
                int(entry.getValue().getFreeDiskSpace()),
                int(entry.getValue().getTotalDiskSpace()),
            )
            for entry in attempt(self.java.getBookieInfo).entrySet()
        }

    def close(self) -> None:
        """Begin to close without waiting, because the Java client takes two seconds."""
        threading.Thread(target=self.java.close, daemon=True).start()


class _Handle:
    def __init__(self, handle: Any) -> None:
        self.java = handle
        self.ledger_id = int(handle.getId())

    @property
    def last_add_confirmed(self) -> int:
        return int(self.java.getLastAddConfirmed())

    def close(self) -> None:
        attempt(self.java.close)

    def abandon(self) -> None:
        """Leave the ledger open. A handle of Java's that is not closed does nothing more."""


class ApacheWriter(_Handle):
    def append(self, payload: bytes) -> int:
        return int(result(self.java.appendAsync(to_java(payload))))

    def append_all(self, payloads: Sequence[bytes]) -> list[int]:
        begun = [self.java.appendAsync(to_java(payload)) for payload in payloads]
        done: list[int] = []
        try:
            for future in begun:
                done.append(int(result(future)))
        except ClientError as error:
            error.done = len(done)
            raise
        return done

    def force(self) -> None:
        result(self.java.force())


class ApacheAdvWriter(_Handle):
    def write(self, entry_id: int, payload: bytes) -> int:
        return self.begin(entry_id, payload)()

    def write_all(self, entries: Sequence[tuple[int, bytes]]) -> list[int]:
        begun = [self.begin(entry_id, payload) for entry_id, payload in entries]
        return [wait() for wait in begun]

    def begin(self, entry_id: int, payload: bytes) -> Callable[[], int]:
        future = self.java.writeAsync(entry_id, to_java(payload))
        return lambda: int(result(future))


class ApacheReader(_Handle):
    def read(self, first: int, last: int) -> list[bytes]:
        return _taken(result(self.java.readAsync(first, last)), first)

    def read_unconfirmed(self, first: int, last: int) -> list[bytes]:
        return _taken(result(self.java.readUnconfirmedAsync(first, last)), first)

    def read_batch(self, first: int, count: int, size: int = BATCH_BYTES) -> list[bytes]:
        """Return the payloads that one batch read from entry `first` gives, at most `count`."""
        return _taken(result(self.java.batchReadAsync(first, count, size)), first)

    def refresh(self) -> int:
        return int(result(self.java.readLastAddConfirmedAsync()))

    def tail(self, entry_id: int, timeout_ms: int, parallel: bool = False) -> bytes | None:
        found = result(self.java.readLastAddConfirmedAndEntryAsync(entry_id, timeout_ms, parallel))
        if found is None:
            return None
        try:
            if not found.hasEntry():
                return None
            assert int(found.getEntry().getEntryId()) == entry_id
            return from_java(found.getEntry().getEntryBytes())
        finally:
            found.close()

    @property
    def closed(self) -> bool:
        return bool(self.java.isClosed())

    def describe(self) -> Described:
        """Return the metadata of the ledger as this reader knows it."""
        return described(self.java.getLedgerMetadata())


def _taken(entries: Any, first: int) -> list[bytes]:
    try:
        found = [(int(e.getEntryId()), from_java(e.getEntryBytes())) for e in entries]
    finally:
        entries.close()
    assert [entry_id for entry_id, _ in found] == list(range(first, first + len(found)))
    return [payload for _, payload in found]


def described(metadata: Any) -> Described:
    return Described(
        state=str(metadata.getState().name()),
        last_entry_id=int(metadata.getLastEntryId()),
        length=int(metadata.getLength()),
        shape=Shape(
            int(metadata.getEnsembleSize()),
            int(metadata.getWriteQuorumSize()),
            int(metadata.getAckQuorumSize()),
            str(metadata.getDigestType().name()),
            from_java(metadata.getPassword()),
        ),
        segments={
            int(segment.getKey()): tuple(str(bookie.toString()) for bookie in segment.getValue())
            for segment in metadata.getAllEnsembles().entrySet()
        },
        custom={
            str(entry.getKey()): from_java(entry.getValue())
            for entry in metadata.getCustomMetadata().entrySet()
        },
    )


def v3_add_overhead_bytes(ledger_id: int) -> int:
    """Return the number of bytes of an add of entry 0 besides digest and payload.

    The frame contains the number of the request as a varint. From the call on, that number has
    three bytes, for two million requests.
    """
    channel = java("org.apache.bookkeeper.proto.PerChannelBookieClient")
    field = channel.class_.getDeclaredField("txnIdGenerator")
    field.setAccessible(True)
    counter = field.get(None)
    if counter.get() < THREE_BYTES_FROM:
        counter.set(THREE_BYTES_FROM)
    # Our own messages have the same numbers, and Java's classes change from version to version.
    body = bytes(FRAME_BYTES - (1 << 10))
    request = messages.Request(
        header=messages.BKPacketHeader(
            version=messages.ProtocolVersion.VERSION_THREE,
            operation=messages.OperationType.ADD_ENTRY,
            txnId=int(counter.get()) + 1,
        ),
        addRequest=messages.AddRequest(
            ledgerId=ledger_id, entryId=0, masterKey=bytes(MASTER_KEY_BYTES), body=body
        ),
    )
    return LENGTH_BYTES + request.ByteSize() - len(body) + ENTRY_BYTES


def initialise_cluster(uri: str) -> None:
    """Initialise the cluster at `uri` as `bookkeeper shell initnewcluster` does."""
    configuration = java("org.apache.bookkeeper.conf.ServerConfiguration")()
    configuration.setMetadataServiceUri(uri)
    made = attempt(
        java("org.apache.bookkeeper.client.BookKeeperAdmin").initNewCluster, configuration
    )
    assert made, f"a cluster exists already at {uri}"
