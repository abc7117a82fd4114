"""Each format answers to something newer as docs/reference/format-versions.md says.

The table of that page, the table below and the formats in the sources must have the same rows. So a
format cannot be added without an answer to its next version.
"""

from __future__ import annotations

import ast
import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quire.bookie.background.collection_guard import decode_mark
from quire.bookie.directories.identity import decode_known
from quire.client.datasets import format as datasets
from quire.client.datasets.rows import VERSION_KEY, decode_rows
from quire.client.datasets.schema import make_schema, schema_value
from quire.codec.distributedlog.control_record import decode_control
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import unwrap
from quire.codec.distributedlog.limits import LaterStreamFormatError
from quire.codec.distributedlog.namespace_binding import NamespaceBinding
from quire.codec.distributedlog.record import HEAD, decode_entry
from quire.codec.distributedlog.record_envelope import decode_envelope
from quire.codec.distributedlog.record_set import member_count
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.entry.digest import crc32c
from quire.codec.log import index_cache
from quire.codec.log.footer import Trailer, decode_trailer
from quire.codec.log.group import GroupEncoder, check_group_version, decode_group_header
from quire.codec.log.segment_header import (
    CleanMark,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from quire.codec.log.state_records import (
    Deleted,
    FormatError,
    RecordKind,
    StateRecord,
    Superseded,
    decode_records,
    decode_segment_value,
    encode_records,
)
from quire.codec.metadata import layout as ledger_layout
from quire.codec.metadata import ledger_metadata_format, registration, underreplication
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.wire import availability, v2, v3
from quire.core.placement.tables import read_groups, with_location
from quire.errors import LaterVersionError
from quire.metadata import outages
from quire.metadata.bookies import damage_notes, start_commands, tls_files
from quire.metadata.bookies.collection import BookieMark, Switch
from quire.metadata.bookies.directories import BookieDirectories
from quire.metadata.bookies.orders import Order
from quire.metadata.ledgers.underreplicated import decoded_mark
from quire.metadata.sqlite.file import SCHEMA_VERSION
from quire.replication.marks import copy_notes, job_announcements, pauses
from quire.spark.jobs.archive.manifest import Manifest
from quire.spark.jobs.archive.versions import Version
from quire.spark.streams.offsets import Offsets
from quire.storage.background.quarantine_record import SegmentDamage, decode_record, encode_record
from quire.storage.background.scrubber import Round
from quire.storage.directory import Identity
from quire.storage.recovery.incarnation import Incarnation
from quire.streams.namespace.settings import decode_settings
from quire.streams.objects import format as objects
from quire.streams.objects.format import ObjectInfo
from quire.streams.statemachine.durable_dict import Dictionary
from quire.streams.statemachine.snapshot_info import snapshot_info
from quire.streams.topics.topic_metadata import decode_topic
from tests.support.record_envelopes import envelope

ROOT = Path(__file__).parents[4]
SOURCES = ROOT / "src" / "quire"
PAGE = ROOT / "docs" / "reference" / "format-versions.md"
ID = bytes(range(16))
Call = Callable[[], object]

# -- what a later version could write -----------------------------------------------------------


def later_group(at: int, value: bytes) -> object:
    data = bytearray(b"".join(GroupEncoder(ID, 3, 1, 0).finish().buffers))
    data[at : at + len(value)] = value
    header = decode_group_header(data, 0, ID, 3, 0)
    assert header is not None
    return check_group_version(header)


def later_record(at: int, value: bytes) -> object:
    data = bytearray(encode_records([StateRecord(RecordKind.FENCE, 4)]))
    data[at : at + len(value)] = value
    return decode_records(data, 0, 1)


def later_trailer(at: int, value: bytes) -> object:
    data = bytearray(Trailer(ID, 3, *[0] * 13).encode())
    data[at : at + len(value)] = value
    data[-4:] = struct.pack("<I", crc32c(bytes(data[:-4])))
    return decode_trailer(data, ID, 3, 128)


def later_header() -> object:
    data = bytearray(encode_segment_header(SegmentHeader(ID, 5, 9, 4, ())))
    data[8] = 4
    data[60:64] = struct.pack("<I", crc32c(bytes(data[:60])))
    return decode_segment_header(data)


def later_clean_mark() -> object:
    body = b"QCLEAN\0\x02" + bytes(40)
    return CleanMark.decode(body + struct.pack("<I", crc32c(body)))


def later_cache() -> object:
    body = struct.pack("<I16sQQ", 2, ID, 0, 0)
    return index_cache.decode_head(index_cache.BlockHeader(b"HEAD", 0, len(body), 0), body)


def crc_lines(body: bytes) -> bytes:
    return b"crc: %08x\n%s" % (crc32c(body), body)


def damage(**more: object) -> object:
    text = encode_record(SegmentDamage(3, 1)).partition(b"\n")[2]
    return decode_record(crc_lines(json.dumps(json.loads(text) | more).encode()), 3)


def metadata_lines() -> object:
    body = b"count: 1\ntoken: t\nepoch: 2\n"
    return decode_mark(body + b"crc32: %08x\n" % zlib.crc32(body))


LEDGER = LedgerMetadata(1, 1, 1, (Segment(0, ("b",)),))
V3 = ledger_metadata_format.encode(LEDGER)
V2 = ledger_metadata_format.encode(LedgerMetadata(1, 1, 1, (Segment(0, ("b",)),), format_version=2))
COOKIE = b'5\nbookieHost: "b"\njournalDir: "/j"\nledgerDirs: "1\\t/j"\n'
DATASET = datasets.encode_head("d", datasets.Head())
SCHEMA = make_schema([{"name": "n", "type": "long", "nullable": True, "metadata": {}}])
TYPED_DATASET = datasets.encode_head("d", datasets.Head(schema=SCHEMA))
LEDGER_OF_DATASET = datasets.encode_chunk([datasets.DatasetLedger(1, 0, 1, 2, 3)])
OBJECT = ObjectInfo("o", 7, 10, 5, "0" * 64, 1)
OFFSETS = Offsets("c", "/n", {}).to_json()


def changed(data: bytes, **more: object) -> bytes:
    """Return a JSON object with other fields."""
    return json.dumps(json.loads(data) | more).encode()


def known(data: bytes) -> object:
    return decode_known(data, "b", "uri", "remedy")


def typed(**more: object) -> object:
    return datasets.decode_head("d", changed(TYPED_DATASET, schema=schema_value(SCHEMA) | more))


def later_rows() -> object:
    schema = pa.schema([("n", pa.int64())], metadata={VERSION_KEY: b"2"})
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return decode_rows(sink.getvalue().to_pybytes(), 7, 0, ["n"])


def chunk(**more: object) -> object:
    value = json.loads(LEDGER_OF_DATASET)
    value["ledgers"][0] |= more
    data = json.dumps(value).encode()
    return datasets.decode_chunk("d", datasets.Chunk("new-x", 1), data)


def snapshot(**more: str) -> object:
    info = ObjectInfo("s", 7, 10, 5, "0" * 64, 1, {"position": "1:0:0", "applied": "3"} | more)
    return snapshot_info(info)


MANIFEST: dict[str, Any] = {
    "v": 1, "cluster": "c", "namespace": "/n", "stream": "s", "life": "l", "start": "1:0:0",
    "behind": "1:0:0", "sequence": 0, "ledger": 1, "commit": 0, "gaps": [], "files": [],
}  # fmt: skip
TABLE: dict[str, Any] = {"v": 1, "data": None, "former": [], "state": {}}


def manifest(**more: object) -> object:
    return Manifest.from_bytes(json.dumps(MANIFEST | more).encode(), "manifest")


def table(**more: object) -> object:
    return Version.from_bytes(json.dumps(TABLE | more).encode(), "table")


def published(values: dict[str, Any]) -> object:
    import asyncio

    from quire.metadata.interface import Versioned
    from quire.streams.publish.published import _read

    class Nodes:
        class tree:
            @staticmethod
            async def read(path: str) -> Versioned[bytes]:
                return Versioned(json.dumps(values).encode(), 0)

    return asyncio.run(_read(Nodes, "/s/quire-jobs"))  # type: ignore[arg-type]


def copied(values: dict[str, Any]) -> object:
    import asyncio
    from types import SimpleNamespace

    from quire.metadata.interface import Versioned
    from quire.streams.mirror.check import check_origin

    async def read(path: str) -> Versioned[bytes]:
        return Versioned(json.dumps(values).encode(), 0)

    origin = {"format": 1, "cluster": "c", "stream": "s", "life": "l"}
    paths = SimpleNamespace(root="/s", name="s")
    metadata = SimpleNamespace(paths=paths, tree=SimpleNamespace(read=read))
    return asyncio.run(check_origin(metadata, origin))  # type: ignore[arg-type]


TOPIC = {"format": 1, "id": "1-1", "partitions": 2, "partitioner": "murmur2"}
ORIGIN = {"cluster": "c", "stream": "s", "life": "l"}
SET = struct.pack(">Iiii", 0x2000, 0, 0, 0)
ENVELOPE = struct.pack(">bIii", 2, 0, 0, 0)
FLAGS = struct.pack(">bIii", 1, 4, 0, 0)
PACKED = struct.pack(">bIii", 1, 2, 0, 0)

REFUSED: dict[str, list[Call]] = {
    "directory identity": [
        lambda: Identity.decode(b"format: 2\ndirectory: x\n", "d"),
        lambda: Identity.decode(Identity(ID).encode() + b"tier: 2\n", "d"),
    ],
    "incarnation": [
        lambda: Incarnation.decode(crc_lines(b"format: 2\n")),
        lambda: Incarnation.decode(crc_lines(b"format: 1\nincarnation: 1\nnonce: a\ntier: 2\n")),
    ],
    "cookie": [
        lambda: known(COOKIE.replace(b"5\n", b"6\n", 1)),
        lambda: known(COOKIE + b"tier: 2\n"),
        lambda: known(COOKIE.replace(b"5\n", b"6\n", 1) + b"tier: 2\n"),
    ],
    "newest state seen of the metadata store": [metadata_lines],
    "mark of a clean stop": [later_clean_mark],
    "damage record": [lambda: damage(format=2), lambda: damage(cause="rot")],
    "segment header": [later_header],
    "group": [lambda: later_group(7, b"\x02"), lambda: later_group(60, b"\x08")],
    "state record": [
        lambda: later_record(0, b"\x08"),
        lambda: later_record(1, b"\x01"),
        lambda: Deleted.decode(Deleted(1, True).encode() + b"x"),
        lambda: Superseded.decode(bytes(13)),
        lambda: decode_segment_value(bytes(9)),
    ],
    "footer": [
        lambda: later_trailer(7, b"\x02"),
        lambda: later_trailer(116, b"\x02"),
        lambda: later_trailer(120, b"\x01"),
    ],
    "ledger metadata": [
        lambda: ledger_metadata_format.decode(V3.replace(b"\t3\n", b"\t4\n")),
        lambda: ledger_metadata_format.decode(V2 + b"tier: 2\n"),
        lambda: ledger_metadata_format.decode(V2.replace(b"state: OPEN", b"state: FROZEN")),
        lambda: ledger_metadata_format.decode(V2.replace(b"CRC32C", b"SHA3")),
        lambda: ledger_metadata_format.decode(V3.replace(b"\x28\x01", b"\x28\x07")),
    ],
    "LAYOUT": [
        lambda: ledger_layout.decode(b"3\nx:1"),
        lambda: ledger_layout.decode(f"2\n{ledger_layout.FLAT}:2".encode()).manager(),
    ],
    "under-replication layout": [
        lambda: underreplication.check_layout(b'type: "BASIC"\nversion: 2\n')
    ],
    "under-replication mark": [lambda: decoded_mark("/mark", b'replica: "b"\ntier: 2\n')],
    "record of directories": [
        lambda: BookieDirectories.decode(changed(BookieDirectories().encode(), format=2)),
        lambda: BookieDirectories.decode(changed(BookieDirectories().encode(), tier=2)),
    ],
    "order to a bookie": [
        lambda: Order.decode(b'{"order": "freeze", "since_ms": 1, "by": "x"}'),
        lambda: Order.decode(b'{"order": "drain", "since_ms": 1, "by": "x", "format": 2}'),
    ],
    "start command": [
        lambda: start_commands.decode(b'{"words": [], "format": 2}'),
        lambda: start_commands.decode(b'{"words": [], "shell": "fish"}'),
    ],
    "note about damage": [
        lambda: damage_notes.decode(b'{"found": [], "format": 2}'),
        lambda: damage_notes.decode(b'{"found": [], "tier": 2}'),
        lambda: damage_notes.decode(b'{"found": [{"tier": 2}]}'),
    ],
    "note about outages": [
        lambda: outages.decode(b'{"outages": [], "format": 2}'),
        lambda: outages.decode(b'{"outages": [], "tier": 2}'),
        lambda: outages.decode(b'{"outages": [{"tier": 2}]}'),
    ],
    "mark of the collection": [
        lambda: BookieMark.decode_any(b'{"count": 1, "token": "t", "format": 2}'),
        lambda: BookieMark.decode_any(b'{"count": 1, "token": "t", "epoch": 2}'),
    ],
    "dataset": [
        lambda: datasets.decode_head("d", changed(DATASET, format=3)),
        lambda: datasets.decode_head("d", changed(TYPED_DATASET, format=3)),
        lambda: datasets.decode_head("d", changed(DATASET, schema={})),
        lambda: datasets.decode_head("d", changed(DATASET, tier=2)),
        lambda: chunk(tier=2),
        lambda: chunk(partition={}),
    ],
    "schema of a dataset": [
        lambda: typed(version=2),
        lambda: typed(order_by=["n"]),
        lambda: typed(encoding="columns of 2030"),
    ],
    "rows of a dataset": [later_rows],
    "object": [
        lambda: objects.decode_head("o", changed(objects.encode_head(OBJECT), format=2)),
        lambda: objects.decode_head("o", changed(objects.encode_head(OBJECT), tier=2)),
    ],
    "namespace binding": [lambda: NamespaceBinding.from_bytes(b"2\nBKDL\n{}", "zk")],
    "stream settings": [
        lambda: decode_settings(b'{"quire": 2}', "/n"),
        lambda: decode_settings(b'{"quire": 1, "tier": 2}', "/n"),
    ],
    "segment of a stream": [
        lambda: StreamSegment.from_bytes(b"6;1;2;3;0;0;0"),
        lambda: StreamSegment.from_bytes(f"{5 | 8 << 8};1;2;3;0;0;0".encode()),
    ],
    "subscription": [lambda: DLSN.from_bytes(b"\x02" + bytes(24))],
    "envelope": [lambda: unwrap(ENVELOPE), lambda: unwrap(FLAGS), lambda: unwrap(PACKED)],
    "record envelope": [
        lambda: decode_envelope(envelope(b"", b"k", version=2)),
        lambda: decode_envelope(envelope(b"", parts=4)),
    ],
    "record set": [
        lambda: member_count(SET, 0, len(SET)),
        lambda: member_count(struct.pack(">Iiii", 0x1010, 0, 0, 0), 0, 16),
    ],
    "control record": [lambda: decode_control(b"quire:2 ")],
    "published batches": [
        lambda: published({"format": 2, "jobs": []}),
        lambda: published({"format": 1, "jobs": [], "tier": 2}),
    ],
    "topic": [
        lambda: decode_topic("t", "/t", json.dumps(TOPIC | {"format": 2}).encode(), 0),
        lambda: decode_topic("t", "/t", json.dumps(TOPIC | {"tier": 2}).encode(), 0),
        lambda: decode_topic("t", "/t", json.dumps(TOPIC | {"partitioner": "x"}).encode(), 0),
    ],
    "mark of a copy": [
        lambda: copied({"format": 2, **ORIGIN}),
        lambda: copied({"format": 1, "tier": 2, **ORIGIN}),
    ],
    "snapshot of a state machine": [lambda: snapshot(tier="2"), lambda: snapshot(format="2")],
    "offsets of a query": [
        lambda: Offsets.from_json(OFFSETS | {"v": 2}),
        lambda: Offsets.from_json(OFFSETS | {"tier": 2}),
        lambda: Offsets.from_json(OFFSETS | {"checks": {"s": {"tier": 2}}}),
    ],
    "offloaded history": [
        lambda: manifest(v=2),
        lambda: manifest(tier=2),
        lambda: manifest(files=[{"tier": 2}]),
    ],
    "compacted table": [lambda: table(v=2), lambda: table(tier=2)],
}
"""Calls that decode something newer, and must refuse it."""

ELSEWHERE = {
    "reasons in a registration": "tests/unit/bookie/test_bookie_registration.py",
    "SQLite file": "tests/conformance/sqlite/test_metadata_sqlite.py",
    "stream layout": "tests/unit/streams/namespace/test_later_layout.py",
    "protocol v2": "tests/unit/bookie/protocol/test_bookie_connection.py",
    "protocol v3": "tests/unit/bookie/protocol/test_bookie_v3.py",
}
"""Formats that only a running store or bookie can refuse, and the file that tests it."""


@pytest.mark.parametrize(
    ("what", "number"), [(what, n) for what, calls in REFUSED.items() for n in range(len(calls))]
)
def test_every_newer_format_is_refused(what: str, number: int) -> None:
    with pytest.raises((LaterVersionError, LaterStreamFormatError)) as refused:
        REFUSED[what][number]()
    message = str(refused.value)
    assert re.search(r"it has .*, but this version knows only ", message), message
    assert not re.search(r"replac|delet|eras|remov|restor|`quire", message), message


# -- what is ignored, and why that is right -------------------------------------------------------


def ignored_scrub() -> bool:
    return Round.decode(b"format: 2\nbegan_ms: 1\nnext: 2\n") is None


def ignored_cache() -> bool:
    with pytest.raises(FormatError, match="written by a later version of Quire"):
        later_cache()
    return True


def ignored_registration() -> bool:
    info = registration.BookieServiceInfo((registration.Endpoint("bookie-rpc", "h", 1),))
    data = registration.encode(info) + b"\x98\x06\x05"
    return registration.decode(data, "b") == info


def ignored_lock() -> bool:
    return underreplication.lock_owner(b'bookieId: "b"\ntier: 2\n') == "b"


def paused() -> bool:
    return pauses._decoded(b'{"tier": 2}', "rebalance", "cluster").kind == "rebalance"


def announced() -> bool:
    return job_announcements._decoded(b'{"format": 2}') is None


def noted_copy() -> bool:
    return copy_notes._decoded(b'{"format": 2}') is None


def kept_locations() -> bool:
    data = b'{"g": {"b:1": {"rack": "/r", "tier": 2}}}'
    return read_groups(with_location(data, "b:1", "/other"))["g"]["b:1"]["tier"] == 2


def kept_field_of_ledger_metadata() -> bool:
    body = V3.partition(b"\n")[2][1:] + b"\x98\x06\x05"
    data = V3.partition(b"\n")[0] + b"\n" + bytes([len(body)]) + body
    found = ledger_metadata_format.decode(data)
    return ledger_metadata_format.encode(found) == data


def ignored_record_bits() -> bool:
    head = HEAD.pack(1 << 16 | 0xFF8, 7, 0)
    found = decode_entry(head, False)
    return len(found) == 1 and not found.envelopes


def not_a_command() -> bool:
    machine = Dictionary()
    machine.apply(b'["increment", "a"]')
    return machine.has_other_records


def unknown_list() -> bool:
    with pytest.raises(
        availability.BadAvailabilityError,
        match="has version 1, which this version of Quire does not know",
    ):
        availability.decode_availability(struct.pack(">ii", 1, 0) + bytes(56))
    return True


def ignored_tls_files() -> bool:
    wanted = tls_files.TlsFiles("/etc/a.crt", "/etc/ca.crt")
    (text,) = tls_files.as_properties(wanted).values()
    later = changed(text.encode(), tier=2).decode()
    assert tls_files.from_properties({tls_files.PROPERTY: "no json"}) is None
    return tls_files.from_properties({tls_files.PROPERTY: later}) == wanted


def recovery_off() -> bool:
    later = b'{"by": "host.1", "since_ms": 5, "later": 1}'
    return underreplication.SwitchedOff.decode(later) == underreplication.SwitchedOff(
        "host.1", 5
    ) and (
        underreplication.SwitchedOff.decode(b"")
        == underreplication.SwitchedOff.decode(b"[later]")
        == underreplication.SwitchedOff()
    )


def switched_off() -> bool:
    return Switch.decode(b'{"format": 2}') == Switch()


IGNORED: dict[str, Callable[[], bool]] = {
    "progress of the scrub": ignored_scrub,
    "index cache": ignored_cache,
    "registration": ignored_registration,
    "lock of autorecovery": ignored_lock,
    "TLS files in a registration": ignored_tls_files,
    "switch of the collection": switched_off,
    "switch of autorecovery": recovery_off,
    "pause of a job": paused,
    "announcement of a job": announced,
    "note of a continuous copy": noted_copy,
    "locations of bookies": kept_locations,
    "record": ignored_record_bits,
    "command of a dictionary": not_a_command,
    "list of entries": unknown_list,
}
NOT_READ = {
    "note of a suspension": "no decision depends on it: the bookie removes it at its start",
    "note of autorecovery": "no decision depends on it, and it is not shown",
    "note of a deletion": "no decision depends on it",
}


@pytest.mark.parametrize("what", IGNORED)
def test_newer_formats_that_are_ignored_or_reported_otherwise(what: str) -> None:
    assert IGNORED[what]()


def test_a_field_of_a_later_bookkeeper_is_kept() -> None:
    assert kept_field_of_ledger_metadata()


# -- the tables are complete ----------------------------------------------------------------------


def rows_of_the_page() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    return [cell for cell in cells if cell != "format"]


def test_the_page_has_exactly_these_formats() -> None:
    wanted = [*REFUSED, *IGNORED, *NOT_READ, *ELSEWHERE]
    assert len(set(wanted)) == len(wanted)
    assert sorted(rows_of_the_page()) == sorted(wanted)


def test_the_files_that_test_the_rest_exist() -> None:
    for name in ELSEWHERE.values():
        assert (ROOT / name).is_file(), name


NAMES = re.compile(
    r"_?(?:[A-Z]+_)*(?:FORMAT|VERSION|MAGIC|LAYOUT|LAYOUT_DATA|LAYOUT_VALUE|FLAGS)(?:_M[AI][XN])?"
)
"""The names of constants that hold the version, the first bytes or the flags of a format."""
CONSTANTS = {
    "client/datasets/format.py": "dataset",
    "client/datasets/rows.py": "rows of a dataset",
    "client/datasets/schema.py": "schema of a dataset",
    "codec/distributedlog/control_record.py": "control record",
    "codec/distributedlog/dlsn.py": "subscription",
    "codec/distributedlog/envelope.py": "envelope",
    "codec/distributedlog/name.py": "stream layout",
    "codec/distributedlog/namespace_binding.py": "namespace binding",
    "codec/distributedlog/record_envelope.py": "record envelope",
    "codec/distributedlog/record_set.py": "record set",
    "codec/distributedlog/segment.py": "segment of a stream",
    "codec/log/footer.py": "footer",
    "codec/log/group.py": "group",
    "codec/log/index_cache.py": "index cache",
    "codec/log/segment_header.py": "segment header",
    "codec/metadata/cookie.py": "cookie",
    "codec/metadata/layout.py": "LAYOUT",
    "codec/metadata/ledger_metadata.py": "ledger metadata",
    "codec/metadata/ledger_metadata_format.py": "ledger metadata",
    "codec/metadata/underreplication.py": "under-replication layout",
    "codec/wire/availability.py": "list of entries",
    "codec/wire/v2.py": "protocol v2",
    "codec/wire/v3.py": "protocol v3",
    "metadata/sqlite/file.py": "SQLite file",
    "spark/jobs/archive/manifest.py": "offloaded history",
    "spark/jobs/archive/versions.py": "compacted table",
    "spark/streams/offsets.py": "offsets of a query",
    "storage/background/quarantine_record.py": "damage record",
    "storage/directory.py": "directory identity",
    "storage/recovery/incarnation.py": "incarnation",
    "streams/mirror/check.py": "mark of a copy",
    "streams/namespace/settings.py": "stream settings",
    "streams/objects/format.py": "object",
    "streams/publish/published.py": "published batches",
    "streams/topics/topic_metadata.py": "topic",
}
"""The files with such constants, and a format of each."""
OTHER_CONSTANTS = {
    "metadata/values.py": "the version of a node in the store",
    "metadata/zookeeper/kazoo_adapter.py": "the version of a node in the store",
    "metadata/zookeeper/store.py": "the oldest format of ledger metadata that has a token",
    "streams/read/arrow.py": "the flags of a record",
    "spark/jobs/archive/parquet_files.py": "Parquet's version, which its library checks",
}
JSON = {
    **CONSTANTS,
    "codec/distributedlog/thrift_json.py": "namespace binding",
    "core/placement/tables.py": "locations of bookies",
    "metadata/bookies/collection.py": "mark of the collection",
    "metadata/bookies/damage_notes.py": "note about damage",
    "metadata/bookies/start_commands.py": "start command",
    "metadata/bookies/directories.py": "record of directories",
    "metadata/bookies/orders.py": "order to a bookie",
    "metadata/bookies/tls_files.py": "TLS files in a registration",
    "metadata/bookies/unwritable.py": "reasons in a registration",
    "metadata/outages.py": "note about outages",
    "metadata/ledgers/deletions.py": "note of a deletion",
    "replication/marks/copy_notes.py": "note of a continuous copy",
    "replication/marks/job_announcements.py": "announcement of a job",
    "replication/marks/notes.py": "note of autorecovery",
    "replication/marks/pauses.py": "pause of a job",
    "storage/background/suspension.py": "note of a suspension",
    "streams/statemachine/durable_dict.py": "command of a dictionary",
}
"""The files that decode stored JSON, and a format of each."""
OTHER_JSON = {
    "http/server/server.py": "the body of a request, which is not stored",
    "http/views/untrusted.py": "the answer of another server, which is not stored",
    "http/watch/prometheus.py": "the answer of Prometheus, which is not stored",
    "spark/jobs/tasks.py": "what tasks and their driver tell each other during one job",
    "spark/streams/lag.py": "what Spark reports about a running query",
    "spark/streams/options.py": "an option",
    "testing/cluster.py": "the state of a test cluster, which one version starts and stops",
}
SMALL_FILES = {
    "CLEAN_NAME": "mark of a clean stop",
    "COOKIE_FILE": "cookie",
    "IDENTITY_NAME": "directory identity",
    "INCARNATION_NAME": "incarnation",
    "MARK_NAME": "newest state seen of the metadata store",
    "NOTE_NAME": "note of a suspension",
    "SCRUB_NAME": "progress of the scrub",
    "name": "damage record",
}
"""The small files that a bookie writes, by the expression for their name."""


Modules = list[tuple[str, ast.Module]]


@pytest.fixture(scope="module")
def modules() -> Modules:
    names = sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py"))
    return [
        (name, ast.parse((SOURCES / name).read_text(encoding="utf-8")))
        for name in names
        if not name.startswith(("blocking/", "cli/")) and not name.endswith("_pb2.py")
    ]


def constants(tree: ast.Module) -> set[str]:
    targets = [
        target
        for node in tree.body
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Attribute)
        for target in node.targets
    ]
    return {
        target.id
        for target in targets
        if isinstance(target, ast.Name) and NAMES.fullmatch(target.id)
    }


def calls(tree: ast.Module, name: str) -> list[ast.Call]:
    last = name.rpartition(".")[2]
    found = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and last in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    ]  # fmt: skip
    return [node for node in found if ast.unparse(node.func) == name]


def test_every_constant_of_a_format_has_a_row(modules: Modules) -> None:
    found = {name for name, tree in modules if constants(tree)}
    assert found == {*CONSTANTS, *OTHER_CONSTANTS}
    assert set(CONSTANTS.values()) <= set(rows_of_the_page())


def test_every_stored_json_has_a_row(modules: Modules) -> None:
    decoders = ("json.loads", "stored_json")
    found = {name for name, tree in modules if any(calls(tree, one) for one in decoders)}
    assert found - {*JSON, *OTHER_JSON, "codec/metadata/stored_json.py"} == set()
    assert set(JSON.values()) <= set(rows_of_the_page())


def test_every_small_file_has_a_row(modules: Modules) -> None:
    found = set()
    for name, tree in modules:
        if name == "storage/directory.py":
            continue
        for call in calls(tree, "write_small_file"):
            found.add(ast.unparse(call.args[1]))
        for call in calls(tree, "partial"):
            if ast.unparse(call.args[0]) == "write_small_file":
                found.add(ast.unparse(call.args[2]))
    assert found | {"IDENTITY_NAME"} == set(SMALL_FILES)
    assert set(SMALL_FILES.values()) <= set(rows_of_the_page())


def test_every_kind_of_state_record_is_in_the_page() -> None:
    assert f"kinds 1 to {max(RecordKind)}" in PAGE.read_text(encoding="utf-8")
    assert f"`user_version` {SCHEMA_VERSION}" in PAGE.read_text(encoding="utf-8")
    assert (v2.MAX_VERSION, v3.VERSION) == (2, 3)
