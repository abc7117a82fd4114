"""`quire namespace list`."""

from __future__ import annotations

import sys

import click

from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json


@click.command("list")
@metadata_option
@json_option("One JSON object a line: path.")
def list_namespaces(uri: str, as_json: bool) -> None:
    """List the paths of all namespaces in the cluster's store, one a line."""
    for path in run_async(_namespaces(uri)):
        if as_json:
            print_json({"path": path})
        else:
            sys.stdout.write(f"{path}\n")
    sys.stdout.flush()


async def _namespaces(uri: str) -> list[str]:
    import quire
    from quire.streams.namespace.walk import namespaces

    async with quire.connect(uri) as client:
        return await namespaces(client)
