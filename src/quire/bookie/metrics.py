"""The metrics of a bookie.

Metrics with Apache's names are for dashboards that were made for Apache BookKeeper. Metrics that
begin with `quire_` cover everything. They are collected on request. The bookie itself counts plain
integers, and updates its histograms once for each batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from quire._runtime.metrics import Metric, Sample, counter, gauge, histogram, labelled, summary_ms
from quire.net.certificates import expiry_metric
from quire.storage.stats import StorageStats

if TYPE_CHECKING:
    from quire.bookie.server import Bookie

COUNTED = {
    "connections": "The number of connections that clients made",
    "adds": "The number of entries that were accepted",
    "add_bytes": "The bytes of the requests of accepted entries",
    "add_batches": "The number of batches in which the accepted entries arrived",
    "copies": "The number of accepted entries that were replicated from other bookies; the "
    "histograms of adds and of queueing leave out batches that consist only of copies",
    "adds_refused": "The number of times adds of a ledger were refused because the ledger is "
    "fenced, the bookie is read-only, its disk failed, or the key is wrong; consecutive adds that "
    "arrive together count once",
    "reads": "The number of read requests",
    "read_bytes": "The bytes of entries that were read",
    "reads_from_disk": "The number of read requests that waited for the disk",
    "reads_failed": "The number of reads that failed because of damage, because a disk failed or "
    "is missing, or because the log is not loaded yet",
    "reads_missing": "The number of reads of entries that this bookie does not have",
    "fences": "The number of accepted requests to fence a ledger",
    "long_polls": "The number of long polls of protocol v3 that had to wait for a new LAC",
    "forces": "The number of requests to make deferred adds durable",
    "holds": "The number of times a connection was paused because too many bytes waited for the "
    "disk",
    "tls_connections": "The number of connections that were secured with TLS",
    "tls_failures": "The number of TLS handshakes that failed or took too long",
    "tls_refusals": "The number of TLS connections that were refused because the client has no "
    "authorised role",
    "requests_refused": "The number of requests that were refused because they were not encrypted "
    "or the client was not authorised",
}
"""The help text of each field of `service.Counters`. The metric of a field is
quire_bookie_NAME_total."""

SINCE_START = {
    "groups": "The number of groups that the log has written, each with one sync",
    "batches": "The number of batches in the groups that the log has written",
    "bytes_written": "The bytes of entries in the groups that the log has written",
    "log_given_back_bytes": "The bytes of the log that were dropped from the system's page cache",
    "segments_removed": "The number of segments that were removed",
    "compactions": "The number of compactions that were completed",
    "compactions_major": "The number of completed compactions that used the major ratio",
    "compaction_copied_bytes": "The bytes of entries that compactions copied",
    "compaction_written_bytes": "The bytes that compactions wrote",
    "compaction_freed_bytes": "The bytes that compactions freed",
    "scrubbed_bytes": "The bytes that the scrub has read",
    "scrubbed_segments": "The number of segments that the scrub has checked",
    "scrub_rounds": "The number of times the scrub has checked all segments",
    "damaged_reads": "The number of damaged copies of entries that reads found",
    "catch_up_waited_seconds": "Seconds that large reads waited so that adds could go first",
    "index_caches_written": "The number of index caches that were written",
}
"""The help text of each counter in `StorageStats`. The metric of a counter is
quire_storage_NAME_total."""

NOW = {
    "ledgers": "The number of ledgers on this bookie",
    "segments": "The number of segments of the log",
    "sealed_segments": "The number of sealed segments",
    "segment_bytes": "The bytes of all segment files, including preallocated space",
    "sealed_bytes": "The bytes of the files of sealed segments",
    "live_bytes": "The bytes of entries of ledgers that are not deleted",
    "runs_in_memory": "The number of runs (entries of one ledger that are adjacent in the log) in "
    "the index of segments that are not sealed",
    "queued_bytes": "The bytes of entries that were received and are not durable yet",
    "segments_to_seal": "The number of closed segments whose seal has begun and has not ended",
    "compaction_reserve_bytes": "The bytes that are preallocated for the next compaction",
    "footer_cache_bytes": "The bytes of the index that are kept in memory",
    "open_files": "The number of open segment files",
    "tombstones": "The number of deleted ledgers whose adds are still refused",
    "negatives_unknown": "1 if entries were lost, so that a missing entry is reported as unknown; "
    "otherwise 0",
    "writable": "1 if there is space for adds; otherwise 0",
    "damaged_segments": "The number of segments with known damage",
    "damaged_ledgers": "The number of ledgers that lack entries because of known damage",
}
"""The help text of each gauge in `StorageStats`. The metric of a gauge is quire_storage_NAME."""


def bookie_metrics(bookie: Bookie, now_s: float) -> Iterator[Metric]:
    """Yield all metrics of a bookie. This asks the system for the free space of the disks.

    Args:
        bookie: The bookie.
        now_s: The current time of the bookie's monotonic clock.
    """
    yield from _as_apache(bookie, now_s)
    yield from _stages(bookie)
    counters = bookie.service.counters
    for name, text in COUNTED.items():
        yield counter(f"quire_bookie_{name}_total", f"{text}.", getattr(counters, name))
    yield gauge("quire_bookie_connections", "The number of connected clients.",
                len(bookie.service.connections))  # fmt: skip
    yield gauge("quire_bookie_long_polls", "The number of tailing reads that wait.",
                bookie.service.long_polls.count)  # fmt: skip
    yield gauge("quire_bookie_min_free_bytes",
                "The free bytes below which a data directory accepts no adds (min_free_bytes).",
                bookie.config.min_free_bytes)  # fmt: skip
    yield expiry_metric("bookie", bookie.certificates())
    yield from _limits(bookie)
    yield from _damage(bookie)
    yield from _rollbacks(bookie)
    yield from _collection(bookie, now_s)
    if not bookie.recovered:
        return
    stats = bookie.store.stats()
    for field in fields(StorageStats):
        value = getattr(stats, field.name)
        if field.name in SINCE_START:
            text = SINCE_START[field.name]
            yield counter(f"quire_storage_{field.name}_total", f"{text}.", value)
        elif isinstance(value, int):
            text = NOW.get(field.name) or field.name.replace("_", " ").capitalize()
            yield gauge(f"quire_storage_{field.name}", f"{text}.", value)
    held = bookie.store.compaction_suspended
    yield labelled("quire_storage_compaction_suspended", "gauge",
                   "1 if an operator has suspended compactions of this kind (`minor` or `major`); "
                   "otherwise 0.", "kind",
                   [("minor", float(held is not None and held.minor)),
                    ("major", float(held is not None and held.major))])  # fmt: skip
    yield gauge("quire_storage_compaction_suspended_since_seconds",
                "The Unix time in seconds when compaction was suspended; 0 if it is not.",
                held.since_ms / 1000 if held is not None else 0)  # fmt: skip
    space = bookie.spaces()
    for name, text, which in (("free", "The free bytes", 2), ("total", "The total bytes", 1)):
        values = [(one[0], float(one[which])) for one in space]
        yield labelled(f"quire_directory_{name}_bytes", "gauge",
                       f"{text} of the file system of a data directory.",
                       "directory", values)  # fmt: skip


def _limits(bookie: Bookie) -> Iterator[Metric]:
    answers, limits = bookie.service.answers, bookie.service.limits
    for name, text, value in (
        ("answer_bytes", "The bytes of answers that are being read or that clients have not "
         "received yet; max_answer_bytes limits them", answers.held_bytes),
        ("waiting_requests", "The number of reads that wait because of max_answer_bytes or "
         "max_unsent_bytes", answers.requests_waiting),
        ("waiting_connections", "The number of connections with reads that wait because of "
         "max_answer_bytes or max_unsent_bytes", answers.accounts_waiting),
        ("partial_bytes", "The bytes of requests that have not arrived completely; "
         "max_partial_bytes limits them", limits.partial_bytes),
        ("connections_without_request", "The number of connections that have not completed a "
         "request yet", len(limits.newcomers)),
    ):  # fmt: skip
        yield gauge(f"quire_bookie_{name}", f"{text}.", value)
    for name, text, value in (
        ("requests_waited", "The number of reads that had to wait because of max_answer_bytes or "
         "max_unsent_bytes", answers.counters.waited),
        ("requests_dropped", "The number of waiting reads that were dropped because their "
         "connection ended", answers.counters.dropped),
        ("connections_stalled", "The number of connections that were closed because the client "
         "did not receive its answers", answers.counters.stalled),
        ("connections_refused", "The number of connections that were refused because of "
         "max_connections", limits.counters.refused),
        ("connections_displaced", "The number of connections that were closed because of "
         "max_connections, to admit another one", limits.counters.displaced),
        ("connections_silent", "The number of connections that were closed because no request "
         "arrived", limits.counters.silent),
        ("connections_unfinished", "The number of connections that were closed because a request "
         "did not arrive completely", limits.counters.partial_cut),
    ):  # fmt: skip
        yield counter(f"quire_bookie_{name}_total", f"{text}.", value)


def _damage(bookie: Bookie) -> Iterator[Metric]:
    yield counter("quire_bookie_background_errors_total",
                  "The number of unexpected errors of the bookie's periodic work, which goes on. "
                  "The log has the first of each kind.",
                  bookie.background_errors.count)  # fmt: skip
    yield gauge("quire_bookie_ledgers_unreadable",
                "The number of ledgers on this bookie whose metadata the last search for "
                "superfluous copies could not read. Their entries are kept.",
                bookie.ledgers_unreadable)  # fmt: skip
    reports = bookie.damage_reports
    if reports is None:
        return
    yield counter("quire_bookie_damage_marked_total",
                  "The number of ledgers that were marked for repair because entries on this "
                  "bookie are damaged or lost.",
                  reports.marked)  # fmt: skip
    yield counter("quire_bookie_metadata_unreadable_total",
                  "The number of times the metadata of a ledger with damaged or lost entries "
                  "could not be read.",
                  reports.unreadable)  # fmt: skip
    yield counter("quire_bookie_losses_healed_total",
                  "The number of times all entries that the log had lost were restored.",
                  reports.losses_repaired)  # fmt: skip
    yield gauge("quire_bookie_ledgers_not_whole",
                "The number of ledgers that lacked entries in the last check after a loss, or for "
                "which this is unknown; 0 if nothing is lost.",
                reports.wanting or 0)  # fmt: skip


def _rollbacks(bookie: Bookie) -> Iterator[Metric]:
    rollbacks = bookie.rollbacks
    if rollbacks is None or not bookie.recovered:
        return
    yield gauge("quire_bookie_directories_went_back",
                "The number of data directories that had gone back in time at the last start.",
                rollbacks.found)  # fmt: skip
    yield gauge("quire_bookie_log_position_unreported_seconds",
                "Seconds since the position of the log in the metadata store was last up to date; "
                "0 if it is up to date.", rollbacks.unreported_s)  # fmt: skip


def _collection(bookie: Bookie, now_s: float) -> Iterator[Metric]:
    guard = bookie.collection
    if guard is None:
        return
    reasons = [
        ("configuration", float(not guard.enabled)),
        ("switch", float(guard.switched_off)),
        ("metadata_went_back", float(guard.went_back)),
    ]
    yield labelled("quire_bookie_garbage_collection_off", "gauge",
                   "1 if this bookie deleted nothing for this reason at its last check; "
                   "otherwise 0. `reason` is `configuration` (gc_enabled), `switch` (`quire "
                   "cluster gc off`) or `metadata_went_back`.", "reason", reasons)  # fmt: skip
    yield gauge("quire_bookie_metadata_mark_age_seconds",
                "Seconds since this bookie last stored the mark that shows whether the metadata "
                "store went back in time; NaN before the first one.",
                math.nan if guard.raised_s is None
                else max(now_s - guard.raised_s, 0.0))  # fmt: skip


def _as_apache(bookie: Bookie, now_s: float) -> Iterator[Metric]:
    service, log = bookie.service, bookie.log_times
    times, counters = service.times, service.counters
    yield gauge("bookie_SERVER_STATUS",
                "The state of the bookie: 1 writable, 0 read-only, -1 not serving clients or still "
                "loading its log.",
                bookie.status)  # fmt: skip
    for name, text, good, bad in (
        ("bookkeeper_server_ADD_ENTRY_REQUEST",
         "from the receipt of the oldest add of a group to the answers",
         log.answered, times.adds_failed),
        ("bookkeeper_server_READ_ENTRY_REQUEST", "from the receipt of a read to its answer",
         times.reads, times.reads_failed),
        ("bookkeeper_server_READ_ENTRY_FENCE_REQUEST",
         "from the receipt of a fence until it is durable", times.fences, times.fences_failed),
        ("bookie_journal_JOURNAL_ADD_ENTRY",
         "from the receipt of the oldest add of a group until the group is durable",
         log.added, None),
        ("bookie_journal_JOURNAL_QUEUE_LATENCY",
         "from the receipt of the oldest add of a group until the group is started",
         log.queued, None),
        ("bookie_journal_JOURNAL_SYNC", "for the sync of a group of the log", log.synced, None),
    ):  # fmt: skip
        yield summary_ms(name, f"Milliseconds {text}.", good, bad, now_s)
    yield counter("bookie_WRITE_BYTES", "The bytes of the requests of accepted adds.",
                  counters.add_bytes)  # fmt: skip
    yield counter("bookie_READ_BYTES", "The bytes of entries that were read.", counters.read_bytes)
    yield counter("bookie_read_cache_hits", "The number of reads that did not wait for the disk.",
                  counters.reads - counters.reads_from_disk)  # fmt: skip
    yield counter("bookie_read_cache_misses", "The number of reads that waited for the disk.",
                  counters.reads_from_disk)  # fmt: skip
    if bookie.recovered:
        yield from _storage_as_apache(bookie)


def _storage_as_apache(bookie: Bookie) -> Iterator[Metric]:
    stats, counters = bookie.store.stats(), bookie.service.counters
    mean = counters.add_bytes / counters.adds if counters.adds else math.nan
    entries = round(stats.live_bytes / mean) if mean == mean else math.nan
    yield gauge("bookie_ledgers_count", "The number of ledgers on this bookie.", stats.ledgers)
    yield gauge("bookie_entries_count",
                "The estimated number of entries of ledgers that are not deleted: their bytes, "
                "divided by the mean size of the entries added since the start; NaN before the "
                "first add.",
                entries)  # fmt: skip
    yield gauge("bookie_write_cache_size", "The bytes that were received and are not durable yet.",
                stats.queued_bytes)  # fmt: skip
    yield gauge("bookie_read_cache_size", "The bytes of the index that are kept in memory; entries "
                "are in the system's page cache.", stats.footer_cache_bytes)  # fmt: skip
    yield counter("bookie_MAJOR_COMPACTION_TOTAL", "The number of major compactions.",
                  stats.compactions_major)  # fmt: skip
    yield counter("bookie_MINOR_COMPACTION_TOTAL", "The number of minor compactions.",
                  stats.compactions - stats.compactions_major)  # fmt: skip
    directories = bookie.store.directories()
    yield gauge("bookie_ledger_num_dirs", "The number of data directories.", len(directories))
    yield gauge("bookie_ledger_writable_dirs", "The number of data directories that accept adds.",
                sum(one.state == "writable" for one in directories))  # fmt: skip
    yield from _directory_usage(bookie.spaces())


def _directory_usage(spaces: Sequence[tuple[str, int, int]]) -> Iterator[Metric]:
    """Yield Apache's metric of the used share of each data directory, in percent.

    `spaces` has the path, total bytes and free bytes of each directory. Apache builds the metric's
    name from the path. Several paths can give the same name, so the label distinguishes them.
    """
    families: dict[str, list[Sample]] = {}
    for path, total, free in spaces:
        name = f"bookie_ledger_dir_{re.sub('[^a-zA-Z0-9_]', '_', path)}_usage"
        usage = 100 * (1 - free / total) if total else math.nan
        families.setdefault(name, []).append(Sample(usage, {"directory": path}))
    text = (
        "The used share of the file system of a data directory, in percent. Apache builds the name "
        "from the path; the label distinguishes directories whose paths give the same name."
    )
    for name, samples in families.items():
        yield Metric(name, "gauge", text, tuple(samples))


def _stages(bookie: Bookie) -> Iterator[Metric]:
    times, log = bookie.service.times, bookie.log_times
    for name, text, of in (
        ("bookie_add", "from the receipt of the oldest add of a group to the answers",
         log.answered),
        ("bookie_read", "from the receipt of a read to its answer", times.reads),
        ("bookie_fence", "from the receipt of a fence until it is durable", times.fences),
        ("log_add", "from the receipt of the oldest add of a group until the group is durable",
         log.added),
        ("log_queue", "from the receipt of the oldest add of a group until the group is started",
         log.queued),
        ("log_write", "for composing a group and passing it to the operating system", log.written),
        ("log_sync", "for the sync of a group", log.synced),
    ):  # fmt: skip
        yield histogram(f"quire_{name}_seconds", f"Seconds {text}.", of)
