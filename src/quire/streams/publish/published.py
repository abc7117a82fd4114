"""Who has published what to a stream: two kinds of nodes below the stream's root, JSON in UTF-8.

`quire-writers/NAME`, for a writer that publishes numbered batches, one after the other:

    {"format": 1, "query": "5f...", "number": 41, "segments": [17, 2], "former": ["9c..."]}

Batches of `query` up to `number` are published; the last of them is 2 segments, from number 17 on.
`former` are queries that this writer had before: they are out for good.

`quire-jobs`, for jobs that publish once; the newest `JOBS_MAX` of them:

    {"format": 1, "jobs": [["nightly-2026-11-03", 17, 2]]}

They change only in the transaction that adds the segments (`publishing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from quire._runtime.tasks import each
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import MetadataError, NoSuchKeyError, UsageError
from quire.metadata.tree import Create, Operation, Put
from quire.streams.namespace.stream_metadata import StreamMetadata

FORMAT = 1
WRITERS = "quire-writers"
JOBS = "quire-jobs"
KEY_BYTES_MAX = 200
JOBS_MAX = 1_000
"""Jobs that a stream remembers; the oldest is forgotten first."""
FORMER_MAX = 100
"""Queries that a writer had before: so many are remembered."""
NOT_THERE = -1


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What makes a batch the same when it is computed again."""

    writer: str
    """Chosen by the user, or by the name of the query; empty for a job that publishes once."""
    query: str
    """Changes when the writer begins anew, with batch numbers from 0. Of a job: its own name."""
    number: int

    @classmethod
    def of_job(cls, name: str) -> BatchKey:
        """Of a job that publishes once under this name."""
        return cls("", name, 0)

    @property
    def job(self) -> str:
        """What the ledgers of this batch say that they were made for."""
        return f"{self.writer}/{self.query}/{self.number}"

    def __str__(self) -> str:
        return (
            f"batch {self.number} of writer {self.writer}" if self.writer else f"job {self.query}"
        )


@dataclass(frozen=True, slots=True)
class Published:
    """What the node of a key's writer says, at one moment."""

    path: str
    version: int
    """-1: there is no node yet."""
    values: dict[str, Any]

    def segments_of(self, key: BatchKey) -> tuple[int, int] | None:
        """(number of the first, how many) that the batch was published as; none of a batch that
        is followed by another; None: it is not published, as far as the node tells."""
        if not key.writer:
            for name, first, count in self.values.get("jobs", ()):
                if name == key.query:
                    return first, count
            return None
        if self.values.get("query") != key.query or self.values["number"] < key.number:
            return None
        if self.values["number"] > key.number:
            return 0, 0
        first, count = self.values["segments"]
        return first, count

    def check(self, stream: str, key: BatchKey, takeover: bool) -> None:
        """UsageError where this is not the turn of the key's query."""
        query = self.values.get("query")
        if not key.writer or query in (None, key.query):
            return
        if key.query in self.values["former"]:
            raise UsageError(
                f"query {key.query} of writer {key.writer!r} was replaced by query {query}, which "
                f"has published up to batch {self.values['number']} to stream {stream}",
                remedy="Continue the checkpoint of that query, or begin with a new checkpoint",
            )
        if not takeover:
            raise UsageError(
                f"writer {key.writer!r} of stream {stream} has published up to batch "
                f"{self.values['number']} of query {query}, this is query {key.query}",
                remedy="Continue the checkpoint of that query, choose another writer, or give "
                "takeover to go on behind what it has published",
            )

    def with_batch(self, key: BatchKey, segments: list[StreamSegment]) -> tuple[Operation, bytes]:
        """The operation that notes the batch, and the node's value then."""
        first = segments[0].lssn if segments else 0
        values: dict[str, Any]
        if key.writer:
            former = list(self.values.get("former", ()))
            if self.values.get("query", key.query) != key.query:
                former = [*former, self.values["query"]][-FORMER_MAX:]
            values = {
                "format": FORMAT, "query": key.query, "number": key.number,
                "segments": [first, len(segments)], "former": former,
            }  # fmt: skip
        else:
            jobs = [*self.values.get("jobs", ()), [key.query, first, len(segments)]]
            values = {"format": FORMAT, "jobs": jobs[-JOBS_MAX:]}
        value = json.dumps(values).encode()
        if self.version == NOT_THERE:
            return Create(self.path, value), value
        return Put(self.path, value, self.version), value


def check_key_name(name: str, what: str) -> str:
    """Return `name`. Raises UsageError if it cannot be the name of `what`: a writer, a query or a
    job."""
    try:
        encoded = quote(name, safe="")
    except UnicodeEncodeError:
        encoded = ""
    if not encoded or len(encoded) > KEY_BYTES_MAX:
        raise UsageError(
            f"{name[:80]!r} cannot be the name of {what}",
            remedy=f"Use 1 to {KEY_BYTES_MAX} bytes (other than letters and digits count more)",
        )
    return name


def node_path(metadata: StreamMetadata, key: BatchKey) -> str:
    """UsageError for names that cannot be."""
    if key.writer:
        check_key_name(key.writer, "a writer")
    check_key_name(key.query, "a query" if key.writer else "a job")
    root = metadata.paths.root
    return f"{root}/{WRITERS}/{quote(key.writer, safe='')}" if key.writer else f"{root}/{JOBS}"


async def read_published(metadata: StreamMetadata, key: BatchKey) -> Published:
    """Another process may have published a moment ago: under a claim of one's own it cannot have;
    otherwise `Tree.sync` first."""
    return await _read(metadata, node_path(metadata, key))


async def check_moved(metadata: StreamMetadata, key: BatchKey) -> None:
    """UsageError where the key's query has published under the name of another writer."""
    directory = f"{metadata.paths.root}/{WRITERS}"
    try:
        names = await metadata.tree.children(directory)
    except NoSuchKeyError:
        return
    for found in await each(names, lambda name: _read(metadata, f"{directory}/{name}")):
        if found.values.get("query") == key.query and found.path != node_path(metadata, key):
            raise UsageError(
                f"query {key.query} has published up to batch {found.values['number']} to stream "
                f"{metadata.paths.name} as writer {_name(found.path)!r}, now it is {key.writer!r}",
                remedy="Keep the name of the writer as it was",
            )


def _name(path: str) -> str:
    return unquote(path.rpartition("/")[2])


async def _read(metadata: StreamMetadata, path: str) -> Published:
    try:
        found = await metadata.tree.read(path)
    except NoSuchKeyError:
        return Published(path, NOT_THERE, {})
    try:
        values = json.loads(found.value)
        if values["format"] != FORMAT:
            raise ValueError("a later format")
        needed: Iterable[str] = (
            ("jobs",) if path.endswith(f"/{JOBS}") else ("query", "number", "segments", "former")
        )
        for name in needed:
            values[name]
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataError(f"{path} cannot be understood: {error}") from None
    return Published(path, found.version, values)
