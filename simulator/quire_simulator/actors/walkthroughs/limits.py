"""Walkthroughs of arguments: each limit of the API is tried with the last value that is allowed,
and with the first that is not.

The numbers are those of the documentation. They are written here again, because a wrong constant of
Quire would otherwise move the limit and the walkthrough together.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from quire.client.datasets.format import (
    DatasetLedger,
    check_dataset_name,
    check_transaction_key,
)
from quire.client.datasets.rows import check_compression
from quire.client.datasets.schema import make_schema
from quire.client.datasets.unpublished import OWNER_KEY
from quire.core.placement.settings import parse_placement
from quire.core.placement.tables import parse_lines, parse_toml
from quire.core.placement.values import parse_location
from quire.errors import NoSuchLedgerError, UsageError
from quire.streams import EARLIEST, LATEST, AtSequence, AtTime, AtTxid
from quire.streams.namespace.names import (
    check_key_name,
    check_stream_name,
    check_subscription_name,
    check_token,
)
from quire.streams.namespace.namespace import open_namespace
from quire.streams.namespace.settings import StreamSettings, parse_setting
from quire.streams.objects.format import ObjectInfo, check_bucket, check_name
from quire.streams.objects.objects import Objects
from quire.streams.read.positions import checked_start, parse_start
from quire_simulator.actors.walkthroughs.ledgers import append, create
from quire_simulator.actors.walkthroughs.streams import PATH, settings_of
from quire_simulator.actors.walkthroughs.walk import Walk

Call = Callable[[], Any]
PAUSE_S = 1.0
WIDE = "\N{EURO SIGN}"
"""A character that takes three bytes."""


class Limits:
    """Compares which calls are refused with what is documented."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    async def allowed(self, what: str, *calls: Call) -> None:
        """Check that none of these calls is refused."""
        for number, call in enumerate(calls):
            if (error := await self._refusal(call)) is not None:
                self.fail(f"{what}: call {number} was refused, but is right: {error!r}")

    async def refused(self, what: str, *calls: Call) -> None:
        """Check that each of these calls is refused."""
        for number, call in enumerate(calls):
            if await self._refusal(call) is None:
                self.fail(f"{what}: call {number} must be refused, but was not")

    async def names(
        self, what: str, check: Callable[[str], object], good: Iterable[str], bad: Iterable[Any]
    ) -> None:
        """Check which texts a check accepts."""
        for name in good:
            await self.allowed(
                f"{what} {name[:20]!r} of {len(name)} characters", _with(check, name)
            )
        for name in bad:
            await self.refused(f"{what} {str(name)[:20]!r} of {len(str(name))} characters",
                               _with(check, name))  # fmt: skip

    async def _refusal(self, call: Call) -> UsageError | None:
        self._walk.stage.checker.checks += 1
        try:
            found = call()
            if inspect.isawaitable(found):
                await found
        except UsageError as error:
            return error
        return None

    def fail(self, what: str) -> None:
        """Say that an argument is not checked as it should be."""
        self._walk.fail("arguments_are_checked", what)


def _with(check: Callable[[Any], object], value: Any) -> Call:
    return lambda: check(value)


# -- ledgers, datasets and placement ---------------------------------------------------------------


async def walk_limits_of_ledgers(walk: Walk) -> None:
    """Try the limits of calls about ledgers, datasets and placement."""
    limits = Limits(walk)
    await _ledger_arguments(walk, limits)
    await _reader_arguments(walk, limits)
    await _dataset_arguments(walk, limits)
    await _dataset_publications(walk, limits)
    await _placement_arguments(limits)


async def _ledger_arguments(walk: Walk, limits: Limits) -> None:
    client = walk.client

    async def make(size: Any, write: Any, ack: Any, **more: Any) -> None:
        handle = await client.create_ledger(
            ensemble_size=size, write_quorum=write, ack_quorum=ack, **more
        )
        walk.stage.checker.facts(handle.ledger_id).deleted = True
        await handle.close()
        await client.delete_ledger(handle.ledger_id)

    most = min(3, len((await client.bookies()).writable))
    await limits.allowed(
        "quorums", *(lambda one=one: make(*one) for one in
                     {(1, 1, 1), (most, 1, 1), (most, most, 1), (most, most, most)})
    )  # fmt: skip
    await limits.refused(
        "quorums", *(lambda one=one: make(*one) for one in
                     [(1, 2, 1), (1, 1, 2), (1, 1, 0), (0, 0, 0), (1, 0, 0), (True, 1, 1),
                      (1.0, 1, 1), (10_001, 1, 1)])
    )  # fmt: skip
    await limits.refused(
        "arguments of a new ledger",
        lambda: make(1, 1, 1, digest="md5"),
        lambda: make(1, 1, 1, password="secret"),
        lambda: make(1, 1, 1, custom=["a"]),
        lambda: make(1, 1, 1, custom={"a": "b"}),
        lambda: make(1, 1, 1, custom={1: b"b"}),
        lambda: make(1, 1, 1, custom={"\ud800": b"b"}),
        lambda: make(1, 1, 1, ledger_id=-1),
        lambda: make(1, 1, 1, ledger_id=2**63),
        lambda: make(1, 1, 1, ledger_id="1"),
    )
    await limits.allowed(
        "arguments of a new ledger",
        lambda: make(1, 1, 1, custom={}),
        lambda: make(1, 1, 1, custom={"": b"", "\u00e9": b"\x00"}),
        lambda: make(1, 1, 1, digest="CRC32C"),
        lambda: make(1, 1, 1, ledger_id=2**63 - 1),
    )
    await limits.refused(
        "the opening of a ledger",
        lambda: client.open_ledger(-1),
        lambda: client.open_ledger(2**63),
        lambda: client.open_ledger(True),
        lambda: client.ledger_metadata(-1),
        lambda: client.delete_ledger(-1),
    )


async def _reader_arguments(walk: Walk, limits: Limits) -> None:
    written = await create(walk)
    await append(walk, written, {"adds": 0, "add_bytes": 0, "most batches": 0})
    last = await written.handle.close()
    client, opened = walk.another_client(), walk.client.open_ledger
    reader = await client.open_ledger(written.ledger_id, password=written.password)

    async def read(first: Any, end: Any) -> int:
        found = 0
        async for entry in reader.read(first, end):
            walk.same("the entry of a read", entry.payload, written.payloads[first + found])
            found += 1
        return found

    for first, end in ((0, 0), (last, last), (0, last)):
        walk.same(f"the number of entries {first} to {end}", await read(first, end),
                  end + 1 - first)  # fmt: skip
    walk.same("the number of entries after the last", await read(last + 1, None), 0)
    await limits.allowed("the range of a read", lambda: read(last, last - 1), lambda: read(0, -1))
    await limits.refused(
        "the range of a read",
        lambda: read(-1, 0),
        lambda: read(last, last - 2),
        lambda: read(0, -2),
        lambda: read("0", 0),
        lambda: read(0, 0.0),
    )
    await limits.refused("the start of a tail", lambda: anext(aiter(reader.tail(-1))))
    await limits.refused(
        "an entry to wait for",
        lambda: reader.wait_confirmed("1"),  # type: ignore[arg-type]
    )
    acks = written.shape[2]

    def liars(count: int) -> Call:
        return lambda: opened(written.ledger_id, password=written.password, assume_liars=count)

    await limits.allowed("assume_liars", *map(liars, {0, acks - 1}))
    await limits.refused("assume_liars", liars(-1), liars(acks))


async def _dataset_arguments(walk: Walk, limits: Limits) -> None:
    await limits.names(
        "the dataset name", check_dataset_name,
        ("a", "a.b", "..." , "x" * 4096, WIDE * 1365),
        ("", ".", "..", "a/b", "a\n", "x" * 4097, WIDE * 1366, 1, b"a"),
    )  # fmt: skip
    await limits.names(
        "the transaction key", check_transaction_key,
        ("a", "x" * 256, '"' * 160, "\n" * 53),
        ("", "x" * 257, '"' * 161, "\x01" * 54, 7),
    )  # fmt: skip
    await limits.names("the compression", check_compression, ("lz4", "LZ4", "none"), ("gzip", ""))
    await limits.allowed(
        "a ledger in a dataset",
        lambda: DatasetLedger(0, 0, 0, 0, 0),
        lambda: DatasetLedger(1, 2, 2, 1, 1),
        lambda: DatasetLedger(1, 2, 3, 1, 1),
    )
    await limits.refused(
        "a ledger in a dataset",
        lambda: DatasetLedger(-1, 0, 0, 0, 0),
        lambda: DatasetLedger(0, -1, 0, 0, 0),
        lambda: DatasetLedger(0, 1, 0, 0, 0),
        lambda: DatasetLedger(0, 0, 0, -1, 0),
        lambda: DatasetLedger(0, 0, 0, 0, -1),
        lambda: DatasetLedger(0, 0, True, 0, 0),
        lambda: DatasetLedger(0.0, 0, 0, 0, 0),  # type: ignore[arg-type]
    )

    def schema(
        names: Iterable[str], partition_by: tuple[str, ...] = (), kind: str = "long"
    ) -> Call:
        fields: list[dict[str, Any]] = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}} for name in names
        ]
        return lambda: make_schema(fields, partition_by)

    nine = [f"c{n}" for n in range(9)]
    await limits.allowed(
        "a schema", schema("a"), schema("ab", ("a", "b")), schema(nine, tuple(nine[:8])),
        schema(["x" * 130_000]),
    )  # fmt: skip
    await limits.refused(
        "a schema", schema(""), schema("aA"), schema("ab", ("a", "a")), schema("ab", ("c",)),
        schema(nine, tuple(nine)), schema("ab", ("a",), "double"), schema(["x" * 131_072]),
    )  # fmt: skip


async def _dataset_publications(walk: Walk, limits: Limits) -> None:
    """Publish parts of one ledger, and try which parts are refused."""
    name, client = "parts", walk.client
    writer = await client.create_ledger(
        ensemble_size=1, write_quorum=1, ack_quorum=1, custom={OWNER_KEY: name.encode()}
    )
    facts = walk.stage.checker.facts(writer.ledger_id)
    facts.foreign = facts.deleted = True
    last = await writer.append_many([b"%d" % n for n in range(9)])
    await writer.close()

    def part(first: int, end: int) -> DatasetLedger:
        return DatasetLedger(writer.ledger_id, first, end, end + 1 - first, end + 1 - first)

    def publish(*parts: Any, **how: Any) -> Call:
        return lambda: client.datasets.publish(name, parts, **how)

    await limits.refused(
        "parts to publish",
        publish(part(0, 4), part(4, last)),
        publish(part(3, 3), part(0, last)),
        publish(part(0, 1), part(0, 1)),
        publish(part(0, last + 1)),
        publish("0..4"),
        publish(part(0, 1), txn=""),
    )
    walk.same("a dataset after refused publications", name in await client.datasets.list_datasets(),
              False)  # fmt: skip
    await limits.allowed("parts to publish", publish(part(0, 4), part(5, last), txn="t"))
    walk.same("the parts of a dataset", list((await client.datasets.read(name)).ledgers),
              [part(0, 4), part(5, last)])  # fmt: skip
    unknown = DatasetLedger(2**62, 0, 0, 1, 1)
    await walk.refused("a part of no ledger", client.datasets.publish(name, [unknown]),
                       NoSuchLedgerError, 2**62)  # fmt: skip
    await limits.refused(
        "a sweep",
        lambda: client.datasets.sweep(0, look_at_most=-1),
        lambda: client.datasets.sweep(float("nan")),
        lambda: client.datasets.sweep(0, name="a/b"),
        lambda: client.datasets.sweep("1"),  # type: ignore[arg-type]
    )
    walk.same(
        "a sweep that may look at nothing",
        list((await client.datasets.sweep(-60, name=name, look_at_most=0)).deleted),
        [],
    )
    await client.datasets.drop(name, delete_ledgers=True)
    walk.same("a ledger of a dropped dataset",
              writer.ledger_id in walk.stage.world.cluster.ledgers, False)  # fmt: skip


async def _placement_arguments(limits: Limits) -> None:
    await limits.names(
        "the location", parse_location,
        ("/a", "a", "a/b/", "/a b", " /a", "/" + "x" * 254, "x" * 254),
        ("", "/", "//a", "/a//b", "/a/ b", "/a\n/b", "/" + "x" * 255, "x" * 255),
    )  # fmt: skip
    await limits.names(
        "the table of locations", parse_lines,
        ("b1 /a", "b1 /a # rack\n\nb2 /a", "# nothing"),
        ("b1", "b1 /a /b", "b1 //a", "b1 /a\nb1 /a"),
    )  # fmt: skip
    await limits.names(
        "the table of locations", parse_toml,
        ('[locations]\nb1 = "/a"', "[locations]"),
        ("", "[locations]\nb1 = 1", "locations = 1", '[locations]\nb1 = "//a"', "[locations"),
    )  # fmt: skip
    await limits.names(
        "the placement", parse_placement,
        ("rack-aware", "rack-aware, min_racks=3", "mine, unknown=1"),
        ("rack-aware, min_racks=three", "rack-aware, policy=a", "rack-aware, unknown=1",
         "rack-aware, options=1"),
    )  # fmt: skip


# -- streams, topics and objects -------------------------------------------------------------------


async def walk_limits_of_streams(walk: Walk) -> None:
    """Try the limits of calls about streams, topics and objects."""
    limits = Limits(walk)
    await _stream_names(limits)
    await _stream_settings(limits)
    await _starts(limits)
    await _objects(walk, limits)
    await _stream_calls(walk, limits)


async def _stream_names(limits: Limits) -> None:
    await limits.names(
        "the stream name", check_stream_name,
        ("a", "/a", "a/b", "a.b", "a/.b", "-", "\u00a1"),
        ("", "/", "a/", "a//b", ".a", "<a", "a/.", "a/..", "a/.quire", "a b", "a>", "a<b", "a\0",
         "a\x1e", "a\x80", "a\ufff1", "a\U0001f600", 7),
    )  # fmt: skip
    await limits.names(
        "the subscription", check_subscription_name, ("a", "a.b", "...", "a b"),
        ("", ".", "..", "a/b", "a\n", b"a"),
    )  # fmt: skip
    await limits.names("the token", check_token, ("", "x" * 64, WIDE * 21), ("x" * 65, WIDE * 22))
    await limits.names(
        "the name of a query", lambda name: check_key_name(name, "a query"),
        ("a", "x" * 200), ("", "x" * 201),
    )  # fmt: skip


async def _stream_settings(limits: Limits) -> None:
    def made(**values: Any) -> Call:
        return lambda: StreamSettings(**values)

    await limits.allowed(
        "settings", made(), made(ensemble_size=2, write_quorum=2, ack_quorum=2),
        made(ensemble_size=10_000), made(write_quorum=1, ack_quorum=1), made(entry_bytes=1024),
        made(entry_bytes=1_000_000), made(entries_in_flight=1), made(roll_bytes=1),
        made(roll_interval_s=0.001), made(roll_interval_s=1), made(roll_interval_s=1e300),
        made(retention_s=0), made(retention_s=0.001), made(retention_bytes=0), made(bytes_max=0),
        made(streams_max=0), made(streams_max=1), made(digest="hmac"), made(compression="lz4"),
        made(txids="given"), made(explicit_truncation=True),
    )  # fmt: skip
    await limits.refused(
        "settings", made(ensemble_size=2), made(ensemble_size=10_001), made(write_quorum=1),
        made(ack_quorum=0), made(entry_bytes=1023), made(entry_bytes=1_000_001),
        made(entries_in_flight=0), made(roll_bytes=0), made(roll_interval_s=0.0009),
        made(roll_interval_s=0), made(roll_interval_s=2e300), made(roll_interval_s=float("nan")),
        made(retention_s=0.0009), made(retention_s=-1), made(retention_s=float("inf")),
        made(retention_bytes=-1), made(bytes_max=-1), made(streams_max=-1), made(digest="md5"),
        made(compression="gzip"), made(txids="none"), made(explicit_truncation=1),
        made(entry_bytes=2048.0), made(roll_interval_s="1"), made(entries_in_flight=True),
    )  # fmt: skip
    await limits.refused(
        "new values of settings",
        lambda: StreamSettings().with_values({"rol_bytes": 1}),
        lambda: StreamSettings().with_values([("roll_bytes", 1)]),  # type: ignore[arg-type]
        lambda: StreamSettings().with_values({"ack_quorum": 4}),
    )

    def parsed(name: str, text: str, wanted: object) -> Call:
        def call() -> None:
            found = parse_setting(name, text)
            if found != (name, wanted):
                limits.fail(f"setting {name}={text} is {found} instead of {wanted}")

        return call

    await limits.allowed(
        "typed settings", parsed("roll_bytes", "2KiB", 2048), parsed("retention_s", "2m", 120),
        parsed("retention_s", "1.5", 1.5), parsed("streams_max", "3", 3),
        parsed("explicit_truncation", "TRUE", True), parsed("explicit_truncation", "false", False),
        parsed("digest", "crc32", "crc32"),
    )  # fmt: skip
    await limits.refused(
        "typed settings", *(lambda one=one: parse_setting(*one) for one in
                            [("roll_bytes", "0"), ("roll_bytes", "x"), ("streams_max", "1.5"),
                             ("retention_s", "-1"), ("explicit_truncation", "1"), ("digest", "x"),
                             ("unknown", "1"), ("streams_max", "-1")])
    )  # fmt: skip


async def _starts(limits: Limits) -> None:
    await limits.names("the start", checked_start, (EARLIEST, LATEST), ("first", 7, None))
    await limits.allowed(
        "the start", *(_with(checked_start, one) for one in (AtTxid(0), AtTime(-1), AtSequence(9)))
    )
    await limits.refused(
        "the start", *(_with(checked_start, one)
                       for one in (AtTxid("0"), AtTime(1.5), AtSequence(True)))  # type: ignore[arg-type]
    )  # fmt: skip
    day, ms = "time:2025-01-02T00:00:00", 1_735_776_000_000
    for text, wanted, end in (
        ("txid:7", AtTxid(7), False),
        ("seq:0", AtSequence(0), False),
        (day, AtTime(ms), False),
        (day + ".0015", AtTime(ms + 1), False),
        (day + ".0015", AtTime(ms + 2), True),
        (day + ".002", AtTime(ms + 2), True),
        (day + "+01:00", AtTime(ms - 3_600_000), False),
    ):
        found = parse_start(text, end=end)
        if found != wanted:
            limits.fail(f"the place {text} is {found} instead of {wanted}")
    await limits.names("the place", parse_start, (EARLIEST,),
                       ("txid:", "txid:x", "seq7", "time:yesterday", "where:1", ""))  # fmt: skip


async def _objects(walk: Walk, limits: Limits) -> None:
    await limits.names(
        "the bucket", check_bucket, ("a", "x" * 64, WIDE * 21),
        ("", ".", "..", "a/b", "a\n", "x" * 65, WIDE * 22, 7),
    )  # fmt: skip
    await limits.names(
        "the object", check_name, ("a", "a/b/c", "x" * 512, "a.b", "a/..b"),
        ("", "/a", "a/", "a//b", "a/./b", "..", "a\t", "x" * 513, b"a"),
    )  # fmt: skip

    def info(ledger_id: int = 0, size: int = 0, chunk: int = 1, sha: str = "0" * 64) -> Call:
        return lambda: ObjectInfo("o", ledger_id, size, chunk, sha, 0)

    await limits.allowed("an object", info(), info(7, 1, 4 << 20), info(sha="f" * 64))
    await limits.refused(
        "an object", info(ledger_id=-1), info(size=-1), info(chunk=0), info(chunk=(4 << 20) + 1),
        info(sha="0" * 63), info(sha="0" * 65), info(sha="F" * 64), info(sha="g" * 64),
    )  # fmt: skip
    objects = Objects(walk.client, "limits")
    data = bytes(range(100))

    async def put(name: str, source: Any, **how: Any) -> None:
        found = await objects.put(
            name, source, ensemble_size=1, write_quorum=1, ack_quorum=1, **how
        )
        facts = walk.stage.checker.facts(found.ledger_id)
        facts.foreign = facts.deleted = True

    most = "x" * (64 * 1024 - len('{"k":""}'))
    await limits.allowed(
        "a put", lambda: put("a", data, chunk_bytes=7), lambda: put("b", b""),
        lambda: put("c", data, metadata={"k": most}), lambda: put("d", data, metadata={}),
    )  # fmt: skip
    await limits.refused(
        "a put", lambda: put("e", data, chunk_bytes=0), lambda: put("e", "text"),
        lambda: put("e", data, metadata={"k": most + "x"}), lambda: put("e", data, metadata=["k"]),
        lambda: put("e", data, metadata={"": "v"}), lambda: put("e", data, metadata={"k": 1}),
        lambda: put("", data),
    )  # fmt: skip
    async with objects.get("a") as reader:
        for first, size in ((0, None), (0, 100), (0, 0), (100, None), (99, 1), (5, 9), (6, 1000)):
            end = 100 if size is None else min(100, first + size)
            walk.same(f"{size} bytes of an object from {first} on",
                      await reader.read_all(first, size), data[first:end])  # fmt: skip
        await limits.refused(
            "a range of an object",
            lambda: reader.read_all(-1),
            lambda: reader.read_all(0, -1),
            lambda: reader.read_all(101),
            lambda: reader.read_all(0, 1.5),  # type: ignore[arg-type]
        )
    walk.same("the names of objects", [one.name async for one in objects.list()], list("abcd"))
    for name in "abcd":
        walk.same("a deletion of an object", await objects.delete(name), True)
    walk.same("a second deletion of an object", await objects.delete("a"), False)


async def _stream_calls(walk: Walk, limits: Limits) -> None:
    streams = await open_namespace(walk.client, PATH, create=True, settings=settings_of(walk))
    name, topic_name = "limits", "parts"
    await streams.create_stream(name)
    await limits.refused(
        "calls about a stream",
        lambda: streams.open_writer(name, lock="1"),  # type: ignore[arg-type]
        lambda: streams.open_writer(name, lock=float("nan")),
        lambda: streams.open_reader(name, on_gap="hope"),
        lambda: streams.open_reader(name, end="last"),  # type: ignore[arg-type]
        lambda: streams.truncate(name, "0-0-0"),  # type: ignore[arg-type]
        lambda: streams.configure(["roll_bytes"]),  # type: ignore[arg-type]
        lambda: streams.create_topic(topic_name, 0),
        lambda: streams.create_topic(topic_name, 65),
        lambda: streams.create_topic(topic_name, 1.5),  # type: ignore[arg-type]
        lambda: streams.create_topic(topic_name, 1, adopt=True, settings={"roll_bytes": 1}),
        lambda: streams.delete_topic(name),
    )
    count = walk.chance.choice([1, 2, 64])
    await limits.allowed("a topic", lambda: streams.create_topic(topic_name, count))
    topic = await streams.topic(topic_name)
    walk.same("the number of partitions", topic.partitions, count)
    await limits.refused(
        "calls about a topic",
        lambda: topic.stream(count),
        lambda: topic.stream(-1),
        lambda: topic.open_writer(assign=[count]),
        lambda: topic.open_writer(assign=[-1]),
        lambda: topic.open_writer(assign=[]),
        lambda: topic.open_writer(assign="0"),  # type: ignore[arg-type]
        lambda: topic.open_reader(on_gap="hope"),
        lambda: topic.commit("s", [0]),  # type: ignore[arg-type]
        lambda: streams.delete_stream(topic_name),
        lambda: streams.delete_stream(topic.stream(0)),
        lambda: streams.rename_stream(topic_name, "other"),
        lambda: streams.rename_stream(topic.stream(count - 1), "other"),
        lambda: streams.create_stream(f"{topic_name}/{count}"),
    )
    walk.same("the names of partitions", len({topic.stream(n) for n in range(count)}), count)
    walk.same("the topics", await streams.topics(), [topic_name])
    await asyncio.sleep(PAUSE_S)  # A topic with many partitions is deleted with many calls.
    await streams.delete_topic(topic_name)
    await streams.delete_stream(name)
    await streams.close()
