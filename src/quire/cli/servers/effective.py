"""The effective configuration of a server's process, as its HTTP server shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.configuration import configuration_file, configured
from quire.cli.common.options import PLACEMENT_VARIABLE, wanted_placement
from quire.cli.common.tls import client_tls_layer

if TYPE_CHECKING:
    from quire.configuration.layers import Configuration, Layer

ADDRESS = {"http": "address"}
"""The key in the table `[http]` of each HTTP option that has another name than its key."""
WITHOUT_PREFIX = ("http_prometheus", "http_prometheus_label")
"""The parameters of those HTTP options whose names do not begin with `--http-`."""


def effective_settings(
    uri: str, tables: Sequence[str], layers: Sequence[Layer], http: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of the current command, with the values of its options.

    Args:
        uri: The metadata URI that the command uses.
        tables: The tables that apply to the process. The first one has the HTTP options.
        layers: The layers of the command's own options.
        http: The HTTP options of the command line, by the names of their parameters.

    Raises:
        click.UsageError: A value is not valid.
    """
    from quire.configuration.report import report

    given = [*layers, _metadata(uri), _http(tables[0], http), client_tls_layer()]
    path = configuration_file(os.environ)
    file = None if path is None else str(path)
    return report(_with_placement(configured(*given)), ("", "client", *tables), file)


def _metadata(uri: str) -> Layer:
    from quire.configuration.layers import options_layer

    changed = uri != configured().metadata
    return options_layer({"metadata": (uri if changed else None, "--metadata")})


def _http(table: str, given: Mapping[str, Any]) -> Layer:
    """Return the layer of the HTTP options. Their keys in `[http]` lack the prefix `http_`."""
    from quire.configuration.layers import options_layer

    def key(name: str) -> str:
        short = ADDRESS.get(name, name.removeprefix("http_")) if table == "http" else name
        return f"{table}.{short}"

    def option(name: str) -> str:
        shown = name.removeprefix("http_") if name in WITHOUT_PREFIX else name
        return f"--{shown.replace('_', '-')}"

    return options_layer({key(name): (value, option(name)) for name, value in given.items()})


def _with_placement(found: Configuration) -> Configuration:
    """Return the configuration with the placement that an option or a variable chose.

    Such a placement replaces the whole table: what it does not name has its default, whatever the
    file says.
    """
    from quire.config import PlacementConfig
    from quire.configuration.layers import DEFAULT

    context = click.get_current_context()
    wanted = wanted_placement(context)
    if wanted is None:
        return found
    usual = PlacementConfig()
    option = "--placement" if context.meta.get(PLACEMENT_VARIABLE) else PLACEMENT_VARIABLE
    values, origins = dict(found.values), dict(found.origins)
    for one in fields(wanted):
        key, value = f"client.placement.{one.name}", getattr(wanted, one.name)
        values[key] = value
        origins[key] = option if value != getattr(usual, one.name) else DEFAULT
    return replace(found, values=values, origins=origins)
