"""The command `quire local`, which runs a complete cluster on this machine."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from quire._runtime.names.extras import install_extra
from quire._runtime.units import counted, does, some_of
from quire.cli.common.groups import EXIT_ERROR, fail, say, warn
from quire.cli.common.logs import export_choice, log_options
from quire.cli.common.options import flag
from quire.cli.common.signals import ending_signals
from quire.cli.servers.http import TOKEN_BYTES, address_with_token, check_address
from quire.errors import StartError

if TYPE_CHECKING:
    from quire.testing.cluster import LocalCluster, ServerProcess

WATCH_INTERVAL_S = 0.25
UI_ADDRESS = "127.0.0.1:8080"
ANY_PORT = "127.0.0.1:0"
UI_START_TIMEOUT_S = 20.0
COLLECT_ARGUMENTS = ("--set", "gc_interval_s=10")
"""The arguments with which each bookie is started, before those of the user. Garbage is collected
every ten seconds, which costs little in a small cluster."""


@click.command()
@click.option(
    "--bookies",
    type=click.IntRange(1, 1000),
    help="The number of bookies. [default: as many as the directory has, else 3]",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    help="The directory for all data and logs. [default: a temporary directory, which is removed "
    "at the end]",
)
@flag(
    "--zookeeper", "Keep the metadata in a ZooKeeper process instead of a SQLite file (needs Java)."
)
@click.option(
    "--base-port",
    type=click.IntRange(1, 65535),
    help="The port of the first bookie; the others use the ports that follow. [default: free "
    "ports, which the directory remembers]",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a key of the [bookie] table of the configuration for every bookie, for example "
    "segment_bytes=256MiB. May be repeated. [default: segment_bytes=16MiB and gc_interval_s=10, "
    "so that the cluster takes little space]",
)
@click.option(
    "--ui",
    metavar="HOST:PORT",
    help="The address of the dashboard, which must be a loopback address. [default: "
    f"{UI_ADDRESS}, or any free port if that one is in use]",
)
@flag("--no-ui", "Do not start the dashboard.")
@log_options
def local(
    bookies: int | None,
    directory: str | None,
    zookeeper: bool,
    base_port: int | None,
    settings: tuple[str, ...],
    ui: str | None,
    no_ui: bool,
) -> int:
    """Run a complete cluster on this machine, in the foreground.

    The cluster has a metadata store, bookies and a dashboard. The command prints only the metadata
    URI on standard output, once all bookies serve requests. Ctrl-C and SIGTERM stop it cleanly,
    with exit status 0. With --dir, the cluster still has its data when it is started again.

    An empty cluster takes 40 MiB of disk for each bookie, and 16 MiB more once there is data.
    """
    from quire.cli.bookie.start import bookie_config
    from quire.testing.cluster import LocalCluster, StoppedError

    bookie_config(settings)  # a mistake ends the command before anything is started
    if ui:
        check_address(ui, loopback=True)
    stopping = threading.Event()
    stop_on_signals(stopping)
    if ui and no_ui:
        raise click.UsageError(
            "--ui and --no-ui exclude each other: give one of them", click.get_current_context()
        )
    wanted = not no_ui and (bool(ui) or find_spec("aiohttp") is not None)
    export_choice(os.environ)  # for the bookies and the dashboard, which log to files
    cluster = LocalCluster(
        bookies,
        directory,
        True if zookeeper else None,
        (
            *(("--http", ANY_PORT) if wanted else ()),  # the dashboard reads the metrics there
            *COLLECT_ARGUMENTS,
            *(word for setting in settings for word in ("--set", setting)),
        ),
        base_port=base_port,
        stopping=stopping,
        http_token=secrets.token_urlsafe(TOKEN_BYTES) if wanted else "",
    )
    shown: list[ServerProcess] = []
    try:
        cluster.start()
        if wanted:
            shown = [_dashboard(cluster, ui, stopping)]
        _welcome(cluster)
        if shown:
            _show_dashboard(cluster, shown[0].said)
        elif not no_ui:
            say(f"No dashboard: aiohttp is missing. {install_extra('http')}")
        _watch([*cluster.processes, *shown], stopping)
    except StoppedError:
        say("stopped before the cluster was ready")
        return 0
    finally:
        running = len(cluster.processes) + len(shown)
        for process in shown:
            process.stop()  # it stores nothing, so its exit status does not matter
        unclean = cluster.stop()
    for line in unclean:
        fail(line)
    if unclean:
        return EXIT_ERROR
    say(f"stopped ({counted(running, 'process')})")
    return 0


def stop_on_signals(stopping: threading.Event) -> None:
    """Set the event when one of `ending_signals` arrives."""
    for number in ending_signals():
        signal.signal(number, lambda number, frame: stopping.set())


def _welcome(cluster: LocalCluster) -> None:
    sys.stdout.write(cluster.uri + "\n")
    sys.stdout.flush()
    where = str(cluster.directory)
    if cluster.temporary:
        where += " (temporary: removed at the end)"
    count = len(cluster.bookies)
    serve = "serves on port" if count == 1 else "serve on ports"
    ports = ", ".join(str(bookie.port) for bookie in cluster.bookies)
    say(f"{counted(count, 'bookie')} {serve} {ports}; data and logs: {where}")
    size = f"{cluster.disk_bytes() / 1e6:,.0f} MB"
    say(f"Disk space in use now: {size} (to see it later: du -sh {cluster.directory})")
    if cluster.left_out:
        warn(_left_out(cluster))
    say(f"In another shell: export QUIRE_METADATA='{cluster.uri}'")
    few = f" --ensemble {count} --write-quorum {count} --ack-quorum 1" if count < 3 else ""
    say(
        f"Then, for example: seq 1000 | quire ledger write{few}; quire ledger list; "
        f"quire bench add{few}"
    )
    say("Ctrl-C stops it")


def _show_dashboard(cluster: LocalCluster, url: str) -> None:
    """Say where the dashboard is and how to make changes in it.

    The token is shown in a terminal only, so that it gets into no log.
    """
    if sys.stderr.isatty():
        say(f"Dashboard: {address_with_token(url, cluster.token_file.read_text().strip())}")
    else:
        say(f"Dashboard: {url}")
        say(f"Changes over HTTP need the token in {cluster.token_file}")


def _left_out(cluster: LocalCluster) -> str:
    missing, known = len(cluster.left_out), len(cluster.left_out) + len(cluster.bookies)
    return (
        f"{cluster.directory} has {counted(known, 'bookie')}, and {missing} of them "
        f"{does(missing)} not run: {some_of(cluster.left_out)}. Ledgers with replicas there "
        f"have fewer copies now, or cannot be read. To run all of them, use --bookies {known}, or "
        "leave --bookies out"
    )


def _dashboard(
    cluster: LocalCluster, address: str | None, stopping: threading.Event
) -> ServerProcess:
    """Start `quire ui` for the cluster. Raises StartError if it does not serve requests in time."""
    from quire.testing._process import quire_command
    from quire.testing.cluster import ServerProcess, StoppedError

    def start(where: str) -> ServerProcess:
        command = quire_command(
            "ui", "--metadata", cluster.uri, "--http", where, *cluster.token_arguments
        )
        process = ServerProcess("the dashboard", command, cluster.directory / "ui.log")
        process.launch()
        process.wait_ready(time.monotonic() + UI_START_TIMEOUT_S, stopping)
        return process

    if address is not None:
        return start(address)
    try:
        return start(UI_ADDRESS)
    except StoppedError:
        raise
    except StartError:
        return start(ANY_PORT)  # most likely the default port is in use


def _watch(processes: list[ServerProcess], stopping: threading.Event) -> None:
    """Watch the processes until the cluster is stopped.

    A process that ends is reported and not restarted, so that the user sees how the others react.
    """
    dead: set[ServerProcess] = set()
    while not stopping.wait(WATCH_INTERVAL_S):
        for process in processes:
            if process not in dead and not process.alive:
                dead.add(process)
                say(f"{process.name} ended {_how(process)}; its log: {process.log_path}")


def _how(process: ServerProcess) -> str:
    if process.returncode == 0:
        return "cleanly: it was stopped or decommissioned"
    return process.how_it_ended()
