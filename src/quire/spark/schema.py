"""The check of a user's schema against the columns that exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql.types import DataType, StructField

from quire.errors import UsageError


def our_column(
    field: StructField, types: Mapping[str, DataType], nullable: Collection[str] = ()
) -> str:
    """Return the name of the column that a field of the schema refers to.

    Raises UsageError if the field does not fit.
    """
    name = str(field.name).lower()
    if name not in types:
        raise UsageError(
            f"the schema names column {field.name!r}, which does not exist. The columns are "
            f"{', '.join(types)}",
            remedy="Leave it out of the schema",
        )
    if field.dataType != types[name]:
        raise UsageError(
            f"column {field.name!r} has type {types[name].simpleString()}, but the schema says "
            f"{field.dataType.simpleString()}",
            remedy="Use the column's own type in the schema, and cast it after the read",
        )
    if name in nullable and not field.nullable:
        raise UsageError(
            f"column {field.name!r} may be null, but the schema says that it is not",
            remedy="Make the column nullable in the schema",
        )
    return name
