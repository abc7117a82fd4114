"""The state of a whole cluster, and what is wrong with it.

The overview of the dashboard, `quire explain cluster` and the metrics about a cluster use this
module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from quire._runtime.metrics import Metric, gauge, labelled
from quire.client import Client
from quire.client.client import certificates_of
from quire.http.views.bookie_list import bookie_facts
from quire.http.views.creatable import creatable
from quire.http.views.job_pace import JobPaces
from quire.http.views.problems.certificates import OwnCertificates
from quire.http.views.problems.cluster import problems
from quire.http.views.problems.collection import Collection
from quire.http.views.problems.lost_bookies import ALONE, lost_groups
from quire.http.views.problems.metadata_store import (
    OUTAGES_NOTICED,
    metadata_slow,
    of_metadata_disk,
    of_noticed_outages,
)
from quire.http.views.problems.problem import (
    SEVERITIES,
    Problem,
    severities,
    worst_first,
    worst_of,
)
from quire.http.watch.bookie_reports import BookieReports
from quire.http.watch.first_seen import FirstSeen
from quire.http.watch.known_reports import KnownReports
from quire.http.watch.ledger_index import LedgerIndex
from quire.http.watch.observations import (
    LOOK_WAIT_S,
    DiskSpaces,
    GonePorts,
    LedgerRisks,
    LostLedgerSearch,
    MarkCounts,
)
from quire.http.watch.rates import Fetch, Rates, together
from quire.http.watch.store_delay import StoreDelay
from quire.http.watch.stream_figures import StreamWatch
from quire.http.watch.stream_limits import StreamLimits
from quire.http.watch.stream_replicas import ReplicaWatch
from quire.http.watch.suspects import Suspects
from quire.metadata.bookies.collection import read_switch, refusals
from quire.metadata.bookies.damage_notes import FoundDamage, damage_notes
from quire.metadata.interface import MetadataStore
from quire.metadata.outages import Outage, noticed_outages
from quire.metadata.sqlite.disk_space import metadata_disk
from quire.net.certificates import CertificateExpiry
from quire.replication.explain.at_risk import AtRisk
from quire.replication.explain.status import overview
from quire.replication.marks.copy_notes import copy_notes
from quire.replication.marks.job_announcements import RunningJob, running_jobs
from quire.streams.ownership.lost_ledgers import LostLedgers
from quire.streams.ownership.owner_index import OwnerIndex

SHARED_AGE_MAX_S = 1.0
"""The age in seconds up to which one look at the cluster answers several requests."""
STATES = ("writable", "read-only", "gone")
FULLEST_SHOWN = 12
"""The number of bookies whose disks the overview shows."""
FULLEST_KEYS = (
    "id", "state", "answers", "severity", "free_bytes", "total_bytes", "fullness",
)  # fmt: skip
"""The part of the description of a bookie that the overview shows beside its disk."""
OWNER_KINDS = ("stream", "object", "state machine", "dataset")


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of a cluster at one moment."""

    metadata: str
    instance_id: str
    bookies: list[dict[str, Any]]
    autorecovery: dict[str, Any]
    risk: AtRisk | None
    """The number of ledgers that are at risk because bookies are lost. None if no bookie is lost,
    or nothing was counted yet."""
    problems: list[Problem]
    space_age_s: float | None
    """Seconds since the bookies reported their disk space, or None if they never did."""
    running: list[RunningJob] = field(default_factory=list)
    """The jobs that run in any process of the cluster."""
    lost: LostLedgers | None = None
    """The lost ledgers that were found. None before the first search."""
    collection: Collection = field(default_factory=Collection)
    """The state of garbage collection."""
    damage: Mapping[str, Sequence[FoundDamage]] = field(default_factory=dict)
    """The notes of bookies about damage, by the bookie's id."""
    outages: Mapping[str, Sequence[Outage]] = field(default_factory=dict)
    """The outages of the metadata store in the last hour, by the server that noticed them."""

    lost_age_s: float | None = None
    """Seconds since the last complete search for lost ledgers, or None if there was none."""
    copies: list[dict[str, Any]] = field(default_factory=list)
    """The continuous copies of streams from and to the cluster, as `CopyNote.as_json` has them."""

    def count(self) -> dict[str, int]:
        """Return the number of bookies in each state."""
        found = dict.fromkeys(STATES, 0)
        for one in self.bookies:
            found[one["state"]] += 1
        return found

    def silent(self) -> int:
        """Return the number of registered bookies that do not answer."""
        return sum(one["answers"] is False for one in self.bookies)

    def away_severity(self) -> str:
        """Return the worst severity of the bookies that are not writable or are silent, or ""."""
        found = {
            one["severity"]
            for one in self.bookies
            if one["state"] != "writable" or one["answers"] is False
        }
        return worst_of(found) or ""

    def as_json(self) -> dict[str, Any]:
        told = [one for one in self.bookies if one["free_bytes"] is not None]
        return {
            "metadata": self.metadata,
            "instance_id": self.instance_id,
            "bookies": self.count(),
            "away_severity": self.away_severity(),
            "silent_bookies": self.silent(),
            "silent_writable": sum(
                one["state"] == "writable" and one["answers"] is False for one in self.bookies
            ),
            "free_bytes": sum(one["free_bytes"] for one in told),
            "total_bytes": sum(one["total_bytes"] for one in told),
            "space_age_s": self.space_age_s,
            "fullest": [
                {name: one[name] for name in FULLEST_KEYS}
                for one in sorted(told, key=_free_share)[:FULLEST_SHOWN]
            ],
            "rates": together({one["id"]: one["rates"] for one in self.bookies if one["rates"]}),
            "autorecovery": self.autorecovery,
            "at_risk": asdict(self.risk) if self.risk is not None else None,
            "problems": [asdict(one) for one in self.problems],
            "running": [one.as_json() for one in self.running],
            "copies": self.copies,
            "lost_ledgers": None
            if self.lost is None
            else {**self.lost.as_json(), "age_s": self.lost_age_s},
            "garbage_collection": asdict(self.collection),
            "damage_found": [
                {"bookie": bookie, **asdict(one)}
                for bookie, found in self.damage.items()
                for one in found
            ],
            OUTAGES_NOTICED: [
                {"server": server, "outages": [asdict(one) for one in outages]}
                for server, outages in self.outages.items()
            ],
        }


class ClusterView:
    """A collector of the state of a cluster. Call `close` at the end.

    Values that take long to get are observed in the background, and all callers share them.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        fetch: Fetch,
        wait_s: float = LOOK_WAIT_S,
        answers_wait_s: float | None = None,
        *,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Create a view.

        Args:
            monotonic: Returns the monotonic time in seconds.
            fetch: Reads the metrics of a bookie from its URL.
            wait_s: Seconds that a caller waits for an observation. After that it gets the values
                that are already known.
            answers_wait_s: Seconds that a caller waits until all bookies have answered, or did not
                answer in time. None means `wait_s`.
            now_ms: Returns the Unix time in milliseconds, with which the clocks of bookies are
                compared. None means that of this machine.
        """
        answers_wait_s = wait_s if answers_wait_s is None else answers_wait_s
        self.spaces = DiskSpaces(monotonic, answers_wait_s)
        self.ports = GonePorts(monotonic, answers_wait_s)
        self.known = KnownReports(monotonic, fetch, wait_s, now_ms=now_ms)
        self.http_certificates: Callable[[], Sequence[CertificateExpiry]] = tuple
        """A function that returns when the certificates of this process's HTTP server expire."""
        self.rates = Rates(monotonic, fetch, wait_s)
        self.risks = LedgerRisks(monotonic, wait_s)
        self.marks = MarkCounts(monotonic, wait_s)
        self.lost = LostLedgerSearch(monotonic, wait_s)
        self.limits = StreamLimits(monotonic, wait_s)
        self.index = LedgerIndex(monotonic, wait_s)
        self.reports = BookieReports(monotonic, fetch)
        self.paces = JobPaces()
        self._first_seen = FirstSeen()
        self._suspects = Suspects(monotonic)
        self.streams = StreamWatch(monotonic, wait_s)
        self.replicas = ReplicaWatch(monotonic, wait_s)
        self._monotonic = monotonic
        self._shared: ClusterState | None = None
        """The last state that was shared, or None if the next caller has to look anew."""
        self._shared_at_s = 0.0
        """When the look that found the shared state ended, by the monotonic clock."""
        self._changes = 0
        """The number of changes that this process has made to the cluster (see `changed`)."""
        self._looking = asyncio.Lock()

    async def recent(self, client: Client) -> ClusterState:
        """Return the state of the cluster, from a look at most `SHARED_AGE_MAX_S` old.

        Requests that come close together share one look. A state from before a change that
        `changed` reported is never returned. Nobody may modify the result.

        Raises MetadataError. Safe to cancel.
        """
        async with self._looking:
            age_s = self._monotonic() - self._shared_at_s
            if self._shared is None or age_s > SHARED_AGE_MAX_S:
                self._shared, changes = None, self._changes
                found = await self.look(client)
                if changes != self._changes:
                    return found  # only this caller asked before the change
                self._shared, self._shared_at_s = found, self._monotonic()
            return self._shared

    def changed(self) -> None:
        """Report that this process may have changed the cluster, so that `recent` looks anew."""
        self._changes += 1
        self._shared = None

    async def look(self, client: Client, delay: StoreDelay | None = None) -> ClusterState:
        """Return the state of the cluster as it is now.

        The description of each bookie has the worst `severity` of the problems that name it, or "".
        `delay` measures how long the metadata store takes to answer. It may have measured requests
        before this call. With None, only this call is measured.

        Raises MetadataError. Safe to cancel.
        """
        delay = StoreDelay(self._monotonic) if delay is None else delay
        async with delay.watched(client.metadata.instance_id):
            return await self._look(client, delay)

    async def _look(self, client: Client, delay: StoreDelay) -> ClusterState:
        bookies = await bookie_facts(
            client,
            gone=True,
            spaces=self.spaces,
            rates=self.rates,
            reports=self.known,
            ports=self.ports,
        )
        recovery = await self.autorecovery(client)
        registered = [one["id"] for one in bookies if one["state"] != "gone"]
        writable = [one["id"] for one in bookies if one["state"] == "writable"]
        silent = [one["id"] for one in bookies if one["answers"] is False]
        now_ms, own_id = client.clock.now_ms(), await client.metadata.instance_id()
        observed = asyncio.gather(
            self.risks.of(client, registered, lost_groups(bookies), writable),
            self.lost.of(client),
            self.limits.of(client),
        )
        stored = asyncio.gather(
            _collection(client.metadata),
            creatable(client, silent),
            damage_notes(client.metadata, now_ms),
            noticed_outages(client.metadata, now_ms),
            copy_notes(client.metadata),
        )
        (risk, lost, full), (collection, shape, damage, outages, copies) = await asyncio.gather(
            observed, stored
        )
        found = problems(
            bookies,
            recovery,
            risk,
            lost,
            now_ms=now_ms,
            collection=collection,
            creatable=shape,
            certificates=OwnCertificates(
                tuple(self.http_certificates()), tuple(certificates_of(client))
            ),
            damage=damage,
            full=full,
            full_streams=self.limits.streams,
            copies=copies,
            own_id=own_id,
            suspects=self._suspects.recent(client.suspects()),
        )
        unsteady = of_noticed_outages(client.metadata.uri, outages, now_ms)
        disk = await asyncio.to_thread(metadata_disk, client.metadata.uri)
        running = await running_jobs(client.metadata)
        store = unsteady or metadata_slow(client.metadata.uri, delay.longest_s)
        all_found = self._first_seen.mark(
            worst_first([*of_metadata_disk(disk, bookies), *store, *found]), now_ms
        )
        worst = severities(all_found)
        for one in bookies:
            one["severity"] = worst.get(one["id"], "")
        return ClusterState(
            client.metadata.uri,
            own_id,
            bookies,
            recovery,
            risk,
            all_found,
            self.spaces.age_s,
            running,
            lost,
            collection,
            damage,
            outages,
            self.lost.age_s,
            [one.as_json(now_ms, own_id) for one in copies],
        )

    async def autorecovery(self, client: Client) -> dict[str, Any]:
        """Return the state of autorecovery as JSON.

        Raises MetadataError. Safe to cancel.
        """
        counted = await self.marks.of(client)
        return asdict(await overview(client.metadata, clock=client.clock, counted=counted))

    async def owners(self, client: Client) -> OwnerIndex:
        """Return the owners of ledgers, as far as they are known.

        `OwnerIndex.of` then names the owner of a ledger without reading anything, so a page with
        any number of ledgers costs no request. Errors of the store are not raised. Safe to cancel.
        """
        return await self.lost.owners(client)

    async def close(self) -> None:
        for one in (
            self.spaces, self.rates, self.risks, self.marks, self.lost, self.index, self.streams,
            self.known, self.ports, self.limits, self.replicas,
        ):  # fmt: skip
            await one.close()
        await self.reports.close()


def _free_share(bookie: Mapping[str, Any]) -> float:
    free, total = float(bookie["free_bytes"]), float(bookie["total_bytes"])
    return free / max(1.0, total)


async def _collection(store: MetadataStore) -> Collection:
    switch = await read_switch(store)
    off = "" if switch is None else switch.sentence()
    later: dict[str, str] = {}
    waiting = sorted((await refusals(store, later)).items())
    return Collection(
        off,
        tuple(name for name, one in waiting if not one.unreadable),
        tuple(name for name, one in waiting if one.unreadable),
        tuple(sorted(later)),
    )


def cluster_metrics(view: ClusterState | None) -> Iterable[Metric]:
    """Yield the metrics about the whole cluster, for use in alerts.

    With None, the state of the cluster could not be read, and only one metric says so.
    """
    yield gauge("quire_cluster_readable",
                "1 if this server could read the state of the cluster in time; otherwise 0, and "
                "the other metrics of the cluster are missing.",
                float(view is not None))  # fmt: skip
    if view is None:
        return
    counted = [(name, float(count)) for name, count in view.count().items()]
    yield labelled(
        "quire_cluster_bookies", "gauge",
        "The number of bookies by state: `writable`, `read-only` or `gone`.",
        "state", counted,
    )  # fmt: skip
    by_severity = dict.fromkeys(SEVERITIES, 0.0)
    for one in view.problems:
        by_severity[one.severity] += 1
    yield labelled(
        "quire_cluster_problems", "gauge",
        "The number of findings of `quire explain` by severity: `bad` (wrong), `warn` "
        "(warning) or `note`.",
        "severity", by_severity.items(),
    )  # fmt: skip
    yield gauge("quire_cluster_locations_lost",
                "The number of racks with several bookies that are all gone.",
                len(lost_groups(view.bookies).keys() - {ALONE}))  # fmt: skip
    risk = view.risk or AtRisk()
    for name, text, value in (
        ("lacking", "that are under-replicated because bookies are gone", risk.lacking),
        ("last_copy", "that have entries with only one copy left", risk.last_copy),
        ("unreadable", "that have entries with no copy left", risk.unreadable),
    ):
        yield gauge(
            f"quire_cluster_ledgers_{name}",
            f"The number of ledgers {text}, among the ledgers counted so far.",
            value,
        )
    lost = view.lost or LostLedgers()
    kinds = dict.fromkeys(OWNER_KINDS, 0.0) | {k: float(n) for k, n in lost.counts.items()}
    yield labelled(
        "quire_cluster_ledgers_lost", "gauge",
        "The number of ledgers found so far that do not exist although streams, objects or "
        "datasets need them.",
        "owner", kinds.items(),
    )  # fmt: skip
    yield gauge("quire_cluster_owners_unreadable",
                "The number of streams, objects and datasets found so far whose records cannot be "
                "read.",
                lost.unreadable_count)  # fmt: skip
    skipped = view.autorecovery.get("unreadable")
    yield gauge("quire_cluster_ledgers_skipped",
                "The number of ledgers whose metadata or repair mark the auditor's last pass could "
                "not read.",
                skipped["ledgers"] if skipped is not None else 0)  # fmt: skip
    yield gauge("quire_cluster_garbage_collection_off",
                "1 if an operator has switched garbage collection off for the cluster; otherwise "
                "0.",
                float(bool(view.collection.off)))  # fmt: skip
    yield gauge("quire_cluster_garbage_collection_refusing",
                "The number of bookies that collect nothing because the metadata store went back "
                "in time, or because the mark that shows this cannot be read.",
                len(view.collection.refusing) + len(view.collection.unreadable))  # fmt: skip
    yield gauge("quire_cluster_ledgers_marked", "The number of ledgers that are marked for repair.",
                view.autorecovery["marked"])  # fmt: skip
