"""`quire namespace create`."""

from __future__ import annotations

import click

from quire.cli.common.groups import say
from quire.cli.common.options import metadata_option, run_async
from quire.cli.stream.options import Values, path_argument, set_option


@click.command()
@metadata_option
@path_argument
@set_option
def create(uri: str, path: str, values: Values) -> None:
    """Make a namespace for streams, for example /team/orders.

    Where there is one already the settings are added to its own. On ZooKeeper it is bound to the
    cluster, so that DistributedLog's tools find it.
    """
    from quire.streams.namespace.namespace import check_new_path

    check_new_path(path, uri)
    run_async(_create(uri, path, values))


async def _create(uri: str, path: str, values: Values) -> None:
    import quire
    from quire.streams.namespace.namespace import open_namespace

    async with quire.connect(uri) as client:
        await (await open_namespace(client, path, settings=values, create=True)).close()
    say(f"namespace {path} is there")
