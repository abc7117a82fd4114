"""`quire object list`."""

from __future__ import annotations

import sys
from contextlib import aclosing

import click

from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json
from quire.cli.object.options import bucket_option, object_as_json


@click.command("list")
@metadata_option
@bucket_option
@click.argument("prefix", metavar="[PREFIX]", default="")
@click.option("--after", metavar="NAME", default="", help="Only names that come after this one.")
@json_option("One JSON object a line, with what `show --json` says of the object.")
def list_objects(uri: str, bucket: str, prefix: str, after: str, as_json: bool) -> None:
    """List the names of objects that begin with PREFIX, in their order, one a line."""
    run_async(_list(uri, bucket, prefix, after, as_json))


async def _list(uri: str, bucket: str, prefix: str, after: str, as_json: bool) -> None:
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
