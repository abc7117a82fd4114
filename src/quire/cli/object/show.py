"""`quire object show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json
from quire.cli.object.options import bucket_option, name_argument, object_as_json

if TYPE_CHECKING:
    from quire.streams.objects.objects import ObjectInfo


@click.command()
@metadata_option
@bucket_option
@name_argument
@json_option("One JSON object.")
def show(uri: str, bucket: str, name: str, as_json: bool) -> None:
    """Show the size, SHA-256, ledger and metadata of an object, without reading its data.

    An object whose ledger no longer exists is reported as lost.
    """
    info, lost = run_async(_info(uri, bucket, name))
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
    from quire.errors import NoSuchLedgerError
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
        f"created   {described['ctime'] or 'not known'}",
        f"ledger    {described['ledger_id']}",
        *(
            ["lost      the ledger no longer exists: the bytes of the object are gone"]
            if described.get("lost")
            else []
        ),
        f"chunks    {described['chunks']} of {described['chunk_bytes']} bytes",
        *(f"metadata  {key}={value}" for key, value in described["metadata"].items()),
    ]
