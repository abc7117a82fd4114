"""A bookie's numbers: under Apache's names what its dashboards ask for, and under ours all there
is. Collected when somebody asks; the bookie keeps plain integers, and histograms a batch at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from quire._runtime.metrics import Metric, Sample, counter, gauge, histogram, labelled, summary_ms
from quire.storage.stats import StorageStats

if TYPE_CHECKING:
    from quire.bookie.server import Bookie

COUNTED = {
    "connections": "Connections of clients that were made",
    "adds": "Entries that were accepted",
    "add_bytes": "Bytes of their frames",
    "add_batches": "Batches they came in",
    "copies": "Of these, entries that replication has brought: the histograms leave them out",
    "adds_refused": "Runs of adds that were refused: fenced, read-only, a wrong key",
    "reads": "Read requests",
    "read_bytes": "Bytes of entries that were read",
    "reads_from_disk": "Read requests that had to wait for the device",
    "reads_failed": "Reads that met damage, or a disk that failed",
    "reads_missing": "Reads of what is not here",
    "fences": "Requests to fence a ledger",
    "long_polls": "Tailing readers that had to wait",
    "forces": "Requests to make deferred adds durable",
    "holds": "Times a connection was paused because too much was queued for the disk",
    "tls_connections": "Connections that were secured",
    "tls_failures": "TLS handshakes that failed or took too long",
    "tls_refusals": "Secured connections without an authorised role",
    "requests_refused": "Requests in clear text, or from nobody who is authorised",
}
"""`bookie.service.Counters`: each becomes quire_bookie_NAME_total."""

SINCE_START = {
    "groups": "Groups that the log has written, each with one sync",
    "batches": "Batches in them",
    "bytes_written": "Bytes of frames in them",
    "log_given_back_bytes": "Bytes of the log that the system's cache was told to give back",
    "segments_removed": "Segments that were removed",
    "compactions": "Compactions that came to their end",
    "compactions_major": "Those of them that looked for segments below the major ratio",
    "compaction_copied_bytes": "Bytes of frames that compactions copied",
    "compaction_written_bytes": "Bytes that compactions wrote",
    "compaction_freed_bytes": "Bytes that compactions gave back",
    "scrubbed_bytes": "Bytes that the scrub has read",
    "scrubbed_segments": "Segments that it has been through",
    "scrub_rounds": "Times it has been through all of them",
    "damaged_reads": "Copies of entries that reads found damaged",
    "catch_up_waited_seconds": "Seconds that large reads have waited for adds",
    "index_caches_written": "Index caches that were written",
}
"""Fields of `StorageStats` that count: each becomes quire_storage_NAME_total."""

NOW = {
    "ledgers": "Ledgers with a state here",
    "segments": "Segments of the log",
    "sealed_segments": "Those that are sealed",
    "segment_bytes": "Bytes of all segment files, preallocated parts included",
    "sealed_bytes": "Bytes of the files of sealed segments",
    "live_bytes": "Bytes of frames of ledgers that are not deleted",
    "runs_in_memory": "Runs of the index of segments that are not sealed",
    "queued_bytes": "Bytes received and not yet durable",
    "segments_to_seal": "Segments that wait to be sealed",
    "compaction_reserve_bytes": "Bytes preallocated for the next compaction",
    "footer_cache_bytes": "Bytes of the index that are kept in memory",
    "open_files": "Segment files that are open",
    "tombstones": "Deleted ledgers that are still refused",
    "negatives_unknown": "1: something was lost, so that absence is answered as unknown",
    "writable": "1: there is room for adds",
    "damaged_segments": "Segments that are known to have damage",
    "damaged_ledgers": "Ledgers that are known to lack entries by it",
}
"""The other fields that are numbers: each becomes quire_storage_NAME."""


def bookie_metrics(bookie: Bookie, now_s: float) -> Iterator[Metric]:
    """All of them. `now_s`: the bookie's monotonic clock. Asks the system for the disks' space."""
    yield from _as_apache(bookie, now_s)
    yield from _stages(bookie)
    counters = bookie.service.counters
    for name, text in COUNTED.items():
        yield counter(f"quire_bookie_{name}_total", f"{text}.", getattr(counters, name))
    yield gauge("quire_bookie_connections", "Connections of clients.",
                len(bookie.service.connections))  # fmt: skip
    yield gauge("quire_bookie_long_polls", "Tailing readers that wait.",
                bookie.service.long_polls.count)  # fmt: skip
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
                   "1: an operator has suspended compactions of this kind.", "kind",
                   [("minor", float(held is not None and held.minor)),
                    ("major", float(held is not None and held.major))])  # fmt: skip
    yield gauge("quire_storage_compaction_suspended_since_seconds",
                "Since when, by the calendar; 0: none is.",
                held.since_ms / 1000 if held is not None else 0)  # fmt: skip
    space = bookie.spaces()
    for name, text, which in (("free", "Free bytes", 2), ("total", "All bytes", 1)):
        values = [(one[0], float(one[which])) for one in space]
        yield labelled(f"quire_directory_{name}_bytes", "gauge",
                       f"{text} of the file system of a data directory.",
                       "directory", values)  # fmt: skip


def _limits(bookie: Bookie) -> Iterator[Metric]:
    answers, limits = bookie.service.answers, bookie.service.limits
    for name, text, value in (
        ("answer_bytes", "Bytes of answers that are being read, or that clients have not taken: "
         "bounded by max_answer_bytes", answers.held_bytes),
        ("waiting_requests", "Requests that wait for room for their answers",
         answers.requests_waiting),
        ("waiting_connections", "Connections with such requests", answers.accounts_waiting),
        ("partial_bytes", "Bytes of requests that have not arrived completely: bounded by "
         "max_partial_bytes", limits.partial_bytes),
        ("connections_without_request", "Connections that have not completed a request yet",
         len(limits.newcomers)),
    ):  # fmt: skip
        yield gauge(f"quire_bookie_{name}", f"{text}.", value)
    for name, text, value in (
        ("requests_waited", "Requests that had to wait for room for their answers",
         answers.counters.waited),
        ("requests_dropped", "Requests that waited for room and were dropped because their "
         "connection ended",
         answers.counters.dropped),
        ("connections_stalled", "Connections that were closed because the client did not take its "
         "answers", answers.counters.stalled),
        ("connections_refused", "Connections that were refused at max_connections",
         limits.counters.refused),
        ("connections_displaced", "Connections that were closed to admit another at "
         "max_connections", limits.counters.displaced),
        ("connections_silent", "Connections that were closed because no request came",
         limits.counters.silent),
        ("connections_unfinished", "Connections that were closed because of an unfinished request",
         limits.counters.partial_cut),
    ):  # fmt: skip
        yield counter(f"quire_bookie_{name}_total", f"{text}.", value)


def _damage(bookie: Bookie) -> Iterator[Metric]:
    yield gauge("quire_bookie_ledgers_unreadable",
                "Ledgers on this bookie whose metadata could not be read by the last pass for "
                "superfluous copies. "
                "Their entries are kept.", bookie.ledgers_unreadable)  # fmt: skip
    reports = bookie.damage_reports
    if reports is None:
        return
    yield counter("quire_bookie_damage_marked_total",
                  "Ledgers that were marked for what is damaged or lost here.",
                  reports.marked)  # fmt: skip
    yield counter("quire_bookie_metadata_unreadable_total",
                  "Times that the metadata of such a ledger made no sense.",
                  reports.unreadable)  # fmt: skip
    yield counter("quire_bookie_losses_healed_total",
                  "Times that all that the log had lost was there once more.",
                  reports.losses_repaired)  # fmt: skip
    yield gauge("quire_bookie_ledgers_not_whole",
                "While something is lost: ledgers that lacked entries in the last round over the "
                "cluster, or of which that was not known.", reports.wanting or 0)  # fmt: skip


def _rollbacks(bookie: Bookie) -> Iterator[Metric]:
    rollbacks = bookie.rollbacks
    if rollbacks is None or not bookie.recovered:
        return
    yield gauge("quire_bookie_directories_went_back",
                "Data directories that had gone back in time at the last start.",
                rollbacks.found)  # fmt: skip
    yield gauge("quire_bookie_log_position_unreported_seconds",
                "Seconds since the position of the log was last reported to the store; 0 if it "
                "is up to date.", rollbacks.unreported_s)  # fmt: skip


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
                   "1: this bookie deletes nothing, for this reason, according to the last check.",
                   "reason", reasons)  # fmt: skip
    yield gauge("quire_bookie_metadata_mark_age_seconds",
                "Seconds since the metadata store took this bookie's newest mark; NaN before the "
                "first one.",
                math.nan if guard.raised_s is None
                else max(now_s - guard.raised_s, 0.0))  # fmt: skip


def _as_apache(bookie: Bookie, now_s: float) -> Iterator[Metric]:
    service, log = bookie.service, bookie.log_times
    times, counters = service.times, service.counters
    yield gauge("bookie_SERVER_STATUS", "1: writable, 0: read-only, -1: not registered.",
                bookie.status)  # fmt: skip
    for name, text, good, bad in (
        ("bookkeeper_server_ADD_ENTRY_REQUEST",
         "adds, from the receipt of the oldest of their group to their answers",
         log.answered, times.adds_failed),
        ("bookkeeper_server_READ_ENTRY_REQUEST", "reads, from their receipt to the answer",
         times.reads, times.reads_failed),
        ("bookkeeper_server_READ_ENTRY_FENCE_REQUEST",
         "fences, from their receipt until they were durable", times.fences, times.fences_failed),
        ("bookie_journal_JOURNAL_ADD_ENTRY",
         "adds, from the receipt of the oldest of their group until they were durable",
         log.added, None),
        ("bookie_journal_JOURNAL_QUEUE_LATENCY",
         "groups of the log, from the receipt of the oldest add until the group was begun",
         log.queued, None),
        ("bookie_journal_JOURNAL_SYNC", "syncs of the log, one for each group", log.synced, None),
    ):  # fmt: skip
        yield summary_ms(name, f"Milliseconds of {text}.", good, bad, now_s)
    yield counter("bookie_WRITE_BYTES", "Bytes of the frames of accepted adds.", counters.add_bytes)
    yield counter("bookie_READ_BYTES", "Bytes of entries that were read.", counters.read_bytes)
    yield counter("bookie_read_cache_hits", "Reads that did not wait for the device.",
                  counters.reads - counters.reads_from_disk)  # fmt: skip
    yield counter("bookie_read_cache_misses", "Reads that waited for the device.",
                  counters.reads_from_disk)  # fmt: skip
    if bookie.recovered:
        yield from _storage_as_apache(bookie)


def _storage_as_apache(bookie: Bookie) -> Iterator[Metric]:
    stats, counters = bookie.store.stats(), bookie.service.counters
    mean = counters.add_bytes / counters.adds if counters.adds else math.nan
    entries = round(stats.live_bytes / mean) if mean == mean else math.nan
    yield gauge("bookie_ledgers_count", "Ledgers with a state here.", stats.ledgers)
    yield gauge("bookie_entries_count",
                "Entries of ledgers that are not deleted, estimated: their bytes, divided by the "
                "mean size of what was added since the start; NaN before the first add.",
                entries)  # fmt: skip
    yield gauge("bookie_write_cache_size", "Bytes received and not yet durable.",
                stats.queued_bytes)  # fmt: skip
    yield gauge("bookie_read_cache_size", "Bytes of the index that are kept in memory; entries are "
                "in the system's page cache.", stats.footer_cache_bytes)  # fmt: skip
    yield counter("bookie_MAJOR_COMPACTION_TOTAL", "Compactions of the major kind.",
                  stats.compactions_major)  # fmt: skip
    yield counter("bookie_MINOR_COMPACTION_TOTAL", "Compactions of the minor kind.",
                  stats.compactions - stats.compactions_major)  # fmt: skip
    directories = bookie.store.directories()
    yield gauge("bookie_ledger_num_dirs", "Data directories.", len(directories))
    yield gauge("bookie_ledger_writable_dirs", "Data directories that take adds.",
                sum(one.state == "writable" for one in directories))  # fmt: skip
    yield from _directory_usage(bookie.spaces())


def _directory_usage(spaces: Sequence[tuple[str, int, int]]) -> Iterator[Metric]:
    """Return Apache's metric of each (path, total bytes, free bytes).

    Apache makes the metric's name from the path, and several paths can give the same name: the
    label distinguishes them.
    """
    families: dict[str, list[Sample]] = {}
    for path, total, free in spaces:
        name = f"bookie_ledger_dir_{re.sub('[^a-zA-Z0-9_]', '_', path)}_usage"
        usage = 100 * (1 - free / total) if total else math.nan
        families.setdefault(name, []).append(Sample(usage, {"directory": path}))
    text = (
        "The used share of the file system of a data directory, in per cent. Apache makes the name "
        "from the path: the label distinguishes directories whose paths give the same name."
    )
    for name, samples in families.items():
        yield Metric(name, "gauge", text, tuple(samples))


def _stages(bookie: Bookie) -> Iterator[Metric]:
    times, log = bookie.service.times, bookie.log_times
    for name, text, of in (
        ("bookie_add", "Of an add, from the receipt of the oldest of its group to its answer",
         log.answered),
        ("bookie_read", "Of a read, from its receipt to its answer", times.reads),
        ("bookie_fence", "Of a fence, from its receipt until it was durable", times.fences),
        ("log_add", "Of an add, from the receipt of the oldest of its group until it was durable",
         log.added),
        ("log_queue", "Of a group, from the receipt of its oldest add until it was begun",
         log.queued),
        ("log_write", "Of a group, composed and handed to the system", log.written),
        ("log_sync", "Of a group, its sync", log.synced),
    ):  # fmt: skip
        yield histogram(f"quire_{name}_seconds", f"{text}: seconds.", of)
