"""The golden vectors of DistributedLog's format: made by Apache's library 4.17.2, written and read
by it in a real cluster, or written byte by byte and then read by it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from quire.codec.distributedlog import dlsn as positions
from quire.codec.distributedlog.binding import AccessRights, NamespaceBinding, NamespaceURI
from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.limits import (
    MAX_EXPANDED_BYTES,
    MAX_RECORD_BYTES,
    StreamFormatError,
)
from quire.codec.distributedlog.name import StreamPaths, decode_number, stream_name
from quire.codec.distributedlog.record import (
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
from quire.codec.distributedlog.record_set import encode_record_set, member_bounds
from quire.codec.distributedlog.segment import StreamSegment, parse_segment_name
from quire.errors import MetadataError, MetadataURIError, UsageError
from tests.support.stream_vectors import TESTED, VECTORS, data_of, named
from tests.unit.codec import test_stream_captures

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
def test_dlsn(name: str) -> None:
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
def test_dlsn_of_version_0(name: str) -> None:
    vector = VECTORS[name]
    assert len(data_of(vector)) == vector["length"]
    assert DLSN.from_bytes(data_of(vector)) == dlsn_of(vector)
    assert DLSN.from_text(vector["base64"]) == dlsn_of(vector)


@pytest.mark.parametrize("name", named(r"dlsn\.next"))
def test_successors_of_a_dlsn(name: str) -> None:
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
def test_segment(name: str) -> None:
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
def test_segment_that_is_refused(name: str) -> None:
    with pytest.raises(MetadataError, match="the metadata of a segment"):
        StreamSegment.from_bytes(VECTORS[name]["inputs"]["text"].encode())


@pytest.mark.parametrize("name", named(r"segment\.names"))
def test_names_of_segments(name: str) -> None:
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
def test_record(name: str) -> None:
    vector = VECTORS[name]
    inputs, data = vector["inputs"], data_of(vector)
    assert encoded(inputs) == data
    assert len(data) == vector["persistentSize"]
    records = decode_entry(data, enveloped=False)
    assert list(records.flags) == [flags_of(inputs)]
    assert list(records.positions) == [inputs["position"]]
    assert list(records.txids) == [inputs["txid"]]
    assert records.payloads() == [bytes.fromhex(inputs["payload_hex"])]


def test_records_that_stand_for_themselves() -> None:
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
def test_entry(name: str) -> None:
    vector = VECTORS[name]
    inputs, data = vector["inputs"], data_of(vector)
    where = (inputs["lssn"], inputs["entryId"], inputs["startSequenceId"])
    records = decode_entry(data, inputs["enveloped"])
    assert as_java_reads(records, *where) == vector["java_reader"]
    plain = decode_entry(data, inputs["enveloped"], expand_sets=False)
    assert as_java_reads(plain, *where) == vector["java_reader_no_recordset_expansion"]


@pytest.mark.parametrize("name", [name for name in ENTRIES if "lz4." not in name])
def test_entry_as_it_is_written(name: str) -> None:
    vector = VECTORS[name]
    body = b"".join(encoded(record) for record in vector["inputs"]["records"])
    enveloped = vector["inputs"]["enveloped"]
    assert (wrap([body], len(body)) if enveloped else body) == data_of(vector)


@pytest.mark.parametrize("name", [name for name in ENTRIES if "lz4." in name])
def test_compressed_entry_as_it_is_written(name: str) -> None:
    """Compressed bytes are not canonical: ours must mean the same."""
    vector = VECTORS[name]
    body = b"".join(encoded(record) for record in vector["inputs"]["records"])
    entry = wrap([body], len(body), Compression.LZ4)
    assert decode_entry(entry).payloads() == decode_entry(data_of(vector)).payloads()
    assert len(entry) <= len(wrap([body], len(body)))


STRICTER = {
    "entry.odd.codec2": "compression code 2",
    "entry.odd.codec3_len": "compression code 3",
    "entry.odd.negative_payload": "impossible length, -1",
}
"""Java takes the first two for uncompressed, and the third for the end of the entry."""
REFUSED = {
    "entry.odd.version2": "version 2",
    "entry.odd.none_len_mismatch": "its lengths differ",
    "entry.odd.truncated_record": "impossible length, 5",
    "entry.odd.set_bad_version": "version 0x2000",
}


@pytest.mark.parametrize("name", named(r"entry\.odd\..*"))
def test_odd_entry(name: str) -> None:
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
def test_record_set(name: str) -> None:
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
def test_binding_to_one_zookeeper(name: str) -> None:
    vector = VECTORS[name]
    binding = NamespaceBinding.of_one(vector["inputs"]["zk"], vector["inputs"]["ledgers"])
    assert binding.to_bytes() == data_of(vector) == vector["text"].encode()
    assert NamespaceBinding.from_bytes(data_of(vector), "elsewhere:1") == binding


@pytest.mark.parametrize("name", named(r"binding\.full"))
def test_binding_with_everything(name: str) -> None:
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
def test_binding_that_java_accepts_or_refuses(name: str) -> None:
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
def test_access_rights(name: str) -> None:
    vector = VECTORS[name]
    denied = {
        re.sub("([A-Z])", r"_\1", key).lower(): value for key, value in vector["inputs"].items()
    }
    assert AccessRights.from_bytes(data_of(vector)) == AccessRights(**denied)


@pytest.mark.parametrize("name", named(r"znode\..*"))
def test_data_of_a_node(name: str) -> None:
    vector = VECTORS[name]
    ((key, value),) = vector["inputs"].items()
    data = data_of(vector)
    if key == "layout":
        assert int.from_bytes(data, "big", signed=True) == value
        return
    assert decode_number(data, name) == value
    assert str(value).encode() == data


def test_nodes_of_a_new_stream() -> None:
    """As Java makes them."""
    nodes = {node["path"]: data_of(node) for node in VECTORS["capture.basic.created"]["znodes"]}
    paths = StreamPaths("", "basic")
    assert {paths.stream: b"", **dict(paths.created())} == nodes


STRICTER_NAMES = {
    "": "it is empty",  # Java fails with an index error
    "/": "it is empty",  # Java takes it for an empty name
}


@pytest.mark.parametrize("name", named(r"stream_name\.validation"))
def test_names_of_streams(name: str) -> None:
    for case in VECTORS[name]["cases"]:
        if case["name"] in STRICTER_NAMES or case["result"].startswith("ERROR"):
            with pytest.raises(UsageError, match="cannot be the name of a stream") as caught:
                stream_name(case["name"])
            assert STRICTER_NAMES.get(case["name"], "") in str(caught.value)
        else:
            assert stream_name(case["name"]) == case["result"]


@pytest.mark.parametrize("name", named(r"namespace_uri\.normalisation"))
def test_namespace_uris(name: str) -> None:
    for case in VECTORS[name]["cases"]:
        if case["result"].startswith("ERROR"):
            with pytest.raises(MetadataURIError, match="not the URI of a namespace"):
                NamespaceURI.parse(case["uri"])
        else:
            assert str(NamespaceURI.parse(case["uri"])) == case["result"]


@pytest.mark.parametrize("name", named(r"javabehaviour"))
def test_the_longest_record(name: str) -> None:
    results = VECTORS[name]["results"]
    assert f"size.max_payload_{MAX_PAYLOAD_BYTES}" in results
    assert results["size.plus_one"].endswith(f"only {MAX_RECORD_BYTES} is allowed")
    assert MAX_PAYLOAD_BYTES + HEAD_BYTES == MAX_RECORD_BYTES


def test_every_vector_has_a_test() -> None:
    assert test_stream_captures.READS  # importing it has registered its vectors
    assert set(VECTORS) - TESTED == set()
