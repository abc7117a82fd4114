"""`quire stream list`."""

from __future__ import annotations

import sys

import click

from quire.cli.common.groups import EXIT_ERROR, fail
from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json
from quire.cli.common.tls import tls_options
from quire.cli.stream.options import (
    Values,
    columns,
    namespace,
    namespace_option,
    password_option,
)

STREAMS_AT_ONCE = 64
"""Looked at, for --long, before they are printed."""
HEAD = ("NAME", "SEGMENTS", "RECORDS", "BYTES", "FIRST", "AT", "LAST", "AT")
KEYS = ("name", "segments", "records", "bytes", "first", "first_time", "last", "last_time")


@click.command("list")
@metadata_option
@tls_options
@namespace_option
@click.argument("prefix", metavar="[PREFIX]", default="")
@click.option(
    "-l",
    "--long",
    "long",
    is_flag=True,
    help="With segments, records, bytes, and the first and last position and time.",
)
@password_option
@json_option("One JSON object a line: name, and with --long what it shows.")
def list_streams(
    uri: str, path: str, prefix: str, long: bool, password: bytes, as_json: bool
) -> int:
    """List the streams of a namespace whose names begin with PREFIX, one a line.

    With --long, streams that cannot be read are named on standard error; then the exit status is 1.
    """
    return run_async(_list(uri, path, prefix, long, password, as_json))


async def _list(
    uri: str, path: str, prefix: str, long: bool, password: bytes, as_json: bool
) -> int:
    from quire._runtime.tasks import each
    from quire.errors import MetadataUnavailableError, NoSuchStreamError, QuireError
    from quire.http.views.stream_statistics import stream_statistics
    from quire.streams import Namespace

    failed: list[str] = []

    async def described(opened: Namespace, name: str) -> Values | None:
        try:
            return (await stream_statistics(opened, name, password)).as_json()
        except NoSuchStreamError:
            return None  # deleted since it was listed
        except MetadataUnavailableError:
            raise
        except QuireError as error:
            failed.append(f"stream {name}: {error}")
            return None

    async with namespace(uri, path, password) as opened:
        names = await opened.streams(prefix)
        if not long:
            for name in names:
                if as_json:
                    print_json({"name": name})
                else:
                    sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            return 0
        rows: list[tuple[str, ...]] = [HEAD]
        for at in range(0, len(names), STREAMS_AT_ONCE):
            piece = names[at : at + STREAMS_AT_ONCE]
            for found in await each(piece, lambda name: described(opened, name)):
                if found is None:
                    continue
                if as_json:
                    print_json(found)
                else:
                    rows.append(tuple("-" if found[k] is None else str(found[k]) for k in KEYS))
        if not as_json:
            sys.stdout.write("".join(f"{line}\n" for line in columns(rows)))
            sys.stdout.flush()
    for line in failed:
        fail(line)
    return EXIT_ERROR if failed else 0
