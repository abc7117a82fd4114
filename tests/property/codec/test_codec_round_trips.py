"""Codecs without other property tests decode what they encoded and refuse invalid bytes.

The others are v2 frames and entries in test_frames, the log's formats in test_log_format, and v3
adds and lists of entries in tests/unit/codec/test_wire_v3.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import AddEncoder, BadEntryError, EntryCodec
from quire.codec.metadata import cookie, layout, ledger_metadata_format, ledger_path, registration
from quire.codec.metadata.cookie import Cookie
from quire.codec.metadata.formats_pb2 import CookieFormat
from quire.codec.metadata.layout import Layout
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.protobuf_text import TextError, parse_text, write_text
from quire.codec.metadata.registration import BookieServiceInfo, Endpoint
from quire.codec.protobuf_wire import WireError, decode_varint, encode_varint, int64
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.certificate import is_authorized, roles_of
from quire.codec.wire.messages_pb2 import AddRequest, ReadRequest
from quire.codec.wire.v2 import Code, Flag
from quire.codec.wire.v3_adds import DeferredAddEncoder
from quire.errors import CookieError, MetadataError, UsageError

I64 = st.integers(-(2**63), 2**63 - 1)
U63 = st.integers(0, 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TXN = U63
DIGESTS = st.sampled_from(DigestType)
KEYS = st.binary(min_size=20, max_size=20)
BODIES = st.binary(max_size=80)
PAYLOADS = st.lists(BODIES, min_size=1, max_size=8)
PASSWORDS = st.binary(max_size=10)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CODES = st.sampled_from(Code)


# -- protobuf ---------------------------------------------------------------------------------


@given(I64 | U64, BODIES)
def test_numbers_round_trip(value: int, behind: bytes) -> None:
    data = encode_varint(value)
    found, end = decode_varint(data + behind, 0)
    assert (found, end) == (value % 2**64, len(data))
    if value < 2**63:
        assert int64(found) == value
    with pytest.raises(WireError):
        decode_varint(data[:-1], 0)


@given(TEXT)
def test_texts_round_trip(value: str) -> None:
    written = write_text(CookieFormat(bookieHost=value))
    assert written.isascii()
    assert parse_text(written, CookieFormat()).bookieHost == value


@given(st.binary(max_size=60))
def test_bytes_that_are_not_a_message_are_refused(data: bytes) -> None:
    try:
        parse_text(data, CookieFormat())
    except TextError:
        pass  # Anything else is a bug.


# -- protocol v2 ------------------------------------------------------------------------------


@given(KEYS, U63, U63, I64, U63, DIGESTS, PASSWORDS, PAYLOADS, st.sampled_from(list(Flag)))
def test_add_frames_round_trip(
    key: bytes, ledger: int, first: int, lac: int, length: int,
    digest: DigestType, password: bytes, payloads: list[bytes], flag: Flag,
) -> None:  # fmt: skip
    assume(first + len(payloads) < 2**63 and length + sum(map(len, payloads)) < 2**63)
    codec = EntryCodec(ledger, digest, password)
    pieces, after = AddEncoder(codec, key, flag).parts(first, lac, length, payloads)
    stream = b"".join(pieces)
    assert after == length + sum(map(len, payloads))
    bounds = frames.frame_bounds(stream)
    assert len(bounds) == len(payloads)
    for number, ((begin, end), payload) in enumerate(zip(bounds, payloads, strict=True)):
        frame, entry_id = stream[begin:end], first + number
        length += len(payload)
        assert frame == frames.add_request(
            key, codec.pack(entry_id, lac, length, payload), flag
        )  # fmt: skip
        size, word, found_key, found_ledger, found_entry = frames.ADD_HEAD.unpack_from(frame)
        assert (size + 4, found_key, found_ledger) == (len(frame), key, ledger)
        assert frames.split_word(word) == (2, frames.Opcode.ADD, flag)
        assert found_entry == entry_id
        entry = codec.unpack(frame[frames.FRAME_HEADER_BYTES :], entry_id)
        assert (entry.payload, entry.ledger_length) == (payload, length)


@given(st.integers(0, 3), st.integers(0, 255), st.integers(0, 2**16 - 1))
def test_header_words_round_trip(version: int, opcode: int, flags: int) -> None:
    word = frames.header_word(opcode, flags, version)
    assert frames.split_word(word) == (version, opcode, flags if version else 0)


@given(I64, I64, st.sampled_from([0, Flag.DO_FENCING]), KEYS)
def test_read_frames_round_trip(ledger: int, entry: int, flags: int, key: bytes) -> None:
    frame = frames.read_request(ledger, entry, flags, key)
    size, word, *found = frames.READ_REQUEST.unpack_from(frame)
    assert (size + 4, found) == (len(frame), [ledger, entry])
    assert frames.split_word(word) == (2, frames.Opcode.READ, flags)
    assert frame[frames.READ_REQUEST.size :] == (key if flags else b"")


@given(I64, I64, I64, I32, I64, st.sampled_from([0, Flag.DO_FENCING]), KEYS)
def test_batch_read_frames_round_trip(
    ledger: int, first: int, request: int, count: int, size: int, flags: int, key: bytes
) -> None:
    frame = frames.batch_read_request(ledger, first, request, count, size, flags, key)
    length, word, *found = frames.BATCH_READ_REQUEST.unpack_from(frame)
    assert (length + 4, found) == (len(frame), [ledger, first, request, count, size])
    assert frames.split_word(word) == (2, frames.Opcode.BATCH_READ, flags)
    assert frame[frames.BATCH_READ_REQUEST.size :] == (key if flags else b"")


@given(CODES, I64, I64, BODIES)
def test_answers_round_trip(code: Code, ledger: int, entry: int, body: bytes) -> None:
    for frame, opcode in (
        (frames.add_response(code, ledger, entry) + b"", frames.Opcode.ADD),
        (frames.read_response(code, ledger, entry, body), frames.Opcode.READ),
    ):
        size, word, *found = frames.RESPONSE.unpack_from(frame)
        assert (size + 4, found) == (len(frame), [code, ledger, entry])
        assert frames.split_word(word) == (2, opcode, 0)
        assert frame[frames.RESPONSE.size :] == (body if opcode == frames.Opcode.READ else b"")


@given(CODES, I64, I64, I64, st.lists(BODIES, max_size=6))
def test_batch_answers_round_trip(
    code: Code, ledger: int, first: int, request: int, entries: list[bytes]
) -> None:
    frame = frames.batch_read_response(code, ledger, first, request, entries)
    size, word, *found = frames.BATCH_RESPONSE.unpack_from(frame)
    assert frames.split_word(word) == (2, frames.Opcode.BATCH_READ, 0)
    assert (size + 4, found) == (len(frame), [code, ledger, first, request])
    body = frame[frames.BATCH_RESPONSE.size :]
    assert [body[begin + 4 : end] for begin, end in frames.frame_bounds(body)] == entries
    assert sum(map(len, entries)) + 4 * len(entries) == len(body)


# -- protocol v3 ------------------------------------------------------------------------------


def request_of(frame: bytes) -> v3.Request:
    ((begin, end),) = frames.frame_bounds(frame)
    assert (begin, end) == (0, len(frame))
    assert frame[4] == v3.FIRST_BYTE
    return v3.parse_request(memoryview(frame)[4:])


@given(TXN, KEYS, BODIES, I64, I64, st.booleans(), st.booleans())
def test_v3_adds_round_trip(
    txn: int, key: bytes, body: bytes, ledger: int, entry: int, recovery: bool, deferred: bool
) -> None:
    found = request_of(
        v3.add_request(txn, key, body, ledger, entry, recovery=recovery, deferred_sync=deferred)
    )
    add = found.addRequest
    assert (found.header.txnId, found.header.operation) == (txn, v3.Op.ADD)
    assert (add.ledgerId, add.entryId, add.masterKey, add.body) == (ledger, entry, key, body)
    assert (add.HasField("flag") and add.flag == AddRequest.RECOVERY_ADD) is recovery
    assert add.writeFlags == (v3.DEFERRED_SYNC if deferred else 0)
    assert found.header.priority == (v3.HIGH_PRIORITY if recovery else 0)


@given(U63, U63, I64, U63, DIGESTS, PASSWORDS, PAYLOADS)
def test_deferred_adds_equal_protobuf_messages(
    ledger: int, first: int, lac: int, length: int,
    digest: DigestType, password: bytes, payloads: list[bytes],
) -> None:  # fmt: skip
    assume(first + len(payloads) < 2**63 and length + sum(map(len, payloads)) < 2**63)
    codec, key = EntryCodec(ledger, digest, password), master_key(password)
    pieces, after = DeferredAddEncoder(codec, key).parts(first, lac, length, payloads)
    stream, expected = b"".join(pieces), []
    for entry, payload in enumerate(payloads, first):
        length += len(payload)
        body = codec.pack(entry, lac, length, payload)
        expected.append(v3.add_request(entry, key, body, ledger, entry, deferred_sync=True))
    assert after == length
    found = [request_of(stream[begin:end]) for begin, end in frames.frame_bounds(stream)]
    assert found == [request_of(frame) for frame in expected]


@given(TXN, I64, I64, st.none() | KEYS)
def test_v3_reads_round_trip(txn: int, ledger: int, entry: int, key: bytes | None) -> None:
    found = request_of(v3.read_request(txn, ledger, entry, fence_with=key))
    read = found.readRequest
    assert (found.header.txnId, found.header.operation) == (txn, v3.Op.READ)
    assert (read.ledgerId, read.entryId, read.masterKey) == (ledger, entry, key or b"")
    assert (read.HasField("flag") and read.flag == ReadRequest.FENCE_LEDGER) is (key is not None)


@given(TXN, I64, I64, U63, st.booleans())
def test_v3_long_polls_round_trip(
    txn: int, ledger: int, lac: int, timeout: int, last: bool
) -> None:
    read = request_of(v3.long_poll_request(txn, ledger, lac, timeout, last_entry=last)).readRequest
    assert (read.ledgerId, read.entryId, read.previousLAC) == (ledger, -1, lac)
    assert read.timeOut == timeout
    assert (read.HasField("flag") and read.flag == ReadRequest.ENTRY_PIGGYBACK) is not last


@given(TXN, I64, I64, KEYS, BODIES)
def test_v3_lacs_round_trip(txn: int, ledger: int, lac: int, key: bytes, packet: bytes) -> None:
    write = request_of(v3.write_lac_request(txn, ledger, lac, key, packet)).writeLacRequest
    found = (write.ledgerId, write.lac, write.masterKey, write.body)
    assert found == (ledger, lac, key, packet)


@given(TXN, I64, st.integers(0, 3), TEXT, BODIES)
def test_v3_control_requests_round_trip(
    txn: int, ledger: int, requested: int, plugin: str, token: bytes
) -> None:
    for frame, op, part in (
        (v3.read_lac_request(txn, ledger), v3.Op.READ_LAC, "readLacRequest"),
        (v3.force_request(txn, ledger), v3.Op.FORCE, "forceLedgerRequest"),
        (
            v3.list_entries_request(txn, ledger),
            v3.Op.LIST_ENTRIES,
            "getListOfEntriesOfLedgerRequest",
        ),
    ):
        found = request_of(frame)
        assert (found.header.txnId, found.header.operation) == (txn, op)
        assert getattr(found, part).ledgerId == ledger
    info = request_of(v3.bookie_info_request(txn, requested))
    assert (info.header.operation, info.getBookieInfoRequest.requested) == (
        v3.Op.BOOKIE_INFO, requested,
    )  # fmt: skip
    auth = request_of(v3.auth_request(txn, plugin, token)).authRequest
    assert (auth.authPluginName, auth.payload) == (plugin, token)
    assert request_of(v3.start_tls_request(txn)).HasField("startTLSRequest")


@given(st.sampled_from(v3.Op), TXN, CODES, I64, I64, BODIES)
def test_v3_answers_round_trip(
    op: v3.Op, txn: int, code: Code, ledger: int, entry: int, body: bytes
) -> None:
    answer = v3.response(op, txn, code)
    answer.readResponse.status = answer.status
    answer.readResponse.ledgerId, answer.readResponse.entryId = ledger, entry
    answer.readResponse.body = body
    found = v3.parse_response(memoryview(v3.frame(answer))[4:])
    assert found == answer
    assert (found.header.operation, found.header.txnId) == (op, txn)
    assert v3.status_of(found, found.readResponse.status) == code
    assert found.readResponse.body == body


@given(st.binary(max_size=80))
def test_bytes_that_are_not_a_v3_message_are_refused(data: bytes) -> None:
    for parse in (v3.parse_request, v3.parse_response):
        try:
            parse(data)
        except v3.BadMessageError:
            pass


# -- LAC packets ------------------------------------------------------------------------------


@given(DIGESTS, PASSWORDS, U63, I64, BODIES)
def test_lac_packets_round_trip(
    digest: DigestType, password: bytes, ledger: int, lac: int, behind: bytes
) -> None:
    codec = EntryCodec(ledger, digest, password)
    assert codec.unpack_lac(codec.pack_lac(lac) + behind) == lac
    with pytest.raises(BadEntryError):
        EntryCodec(ledger ^ 1, digest, password).unpack_lac(codec.pack_lac(lac))


# -- ledger metadata --------------------------------------------------------------------------

IDS = st.from_regex(r"[a-z]{1,8}:[0-9]{1,5}", fullmatch=True)


@st.composite
def metadatas(draw: st.DrawFn, version: int) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 4))
    write = draw(st.integers(1, ensemble))
    ack = write if version == 1 else draw(st.integers(1, write))
    members = st.lists(IDS, min_size=ensemble, max_size=ensemble).map(tuple)
    firsts = sorted(draw(st.sets(U63, min_size=1, max_size=4)))
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    plain = LedgerMetadata(
        ensemble, write, ack,
        tuple(Segment(first, draw(members)) for first in firsts),
        state=state,
        last_entry_id=draw(st.integers(-1, 2**63 - 1)) if closed else -1,
        length=draw(U63) if closed else 0,
        digest=None,
        password=None,
        format_version=version,
    )  # fmt: skip
    if version == 1:
        return plain
    if draw(st.booleans()):
        plain = replace(plain, digest=draw(DIGESTS), password=draw(st.binary(max_size=20)))
    stored = draw(st.booleans())
    return replace(
        plain,
        custom=draw(st.dictionaries(TEXT, BODIES, max_size=3)),
        ctime_stored=stored,
        ctime_ms=draw(U63) if stored else -1,
        ctoken=draw(I64) if version == 3 else 0,
    )


@pytest.mark.parametrize("version", [1, 2, 3])
@given(data=st.data())
def test_ledger_metadata_round_trips(version: int, data: st.DataObject) -> None:
    metadata = data.draw(metadatas(version))
    stored = ledger_metadata_format.encode(metadata)
    assert stored.startswith(b"BookieMetadataFormatVersion\t%d\n" % version)
    assert ledger_metadata_format.decode(stored) == metadata
    # The time of the node counts where the bytes have none; format 1 knows of no time.
    aged = ledger_metadata_format.decode(stored, node_ctime_ms=77)
    known = metadata.ctime_ms if metadata.ctime_stored or version == 1 else 77
    assert aged == replace(metadata, ctime_ms=known)


@pytest.mark.parametrize("version", [1, 2, 3])
@given(data=st.data())
def test_damaged_ledger_metadata_raises_no_other_error(version: int, data: st.DataObject) -> None:
    """The metadata is refused or read as other metadata, with no other error."""
    stored = bytearray(ledger_metadata_format.encode(data.draw(metadatas(version))))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = ledger_metadata_format.decode(bytes(stored))
    except MetadataError:
        return
    assert isinstance(found, LedgerMetadata)


# -- cookies, registrations, layouts, paths ---------------------------------------------------

DIRECTORIES = st.lists(TEXT.map(lambda text: text.replace("\t", "")), min_size=1, max_size=3)


@given(TEXT, DIRECTORIES, DIRECTORIES, st.none() | TEXT, st.none() | DIRECTORIES)
def test_cookies_round_trip(
    bookie: str, journals: list[str], ledgers: list[str],
    instance: str | None, indexes: list[str] | None,
) -> None:  # fmt: skip
    made = Cookie.of(bookie, journals, ledgers, instance, indexes)
    found = cookie.decode(cookie.encode(made))
    assert found == made
    assert cookie.split_directories(found.ledger_dirs) == tuple(ledgers)
    assert not cookie.differences(made, found)
    [other] = cookie.differences(replace(made, bookie_id=bookie + "x"), found)
    assert other.field == "bookie id"
    more = Cookie.of(bookie, journals, [*ledgers, "more"], instance, indexes)
    assert "ledger directories" in [one.field for one in cookie.differences(more, found)]


@given(st.binary(max_size=60) | st.integers(0, 9).map(lambda n: b"%d\nbookieHost: 3" % n))
def test_bytes_that_are_not_a_cookie_are_refused(data: bytes) -> None:
    try:
        cookie.decode(data)
    except CookieError:
        pass


ENDPOINTS = st.builds(
    Endpoint, TEXT, TEXT, I32, TEXT,
    st.lists(TEXT, max_size=2).map(tuple), st.lists(TEXT, max_size=2).map(tuple),
)  # fmt: skip


@given(st.lists(ENDPOINTS, min_size=1, max_size=3).map(tuple), st.dictionaries(TEXT, TEXT))
def test_registrations_round_trip(
    endpoints: tuple[Endpoint, ...], properties: dict[str, str]
) -> None:
    made = BookieServiceInfo(endpoints, properties)
    assert registration.decode(registration.encode(made), "any") == made


@given(st.binary(max_size=60), TEXT)
def test_bytes_that_are_not_a_registration_are_refused(data: bytes, bookie: str) -> None:
    try:
        registration.decode(data, bookie)
    except MetadataError:
        pass


@given(st.from_regex(r"[A-Za-z.]{1,20}", fullmatch=True), st.integers(0, 10**6), st.integers(1, 2))
def test_layouts_round_trip(factory: str, manager_version: int, format_version: int) -> None:
    made = Layout(factory, manager_version, format_version)
    assert layout.decode(layout.encode(made)) == made


@given(st.binary(max_size=30))
def test_bytes_that_are_not_a_layout_are_refused(data: bytes) -> None:
    try:
        layout.decode(data)
    except MetadataError:
        pass


MANAGERS = st.sampled_from(
    [
        ledger_path.HIERARCHICAL, ledger_path.LONG_HIERARCHICAL, ledger_path.LEGACY_HIERARCHICAL,
        ledger_path.FLAT,
    ]
)  # fmt: skip


@given(MANAGERS, U63 | st.integers(0, 2**32), TEXT)
def test_ledger_paths_round_trip(
    manager: ledger_path.LedgerManager, ledger: int, other: str
) -> None:
    if ledger > manager.id_max:
        with pytest.raises(UsageError, match=r"cannot store ledger.*Use a smaller id"):
            manager.path_of(ledger)
        return
    path = manager.path_of(ledger)
    assert manager.ledger_id_of(path) == ledger
    if manager.trees:
        assert ledger_path.leaf_digits(path.rpartition("/")[2]) == ledger % 10_000
    else:
        assert ledger_path.is_flat_name(path)
    try:
        assert manager.path_of(manager.ledger_id_of(other)) == other
    except MetadataError:
        pass


@given(st.integers(0, ledger_path.HIGH_ORDER_MAX), st.integers(0, 2**31 - 1))
def test_names_of_sequential_nodes_are_parsed(high: int, low: int) -> None:
    assert ledger_path.high_order_of(ledger_path.high_order_name(high)) == high
    assert ledger_path.sequence_of(f"/ledgers/idgen/ID-{low:010d}") == low
    assert ledger_path.long_id(high, low) == high * 2**32 + low


# -- certificates -----------------------------------------------------------------------------

ROLES = st.lists(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=1, max_size=3)


@given(ROLES, st.lists(st.sampled_from(["1:east", "2:", "nothing", ""]), max_size=2))
def test_roles_of_a_certificate_are_parsed(roles: list[str], others: list[str]) -> None:
    unit = ";".join([*others, f"0: {','.join(roles)}"])
    assert roles_of(unit) == tuple(roles)
    subject = [[("commonName", "x")], [("organizationalUnitName", unit)]]
    assert is_authorized(subject, {roles[0]})
    assert not is_authorized(subject, set(roles) - {roles[0]})
