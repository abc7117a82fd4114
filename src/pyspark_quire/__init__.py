"""The package by which Spark finds `format("quire")` without registration.

Spark imports every top-level module named pyspark_* when it looks for data sources. If one of them
raises, Spark finds none. This module therefore imports nothing until Spark asks for
`DefaultSource`. If the import then fails, the module has no such attribute.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from quire.spark.source import QuireDataSource
        except Exception as error:
            raise AttributeError(f"the quire data source cannot be used: {error}") from error
        return QuireDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
