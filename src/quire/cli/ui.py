"""`quire ui`."""

from __future__ import annotations

import click

from quire.cli.common.options import metadata_option
from quire.cli.common.tls import tls_options
from quire.cli.http import DEFAULT_ADDRESS, http_options, serve_in_foreground


@click.command()
@metadata_option
@http_options("--http", default=DEFAULT_ADDRESS)
@click.option("--open", "opened", is_flag=True, help="Open it in this machine's browser.")
@tls_options
def ui(uri: str, opened: bool) -> None:
    """Serve the dashboard of a cluster in the foreground, with the HTTP API that it asks.

    It prints the address of the dashboard on standard output once it serves, and one line of JSON
    for each event on standard error. SIGTERM and Ctrl-C stop it cleanly, with exit status 0. Where
    the default port is taken it says so, and takes the next one that is free; one that was chosen,
    by --http or by the configuration, and is taken is an error.
    """
    serve_in_foreground(uri, (lambda url: click.launch(url)) if opened else None, any_port=True)
