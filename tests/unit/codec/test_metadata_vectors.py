"""The metadata formats, checked with bytes and texts of Apache's jars.

`COUNTS` is the number of vectors that each group must run, so that none is skipped silently.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.codec.entry.digest import DigestType
from quire.codec.metadata import cookie, layout, registration
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import decode, encode
from quire.codec.metadata.ledger_path import (
    FLAT,
    HIERARCHICAL,
    LEDGER_ID_MAX,
    LEGACY_HIERARCHICAL,
    LONG_HIERARCHICAL,
    LedgerManager,
    high_order_name,
    high_order_of,
    long_id,
    parents_of,
    sequence_of,
)
from quire.errors import (
    CookieError,
    LaterClusterError,
    LaterMetadataError,
    MetadataError,
    MetadataURIError,
    UnreadableMetadataError,
    UsageError,
)
from quire.metadata.uri import Driver, parse_uri

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata.json"
VECTORS: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["vectors"]
ROOT = "/ledgers"

COUNTS = {
    "ledger_metadata": 13,
    "metadata_update": 6,
    "ledger_metadata_parse": 46,
    "cookie": 5,
    "cookie_parse": 6,
    "cookie_verify": 11,
    "bookie_service_info": 5,
    "bookie_service_info_parse": 1,
    "layout": 4,
    "layout_parse": 5,
    "ledger_path": 10,
    "ledger_path_parse": 5,
    "metadata_uri": 12,
    "bookie_id": 24,
    "idgen": 5,
    "live_tree": 7,
}


def vectors(group: str) -> pytest.MarkDecorator:
    found = [v for v in VECTORS if v["group"] == group]
    assert len(found) == COUNTS[group]
    return pytest.mark.parametrize("vector", found, ids=[v["name"] for v in found])


def payload(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["hex"])


def metadata_of(fields: dict[str, Any]) -> LedgerMetadata:
    digest = fields.get("digestType")
    return LedgerMetadata(
        ensemble_size=fields["ensembleSize"],
        write_quorum=fields["writeQuorumSize"],
        ack_quorum=fields["ackQuorumSize"],
        segments=tuple(
            Segment(s["firstEntryId"], tuple(s["ensemble"])) for s in fields["segments"]
        ),
        state=LedgerState[fields["state"]],
        last_entry_id=fields["lastEntryId"],
        length=fields["length"],
        digest=None if digest is None else DigestType.parse(digest),
        password=bytes.fromhex(fields["passwordHex"]) if fields["hasPassword"] else None,
        custom={e["key"]: bytes.fromhex(e["valueHex"]) for e in fields["customMetadata"]},
        ctime_ms=fields["ctime"],
        ctime_stored=fields["ctimeStored"],
        ctoken=fields["cToken"],
        format_version=fields["formatVersion"],
    )


# -- ledger metadata --------------------------------------------------------------------------


@vectors("ledger_metadata")
def test_ledger_metadata_is_encoded_and_decoded_as_in_java(vector: dict[str, Any]) -> None:
    assert encode(metadata_of(vector["inputs"])) == payload(vector)
    assert decode(payload(vector), 1111) == metadata_of(vector["decoded"])


@vectors("metadata_update")
def test_metadata_before_and_after_an_update_is_encoded_as_in_java(vector: dict[str, Any]) -> None:
    before, after = metadata_of(vector["before"]), metadata_of(vector["after"])
    assert decode(bytes.fromhex(vector["beforeHex"])) == before
    assert encode(before) == bytes.fromhex(vector["beforeHex"])
    assert decode(payload(vector)) == after
    assert encode(after) == payload(vector)


def test_our_metadata_updates_equal_those_of_java() -> None:
    """Java drops the creation token when it rewrites metadata. Otherwise the bytes are equal."""
    changed = {v["name"]: v for v in VECTORS if v["group"] == "metadata_update"}
    closed_length = changed["update_writer_close"]["after"]["length"]
    changes = {
        "update_add_segment": lambda m, e: m.with_ensemble_from(100, e),
        "update_replace_last_segment": lambda m, e: m.with_ensemble_from(100, e),
        "update_writer_close": lambda m, e: m.with_close(120, closed_length),
        "update_mark_in_recovery": lambda m, e: m.with_state(LedgerState.IN_RECOVERY),
    }

    for name, change in changes.items():
        vector = changed[name]
        before = replace(decode(bytes.fromhex(vector["beforeHex"])), ctoken=0)
        wanted = metadata_of(vector["after"])
        assert encode(change(before, wanted.last_segment.ensemble)) == payload(vector), name


@vectors("ledger_metadata_parse")
def test_ledger_metadata_vectors_are_parsed_or_refused_as_in_java(vector: dict[str, Any]) -> None:
    if not vector["accepted"]:
        with pytest.raises(MetadataError, match=r"written by a later|its bytes"):
            decode(payload(vector), vector["znodeCtime"])
        return
    found = decode(payload(vector), vector["znodeCtime"])
    assert replace(found, unknown_fields=b"") == metadata_of(vector["decoded"])
    # What we accept, we can encode again, and it decodes to the same value.
    assert decode(encode(found), vector["znodeCtime"]) == found


@pytest.mark.parametrize("cut", range(110))
def test_truncated_metadata_never_decodes_to_other_members(cut: int) -> None:
    """Cut anywhere, the bytes are refused, or lose only optional fields from their end."""
    vector = next(v for v in VECTORS if v["name"] == "v3_open_minimal")
    whole = payload(vector)
    try:
        found = decode(whole[:cut])
    except MetadataError:
        return
    assert found.segments == decode(whole).segments
    assert found.write_quorum == 3


def test_encode_refuses_metadata_that_a_format_cannot_hold() -> None:
    v1 = metadata_of(next(v for v in VECTORS if v["name"] == "v1_open")["inputs"])
    for unfit in (
        replace(v1, password=b"x", digest=DigestType.CRC32),
        replace(v1, custom={"k": b"v"}),
        replace(v1, ack_quorum=1),
        replace(v1, ctime_stored=True, ctime_ms=5),
        replace(v1, format_version=4),
        replace(v1, format_version=3, password=b"x"),
        replace(v1, format_version=3, ctime_stored=True),
    ):
        with pytest.raises(UsageError):
            encode(unfit)


@pytest.mark.parametrize("version", [2, 3])
def test_an_unknown_digest_is_refused(version: int) -> None:
    """The format's default would be CRC32, which once made every entry look damaged."""
    name = "v3_closed_empty" if version == 3 else "v2_open_minimal"
    data = payload(next(v for v in VECTORS if v["name"] == name))
    if version == 3:
        other = data.replace(b"\x38\x01\x42\x00", b"\x38\x09\x42\x00")
    else:
        other = data.replace(b"digestType: CRC32\n", b"digestType: SHA3\n")
    assert other != data
    with pytest.raises(MetadataError):
        decode(other)


# -- cookies ----------------------------------------------------------------------------------


def cookie_of(fields: dict[str, Any]) -> cookie.Cookie:
    return cookie.Cookie(
        bookie_id=fields["bookieId"],
        journal_dirs=fields["journalDirs"],
        ledger_dirs=fields["ledgerDirs"],
        instance_id=fields["instanceId"],
        index_dirs=fields["indexDirs"],
        layout_version=fields["layoutVersion"],
    )


@vectors("cookie")
def test_cookies_are_encoded_and_decoded_as_in_java(vector: dict[str, Any]) -> None:
    wanted = cookie_of(vector["fields"])
    if vector["name"] == "cookie_layout3_written":
        # Java writes this under a header of layout 5, and cannot read it back. We write layout 5.
        with pytest.raises(CookieError):
            cookie.decode(payload(vector))
        assert cookie.decode(cookie.encode(wanted)) == replace(wanted, layout_version=5)
        return
    assert cookie.encode(wanted) == payload(vector)
    assert cookie.decode(payload(vector)) == wanted


@vectors("cookie_parse")
def test_cookie_vectors_are_parsed_or_refused_as_in_java(vector: dict[str, Any]) -> None:
    if vector["accepted"]:
        assert cookie.decode(payload(vector)) == cookie_of(vector["fields"])
    else:
        with pytest.raises(CookieError):
            cookie.decode(payload(vector))


@vectors("cookie_verify")
def test_cookies_match_exactly_when_java_accepts_them(vector: dict[str, Any]) -> None:
    config = cookie.decode(vector["config"].encode())
    stored = cookie.decode(vector["stored"].encode())
    assert (not cookie.differences(config, stored)) is vector["strict"]


@pytest.mark.parametrize(
    ("field", "change", "named"),
    [
        ("bookie_id", "other:1", "bookie id"),
        ("journal_dirs", "/k", "journal directories"),
        ("ledger_dirs", "1\t/m", "ledger directories"),
        ("index_dirs", "1\t/m", "index directories"),
        ("instance_id", "k", "instance id"),
    ],
)
def test_differences_of_cookies_name_the_field(field: str, change: str, named: str) -> None:
    config = cookie.Cookie.of("b:1", ["/j"], ["/l"], "i", ["/x"])
    [found] = cookie.differences(config, replace(config, **{field: change}))
    assert found.field == named


def test_old_cookies_are_refused() -> None:
    with pytest.raises(CookieError, match="reads only layouts from 3 on"):
        cookie.decode(b"2\nh:1\n/j\n1\t/l\n")


# -- registration -----------------------------------------------------------------------------


def info_of(fields: dict[str, Any]) -> registration.BookieServiceInfo:
    return registration.BookieServiceInfo(
        tuple(
            registration.Endpoint(
                id=e["id"],
                host=e["host"],
                port=e["port"],
                protocol=e["protocol"],
                auth=tuple(e["auth"]),
                extensions=tuple(e["extensions"]),
            )
            for e in fields["endpoints"]
        ),
        fields["properties"],
    )


@vectors("bookie_service_info")
def test_bookie_service_info_is_encoded_and_decoded_as_in_java(vector: dict[str, Any]) -> None:
    assert registration.encode(info_of(vector["inputs"])) == payload(vector)
    assert registration.decode(payload(vector), vector["bookieId"]) == info_of(vector["decoded"])


@vectors("bookie_service_info_parse")
def test_invalid_bookie_service_info_is_refused(vector: dict[str, Any]) -> None:
    assert not vector["accepted"]
    with pytest.raises(MetadataError, match=vector["bookieId"]):
        registration.decode(payload(vector), vector["bookieId"])


@vectors("bookie_id")
def test_bookie_ids_are_accepted_or_refused_as_in_java(vector: dict[str, Any]) -> None:
    assert registration.is_bookie_id(vector["id"]) == vector["valid"]
    if not vector["valid"]:
        with pytest.raises(UsageError):
            registration.check_bookie_id(vector["id"])


# -- layout, paths, ids -----------------------------------------------------------------------


@vectors("layout")
def test_layouts_are_encoded_and_decoded_as_in_java(vector: dict[str, Any]) -> None:
    inputs = vector["inputs"]
    wanted = layout.Layout(inputs["factoryClass"], inputs["managerVersion"])
    assert layout.encode(wanted) == payload(vector)
    assert layout.decode(payload(vector)) == wanted
    named = inputs["factoryClass"].removesuffix("LedgerManagerFactory").rpartition(".")[2]
    assert wanted.manager().name == named.lower()


@vectors("layout_parse")
def test_layout_vectors_are_parsed_or_refused_as_in_java(vector: dict[str, Any]) -> None:
    if not vector["accepted"]:
        with pytest.raises(MetadataError, match="LAYOUT"):
            layout.decode(payload(vector))
        return
    wanted = vector["decoded"]
    found = layout.decode(payload(vector))
    assert found.format_version == wanted["formatVersion"]
    assert found.factory == wanted["factory"]
    assert found.manager_version == wanted["managerVersion"]
    assert found.manager() is HIERARCHICAL


@pytest.mark.parametrize(
    ("content", "manager"),
    [
        (b"1\nflat:1", FLAT),
        (b"1\nlonghierarchical:1", None),
        (b"1\n" + layout.FLAT.encode() + b":1", None),
        (b"2\nflat:1", None),
    ],
)
def test_a_layout_names_a_known_ledger_manager_or_is_refused(
    content: bytes, manager: LedgerManager | None
) -> None:
    found = layout.decode(content)
    if manager is not None:
        assert found.manager() is manager
    else:
        with pytest.raises(MetadataError, match="ledger manager"):
            found.manager()


def test_a_misspelt_field_is_damage_and_not_a_later_version() -> None:
    """Only a field that comes in addition to the known ones can be from a later version."""
    good = payload(next(v for v in VECTORS if v["name"] == "v2_open_minimal"))
    with pytest.raises(UnreadableMetadataError, match="damaged") as caught:
        decode(good.replace(b"quorumSize", b"quorumSixe"))
    assert not isinstance(caught.value, LaterMetadataError)
    with pytest.raises(CookieError, match="damaged"):
        cookie.decode(b'5\nbookieHost: "b"\njournalDir: "/j"\nledgerDirz: "1\t/j"\n')


def test_a_later_version_of_a_ledger_manager_is_refused() -> None:
    with pytest.raises(LaterClusterError, match="version 2 of the manager"):
        layout.decode(b"2\n" + layout.FLAT.encode() + b":2").manager()


MANAGERS = [HIERARCHICAL, LONG_HIERARCHICAL, LEGACY_HIERARCHICAL, FLAT]
BY_NAME = pytest.mark.parametrize("manager", MANAGERS, ids=[m.name for m in MANAGERS])


@BY_NAME
@vectors("ledger_path")
def test_ledger_paths_equal_those_of_java(vector: dict[str, Any], manager: LedgerManager) -> None:
    ledger_id, path = vector["inputs"]["ledgerId"], vector["paths"].get(manager.name)
    if path is None:  # more digits than the manager has
        with pytest.raises(UsageError, match=str(ledger_id)):
            manager.path_of(ledger_id)
        return
    found = manager.path_of(ledger_id)
    assert f"{ROOT}/{found}" == path
    assert manager.ledger_id_of(found) == ledger_id
    if manager is FLAT:
        assert parents_of(found) == []
        return
    parents = parents_of(found)
    assert parents[0] == found.rpartition("/")[0]
    assert "/" not in parents[-1]


@BY_NAME
def test_paths_and_ids_that_no_ledger_has_are_refused(manager: LedgerManager) -> None:
    others = {m.path_of(12345) for m in MANAGERS} - {manager.path_of(12345)}
    for path in ("", "L", "L5", "00/0000", "00/0000/0001", "LL000000001", "L00000000001", *others):
        with pytest.raises(MetadataError):
            manager.ledger_id_of(path)
    for bad in (-1, LEDGER_ID_MAX + 1):
        with pytest.raises(UsageError):
            manager.path_of(bad)


@vectors("ledger_path_parse")
def test_ledger_paths_are_parsed_or_refused_as_in_java(vector: dict[str, Any]) -> None:
    if vector["accepted"]:
        assert HIERARCHICAL.ledger_id_of(vector["path"]) == vector["ledgerId"]
    else:
        with pytest.raises(MetadataError):
            HIERARCHICAL.ledger_id_of(vector["path"])


@vectors("idgen")
def test_generated_ledger_ids_equal_those_of_java(vector: dict[str, Any]) -> None:
    name, ledger_id = vector["name"], vector["ledgerId"]
    if ledger_id < 2**32:
        assert sequence_of(f"ID-{ledger_id:010d}") == ledger_id, name
        assert sequence_of(f"/ledgers/idgen/ID-{ledger_id:010d}") == ledger_id
    else:
        high, low = divmod(ledger_id, 2**32)
        assert long_id(high, sequence_of(f"ID-{low:010d}")) == ledger_id, name
        assert high_order_of(high_order_name(high)) == high


def test_sequences_overflow_into_negative_numbers() -> None:
    assert sequence_of("ID--2147483648") == -(2**31)
    assert high_order_name(7) == "HOB-0000000007"
    assert high_order_of("ID-0000000007") is None
    with pytest.raises(MetadataError):
        sequence_of("/ledgers/00")


@vectors("live_tree")
def test_every_node_of_a_real_cluster_is_read_and_written_back(vector: dict[str, Any]) -> None:
    """Every known kind of node that a real cluster wrote is read and written back."""
    for node in vector["changed"]:
        path, data = node["path"].removeprefix(ROOT), bytes.fromhex(node.get("hex") or "")
        if path == "/LAYOUT":
            assert layout.encode(layout.decode(data)) == data
        elif path.startswith("/available/") and data:
            bookie_id = path.rpartition("/")[2]
            assert registration.encode(registration.decode(data, bookie_id)) == data
        elif path.startswith("/cookies/"):
            assert cookie.encode(cookie.decode(data)) == data
        elif data.startswith(b"BookieMetadataFormatVersion"):
            assert HIERARCHICAL.path_of(HIERARCHICAL.ledger_id_of(path[1:])) == path[1:]
            assert encode(decode(data)) == data


# -- URIs -------------------------------------------------------------------------------------

STRICTER = {
    # Java takes these, and then cannot use them, or has no such manager any more.
    "uri_zk+ms://h:1/l",
    "uri_zk+hierarchical://h:1",
    "uri_zk+hierarchical://h:1/ledgers/",
}


@vectors("metadata_uri")
def test_metadata_uris_are_parsed_or_refused_as_in_java(vector: dict[str, Any]) -> None:
    if not vector["accepted"] or vector["name"] in STRICTER:
        with pytest.raises(MetadataURIError) as raised:
            parse_uri(vector["uri"])
        assert "\n" not in str(raised.value)
        return
    found = parse_uri(vector["uri"])
    assert found.driver is Driver.ZOOKEEPER
    assert ",".join(found.servers) == vector["zkServers"]
    assert found.root == vector["ledgersRootPath"]
    assert found.factory == vector["factory"]


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////var/lib/quire/meta.db", "/var/lib/quire/meta.db"),
        ("sqlite:///meta.db", "meta.db"),
        ("SQLITE:///a b/100%.db", "a b/100%.db"),
    ],
)
def test_sqlite_uris_are_parsed(uri: str, path: str) -> None:
    found = parse_uri(uri)
    assert (found.driver, found.path) == (Driver.SQLITE, path)


def test_memory_and_zookeeper_uris_are_parsed() -> None:
    assert parse_uri("memory://x").name == "x"
    assert parse_uri("zk://a;[::1]:99/l/m").servers == ("a:2181", "[::1]:99")
    assert parse_uri("zk://a;/l").servers == ("a:2181",)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/var/meta.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite://host/meta.db",
        "memory://",
        "memory://a/b",
        "zk:///ledgers",
        "zk://;/ledgers",
        "zk://h:port/ledgers",
        "zk://h:70000/ledgers",
        "zk://h:1/",
        "zk://h:1/a//b",
        "zk://h:1/a/../b",
        "zk://h:1/zookeeper",
        "zk://h:1/quire/x",
        "file:///x",
    ],
)
def test_unusable_uris_are_refused_in_one_line(uri: str) -> None:
    with pytest.raises(MetadataURIError) as raised:
        parse_uri(uri)
    assert "\n" not in str(raised.value)


ELSEWHERE = {
    "write_set": "tests/unit/core/test_quorum_vectors.py",
    "quorum_coverage": "tests/unit/core/test_quorum_vectors.py",
    "ack_set": "tests/unit/core/test_quorum_vectors.py",
    "underreplication": "",  # the auditor
    "entries_stored_in_bookie": "",  # the auditor's check of replicas
    "rackaware_adherence": "tests/unit/core/test_placement.py",
    "read_reorder": "tests/unit/core/test_placement.py",
}
"""Groups that other tests run, and ('') those of rooms that do not exist yet."""


def test_every_metadata_vector_is_used_by_a_test() -> None:
    found = Counter(v["group"] for v in VECTORS)
    assert {group: found[group] for group in COUNTS} == COUNTS
    assert found.keys() == COUNTS.keys() | ELSEWHERE.keys()
    assert sum(found.values()) == 307
    assert not COUNTS.keys() & ELSEWHERE.keys()
    project = Path(__file__).parents[3]
    for group, file in ELSEWHERE.items():
        if file:
            assert f'vectors("{group}")' in (project / file).read_text(encoding="utf-8")
