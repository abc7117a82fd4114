"""The processes that work on the streams of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from quire.client import Client
from quire_simulator.streams.damage import lose_ledger, spoil_node
from quire_simulator.streams.machines import follow_machine, lead_machine
from quire_simulator.streams.plans import StreamPlan, others_of
from quire_simulator.streams.publishers import publish_batches
from quire_simulator.streams.readers import (
    follow_stream,
    remove_stream,
    rename_stream,
    scan_stream,
)
from quire_simulator.streams.retention import Retention, truncate_stream
from quire_simulator.streams.stage import StreamStage
from quire_simulator.streams.writers import write_stream

StreamWork = Callable[[object, str, Client], Awaitable[None]]

OTHERS: dict[str, Callable[[StreamStage, str, Client, StreamPlan], Awaitable[None]]] = {
    "tailer": follow_stream,
    "scanner": scan_stream,
    "truncator": truncate_stream,
    "vandal": lose_ledger,
    "spoiler": spoil_node,
    "renamer": rename_stream,
    "remover": remove_stream,
}


def stream_actors(stage: StreamStage) -> Iterator[tuple[str, float, StreamWork]]:
    """Yield the name, start time and work of each process.

    Followers end when they have read the last record of their stream, or when it will never be
    written. All others end by themselves.
    """
    Retention(stage).watch()
    for plan in stage.stage.plan.streams:
        write = lead_machine if plan.kind == "machine" else write_stream
        for k, mine in enumerate(plan.streamers):
            yield f"streamer-{plan.number}.{k}", mine.begin_s, _work(stage, plan, write, mine)
        for k, driver in enumerate(plan.drivers):
            work = _work(stage, plan, publish_batches, driver)
            yield f"driver-{plan.number}.{k}", driver.begin_s, work
        for query in plan.queries:
            from quire_simulator.spark.driver import run_query  # It imports pyspark.

            for k, dying in enumerate(query.drivers):
                work = _work(stage, plan, run_query, query, dying)
                yield f"query-{plan.number}.{k}", dying.begin_s, work
        for what, times in others_of(plan):
            act = follow_machine if (what, plan.kind) == ("tailer", "machine") else OTHERS[what]
            for k, begin_s in enumerate(times):
                yield f"{what}-{plan.number}.{k}", begin_s, _work(stage, plan, act)


def _work(
    stage: StreamStage, plan: StreamPlan, work: Callable[..., Awaitable[None]], *more: object
) -> StreamWork:
    return lambda _, who, client: work(stage, who, client, plan, *more)


def is_tailer(name: str) -> bool:
    return name.startswith("tailer-")
