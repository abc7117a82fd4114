"""The command `quire zookeeper`, which runs a single ZooKeeper server."""

from __future__ import annotations

import errno
import signal
import socket
import sys
from types import FrameType

import click

from quire._runtime.units import host_port
from quire.cli.common.groups import EXIT_ERROR, fail
from quire.errors import StartError


class _Stopped(Exception):
    """The exception that a signal handler raises when SIGTERM or SIGINT arrives."""


@click.command()
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False),
    help="The data directory, which is created if it does not exist.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=2181,
    show_default=True,
    help="The port to listen on.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
def zookeeper(directory: str, port: int, host: str) -> int:
    """Run a single ZooKeeper server for development and tests, in the foreground.

    The server is started from the jars that PySpark ships, and requires Java. Its data is not
    replicated. The command prints a metadata URI on standard output once it serves requests; `quire
    cluster init` then creates a cluster there. SIGTERM and Ctrl-C stop it, with exit status 0.
    """
    from quire.metadata.zookeeper.server import ZooKeeperServer
    from quire.testing._process import with_parent

    server = ZooKeeperServer(directory, port, host, command_prefix=with_parent())
    try:
        _check_port(host, port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        server.start()
        sys.stdout.write(server.uri() + "\n")
        sys.stdout.flush()
        status = server.wait()
        fail(f"ZooKeeper ended unexpectedly with status {status}; see its log {server.log_file}")
        return EXIT_ERROR
    except _Stopped:
        return 0
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        server.stop()


def _check_port(host: str, port: int) -> None:
    """Raise StartError if the port cannot be used, which Java reports only as a stack trace."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise StartError(
                f"ZooKeeper cannot listen on {host_port(host, port)}: {error.strerror}",
                remedy="Choose another port with --port, or stop the process that uses this one"
                if error.errno == errno.EADDRINUSE
                else "Check --host and --port",
            ) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped
