"""Makes Spark find `format("quire")` by itself.

Spark imports every top-level module named pyspark_* when it looks for data sources, and a single
one that raises hides them all. So nothing is imported here until Spark asks for `DefaultSource`,
and whatever goes wrong then means that there is none.
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
