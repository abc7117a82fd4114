"""The plan of the streams of a run as data: who writes, reads, truncates, renames and deletes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from quire_simulator.plans.workloads import Mix

STREAM_SHAPES = ((3, 3, 2), (3, 2, 2), (2, 2, 1), (2, 2, 2), (1, 1, 1), (4, 3, 2))
ENTRY_BYTES = (1_024, 4_096, 65_536)
ROLL_BYTES = (300, 2_000, 20_000, 1 << 20)
ROLL_INTERVAL_MS = (200, 2_000, 60_000)
NEVER_MS = 24 * 3600 * 1000
STREAMERS_MAX = 4
RELAY_TURNS = 4
NEARLY_S = 0.3
RELAY_BATCHES_MAX = 8
MACHINE = 0.25
"""The probability that a stream is the log of a state machine."""
RENAMED = 0.12
REMOVED = 0.15
RETAINED = 0.2
WAITS = 0.25
"""The probability that a writer opens the stream and then does nothing for a while."""
WAITS_REMOVED = 0.7
"""The probability of such a wait in a stream that is deleted. The writer learns of it late."""
TOKENS = 0.2
REPLACED_QUERY = 0.4
"""The probability that a query takes the place of another query of its writer."""
RARE = 0.15
"""The probability that a stream of a general workload is like those of a special workload."""
RARELY = ("retention", "publishing", "damaged")
RETENTION_MS = (200, 1_000, 3_000)
RETENTION_BYTES = (300, 1_000, 5_000)


@dataclass(frozen=True, slots=True)
class StreamerPlan:
    """A process that becomes the writer of a stream, or the leader of a state machine."""

    begin_s: float
    turns: int
    """The number of times that it opens the stream."""
    batches: int
    """The number of batches each time."""
    batch_records_max: int
    pause_s: float
    """The longest pause between two batches."""
    wait_s: float
    """Seconds to wait each time before the first write."""
    idle_s: float
    """The length of one pause in the middle each time."""
    snapshot_every: int
    """The number of commands between two snapshots of a leader."""
    end: str
    """How it ends each time: close, abandon, or leave."""


@dataclass(frozen=True, slots=True)
class DriverPlan:
    """A driver that publishes batches of records. Drivers of one query share a checkpoint."""

    begin_s: float
    writer: str
    """The name of the writer, or empty for a job that publishes once."""
    query: str
    """The query of the writer, or the name of the job."""
    takeover: bool
    """Whether the query may take the place of another query of its writer."""
    fence_writers: bool
    """Whether its commits may fence a writer that took over after the plan."""
    batches: int
    tasks_max: int
    task_records_max: int
    task_s: float
    """The longest pause of a task."""
    pause_s: float
    """The longest pause between two batches."""
    dies_in_step: int
    """The number of the step in which the driver dies, or 0."""
    dies_after_s: float
    """Seconds into that step after which it dies."""


@dataclass(frozen=True, slots=True)
class DyingPlan:
    """A driver of a query, which continues from the checkpoint of the one before."""

    begin_s: float
    in_step: int
    """The number of the step in which the driver dies, or 0."""
    after_s: float
    """Seconds into that step after which it dies."""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A streaming query of Spark that reads streams, and writes their records to this one."""

    writer: str
    query: str
    takeover: bool
    sources: tuple[int, ...]
    """The numbers of the streams that it reads."""
    pattern: bool
    """Whether it finds its sources by a pattern."""
    lenient: bool
    """Whether it continues without records that are gone."""
    subscription: bool
    """Whether it stores its positions with the sources."""
    records_max: int
    bytes_max: int
    """The limits of a micro-batch, or 0."""
    partition_bytes: int
    min_partitions: int
    task_s: float
    """The longest pause of a task after each part that it reads."""
    pause_s: float
    """The longest pause between two micro-batches."""
    drivers: tuple[DyingPlan, ...]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    number: int
    kind: str
    """stream or machine."""
    shape: tuple[int, int, int]
    txids: str
    compression: str
    entry_bytes: int
    entries_in_flight: int
    roll_bytes: int
    roll_interval_ms: int
    retention_ms: int
    retention_bytes: int
    explicit: bool
    """Whether retention deletes only what was truncated explicitly."""
    producers: int
    tokens: bool
    """Whether its writers set fencing tokens."""
    ends: bool
    """Whether one of its writers may end it for good."""
    streamers: tuple[StreamerPlan, ...]
    drivers: tuple[DriverPlan, ...]
    queries: tuple[QueryPlan, ...]
    """The query that writes to this stream, if there is one."""
    follows_s: tuple[float, ...]
    scans_s: tuple[float, ...]
    """The start times of readers that do not follow."""
    truncations_s: tuple[float, ...]
    losses_s: tuple[float, ...]
    """The times at which the ledger of the segment in progress is deleted."""
    spoils_s: tuple[float, ...]
    """The times at which the node of a segment becomes unreadable for a while."""
    rename_s: float | None
    remove_s: float | None

    @property
    def settings(self) -> dict[str, Any]:
        ensemble, write_quorum, ack_quorum = self.shape
        return {
            "ensemble_size": ensemble,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
            "txids": self.txids,
            "compression": self.compression,
            "entry_bytes": self.entry_bytes,
            "entries_in_flight": self.entries_in_flight,
            "roll_bytes": self.roll_bytes,
            "roll_interval_s": self.roll_interval_ms / 1000,
            "retention_s": self.retention_ms / 1000,
            "retention_bytes": self.retention_bytes,
            "explicit_truncation": self.explicit,
        }

    @property
    def retained(self) -> bool:
        """Whether segments may be truncated without a request."""
        limited = bool(self.retention_ms or self.retention_bytes) and not self.explicit
        return self.kind == "machine" or limited

    @property
    def name(self) -> str:
        return f"{self.kind[0]}{self.number}"

    @property
    def new_name(self) -> str:
        """The name after the rename."""
        return f"renamed/{self.name}"


def make_streams(
    seed: int, workload: str, mix: Mix, bookies: int, span_s: float
) -> tuple[StreamPlan, ...]:
    """Plan the streams.

    They have their own generator, so the ledgers of a run are the same with and without streams.
    """
    chance = random.Random(f"{seed}/streams {workload}")
    if chance.random() >= mix.streaming:
        return ()
    plans = [
        _stream_plan(chance, number, bookies, span_s)
        for number in range(chance.randint(*mix.streams))
    ]
    if mix.streams_mostly == "spark":
        return _with_query(chance, plans, span_s)
    if mix.streams_mostly:
        return tuple(CHANGES[mix.streams_mostly](chance, plan, span_s) for plan in plans)
    rare = random.Random(f"{seed}/rare streams {workload}")
    return tuple(
        CHANGES[rare.choice(RARELY)](rare, plan, span_s) if rare.random() < RARE else plan
        for plan in plans
    )


def _stream_plan(chance: random.Random, number: int, bookies: int, span_s: float) -> StreamPlan:
    machine = chance.random() < MACHINE
    begin_s = chance.random() * span_s / 4
    removed = not machine and chance.random() < REMOVED
    renamed = not machine and not removed and chance.random() < RENAMED
    retained = not machine and chance.random() < RETAINED
    by_age = chance.random() < 0.5
    return StreamPlan(
        number=number,
        kind="machine" if machine else "stream",
        shape=chance.choice([shape for shape in STREAM_SHAPES if shape[0] <= bookies]),
        txids="time" if machine else chance.choice(["time", "given"]),
        compression=chance.choice(["none", "none", "lz4"]),
        entry_bytes=chance.choice(ENTRY_BYTES),
        entries_in_flight=chance.choice([1, 4]),
        roll_bytes=chance.choice(ROLL_BYTES),
        roll_interval_ms=chance.choice([*ROLL_INTERVAL_MS, NEVER_MS]),
        retention_ms=chance.choice([500, 5_000]) if retained and by_age else 0,
        retention_bytes=chance.choice([1_000, 5_000]) if retained and not by_age else 0,
        explicit=False,
        producers=0 if machine else chance.choice([0, 1, 1, 3]),
        tokens=not machine and chance.random() < TOKENS,
        ends=not machine and not removed and chance.random() < 0.15,
        streamers=tuple(
            _streamer_plan(chance, begin_s, span_s, WAITS_REMOVED if removed else WAITS)
            for _ in range(chance.randint(1, STREAMERS_MAX))
        ),
        drivers=(),
        queries=(),
        follows_s=tuple(chance.random() * span_s / 2 for _ in range(chance.randint(0, 2))),
        scans_s=()
        if machine
        else tuple(chance.random() * span_s for _ in range(chance.randint(0, 3))),
        truncations_s=()
        if machine
        else tuple(chance.random() * span_s for _ in range(chance.choice([0, 0, 1, 3, 6]))),
        losses_s=(),
        spoils_s=(),
        rename_s=chance.random() * span_s if renamed else None,
        remove_s=begin_s + chance.random() ** 2 * span_s if removed else None,
    )


def _as_relay(chance: random.Random, plan: StreamPlan, span_s: float) -> StreamPlan:
    """Let several writers with producers take over from each other while segments are small."""
    begin_s = plan.streamers[0].begin_s
    streamers = [
        replace(
            _streamer_plan(chance, begin_s, span_s, WAITS),
            turns=RELAY_TURNS,
            batches=chance.randint(1, RELAY_BATCHES_MAX),
            pause_s=chance.choice([0.001, 0.05]),
            end=chance.choice(["close", "abandon", "leave"]),
        )
        for _ in range(chance.randint(2, STREAMERS_MAX))
    ]
    return replace(
        plan, kind="stream", producers=chance.randint(1, 3), roll_bytes=chance.choice([300, 2_000]),
        retention_ms=0, retention_bytes=0, streamers=tuple(streamers), truncations_s=(),
        rename_s=None, remove_s=None,
    )  # fmt: skip


def _as_lives(chance: random.Random, plan: StreamPlan, span_s: float) -> StreamPlan:
    """Let truncations, a rename or a deletion happen at almost the same moment, while writers
    sleep.

    Half of the deleted streams are created again for a writer that does not know about the earlier
    life.
    """
    begin_s = plan.streamers[0].begin_s
    at_s = begin_s + chance.random() * span_s / 2
    removed = chance.random() < 0.6
    apart = removed and chance.random() < 0.5
    streamers = [
        replace(
            _streamer_plan(chance, begin_s, span_s, 1.0 if apart else WAITS_REMOVED),
            batches=chance.randint(1 if apart else 0, RELAY_BATCHES_MAX),
            turns=1 if apart else chance.choice([1, 2, 4]),
        )
        for _ in range(2 if apart else chance.randint(2, STREAMERS_MAX))
    ]
    if apart:
        streamers[0] = replace(streamers[0], begin_s=begin_s, wait_s=span_s / 2)
        streamers[1] = replace(streamers[1], begin_s=at_s + chance.random(), wait_s=span_s)
    nearly = [chance.uniform(-NEARLY_S, NEARLY_S) for _ in range(chance.randint(0, 6))]
    return replace(
        plan, kind="stream", roll_bytes=chance.choice([300, 2_000]),
        retention_ms=0, retention_bytes=0, ends=False, streamers=tuple(streamers),
        truncations_s=tuple(max(0.0, at_s + by_s) for by_s in nearly),
        rename_s=None if removed else at_s,
        remove_s=at_s if removed else None,
    )  # fmt: skip


def _as_retention(chance: random.Random, plan: StreamPlan, span_s: float) -> StreamPlan:
    """Let many small segments be truncated at any place, and by age and size, while they are
    written.
    """
    begin_s = plan.streamers[0].begin_s
    kind = chance.choice(["age", "age", "size", "size", "both", "explicit", "none"])
    renamed = chance.random() < RENAMED
    streamers = [
        replace(
            _streamer_plan(chance, begin_s, span_s, 0.0),
            batches=chance.randint(10, 40),
            pause_s=chance.choice([0.02, 0.2, span_s / 20]),
            turns=chance.choice([1, 2]),
            idle_s=0.0,
        )
        for _ in range(chance.randint(1, 2))
    ]
    return replace(
        plan, kind="stream", txids=chance.choice(["time", "given"]),
        producers=chance.choice([0, 0, 1]),
        roll_bytes=chance.choice([300, 300, 2_000]),
        roll_interval_ms=chance.choice([200, NEVER_MS]),
        retention_ms=chance.choice(RETENTION_MS) if kind in ("age", "both", "explicit") else 0,
        retention_bytes=chance.choice(RETENTION_BYTES) if kind in ("size", "both") else 0,
        explicit=kind == "explicit",
        streamers=tuple(streamers),
        truncations_s=tuple(
            begin_s + chance.random() * (span_s - begin_s) for _ in range(chance.randint(3, 8))
        ),
        rename_s=chance.random() * span_s if renamed else None,
        remove_s=None,
    )  # fmt: skip


FAN_IN = 0.5
"""The probability that several sinks publish to the stream at the same time."""
OTHER_SINKS = (("c", "q4"), ("d", "q5"), ("e", "q6"))


def _as_published(chance: random.Random, plan: StreamPlan, span_s: float) -> StreamPlan:
    """Let drivers publish batches, and die, while a writer appends now and then."""
    begin_s = plan.streamers[0].begin_s
    queries = [("a", "q1"), ("a", "q1"), ("a", "q1"), ("", "job1"), ("", "job1"), ("b", "q2")]
    if chance.random() < REPLACED_QUERY:
        queries += [("a", "q3"), ("a", "q3"), ("a", "q1")]
    fan_in = chance.random() < FAN_IN
    if fan_in:
        queries = [*OTHER_SINKS, *OTHER_SINKS, *queries[:3], ("b", "q2"), ("", "job1")]
    fence_writers = chance.random() < 0.3
    takeover = chance.random() < 0.7
    drivers = tuple(
        DriverPlan(
            begin_s=begin_s + chance.choice([0.0, 0.3, 1.0]) * chance.random() * span_s,
            writer=writer,
            query=query,
            takeover=takeover,
            fence_writers=fence_writers,
            batches=chance.randint(2, 6) if writer else 1,
            tasks_max=chance.choice([1, 3, 5]),
            task_records_max=chance.choice([1, 5, 40]),
            task_s=chance.choice([0.0, 0.01, 0.3]),
            pause_s=chance.choice([0.01, 0.3, span_s / 10]),
            dies_in_step=chance.choice([0, 0, *range(1, 13)]),
            dies_after_s=chance.choice([0.0, 0.001, 0.02, 0.3, 1.0]) * chance.random(),
        )
        for writer, query in chance.sample(
            queries, chance.randint(len(queries) // 2 if fan_in else 2, len(queries))
        )
    )
    some = chance.random()
    return replace(
        plan, kind="stream", drivers=drivers,
        streamers=plan.streamers[: chance.choice([1, 1, 2])],
        retention_ms=0, retention_bytes=0, ends=False, rename_s=None, remove_s=None,
        truncations_s=plan.truncations_s if some < 0.2 else (),
        scans_s=tuple(begin_s + chance.random() * span_s for _ in range(4)),
    )  # fmt: skip


def _as_damaged(chance: random.Random, plan: StreamPlan, span_s: float) -> StreamPlan:
    """Let ledgers of segments in progress be deleted, or nodes of segments become unreadable."""
    begin_s, lost = plan.streamers[0].begin_s, chance.random() < 0.6
    streamers = tuple(
        replace(
            _streamer_plan(chance, begin_s, span_s, WAITS),
            batches=chance.randint(5, 20), turns=chance.choice([2, 4]), idle_s=0.0,
        )
        for _ in range(chance.randint(1, 3))
    )  # fmt: skip
    times = tuple(begin_s + chance.random() * span_s for _ in range(chance.randint(1, 3)))
    if plan.kind == "machine":  # Commands that are lost with a ledger are lost for the machine.
        return replace(plan, spoils_s=times)
    return replace(
        plan, kind="stream", streamers=streamers, ends=False, tokens=False,
        producers=0 if lost else plan.producers, retention_ms=0, retention_bytes=0,
        losses_s=times if lost else (),
        spoils_s=() if lost and chance.random() < 0.7 else times,
        rename_s=None, remove_s=None,
        follows_s=tuple(chance.random() * span_s / 2 for _ in range(chance.randint(1, 3))),
        truncations_s=plan.truncations_s if chance.random() < 0.3 else (),
    )  # fmt: skip


def _with_query(
    chance: random.Random, plans: list[StreamPlan], span_s: float
) -> tuple[StreamPlan, ...]:
    """Make the last stream the sink of a query that reads the others."""
    what = chance.choice(["kept", "kept", "kept", "truncated", "recreated", "recreated"])
    sources = tuple(_as_source(chance, plan, span_s, what) for plan in plans[:-1])
    begin_s = min(plan.streamers[0].begin_s for plan in sources)
    query = QueryPlan(
        writer="w",
        query="q",
        takeover=chance.random() < 0.3,
        sources=tuple(plan.number for plan in sources),
        pattern=chance.random() < 0.3,
        lenient=chance.random() < 0.3,
        subscription=chance.random() < 0.4,
        records_max=chance.choice([0, 0, 1, 7, 50]),
        bytes_max=chance.choice([0, 0, 0, 300, 5_000]),
        partition_bytes=chance.choice([100, 2_000, 1 << 20]),
        min_partitions=chance.choice([1, 1, 3]),
        task_s=chance.choice([0.0, 0.01, 0.2]),
        pause_s=chance.choice([0.01, 0.3, span_s / 10]),
        drivers=tuple(
            DyingPlan(
                begin_s=begin_s + k * chance.random() * span_s / 3,
                in_step=chance.choice([0, *range(1, 21)]),
                after_s=chance.choice([0.0, 0.001, 0.02, 0.3]) * chance.random(),
            )
            for k in range(chance.randint(2, 5))
        ),
    )
    idle = replace(plans[-1].streamers[0], turns=0, batches=0)
    sink = replace(
        plans[-1], kind="stream", queries=(query,), streamers=(idle,), ends=False, producers=0,
        tokens=False, retention_ms=0, retention_bytes=0, rename_s=None, remove_s=None,
        truncations_s=(),
    )  # fmt: skip
    return (*sources, sink)


def _as_source(chance: random.Random, plan: StreamPlan, span_s: float, what: str) -> StreamPlan:
    begin_s = plan.streamers[0].begin_s
    removed = begin_s + chance.uniform(0.2, 0.8) * span_s
    streamers = [
        replace(
            _streamer_plan(chance, begin_s, span_s, 0.0),
            batches=chance.randint(3, 12),
            pause_s=chance.choice([0.05, span_s / 10]),
            turns=4,
        )
        for _ in range(chance.randint(1, 2))
    ]
    return replace(
        plan, kind="stream", producers=chance.choice([0, 1]), ends=False, rename_s=None,
        roll_bytes=chance.choice([300, 2_000, 1 << 20]),
        retention_ms=0, retention_bytes=0, streamers=tuple(streamers), follows_s=(), scans_s=(),
        truncations_s=plan.truncations_s if what == "truncated" else (),
        remove_s=removed if what == "recreated" else None,
    )  # fmt: skip


CHANGES: dict[str, Callable[[random.Random, StreamPlan, float], StreamPlan]] = {
    "relay": _as_relay,
    "lives": _as_lives,
    "retention": _as_retention,
    "publishing": _as_published,
    "damaged": _as_damaged,
}
"""The functions that adapt each stream to a workload, by the value of `Mix.streams_mostly`."""


def _streamer_plan(
    chance: random.Random, begin_s: float, span_s: float, waits: float
) -> StreamerPlan:
    return StreamerPlan(
        begin_s=begin_s + chance.choice([0.0, 0.02, span_s / 2]) * chance.random(),
        turns=chance.choice([1, 1, 2, 4]),
        batches=chance.randint(0, 20),
        batch_records_max=chance.choice([1, 5, 20]),
        pause_s=chance.choice([0.001, 0.05, span_s / 20]),
        wait_s=chance.random() * span_s / 2 if chance.random() < waits else 0.0,
        idle_s=chance.choice([0.0, 0.0, chance.random() * span_s / 3]),
        snapshot_every=chance.choice([0, 3, 10]),
        end=chance.choice(["close", "close", "abandon", "leave"]),
    )


def others_of(plan: StreamPlan) -> list[tuple[str, tuple[float, ...]]]:
    """Return the kinds of the stream's other processes, with the start time of each process."""
    return [
        ("tailer", plan.follows_s),
        ("scanner", plan.scans_s),
        ("truncator", plan.truncations_s),
        ("vandal", plan.losses_s),
        ("spoiler", plan.spoils_s),
        ("renamer", () if plan.rename_s is None else (plan.rename_s,)),
        ("remover", () if plan.remove_s is None else (plan.remove_s,)),
    ]


def streamers_of(plans: tuple[StreamPlan, ...]) -> Iterator[tuple[str, float]]:
    """Yield the name and start time of each writer."""
    for plan in plans:
        for k, streamer in enumerate(plan.streamers):
            yield f"streamer-{plan.number}.{k}", streamer.begin_s


def stream_clients(plans: tuple[StreamPlan, ...]) -> dict[str, float]:
    """Return the start time of each client, by its name."""
    begins = dict(streamers_of(plans))
    for plan in plans:
        for query in plan.queries:
            begins |= {f"query-{plan.number}.{k}": d.begin_s for k, d in enumerate(query.drivers)}
        begins |= {f"driver-{plan.number}.{k}": d.begin_s for k, d in enumerate(plan.drivers)}
        for what, times in others_of(plan):
            begins.update({f"{what}-{plan.number}.{k}": at for k, at in enumerate(times)})
    return begins
