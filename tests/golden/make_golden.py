"""Make golden data with the version of Quire that this interpreter has.

    /path/to/a/checkout/.venv/bin/python tests/golden/make_golden.py tests/golden/NAME

The program starts a cluster of three bookies with its metadata in SQLite, and a cluster of one
bookie with its metadata in ZooKeeper. It brings ledgers, streams, objects, a dataset, a state
machine and a checkpoint of Spark into every state that a later version must be able to open. Then
it stops everything and writes four files into the new directory NAME:

- `cluster.tar.xz`: the data directories, the SQLite file, and the checkpoint. One bookie was killed
  while it wrote a group, and another one has a record of damage, which nobody has repaired;
- `cluster.json`: what a later version must find in them;
- `zookeeper.tar.xz`: the data directory of the other cluster's bookie;
- `zookeeper.json`: all persistent nodes of ZooKeeper, and what must be found.

The program uses the command line and the public Python API only, so that any version can run it.
With a further argument, `cluster` or `zookeeper`, it makes only that part. It needs Java and
PySpark. `tests/support/processes/golden.py` starts clusters on copies of the data.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

import quire
from quire.statemachine import DurableDict
from quire.streams import EARLIEST, AtSequence, Namespace

Json = dict[str, Any]

LIMIT_S = 300.0
"""Bounds every wait for a condition."""
SEGMENT_BYTES = 256 * 1024
SMALL = ("--set", f"segment_bytes={SEGMENT_BYTES}", "--set", "min_free_bytes=0")
EAGER = (
    "--set", "gc_interval_s=0.5", "--set", "compact_minor_interval_s=0.5",
    "--set", "compact_minor_ratio=0.6",
)  # fmt: skip
"""Settings of bookies that delete and compact at once."""
NO_COMPACTION = ("--set", "compact_minor_ratio=0", "--set", "compact_major_ratio=0")
NO_GC = ("--set", "gc_enabled=false")
FILL_ROUNDS = 40
"""The number of rounds that append to the ledgers which fill several segments."""
SCRUBS = ("--set", "scrub_interval_s=0.5", "--set", "damage_report_interval_s=0.5")
"""Settings of a bookie that finds damage at once, and reports it."""
TORN_LEDGER, TORN_BYTES = 2**40, 20_000
"""A ledger that only the torn end of a log has, and the size of its entry."""
SECTOR_BYTES = 512
NAMESPACE = "/golden"
INNER = "/golden/inner"
SETTINGS = {"entry_bytes": 2000, "roll_bytes": 100_000}
SPARK = {"events": (60, 40), "archived": (12, 7), "mirrored": (9, 5)}
"""Streams that jobs of Spark read: the number of records that the job has read, and the number
that are still to be read."""
MIRROR = "/mirror"
"""The namespace of the copies that `quire pipeline replicate` makes."""


class Cluster:
    """Bookies of one metadata store, as processes."""

    def __init__(self, directory: Path, uri: str) -> None:
        self.directory = directory
        self.uri = uri
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.directories: dict[str, list[str]] = {}
        self.ids: dict[str, str] = {}

    def quire(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run a command to its end and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "quire", *arguments],
            input=stdin,
            capture_output=True,
            env=self.environment,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"quire {' '.join(arguments)}: {done.stderr.decode()}")
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "QUIRE_METADATA": self.uri, "QUIRE_CONFIG": ""}

    def start(self, name: str, *arguments: str, disks: int = 1) -> None:
        """Start a bookie and wait until it serves."""
        names = [name, *(f"{name}.{disk}" for disk in range(2, disks + 1))]
        named = [word for one in names for word in ("--dir", str(self.directory / one))]
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "quire", "bookie", *named, "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        self.processes[name] = process
        assert process.stdout is not None
        bookie_id = process.stdout.readline().decode().strip()
        if not bookie_id:
            raise RuntimeError(f"{name}: {self.log(name).read_text()}")
        self.directories[name], self.ids[name] = names, bookie_id

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def events(self, name: str) -> list[str]:
        lines = self.log(name).read_text().splitlines(keepends=True)
        return [json.loads(line)["event"] for line in lines if line.endswith("}\n")]

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        status = process.wait(LIMIT_S)
        if number == signal.SIGTERM and status:
            raise RuntimeError(f"{name} ended with {status}: {self.log(name).read_text()}")

    def end_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()

    def bookies(self) -> list[Json]:
        return [
            {"name": name, "id": self.ids[name], "directories": directories}
            for name, directories in self.directories.items()
        ]


def wait_for(look: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not look():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {LIMIT_S:g} s: {what}")
        time.sleep(0.1)


# -- ledgers ------------------------------------------------------------------------------------


class Ledgers:
    """Writes ledgers and notes their entries: a text each, and how often it is repeated."""

    def __init__(self, client: quire.Client) -> None:
        self.client = client
        self.found: list[Json] = []

    async def write(
        self, what: str, entries: list[tuple[str, int]], close: bool = True, **options: Any
    ) -> Any:
        writer = await self.client.create_ledger(**options)
        self.note(what, writer.ledger_id, entries, **options)
        if entries:
            await writer.append_many([payload(*entry) for entry in entries])
        if close:
            await writer.close()
        return writer

    def note(
        self, what: str, ledger_id: int, entries: list[tuple[str, int]], **options: Any
    ) -> None:
        kept = {"what": what, "id": ledger_id, "entries": entries}
        for name, value in options.items():
            kept[name] = value.decode() if isinstance(value, bytes) else value
        if "custom" in kept:
            kept["custom"] = {key: text.decode() for key, text in kept["custom"].items()}
        self.found.append(kept)


def payload(text: str, times: int) -> bytes:
    return text.encode("latin-1") * times


def numbered(what: str, count: int) -> list[tuple[str, int]]:
    return [(f"{what} {number};", 1 + number % 5) for number in range(count)]


async def write_and_compact(cluster: Cluster, ledgers: Ledgers) -> int:
    """Fill several segments, mostly with a ledger that is deleted, until the bookies have compacted
    them. Return the id of the deleted ledger."""
    kept = [await ledgers.client.create_ledger() for _ in range(3)]
    gone = await ledgers.client.create_ledger()
    wide = [(f"kept {number} \x00\xff;", 250) for number in range(FILL_ROUNDS)]
    for number in range(FILL_ROUNDS):
        await gone.append(payload(f"gone {number};", 1_500))
        for writer in kept:
            await writer.append(payload(*wide[number]))
    for writer in kept:
        await writer.close()
        ledgers.note("kept by a compaction", writer.ledger_id, wide)
    await gone.close()
    await ledgers.client.delete_ledger(gone.ledger_id)
    for name in ("bookie-1", "bookie-2"):
        wait_for(lambda name=name: "compacted" in cluster.events(name), f"{name} compacts")
    wait_for(lambda: "ledgers_dropped" in cluster.events("bookie-3"), "bookie-3 drops the ledger")
    return int(gone.ledger_id)


async def write_ledgers(ledgers: Ledgers) -> None:
    """One closed ledger of each kind."""
    for digest in ("crc32c", "crc32", "hmac", "dummy"):
        await ledgers.write(f"closed, {digest}", numbered(digest, 20), digest=digest)
    await ledgers.write("closed, with a password", numbered("secret", 12), password=b"golden",
                        digest="hmac")  # fmt: skip
    await ledgers.write("closed, crc32 and a password", numbered("secret", 12), password=b"g2",
                        digest="crc32")  # fmt: skip
    await ledgers.write("closed and empty", [])
    await ledgers.write("closed, striped", numbered("striped", 31), write_quorum=2)
    await ledgers.write("closed, custom metadata", [("", 1), ("x", 1)],
                        custom={"owner": b"golden"})  # fmt: skip
    older = quire.ClientConfig(ledger_metadata_version=2)
    async with quire.connect(ledgers.client.metadata.uri, config=older) as client:
        before, ledgers.client = ledgers.client, client
        await ledgers.write("closed, metadata of format 2", numbered("two", 6))
        ledgers.client = before
    writer = await ledgers.write("closed, deferred sync", numbered("deferred", 9), close=False,
                                 deferred_sync=True)  # fmt: skip
    await writer.force()
    await writer.close()
    writer = await ledgers.client.create_ledger(caller_ids=True, ledger_id=4_000_000_000)
    entries = numbered("own ids", 8)
    ledgers.note("closed, with ids of the caller", writer.ledger_id, entries)
    await asyncio.gather(*(writer.append_at(n, payload(*entries[n])) for n in reversed(range(8))))
    await writer.close()


async def write_unclosed(ledgers: Ledgers, uri: str) -> None:
    """Ledgers whose writers end without closing them, and one whose writer is fenced."""
    writer = await ledgers.write("open", [], close=False)
    await append_each(ledgers, writer, numbered("open", 7))
    writer = await ledgers.write("open, with a password", [], close=False, password=b"o",
                                 digest="hmac")  # fmt: skip
    await append_each(ledgers, writer, numbered("open", 5))
    await ledgers.write("in recovery", numbered("recovering", 6), close=False)
    writer = await ledgers.write("fenced", numbered("fenced", 10), close=False)
    async with quire.connect(uri) as other:
        await other.open_ledger(writer.ledger_id, recover=True)
    try:
        await writer.append(b"refused")
    except quire.errors.LedgerFencedError:
        pass
    else:
        raise RuntimeError("the fenced writer could append")


async def append_each(ledgers: Ledgers, writer: Any, entries: list[tuple[str, int]]) -> None:
    """One after the other, so that each names the entry before as acknowledged."""
    ledgers.found[-1]["entries"] = entries
    for entry in entries:
        await writer.append(payload(*entry))


async def note_what_is_readable(client: quire.Client, ledgers: list[Json]) -> None:
    """Note the last entry that a reader of an open ledger sees without recovery."""
    for one in ledgers:
        if one["what"].startswith(("open", "marked")):
            password = one.get("password", "").encode()
            reader = await client.open_ledger(one["id"], password=password)
            one["readable"] = [entry.entry_id async for entry in reader.read()][-1]


# -- streams ------------------------------------------------------------------------------------


async def write_streams(client: quire.Client) -> None:
    async with await Namespace.create(client, NAMESPACE, settings=SETTINGS) as streams:
        await write_orders(streams)
        await streams.create_stream("given", settings={"txids": "given"})
        async with await streams.open_writer("given") as writer:
            for txid in (7, 7, 9, 4_000_000_000_000):
                await writer.append(b"txid %d" % txid, txid=txid)
            await writer.end_stream()
        times = {"roll_interval_ms": 3_600_000, "retention_ms": 3_153_600_000_000}  # 100 years
        await streams.create_stream("eu/berlin", settings=times)
        async with await streams.open_writer("eu/berlin") as writer:
            await writer.set_fencing_token("t1")
            await writer.append(b"with a token", token="t1")
        await streams.create_stream("gone")
        async with await streams.open_writer("gone") as writer:
            await writer.append(b"deleted")
        await streams.delete_stream("gone")
        await streams.create_stream("copies")
        await streams.create_stream("once")
        async with await DurableDict.open(streams, "settings") as settings:
            await settings.set("colour", "blue")
            await settings.set("size", [1, 2])
        # The snapshot truncates the segment of these commands: nothing else has them.
        async with await DurableDict.open(streams, "settings") as settings:
            await settings.compare_and_set("colour", "blue", "red")
            await settings.set("before", "the snapshot")
            await settings.leader.snapshot()
            await settings.set("after", {"the": "snapshot"})
            await settings.delete("size")
    async with (
        await Namespace.create(client, INNER, settings={"compression": "lz4"}) as inner,
        await inner.open_writer("packed", create=True) as writer,
    ):
        await writer.append_many([b"packed %d;" % number * 30 for number in range(12)])


async def write_orders(streams: Namespace) -> None:
    """Three completed segments, of which the first is truncated, and positions of readers."""
    await streams.create_stream("orders", settings={"retention_bytes": 10_000_000})
    writer = await streams.open_writer("orders")
    producer = await writer.producer("till-7")
    for segment in range(3):
        first = segment * 10
        records = [b"order %d" % number for number in range(first, first + 10)]
        await producer.append_many(records[:5], first)
        await producer.append_many(records[5:], first + 5)
        await writer.roll()
    await writer.close()
    await streams.truncate("orders", await streams.find("orders", AtSequence(13)))
    subscription = streams.subscription("orders", "billing")
    await subscription.commit(await streams.find("orders", AtSequence(17)))


async def leave_open(client: quire.Client) -> None:
    """Append to the last segment of `orders`, whose writer ends without completing it."""
    streams = await Namespace.open(client, NAMESPACE)
    writer = await streams.open_writer("orders")
    producer = await writer.producer("till-7")
    await producer.append_many([b"order %d" % number for number in range(30, 36)], 30)


async def append_numbers(client: quire.Client, name: str, first: int, end: int) -> None:
    """A segment of the records `NAME FIRST`, ... up to END."""
    async with (
        await Namespace.open(client, NAMESPACE) as streams,
        await streams.open_writer(name, create=True) as writer,
    ):
        await writer.append_many([f"{name} {n}".encode() for n in range(first, end)])


async def read_streams(client: quire.Client, path: str, names: list[str]) -> Json:
    """Positions, numbers and payloads of all records, read without fencing a writer."""
    found: Json = {}
    async with await Namespace.open(client, path) as streams:
        for name in names:
            records = [
                [str(one.position), one.sequence, one.txid, bytes(one.payload).decode("latin-1")]
                async for one in await streams.open_reader(name, start=EARLIEST, on_gap="skip")
            ]
            found[name] = {
                "records": records,
                "settings": await streams.own_stream_settings(name),
                "subscriptions": {
                    one: str(await streams.subscription(name, one).position())
                    for one in await streams.subscriptions(name)
                },
            }
    return found


# -- objects, and Spark -------------------------------------------------------------------------


def put_objects(cluster: Cluster) -> Json:
    whole = "".join(f"chunk {number}\n" * 20 for number in range(20))
    cluster.quire("object", "put", "-", "models/old", stdin=b"old")
    cluster.quire("object", "put", "-", "models/old", "--replace", "--meta", "version=2",
                  stdin=b"new")  # fmt: skip
    cluster.quire("object", "put", "-", "models/many", "--chunk-bytes", "300", "--digest", "crc32",
                  stdin=whole.encode())  # fmt: skip
    cluster.quire("object", "put", "-", "empty", "--bucket", "other")
    cluster.quire("object", "put", "-", "gone", stdin=b"gone")
    cluster.quire("object", "delete", "gone")
    return {
        "default": {"models/old": ["new", {"version": "2"}], "models/many": [whole, {}]},
        "other": {"empty": ["", {}]},
    }


def run_spark(uri: str, directory: Path) -> None:
    """Write a dataset, and run a streaming query that copies what is in the stream `events`."""
    from quire.spark import local_session

    spark = local_session("golden", master="local[1]")
    try:
        rows = spark.range(0, 30, 1, 2).selectExpr("concat('row ', id) AS value")
        for number in range(2):
            rows.write.format("quire").mode("append").options(
                metadata=uri, dataset="rows", txnId=f"job-{number}"
            ).save()
        once = spark.createDataFrame([(b"published once",)], "value binary")
        once.write.format("quire").mode("append").options(
            metadata=uri, namespace=NAMESPACE, stream="once", txnId="job-once"
        ).save()
        query = (
            spark.readStream.format("quire")
            .options(metadata=uri, namespace=NAMESPACE, stream="events", subscription="query",
                     maxRecordsPerTrigger=20)
            .load()
            .select("value")
            .writeStream.format("quire")
            .options(metadata=uri, namespace=NAMESPACE, stream="copies", writerId="copier",
                     checkpointLocation=str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )  # fmt: skip
        query.awaitTermination()
    finally:
        spark.stop()


def run_jobs(cluster: Cluster) -> None:
    """Offload one stream to Parquet, and copy another one to another namespace."""
    archive = str(cluster.directory / "archive")
    here = ("--namespace", NAMESPACE, "--master", "local[1]")
    cluster.quire("pipeline", "offload", "archived", *here, "--directory", archive, "--truncate")
    cluster.quire("pipeline", "replicate", *here, "--to", cluster.uri, "--to-namespace", MIRROR,
                  "--streams", "mirrored")  # fmt: skip


# -- the two clusters ---------------------------------------------------------------------------


async def make_sqlite(directory: Path) -> Json:
    cluster = Cluster(directory, f"sqlite:///{directory / 'metadata.db'}")
    try:
        return await fill_sqlite(cluster)
    finally:
        cluster.end_all()


async def fill_sqlite(cluster: Cluster) -> Json:
    uri = cluster.uri
    cluster.quire("cluster", "init")
    started = {
        "bookie-1": ("--bookie-id", "golden-1"),
        "bookie-2": ("--bookie-id", "golden-2"),
        "bookie-3": (),  # its id is its first address
    }
    disks = {"bookie-1": 1, "bookie-2": 1, "bookie-3": 2}
    for name, arguments in started.items():
        cluster.start(name, *arguments, *SMALL, *EAGER, disks=disks[name])
    async with quire.connect(uri) as client:
        ledgers = Ledgers(client)
        dropped = await write_and_compact(cluster, ledgers)
        await write_ledgers(ledgers)
    for name in started:
        cluster.end(name)
        # The bookie that is killed in the end has records of deletions in its open segments.
        collects = ("--set", "gc_interval_s=0.5") if name == "bookie-3" else NO_GC
        cluster.start(name, *SMALL, *NO_COMPACTION, *collects, disks=disks[name])
    async with quire.connect(uri) as client:
        ledgers.client = client
        deleted = await ledgers.write("deleted", numbered("deleted", 20))
        ledgers.found.pop()
        await client.delete_ledger(deleted.ledger_id)
        await write_streams(client)
        for name, (before, _) in SPARK.items():
            await append_numbers(client, name, 0, before)
    objects = put_objects(cluster)
    cluster.quire("autorecovery", "delay", "60")
    cluster.quire("cluster", "locations", "set", "golden-1", "/rack-1")
    cluster.quire("cluster", "pause", "rebalance")
    await asyncio.to_thread(run_spark, uri, cluster.directory)
    await asyncio.to_thread(run_jobs, cluster)
    async with quire.connect(uri) as client:
        ledgers.client = client
        for name, (before, after) in SPARK.items():
            await append_numbers(client, name, before, before + after)
        await leave_open(client)
        await write_unclosed(ledgers, uri)
    explicit = quire.ClientConfig(explicit_lac_interval_ms=1)
    async with quire.connect(uri, config=explicit) as client:
        ledgers.client = client
        writer = await ledgers.write("open, explicit LAC", numbered("told", 4), close=False)
        reader = await client.open_ledger(writer.ledger_id)
        while await reader.refresh() < 3:
            await asyncio.sleep(0.01)
    async with quire.connect(uri) as client:
        names = ["orders", "given", "eu/berlin", "copies", "once", *SPARK]
        streams = {
            NAMESPACE: await read_streams(client, NAMESPACE, names),
            INNER: await read_streams(client, INNER, ["packed"]),
            MIRROR: await read_streams(client, MIRROR, ["mirrored"]),
        }
        await note_what_is_readable(client, ledgers.found)
        ids = [ledger_id async for ledger_id in client.list_ledgers()]
    wait_for(lambda: is_dropped(cluster, deleted.ledger_id), "bookie-3 drops the deleted ledger")
    cluster.end("bookie-1")
    cluster.end("bookie-2")
    damaged = next(one["id"] for one in ledgers.found if one["what"] == "closed, crc32c")
    damage(cluster, "bookie-2", damaged)
    recover_halfway(cluster, next(one["id"] for one in ledgers.found if "recovery" in one["what"]))
    torn = tear(cluster, "bookie-3")
    return {
        "version": quire.__version__,
        "bookies": cluster.bookies(),
        "killed": "bookie-3",
        "torn": torn,
        "damaged": {"bookie": "bookie-2", "ledger": damaged},
        "paused": ["rebalance"],
        "ledgers": ledgers.found,
        "ids": sorted(ids),
        "deleted": {"dropped": dropped, "stored": deleted.ledger_id},
        "settings": SETTINGS,
        "streams": streams,
        "producer": {"till-7": 35},
        "objects": objects,
        "dataset": {"rows": sorted(f"row {number}" for number in range(30)) * 2},
        "transactions": ["job-0", "job-1"],
        "state": {"colour": "red", "before": "the snapshot", "after": {"the": "snapshot"}},
        "delay_s": 60,
        "locations": {"golden-1": "/rack-1"},
    }


def disk_ledger(cluster: Cluster, name: str, ledger_id: int) -> Json:
    """Return what a data directory has of a ledger, or {}."""
    command = ("bookie", "disk", "ledger", str(cluster.directory / name), str(ledger_id), "--json")
    try:
        return dict(json.loads(cluster.quire(*command)))
    except RuntimeError:  # exit status 1
        return {}


def is_dropped(cluster: Cluster, ledger_id: int) -> bool:
    return not any(
        disk_ledger(cluster, name, ledger_id) for name in cluster.directories["bookie-3"]
    )


def damage(cluster: Cluster, name: str, ledger_id: int) -> None:
    """Flip a bit of a closed ledger on the disk of a stopped bookie, which then finds it and notes
    it in a record. Nobody repairs it."""
    command = ("bookie", "disk", "ledger", str(cluster.directory / name), str(ledger_id))
    (part,) = json.loads(cluster.quire(*command, "--runs", "--json"))["segments"]
    segment = cluster.directory / name / "log" / f"{part['segment']:016x}.seg"
    with segment.open("r+b") as file:
        file.seek(part["runs"][0]["offset"] + part["runs"][0]["bytes"] // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    cluster.start(name, *SMALL, *NO_COMPACTION, *NO_GC, *SCRUBS)
    marks = ("autorecovery", "list", "--json")
    wait_for(segment.with_suffix(".damaged").exists, "the bookie notes the damage")
    wait_for(lambda: cluster.quire(*marks), "the bookie marks the ledger")
    cluster.end(name)


def tear(cluster: Cluster, name: str) -> str:
    """Kill a bookie while it writes a group, as far as its disk shows. Return the directory.

    The group has one entry, of a ledger that does not exist. Its last sector was never written.
    """
    directories = [cluster.directory / one for one in cluster.directories[name]]
    shown = cluster.quire("cluster", "bookies", "--json").splitlines()
    (port,) = [one["port"] for one in map(json.loads, shown) if one["id"] == cluster.ids[name]]
    frame = b"\x02\x01\0\0" + hashlib.sha1(b"ledger").digest() + TORN_LEDGER.to_bytes(8, "big")
    frame += bytes(8) + (2**64 - 1).to_bytes(8, "big") + bytes(7) + b"\1" + b"\xee" * TORN_BYTES
    with socket.create_connection(("127.0.0.1", int(port)), LIMIT_S) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        answer = b""
        while len(answer) < 12:
            answer += connection.recv(4096)
    if int.from_bytes(answer[8:12], "big"):
        raise RuntimeError(f"the bookie refused the entry: {answer.hex()}")
    cluster.end(name, signal.SIGKILL)
    for directory in directories:
        for segment in (directory / "log").glob("*.seg"):
            end = segment.read_bytes().rfind(b"\xee" * SECTOR_BYTES) + SECTOR_BYTES
            if end > TORN_BYTES:
                with segment.open("r+b") as file:
                    file.seek(end - end % SECTOR_BYTES - SECTOR_BYTES)
                    file.write(bytes(end - file.tell()))
                return directory.name
    raise RuntimeError("the entry is in no segment")


def recover_halfway(cluster: Cluster, ledger_id: int) -> None:
    """Begin a recovery that cannot come to its end, because two of three bookies are away."""
    command = [sys.executable, "-m", "quire", "ledger", "recover", str(ledger_id)]
    recovery = subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def begun() -> bool:
        shown = json.loads(cluster.quire("ledger", "show", str(ledger_id), "--json"))
        return "recovery" in shown["state"].replace("_", " ").lower()

    def fenced() -> bool:
        names = cluster.directories["bookie-3"]
        return any(disk_ledger(cluster, name, ledger_id).get("fenced") for name in names)

    try:
        wait_for(begun, "the metadata says that the ledger is being recovered")
        wait_for(fenced, "bookie-3 has fenced the ledger")
    finally:
        recovery.kill()
        recovery.wait()


@contextlib.contextmanager
def zookeeper_server(directory: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "quire", "zookeeper", "--dir", str(directory)]
    server = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        if not server.stdout.readline():
            raise RuntimeError("ZooKeeper did not start")
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(LIMIT_S)


async def make_zookeeper(directory: Path, scratch: Path) -> Json:
    with zookeeper_server(scratch) as address:
        cluster = Cluster(directory, f"zk+hierarchical://{address}/ledgers")
        try:
            found = await fill_zookeeper(cluster)
        finally:
            cluster.end_all()
        return {**found, "nodes": await asyncio.to_thread(dump, address)}


async def fill_zookeeper(cluster: Cluster) -> Json:
    one = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    cluster.quire("cluster", "init")
    cluster.start("bookie-zk", "--bookie-id", "golden-zk", *SMALL)
    async with quire.connect(cluster.uri) as client:
        ledgers = Ledgers(client)
        await ledgers.write("closed", numbered("closed", 10), **one)
        await ledgers.write("closed, hmac", numbered("closed", 10), password=b"zk", digest="hmac",
                            **one)  # fmt: skip
        deleted = await ledgers.write("deleted", numbered("deleted", 10), **one)
        ledgers.found.pop()
        await client.delete_ledger(deleted.ledger_id)
        writer = await ledgers.write("open", [], close=False, **one)
        await append_each(ledgers, writer, numbered("open", 10))
        async with await Namespace.create(client, NAMESPACE, settings=one) as streams:
            async with await streams.open_writer("orders", create=True) as orders:
                producer = await orders.producer("till-7")
                await producer.append_many([b"order %d" % n for n in range(10)], 0)
                await orders.roll()
                await producer.append_many([b"order %d" % n for n in range(10, 20)], 10)
            await streams.truncate("orders", await streams.find("orders", AtSequence(3)))
            subscription = streams.subscription("orders", "billing")
            await subscription.commit(await streams.find("orders", AtSequence(5)))
        copies = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
        cluster.quire("object", "put", "-", "models/one", *copies, stdin=b"an object")
        marked = await write_marked(cluster, ledgers)
        cluster.quire("autorecovery", "delay", "60")
        await note_what_is_readable(client, ledgers.found)
        ids = [ledger_id async for ledger_id in client.list_ledgers()]
        streams_found = {NAMESPACE: await read_streams(client, NAMESPACE, ["orders"])}
    cluster.end("bookie-zk")
    del cluster.directories["bookie-gone"]
    shutil.rmtree(cluster.directory / "bookie-gone")
    return {
        "version": quire.__version__,
        "bookies": cluster.bookies(),
        "ledgers": ledgers.found,
        "ids": sorted(ids),
        "deleted": {"stored": deleted.ledger_id},
        "marked": {str(marked): "golden-gone"},
        "settings": one,
        "streams": streams_found,
        "producer": {"till-7": 19},
        "objects": {"default": {"models/one": ["an object", {}]}},
        "delay_s": 60,
    }


async def write_marked(cluster: Cluster, ledgers: Ledgers) -> int:
    """A ledger one of whose two bookies is lost, so that the auditor marks it as lacking replicas;
    return its id."""
    cluster.start("bookie-gone", "--bookie-id", "golden-gone", *SMALL)
    writer = await ledgers.write("marked", [], close=False, ensemble_size=2, write_quorum=2,
                                 ack_quorum=2)  # fmt: skip
    await append_each(ledgers, writer, numbered("marked", 5))
    cluster.end("bookie-gone")
    await asyncio.to_thread(audit, cluster)
    return int(writer.ledger_id)


def audit(cluster: Cluster) -> None:
    """Run autorecovery until it has marked a ledger."""
    auditor = subprocess.Popen(
        [sys.executable, "-m", "quire", "autorecovery", "start"],
        env=cluster.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: cluster.quire("autorecovery", "list", "--json"), "the auditor's mark")
    finally:
        auditor.terminate()
        auditor.wait(LIMIT_S)


def dump(address: str) -> Json:
    """Return every persistent node by its path.

    Each has its data (one character per byte), the number of changes, and the number of children it
    has had, which numbers sequential names.
    """
    client = KazooClient(hosts=address)
    client.start()
    found: Json = {}
    try:
        todo = ["/"]
        while todo:
            path = todo.pop()
            data, stat = client.get(path)
            if path == "/zookeeper" or stat.ephemeralOwner:
                continue
            # The server reports the number of changes: creations and deletions of children.
            created = (stat.cversion + stat.numChildren) // 2
            found[path] = [(data or b"").decode("latin-1"), stat.version, created]
            todo += [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return dict(sorted(found.items()))


# -- files --------------------------------------------------------------------------------------


def pack(directory: Path, target: Path) -> None:
    """Pack everything in the directory except logs of processes."""
    with tarfile.open(target, "w:xz") as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.suffix != ".log":
                archive.add(path, str(path.relative_to(directory)), filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def write_json(found: Json, target: Path) -> None:
    target.write_text(json.dumps(found, indent=None, separators=(",", ":")) + "\n")


async def make(
    name: str, target: Path, scratch: Path, fill: Callable[[Path], Awaitable[Json]]
) -> None:
    directory = scratch / name
    directory.mkdir()
    found = await fill(directory)
    write_json(found, target / f"{name}.json")
    pack(directory, target / f"{name}.tar.xz")


def main(target: Path, wanted: list[str]) -> None:
    os.environ["QUIRE_CONFIG"] = ""
    target.mkdir(parents=True, exist_ok=bool(wanted))
    scratch = Path(tempfile.mkdtemp(prefix="quire-golden-"))
    try:
        server = scratch / "server"
        makers: dict[str, Callable[[Path], Awaitable[Json]]] = {
            "cluster": make_sqlite,
            "zookeeper": lambda at: make_zookeeper(at, server),
        }
        for name in wanted or makers:
            asyncio.run(make(name, target, scratch, makers[name]))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
