"""Options and output that the commands on objects share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.options import Command
from quire.cli.common.output import time_text

if TYPE_CHECKING:
    from quire.streams.objects.objects import ObjectInfo

DEFAULT_BUCKET = "default"


def checked(kind: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A name, or bucket, that cannot be is a usage error at once."""

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        from quire.errors import UsageError
        from quire.streams.objects import format as object_format

        if value is None:
            return None
        try:
            return getattr(object_format, f"check_{kind}")(value)  # type: ignore[no-any-return]
        except UsageError as error:
            raise click.UsageError(str(error), context) from None

    return check


def bucket_option(command: Command) -> Command:
    return click.option(
        "--bucket",
        default=DEFAULT_BUCKET,
        show_default=True,
        metavar="NAME",
        callback=checked("bucket"),
        help="Objects of different buckets do not see each other.",
    )(command)


def name_argument(command: Command) -> Command:
    return click.argument("name", metavar="NAME", callback=checked("name"))(command)


def object_as_json(bucket: str, info: ObjectInfo) -> dict[str, Any]:
    """Return what the commands print of an object with --json."""
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
