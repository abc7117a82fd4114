"""Compare the metrics of clients with what they did, whatever failed meanwhile.

The sessions that send adds are watched from their first entry on. The changes of ensembles are seen
in the metadata store, and what was acknowledged in the history of the run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from quire.client import Client
from quire.client.write.add_session import AddSession
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState
from quire_simulator.invariants.checker import Checker
from quire_simulator.invariants.reports.bookies import values_of
from quire_simulator.invariants.reports.comparison import Comparison
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World


@dataclass(slots=True)
class WatchedClient:
    """A client, and the sessions in which it has sent adds."""

    name: str
    client: Client
    sessions: dict[AddSession, int] = field(default_factory=dict)
    """The sessions, with the last entry that was confirmed before each."""

    def values(self) -> dict[str, float]:
        prefix = "quire_client_"
        found = values_of(self.client._pool.metrics())
        return {name.removeprefix(prefix).removesuffix("_total"): v for name, v in found.items()}


class ClientReports:
    """What every client of a run did."""

    def __init__(self, world: World, checker: Checker) -> None:
        self._world = world
        self._checker = checker
        self._clients: list[WatchedClient] = []
        self._known: dict[int, LedgerMetadata] = {}
        """The metadata of each ledger, as it was before its next change."""
        self._changed: Counter[str] = Counter()
        """The number of times that each client has changed the last ensemble of an open ledger."""
        cluster = world.cluster
        observer, read_observer = cluster.observer, cluster.read_observer

        def on_ledger(ledger_id: int) -> None:
            observer(ledger_id)
            self._stored(ledger_id)

        def on_read(ledger_id: int, metadata: LedgerMetadata) -> None:
            self._known.setdefault(ledger_id, metadata)
            read_observer(ledger_id, metadata)

        cluster.observer = on_ledger
        cluster.read_observer = on_read
        world.client_made = self._made
        checker.sampled.append(self._sample)

    def _made(self, name: str, client: Client) -> None:
        watched = WatchedClient(name, client)
        self._clients.append(watched)
        timeouts = client._shared.timeouts
        watch = timeouts.watch

        def noted(session: AddSession) -> None:
            watched.sessions.setdefault(session, session.pipeline.accepted)
            watch(session)

        timeouts.watch = noted  # type: ignore[method-assign]

    def _stored(self, ledger_id: int) -> None:
        cluster = self._world.cluster
        before = self._known.pop(ledger_id, None)
        if ledger_id not in cluster.ledgers:
            return
        now = self._known[ledger_id] = cluster.ledger(ledger_id).value
        opened = before is not None and before.state is now.state is LedgerState.OPEN
        if opened and before is not None and before.last_segment != now.last_segment:
            self._changed[self._world.metadata_caller] += 1

    # -- while the run lasts ------------------------------------------------------------------

    def _sample(self) -> None:
        """Check that no gauge is negative."""
        for one in self._clients:
            pool = one.client._pool
            if pool.opens.waiting < 0 or pool.recoveries.waiting < 0:
                waiting = pool.opens.waiting, pool.recoveries.waiting
                self._told(one).fail(f"opens and recoveries that wait: {waiting}")

    # -- at the end ---------------------------------------------------------------------------

    def compare(self, stage: Stage) -> None:
        """Compare the metrics of all clients with what they did."""
        appended, acked = _entries(stage)
        for one in self._clients:
            told, values = self._told(one), one.values()
            dead = self._world.network.node(one.name).node.dead
            self._adds(told, one, values, dead=dead)
            if one.name.startswith("writer-"):
                told.within("adds", acked[one.name], values["adds"], appended[one.name])
            self._changes(told, one, values, dead=dead)
            told.within("silent connections", 0, values["links_silent"], values["links_examined"])
            told.equal("suspects", values["suspects"], len(one.client.suspects()))
            if one.client.closed and not dead:
                told.equal("waiting opens", values["opens_waiting"], 0)
                told.equal("waiting recoveries", values["recoveries_waiting"], 0)

    def _adds(
        self, told: Comparison, one: WatchedClient, values: dict[str, float], *, dead: bool
    ) -> None:
        pushed = accepted = 0
        size_bytes: int | None = 0
        for session, first in one.sessions.items():
            pushed += session.pipeline.last_pushed - first
            accepted += session.pipeline.accepted - first
            if size_bytes is not None:
                # A recovery begins at the length of the entries before.
                recovers = session._lac_sent is not None
                size_bytes = None if recovers else size_bytes + session.pipeline.length
        if dead:  # It may have died between an append and the flush that sends it.
            told.within("adds", 0, values["adds"], pushed)
        else:
            told.equal("adds", values["adds"], pushed)
            if size_bytes is not None:
                told.equal("bytes of adds", values["add_bytes"], size_bytes)
        told.within("batches", min(1, pushed), values["add_batches"], values["adds"])
        told.equal("timed adds", one.client._pool.counters.add_time.count, accepted)

    def _changes(
        self, told: Comparison, one: WatchedClient, values: dict[str, float], *, dead: bool
    ) -> None:
        """Compare the ensemble changes with those in the metadata.

        A recovery keeps its changes for itself until it closes the ledger. A session that fails, or
        is stopped or killed during a change, may have stored a last one, of which it was not told.
        """
        counted, stored = values["ensemble_changes"], self._changed[one.name]
        sessions = one.sessions
        failed = dead + sum(
            s.pipeline.frozen or (s.failure is not None and not s._stopped) for s in sessions
        )
        most = float(stored)
        if any(session._lac_sent is not None for session in sessions):
            most = float("inf")
        told.within("ensemble changes", max(0, stored - failed), counted, most)

    def _told(self, one: WatchedClient) -> Comparison:
        return Comparison(
            self._checker, "a_client_counts_what_it_did", f"the metrics of {one.name}"
        )


def _entries(stage: Stage) -> tuple[Counter[str], Counter[str]]:
    """Return the numbers of entries that each client has appended, and that were acknowledged."""
    appended: Counter[str] = Counter()
    ends: dict[tuple[str, int], int] = {}
    for record in stage.history.records:
        if record.kind == "append":
            appended[record.client] += record.last - record.first + 1
        elif record.kind in ("acked", "accepted", "closed"):
            key = record.client, record.ledger_id
            ends[key] = max(ends.get(key, -1), record.last)
    acked: Counter[str] = Counter()
    for (client, _), last in ends.items():
        acked[client] += last + 1
    return appended, acked
