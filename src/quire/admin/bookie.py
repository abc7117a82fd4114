"""`quire bookie`."""

from __future__ import annotations

import logging
import signal
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from quire.admin.autorecovery import beside, settings_option
from quire.admin.options import metadata_option
from quire.admin.tls import server_tls, server_tls_options

if TYPE_CHECKING:
    from quire.config import BookieConfig
    from quire.replication.settings import AutorecoverySettings


@click.command()
@metadata_option
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False),
    help="Where it keeps its entries: its own, or an empty or missing one.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=3181,
    show_default=True,
    help="0: any free one (without --bookie-id a bookie's data belongs to its host and port).",
)
@click.option(
    "--advertise",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="The host under which clients reach it.",
)
@click.option(
    "--bookie-id",
    metavar="ID",
    default="",
    help="What ledgers call it, for good. One that is no address lets it move to another host or "
    "port. [default: HOST:PORT]",
)
@click.option(
    "--bind",
    metavar="HOST",
    default="",
    help="The address to listen on. [default: that of --advertise]",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="One of the limits of quire.BookieConfig, e.g. gc_interval_s=60. May be repeated.",
)
@click.option(
    "--autorecovery",
    is_flag=True,
    help="Stand for auditor and repair ledgers in the same process. By itself: quire autorecovery "
    "start.",
)
@settings_option("--set-autorecovery")
@server_tls_options
def bookie(
    uri: str,
    directory: str,
    port: int,
    advertise: str,
    bookie_id: str,
    bind: str,
    settings: tuple[str, ...],
    autorecovery: bool,
    autorecovery_settings: AutorecoverySettings,
    **tls: Any,
) -> int:
    """Run one bookie in the foreground.

    It prints its id on standard output once it serves, and one line of JSON for each event on
    standard error. SIGTERM and Ctrl-C stop it cleanly, with exit status 0.
    """
    config = replace(bookie_config(settings), **server_tls(**tls))
    from quire.bookie.main import BookieOptions, log_event, run_bookie

    _log_as_events(log_event)
    # A supervisor that goes away must not end the bookie by its output.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return run_bookie(
        BookieOptions(
            metadata_uri=uri,
            directory=directory,
            port=port,
            advertise=advertise,
            bookie_id=bookie_id,
            bind=bind,
            config=config,
            on_serving=_print_id,
            beside=beside(uri, autorecovery_settings, log_event) if autorecovery else None,
        )
    )


def bookie_config(settings: tuple[str, ...]) -> BookieConfig:
    """The defaults with NAME=VALUE applied; `click.UsageError` names what is wrong."""
    from quire.config import BookieConfig

    config = BookieConfig()
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    known = {name: type(value) for name, value in values.items() if type(value) in (int, float)}
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if name not in known or not equals:
            raise click.UsageError(
                f"--set {setting}: use NAME=VALUE with one of {', '.join(sorted(known))}"
            )
        try:
            value = known[name](text)
        except ValueError:
            value = -1
        if not value >= 0:
            raise click.UsageError(f"--set {setting}: {text!r} is no {known[name].__name__} >= 0")
        changes[name] = value
    return replace(config, **changes)


def _print_id(bookie_id: str) -> None:
    try:
        print(bookie_id, flush=True)
    except OSError:
        pass  # nobody listens; it serves all the same


class _Events(logging.Handler):
    """What libraries log, as lines of the bookie's own kind."""

    def __init__(self, log_event: Any) -> None:
        super().__init__(logging.WARNING)
        self._log_event = log_event

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            message += f": {record.exc_info[1]!r}"
        self._log_event(record.levelname.lower(), logger=record.name, message=message)


def _log_as_events(log_event: Any) -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(_Events(log_event))
    logging.getLogger("kazoo").setLevel(logging.NOTSET)
