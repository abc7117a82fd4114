"""The golden vectors of protocol v3 and of lists of entries, made with the Java jars."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.protobuf_wire import decode_varint, encode_varint, int64
from quire.codec.wire import availability, v3
from quire.codec.wire.messages_pb2 import Request, Response
from quire.codec.wire.v2 import Code
from quire.codec.wire.v3_adds import AddStretch, add_responses, stretch_of
from quire.core.ranges import overlapping

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector
    for vector in json.loads((Path(__file__).parents[2] / "golden" / "wire.json").read_text())
}
PASSWORD = b"testPasswd"
KEY = master_key(PASSWORD)
MESSAGES = [name for name in VECTORS if name.startswith("v3_") and "1MiB" not in name]
LISTS = [name for name in VECTORS if name.startswith("availability_")]


def frame_of(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name]["hex"])


def entry(ledger: int, entry_id: int, lac: int, length: int, payload: bytes) -> bytes:
    return EntryCodec(ledger, DigestType.CRC32C, PASSWORD).pack(entry_id, lac, length, payload)


def test_the_number_of_v3_vectors_is_complete() -> None:
    assert len(MESSAGES) == 50
    assert len(LISTS) == 10


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_is_parsed_and_encoded_as_in_java(name: str) -> None:
    data = frame_of(name)
    is_request = "_req" in name
    parse = v3.parse_request if is_request else v3.parse_response
    message: Request | Response = parse(memoryview(data)[4:])
    said: Request | Response = Request() if is_request else Response()
    text_format.Parse(VECTORS[name]["inputs"]["text_format"], said)
    assert message == said
    assert v3.frame(message) == data


def test_an_add_of_one_mebibyte_is_encoded_as_in_java() -> None:
    vector = VECTORS["v3_add_req_1MiB"]
    inputs = vector["inputs"]
    payload = bytes((31 * i + 7) % 256 for i in range(2**20))
    ledger, entry_id = int(inputs["ledger_id"]), int(inputs["entry_id"])
    body = entry(
        ledger, entry_id, int(inputs["last_add_confirmed"]), int(inputs["ledger_length"]), payload
    )
    data = v3.add_request(int(inputs["txn_id"]), KEY, body, ledger, entry_id)
    assert len(data) == vector["length"]
    assert hashlib.sha256(data).hexdigest() == vector["sha256"]


def test_the_requests_of_our_client_equal_those_of_java() -> None:
    body = entry(42, 7, 6, 1011, b"hello world")
    packet = EntryCodec(42, DigestType.CRC32C, PASSWORD).pack_lac(6)
    built = {
        "v3_add_req": lambda txn: v3.add_request(txn, KEY, body, 42, 7),
        "v3_add_req_recovery": lambda txn: v3.add_request(txn, KEY, body, 42, 7, recovery=True),
        "v3_add_req_deferred_sync": lambda txn: v3.add_request(
            txn, KEY, body, 42, 7, deferred_sync=True
        ),
        "v3_read_req": lambda txn: v3.read_request(txn, 42, 7),
        "v3_read_req_lac": lambda txn: v3.read_request(txn, 42, -1),
        "v3_read_req_fence": lambda txn: v3.read_request(txn, 42, -1, fence_with=KEY),
        "v3_longpoll_req_piggyback": lambda txn: v3.long_poll_request(txn, 42, 6, 1000),
        "v3_writelac_req": lambda txn: v3.write_lac_request(txn, 42, 6, KEY, packet),
        "v3_readlac_req": lambda txn: v3.read_lac_request(txn, 42),
        "v3_force_req": lambda txn: v3.force_request(txn, 42),
        "v3_bookieinfo_req_3": lambda txn: v3.bookie_info_request(txn, 3),
        "v3_list_entries_req": lambda txn: v3.list_entries_request(txn, 42),
        "v3_starttls_req": v3.start_tls_request,
    }
    for name, build in built.items():
        data = frame_of(name)
        assert build(v3.parse_request(data[4:]).header.txnId).hex() == data.hex(), name


@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from([Code.OK, Code.FENCED, Code.NO_LEDGER, Code.BAD_REQUEST]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
)
def test_the_answer_to_an_add_equals_what_protobuf_would_write(
    txn: int, code: Code, ledger: int, entry_id: int
) -> None:
    answer = v3.response(v3.Op.ADD, txn, code)
    answer.addResponse.status = answer.status
    answer.addResponse.ledgerId = ledger
    answer.addResponse.entryId = entry_id
    ours = add_responses(
        code, [encode_varint(txn)], encode_varint(ledger), [encode_varint(entry_id)]
    )
    assert ours == v3.frame(answer)


# -- stretches of adds ------------------------------------------------------------------------


def adds_of(
    ledger: int, first: int, txn: int, step: int, count: int, **options: bool
) -> list[bytes]:
    return [
        v3.add_request(
            txn + 3 * k,
            KEY,
            entry(ledger, first + step * k, first - 1, 11, b"hello world"),
            ledger,
            first + step * k,
            **options,
        )
        for k in range(count)
    ]


def number(varint: bytes) -> int:
    value, end = decode_varint(varint, 0)
    assert end == len(varint)
    return value


def assert_means_the_same(stretch: AddStretch, frames: list[bytes]) -> None:
    """Check that each request, parsed as a message, equals its row of the columns."""
    shape = stretch.shape
    for k, data in enumerate(frames):
        request = v3.parse_request(data[4:])
        add = request.addRequest
        assert (request.header.version, request.header.operation) == (3, v3.Op.ADD)
        assert (request.header.priority > 0) == shape.high_priority
        # Compared as numbers: one may be written with zeros in front, and is echoed as it came.
        assert number(stretch.txns[k]) == request.header.txnId
        assert int64(number(shape.ledger)) == add.ledgerId
        assert int64(number(stretch.echoed_entries[k])) == add.entryId
        assert (add.masterKey, add.body) == (shape.key, stretch.bodies[k])
        assert add.HasField("flag") == shape.recovery
        assert add.writeFlags == shape.write_flags
        ids = struct.unpack_from(">qq", add.body)
        assert ids == (stretch.ledger_id, stretch.entry_ids[k])


@given(
    st.integers(0, 2**62),
    st.integers(0, 2**40),
    st.integers(0, 2**63),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)
def test_a_run_of_adds_equals_its_single_messages(
    ledger: int, first: int, txn: int, step: int, recovery: bool, deferred: bool
) -> None:
    frames = adds_of(ledger, first, txn, step, 20, recovery=recovery, deferred_sync=deferred)
    size = len(frames[0])
    same = [data for data in frames if len(data) == size]
    view = memoryview(b"xx" + b"".join(same) + b"behind")
    stretch = stretch_of(view, 2, size, len(same))
    if stretch is None:  # numbers grew a byte here and shrank there: the long way is right too
        assert len({len(encode_varint(v3.parse_request(f[4:]).header.txnId)) for f in same}) > 1
        return
    assert_means_the_same(stretch, same)
    echoed = (stretch.txns, stretch.shape.ledger, stretch.echoed_entries)
    answers = []
    for data in same:
        request = v3.parse_request(data[4:])
        answer = v3.response(v3.Op.ADD, request.header.txnId, Code.FENCED)
        answer.addResponse.status = answer.status
        answer.addResponse.ledgerId = request.addRequest.ledgerId
        answer.addResponse.entryId = request.addRequest.entryId
        answers.append(v3.frame(answer))
    assert add_responses(Code.FENCED, *echoed) == b"".join(answers)


@given(st.integers(0, 6), st.data())
def test_a_run_of_adds_with_one_changed_byte_is_refused_or_still_correct(
    place: int, data: st.DataObject
) -> None:
    """If any byte changes, the batch is refused or still equals the messages."""
    options = data.draw(st.sampled_from([{}, {"recovery": True}, {"deferred_sync": True}]))
    frames = adds_of(300, 200, 70_000, 1, 7, **options)
    size = len(frames[0])
    wrong = bytearray(frames[place])
    wrong[data.draw(st.integers(4, size - 1))] = data.draw(st.integers(0, 255))
    frames[place] = bytes(wrong)
    stretch = stretch_of(memoryview(b"".join(frames)), 0, size, len(frames))
    if stretch is not None:
        assert_means_the_same(stretch, frames)


def test_adds_that_do_not_form_a_run_are_not_taken_as_one() -> None:
    """Several ledgers, descending ids, a context after the request, or another operation."""
    base = adds_of(300, 200, 70_000, 1, 6)
    size = len(base[0])
    others = adds_of(301, 200, 70_000, 1, 6)
    mixed = [base[0], others[1], *base[2:]]
    turned = [base[1], base[0], *base[2:]]
    assert stretch_of(memoryview(b"".join(mixed)), 0, size, 6) is None
    assert stretch_of(memoryview(b"".join(turned)), 0, size, 6) is None
    context = frame_of("v3_add_req_context") * 6
    assert stretch_of(memoryview(context), 0, len(context) // 6, 6) is None
    reads = frame_of("v3_read_req") * 6
    assert stretch_of(memoryview(reads), 0, len(reads) // 6, 6) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x0a\x04\x08\x03\x10\x01",
        b"\x0a\x06\x08\x03\x10\x63\x18\x01",  # operation 99
        b"\x0a\x06\x08\x03\x10\x01\x18\x01\xa2\x06\x02\x08\x01",  # a read without its entry
        b"\x0a\xff",
        bytes(range(64)),
    ],
    ids=["empty", "no transaction", "unknown operation", "a field is missing", "cut", "noise"],
)
def test_invalid_messages_are_refused(payload: bytes) -> None:
    with pytest.raises(v3.BadMessageError):
        v3.parse_request(payload)
    with pytest.raises(v3.BadMessageError):
        v3.parse_response(payload)


def test_status_and_code_tables_are_inverse() -> None:
    assert {v3.CODE_OF[int(status)] for status in v3.STATUS_OF.values()} == set(map(int, Code))
    answer = v3.response(v3.Op.READ, 1, Code.OK)
    assert v3.status_of(answer, v3.STATUS_OF[Code.NO_ENTRY]) == Code.NO_ENTRY
    assert v3.status_of(v3.response(v3.Op.READ, 1, Code.IO_ERROR), 0) == Code.IO_ERROR


# -- lists of entries -------------------------------------------------------------------------


def ranges_of(entries: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for entry_id in sorted(set(entries)):
        if found and entry_id == found[-1][1] + 1:
            found[-1] = (found[-1][0], entry_id)
        else:
            found.append((entry_id, entry_id))
    return found


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_entries_are_encoded_and_decoded_as_in_java(name: str) -> None:
    vector = VECTORS[name]
    if "entries" in vector["inputs"]:
        ranges = ranges_of(vector["inputs"]["entries"])
        assert availability.encode_availability(ranges).hex() == vector["hex"]
    else:
        ranges = ranges_of(vector["inputs"]["decoded_entries"])
    assert availability.decode_availability(frame_of(name)) == ranges


@given(st.sets(st.integers(0, 200)), st.sampled_from([None, 64, 100]))
def test_every_list_of_entries_round_trips(entries: set[int], max_bytes: int | None) -> None:
    ranges = ranges_of(list(entries))
    data = availability.encode_availability(ranges, max_bytes)
    assert availability.decode_availability(data) == ranges


LARGEST = 2**31 - 1  # the largest number in the 32-bit fields of a group
NEAR_LARGEST = st.sampled_from([1, 2, LARGEST - 1, LARGEST, LARGEST + 1, 2 * LARGEST + 1])


@given(
    st.integers(0, 5),
    st.lists(st.tuples(NEAR_LARGEST, NEAR_LARGEST), min_size=1, max_size=5),
    st.sampled_from([None, 64]),
)
def test_lists_with_numbers_near_the_largest_of_a_field_round_trip(
    start: int, runs: list[tuple[int, int]], max_bytes: int | None
) -> None:
    """Each run has a number of entries, and a distance to the next run, near the largest."""
    ranges = []
    for size, gap in runs:
        ranges.append((start, start + size - 1))
        start += size + gap
    data = availability.encode_availability(ranges, max_bytes)
    assert availability.decode_availability(data) == ranges


@pytest.mark.parametrize("distance", range(LARGEST - 2, LARGEST + 3))
def test_sequences_at_any_distance_are_listed(distance: int) -> None:
    ranges = [(at * distance, at * distance) for at in range(4)]
    data = availability.encode_availability(ranges, 64)
    assert availability.decode_availability(data) == ranges
    assert (len(data) == 64 + 24) == (distance <= LARGEST)


def test_the_list_of_a_long_striped_ledger_fits_into_a_frame() -> None:
    ranges = [(start, start + 1) for start in range(0, 3_000_000, 3)]
    assert len(availability.encode_availability(ranges)) > 20_000_000
    assert len(availability.encode_availability(ranges, 5_000_000)) == 64 + 24


def list_of(*groups: tuple[int, int, int, int]) -> bytes:
    packed = (struct.pack(">qqii", *group) for group in groups)
    return struct.pack(">ii56x", 0, len(groups)) + b"".join(packed)


def test_a_list_of_billions_of_ranges_stays_encoded() -> None:
    """A hostile bookie could otherwise exhaust a client's memory, and a striped ledger of a few
    million entries has as many ranges, so such lists cannot be refused either."""
    found = availability.decode_availability(list_of((1, 2**40 - 1, 1, 2), (2**41, 2**41, 4, 0)))
    assert len(found) == 2**39 + 1
    assert (found[0], found[10**9], found[-1]) == ((1, 1), (2 * 10**9 + 1,) * 2, (2**41, 2**41 + 3))
    assert list(found[2**39 - 1 :]) == [(2**40 - 1, 2**40 - 1), (2**41, 2**41 + 3)]
    assert overlapping(found, 1_000_000, 1_000_003) == [(1_000_001,) * 2, (1_000_003,) * 2]
    with pytest.raises(IndexError):
        found[2**39 + 1]


@pytest.mark.parametrize(
    "groups",
    [
        [(0, 2 * availability.RANGES_MAX, 1, 2), (1, 1, 1, 0)],
        [(0, availability.RANGES_MAX, 1, 2)] * 3,
        [(0, 2**62, 1, 2)] * 2,
    ],
    ids=["one too many", "several groups", "billions"],
)
def test_a_short_list_of_too_many_overlapping_ranges_is_refused(
    groups: list[tuple[int, ...]],
) -> None:
    """A hostile bookie could otherwise exhaust a client's memory."""
    with pytest.raises(availability.BadAvailabilityError, match="more than 1,000,000 sequences"):
        availability.decode_availability(list_of(*groups))


@pytest.mark.parametrize(
    "group", [(-1, -1, 1, 0), (-(2**63), 2**63 - 1, 1, 2), (2**63 - 1, 2**63 - 1, 2, 0)]
)
def test_groups_of_impossible_entry_ids_are_refused(group: tuple[int, int, int, int]) -> None:
    with pytest.raises(availability.BadAvailabilityError, match="invalid group"):
        availability.decode_availability(list_of(group))


GROUPS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(1, 5), st.integers(0, 7)),
    max_size=5,
)


@given(GROUPS)
def test_every_list_of_groups_has_the_entries_of_its_groups(
    groups: list[tuple[int, int, int, int]],
) -> None:
    """The groups may touch, overlap, and come in any order."""
    encoded = [(at, at + more if gap else at, size, gap) for at, more, size, gap in groups]
    entries = {
        entry
        for first, last, size, gap in encoded
        for start in range(first, last + 1, gap or 1)
        for entry in range(start, start + size)
    }
    found = availability.decode_availability(list_of(*encoded))
    expected = ranges_of(list(entries))
    assert list(found) == expected == [found[at] for at in range(len(found))]
    for low in range(len(expected)):
        assert list(found[low : low + 3]) == expected[low : low + 3]


def test_adjacent_sequences_are_merged_into_one_range() -> None:
    whole = [(0, 2**40)]
    assert availability.decode_availability(list_of((0, 2**40, 1, 1))) == whole
    assert availability.decode_availability(list_of((0, 2**40 - 3, 4, 4))) == [(0, 2**40 - 1)]
    most = (0, 2 * availability.RANGES_MAX - 4, 1, 2)
    found = availability.decode_availability(list_of(most, (0, 0, 1, 0)))
    assert (len(found), found[-1]) == (availability.RANGES_MAX - 1, (most[1], most[1]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 63,
        b"\x00\x00\x00\x01" + b"\x00" * 60,
        b"\x00\x00\x00\x00\x00\x00\x00\x01" + b"\x00" * 56,
        b"\x00\x00\x00\x00\xff\xff\xff\xff" + b"\x00" * 56,
        b"\x00\x00\x00\x00\x00\x00\x00\x01" + b"\x00" * 80,
    ],
    ids=["empty", "short", "version 1", "a group is missing", "-1 groups", "an empty group"],
)
def test_invalid_lists_of_entries_are_refused(data: bytes) -> None:
    with pytest.raises(availability.BadAvailabilityError):
        availability.decode_availability(data)
