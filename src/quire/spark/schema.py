"""A schema that a user gives, against the columns that there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql.types import DataType, StructField

from quire.errors import UsageError


def our_column(
    field: StructField, types: Mapping[str, DataType], nullable: Collection[str] = ()
) -> str:
    """The column of ours that a field of the schema names. UsageError where it does not fit."""
    name = str(field.name).lower()
    if name not in types:
        raise UsageError(
            f"there is no column {field.name!r}, only {', '.join(types)}",
            remedy="Leave it out of the schema",
        )
    if field.dataType != types[name]:
        raise UsageError(
            f"column {field.name!r} is {types[name].simpleString()}, the schema says "
            f"{field.dataType.simpleString()}",
            remedy="Cast it behind the read",
        )
    if name in nullable and not field.nullable:
        raise UsageError(
            f"column {field.name!r} may be null, the schema says that it is not",
            remedy="Make it nullable",
        )
    return name
