"""`quire object put`."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from quire.cli.common.groups import say
from quire.cli.common.options import (
    Size,
    check_quorums,
    checked,
    json_option,
    metadata_option,
    placement_option,
    quorum_options,
    run_async,
)
from quire.cli.common.output import print_json
from quire.cli.common.progress import Progress
from quire.cli.common.tls import connect, tls_options
from quire.cli.object.options import bucket_option, check_name, object_as_json

if TYPE_CHECKING:
    from quire.cli.common.lines import InputSource
    from quire.streams.objects.objects import ObjectInfo

STANDARD_INPUT = "-"
CHUNK_BYTES = 256 * 1024
CHUNK_BYTES_MAX = 4 * 1024 * 1024


def _pairs(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    pairs = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", context, parameter)
        if key in pairs:
            raise click.BadParameter(f"{key!r} is given twice", context, parameter)
        pairs[key] = value
    return pairs


@click.command()
@metadata_option
@placement_option
@tls_options
@bucket_option
@click.argument("path", metavar="FILE")
@click.argument("name", metavar="[NAME]", required=False, callback=checked(check_name))
@click.option("--replace", is_flag=True, help="Take the place of what has the name.")
@click.option(
    "--meta",
    "metadata",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_pairs,
    help="Stored with the object. May be repeated.",
)
@click.option(
    "--chunk-bytes",
    metavar="SIZE",
    type=Size(1, CHUNK_BYTES_MAX),
    default=CHUNK_BYTES,
    show_default=True,
    help="Bytes of one entry of its ledger.",
)
@quorum_options
@json_option("One JSON object: what `show --json` says of it.")
def put(uri: str, path: str, name: str | None, bucket: str, as_json: bool, **how: Any) -> None:
    """Store a file as an object; '-' is standard input. NAME defaults to the file's own.

    Nobody sees anything of the object before all of it is stored. Exit status 0 means that it is
    there, on an ack quorum of bookies.
    """
    check_quorums(how["ensemble"], how["write_quorum"], how["ack_quorum"])
    how["ensemble_size"] = how.pop("ensemble")
    if name is None:
        if path == STANDARD_INPUT:
            raise click.UsageError("what comes from standard input needs a NAME")
        name = os.path.basename(path)
    _check(name, bucket, how["metadata"])
    with _opened(path) as file:
        info = run_async(_put(uri, bucket, name, file, how))
    if as_json:
        print_json(object_as_json(bucket, info))
    else:
        say(
            f"object {name} put: {info.size_bytes} bytes in ledger {info.ledger_id}, "
            f"SHA-256 {info.sha256}"
        )


def _check(name: str, bucket: str, metadata: dict[str, str]) -> None:
    """Raise UsageError for names and metadata that would otherwise be refused only after the whole
    object is stored."""
    from quire.streams.objects.format import check_metadata, check_name

    check_name(name)
    check_metadata(name, metadata)


def _opened(path: str) -> BinaryIO:
    if path == STANDARD_INPUT:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    return open(path, "rb", buffering=0)


async def _put(uri: str, bucket: str, name: str, file: BinaryIO, how: dict[str, Any]) -> ObjectInfo:
    from quire.cli.common.lines import InputSource, Whole
    from quire.streams.objects.objects import Objects

    found = os.fstat(file.fileno())
    total = found.st_size if stat.S_ISREG(found.st_mode) else None
    async with connect(uri) as client:
        with (
            closing(InputSource(file.fileno(), Whole())) as source,
            Progress("put", total=total, in_bytes=True, counted="pieces") as progress,
        ):
            return await Objects(client, bucket).put(name, _counted(source, progress), **how)


async def _counted(source: InputSource, progress: Progress) -> AsyncGenerator[bytes, None]:
    async for pieces in source:
        for piece in pieces:
            yield piece
            progress.advance(1, len(piece))
