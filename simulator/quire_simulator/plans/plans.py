"""The plan of a run as data, determined by one integer.

It has everything but the order of simultaneous events.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from typing import Any

from quire.config import MIB, BookieConfig, ClientConfig
from quire_simulator.knobs.drawing import (
    KNOBS_VARIABLE,
    DrawnKnob,
    draw_knobs,
    drawn_settings,
)
from quire_simulator.plans.faults import LAG_KINDS, Fault, make_schedule
from quire_simulator.plans.workloads import (
    RACKS,
    WORKLOADS,
    Mix,
)
from quire_simulator.streams.plans import StreamPlan, make_streams, stream_clients

SHAPES = (
    (3, 3, 2), (3, 2, 2), (3, 2, 1), (2, 2, 1), (2, 2, 2), (3, 3, 3), (1, 1, 1), (4, 3, 2),
    (5, 3, 2),
)  # fmt: skip
"""Ensemble size, write quorum and ack quorum."""
CROWD = (25, 45)
"""The smallest and largest number of ledgers of a run with many ledgers."""
CROWD_BATCHES_MAX = 4
LARGE_SCALES = (400, 1_500)
"""28 KB and 100 KB for each entry on average."""
HUGE_SCALE = 8_000
"""550 KB for each entry on average, and 1.1 MB at most."""
LARGE_BATCHES_MAX = 6
SPARSE_BATCHES_MAX = 12
BUSY_BATCHES = 60
BUSY_S = 0.6
"""The shortest time for which the writer of a busy ledger writes."""
TIGHT_BOOKIES = 3
JOINS_SHARE = 0.4
"""The share of a run after which the later bookies join."""
BEHIND_ITS_BACK = 0.6
"""The probability that another client takes over a ledger while its writer is idle."""
SOON_S = 0.3
"""Seconds after which such a writer has usually written half of its entries."""
LAGS = (1, 4)
"""The number of times that servers of the metadata store begin to lag, in runs in which they do."""
SEGMENT_BYTES = (1 << 16, 1 << 20)
LARGE_SEGMENT_BYTES = 1 << 23
"""Large enough for the largest batch and its table."""
MIN_FREE_BYTES = 1 << 22
"""The free space below which a bookie accepts no more adds."""
EMPTY = 0.1
GC_OVER_REPLICATED_S = (0.1, 1.0)
COMPACTED_SCALE = 8
COMPACTED_SEGMENT_BYTES = 1 << 17
"""Small enough for several segments in a run, each with many ledgers."""
COMPACT_RATIOS = (0.5, 0.95)
COMPACT_INTERVALS_S = (0.3, 1.0)
COMPACT_BYTES_PER_S = (0, 200_000)
COMPACT_SLOWLY_BYTES_PER_S = (0, 15_000)
"""So slowly that ledgers are dropped and come back while a segment is compacted."""
SCRUB_INTERVALS_S = (0.5, 3.0)
DAMAGE_REPORTS_S = (0.5, 3.0)
DAMAGE_REPORTS_SELDOM_S = 10.0
INDEX_INTERVALS_S = (0.0, 1.0)
INDEX_SEGMENTS = (1, 1, 3)
SELDOM_S = 300.0
UNFORGEABLE = 0.4
DIGESTS = ("crc32c", "crc32c", "crc32", "hmac")


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    number: int
    kind: str
    """The kind of writer: plain, deferred, or own ids."""
    shape: tuple[int, int, int]
    digest: str
    password: bytes
    scale: int
    """The factor by which payloads are larger."""
    begin_s: float
    batches: int
    batch_entries_max: int
    pause_s: float
    """The longest pause between two batches."""
    idle_s: float
    """The length of one pause in the middle."""
    piped: bool
    """Whether entries are submitted without waiting for each batch."""
    end: str
    """How the writer ends: close or abandon."""
    recoveries_s: tuple[float, ...]
    tails_s: tuple[float, ...]
    reads_s: tuple[float, ...]
    delete_s: float | None


@dataclass(frozen=True, slots=True)
class PublisherPlan:
    """A client that publishes ledgers in a dataset in several rounds, and a reader of it."""

    number: int
    dataset: str
    begin_s: float
    rounds: int
    pause_s: float
    """The longest pause between writing and publishing."""


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """A client that puts, gets, deletes and sweeps objects in several rounds."""

    number: int
    names: int
    """The number of names that all these clients share."""
    begin_s: float
    rounds: int
    pause_s: float
    """The longest pause between two rounds."""
    reads: float
    """The share of rounds that only read."""
    sweeps: float
    """The share of the other rounds that sweep ledgers, also those that a slow put still writes."""
    stalls: float
    """The probability that one of its calls of the metadata store waits for a while, and half the
    probability that the answer is lost.
    """


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A client that creates, writes, reads and deletes topics in several rounds."""

    number: int
    names: int
    """The number of names that all these clients share."""
    begin_s: float
    rounds: int
    pause_s: float
    """The longest pause between two rounds, and between two appends."""
    deletions: float
    """The share of rounds that delete a topic."""
    stalls: float
    """As in `ObjectPlan`."""


@dataclass(frozen=True, slots=True)
class HealerPlan:
    """A process of autorecovery."""

    number: int
    begin_s: float
    part: str
    """auditor, worker, or both."""
    delay_s: int
    """Seconds to wait for a lost bookie, the same for all processes."""
    open_grace_s: float


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job that an operator starts once."""

    number: int
    kind: str
    """decommission, rebalance or shuttle."""
    bookie: str
    """The bookie to be decommissioned."""
    begin_s: float
    open_ledgers: str
    """wait, fence, or skip."""
    open_grace_s: float
    parallel: int
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that determines a run."""

    seed: int
    workload: str
    bookies: int
    span_s: float
    explicit_lac_interval_ms: int
    metadata_delay_s: float
    metadata_version: int
    skew_ms: int
    """The largest error of a process's calendar in milliseconds."""
    uneven: bool
    """Whether each route between a client and a bookie has its own delay."""
    segment_bytes: int
    min_free_bytes: int
    gc_interval_s: float
    unacked_bytes: int
    read_window_bytes: int
    ledgers: tuple[LedgerPlan, ...]
    publishers: tuple[PublisherPlan, ...]
    streams: tuple[StreamPlan, ...]
    healers: tuple[HealerPlan, ...]
    jobs: tuple[JobPlan, ...]
    later: int
    """The number of bookies that join later, while all others are decommissioned."""
    joins_s: float
    """The time at which these bookies begin to join."""
    cancelling: float
    """The share of clients' calls that are cancelled."""
    liars: int
    """The number of Byzantine bookies that clients assume in an ensemble. If not 0, bookie-0 is
    one.
    """
    racks: int
    """The number of racks in which bookies are placed, or 0 if no racks are configured."""
    gc_over_replicated_interval_s: float
    compact_ratio: float
    """The share of live data below which segments are compacted, or 0 for no compaction."""
    directories: int
    """The number of data directories of each bookie."""
    compact_bytes_per_s: int
    scrub_interval_s: float
    """Seconds between two scrubs of a bookie's data. With 0, only damage found by reads is
    scrubbed.
    """
    metadata_mark_interval_s: float
    """Seconds between two marks by which a bookie notices that the metadata store went back."""
    gc_full_interval_s: float
    damage_report_interval_s: float
    """Seconds between two reports of lost data by a bookie."""
    index_cache_interval_s: float
    index_cache_segments: int
    schedule: tuple[Fault, ...]
    knobs: tuple[DrawnKnob, ...] = ()
    """The limits of Quire that differ from their defaults in this run."""
    objects: tuple[ObjectPlan, ...] = ()
    topics: tuple[TopicPlan, ...] = ()

    @classmethod
    def make(cls, seed: int, workload: str) -> RunPlan:
        chance, mix = random.Random(f"{seed}/plan {workload}"), WORKLOADS[workload]
        bookies, span_s = chance.randint(3, 6), chance.choice([3.0, 8.0, 15.0])
        tight = chance.random() < mix.tight
        bookies = TIGHT_BOOKIES if tight else max(bookies, mix.bookies_min)
        forgery = random.Random(f"{seed}/forgery {workload}")
        ledgers = _ledgers(chance, forgery, mix, bookies, span_s, tight=tight)
        if mix.together:
            ledgers = tuple(_like(ledger, ledgers[0]) for ledger in ledgers)
        space = random.Random(f"{seed}/space {workload}")
        index = random.Random(f"{seed}/index {workload}")
        publishers = _publishers(random.Random(f"{seed}/publishers {workload}"), mix, span_s)
        objects = _objects(random.Random(f"{seed}/objects {workload}"), mix, span_s)
        streams = make_streams(seed, workload, mix, bookies, span_s)
        # The invariants of streams expect that no other streams exist.
        chance_of_topics = random.Random(f"{seed}/topics {workload}")
        topics = () if streams else _topics(chance_of_topics, mix, span_s)
        jobs = _jobs(random.Random(f"{seed}/jobs {workload}"), mix, bookies, span_s)
        healers = _healers(random.Random(f"{seed}/healers {workload}"), mix, span_s)
        large = any(ledger.scale > COMPACTED_SCALE for ledger in ledgers)
        begins = {
            **_clients(ledgers, publishers, objects),
            **_topic_clients(topics),
            **stream_clients(streams),
            **_healer_clients(healers),
            **_job_clients(jobs),
        }
        schedule = make_schedule(
            chance,
            kinds=mix.kinds,
            count=chance.randint(*mix.faults),
            span_s=span_s,
            bookies=[f"bookie-{number}" for number in range(bookies)],
            clients=begins,
            ledgers=len(ledgers),
            streams=len(streams),
        )
        lags = random.Random(f"{seed}/lags {workload}")
        if lags.random() < mix.metadata_lags:
            more = make_schedule(
                lags, kinds=LAG_KINDS, count=lags.randint(*LAGS), span_s=span_s, bookies=(),
                clients=begins, ledgers=0,
            )  # fmt: skip
            schedule = tuple(sorted((*schedule, *more), key=lambda fault: fault.at_s))
        return cls(
            seed=seed,
            workload=workload,
            bookies=bookies,
            span_s=span_s,
            explicit_lac_interval_ms=chance.choice([0, 0, 40]),
            metadata_delay_s=chance.choice(mix.metadata_delays_s),
            metadata_version=chance.choice([2, 3, 3, 3]),
            skew_ms=chance.choice([0, 0, 1_000, 600_000]),
            uneven=chance.random() < mix.uneven,
            segment_bytes=_segment_bytes(chance, mix, large=large),
            min_free_bytes=chance.choice([0, 0, MIN_FREE_BYTES]),
            gc_interval_s=chance.choice([0.5, 3.0]),
            unacked_bytes=chance.choice([2_000, 20_000, 64 * MIB]),
            read_window_bytes=chance.choice([1_000, 20_000, MIB]),
            ledgers=ledgers,
            publishers=publishers,
            streams=streams,
            healers=healers,
            jobs=jobs,
            later=bookies // 2 if mix.moving else 0,
            joins_s=JOINS_SHARE * span_s,
            cancelling=random.Random(f"{seed}/calls {workload}").choice(mix.cancelling),
            liars=int(mix.byzantine),
            racks=RACKS if mix.racked else 0,
            gc_over_replicated_interval_s=GC_OVER_REPLICATED_S[seed % 2] if jobs else 0.0,
            compact_ratio=space.choice(COMPACT_RATIOS) if mix.compacting else 0.0,
            compact_bytes_per_s=space.choice(
                COMPACT_SLOWLY_BYTES_PER_S if mix.shuttling else COMPACT_BYTES_PER_S
            ),
            directories=random.Random(f"{seed}/directories {workload}").choice(mix.directories),
            scrub_interval_s=SCRUB_INTERVALS_S[seed % 2] if mix.bit_rot else 0.0,
            metadata_mark_interval_s=1.0 if mix.older_metadata else 10.0,
            gc_full_interval_s=1.0 if mix.older_metadata else 30.0,
            damage_report_interval_s=_damage_reports(seed, mix),
            index_cache_interval_s=index.choice(INDEX_INTERVALS_S) if mix.caching else SELDOM_S,
            index_cache_segments=index.choice(INDEX_SEGMENTS),
            schedule=schedule,
            knobs=() if os.environ.get(KNOBS_VARIABLE) == "0" else draw_knobs(seed, workload),
            objects=objects,
            topics=topics,
        )

    @property
    def names(self) -> frozenset[str]:
        """The names that a fault may have as its target."""
        bookies = (f"bookie-{number}" for number in range(self.bookies))
        ledgers = (f"ledger-{ledger.number}" for ledger in self.ledgers)
        streams = (f"stream-{stream.number}" for stream in self.streams)
        clients = (
            *_clients(self.ledgers, self.publishers, self.objects),
            *_topic_clients(self.topics),
            *stream_clients(self.streams),
            *_healer_clients(self.healers),
            *_job_clients(self.jobs),
        )
        return frozenset((*bookies, *clients, *ledgers, *streams))

    @property
    def bookie_config(self) -> BookieConfig:
        usual: dict[str, Any] = {
            "segment_bytes": self.segment_bytes,
            "min_free_bytes": self.min_free_bytes,
            "read_only_dwell_s": 1.0,
            "max_queued_bytes": 1 << 20,
            "seal_idle_s": 0.05,
            "gc_interval_s": self.gc_interval_s,
            "gc_over_replicated_interval_s": self.gc_over_replicated_interval_s,
            "check_space_s": 0.2,
            "compact_minor_ratio": self.compact_ratio,
            "compact_minor_interval_s": COMPACT_INTERVALS_S[0],
            "compact_major_ratio": self.compact_ratio,
            "compact_major_interval_s": COMPACT_INTERVALS_S[1],
            "compact_bytes_per_s": self.compact_bytes_per_s,
            "compact_reserve_bytes": self.segment_bytes,
            "scrub_interval_s": self.scrub_interval_s,
            "metadata_mark_interval_s": self.metadata_mark_interval_s,
            "gc_full_interval_s": self.gc_full_interval_s,
            "damage_report_interval_s": self.damage_report_interval_s,
            "index_cache_interval_s": self.index_cache_interval_s,
            "index_cache_segments": self.index_cache_segments,
        }
        return BookieConfig(**{**usual, **drawn_settings(self.knobs, "BookieConfig")})

    @property
    def client_config(self) -> ClientConfig:
        usual: dict[str, Any] = {
            "add_timeout_s": 1.0,
            "read_timeout_s": 1.0,
            "speculative_read_s": 0.3,
            "recovery_timeout_s": 10.0,
            "long_poll_s": 0.3,
            "bookies_wait_s": 0.5,
            "lost_quorum_wait_s": 5.0,
            "avoid_failed_bookie_s": 2.0,
            "explicit_lac_interval_s": self.explicit_lac_interval_ms / 1000,
            "ledger_metadata_version": self.metadata_version,
            "max_unacked_bytes": self.unacked_bytes,
            "max_unforced_bytes": 2 * self.unacked_bytes,
            "read_window_bytes": self.read_window_bytes,
            "assume_liars": self.liars,
        }
        return ClientConfig(**{**usual, **drawn_settings(self.knobs, "ClientConfig")})


def _ledgers(
    chance: random.Random,
    forgery: random.Random,
    mix: Mix,
    bookies: int,
    span_s: float,
    *,
    tight: bool,
) -> tuple[LedgerPlan, ...]:
    crowd = chance.random() < mix.crowd
    ledgers = tuple(
        _ledger_plan(chance, number, mix, bookies, span_s, crowd=crowd, tight=tight)
        for number in range(chance.randint(*(CROWD if crowd else mix.ledgers)))
    )
    if mix.byzantine:
        return tuple(_unforgeable(ledger) if forgery.random() < UNFORGEABLE else ledger
                     for ledger in ledgers)  # fmt: skip
    if mix.compacting or mix.short_segments:
        return tuple(replace(ledger, scale=COMPACTED_SCALE) for ledger in ledgers)
    return ledgers


def _ledger_plan(
    chance: random.Random,
    number: int,
    mix: Mix,
    bookies: int,
    span_s: float,
    *,
    crowd: bool,
    tight: bool,
) -> LedgerPlan:
    begin_s = chance.random() * span_s / (1 if mix.older_metadata else 3)
    recoveries = _recoveries(chance, mix, begin_s, span_s)
    tails = chance.randint(1, 2) if chance.random() < mix.tail else 0
    delete_s = chance.random() * span_s if chance.random() < mix.delete else None
    kind = _kind(chance, mix)
    batches, entries = chance.randint(0, 40), chance.choice([1, 3, 12])
    pause_s, scale = chance.choice([0.001, 0.05, span_s / 20]), 1
    if mix.busy:
        batches, entries, pause_s = BUSY_BATCHES, min(entries, 3), BUSY_S / BUSY_BATCHES
    elif mix.sparse:
        batches, entries, pause_s = min(batches, SPARSE_BATCHES_MAX), 1, span_s / 6
    elif crowd:
        batches, tails = batches % (CROWD_BATCHES_MAX + 1), 0
        recoveries = recoveries[:1]
    elif chance.random() < mix.large:
        batches, entries = min(batches, LARGE_BATCHES_MAX), min(entries, 3)
        scale = chance.choice((*LARGE_SCALES, HUGE_SCALE))
    if chance.random() < EMPTY:
        batches = 0
    idle_s = chance.random() * span_s if chance.random() < mix.idle else 0.0
    if idle_s and chance.random() < BEHIND_ITS_BACK:
        # Let everything that happens to the ledger happen while the writer notices nothing.
        pause_s, quiet_s = 0.001, begin_s + SOON_S
        recoveries = [quiet_s + chance.random() * idle_s / 3 for _ in recoveries]
        if delete_s is not None:
            delete_s = quiet_s + chance.uniform(1 / 3, 2 / 3) * idle_s
    return LedgerPlan(
        number=number,
        kind=kind,
        shape=chance.choice(_shapes(mix, bookies, tight=tight)),
        digest=chance.choice(DIGESTS),
        password=chance.choice([b"", b"secret"]),
        scale=scale,
        begin_s=begin_s,
        batches=batches,
        batch_entries_max=entries,
        pause_s=pause_s,
        idle_s=idle_s,
        piped=chance.random() < (0.8 if mix.busy else 0.4),
        end=chance.choice(["close", "close", "abandon"]),
        recoveries_s=tuple(recoveries),
        tails_s=tuple(chance.random() * span_s / 2 for _ in range(tails)),
        reads_s=tuple(
            chance.random() * span_s for _ in range(0 if crowd else chance.randint(*mix.readers))
        ),
        delete_s=delete_s,
    )


def _recoveries(chance: random.Random, mix: Mix, begin_s: float, span_s: float) -> list[float]:
    if chance.random() >= mix.takeover:
        return []
    at = chance.random() * span_s
    if mix.busy:
        at = begin_s + chance.random() * BUSY_S
    # Several clients begin at almost the same moment.
    return [at + chance.random() * 0.05 for _ in range(chance.choice(mix.recoverers))]


def _like(ledger: LedgerPlan, other: LedgerPlan) -> LedgerPlan:
    """Return the plan of a ledger whose entries have the size, the key and the bookies of another.

    There are as many bookies as an ensemble needs, so the ensembles are alike.
    """
    return replace(
        ledger, kind="plain", shape=other.shape, digest=other.digest,
        password=other.password, scale=0,
    )  # fmt: skip


def _unforgeable(ledger: LedgerPlan) -> LedgerPlan:
    """Use a digest that bookies cannot compute, so that one copy is trusted."""
    return replace(ledger, digest="hmac", password=b"secret")


def _segment_bytes(chance: random.Random, mix: Mix, *, large: bool) -> int:
    if mix.compacting or mix.short_segments:
        return COMPACTED_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if large else chance.choice(SEGMENT_BYTES)


def _shapes(mix: Mix, bookies: int, *, tight: bool) -> list[tuple[int, int, int]]:
    shapes = [shape for shape in mix.shapes or SHAPES if shape[0] <= bookies]
    if mix.bit_rot:
        return [shape for shape in shapes if shape[0] <= 3 and shape[2] >= 2]
    return [shape for shape in shapes if shape[0] == bookies] if tight else shapes


def _damage_reports(seed: int, mix: Mix) -> float:
    return DAMAGE_REPORTS_S[seed % 2] if mix.replacing else DAMAGE_REPORTS_SELDOM_S


def _kind(chance: random.Random, mix: Mix) -> str:
    draw = chance.random()
    if draw < mix.deferred:
        return "deferred"
    return "own ids" if draw < mix.deferred + mix.own_ids else "plain"


def readers_of(plan: LedgerPlan) -> list[tuple[str, tuple[float, ...]]]:
    """Return the kinds of the ledger's other clients, and when each client begins."""
    return [
        ("recoverer", plan.recoveries_s),
        ("tail", plan.tails_s),
        ("reader", plan.reads_s),
        ("deleter", () if plan.delete_s is None else (plan.delete_s,)),
    ]


def _publishers(chance: random.Random, mix: Mix, span_s: float) -> tuple[PublisherPlan, ...]:
    if chance.random() >= mix.datasets:
        return ()
    return tuple(
        PublisherPlan(
            number=number,
            dataset=chance.choice(["whole", "growing", "growing"]),
            begin_s=chance.random() * span_s / 2,
            rounds=chance.randint(1, 5),
            pause_s=chance.choice([0.01, 0.2, 3.0]),
        )
        for number in range(chance.randint(2, 5))
    )


def _objects(chance: random.Random, mix: Mix, span_s: float) -> tuple[ObjectPlan, ...]:
    if chance.random() >= mix.objects:
        return ()
    names, pause_s = chance.choice([1, 1, 2, 4]), chance.choice([0.001, 0.001, 0.05, 0.5])
    reads = chance.choice([0.1, 0.2, 0.5])
    return tuple(
        ObjectPlan(
            number=number,
            names=names,
            begin_s=chance.random() * span_s / 3,
            rounds=chance.randint(20, 120),
            pause_s=pause_s,
            reads=reads,
            sweeps=chance.choice([0.0, 0.0, 0.1, 0.3]),
            stalls=chance.choice([0.0, 0.0, 0.1, 0.3]),
        )
        for number in range(chance.randint(3, 6))
    )


def _topics(chance: random.Random, mix: Mix, span_s: float) -> tuple[TopicPlan, ...]:
    if chance.random() >= mix.topics:
        return ()
    names, pause_s = chance.choice([1, 1, 2, 4]), chance.choice([0.01, 0.1, 0.5])
    deletions = chance.choice([0.0, 0.02, 0.05])
    return tuple(
        TopicPlan(
            number=number,
            names=names,
            begin_s=chance.random() * span_s / 3,
            rounds=chance.randint(15, 40),
            pause_s=pause_s,
            deletions=deletions,
            stalls=chance.choice([0.0, 0.0, 0.01, 0.05]),
        )
        for number in range(chance.randint(2, 4))
    )


def _topic_clients(topics: tuple[TopicPlan, ...]) -> dict[str, float]:
    """Return when each client of topics begins."""
    return {f"topics-{plan.number}": plan.begin_s for plan in topics}


def _healers(chance: random.Random, mix: Mix, span_s: float) -> tuple[HealerPlan, ...]:
    if not mix.healing:
        return ()
    delay_s, grace_s = chance.choice([0, 0, 1, 3]), chance.choice([0.5, 2.0])
    return tuple(
        HealerPlan(
            number=number,
            begin_s=chance.random() * span_s / 2,
            part=chance.choice(["both", "both", "auditor", "worker"]),
            delay_s=delay_s,
            open_grace_s=grace_s,
        )
        for number in range(chance.randint(2, 4))
    )


def _healer_clients(healers: tuple[HealerPlan, ...]) -> dict[str, float]:
    """Return when each healer begins."""
    return {f"healer-{plan.number}": plan.begin_s for plan in healers}


def _jobs(chance: random.Random, mix: Mix, bookies: int, span_s: float) -> tuple[JobPlan, ...]:
    """Plan jobs that rebalance, or that decommission the same one bookie."""
    if mix.shuttling:
        return tuple(
            JobPlan(
                number=number,
                kind="shuttle",
                bookie="",
                begin_s=chance.uniform(0.1, 0.6) * span_s,
                open_ledgers="skip",
                open_grace_s=0.5,
                parallel=1,
                bytes_per_s=None,
            )
            for number in range(chance.randint(1, 3))
        )
    if not mix.jobs:
        return ()
    if mix.moving:
        return tuple(
            JobPlan(
                number=number,
                kind="decommission",
                bookie=f"bookie-{number}",
                begin_s=chance.uniform(JOINS_SHARE, 1.0) * span_s,
                open_ledgers=chance.choice(["wait", "wait", "fence", "skip"]),
                open_grace_s=0.5,
                parallel=4,
                bytes_per_s=None,
            )
            for number in range(bookies - bookies // 2)
        )
    leaving = f"bookie-{chance.randrange(bookies)}"
    kinds = chance.choice([
        ("decommission",), ("decommission", "decommission"), ("rebalance", "decommission"),
        ("rebalance", "rebalance"), ("decommission", "rebalance", "decommission"),
    ])  # fmt: skip
    return tuple(
        JobPlan(
            number=number,
            kind=kind,
            bookie=leaving if kind == "decommission" else "",
            begin_s=chance.uniform(0.1, 0.9) * span_s,
            open_ledgers=chance.choice(["wait", "wait", "fence", "skip"]),
            open_grace_s=chance.choice([0.5, 2.0]),
            parallel=chance.choice([1, 4]),
            bytes_per_s=chance.choice([None, 5_000.0, 20_000.0]),
        )
        for number, kind in enumerate(kinds)
    )


def _job_clients(jobs: tuple[JobPlan, ...]) -> dict[str, float]:
    """Return when each job begins."""
    return {f"job-{plan.number}": plan.begin_s for plan in jobs}


def _clients(
    ledgers: tuple[LedgerPlan, ...],
    publishers: tuple[PublisherPlan, ...],
    objects: tuple[ObjectPlan, ...],
) -> dict[str, float]:
    """Return when each client begins."""
    begins = {f"publisher-{plan.number}": plan.begin_s for plan in publishers}
    begins |= {f"objects-{one.number}": one.begin_s for one in objects}
    for plan in ledgers:
        begins[f"writer-{plan.number}"] = plan.begin_s
        for what, times in readers_of(plan):
            begins.update({f"{what}-{plan.number}.{k}": at for k, at in enumerate(times)})
    return begins
