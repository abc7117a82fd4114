"""What an HTTP server adds to `/metrics`: its process, itself, and autorecovery.

The metrics of the process have the names that Prometheus' own clients use. They come from Linux;
elsewhere there are fewer.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire._runtime.metrics import Metric, counter, gauge
from quire.http.server.server import HttpServer
from quire.replication.autorecovery.settings import AutorecoveryStats


def process_metrics() -> Iterator[Metric]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process_cpu_seconds_total", "Seconds of CPU, of user and system.",
                  used.ru_utime + used.ru_stime)  # fmt: skip
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        files = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, IndexError):
        return
    yield gauge("process_resident_memory_bytes", "Bytes of memory that are in use.",
                pages * os.sysconf("SC_PAGE_SIZE"))  # fmt: skip
    yield gauge("process_open_fds", "Files and sockets that are open.", files)


def server_metrics(server: HttpServer) -> Iterable[Metric]:
    yield counter("quire_http_requests_total", "HTTP requests that were let in.", server.requests)
    yield counter("quire_http_refused_total", "HTTP requests that were refused.", server.refused)
    yield counter("quire_http_failed_total", "HTTP requests that failed.", server.failed)
    yield gauge("quire_http_connections", "HTTP connections.", len(server.connections))
    yield gauge("quire_http_unsent_bytes", "Bytes of HTTP answers that clients have not taken.",
                server.unsent_bytes)  # fmt: skip
    yield counter("quire_http_connections_displaced_total",
                  "HTTP connections that were closed to admit another.",
                  server.displaced)  # fmt: skip
    yield counter("quire_http_connections_refused_total",
                  "HTTP connections that were refused because there was no place for them.",
                  server.turned_away)  # fmt: skip


_GAUGES = {
    "replicas_missing",
    "ledgers_misplaced",
    "ledgers_unreadable",
    "marks_malformed",
}


def autorecovery_metrics(stats: AutorecoveryStats) -> Iterable[Metric]:
    for name, value in asdict(stats).items():
        text = name.replace("_", " ").capitalize()
        known: Any = AUTORECOVERY.get(name, text)
        if name in _GAUGES:
            yield gauge(f"quire_autorecovery_{name}", f"{known}.", value)
        else:
            yield counter(f"quire_autorecovery_{name}_total", f"{known}.", value)


AUTORECOVERY = {
    "elections_won": "Elections as auditor that were won",
    "sessions_lost": "Sessions with the metadata store that were lost",
    "store_errors": "Times the metadata store did not answer, or was not understood",
    "ledgers_unreadable": "Ledgers that the last pass skipped: their metadata or mark cannot be "
    "read",
    "marks_malformed": "Nodes in the tree of marks that are not marks, as of the last check",
    "audits": "Looks for lost bookies that came to their end",
    "bookies_waited_for": "Lost bookies that were waited for",
    "bookies_returned": "Those that came back meanwhile",
    "ledgers_marked": "Ledgers that this auditor has marked",
    "ledger_checks": "Checks of the ends of replicas",
    "replicas_checks": "Checks of lists of entries",
    "placement_checks": "Checks of placement",
    "replicas_lagged": "Ledgers with replicas that were short at first, and whole when asked again",
    "replicas_missing": "Entries that bookies lacked, at the last check",
    "ledgers_misplaced": "Ledgers that lie otherwise than wanted, at the last check",
    "ledgers_done": "Marked ledgers that lack nothing any more",
    "ledgers_failed": "Attempts to repair a ledger that failed",
    "ledgers_fenced": "Ledgers whose writers were taken for dead",
    "locks_missed": "Times somebody else had the ledger",
    "replicas_read": "Entries that were read to see whether a living bookie has them",
    "replicas_repaired": "Entries that were written again to the bookie that lacked them",
    "fragments": "Fragments in which a bookie was replaced",
    "fragments_moved": "Fragments that were moved to where the placement policy wants them",
    "entries_copied": "Entries that were copied",
    "bytes_copied": "Bytes of payload that were written to bookies",
}
