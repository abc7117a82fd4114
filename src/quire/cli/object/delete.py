"""`quire object delete`."""

from __future__ import annotations

import sys

import click

from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import dry_run_option, metadata_option, run_async
from quire.cli.object.options import bucket_option, name_argument


@click.command()
@metadata_option
@bucket_option
@name_argument
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@dry_run_option("Only say what would be deleted.")
def delete(uri: str, bucket: str, name: str, yes: bool, dry_run: bool) -> int:
    """Delete an object and its ledger; bookies free its space at their next garbage collection.

    Asks first where standard input is a terminal. An object that is not there is success.
    """
    return run_async(
        _delete(uri, bucket, name, ask=not yes and sys.stdin.isatty(), dry_run=dry_run)
    )


async def _delete(uri: str, bucket: str, name: str, ask: bool, dry_run: bool) -> int:
    import quire
    from quire.streams.objects.objects import Objects

    async with quire.connect(uri) as client:
        objects = Objects(client, bucket)
        if dry_run:
            held = (await objects.info(name)).size_bytes
            say(f"object {name} ({held} bytes) would be deleted")
            return 0
        if ask:
            held = (await objects.info(name)).size_bytes
            if not click.confirm(f"Delete object {name} ({held} bytes)?", err=True):
                say("nothing was deleted")
                return EXIT_ERROR
        found = await objects.delete(name)
    say(f"object {name} deleted" if found else f"object {name}: there is none")
    return 0
