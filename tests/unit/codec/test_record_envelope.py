"""The bytes of record envelopes, and what is no envelope."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.codec.distributedlog.limits import LaterStreamFormatError, StreamFormatError
from quire.codec.distributedlog.record import (
    HEAD,
    RecordFlag,
    decode_entry,
    encode_record,
    encode_records,
)
from quire.codec.distributedlog.record_envelope import (
    ENVELOPE_FLAG,
    HEADER_NAME_BYTES_MAX,
    HEADERS_MAX,
    MAGIC,
    decode_envelope,
    encode_envelope,
)
from quire.errors import UsageError
from tests.support.stream_vectors import encode_record_set

GOLDEN = Path(__file__).parents[2] / "golden" / "record-envelope.json"
VECTORS: dict[str, dict[str, Any]] = {
    one["name"]: one for one in json.loads(GOLDEN.read_text(encoding="utf-8"))["vectors"]
}
VALID = [name for name, one in VECTORS.items() if "refused" not in one]
REFUSED = [name for name, one in VECTORS.items() if "refused" in one]


@pytest.mark.parametrize("name", VALID)
def test_envelopes_equal_their_golden_bytes_in_both_directions(name: str) -> None:
    """Each envelope is checked alone and as a record of an entry."""
    vector = VECTORS[name]
    payload, value = bytes.fromhex(vector["payload"]), bytes.fromhex(vector["value"])
    key = None if vector["key"] is None else bytes.fromhex(vector["key"])
    headers = {header: bytes.fromhex(one) for header, one in vector["headers"]}
    assert encode_envelope(value, key, headers, vector["event_time_us"]) == payload
    found = decode_envelope(b"before" + payload + b"after", 6, 6 + len(payload))
    assert found[:3] == (key, headers, vector["event_time_us"])
    assert list(found.headers) == [header for header, _ in vector["headers"]]
    assert payload[found.value_start - 6 :] == value

    record = bytes.fromhex(vector["record"])
    parts, size = encode_records([payload], [vector["txid"]], vector["position"], b"\1")
    assert b"".join(parts) == record
    assert size == len(record)
    records = decode_entry(record, False)
    assert (records.flags, records.envelopes, records.payloads()) == (b"\0", b"\1", [payload])
    assert (list(records.positions), list(records.txids)) == (
        [vector["position"]], [vector["txid"]],
    )  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_damaged_envelopes_and_those_of_later_versions_are_refused_as_such(name: str) -> None:
    """A later version is never reported as damage, and damage never as a later version."""
    vector = VECTORS[name]
    with pytest.raises(StreamFormatError) as refused:
        decode_envelope(bytes.fromhex(vector["payload"]))
    later = isinstance(refused.value, LaterStreamFormatError)
    assert later == (vector["refused"] == "later"), str(refused.value)
    assert ("written by a later version" in str(refused.value)) == later
    assert ("is damaged: " in str(refused.value)) != later


# -- which records have an envelope ---------------------------------------------------------------

ENVELOPE = encode_envelope(b"v", b"k")


def entry_of(*records: tuple[int, bytes]) -> bytes:
    """Return an entry of records with these flags and payloads."""
    return b"".join(
        HEAD.pack(at << 16 | flags, 5, len(payload)) + payload
        for at, (flags, payload) in enumerate(records, 1)
    )


@pytest.mark.parametrize(
    ("flags", "payload", "has_one"),
    [
        (ENVELOPE_FLAG, ENVELOPE, True),
        (0, ENVELOPE, False),
        (0, MAGIC, False),
        (ENVELOPE_FLAG, b"foreign", False),
        (ENVELOPE_FLAG, b"", False),
        (ENVELOPE_FLAG, MAGIC[:3], False),
        (ENVELOPE_FLAG, MAGIC, True),
        (1 << 14 | 0xFF8 | ENVELOPE_FLAG, ENVELOPE, True),
        (1 << 14 | 0xFF8, ENVELOPE, False),
    ],
)
def test_a_payload_is_an_envelope_only_with_both_flag_and_magic(
    flags: int, payload: bytes, has_one: bool
) -> None:
    """Neither alone is enough, whatever a user's payload begins with and other flags say."""
    for plain in (0, 1, 20):
        around = [(0, b"plain")] * plain
        found = decode_entry(entry_of(*around, (flags, payload), *around), False)
        assert found.flags == bytes(2 * plain + 1)
        assert found.payloads() == [b"plain"] * plain + [payload] + [b"plain"] * plain
        wanted = bytes(plain) + b"\1" + bytes(plain) if has_one else b""
        assert found.envelopes == wanted
        assert found.part(0, plain).envelopes == b""
        assert found.part(plain, plain + 1).envelopes == (b"\1" if has_one else b"")


def test_control_records_and_members_of_sets_have_no_envelopes() -> None:
    members = encode_record_set([ENVELOPE, b"b"])
    entry = entry_of(
        (RecordFlag.CONTROL | ENVELOPE_FLAG, ENVELOPE),
        (RecordFlag.RECORD_SET | ENVELOPE_FLAG, members),
        (ENVELOPE_FLAG, ENVELOPE),
        (RecordFlag.END_OF_STREAM | ENVELOPE_FLAG, ENVELOPE),
    )
    found = decode_entry(entry, False)
    assert (found.flags, found.envelopes) == (b"\1\0\0\0\2", b"\0\0\0\1\0")
    assert found.users().envelopes == b"\0\0\1"


def test_plain_records_are_encoded_as_before_envelopes_existed() -> None:
    parts, _ = encode_records([b"a", MAGIC], [1, 2], 7)
    assert b"".join(parts) == encode_record(7, 1, b"a") + encode_record(8, 2, MAGIC)
    assert encode_records([b"a", MAGIC], [1, 2], 7, b"\0\0")[0] == parts
    mixed, _ = encode_records([b"a", ENVELOPE, b"b"], [1, 2, 3], 7, b"\0\1")
    assert b"".join(mixed) == (
        encode_record(7, 1, b"a")
        + encode_record(8, 2, ENVELOPE, ENVELOPE_FLAG)
        + encode_record(9, 3, b"b")
    )


# -- limits ---------------------------------------------------------------------------------------


def test_keys_and_headers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"has 65,536 headers, but at most 65,535 fit"):
        encode_envelope(b"", None, {str(n): b"" for n in range(HEADERS_MAX + 1)})
    with pytest.raises(UsageError, match=r"has 65,536 bytes, but at most 65,535"):
        encode_envelope(b"", None, {"n" * (HEADER_NAME_BYTES_MAX + 1): b""})
    with pytest.raises(UsageError, match=r"'\\ud800' of a record cannot be encoded in UTF-8"):
        encode_envelope(b"", None, {"\ud800": b""})
    with pytest.raises(UsageError, match="must be in the years 1 to 9999"):
        encode_envelope(b"", None, None, 2**62)
    most = {str(n): b"" for n in range(HEADERS_MAX)}
    most["n" * HEADER_NAME_BYTES_MAX] = most.pop("0")
    assert decode_envelope(encode_envelope(b"", None, most)).headers == most
