"""`quire object show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.admin.object_options import bucket_option, name_argument, object_as_json
from quire.admin.options import json_option, metadata_option, run_async
from quire.admin.output import print_json

if TYPE_CHECKING:
    from quire.streams.objects import ObjectInfo


@click.command()
@metadata_option
@bucket_option
@name_argument
@json_option("One JSON object.")
def show(uri: str, bucket: str, name: str, as_json: bool) -> None:
    """Show what is known of an object: size, SHA-256, ledger, metadata. Nothing of it is read."""
    described = object_as_json(bucket, run_async(_info(uri, bucket, name)))
    if as_json:
        print_json(described)
    else:
        click.echo("\n".join(_lines(described)))


async def _info(uri: str, bucket: str, name: str) -> ObjectInfo:
    import quire
    from quire.streams.objects import Objects

    async with quire.connect(uri) as client:
        return await Objects(client, bucket).info(name)


def _lines(described: dict[str, Any]) -> list[str]:
    return [
        f"object    {described['name']}",
        f"bucket    {described['bucket']}",
        f"bytes     {described['bytes']}",
        f"SHA-256   {described['sha256']}",
        f"created   {described['ctime'] or 'not known'}",
        f"ledger    {described['ledger_id']}",
        f"chunks    {described['chunks']} of {described['chunk_bytes']} bytes",
        *(f"metadata  {key}={value}" for key, value in described["metadata"].items()),
    ]
