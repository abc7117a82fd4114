"""The JSON of datasets and their parts, as the commands and the HTTP API print it."""

from __future__ import annotations

from typing import Any

from quire.client.datasets.datasets import Dataset
from quire.client.datasets.format import DatasetLedger


def summary(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset's name, and its numbers of publications, ledgers, rows and payload bytes."""
    return {
        "name": dataset.name,
        "sequence": dataset.sequence,
        "ledgers": len(dataset.ledger_ids),
        "rows": dataset.rows,
        "bytes": dataset.bytes,
    }


def columns(dataset: Dataset) -> dict[str, Any]:
    """Return the columns of a dataset, null without a schema, and the partition columns."""
    schema = dataset.schema
    return {
        "columns": None if schema is None else schema.columns,
        "partition_by": [] if schema is None else list(schema.partition_by),
    }


def part(one: DatasetLedger) -> dict[str, Any]:
    """Return one part of a dataset, without the values of its partition columns."""
    return {
        "ledger_id": one.ledger_id,
        "first": one.first,
        "last": one.last,
        "rows": one.rows,
        "bytes": one.bytes,
    }
