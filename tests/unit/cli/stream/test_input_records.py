"""The records that `quire stream write` makes of lines."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta, timezone

import pytest

from quire.cli.stream.input_records import InputRecords, LineFormat, LineParser
from quire.codec.distributedlog.record import MAX_PAYLOAD_BYTES

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def parsed(form: LineFormat, *lines: bytes) -> InputRecords:
    parser = LineParser(form)
    found = parser.records(lines)
    assert parser.refused is None
    return found


def test_plain_lines_become_values() -> None:
    found = parsed(LineFormat(), b"a:b", b"")
    assert found.part(0, 2) == {"payloads": [b"a:b", b""]}
    assert parsed(LineFormat(base64=True), b"YQ==").part(0, 1) == {"payloads": [b"a"]}


def test_separator_key_and_headers_apply_to_every_line() -> None:
    found = parsed(
        LineFormat(separator=b"::", key="k", headers={"h": "1"}), b"a::b::c", b"d", b"::"
    )
    assert found.part(0, 3) == {
        "payloads": [b"b::c", b"d", b""],
        "keys": [b"a", "k", b""],
        "headers": [{"h": "1"}] * 3,
        "event_times": [None] * 3,
    }
    found = parsed(LineFormat(base64=True, separator=b":"), b"YQ==:Yg==", b"Yg==")
    assert (found.keys, found.values) == ([b"a", None], [b"b", b"b"])


def test_json_lines_become_records() -> None:
    lines = [
        {"value": "dg=="},
        {"position": "1:0:0", "txid": 7, "sequence": 0, "value": "", "key": None, "headers": None},
        {"value": "dg==", "key": "aw==", "headers": {"a": "MQ=="}, "event_time": None},
        {"partition": 2, "value": "dg==", "event_time": "2026-01-31T13:00:00+01:00"},
    ]
    form = LineFormat(json=True, key="all", headers={"a": "0", "b": "0"})
    found = parsed(form, *[json.dumps(line).encode() for line in lines])
    assert found.values == [b"v", b"", b"v", b"v"]
    assert found.keys == ["all", "all", b"k", "all"]
    assert found.headers[0] == {"a": "0", "b": "0"}
    assert found.headers[2] == {"a": b"1", "b": "0"}
    assert found.event_times == [None, None, None, NOON.astimezone(timezone(timedelta(hours=1)))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "is not a JSON object"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "is not a JSON object"),
        (b'{"gap": "lost"}', "is not a record, but tells of a gap"),
        (b"{}", "has no field 'value'"),
        (b'{"value": "dg==", "kye": ""}', "has the field 'kye', which a record does not have"),
        (b'{"value": null}', "has the field 'value', but it is not a text in Base64"),
        (b'{"value": "?"}', "has the field 'value', but it is not Base64"),
        (b'{"value": "", "headers": []}', "'headers', but it is not a JSON object"),
        (b'{"value": "", "headers": {"a": 1}}', "'headers.a', but it is not a text in Base64"),
        (b'{"value": "", "event_time": "2026-01-31T12:00"}', "must be a time with a zone"),
        (b'{"value": "", "event_time": 7}', "must be a time with a zone"),
        (b'{"value": "", "event_time": "0001-01-01T00:00:00+01:00"}', "in the years 1 to 9999"),
        (b'{"value": "", "headers": {"\\ud800": ""}}', "cannot be encoded in UTF-8"),
        (json.dumps({"value": "", "headers": {"n" * 70_000: ""}}).encode(), "a header name of a"),
        (
            json.dumps({"value": "", "headers": {str(at): "" for at in range(70_000)}}).encode(),
            "has 70,000 headers",
        ),
        (json.dumps({"value": "A" * 1_600_000}).encode(), "makes a record of 1,200,0"),
    ],
)
def test_lines_before_a_bad_line_become_records(line: bytes, message: str) -> None:
    parser = LineParser(LineFormat(json=True))
    parser.records([b'{"value": ""}'])
    found = parser.records([b'{"value": "dg=="}', line, b'{"value": ""}'])
    assert found.values == [b"v"]
    assert len(found.keys) == len(found.headers) == len(found.event_times) == 1
    assert parser.refused is not None
    assert str(parser.refused).startswith("line 3 of the input ")
    assert message in str(parser.refused)


def test_a_record_that_is_too_large_with_its_key_is_refused_by_itself() -> None:
    """The stream refused it with all lines that were appended together, and named none of them."""
    long = b"v" * MAX_PAYLOAD_BYTES
    for form, line in (
        (LineFormat(separator=b":"), b"k:" + long[:-2]),
        (LineFormat(key="k"), long),
        (LineFormat(headers={"h": "1"}), long),
        (LineFormat(headers={"h": "1" * MAX_PAYLOAD_BYTES}), b"v"),
        (LineFormat(base64=True), b64encode(long + b"v")),
    ):
        parser = LineParser(form)
        found = parser.records([b"YQ==", line, b"YQ=="])
        assert len(found.values) == (0 if len(line) == 1 else 1)
        assert str(parser.refused).startswith(f"line {len(found.values) + 1} of the input makes a")
    assert parsed(LineFormat(base64=True), b64encode(long)).values == [long]
    assert len(parsed(LineFormat(key="k"), b"v", long[:-100]).values) == 2
