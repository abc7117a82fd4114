"""The schema of a dataset with typed rows, and its stored form. No I/O.

The schema is a part of the dataset's head. Its stored form is a JSON object:

    {"version": 1, "encoding": "arrow",
     "columns": [{"name": "day", "type": "date", "nullable": true, "metadata": {}}, ...],
     "partition_by": ["day"]}

The columns are the fields of Spark's JSON form of a schema, because that form is exact, public and
independent of Arrow. `rows` says how rows become entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import LaterMetadataError, UsageError, later_json, written_later

VERSION = 1
ENCODING = "arrow"
_NAMES = ("encoding", "columns", "partition_by")
SCHEMA_BYTES_MAX = 128 * 1024
"""The largest stored form of a schema, in bytes. Every publication writes it again."""
PARTITION_COLUMNS_MAX = 8
"""The largest number of partition columns. Each part of the dataset has a value of each."""
PARTITION_TYPES = ("boolean", "byte", "short", "integer", "long", "string", "date")
"""The types that a partition column may have, as Spark's JSON form calls them."""
COMMON_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""The names of SQL for types that Spark's JSON form calls otherwise."""

PartitionValue = str | int | bool | None
"""The value of a partition column in its stored form. A date is a text such as "2026-11-03"."""
Partition = tuple[tuple[str, PartitionValue], ...]
"""The partition columns and their values, in the order of `DatasetSchema.partition_by`."""


@dataclass(frozen=True, slots=True)
class DatasetSchema:
    """The columns of a dataset with typed rows."""

    columns_json: str
    """The columns, as a JSON array of the fields in Spark's JSON form of a schema."""
    partition_by: tuple[str, ...] = ()
    """The names of the partition columns."""

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns, each as the object of Spark's JSON form that describes it."""
        found: list[dict[str, Any]] = json.loads(self.columns_json)
        return found

    @property
    def columns(self) -> dict[str, str]:
        """The names of the columns with their types, as SQL calls them."""
        return {str(field["name"]): type_text(field["type"]) for field in self.fields}

    def __str__(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in self.columns.items())


def make_schema(fields: list[dict[str, Any]], partition_by: tuple[str, ...] = ()) -> DatasetSchema:
    """Return the schema with these fields in Spark's JSON form.

    Raises UsageError if there is no column, a name occurs twice, a partition column does not exist
    or has a type that partition columns cannot have, or the schema is too large.
    """
    types = {str(field["name"]): field["type"] for field in fields}
    if not fields:
        raise UsageError(
            "the rows have no columns", remedy="A dataset with typed rows needs at least one"
        )
    if len({name.lower() for name in types}) != len(fields):
        raise UsageError(
            "the columns of a dataset must have names that differ, also without regard to case, "
            f"but the columns are: {', '.join(str(field['name']) for field in fields)}",
            remedy="Rename columns, or leave some out",
        )
    if len(partition_by) > PARTITION_COLUMNS_MAX or len(set(partition_by)) != len(partition_by):
        raise UsageError(
            f"a dataset can have at most {PARTITION_COLUMNS_MAX} partition columns, each named "
            f"once, but these were given: {', '.join(partition_by)}"
        )
    for name in partition_by:
        if name not in types:
            raise UsageError(
                f"the partition column {name!r} does not exist. The columns are: {', '.join(types)}"
            )
        if types[name] not in PARTITION_TYPES:
            raise UsageError(
                f"column {name!r} has type {type_text(types[name])}, which a partition column "
                "cannot have",
                remedy="Partition by a boolean, a whole number, a string or a date",
            )
    schema = DatasetSchema(json.dumps(fields, separators=(",", ":")), partition_by)
    if len(schema.columns_json) > SCHEMA_BYTES_MAX:
        raise UsageError(
            f"the schema of the dataset takes {len(schema.columns_json):,} bytes, and the limit is "
            f"{SCHEMA_BYTES_MAX:,} bytes",
            remedy="Leave out columns or their metadata",
        )
    return schema


def schema_value(schema: DatasetSchema) -> dict[str, Any]:
    """Return the JSON object that is stored for a schema."""
    return {
        "version": VERSION,
        "encoding": ENCODING,
        "columns": schema.fields,
        "partition_by": list(schema.partition_by),
    }


def decode_schema(what: str, value: Mapping[str, Any]) -> DatasetSchema:
    """Return the schema for a stored JSON object.

    Raises:
        LaterMetadataError: A later version wrote it.
        KeyError: A field is missing.
        AttributeError, TypeError: A field has another type.
        UsageError: The schema is not valid.
    """
    what = f"the schema of {what}"
    if message := later_json(what, value, _NAMES, VERSION, key="version"):
        raise LaterMetadataError(message)
    if value["encoding"] != ENCODING:
        raise LaterMetadataError(
            written_later(
                what, f"rows with the encoding {value['encoding']!r}", f"the encoding {ENCODING!r}"
            )
        )
    schema = make_schema(list(value["columns"]), tuple(map(str, value["partition_by"])))
    str(schema)  # raises if a type within a column is damaged
    return schema


def check_partition(schema: DatasetSchema | None, partition: Partition, ledger_id: int) -> None:
    """Check the partition of the part of a dataset in a ledger.

    Raises UsageError if it does not have a value of each partition column, in their order.
    """
    wanted = () if schema is None else schema.partition_by
    if tuple(name for name, _ in partition) != wanted:
        raise UsageError(
            f"the part of the dataset in ledger {ledger_id} has values of the partition columns "
            f"({', '.join(name for name, _ in partition)}), but the partition columns are "
            f"({', '.join(wanted)}). Nothing was published",
            remedy="Give each part one value of each partition column, in their order",
        )


def type_text(kind: Any) -> str:
    """Return the name in SQL of a type in Spark's JSON form."""
    if isinstance(kind, str):
        return COMMON_NAMES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{type_text(kind['elementType'])}>"
        case "map":
            return f"map<{type_text(kind['keyType'])},{type_text(kind['valueType'])}>"
        case "struct":
            inner = (f"{field['name']}:{type_text(field['type'])}" for field in kind["fields"])
            return f"struct<{','.join(inner)}>"
    return str(kind["type"])
