"""The command `quire bookie start`, which runs one bookie in the foreground until it is stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.event_log import EventLog
from quire.cli.bookie.conf import announce, bk_server_conf_option
from quire.cli.bookie.identity import unresolved
from quire.cli.common.configuration import assignments_layer, configured
from quire.cli.common.logs import log_options, server_log
from quire.cli.common.options import checked, flag, metadata_option
from quire.cli.common.progress import ProgressBar
from quire.cli.common.tls import server_tls, server_tls_options
from quire.cli.servers.autorecovery import beside, settings_layers, settings_option
from quire.cli.servers.http import (
    around_bookie,
    fill_options,
    given_options,
    http_options,
    shift_http_port,
)
from quire.configuration.fields import PROCESSES_MAX, BookieProcessConfig
from quire.errors import UsageError

if TYPE_CHECKING:
    from quire.cli.servers.processes.division import Share
    from quire.config import BookieConfig
    from quire.configuration.layers import Configuration
    from quire.http.server.security import HttpOptions
    from quire.metadata.bookies.start_commands import StartCommand
    from quire.replication.autorecovery.settings import AutorecoverySettings


def _check_id(bookie_id: str) -> None:
    from quire.bookie.options import check_new_id

    check_new_id(bookie_id)


def _check_host(host: str) -> None:
    from quire.bookie.options import check_host

    check_host(host)


def _check_share(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    from quire.cli.servers.processes.division import parse_share

    try:
        return None if value is None else parse_share(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@metadata_option
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(file_okay=False),
    help="A directory for entries: one that the bookie used before, an empty one, or one to be "
    "created. May be repeated, once per disk. If one disk fails or fills up, the bookie continues "
    "with the others.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    show_default="3181",
    help="The port to listen on. 0 selects any free port.",
)
@click.option(
    "--advertise",
    metavar="HOST",
    show_default="127.0.0.1",
    help="The host name or address at which clients reach the bookie.",
)
@click.option(
    "--bookie-id",
    metavar="ID",
    callback=checked(_check_id),
    help="The permanent id of the bookie, by which ledgers refer to it. [default: the id stored in "
    "its directory; for a new bookie HOST:PORT]",
)
@click.option(
    "--bind",
    metavar="HOST",
    callback=checked(_check_host),
    help="The address to listen on. [default: the host of --advertise]",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a key of the [bookie] table of the configuration, for example gc_interval_s=60. May "
    "be repeated.",
)
@bk_server_conf_option
@flag(
    "--autorecovery",
    "Also run autorecovery in this process: an auditor candidate and a repair worker. `quire "
    "autorecovery start` runs it in a process of its own.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MAX),
    show_default="1",
    help="The number of bookies to run as one service, each in a process of its own, so that they "
    "use several processor cores. Bookie K, counted from 0, has the directory bookie-K in one or "
    "more of the directories of --dir, the port --port plus K, and the id --bookie-id followed by "
    "-K if that is given. SIGHUP restarts one bookie after another.",
)
@click.option("--share", metavar="K/N", hidden=True, callback=_check_share)
@settings_option("--set-autorecovery")
@http_options("--http")
@server_tls_options
@log_options
def bookie(
    uri: str,
    directories: tuple[str, ...],
    port: int | None,
    advertise: str | None,
    bookie_id: str | None,
    bind: str | None,
    settings: tuple[str, ...],
    autorecovery: bool,
    autorecovery_settings: AutorecoverySettings,
    processes: int | None,
    share: tuple[int, int] | None,
    **tls: Any,
) -> int:
    """Run one bookie in the foreground.

    The bookie prints its id on standard output once it serves requests, and one line of JSON per
    event on standard error. SIGTERM and Ctrl-C stop it cleanly, with exit status 0. With
    --processes, the command runs several bookies, and prints the id of each.
    """
    from quire.bookie.main import BookieOptions, run_bookie
    from quire.bookie.options import check_advertised
    from quire.cli.servers.processes.division import check_places
    from quire.cli.servers.processes.reports import reporting
    from quire.configuration.layers import options_layer
    from quire.replication.autorecovery.settings import AutorecoveryStats

    options = options_layer(
        {
            "bookie.directories": (directories, "--dir"),
            "bookie.port": (port, "--port"),
            "bookie.advertise": (advertise, "--advertise"),
            "bookie.bookie_id": (bookie_id, "--bookie-id"),
            "bookie.bind": (bind, "--bind"),
            "bookie.autorecovery": (autorecovery or None, "--autorecovery"),
            "bookie.processes": (processes, "--processes"),
        }
    )
    layers = [assignments_layer("--set", "bookie", settings), options]
    layers.append(server_tls(configured(*layers), **tls))
    configuration = configured(*layers)
    process = configuration.bookie_process()
    if not process.directories:
        raise click.UsageError("no data directory of the bookie is given: use --dir DIR")
    fill_options(configuration.http_side("bookie").options())
    if share is None and process.processes > 1:
        return _serve_several(configuration)
    if share is not None:
        number, count = share
        layers.append(_checked_shares(process, count)[number].layer())
        configuration = configured(*layers)
        process = configuration.bookie_process()
        shift_http_port(1 + number)
    else:
        check_places(process.directories, ())
    stats = AutorecoveryStats() if process.autorecovery else None
    _check_ports(process.port, given_options())
    log = server_log() if share is None else server_log(process=share[0])
    announce(log)
    check_advertised(process.advertise)
    # A name server may be slow, and the bookie does not wait for it.
    check = threading.Thread(target=_check_resolves, args=(process.advertise, log), daemon=True)
    check.start()
    # If the supervisor that reads the output goes away, the bookie must continue.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    around = around_bookie(uri, log, stats, [*layers, *settings_layers()])
    return run_bookie(
        BookieOptions(
            metadata_uri=uri,
            directories=process.directories,
            port=process.port,
            advertise=process.advertise,
            bookie_id=process.bookie_id,
            bind=process.bind,
            config=configuration.bookie(),
            # The supervisor of several bookies reads the output, and prints the id itself.
            on_serving=_print_id if share is None else None,
            loading_bar=_loading_bar if sys.stderr.isatty() else None,
            around=around if share is None else reporting(around),
            beside=beside(uri, autorecovery_settings, log, stats) if stats else None,
            start_command=start_command(sys.argv[1:], os.environ, process.directories),
            log=log,
        )
    )


def start_command(
    words: Sequence[str], environment: Mapping[str, str], directories: Sequence[str]
) -> StartCommand:
    """Return the command that starts the bookie of this process again.

    It is empty if the command line is not one of `quire bookie`. It has the names of the variables
    that begin with QUIRE_, without their values.

    Args:
        words: The words of the command line after the name of the program.
        environment: The environment variables of the process.
        directories: The data directories of the bookie. A relative one means another directory if
            the command is typed somewhere else.
    """
    from quire.metadata.bookies.start_commands import StartCommand

    typed = list(words)
    if typed[:1] != ["bookie"]:
        return StartCommand()  # another program has called this function
    if "--share" in typed:  # the process of a service, which restarts its bookies itself
        at = typed.index("--share")
        del typed[at : at + 2]
    relative = not all(map(os.path.isabs, directories))
    variables = sorted(
        name for name, value in environment.items() if value and name.startswith("QUIRE_")
    )
    return StartCommand(("quire", *typed), os.getcwd() if relative else "", tuple(variables))


def _checked_shares(process: BookieProcessConfig, count: int) -> list[Share]:
    """Return the shares of the bookies of a service, and check that its start leaves none out."""
    from quire.bookie.options import check_directories
    from quire.cli.servers.processes.division import check_places, divide

    check_directories(process.directories)
    shares = divide(process, count)
    check_places(process.directories, shares)
    return shares


def _serve_several(configuration: Configuration) -> int:
    """Run several bookies as one service until it is stopped."""
    import quire
    from quire.bookie.options import check_bookie
    from quire.cli.servers.processes.division import check_ports
    from quire.cli.servers.processes.supervisor import ServiceOptions, run_service
    from quire.testing._process import quire_command

    process, config = configuration.bookie_process(), configuration.bookie()
    shares = _checked_shares(process, process.processes)
    for one in shares:
        check_bookie(
            one.directories, port=one.port, advertise=process.advertise, bind=process.bind,
            bookie_id=one.bookie_id, config=config,
        )  # fmt: skip
    http = given_options()
    check_ports(process.port, http.port if http is not None else None, len(shares))
    words = sys.argv[1:]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return run_service(
        ServiceOptions(
            shares=shares,
            command=lambda share: quire_command(*words, "--share", share.label),
            stop_timeout_s=config.stop_timeout_s,
            http=http,
            version=quire.__version__,
            on_serving=_print_id,
            log=server_log(),
        )
    )


def _check_resolves(host: str, log: EventLog) -> None:
    if why := unresolved(host):
        log(
            "advertise_unresolved",
            host=host,
            why=why,
            remedy="Clients may not find this bookie. Correct --advertise, or the name server",
        )


def _check_ports(port: int, http: HttpOptions | None) -> None:
    if http is not None and port and port == http.port:
        raise click.UsageError(
            f"--port and --http cannot both use port {port}: choose another port for one of them"
        )


def bookie_config(settings: tuple[str, ...]) -> BookieConfig:
    """Return the configuration of a bookie, in which `settings` (NAME=VALUE) override the others.

    The others come from the configuration file, the environment and the defaults. Raises
    `click.UsageError` for an unknown name or an invalid value in any of them, and OSError if the
    file cannot be read.
    """
    return configured(assignments_layer("--set", "bookie", settings)).bookie()


@contextmanager
def _loading_bar() -> Iterator[Callable[[int], None]]:
    with ProgressBar("load the log", total=100, counted="%") as bar:
        yield lambda percent: bar.advance(percent - bar.entries, 0)


def _print_id(bookie_id: str) -> None:
    try:
        print(bookie_id, flush=True)
    except OSError:
        pass  # standard output is closed; the bookie serves all the same
