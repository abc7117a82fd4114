"""Schemas of datasets, and the entries that hold their rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from quire.client.datasets import rows as rows_module
from quire.client.datasets import schema as schema_module
from quire.client.datasets.rows import check_compression, decode_rows, encode_rows
from quire.client.datasets.schema import decode_schema, make_schema, schema_value
from quire.errors import LaterMetadataError, ReadError, UsageError

TABLE = pa.table({"n": list(range(100)), "text": ["x" * 50] * 100})


def field(name: str, kind: Any = "long") -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def test_schemas_round_trip() -> None:
    made = make_schema([field("a"), field("b", "string")], ("b",))
    assert decode_schema("x", schema_value(made)) == made
    assert list(made.columns) == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "partition_by", "why"),
    [
        ([], (), "^the rows have no columns. A dataset with typed rows needs at least one"),
        (["a", "A"], (), "must have names that differ"),
        (["a", "a"], (), "must have names that differ"),
        (["a", "b"], ("c",), "'c' does not exist. The columns are: a, b"),
        (["a", "b"], ("a", "a"), "each named once"),
    ],
)
def test_invalid_schemas_are_refused(names: list[str], partition_by: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make_schema([field(name) for name in names], partition_by)


def test_a_column_of_an_unsupported_type_cannot_be_a_partition_column() -> None:
    with pytest.raises(UsageError, match=r"'a' has type .*, which a partition column"):
        make_schema([field("a", "double")], ("a",))
    make_schema([field("a", "date")], ("a",))


def test_schemas_over_the_limits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [field(f"c{n}") for n in range(schema_module.PARTITION_COLUMNS_MAX + 1)]
    names = tuple(str(one["name"]) for one in many)
    make_schema(many, names[1:])
    with pytest.raises(UsageError, match="at most"):
        make_schema(many, names)
    size = len(make_schema(many).columns_json)
    monkeypatch.setattr(schema_module, "SCHEMA_BYTES_MAX", size)
    make_schema(many)
    monkeypatch.setattr(schema_module, "SCHEMA_BYTES_MAX", size - 1)
    with pytest.raises(UsageError, match="the limit is"):
        make_schema(many)


def test_a_schema_of_a_later_version_is_named() -> None:
    value = schema_value(make_schema([field("a")]))
    for change in ({"version": value["version"] + 1}, {"encoding": "other"}):
        with pytest.raises(LaterMetadataError):
            decode_schema("x", {**value, **change})
    with pytest.raises(KeyError):
        decode_schema("x", {key: value[key] for key in value if key != "columns"})


def test_unknown_compressions_are_refused() -> None:
    assert check_compression("LZ4") == "lz4"
    with pytest.raises(UsageError, match="is not a compression"):
        check_compression("x")


def test_rows_are_divided_into_entries_and_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "ENTRY_BYTES", TABLE.nbytes // 4)
    entries = list(encode_rows(TABLE, "none"))
    assert [count for _, count in entries] == [25, 25, 25, 25]
    found = [batch for payload, _ in entries for batch in decode_rows(payload, 1, 0, ("text", "n"))]
    assert pa.Table.from_batches(found).equals(TABLE.select(["text", "n"]))


def test_an_entry_that_is_too_large_is_divided_but_not_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_module, "ENTRY_BYTES_MAX", 1)
    assert [count for _, count in encode_rows(TABLE.slice(0, 5))] == [1] * 5


def test_no_rows_need_no_entry() -> None:
    assert list(encode_rows(TABLE.slice(0, 0))) == []


def test_entries_that_do_not_contain_rows_are_refused() -> None:
    [(payload, _)] = encode_rows(TABLE)
    other = pa.BufferOutputStream()
    with pa.ipc.new_stream(other, TABLE.schema) as writer:
        writer.write_table(TABLE)
    later = pa.BufferOutputStream()
    version = {rows_module.VERSION_KEY: b"9"}
    with pa.ipc.new_stream(later, TABLE.schema.with_metadata(version)) as writer:
        writer.write_table(TABLE)
    for data, columns, why in (
        (b"nothing", ("n",), "cannot be decoded as rows"),
        (other.getvalue().to_pybytes(), ("n",), "does not say that it has rows"),
        (later.getvalue().to_pybytes(), ("n",), "version 9"),
        (payload, ("n", "gone"), "it has no column 'gone'"),
        (payload[: len(payload) // 2], ("n",), "cannot be decoded as rows"),
    ):
        with pytest.raises(ReadError, match=why) as caught:
            decode_rows(data, 7, 3, columns)
        assert caught.value.ledger_id == 7
