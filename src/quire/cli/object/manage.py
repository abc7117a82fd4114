"""The commands `quire object list`, `show` and `delete`."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.logs import printable
from quire.cli.common.options import (
    asynchronous,
    confirmed,
    dry_run_option,
    json_option,
    metadata_option,
    yes_option,
)
from quire.cli.common.output import print_json
from quire.cli.object.options import bucket_option, name_argument, object_as_json
from quire.errors import NoSuchLedgerError, NoSuchObjectError, VersionConflictError

if TYPE_CHECKING:
    from quire.streams.objects.objects import ObjectInfo, Objects


# -- list -------------------------------------------------------------------------------------


@click.command("list")
@metadata_option
@bucket_option
@click.argument("prefix", metavar="[PREFIX]", default="")
@click.option(
    "--after", metavar="NAME", default="", help="List only names that sort after this one."
)
@json_option("Print one JSON object per object, as `quire object show --json` does.")
@asynchronous
async def list_objects(uri: str, bucket: str, prefix: str, after: str, as_json: bool) -> None:
    """List the names of objects that begin with PREFIX, sorted, one per line.

    Objects that cannot be read are reported on standard error at the end, and the exit status is 1.
    """

    import quire
    from quire.streams.objects.objects import Objects

    async with (
        quire.connect(uri) as client,
        aclosing(Objects(client, bucket).pages(prefix, after=after)) as pages,
    ):
        async for page in pages:
            if as_json:
                for info in page:
                    print_json(object_as_json(bucket, info))
            else:
                sys.stdout.write("".join(f"{info.name}\n" for info in page))
        sys.stdout.flush()


# -- show -------------------------------------------------------------------------------------


@click.command()
@metadata_option
@bucket_option
@name_argument
@json_option("Print one JSON object.")
@asynchronous
async def show(uri: str, bucket: str, name: str, as_json: bool) -> None:
    """Show the size, SHA-256, ledger and metadata of an object, without reading its data.

    An object whose ledger no longer exists is reported as lost.
    """
    info, lost = await _info(uri, bucket, name)
    described = object_as_json(bucket, info)
    if lost:
        described["lost"] = True
    if as_json:
        print_json(described)
    else:
        click.echo("\n".join(_lines(described)))


async def _info(uri: str, bucket: str, name: str) -> tuple[ObjectInfo, bool]:
    """Return the object's description, and whether its ledger is gone."""
    import quire
    from quire.streams.objects.objects import Objects

    async with quire.connect(uri) as client:
        objects = Objects(client, bucket)
        info = await objects.info(name)
        try:
            await client.ledger_metadata(info.ledger_id)
        except NoSuchLedgerError:
            # The object may have been replaced in between: read its head again.
            now = await objects.info(name)
            return now, now.ledger_id == info.ledger_id
        return info, False


def _lines(described: dict[str, Any]) -> list[str]:
    return [
        f"object    {described['name']}",
        f"bucket    {described['bucket']}",
        f"bytes     {described['bytes']}",
        f"SHA-256   {described['sha256']}",
        f"created   {described['ctime'] or 'unknown'}",
        f"ledger    {described['ledger_id']}",
        *(
            ["lost      the ledger no longer exists: the bytes of the object are gone"]
            if described.get("lost")
            else []
        ),
        f"chunks    {described['chunks']} of {counted(described['chunk_bytes'], 'byte')}",
        *(
            f"metadata  {printable(f'{key}={value}')}"
            for key, value in described["metadata"].items()
        ),
    ]


# -- delete -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@bucket_option
@name_argument
@yes_option()
@dry_run_option("Only print what would be deleted.")
@asynchronous
async def delete(uri: str, bucket: str, name: str, yes: bool, dry_run: bool) -> int:
    """Delete an object and its ledger. Bookies free the space at their next garbage collection.

    The command asks for confirmation if standard input is a terminal. It succeeds if the object
    does not exist.
    """

    import quire
    from quire.streams.objects.objects import Objects

    async with quire.connect(uri) as client:
        objects = Objects(client, bucket)
        if dry_run or (not yes and sys.stdin.isatty()):
            seen = await _found(objects, name)
            if seen is None:
                say(f"object {name} does not exist")
                return 0
            held = counted(seen.size_bytes, "byte")
            if dry_run:
                say(f"object {name} ({held}) would be deleted")
                return 0
            if not confirmed(f"Delete object {name} ({held})?", yes):
                return EXIT_ERROR
            now = await _found(objects, name)
            if now is not None and now.ledger_id != seen.ledger_id:
                raise VersionConflictError(
                    f"the object {name} was replaced while the command waited for an answer; "
                    "nothing was deleted",
                    remedy="If you mean the present object, run the command again",
                )
        found = await objects.delete(name)
    say(f"object {name} deleted" if found else f"object {name} does not exist")
    return 0


async def _found(objects: Objects, name: str) -> ObjectInfo | None:
    try:
        return await objects.info(name)
    except NoSuchObjectError:
        return None
