"""`quire http` and `quire ui`, and the options of every server that has an HTTP side."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.groups import say
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

if TYPE_CHECKING:
    from quire.bookie.server import Bookie
    from quire.http.server.security import HttpOptions
    from quire.http.server.server import HttpServer
    from quire.replication.autorecovery.settings import AutorecoveryStats

DEFAULT_ADDRESS = "127.0.0.1:8080"
_FILE = click.Path(dir_okay=False)
PORTS_TRIED = 10
"""From the default one on, where nobody has said which."""
_ADDRESS = re.compile(r"(?:(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):)?([0-9]{1,5})")
_KEPT = "quire.http"
_KEEP = kept(_KEPT)
_NEED_HTTP = (
    "http_token_file", "http_bookies_token_file", "http_tls_cert", "http_tls_key", "http_name",
)  # fmt: skip


def http_options(flag: str, *, default: str | None = None) -> Callable[[Command], Command]:
    """`flag`, and what goes with it; `given_options` has what was given. `default` is that of the
    configuration, shown in the help."""
    shown = f"[default: {default}]" if default else "[default: no HTTP]"
    return composed(
        click.option(
            flag,
            "http",
            metavar="HOST:PORT",
            **_KEEP,
            help="Serve the HTTP API and /metrics here; port 0: any free one. Elsewhere than on "
            f"loopback a token and TLS are needed. {shown}",
        ),
        file_option(
            "--http-token-file", "Answer only those who know the token in this file.", **_KEEP
        ),
        file_option(
            "--http-bookies-token-file",
            "Show the token in this file to bookies whose metrics the dashboard reads: on "
            "loopback, and over HTTPS where --tls-ca names who signs for bookies.",
            **_KEEP,
        ),
        file_option(
            "--http-tls-cert",
            "Serve HTTPS with this certificate (PEM, with its chain). Files that change are "
            "followed.",
            **_KEEP,
        ),
        file_option(
            "--http-tls-key", "Its private key. [default: in the file of --http-tls-cert]", **_KEEP
        ),
        click.option(
            "--http-name",
            multiple=True,
            metavar="HOST",
            **_KEEP,
            help="A further host name that requests may be sent to. May be repeated.",
        ),
    )


def fill_options(configured: Mapping[str, Any]) -> None:
    """Use the configuration for options that were not given."""
    given = click.get_current_context().meta.setdefault(_KEPT, {})
    given.update({name: value for name, value in configured.items() if not given.get(name)})


def given_options() -> HttpOptions | None:
    """None: no HTTP is wanted. `click.UsageError`, `StartError`."""
    from quire.config import TlsServerConfig
    from quire.errors import UsageError
    from quire.http.server.security import HttpOptions, check_options, check_token
    from quire.net.tls import server_context

    context = click.get_current_context()
    given = context.meta.get(_KEPT, {})
    address = given.get("http")
    if not address:
        for name in _NEED_HTTP:
            if given.get(name):
                raise click.UsageError(f"--{name.replace('_', '-')} needs --http", context)
        return None
    host, port = check_address(address)
    if given.get("http_tls_key") and not given.get("http_tls_cert"):
        raise click.UsageError("--http-tls-key needs --http-tls-cert", context)

    def token_in(file: str | None) -> str:
        if file is None:
            return ""
        try:
            return check_token(Path(file).read_text(encoding="ascii", errors="replace"), file)
        except UsageError as error:
            raise click.UsageError(str(error), context) from None

    certificate = given.get("http_tls_cert")
    options = HttpOptions(
        host=host,
        port=port,
        token=token_in(given.get("http_token_file")),
        bookies_token=token_in(given.get("http_bookies_token_file")),
        tls=TlsServerConfig(certificate, given.get("http_tls_key")) if certificate else None,
        names=tuple(given.get("http_name") or ()),
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

    Raises `click.UsageError`; with `loopback` also for an address that other machines could
    reach.
    """
    context = click.get_current_context()
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65535:
        raise click.UsageError(f"{address!r} is not HOST:PORT", context)
    host = (found[1] or "127.0.0.1").strip("[]")
    if loopback:
        from quire.http.server.security import is_loopback

        if not is_loopback(host):
            raise click.UsageError(
                f"{address!r} is not a loopback address: use 127.0.0.1, for example", context
            )
    return host, int(found[2])


def around_bookie(
    uri: str, log: Callable[..., None], autorecovery: AutorecoveryStats | None
) -> Callable[[Bookie], AbstractAsyncContextManager[Any]] | None:
    """Return the value of `BookieOptions.around`.

    `autorecovery` holds the counters of the autorecovery in the bookie's process, which are
    exported as metrics.
    """
    options = given_options()
    if options is None:
        return None
    import quire
    from quire.http.server.run import serve_bookie

    # Of this client only reads and jobs of an operator: with TLS to bookies by the environment.
    config = client_config()
    return lambda bookie: serve_bookie(
        bookie, options, uri, config, quire.__version__, log, autorecovery=autorecovery
    )


@click.command()
@metadata_option
@http_options("--http", default=DEFAULT_ADDRESS)
@tls_options
def http(uri: str) -> None:
    """Serve the HTTP API of a cluster in the foreground: all but what is about one bookie.

    It prints its address on standard output once it serves, and one line of JSON for each event on
    standard error. SIGTERM and Ctrl-C stop it cleanly, with exit status 0.
    """
    serve_in_foreground(uri)


def serve_in_foreground(
    uri: str, serving: Callable[[str], object] | None = None, *, any_port: bool = False
) -> None:
    """Serve until a signal comes.

    `serving` is called with the address once it serves. With `any_port` and no chosen address, one
    of the next ports is taken if the default one is in use.
    """
    from quire.cli.common.configuration import configured
    from quire.configuration.layers import DEFAULT

    asked = click.get_current_context().meta.get(_KEPT, {}).get("http")
    any_port &= not asked and configured().origins["http.address"] == DEFAULT
    fill_options(configured().http().options())
    options = given_options()
    if options is None:
        raise click.UsageError("where is it to listen? Give --http HOST:PORT")
    try:
        run_async(_http(uri, options, serving, PORTS_TRIED if any_port else 1))
    except KeyboardInterrupt:
        pass


async def _http(
    uri: str, options: HttpOptions, serving: Callable[[str], object] | None, ports: int
) -> None:
    """Serve on the first free one of `ports` ports."""
    import quire

    stopping = stop_event()
    async with quire.connect(uri):
        pass  # a cluster that is not there is an error now, not at the first request
    async with AsyncExitStack() as stack:
        server = await _served(stack, uri, options, ports)
        if server.port != options.port and options.port:
            say(f"port {options.port} is taken: serving on {server.port}")
        click.echo(server.url)
        if serving is not None:
            serving(server.url)
        await stopping.wait()


async def _served(stack: AsyncExitStack, uri: str, options: HttpOptions, ports: int) -> HttpServer:
    import quire
    from quire.bookie.main import log_event
    from quire.cli.common.options import default_name
    from quire.http.server.run import serve_cluster
    from quire.http.server.server import PortTakenError

    last = options.port + ports - 1
    for port in range(options.port, last + 1):
        served: AbstractAsyncContextManager[HttpServer] = serve_cluster(
            replace(options, port=port), uri, client_config(), quire.__version__, log_event,
            owner=default_name(),
        )  # fmt: skip
        try:
            return await stack.enter_async_context(served)
        except PortTakenError:
            if ports == 1:
                raise
    raise PortTakenError(
        f"HTTP cannot listen on {options.host}: ports {options.port} to {last} are all in use",
        remedy="Choose another address with --http; port 0 is any free one",
    )


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and Ctrl-C."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


# -- the dashboard ----------------------------------------------------------------------------


@click.command()
@metadata_option
@http_options("--http", default=DEFAULT_ADDRESS)
@flag("--open", "Open it in this machine's browser.", name="opened")
@tls_options
def ui(uri: str, opened: bool) -> None:
    """Serve the dashboard of a cluster in the foreground, with the HTTP API that it asks.

    It prints the address of the dashboard on standard output once it serves, and one line of JSON
    for each event on standard error. SIGTERM and Ctrl-C stop it cleanly, with exit status 0. Where
    the default port is taken it says so, and takes the next one that is free; one that was chosen,
    by --http or by the configuration, and is taken is an error.
    """
    serve_in_foreground(uri, (lambda url: click.launch(url)) if opened else None, any_port=True)
