"""The metrics of a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from quire._runtime.metrics import Histogram, Metric, Sample, counter, gauge, histogram


@dataclass(slots=True)
class ClientCounters:
    """The counters of one client since it was made. `COUNTED` describes them.

    Adds are counted a batch at a time.
    """

    adds: int = 0
    add_bytes: int = 0
    add_batches: int = 0
    ensemble_changes: int = 0
    ensemble_changes_without_room: int = 0
    bookie_failures: int = 0
    links_examined: int = 0
    links_silent: int = 0
    stream_commits_retried: int = 0
    add_time: Histogram = field(default_factory=Histogram)
    """A histogram of the seconds from the sending of a batch until an ack quorum had its last
    entry. Each entry of the batch counts."""

    def count_adds(self, entries: int, size_bytes: int, batches: int = 1) -> None:
        """Count entries that were sent, their payload bytes, and the batches that they formed."""
        self.adds += entries
        self.add_bytes += size_bytes
        self.add_batches += batches


COUNTED = {
    "adds": "The number of entries that were sent, each counted once",
    "add_bytes": "The payload bytes of the entries that were sent",
    "add_batches": "The number of batches in which entries were sent",
    "ensemble_changes": "The number of times bookies of an ensemble were replaced",
    "ensemble_changes_without_room": "The number of times an ensemble could not be changed because "
    "the ledger's metadata had no room for it",
    "bookie_failures": "The number of times a bookie failed a request or was lost",
    "links_examined": "The number of times a connection was probed because it might be dead",
    "links_silent": "The number of connections that were replaced because they had died silently",
    "stream_commits_retried": "The number of times the commit of a batch to a stream had to follow "
    "what other sinks or writers had published since its plan",
}
"""The help text of each counter in `ClientCounters`, by its name. The metric of a counter is called
quire_client_NAME_total."""


def client_metrics(
    counters: ClientCounters,
    unhealthy: int,
    lagged: int,
    opens_waiting: int,
    recoveries_waiting: int,
    wrong_answers: Iterable[tuple[str, str, int]] = (),
    avoided: Iterable[tuple[str, str]] = (),
) -> Iterator[Metric]:
    """Yield the metrics of one client.

    Args:
        counters: The counters of the client.
        unhealthy: The number of pairs of a bookie and a kind of wrong answer that it gave.
        lagged: The number of replicas that denied an entry and had it when they were asked again.
        opens_waiting: The number of opens that wait for others of the client.
        recoveries_waiting: The number of recoveries that wait for others of the client.
        wrong_answers: The number of wrong answers of each bookie and kind.
        avoided: The bookies that the client avoids now, each with a reason.
    """
    for name, text in COUNTED.items():
        yield counter(f"quire_client_{name}_total", f"{text}.", getattr(counters, name))
    yield gauge("quire_client_suspects",
                "The number of pairs of a bookie and a kind of wrong answer that it has given.",
                unhealthy)  # fmt: skip
    yield Metric("quire_client_wrong_answers_total", "counter",
                 "The number of wrong answers of a bookie. `kind` is `bad-digest`, `wrong-entry`, "
                 "`dropped`, `missing` or `stale-lac`; only the first three prove a fault.",
                 tuple(Sample(count, {"bookie": bookie, "kind": kind})
                       for bookie, kind, count in wrong_answers))  # fmt: skip
    yield Metric("quire_client_bookie_avoided", "gauge",
                 "Whether the client avoids a bookie now. `reason` is `wrong-answers` or `errors` "
                 "(both are a quarantine), `failed` or `slow`. Other bookies have no sample.",
                 tuple(Sample(1, {"bookie": bookie, "reason": reason})
                       for bookie, reason in avoided))  # fmt: skip
    yield counter("quire_client_replicas_lagged_total",
                  "The number of replicas that denied an entry and had it when asked again.",
                  lagged)  # fmt: skip
    yield gauge("quire_client_opens_waiting",
                "The number of opens of ledgers that wait because the client has 128 under way.",
                opens_waiting)  # fmt: skip
    yield gauge("quire_client_recoveries_waiting",
                "The number of recoveries that wait because the client has 128 under way.",
                recoveries_waiting)  # fmt: skip
    yield histogram(
        "quire_client_add_seconds",
        "Seconds from the sending of an add until an ack quorum has its batch.",
        counters.add_time,
    )
