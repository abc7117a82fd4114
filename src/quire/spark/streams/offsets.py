"""The progress of a streaming query, as Spark's checkpoint stores it.

    {"v": 1, "cluster": "7c9e...", "namespace": "/streams",
     "streams": {"orders": "5:120:0"},
     "checks": {"orders": {"ledger": 17, "sequence": 61200, "life": "6f2c-1"}}}

`streams` holds, for each stream, the position after the last record that was read: segment, entry,
slot. `checks` holds what is needed to recognise the stream later, and to see whether truncated
records had been read before. `life` is the id of the stream's life
(`quire.streams.namespace.stream_life`): a stream that is deleted and created again under its name
has another one. `ledger` is the ledger of the position's segment, and `sequence` is the number of
records before the position. Each of the three is missing if it was not known.

The offsets at which a query begins at `latest` also have `"begins": true`. Spark does not store the
offsets at which a query begins, so the first micro-batch of such a query only stores the place. It
reads no records, and its end is the same offsets without `begins`.

Checkpoints that were written before `life` existed lack it. A query that continues from one takes
the life that the stream has when the query opens it.

Offsets of every released version stay readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import LaterCheckpointError, UsageError, later_json
from quire.streams import DLSN

VERSION = 1
_WHAT = "the checkpoint"
_RESTORE = (
    "Restore the checkpoint from a backup. With another checkpoint location, the query begins at "
    "its option `start`: it reads records again, or leaves some out"
)
_NAMES = ("cluster", "namespace", "streams", "checks", "lag", "begins")
_CHECK_NAMES = ("ledger", "sequence", "life")


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The progress of a query in one stream: a position, and what identifies the stream later."""

    position: DLSN
    ledger_id: int | None = None
    sequence: int | None = None
    life: str | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """The progress in all streams of a query."""

    cluster: str
    """The instance id of the cluster."""
    namespace: str
    streams: Mapping[str, StreamOffset]
    begins: bool = False
    """Whether a query begins with this progress, because it reads a stream from `latest`.

    A later call would return later offsets.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the form that the checkpoint stores."""
        checks = {}
        for name, reached in self.streams.items():
            known = {
                "ledger": reached.ledger_id,
                "sequence": reached.sequence,
                "life": reached.life,
            }
            checks[name] = {key: value for key, value in known.items() if value is not None}
        found: dict[str, Any] = {
            "v": VERSION,
            "cluster": self.cluster,
            "namespace": self.namespace,
            "streams": {name: str(reached.position) for name, reached in self.streams.items()},
            "checks": checks,
        }
        if self.begins:
            found["begins"] = True
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offsets:
        """Decode the form that the checkpoint stores.

        Raises LaterCheckpointError if a later version of Quire wrote it, and UsageError if it
        cannot be decoded otherwise.
        """
        version = value.get("v") if isinstance(value, dict) else None
        if version is None:
            raise UsageError(
                "the query's checkpoint was written by another source than Quire's streams: "
                f"{str(value)[:200]}",
                remedy="Use a checkpoint location of its own for this query",
            )
        if message := later_json(_WHAT, value, _NAMES, VERSION, key="v"):
            raise LaterCheckpointError(message)
        if version != VERSION:
            raise UsageError(
                f"the offsets in the query's checkpoint have version {version!r}, which no "
                "version of Quire has written",
                remedy=_RESTORE,
            )
        try:
            checks = value.get("checks", {})
            for one in checks.values():
                if message := later_json(_WHAT, one, _CHECK_NAMES):
                    raise LaterCheckpointError(message)
            return cls(
                str(value["cluster"]),
                str(value["namespace"]),
                {
                    name: StreamOffset(
                        DLSN.parse(text),
                        checks.get(name, {}).get("ledger"),
                        checks.get(name, {}).get("sequence"),
                        checks.get(name, {}).get("life"),
                    )
                    for name, text in value["streams"].items()
                },
                begins=value.get("begins") is True,
            )
        except LaterCheckpointError:
            raise
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UsageError(
                f"the offsets in the query's checkpoint cannot be decoded: {why}",
                remedy=_RESTORE,
            ) from None

    def check(self, cluster: str, namespace: str) -> None:
        """Raise UsageError if the offsets belong to another cluster or namespace."""
        remedy = "Use the options that the query was started with, or another checkpoint location"
        if self.namespace != namespace:
            raise UsageError(
                f"the query's checkpoint belongs to streams of namespace {self.namespace}, but "
                f"the query reads namespace {namespace}",
                remedy=remedy,
            )
        if self.cluster != cluster:
            raise UsageError(
                f"the query's checkpoint belongs to cluster {self.cluster}, but the query reads "
                f"cluster {cluster}",
                remedy=remedy,
            )
