"""What a dry run of `compact` tells."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quire.spark.jobs.archive.versions import Versions
from quire.spark.jobs.compact import NAMESPACE, Key, published, source_of, table_reached
from quire.spark.jobs.tasks import ClusterOptions


@dataclass(frozen=True, slots=True)
class CompactPreview:
    """What a run would read."""

    stream: str
    target: str
    start: str
    end: str
    """The position up to which it would read: what is acknowledged now."""
    records: int

    def as_json(self) -> dict[str, Any]:
        return {"dry_run": True, **asdict(self)}


def preview_compact(
    cluster: ClusterOptions,
    stream: str,
    key: Key,
    *,
    to: str | None = None,
    to_stream: str | None = None,
    namespace: str = NAMESPACE,
    full: bool = False,
) -> CompactPreview:
    """What `compact` would read with these arguments, without Spark; how many keys that makes is
    known behind reading only. Nothing is changed. Raises what `compact` raises before it reads."""
    made = source_of(cluster, stream, key, to, to_stream, namespace)
    if to is not None:
        _, since = table_reached(made, Versions(to), to, full)
    else:
        assert to_stream is not None
        since = None if full else published(made, to_stream)
    span = made.span(since)
    return CompactPreview(
        stream, to or str(to_stream), str(span.start), str(span.end.position), span.records
    )
