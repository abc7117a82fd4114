"""The schemas of typed datasets as Spark and Arrow have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from quire.client.datasets.datasets import other_schema
from quire.client.datasets.schema import DatasetSchema, make_schema
from quire.errors import UsageError

PLAIN_TYPES = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
"""The types of values without parts that typed rows can have."""


def dataset_schema(schema: StructType, partition_by: tuple[str, ...]) -> DatasetSchema:
    """Return the schema of a new dataset with the columns of a DataFrame.

    All columns, elements and fields become nullable, as in tables of files. So a later job may add
    nulls.

    Raises:
        UsageError: A column has a type that typed rows cannot have, or a name or a partition column
            is not valid.
    """
    for field in schema.fields:
        _check_type(str(field.name), field.dataType, nested=False)
    names = {str(field.name).lower(): str(field.name) for field in schema.fields}
    fields: list[dict[str, Any]] = nullable(schema).jsonValue()["fields"]
    return make_schema(fields, tuple(names.get(name.lower(), name) for name in partition_by))


def spark_schema(schema: DatasetSchema) -> StructType:
    """Return the columns of a dataset as Spark has them."""
    return StructType.fromJson({"type": "struct", "fields": schema.fields})


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with this schema."""
    return pa.schema([field.remove_metadata() for field in to_arrow_schema(schema, timezone="UTC")])


def fitting(name: str, known: DatasetSchema, given: DatasetSchema) -> list[int]:
    """Return the place in a DataFrame, which has the schema `given`, of each column of a dataset.

    Columns are compared by name, in any order, and must have the types of the dataset.

    Raises:
        UsageError: The DataFrame has other columns, types or partition columns.
    """
    wanted, found = spark_schema(known).fields, spark_schema(given).fields
    types = {str(field.name): field.dataType for field in found}
    if (
        {str(field.name): field.dataType for field in wanted} != types
        or known.partition_by != given.partition_by
    ):  # fmt: skip
        raise other_schema(name, known, given)
    return [list(types).index(str(field.name)) for field in wanted]


def has_columns(schema: StructType, names: Sequence[str]) -> bool:
    """Return whether a DataFrame has all of these columns."""
    return set(names) <= {str(field.name) for field in schema.fields}


def nullable(schema: StructType) -> StructType:
    """Return the schema with nullable columns, elements, values and fields."""
    return StructType(
        [StructField(f.name, _nullable(f.dataType), True, f.metadata) for f in schema.fields]
    )


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return nullable(kind) if isinstance(kind, StructType) else kind


def _check_type(path: str, kind: DataType, nested: bool = True) -> None:
    if isinstance(kind, ArrayType):
        _check_type(f"{path}.element", kind.elementType)
    elif isinstance(kind, MapType):
        _check_type(f"{path}.key", kind.keyType)
        _check_type(f"{path}.value", kind.valueType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            _check_type(f"{path}.{field.name}", field.dataType)
    elif (
        (type(kind) not in PLAIN_TYPES and not isinstance(kind, StringType))
        # Spark sends the elements of `array()` as nulls that may not be null, which Arrow refuses.
        or (nested and isinstance(kind, NullType))
    ):
        raise UsageError(
            f"column {path!r} has type {kind.simpleString()}, which a dataset cannot store",
            remedy="Cast the column to another type, or leave it out",
        )
