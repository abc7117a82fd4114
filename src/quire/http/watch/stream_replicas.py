"""The state of the replicas of streams: how many of their ledgers lack copies, or are lost.

To learn it, the server reads the metadata and the marks of all ledgers of a stream. It does so in
the background while somebody looks at the page of the stream or of its topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire._runtime.tasks import each
from quire.client import Client
from quire.codec.distributedlog.segment import Truncation
from quire.errors import MetadataUnavailableError, NoSuchStreamError, QuireError
from quire.http.views.ledger_json import ledger_as_json
from quire.http.views.ledger_list import Replication
from quire.http.watch.observations import LOOK_WAIT_S
from quire.http.watch.stream_figures import (
    SEGMENTS_LOOKED_AT_MAX,
    WantedStreams,
)
from quire.metadata.ledgers.unreadable import Unread, read_or_skip
from quire.replication.explain.at_risk import lost_copies
from quire.streams import Namespace

REPLICAS_INTERVAL_S = 4.0
"""The least number of seconds between two observations of the replicas of streams."""
AGE_MAX_S = 30.0
"""The age in seconds up to which a result is shown, if the next observation is due sooner. Somebody
who comes back to a page after a while gets no old state."""
NAMED_MAX = 5
"""The largest number of ledgers of each state that are named."""
STATES = ("lost", "unreadable", "unknown", "lacking", "marked", "repairing")
"""The states of ledgers that are counted, the worst first. Each ledger counts once.

lost: the ledger does not exist. unreadable: no registered bookie has a copy of some entries.
unknown: its metadata cannot be read. The others are those of `ledger_list.REPLICATION`.
"""


@dataclass(frozen=True, slots=True)
class StreamReplicas:
    """The state of the replicas of one stream."""

    ledgers: int = 0
    """The number of ledgers that were examined."""
    whole: bool = True
    """Whether all ledgers of the stream were examined. If not, the counts are lower bounds."""
    found: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The ids of the ledgers in each of `STATES`, ascending. States without ledgers are missing."""
    error: str = ""
    """Why the stream could not be examined, or ""."""

    def as_json(self) -> dict[str, Any]:
        return {
            "ledgers": self.ledgers,
            "whole": self.whole,
            **{state: len(self.found.get(state, ())) for state in STATES},
            "named": {state: list(ids[:NAMED_MAX]) for state, ids in self.found.items()},
            "error": self.error,
        }


def together(streams: Sequence[StreamReplicas]) -> StreamReplicas:
    """Return the sum over the partitions of a topic."""
    found = {
        state: sorted(ledger_id for one in streams for ledger_id in one.found.get(state, ()))
        for state in STATES
    }
    errors = [f"partition {at}: {one.error}" for at, one in enumerate(streams) if one.error]
    return StreamReplicas(
        sum(one.ledgers for one in streams),
        all(one.whole for one in streams),
        {state: ids for state, ids in found.items() if ids},
        "; ".join(errors),
    )


async def replicas_of(opened: Namespace, name: str, replication: Replication) -> StreamReplicas:
    """Return the state of the replicas of a stream.

    The newest `SEGMENTS_LOOKED_AT_MAX` segments are examined. Ledgers of truncated segments do not
    count. Raises NoSuchStreamError and MetadataError.
    """
    client, unread = opened.client, Unread()

    async def state(ledger_id: int) -> str:
        read = await read_or_skip(client.metadata, ledger_id, unread)
        if read is None:
            return "unknown" if ledger_id in unread else "lost"
        _, copies = lost_copies(read.value, replication.registered)
        if not copies:
            return "unreadable"
        described = await replication.state(ledger_as_json(ledger_id, read.value))
        return str(described["state"])

    segments = await opened.metadata(name).segments(SEGMENTS_LOOKED_AT_MAX)
    ids = [one.ledger_id for one in segments if one.truncation is not Truncation.TRUNCATED]
    found: dict[str, list[int]] = {}
    for ledger_id, one in sorted(zip(ids, await each(ids, state))):
        if one in STATES:
            found.setdefault(one, []).append(ledger_id)
    return StreamReplicas(len(ids), len(segments) < SEGMENTS_LOOKED_AT_MAX, found)


class ReplicaWatch(WantedStreams[tuple[float, StreamReplicas]]):
    """The observation, in the background, of the replicas of streams.

    It keeps when each stream was looked at, in seconds of the monotonic clock, and the result.
    """

    def __init__(self, monotonic: Callable[[], float], wait_s: float = LOOK_WAIT_S) -> None:
        super().__init__(monotonic, REPLICAS_INTERVAL_S, wait_s)
        self._replication: Replication | None = None
        """The marks of ledgers, as they were when the present observation began."""

    async def of(
        self, client: Client, namespace: str, names: Sequence[str], topic: str = ""
    ) -> dict[str, dict[str, Any] | None]:
        """Return the state of the replicas of streams as JSON, by name.

        It is None for a stream that was not looked at yet. With `topic`, the sum over the streams
        has that name. It is None while a stream is missing.
        """
        self._want(namespace, names)
        await self.refresh(lambda: self._look(client))
        oldest_s = self._monotonic() - max(AGE_MAX_S, 3 * self.interval_s)
        known: dict[str, StreamReplicas | None] = {}
        for name in names:
            at_s, one = self._found.get((namespace, name), (0.0, None))
            known[name] = one if at_s >= oldest_s else None
        found = {name: None if one is None else one.as_json() for name, one in known.items()}
        if topic:
            whole = [one for one in known.values() if one is not None]
            found[topic] = together(whole).as_json() if len(whole) == len(known) else None
        return found

    async def _look(self, client: Client) -> None:
        self._replication = await Replication.of(client)
        await super()._look(client)

    async def _look_at(self, opened: Namespace, name: str) -> None:
        assert self._replication is not None
        key = (opened.path, name)
        try:
            found = await replicas_of(opened, name, self._replication)
        except NoSuchStreamError:
            self._found.pop(key, None)
            return
        except MetadataUnavailableError:
            raise
        except QuireError as error:
            found = StreamReplicas(error=str(error.args[0]))
        # The page shows the previous state until the new one is known.
        self._keep(key, (self._monotonic(), found))
