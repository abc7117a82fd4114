"""Options and output that the commands on objects share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.completion import complete_objects
from quire.cli.common.options import Command, checked
from quire.cli.common.output import time_text

if TYPE_CHECKING:
    from quire.streams.objects.objects import ObjectInfo

DEFAULT_BUCKET = "default"


def check_bucket(text: str) -> str:
    """Return the name of a bucket. Raises UsageError if it is invalid."""
    from quire.streams.objects import format as object_format

    return object_format.check_bucket(text)


def check_name(text: str) -> str:
    """Return the name of an object. Raises UsageError if it is invalid."""
    from quire.streams.objects import format as object_format

    return object_format.check_name(text)


def bucket_option(command: Command) -> Command:
    return click.option(
        "--bucket",
        default=DEFAULT_BUCKET,
        show_default=True,
        metavar="NAME",
        callback=checked(check_bucket),
        help="The bucket of the object. Each bucket has its own set of names.",
    )(command)


def name_argument(command: Command) -> Command:
    return click.argument(
        "name", metavar="NAME", callback=checked(check_name), shell_complete=complete_objects
    )(command)


def object_as_json(bucket: str, info: ObjectInfo) -> dict[str, Any]:
    """Return the JSON that the commands print for an object."""
    return {
        "name": info.name,
        "bucket": bucket,
        "bytes": info.size_bytes,
        "sha256": info.sha256,
        "ctime": time_text(info.ctime_ms),
        "ctime_ms": info.ctime_ms,
        "ledger_id": info.ledger_id,
        "chunks": info.chunks,
        "chunk_bytes": info.chunk_bytes,
        "metadata": dict(info.metadata),
    }
