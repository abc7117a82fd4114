"""The golden vectors of DistributedLog's format: single values, and whole streams.

Apache's library 4.17.2 made them, or wrote and read them in a real cluster. Some were written byte
by byte and then read by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from quire.codec.distributedlog import dlsn as positions
from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.limits import (
    MAX_EXPANDED_BYTES,
    MAX_RECORD_BYTES,
    StreamFormatError,
)
from quire.codec.distributedlog.lock import LockMember, lock_member_prefix
from quire.codec.distributedlog.name import StreamPaths, decode_number, is_reserved, stream_name
from quire.codec.distributedlog.namespace_binding import (
    AccessRights,
    NamespaceBinding,
    NamespaceURI,
)
from quire.codec.distributedlog.record import (
    CONTROL_PAYLOAD,
    END_OF_STREAM_PAYLOAD,
    HEAD_BYTES,
    KEEPALIVE_PAYLOAD,
    MAX_PAYLOAD_BYTES,
    RecordFlag,
    Records,
    control_record,
    decode_entry,
    encode_record,
    encode_records,
    end_of_stream_record,
)
from quire.codec.distributedlog.record_set import member_bounds
from quire.codec.distributedlog.segment import StreamSegment, Truncation, parse_segment_name
from quire.errors import MetadataError, MetadataURIError, UsageError
from tests.support.stream_vectors import TESTED, VECTORS, data_of, encode_record_set, named

# -- positions --------------------------------------------------------------------------------

CONSTANTS = {
    "dlsn.initial.v1": positions.INITIAL_DLSN,
    "dlsn.noninclusive_lower_bound.v1": positions.NON_INCLUSIVE_LOWER_BOUND,
    "dlsn.invalid.v1": positions.INVALID_DLSN,
}


def dlsn_of(vector: Mapping[str, Any]) -> DLSN:
    inputs = vector["inputs"]
    return DLSN(inputs["lssn"], inputs["entryId"], inputs["slotId"])


def java_text(dlsn: DLSN) -> str:
    return (
        f"DLSN{{logSegmentSequenceNo={dlsn.lssn}, entryId={dlsn.entry_id}, slotId={dlsn.slot_id}}}"
    )


@pytest.mark.parametrize("name", named(r"dlsn\..*\.v1"))
def test_dlsns_are_encoded_decoded_and_printed_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    dlsn = dlsn_of(vector)
    assert dlsn == CONSTANTS.get(name, dlsn)
    assert dlsn.to_bytes() == data_of(vector)
    assert DLSN.from_bytes(data_of(vector)) == dlsn
    assert dlsn.to_text() == vector["base64"]
    assert DLSN.from_text(vector["base64"]) == dlsn
    assert DLSN.parse(vector["base64"]) == DLSN.parse(str(dlsn)) == dlsn
    assert java_text(dlsn) == vector["toString"]


@pytest.mark.parametrize("name", named(r"dlsn\..*\.v0"))
def test_dlsns_of_version_0_are_decoded(name: str) -> None:
    vector = VECTORS[name]
    assert len(data_of(vector)) == vector["length"]
    assert DLSN.from_bytes(data_of(vector)) == dlsn_of(vector)
    assert DLSN.from_text(vector["base64"]) == dlsn_of(vector)


@pytest.mark.parametrize("name", named(r"dlsn\.next"))
def test_the_successors_of_a_dlsn_equal_those_of_java(name: str) -> None:
    vector = VECTORS[name]
    dlsn = dlsn_of(vector)
    assert java_text(dlsn.next_slot()) == vector["getNextDLSN"]
    assert java_text(dlsn.next_segment()) == vector["positionOnTheNextLedger"]


# -- segments ---------------------------------------------------------------------------------

TRUNCATIONS = {0: "ACTIVE", 1: "PARTIALLY_TRUNCATED", 2: "TRUNCATED"}


def as_java_sees_it(segment: StreamSegment) -> dict[str, Any]:
    return {
        "version": segment.layout,
        "logSegmentId": segment.ledger_id,
        "firstTxId": segment.first_txid,
        "lastTxId": segment.last_txid,
        "completionTime": segment.completion_time_ms,
        "recordCount": segment.record_count,
        "logSegmentSequenceNumber": segment.lssn,
        "lastEntryId": segment.last_dlsn.entry_id,
        "lastSlotId": segment.last_dlsn.slot_id,
        "regionId": segment.region_id,
        "status": segment.status,
        "truncationStatus": TRUNCATIONS[segment.truncation],
        "minActiveEntryId": segment.min_active_dlsn.entry_id,
        "minActiveSlotId": segment.min_active_dlsn.slot_id,
        "startSequenceId": segment.first_sequence_id,
        "inProgress": segment.in_progress,
        "envelopeEntries": segment.enveloped,
    }


@pytest.mark.parametrize("name", named(r"segment\.v.*"))
def test_segment_metadata_is_encoded_and_decoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    oldest = 1 if vector["inputs"]["version"] == 1 else 2
    segment = StreamSegment.from_bytes(data_of(vector), oldest)
    assert as_java_sees_it(segment) == vector["parsed_by_java"]
    assert segment.to_bytes() == data_of(vector) == vector["text"].encode()


def test_truncating_a_segment_gives_the_bytes_that_java_gives() -> None:
    completed = StreamSegment.from_bytes(data_of(VECTORS["segment.v5.completed"]))
    inputs = VECTORS["segment.v5.partially_truncated"]["inputs"]
    at = DLSN(7, inputs["minActiveEntryId"], inputs["minActiveSlotId"])
    partial = completed.partially_truncated(at)
    assert partial.to_bytes() == data_of(VECTORS["segment.v5.partially_truncated"])
    assert completed.truncated().to_bytes() == data_of(VECTORS["segment.v5.truncated"])


@pytest.mark.parametrize("name", named(r"segment\.reject\..*"))
def test_segment_metadata_that_java_refuses_is_refused(name: str) -> None:
    with pytest.raises(MetadataError, match=r"the metadata of a (stream )?segment"):
        StreamSegment.from_bytes(VECTORS[name]["inputs"]["text"].encode())


@pytest.mark.parametrize("name", named(r"segment\.names"))
def test_segment_names_equal_those_of_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    open_segment = StreamSegment(inputs["lssn"], 4711, inputs["firstTxId"])
    completed = open_segment.completed(
        last_txid=inputs["lastTxId"], record_count=1, last_entry_id=0, last_slot_id=0,
        completion_time_ms=1, start_sequence_id=0,
    )  # fmt: skip
    for segment, state in ((open_segment, "inprogress"), (completed, "completed")):
        assert segment.name == vector[f"{state}_v1"]
        assert segment.legacy_name == vector[f"{state}_v0"]
        new, old = parse_segment_name(segment.name), parse_segment_name(segment.legacy_name)
        assert new is not None
        assert old is not None
        assert (new.in_progress, new.lssn) == (segment.in_progress, inputs["lssn"])
        assert (old.in_progress, old.lssn) == (segment.in_progress, None)


# -- records and entries ----------------------------------------------------------------------


def flags_of(record: Mapping[str, Any]) -> int:
    flags = RecordFlag.NONE
    for key, flag in (
        ("control", RecordFlag.CONTROL),
        ("endOfStream", RecordFlag.END_OF_STREAM),
        ("recordSet", RecordFlag.RECORD_SET),
    ):
        if record[key]:
            flags |= flag
    return flags


def encoded(record: Mapping[str, Any]) -> bytes:
    payload = bytes.fromhex(record["payload_hex"])
    return encode_record(record["position"], record["txid"], payload, flags_of(record))


def as_java_reads(records: Records, lssn: int, entry_id: int, start: int) -> list[dict[str, Any]]:
    return [
        {
            "txid": txid,
            "position": position,
            "control": flags == RecordFlag.CONTROL,
            "endOfStream": flags == RecordFlag.END_OF_STREAM,
            "recordSet": flags == RecordFlag.RECORD_SET,
            "payload_hex": payload.hex(),
            "lssn": lssn,
            "entryId": entry_id,
            "slotId": slot,
            "sequenceId": start + position - 1,
        }
        for flags, position, txid, payload, slot in zip(
            records.flags, records.positions, records.txids, records.payloads(), records.slots
        )
    ]


@pytest.mark.parametrize("name", named(r"record\..*"))
def test_records_are_encoded_and_decoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs, data = vector["inputs"], data_of(vector)
    assert encoded(inputs) == data
    assert len(data) == vector["persistentSize"]
    records = decode_entry(data, enveloped=False)
    assert list(records.flags) == [flags_of(inputs)]
    assert list(records.positions) == [inputs["position"]]
    assert list(records.txids) == [inputs["txid"]]
    assert records.payloads() == [bytes.fromhex(inputs["payload_hex"])]


def test_control_end_of_stream_and_user_records_are_encoded_as_in_java() -> None:
    for made, vector in (
        (control_record(2, 1001), "record.control"),
        (control_record(2, 1001, KEEPALIVE_PAYLOAD), "record.keepalive"),
        (end_of_stream_record(2), "record.eos"),
        (b"".join(encode_records([b"hello"], [1000], 1)[0]), "record.user"),
        (b"".join(encode_records([b""], [1001], 2)[0]), "record.empty"),
    ):
        assert made == data_of(VECTORS[vector])


ENTRIES = named(r"entry\.(?!odd).*")


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_are_decoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs, data = vector["inputs"], data_of(vector)
    where = (inputs["lssn"], inputs["entryId"], inputs["startSequenceId"])
    records = decode_entry(data, inputs["enveloped"])
    assert as_java_reads(records, *where) == vector["java_reader"]
    plain = decode_entry(data, inputs["enveloped"], expand_sets=False)
    assert as_java_reads(plain, *where) == vector["java_reader_no_recordset_expansion"]


@pytest.mark.parametrize("name", [name for name in ENTRIES if "lz4." not in name])
def test_entries_are_encoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    body = b"".join(encoded(record) for record in vector["inputs"]["records"])
    enveloped = vector["inputs"]["enveloped"]
    assert (wrap([body], len(body)) if enveloped else body) == data_of(vector)


@pytest.mark.parametrize("name", [name for name in ENTRIES if "lz4." in name])
def test_a_compressed_entry_decodes_to_the_same_payloads_as_that_of_java(name: str) -> None:
    """Compressed bytes are not canonical, so only the decoded payloads are compared."""
    vector = VECTORS[name]
    body = b"".join(encoded(record) for record in vector["inputs"]["records"])
    entry = wrap([body], len(body), Compression.LZ4)
    assert decode_entry(entry).payloads() == decode_entry(data_of(vector)).payloads()
    assert len(entry) <= len(wrap([body], len(body)))


STRICTER = {
    "entry.odd.codec2": "compression code 2",
    "entry.odd.codec3_len": "compression code 3",
    "entry.odd.negative_payload": "impossible length: -1",
    "entry.odd.high_flags": "flags 0xfffffffc",
}
"""Java takes the first two for uncompressed, the third for the end of the entry, and ignores the
flags of the fourth."""
REFUSED = {
    "entry.odd.version2": "version 2",
    "entry.odd.none_len_mismatch": "has different lengths",
    "entry.odd.truncated_record": "impossible length: 5",
    "entry.odd.set_bad_version": "version 0x2000",
}


@pytest.mark.parametrize("name", named(r"entry\.odd\..*"))
def test_unusual_entries_are_decoded_or_refused(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    reason = {**STRICTER, **REFUSED}.get(name)
    assert isinstance(vector["java_result"], str) == (name in REFUSED)
    if reason is not None:
        with pytest.raises(StreamFormatError, match=reason):
            decode_entry(data_of(vector))
        return
    records = decode_entry(data_of(vector))
    where = (inputs["lssn"], inputs["entryId"], inputs["startSequenceId"])
    assert as_java_reads(records, *where) == vector["java_result"]


@pytest.mark.parametrize("name", named(r"recordset\..*"))
def test_record_sets_are_encoded_and_decoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    payloads = [bytes.fromhex(payload) for payload in vector["inputs"]["payloads_hex"]]
    data = data_of(vector)
    members = member_bounds(data, 0, len(data), MAX_EXPANDED_BYTES)
    buffer = data if members.body is None else members.body
    assert [buffer[a:b] for a, b in zip(members.starts, members.ends)] == payloads
    made = encode_record_set(payloads, Compression[vector["inputs"]["codec"]])
    if vector["inputs"]["codec"] == "NONE":
        assert made == data
    record = encode_record(1, 1, made, RecordFlag.RECORD_SET)
    assert decode_entry(record, enveloped=False).payloads() == payloads


# -- namespaces and names ---------------------------------------------------------------------


@pytest.mark.parametrize("name", named(r"binding\.(minimal|escape)"))
def test_a_binding_to_one_zookeeper_is_encoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    binding = NamespaceBinding.of_one(vector["inputs"]["zk"], vector["inputs"]["ledgers"])
    assert binding.to_bytes() == data_of(vector) == vector["text"].encode()
    assert NamespaceBinding.from_bytes(data_of(vector), "elsewhere:1") == binding


@pytest.mark.parametrize("name", named(r"binding\.full"))
def test_a_binding_with_all_fields_is_encoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    inputs = vector["inputs"]
    binding = NamespaceBinding(
        inputs["bkZkServers"],
        inputs["bkLedgersPath"],
        inputs["bkZkServersForReader"],
        inputs["dlZkServersForWriter"],
        inputs["dlZkServersForReader"],
        inputs["sanityCheckTxnID"],
        inputs["encodeRegionID"],
        inputs["aclRootPath"],
        inputs["firstLogSegmentSeqNo"],
        inputs["federatedNamespace"],
    )
    assert binding.to_bytes() == data_of(vector)
    assert NamespaceBinding.from_bytes(data_of(vector), "elsewhere:1") == binding


@pytest.mark.parametrize("name", named(r"binding\.accept\..*"))
def test_bindings_are_accepted_or_refused_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    data, expected = vector["inputs"]["text"].encode(), vector["result"]
    if isinstance(expected, str):
        with pytest.raises(MetadataError, match="namespace"):
            NamespaceBinding.from_bytes(data, "uri-host:2181")
        return
    assert NamespaceBinding.from_bytes(data, "uri-host:2181") == NamespaceBinding(
        expected["bkW"],
        expected["ledgers"],
        expected["bkR"],
        expected["dlW"],
        expected["dlR"],
        expected["sanity"],
        expected["region"],
        expected["acl"],
        expected["firstLssn"],
        expected["federated"],
    )


@pytest.mark.parametrize("name", named(r"acl\..*"))
def test_access_rights_are_decoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    denied = {
        re.sub("([A-Z])", r"_\1", key).lower(): value for key, value in vector["inputs"].items()
    }
    assert AccessRights.from_bytes(data_of(vector), "/s") == AccessRights(**denied)


@pytest.mark.parametrize("name", named(r"znode\..*"))
def test_the_numbers_in_stream_nodes_are_decoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    ((key, value),) = vector["inputs"].items()
    data = data_of(vector)
    if key == "layout":
        assert int.from_bytes(data, "big", signed=True) == value
        return
    assert decode_number(data, name) == value
    assert str(value).encode() == data


def test_the_nodes_of_a_new_stream_equal_those_of_java() -> None:
    """As Java makes them."""
    nodes = {node["path"]: data_of(node) for node in VECTORS["capture.basic.created"]["znodes"]}
    paths = StreamPaths("", "basic")
    assert {paths.stream: b"", **dict(paths.created())} == nodes


STRICTER_NAMES = {
    "": "it is empty",  # Java fails with an index error
    "/": "it is empty",  # Java takes it for an empty name
}


@pytest.mark.parametrize("name", named(r"stream_name\.validation"))
def test_stream_names_are_accepted_or_refused_as_in_java(name: str) -> None:
    for case in VECTORS[name]["cases"]:
        if case["name"] in STRICTER_NAMES or case["result"].startswith("ERROR"):
            with pytest.raises(UsageError, match="cannot be the name of a stream") as caught:
                stream_name(case["name"])
            assert STRICTER_NAMES.get(case["name"], "") in str(caught.value)
        else:
            assert stream_name(case["name"]) == case["result"]


@pytest.mark.parametrize("name", named(r"namespace_uri\.normalisation"))
def test_namespace_uris_are_parsed_or_refused_as_in_java(name: str) -> None:
    for case in VECTORS[name]["cases"]:
        if case["result"].startswith("ERROR"):
            with pytest.raises(MetadataURIError, match="not a namespace URI"):
                NamespaceURI.parse(case["uri"])
        else:
            assert str(NamespaceURI.parse(case["uri"])) == case["result"]


@pytest.mark.parametrize("name", named(r"javabehaviour"))
def test_the_size_limit_of_a_record_equals_that_of_java(name: str) -> None:
    results = VECTORS[name]["results"]
    assert f"size.max_payload_{MAX_PAYLOAD_BYTES}" in results
    assert results["size.plus_one"].endswith(f"only {MAX_RECORD_BYTES} is allowed")
    assert MAX_PAYLOAD_BYTES + HEAD_BYTES == MAX_RECORD_BYTES


# -- whole streams ----------------------------------------------------------------------------

# -- what Java wrote in a cluster -------------------------------------------------------------

SEGMENT_NODE = re.compile(r"(.*/ledgers)/((?:inprogress|logrecs)_.*)")
NUMBER_NODE = re.compile(r".*/<default>/(maxtxid|ledgers|allocation)")
MEMBER_NODE = re.compile(r".*/(lock|readLock)/(member_.*)")


def segments_of(nodes: list[dict[str, Any]]) -> list[StreamSegment]:
    found = [
        StreamSegment.from_bytes(data_of(node))
        for node in nodes
        if SEGMENT_NODE.fullmatch(node["path"])
    ]
    return sorted(found, key=lambda segment: segment.lssn)


def check_node(path: str, node: Mapping[str, Any]) -> bool:
    """Whether it is one of the kinds whose data means something."""
    data = data_of(node)
    if match := SEGMENT_NODE.fullmatch(path):
        segment = StreamSegment.from_bytes(data)
        assert segment.name == match[2]
        assert segment.to_bytes() == data
    elif NUMBER_NODE.fullmatch(path) and data:
        assert str(decode_number(data, path)).encode() == data
    elif match := MEMBER_NODE.fullmatch(path):
        member = LockMember.parse(match[2], data, node["ephemeral_owner"])
        assert member.client_id == data.decode()
        assert member.session_id == node["ephemeral_owner"]
        prefix = lock_member_prefix(member.client_id, member.session_id)
        assert f"{prefix}{member.number:010d}" == match[2]
    elif match := re.fullmatch(r".*/subscribers/[^/]+", path):
        assert DLSN.from_text(data.decode()).to_text().encode() == data
    elif data.startswith(b"1\nBKDL"):
        assert NamespaceBinding.from_bytes(data, "x:1").to_bytes() == data
    elif "/.acl/" in path:
        assert AccessRights.from_bytes(data, "/s") == AccessRights(deny_write=True)
    elif path.endswith("<default>/version"):
        assert data == b"\xff\xff\xff\xff"
    else:
        return not data
    return True


@pytest.mark.parametrize("name", named(r"capture\..*"))
def test_every_captured_node_is_decoded_and_written_back(name: str) -> None:
    """Each is understood, and written again as it was."""
    strange = []
    for node in VECTORS[name]["znodes"]:
        if not check_node(node["path"], node):
            strange.append(node["path"])
        for element in filter(None, node["path"].split("/<default>")[0].split("/")):
            assert is_reserved(element) or stream_name(element) == element
    assert [p for p in strange if not p.startswith(("/.allocation_pool", "/messaging/fed/."))] == []


def entries_of(ledger: Mapping[str, Any]) -> list[bytes]:
    """All of them, also those that a reader did not see at that time."""
    return [
        bytes.fromhex(entry)
        for entry in [*ledger["entries"], *ledger.get("entries_beyond_lac", [])]
    ]


WITH_ENTRIES = [name for name in VECTORS if VECTORS[name].get("ledgers")]


@pytest.mark.parametrize("name", WITH_ENTRIES)
def test_every_captured_entry_is_decoded_and_encoded_again(name: str) -> None:
    """The encoded bytes are equal, except for compression."""
    for ledger in VECTORS[name]["ledgers"]:
        for entry in entries_of(ledger):
            plain = decode_entry(entry, expand_sets=False)
            body = b"".join(
                encode_record(position, txid, payload, flags)
                for flags, position, txid, payload in zip(
                    plain.flags, plain.positions, plain.txids, plain.payloads()
                )
            )
            if entry[4] == Compression.NONE:
                assert wrap([body], len(body)) == entry
            else:
                assert decode_entry(wrap([body], len(body))).payloads() == plain.payloads()
            for index, payload in plain.controls():
                assert payload == CONTROL_PAYLOAD
                assert plain.flags[index] == RecordFlag.CONTROL
            end = plain.end_of_stream
            assert end is None or plain.payload(end) == END_OF_STREAM_PAYLOAD


COMPLETED = {
    "capture.basic.segment1_completed": 0,
    "capture.basic.segment2_recovered": 7,
    "capture.basic.eos_completed": 10,
    "capture.txid.completed": 0,
    "capture.lz4.completed": 0,
    "capture.ledgermeta": 0,
}
"""Names of completed segments, with the sequence id at which the last of them begins."""


@pytest.mark.parametrize("name", sorted(COMPLETED))
def test_completing_a_segment_gives_the_bytes_that_java_gives(name: str) -> None:
    stored = segments_of(VECTORS[name]["znodes"])[-1]
    (ledger,) = (x for x in VECTORS[name]["ledgers"] if x["ledgerId"] == stored.ledger_id)
    last, last_txid, count = DLSN(stored.lssn, -1, -1), stored.first_txid, 0
    for entry_id, entry in enumerate(entries_of(ledger)):
        records = decode_entry(entry)
        count += records.user_count
        for flags, txid, slot in zip(records.flags, records.txids, records.slots):
            if not flags & RecordFlag.CONTROL:
                last, last_txid = DLSN(stored.lssn, entry_id, slot), txid
    made = StreamSegment(stored.lssn, stored.ledger_id, stored.first_txid).completed(
        last_txid=last_txid,
        record_count=count,
        last_entry_id=last.entry_id,
        last_slot_id=last.slot_id,
        completion_time_ms=stored.completion_time_ms,
        start_sequence_id=COMPLETED[name],
    )
    assert made == stored
    assert made.to_bytes() == stored.to_bytes()


# -- what Java reads --------------------------------------------------------------------------

Ledgers = Mapping[int, list[bytes]]


def read(
    segments: list[StreamSegment], ledgers: Ledgers, start: DLSN = positions.INITIAL_DLSN
) -> Iterator[dict[str, Any] | str]:
    """A whole stream as Java's synchronous reader delivers it: whole entries."""
    following = 0
    for segment in segments:
        if segment.in_progress:
            segment = segment.with_start_sequence_id(following)
        following = segment.following_sequence_id
        if segment.truncation is Truncation.TRUNCATED or segment.lssn < start.lssn:
            continue
        partial = segment.truncation is Truncation.PARTIAL
        first = max(start, segment.min_active_dlsn if partial else segment.first_dlsn).entry_id
        for entry_id, entry in enumerate(ledgers[segment.ledger_id]):
            if entry_id < first:
                continue
            records = decode_entry(entry, segment.enveloped)
            kept = records.users()
            for slot, txid, position, payload in zip(
                kept.slots, kept.txids, kept.positions, kept.payloads()
            ):
                yield {
                    "dlsn": [segment.lssn, entry_id, slot],
                    "txid": txid,
                    "position": position,
                    "sequenceId": segment.sequence_id(position),
                    "payload_hex": payload.hex(),
                }
            if records.end_of_stream is not None:
                yield "EndOfStreamException"
                return


def captured_ledgers(*names: str, confirmed: bool = False) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for name in names:
        for ledger in VECTORS[name]["ledgers"]:
            entries = entries_of(ledger)
            found[ledger["ledgerId"]] = entries[: len(ledger["entries"])] if confirmed else entries
    return found


BASIC = ("capture.basic.segment1_completed", "capture.basic.segment2_recovered")
READS = {
    # What was read: nodes, ledgers, first position, records omitted at the front.
    "basic.read_after_close": ("basic.segment1_completed", BASIC[:1], DLSN(1, 0, 0), 0),
    "basic.read_after_recover": ("basic.segment2_recovered", BASIC, DLSN(1, 0, 0), 0),
    "basic.read_partial_from_initial": ("basic.partially_truncated", BASIC, DLSN(1, 0, 0), 0),
    "basic.async_read_partial_from_initial": ("basic.partially_truncated", BASIC, DLSN(1, 0, 0), 0),
    "basic.read_truncated_from_initial": ("basic.truncated", BASIC, DLSN(1, 0, 0), 0),
    "basic.read_eos": (
        "basic.eos_completed", (*BASIC, "capture.basic.eos_completed"), DLSN(3, 0, 0), 0,
    ),
    "roll.read": ("roll.while_open", ("capture.roll.while_open",), DLSN(1, 0, 0), 0),
    "lz4.sync_read_from_1_0_17": ("lz4.completed", ("capture.lz4.completed",), DLSN(1, 0, 0), 0),
    "lz4.async_read_from_1_0_17": ("lz4.completed", ("capture.lz4.completed",), DLSN(1, 0, 0), 17),
    "lz4.sync_read_from_txid_118": ("lz4.completed", ("capture.lz4.completed",), DLSN(1, 0, 0), 18),
    "fence.read": ("fence.znodes", ("capture.fence.znodes",), DLSN(1, 0, 0), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(READS))
def test_captured_streams_are_read_as_java_read_them(name: str) -> None:
    nodes, ledgers, start, left_out = READS[name]
    segments = segments_of(VECTORS[f"capture.{nodes}"]["znodes"])
    stored = captured_ledgers(*ledgers)
    segments = [segment for segment in segments if segment.ledger_id in stored]
    expected = [x for x in VECTORS[f"javaread.{name}"]["records"] if x != "timeout"]
    assert list(read(segments, stored, start))[left_out:] == expected


TESTED.update(f"javaread.{name}" for name in READS)


def test_an_open_segment_is_read_as_java_read_it() -> None:
    (name,) = named(r"javaread\.basic\.read_while_open")
    capture = "capture.basic.segment1_inprogress"
    segments = segments_of(VECTORS[capture]["znodes"])
    seen = list(read(segments, captured_ledgers(capture, confirmed=True)))
    assert seen == VECTORS[name]["records"]


def test_sequence_ids_continue_after_purged_segments() -> None:
    (name,) = named(r"javaread\.purge\.read_initial")
    (kept,) = segments_of(VECTORS["capture.purge.after"]["znodes"])
    read_ids = [(r["dlsn"][0], r["position"], r["sequenceId"]) for r in VECTORS[name]["records"]]
    assert read_ids == [(kept.lssn, p, kept.sequence_id(p)) for p in (1, 2)]
    assert kept.record_count == len(read_ids)
    _, following = segments_of(VECTORS["capture.purge.after_write"]["znodes"])
    assert following.start_sequence_id == kept.following_sequence_id


TESTED.update(named(r"javaread\.(basic\.read_while_open|purge\.read_initial)"))


@pytest.mark.parametrize("name", named(r"pythonwritten\..*"))
def test_streams_written_by_us_are_read_as_java_read_them(name: str) -> None:
    """Java's reader saw what is decoded here. A gap or a wrong password ended its read."""
    vector = VECTORS[name]
    numbers = {"A": 12, "B": 13}
    nodes = [
        {**node, "text": node["text"].format(**numbers)} if "text" in node else node
        for node in vector["inputs"]["znodes"]
    ]
    segments = segments_of(nodes)
    ledgers, confirmed = {}, {}
    for ledger in vector["inputs"]["ledgers"]:
        entries = ledgers[numbers[ledger["id"]]] = entries_of(ledger)
        confirmed[numbers[ledger["id"]]] = entries if ledger["close"] else entries[:-1]
    for segment in segments:
        assert segment.name in {node["path"].rpartition("/")[2] for node in nodes}
        if not segment.in_progress:
            confirmed[segment.ledger_id] = ledgers[segment.ledger_id]
    expected = vector["java_sync_read_from_1_0_0"]
    if expected in (["UnexpectedException"], ["BKTransmitException"]):
        gap = [a.lssn + 1 != b.lssn for a, b in pairwise(segments)]
        assert any(gap) == (expected == ["UnexpectedException"])
        return
    assert list(read(segments, confirmed)) == expected
    after = vector.get("java_read_after_append")
    if after is not None:
        assert list(read(segments, ledgers)) == after[:-1]
        kept = segments_of(vector["znodes_after_java_append"])
        assert all(segment.completion_time_ms > 0 for segment in kept)
        for before, behind in pairwise(kept):
            assert behind.start_sequence_id == before.following_sequence_id


def test_every_stream_vector_has_a_test() -> None:
    assert set(VECTORS) - TESTED == set()
