"""The nodes of streams in the metadata store: what is refused, and why."""

from __future__ import annotations

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.lock import NO_NUMBER, LockMember, lock_member_prefix
from quire.codec.distributedlog.name import decode_number, stream_name
from quire.codec.distributedlog.namespace_binding import (
    AccessRights,
    NamespaceBinding,
    NamespaceURI,
)
from quire.codec.distributedlog.segment import StreamSegment, Truncation, parse_segment_name
from quire.errors import LaterMetadataError, MetadataError, MetadataURIError, UsageError

# -- segments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"", b";", b"5", b"5;1;2;3;0;0;-1;", b"5;1;2;3;0;0;+1", b"5;1;2;3;0;0; 1", b"0;1;2;3",
        b"5;1;2;3;0;0;9223372036854775808", b"5;1;2;3;0;0;x", b"\xff", "5;1;2;3;0;0;٣".encode(),
        b"2;1;2;3;4", b"99999999999999999999;1;2;3",
    ],
)  # fmt: skip
def test_invalid_metadata_of_segments_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataError, match="the metadata of a stream segment"):
        StreamSegment.from_bytes(data)


@pytest.mark.parametrize(
    "name",
    ["", "inprogress_", "logrecs_7", "logrecs_000000000000000007x", "lock", "inprogress_xyz"],
)
def test_names_that_are_not_segment_names_are_ignored(name: str) -> None:
    assert parse_segment_name(name) is None


def test_the_segment_number_is_read_from_a_long_old_name() -> None:
    name = f"logrecs_{1000:018d}_{1999:018d}_7_4711_0"
    found = parse_segment_name(name)
    assert found is not None
    assert (found.in_progress, found.lssn) == (False, 7)


def completed(layout: int = 5) -> StreamSegment:
    return StreamSegment(7, 4711, 1000, layout=layout).completed(
        last_txid=1999, record_count=321, last_entry_id=88, last_slot_id=2,
        completion_time_ms=1_700_000_000_123, start_sequence_id=5000,
    )  # fmt: skip


def test_truncation_moves_only_forward() -> None:
    segment = completed()
    first = segment.partially_truncated(DLSN(7, 12, 3))
    assert (first.truncation, first.min_active_dlsn) == (Truncation.PARTIAL, DLSN(7, 12, 3))
    assert first.partially_truncated(DLSN(7, 12, 2)) is first
    assert first.partially_truncated(DLSN(7, 13, 0)).min_active_dlsn == DLSN(7, 13, 0)
    assert first.partially_truncated(DLSN(7, 88, 2)).min_active_dlsn == segment.last_dlsn
    gone = first.truncated()
    assert (gone.truncation, gone.min_active_dlsn) == (Truncation.TRUNCATED, DLSN(7, 12, 3))
    assert gone.partially_truncated(DLSN(7, 13, 0)) is gone
    assert segment.partially_truncated(DLSN(7, 0, 0)) is segment


@pytest.mark.parametrize("at", [DLSN(7, 88, 3), DLSN(6, 0, 0), DLSN(8, 0, 0)])
def test_a_segment_is_truncated_within_itself(at: DLSN) -> None:
    with pytest.raises(UsageError, match="not a position in segment 7"):
        completed().partially_truncated(at)


def test_a_segment_in_progress_is_not_truncated() -> None:
    segment = StreamSegment(7, 4711, 1000)
    with pytest.raises(UsageError, match="still being written"):
        segment.truncated()
    with pytest.raises(UsageError, match="still being written"):
        segment.partially_truncated(DLSN(7, 0, 0))


def test_a_segment_keeps_its_layout() -> None:
    """The layout says whether entries have envelopes, so a wrong layout makes them unreadable."""
    for layout in (2, 3, 4):
        segment = completed(layout)
        assert StreamSegment.from_bytes(segment.truncated().to_bytes()) == segment.truncated()
        assert segment.truncated().enveloped == (layout == 4)
    assert completed(3).partially_truncated(DLSN(7, 1, 0)).layout == 3
    with pytest.raises(UsageError, match="layout 2, which cannot store"):
        completed(2).partially_truncated(DLSN(7, 1, 0))
    with pytest.raises(UsageError, match="layout 1, which cannot store"):
        completed(1).truncated()


def test_the_lost_bit_is_kept_by_a_truncation() -> None:
    head = 5 | 0b100 << 8 | 1 << 32
    segment = StreamSegment.from_bytes(f"{head};1;2;3;4;7;0;0;0;0;0".encode())
    assert segment.truncated().status == 0b110
    assert segment.to_bytes().startswith(f"{head};".encode())


@pytest.mark.parametrize("bit", range(3, 8))
def test_an_unknown_status_bit_is_reported_as_a_later_version(bit: int) -> None:
    head = 5 | 1 << 8 + bit | 1 << 32
    with pytest.raises(LaterMetadataError, match=f"status {1 << bit:#x}"):
        StreamSegment.from_bytes(f"{head};1;2;3;4;7;0;0;0;0;0".encode())


def test_a_segment_is_completed_once() -> None:
    with pytest.raises(UsageError, match="already completed"):
        completed().completed(
            last_txid=1, record_count=1, last_entry_id=0, last_slot_id=0,
            completion_time_ms=1, start_sequence_id=0,
        )  # fmt: skip
    with pytest.raises(UsageError, match="cannot have 2147483648 records"):
        StreamSegment(7, 4711, 1).completed(
            last_txid=1, record_count=2**31, last_entry_id=0, last_slot_id=0,
            completion_time_ms=1, start_sequence_id=0,
        )  # fmt: skip


def test_sequence_ids_continue_from_segment_to_segment() -> None:
    assert completed().following_sequence_id == 5321
    assert completed(4).following_sequence_id == 0
    assert StreamSegment(7, 4711, 1000).following_sequence_id == 0
    assert completed().sequence_id(1) == 5000
    assert completed(4).sequence_id(1) == -(2**63) + (7 << 32)


# -- namespaces, names, locks -----------------------------------------------------------------


def binding(struct_text: str, head: str = "1\nBKDL\n") -> bytes:
    return (head + struct_text).encode()


GOOD = '{"1":{"str":"h:1"},"2":{"str":"/l"}}'


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"1",
        binding("{}"),
        binding('{"1":{"str":"h:1"}}'),
        binding('{"1":{"str":"h:1"},"2":{"i64":7}}'),
        binding(GOOD[:-1]),
        binding(GOOD + "x"),
        binding(GOOD.replace(",", ", ")),
        binding(GOOD[:-1] + ',"1":{"str":"h:2"}}'),
        binding(GOOD[:-1] + ',"3":{"tf":true}}'),
        binding(GOOD[:-1] + ',"9":{"i64":1.5}}'),
        binding(GOOD[:-1] + ',"9":{"i64":NaN}}'),
        binding(GOOD[:-1] + ',"x":{"tf":1}}'),
        binding(GOOD[:-1] + ',"3":1}'),
        binding("[" * 100_000),
        binding("[]"),
        binding(GOOD, "1\r\nBKDL\r\n2"),
    ],
)
def test_invalid_namespace_bindings_are_refused(data: bytes) -> None:
    with pytest.raises(MetadataError, match="node of the namespace"):
        NamespaceBinding.from_bytes(data, "h:1")


def test_fields_of_later_releases_are_skipped() -> None:
    later = GOOD[:-1] + ',"11":{"lst":["i32",2,1,2]},"12":{"str":"a b"},"8":{"i64":1}}'
    assert NamespaceBinding.from_bytes(binding(later), "h:1") == NamespaceBinding.of_one(
        "h:1", "/l"
    )


@pytest.mark.parametrize(
    "text",
    [
        "zk://h:1/a", "distributedlog:///a", "distributedlog://h:1", "distributedlog://h:1/",
        "distributedlog://h:1;/a", "distributedlog://h:1/a//b", "distributedlog://h:1/a?b",
        "distributedlog://h:1/a#b", "distributedlog://[h:1/a", "distributedlog://h:1/../a", "",
    ],
)  # fmt: skip
def test_invalid_namespace_uris_are_refused(text: str) -> None:
    with pytest.raises(MetadataURIError) as caught:
        NamespaceURI.parse(text)
    assert "distributedlog://HOST:PORT" in str(caught.value)


def test_the_servers_and_path_of_a_namespace_uri_are_parsed() -> None:
    uri = NamespaceURI.parse("distributedlog-bk://h1:2181;h2:2181/a/b/")
    assert (uri.servers, uri.path) == ("h1:2181,h2:2181", "/a/b")


def test_invalid_access_rights_are_refused() -> None:
    assert AccessRights.from_bytes(b"", "/s") == AccessRights()
    for data in (b"\xff", b"[]", b'{"1":{"tf":"x"}}', b"{ }"):
        with pytest.raises(MetadataError, match="the access rights of stream /s cannot be decoded"):
            AccessRights.from_bytes(data, "/s")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"), ("/", "empty"), ("/.hidden", "reserved"), (".a", "reserved"),
        ("</a", "reserved"), ("a/", "ends with /"), ("//a", "between two /"), ("a/../b", r"'\.\.'"),
        ("a>b", "contains '>'"), ("a b", "contains ' '"), ("a\0b", "contains"),
        ("a\x01", "contains"),
        ("a\x80", "contains"), ("a\ud800", "contains"), ("a\uf8fe", "contains"),
        ("a\ufffe", "contains"), ("a\U0001f600", "contains"),
    ],
)  # fmt: skip
def test_invalid_stream_names_are_refused(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        stream_name(name)


@pytest.mark.parametrize(
    "name", ["a\x1f", "a\x7f", "a\x9f", "a\ud7ff", "a\uf8ff", "a\ufff0", "a/.b"]
)
def test_stream_names_that_java_allows_are_accepted(name: str) -> None:
    assert stream_name(name) == name


@pytest.mark.parametrize("data", [b"", b"x", b"1 ", b"9223372036854775808", b"\xff"])
def test_data_that_is_not_a_number_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataError, match="does not contain a number"):
        decode_number(data, "the node")


@pytest.mark.parametrize(
    ("name", "client", "session", "number"),
    [
        ("member_a%2F10.0.0.1_s         7_0000000012", "a/10.0.0.1", 7, 12),
        ("member_0000000003", "from data", 99, 3),
        ("member_old_0000000004", "from data", 99, 4),
        ("member_a_b_s7_0000000005", "from data", 99, 5),
        ("member_a_sx_0000000006", "from data", 99, 6),
        ("member_a_s7_x", "a", 7, NO_NUMBER),
    ],
)
def test_lock_members_are_parsed_from_name_and_data(
    name: str, client: str, session: int, number: int
) -> None:
    assert LockMember.parse(name, b"from data", 99) == LockMember(name, client, session, number)


def test_the_name_of_a_new_lock_member_is_escaped_as_in_java() -> None:
    assert lock_member_prefix("a b/c~*.-_é", 7) == "member_a+b%2Fc%7E*.-_%C3%A9_s         7_"
