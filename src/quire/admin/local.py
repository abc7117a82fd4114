"""`quire local`."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import click

from quire.admin.groups import EXIT_ERROR, fail, say

if TYPE_CHECKING:
    from quire.testing.cluster import LocalCluster, ServerProcess

WATCH_INTERVAL_S = 0.25


@click.command()
@click.option(
    "--bookies",
    type=click.IntRange(1, 1000),
    help="How many. [default: as many as the directory has, else 3]",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    help="Where everything is kept. [default: a temporary directory, removed at the end]",
)
@click.option(
    "--zookeeper",
    is_flag=True,
    help="Keep the metadata in a ZooKeeper process instead of a SQLite file (needs Java).",
)
@click.option(
    "--base-port",
    type=click.IntRange(1, 65535),
    help="Port of the first bookie, the others follow. [default: free ones, the same every time]",
)
def local(
    bookies: int | None, directory: str | None, zookeeper: bool, base_port: int | None
) -> int:
    """Run a whole cluster on this machine, in the foreground: metadata and bookies.

    Prints the metadata URI, and nothing else, on standard output once all bookies serve. Ctrl-C
    and SIGTERM stop it cleanly, with exit status 0; started again on the same directory it has its
    data.
    """
    from quire.testing.cluster import LocalCluster, StoppedError

    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: stopping.set())
    cluster = LocalCluster(
        bookies, directory, True if zookeeper else None, base_port=base_port, stopping=stopping
    )
    try:
        cluster.start()
        _welcome(cluster)
        _watch(cluster, stopping)
    except StoppedError:
        say("stopped before it served")
        return 0
    finally:
        running = len(cluster.processes)
        unclean = cluster.stop()
    for line in unclean:
        fail(line)
    if unclean:
        return EXIT_ERROR
    say(f"stopped ({running} processes)")
    return 0


def _welcome(cluster: LocalCluster) -> None:
    sys.stdout.write(cluster.uri + "\n")
    sys.stdout.flush()
    where = str(cluster.directory)
    if cluster.temporary:
        where += " (temporary: removed at the end)"
    ports = ", ".join(str(bookie.port) for bookie in cluster.bookies)
    say(f"{len(cluster.bookies)} bookies serve on ports {ports}; data and logs: {where}")
    say(f"In another shell: export QUIRE_METADATA='{cluster.uri}'")
    say("Then, for example: seq 1000 | quire ledger write; quire ledger list; quire bench add")
    say("Ctrl-C stops it")


def _watch(cluster: LocalCluster, stopping: threading.Event) -> None:
    """Until stopped. A process that dies is told of and not restarted: whoever kills one wants to
    see what the others do."""
    dead: set[ServerProcess] = set()
    while not stopping.wait(WATCH_INTERVAL_S):
        for process in cluster.processes:
            if process not in dead and not process.alive:
                dead.add(process)
                say(f"{process.name} ended {process.how_it_ended()}; its log: {process.log_path}")
