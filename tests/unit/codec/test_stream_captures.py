"""Whole streams of the golden vectors: written by Apache's library in a cluster, or byte by byte by
a program and then read by Apache's library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from quire.codec.distributedlog import dlsn as positions
from quire.codec.distributedlog.binding import AccessRights, NamespaceBinding
from quire.codec.distributedlog.compression import Compression
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.envelope import wrap
from quire.codec.distributedlog.lock import LockMember, lock_member_prefix
from quire.codec.distributedlog.name import decode_number, is_reserved, stream_name
from quire.codec.distributedlog.record import (
    CONTROL_PAYLOAD,
    END_OF_STREAM_PAYLOAD,
    RecordFlag,
    decode_entry,
    encode_record,
)
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from tests.support.stream_vectors import TESTED, VECTORS, data_of, named

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
        assert AccessRights.from_bytes(data) == AccessRights(deny_write=True)
    elif path.endswith("<default>/version"):
        assert data == b"\xff\xff\xff\xff"
    else:
        return not data
    return True


@pytest.mark.parametrize("name", named(r"capture\..*"))
def test_captured_nodes(name: str) -> None:
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
def test_captured_entries(name: str) -> None:
    """Encoded again they are the same, but for the compression."""
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
"""To the sequence id that the last of their segments begins with."""


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
    # what was read: nodes, ledgers, first position, records left out at the front
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
def test_what_java_read(name: str) -> None:
    nodes, ledgers, start, left_out = READS[name]
    segments = segments_of(VECTORS[f"capture.{nodes}"]["znodes"])
    stored = captured_ledgers(*ledgers)
    segments = [segment for segment in segments if segment.ledger_id in stored]
    expected = [x for x in VECTORS[f"javaread.{name}"]["records"] if x != "timeout"]
    assert list(read(segments, stored, start))[left_out:] == expected


TESTED.update(f"javaread.{name}" for name in READS)


def test_what_java_read_while_the_segment_was_open() -> None:
    (name,) = named(r"javaread\.basic\.read_while_open")
    capture = "capture.basic.segment1_inprogress"
    segments = segments_of(VECTORS[capture]["znodes"])
    seen = list(read(segments, captured_ledgers(capture, confirmed=True)))
    assert seen == VECTORS[name]["records"]


def test_sequence_ids_go_on_behind_what_was_purged() -> None:
    (name,) = named(r"javaread\.purge\.read_initial")
    (kept,) = segments_of(VECTORS["capture.purge.after"]["znodes"])
    read_ids = [(r["dlsn"][0], r["position"], r["sequenceId"]) for r in VECTORS[name]["records"]]
    assert read_ids == [(kept.lssn, p, kept.sequence_id(p)) for p in (1, 2)]
    assert kept.record_count == len(read_ids)
    _, following = segments_of(VECTORS["capture.purge.after_write"]["znodes"])
    assert following.start_sequence_id == kept.following_sequence_id


TESTED.update(named(r"javaread\.(basic\.read_while_open|purge\.read_initial)"))


@pytest.mark.parametrize("name", named(r"pythonwritten\..*"))
def test_what_java_made_of_streams_that_were_not_its_own(name: str) -> None:
    """Java's reader saw what is decoded here; a gap or a wrong password ended it."""
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
