"""The record of published batches, in two kinds of nodes below the stream's root (JSON in UTF-8).

`quire-writers/NAME` belongs to a writer that publishes numbered batches, one after the other:

    {"format": 1, "query": "5f...", "number": 41, "segments": [17, 2], "former": ["9c..."]}

The batches of `query` up to `number` are published. The last of them has 2 segments, from number 17
on. `former` lists the newest `FORMER_MAX` queries that this writer had before. None of them can
publish again.

`quire-jobs` belongs to jobs that publish once, and lists the newest `JOBS_MAX` of them:

    {"format": 1, "jobs": [["nightly-2026-11-03", 17, 2]]}

Both change only in the transaction that adds the segments (`publishing`).

The name of a compaction's job says how far it has read (`COMPACTION`). It is not published after a
job that has read further, because it would append older values of keys after newer ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from quire._runtime.tasks import each
from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire.codec.metadata.stored_json import stored_json
from quire.errors import (
    LaterMetadataError,
    MetadataError,
    NoSuchKeyError,
    StreamConditionError,
    UsageError,
    later_json,
)
from quire.metadata.tree import Create, Operation, Put
from quire.streams.namespace.stream_metadata import StreamMetadata

FORMAT = 1
WRITERS = "quire-writers"
JOBS = "quire-jobs"
KEY_BYTES_MAX = 200
JOBS_MAX = 1_000
"""The largest number of jobs that a stream remembers. The oldest is forgotten first."""
FORMER_MAX = 100
"""The largest number of former queries of one writer that a stream remembers."""
NOT_THERE = -1
COMPACTION = re.compile(
    r"compact:([0-9a-f]{16}):(?:\d+:)?([\d-]+:[\d-]+:[\d-]+)>([\d-]+:[\d-]+:[\d-]+):(.*)"
)
"""The form of the name of a compaction's job: the id of its source, and from where to where it has
read.

A number follows the id of the source if the job was asked to append again what a former job has
appended. The rest is the ledger and the sequence of the end.
"""


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The identity of a batch. A batch that is computed again has the same key."""

    writer: str
    """The name that the user or the query chose, or "" for a job that publishes once."""
    query: str
    """The id of the query, which changes when the writer begins again with batch 0.

    For a job it is the name of the job.
    """
    number: int

    @classmethod
    def of_job(cls, name: str) -> BatchKey:
        """Return the key of a job that publishes once under this name."""
        return cls("", name, 0)

    @property
    def job(self) -> str:
        """The text that the ledgers of this batch store in their custom metadata as their job."""
        return f"{self.writer}/{self.query}/{self.number}"

    def __str__(self) -> str:
        return (
            f"batch {self.number} of writer {self.writer}" if self.writer else f"job {self.query}"
        )


@dataclass(frozen=True, slots=True)
class Published:
    """The published batches that one node records: those of one writer, or those of all jobs."""

    path: str
    version: int
    """The version of the node, or -1 if there is no node yet."""
    values: dict[str, Any]

    def segments_of(self, key: BatchKey) -> tuple[int, int] | None:
        """Return the number of the batch's first segment, and the number of its segments.

        Returns (0, 0) for a batch that its writer has followed with a later one, because the node
        stores only the segments of the last batch. Returns None if the node does not say that the
        batch is published.
        """
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
        """Raise UsageError unless the key's query may publish now.

        With `takeover` it may replace the query that has published under its writer so far.
        `stream` is the name of the stream, for the message. Raises StreamConditionError for a
        compaction if one of the same source that has read further is published.
        """
        if not key.writer:
            self._check_order(stream, key.query)
            return
        query = self.values.get("query")
        if query in (None, key.query):
            return
        if key.query in self.values["former"]:
            raise UsageError(
                f"query {key.query} of writer {key.writer!r} cannot publish to stream {stream}: "
                f"the query was replaced by query {query}, which has published up to batch "
                f"{self.values['number']}",
                remedy="Continue with the checkpoint of that query, or begin with a new checkpoint",
            )
        if not takeover:
            raise UsageError(
                f"query {key.query} cannot publish to stream {stream}: writer {key.writer!r} "
                f"belongs to query {query} there, which has published up to batch "
                f"{self.values['number']}",
                remedy=(
                    "Continue with the checkpoint of that query, choose another writer id, "
                    "or set takeover to continue after what that query has published"
                ),
            )

    def _check_order(self, stream: str, name: str) -> None:
        compaction = COMPACTION.fullmatch(name)
        jobs = [job for job, _, _ in self.values.get("jobs", ())]
        if compaction is None or name in jobs:
            return
        for other in map(COMPACTION.fullmatch, jobs):
            if other is None or other[1] != compaction[1]:
                continue
            if DLSN.parse(other[3]) > DLSN.parse(compaction[3]):
                raise StreamConditionError(
                    f"nothing was appended to stream {stream}: another compaction, which has read "
                    f"up to {other[3]}, was published after this one had read up to "
                    f"{compaction[3]}",
                    remedy="Run the compaction again: it continues after the other one",
                )

    def with_batch(self, key: BatchKey, segments: list[StreamSegment]) -> tuple[Operation, bytes]:
        """Return the operation that records the batch, and the value of the node after it."""
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
    """Return `name`. Raises UsageError unless it can be the name of `what`.

    `what` is a writer, a query or a job.
    """
    try:
        encoded = quote(name, safe="")
    except UnicodeEncodeError:
        encoded = ""
    if not encoded or len(encoded) > KEY_BYTES_MAX:
        raise UsageError(
            f"{name[:80]!r} cannot be the name of {what}",
            remedy=f"Use 1 to {KEY_BYTES_MAX} bytes. Characters other than letters, digits and "
            "'_.-~' count as three or more",
        )
    return name


def node_path(metadata: StreamMetadata, key: BatchKey) -> str:
    """Return the path of the node of the key's writer. Raises UsageError for an invalid name."""
    if key.writer:
        check_key_name(key.writer, "a writer")
    check_key_name(key.query, "a query" if key.writer else "a job")
    root = metadata.paths.root
    return f"{root}/{WRITERS}/{quote(key.writer, safe='')}" if key.writer else f"{root}/{JOBS}"


async def read_published(metadata: StreamMetadata, key: BatchKey) -> Published:
    """Read the node of the key's writer.

    A caller without a claim may read an old value, because another process may have published a
    moment ago. Such a caller calls `Tree.sync` first. Raises MetadataError if the node cannot be
    decoded.
    """
    return await _read(metadata, node_path(metadata, key))


async def check_moved(metadata: StreamMetadata, key: BatchKey) -> None:
    """Raise UsageError if the key's query has published under the name of another writer.

    Raises MetadataError if the node of a writer cannot be decoded.
    """
    directory = f"{metadata.paths.root}/{WRITERS}"
    try:
        names = await metadata.tree.children(directory)
    except NoSuchKeyError:
        return
    for found in await each(names, lambda name: _read(metadata, f"{directory}/{name}")):
        if found.values.get("query") == key.query and found.path != node_path(metadata, key):
            raise UsageError(
                f"query {key.query} cannot continue as writer {key.writer!r}: the query has "
                f"published up to batch {found.values['number']} to stream "
                f"{metadata.paths.name} as writer {_name(found.path)!r}",
                remedy=f"Use the writer id {_name(found.path)!r}",
            )


def _name(path: str) -> str:
    return unquote(path.rpartition("/")[2])


async def _read(metadata: StreamMetadata, path: str) -> Published:
    try:
        found = await metadata.tree.read(path)
    except NoSuchKeyError:
        return Published(path, NOT_THERE, {})
    try:
        values = stored_json(found.value)
        needed: Collection[str] = (
            ("jobs",) if path.endswith(f"/{JOBS}") else ("query", "number", "segments", "former")
        )
        if message := later_json(path, values, needed, FORMAT):
            raise LaterMetadataError(message)
        if values["format"] != FORMAT:
            raise ValueError(f"it has format {values['format']!r}")
        for name in needed:
            values[name]
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataError(
            f"the node {path}, which records what was published to stream {metadata.paths.name}, "
            f"cannot be decoded: {error!r}",
            remedy="If a later version of Quire wrote it, use that version. Otherwise restore "
            "the node from a backup of the metadata store",
        ) from None
    return Published(path, found.version, values)
