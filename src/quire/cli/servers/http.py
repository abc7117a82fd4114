"""The commands `quire http` and `quire ui`, and the HTTP options of other servers."""

from __future__ import annotations

import asyncio
import functools
import html
import re
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TextIO, TypeVar
from urllib.parse import quote

import click

from quire._runtime.names.process_name import process_name
from quire._runtime.units import host_port
from quire.cli.common.configuration import configured
from quire.cli.common.groups import say
from quire.cli.common.logs import log_options, server_log
from quire.cli.common.options import (
    Command,
    composed,
    file_option,
    flag,
    kept,
    metadata_option,
    run_async,
)
from quire.cli.common.tls import client_config, tls_options
from quire.cli.common.tokens import token_in
from quire.cli.servers.effective import effective_settings
from quire.errors import UsageError

if TYPE_CHECKING:
    from quire._runtime.event_log import EventLog
    from quire.bookie.server import Bookie
    from quire.configuration.layers import Layer
    from quire.http.server.security import HttpOptions
    from quire.http.server.server import HttpServer
    from quire.replication.autorecovery.settings import AutorecoveryStats

T = TypeVar("T")
DEFAULT_ADDRESS = "127.0.0.1:8080"
_FILE = click.Path(dir_okay=False)
PORTS_TRIED = 10
"""The number of consecutive ports to try, beginning with the default one, if no port was chosen."""
_ADDRESS = re.compile(r"(?:(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):)?([0-9]{1,5})")
_KEPT = "quire.http"
_CHOSEN = "quire.http.chosen"
_KEEP = kept(_KEPT)
_NEED_HTTP = (
    "http_token_file", "http_reads", "http_read_only", "http_no_payloads",
    "http_bookies_token_file", "http_tls_cert", "http_tls_key", "http_name",
)  # fmt: skip
TOKEN_BYTES = 24
"""The number of random bytes of a generated token."""


def http_options(name: str, *, default: str | None = None) -> Callable[[Command], Command]:
    """Return the option `name` and the other HTTP options. `given_options` returns their values.

    `default` is the default address of the configuration, which is shown in the help. Commands that
    have one may generate a token, and only serve the dashboard and the HTTP API: they have the
    options of Prometheus, too.
    """
    shown = f"[default: {default}]" if default else "[default: no HTTP]"
    without_file = (
        "[default: in a terminal a token that is generated at each start; otherwise none, and "
        "nothing can be changed]"
        if default
        else "[default: none, and nothing can be changed over HTTP]"
    )
    return composed(
        click.option(
            name,
            "http",
            metavar="HOST:PORT",
            **_KEEP,
            help="The address at which to serve the HTTP API and /metrics. Port 0 selects any free "
            "port. An address that other machines can reach requires --http-token-file and "
            f"--http-tls-cert. {shown}",
        ),
        file_option(
            "--http-token-file",
            f"Answer only requests that contain the token in this file. {without_file}",
            **_KEEP,
        ),
        click.option(
            "--http-reads",
            type=click.Choice(["auto", "open", "token"]),
            **_KEEP,
            help="Whether requests that only read need the token: `token` (yes) or `open` (no; on "
            "loopback only). With `auto` they need it if there is a token file. [default: auto]",
        ),
        flag(
            "--http-read-only",
            "Refuse every request that would change something, with or without the token.",
            **_KEEP,
        ),
        file_option(
            "--http-bookies-token-file",
            "Send the token in this file when the server reads metrics and reports of bookies over "
            "HTTP, or forwards a change to them. It is sent only on loopback, and over HTTPS if "
            "--tls-ca is given.",
            **_KEEP,
        ),
        file_option(
            "--http-tls-cert",
            "Serve HTTPS with this certificate (PEM, including its chain). The file is reloaded "
            "when it changes.",
            **_KEEP,
        ),
        file_option(
            "--http-tls-key",
            "The private key of the certificate (PEM). [default: in the file of --http-tls-cert]",
            **_KEEP,
        ),
        *(_PROMETHEUS_OPTIONS if default else ()),
        flag(
            "--http-no-payloads",
            "Answer no request for the content of entries and records. Without this option, such "
            "requests need the token.",
            **_KEEP,
        ),
        click.option(
            "--http-name",
            multiple=True,
            metavar="HOST",
            **_KEEP,
            help="Also accept requests that are addressed to this host name. May be repeated.",
        ),
    )


_PROMETHEUS_OPTIONS = (
    click.option(
        "--prometheus",
        "http_prometheus",
        metavar="URL",
        **_KEEP,
        help="Read the charts of more than an hour from this Prometheus server, which scrapes the "
        "bookies. [default: charts of the last hour, which this server records itself]",
    ),
    click.option(
        "--prometheus-label",
        "http_prometheus_label",
        multiple=True,
        metavar="NAME=VALUE",
        **_KEEP,
        help="Only read metrics from Prometheus that have this label, for example if it scrapes "
        "several clusters. May be repeated.",
    ),
)
"""The options of servers that only serve the dashboard and the HTTP API."""


def fill_options(configured: Mapping[str, Any]) -> None:
    """Use the configuration for HTTP options that were not given.

    `configured` has the configured values by the names of the options' parameters.
    """
    meta = click.get_current_context().meta
    given = meta.setdefault(_KEPT, {})
    meta.setdefault(_CHOSEN, {name: value for name, value in given.items() if value})
    given.update({name: value for name, value in configured.items() if not given.get(name)})


def shift_http_port(by: int) -> None:
    """Add a number to the port of the HTTP address, after `fill_options`. Port 0 stays 0.

    Does nothing without an address. Raises `click.UsageError` if the address is not valid.
    """
    meta = click.get_current_context().meta
    if address := meta[_KEPT].get("http"):
        host, port = check_address(address)
        meta[_KEPT]["http"] = meta[_CHOSEN]["http"] = host_port(host, port + by if port else 0)


def settings_of(uri: str, *tables: str, layers: Sequence[Layer] = ()) -> dict[str, Any]:
    """Return the effective configuration of the command, after `fill_options`.

    See `effective_settings`. The first of the tables has the HTTP options.
    """
    chosen = click.get_current_context().meta.get(_CHOSEN, {})
    return effective_settings(uri, tables, layers, chosen)


def given_options(generated: str = "") -> HttpOptions | None:
    """Return the HTTP options, or None if no address is given.

    Raises `click.UsageError` for invalid options, and `StartError` for a file that cannot be used.

    Args:
        generated: The token to use on loopback if there is no token file. It protects changes, and
            reads only with `--http-reads token`.
    """
    from quire.config import TlsServerConfig
    from quire.http.server.security import HttpOptions, check_options, is_loopback
    from quire.http.watch.prometheus import checked_label, checked_url
    from quire.net.tls import server_context

    context = click.get_current_context()
    given = context.meta.get(_KEPT, {})
    address = given.get("http")
    if not address:
        for name in _NEED_HTTP:
            if given.get(name) not in (None, "", "auto", False, (), []):
                raise click.UsageError(f"--{name.replace('_', '-')} requires --http", context)
        return None
    host, port = check_address(address)
    if given.get("http_tls_key") and not given.get("http_tls_cert"):
        raise click.UsageError("--http-tls-key requires --http-tls-cert", context)

    def checked(check: Callable[[str], T], value: str) -> T:
        try:
            return check(value)
        except UsageError as error:
            raise click.UsageError(str(error), context) from None

    prometheus, labels = given.get("http_prometheus"), given.get("http_prometheus_label") or ()
    certificate = given.get("http_tls_cert")
    token_file, reads = given.get("http_token_file"), given.get("http_reads") or "auto"
    read_only = bool(given.get("http_read_only"))
    needed = is_loopback(host) and (reads == "token" or not read_only)
    token = token_in(token_file) or (generated if needed else "")
    if reads == "token" and not token:
        raise click.UsageError("--http-reads token requires --http-token-file", context)
    options = HttpOptions(
        host=host,
        port=port,
        token=token,
        reads_open=reads == "open" or (reads == "auto" and token != "" and not token_file),
        read_only=read_only,
        bookies_token=token_in(given.get("http_bookies_token_file")),
        tls=TlsServerConfig(certificate, given.get("http_tls_key")) if certificate else None,
        payloads=not given.get("http_no_payloads"),
        names=tuple(given.get("http_name") or ()),
        prometheus=checked(checked_url, prometheus) if prometheus else "",
        prometheus_labels=dict(checked(checked_label, one) for one in labels),
    )
    try:
        check_options(options)
        if options.tls is not None:
            server_context(options.tls)
    except UsageError as error:
        raise click.UsageError(str(error), context) from None
    return options


def check_address(address: str, *, loopback: bool = False) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT.

    Raises `click.UsageError` for an invalid address; with `loopback`, also for one that other
    machines could reach.
    """
    context = click.get_current_context()
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise click.UsageError(
            f"{address!r} is not an address to listen on: use HOST:PORT, such as 127.0.0.1:8080",
            context,
        )
    host = (found[1] or "127.0.0.1").strip("[]")
    if loopback:
        from quire.http.server.security import is_loopback

        if not is_loopback(host):
            raise click.UsageError(
                f"--ui {address} is reachable from other machines: use a loopback address such as "
                "127.0.0.1:8080. To serve other machines, run `quire http` with a token and TLS",
                context,
            )
    return host, int(found[2])


def around_bookie(
    uri: str,
    log: Callable[..., None],
    autorecovery: AutorecoveryStats | None,
    layers: Sequence[Layer] = (),
) -> Callable[[Bookie], AbstractAsyncContextManager[Any]] | None:
    """Return a function that runs the HTTP server of a bookie, or None without an HTTP address.

    It is the value of `BookieOptions.around`: it receives the bookie, and returns a context manager
    that serves HTTP while it is entered. `autorecovery` holds the counters of the autorecovery in
    the bookie's process, which are exported as metrics. `layers` are those of the command's
    options. Raises the errors of `given_options`.
    """
    options = given_options()
    if options is None:
        return None
    import quire
    from quire.http.server.run import serve_bookie

    # This client only reads, and runs the jobs that operators request.
    config = client_config()
    tables = ("bookie",) if autorecovery is None else ("bookie", "autorecovery")
    settings = settings_of(uri, *tables, layers=layers)
    return lambda bookie: serve_bookie(
        bookie, options, uri, config, quire.__version__, log,
        autorecovery=autorecovery, settings=settings,
    )  # fmt: skip


@click.command()
@metadata_option
@http_options("--http", default=DEFAULT_ADDRESS)
@tls_options
@log_options
def http(uri: str) -> None:
    """Serve the HTTP API and the metrics of a cluster, in the foreground.

    Calls about a single bookie are served by the bookie itself (`quire bookie start --http`). The
    command prints its address on standard output once it serves requests, and one line of JSON per
    event on standard error. SIGTERM and Ctrl-C stop it cleanly, with exit status 0.

    Requests that change something need a token: that of --http-token-file, or one that the command
    generates at each start and shows if it runs in a terminal.
    """
    serve_in_foreground(uri)


def serve_in_foreground(
    uri: str, serving: Callable[[str], object] | None = None, *, any_port: bool = False
) -> None:
    """Serve HTTP until a signal arrives, with the HTTP options of the current command.

    In a terminal, a token is generated unless there is a token file. It is shown there only, so
    that a service never writes it into a log.

    `serving` is called with the address once the server listens; it contains the generated token.
    With `any_port`, and if no address was chosen, one of the next ports is used if the default port
    is in use. Raises the errors of `given_options`, StartError if the server cannot start, and the
    errors of `quire.connect`.
    """
    from quire.configuration.layers import DEFAULT

    asked = click.get_current_context().meta.get(_KEPT, {}).get("http")
    any_port &= not asked and configured().origins["http.address"] == DEFAULT
    fill_options(configured().http().options())
    generated = secrets.token_urlsafe(TOKEN_BYTES) if _terminal() is not None else ""
    options = given_options(generated)
    if options is None:
        raise click.UsageError("no address to listen on is given: use --http HOST:PORT")
    shown = options.token == generated != ""
    try:
        run_async(_http(uri, options, serving, PORTS_TRIED if any_port else 1, show_token=shown))
    except KeyboardInterrupt:
        pass


def _terminal() -> TextIO | None:
    """Return the stream that a person reads, or None if the command does not run in a terminal."""
    return next((one for one in (sys.stderr, sys.stdout) if one.isatty()), None)


def address_with_token(url: str, token: str) -> str:
    """Return the address that opens the dashboard with the token.

    The token is in the fragment, which a browser sends to nobody, so it reaches no log of a server.
    """
    return f"{url}/#/?token={quote(token, safe='')}"


async def _http(
    uri: str,
    options: HttpOptions,
    serving: Callable[[str], object] | None,
    ports: int,
    *,
    show_token: bool = False,
) -> None:
    """Serve on the first free one of `ports` ports."""
    import quire

    log = server_log()
    stopping = stop_event()
    async with quire.connect(uri):
        pass  # report a missing cluster now, not at the first request
    async with AsyncExitStack() as stack:
        server = await _served(stack, uri, options, ports, log)
        if server.port != options.port and options.port:
            say(f"port {options.port} is in use: serving on port {server.port}")
        click.echo(server.url)
        address = server.url
        if show_token:
            address = address_with_token(server.url, options.token)
            what = "look around" if options.read_only else "make changes"
            click.echo(f"To {what} in the browser, open {address}", file=_terminal())
        if serving is not None:
            serving(address)
        await stopping.wait()


async def _served(
    stack: AsyncExitStack, uri: str, options: HttpOptions, ports: int, log: EventLog
) -> HttpServer:
    import quire
    from quire.http.server.run import serve_cluster
    from quire.http.server.server import PortTakenError

    last = options.port + ports - 1
    for port in range(options.port, last + 1):
        served: AbstractAsyncContextManager[HttpServer] = serve_cluster(
            replace(options, port=port), uri, client_config(), quire.__version__, log,
            owner=process_name(), settings=settings_of(uri, "http"),
        )  # fmt: skip
        try:
            return await stack.enter_async_context(served)
        except PortTakenError:
            if ports == 1:
                raise
    raise PortTakenError(
        f"the HTTP server cannot listen on {options.host}: ports {options.port} to {last} are "
        "all in use",
        remedy="Choose another address with --http; port 0 selects any free port",
    )


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and Ctrl-C set."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


# -- the dashboard ----------------------------------------------------------------------------


@click.command()
@metadata_option
@http_options("--http", default=DEFAULT_ADDRESS)
@flag("--open", "Open the dashboard in the browser of this machine.", name="opened")
@tls_options
@log_options
def ui(uri: str, opened: bool) -> None:
    """Serve the dashboard of a cluster, and the HTTP API behind it, in the foreground.

    The command prints the address of the dashboard on standard output once it serves requests, and
    one line of JSON per event on standard error. SIGTERM and Ctrl-C stop it cleanly, with exit
    status 0. If the default port is in use, the next free port is used. If a port that --http or
    the configuration chooses is in use, the command fails.

    To change something with the dashboard, it needs a token: that of --http-token-file, or one that
    the command generates at each start. In a terminal, the command shows an address that opens the
    dashboard with the generated token.
    """
    with TemporaryDirectory(prefix="quire-") as directory:  # readable by this account only
        page = Path(directory, "open.html")
        open_page = functools.partial(_open_in_browser, page=page)
        serve_in_foreground(uri, open_page if opened else None, any_port=True)


def _open_in_browser(address: str, page: Path) -> None:
    """Open the address through a page that leads to it.

    Other accounts of the machine can see the command line of a browser. So the address, which may
    contain the token, is in a file that only this account can read.
    """
    target = html.escape(address, quote=True)
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title>Quire</title>'
        f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">Quire</a>\n'
    )
    click.launch(page.as_uri())
