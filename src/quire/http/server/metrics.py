"""The metrics of an HTTP server's process, of the server itself, and of autorecovery.

The metrics of the process have the names that Prometheus' own clients use. Some of them exist only
on Linux.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire._runtime.metrics import Metric, counter, gauge
from quire.http.server.server import HttpServer
from quire.net.certificates import expiry_metric
from quire.replication.autorecovery.settings import AutorecoveryStats


def process_metrics(version: str) -> Iterator[Metric]:
    """Yield the metrics of this process, which runs this version of Quire."""
    yield gauge("quire_build_info",
                "Always 1; the labels are the versions of Quire and of Python.",
                1, version=version, python=platform.python_version())  # fmt: skip
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process_cpu_seconds_total", "Seconds of user and system CPU time.",
                  used.ru_utime + used.ru_stime)  # fmt: skip
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        files = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        return
    yield gauge("process_resident_memory_bytes", "The bytes of resident memory.",
                pages * os.sysconf("SC_PAGE_SIZE"))  # fmt: skip
    yield gauge("process_open_fds", "The number of open files and sockets.", files)


def server_metrics(server: HttpServer, now_ms: int = 0) -> Iterable[Metric]:
    """Yield the metrics of an HTTP server. `now_ms` is the Unix time in milliseconds."""
    yield counter("quire_http_requests_total", "The number of HTTP requests that were accepted.",
                  server.requests)  # fmt: skip
    yield counter("quire_http_refused_total", "The number of HTTP requests that were refused.",
                  server.refused)  # fmt: skip
    yield counter("quire_http_failed_total", "The number of HTTP requests that failed.",
                  server.failed)  # fmt: skip
    yield counter("quire_http_changes_total",
                  "The number of HTTP requests for a change that were allowed.",
                  server.audit.allowed)  # fmt: skip
    yield counter("quire_http_changes_refused_total",
                  "The number of HTTP requests for a change that were refused for lack of "
                  "permission.",
                  server.audit.refused_count)  # fmt: skip
    yield gauge("quire_http_connections", "The number of HTTP connections.",
                len(server.connections))  # fmt: skip
    yield gauge("quire_http_unsent_bytes",
                "The bytes of HTTP answers that clients have not received yet.",
                server.unsent_bytes)  # fmt: skip
    yield counter("quire_http_connections_displaced_total",
                  "The number of HTTP connections that were closed to admit another one.",
                  server.displaced)  # fmt: skip
    yield counter("quire_http_connections_refused_total",
                  "The number of HTTP connections that were refused because there were too many.",
                  server.turned_away)  # fmt: skip
    yield expiry_metric("http", server.certificates(now_ms))


_GAUGES = {
    "replicas_missing",
    "replicas_uncompared",
    "ledgers_misplaced",
    "ledgers_unreadable",
    "marks_malformed",
}


def autorecovery_metrics(stats: AutorecoveryStats) -> Iterable[Metric]:
    """Yield the metrics of the autorecovery of this process."""
    for name, value in asdict(stats).items():
        text = name.replace("_", " ").capitalize()
        known: Any = AUTORECOVERY.get(name, text)
        if name in _GAUGES:
            yield gauge(f"quire_autorecovery_{name}", f"{known}.", value)
        else:
            yield counter(f"quire_autorecovery_{name}_total", f"{known}.", value)


AUTORECOVERY = {
    "elections_won": "The number of times this process was elected as auditor",
    "sessions_lost": "The number of sessions with the metadata store that were lost",
    "store_errors": "The number of times the metadata store did not answer or returned data that "
    "cannot be read",
    "ledgers_unreadable": "The number of ledgers that the last pass skipped because their "
    "metadata or repair mark cannot be read; 0 if this process is not the auditor",
    "marks_malformed": "The number of nodes in the tree of repair marks that are not repair marks, "
    "at the last check",
    "audits": "The number of completed searches for lost bookies",
    "bookies_waited_for": "The number of times the auditor began to wait for a single missing "
    "bookie",
    "bookies_returned": "The number of times a bookie that the auditor waited for returned before "
    "it was given up as lost",
    "ledgers_marked": "The number of ledgers that this auditor has marked for repair",
    "ledger_checks": "The number of completed checks of the first and last entries of replicas",
    "replicas_checks": "The number of completed comparisons of the entry lists of replicas",
    "placement_checks": "The number of completed checks of placement",
    "replicas_lagged": "The number of ledgers whose replicas lacked entries in a check and had "
    "them when checked again",
    "replicas_missing": "The number of entries that bookies lacked at the last check of this "
    "auditor; 0 if this process is not the auditor",
    "replicas_uncompared": "The number of replicas that the last check could not compare, because "
    "their bookies gave no list of entries; 0 if this process is not the auditor",
    "ledgers_misplaced": "The number of ledgers whose placement did not follow the policy at the "
    "last check; 0 if this process is not the auditor",
    "ledgers_done": "The number of ledgers marked for repair that were repaired completely or were "
    "deleted",
    "ledgers_failed": "The number of failed attempts to repair a ledger",
    "ledgers_fenced": "The number of ledgers that were fenced because their writers seemed dead",
    "locks_missed": "The number of times a ledger was skipped because another process was "
    "repairing it",
    "replicas_read": "The number of entries that were read to check whether a running bookie has "
    "them",
    "replicas_repaired": "The number of entries that were written to a bookie that lacked them",
    "fragments": "The number of ledger fragments in which a bookie was replaced",
    "fragments_moved": "The number of fragments that were moved to follow the placement policy",
    "entries_copied": "The number of entries that were copied",
    "bytes_copied": "The payload bytes that were written to bookies",
}
