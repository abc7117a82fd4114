"""`quire stream truncate` and `quire stream retain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quire.cli.common.groups import say
from quire.cli.common.options import dry_run_option, json_option, metadata_option, run_async
from quire.cli.common.output import print_json
from quire.cli.common.tls import tls_options
from quire.cli.stream.options import (
    PLACES,
    name_argument,
    namespace,
    namespace_option,
    password_option,
    place_option,
)

if TYPE_CHECKING:
    from quire.codec.distributedlog.segment import StreamSegment
    from quire.streams.read.positions import Start


@click.command()
@metadata_option
@tls_options
@namespace_option
@name_argument()
@place_option("before", f"Give up everything before this place: {PLACES}.", required=True)
@password_option
@dry_run_option("Only say which ledgers would be freed.")
@json_option("One JSON object: name, before, freed_ledgers, dry_run.")
def truncate(
    uri: str,
    path: str,
    name: str,
    before_place: Start,
    password: bytes,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give up the beginning of a stream, and free the ledgers that hold nothing else.

    The segment that is being written is left alone: what lies in it is given up by a later call.
    """
    run_async(_truncate(uri, path, name, before_place, password, dry_run, as_json))


async def _truncate(
    uri: str, path: str, name: str, before: Start, password: bytes, dry_run: bool, as_json: bool
) -> None:
    async with namespace(uri, path, password) as opened:
        position = await opened.find(name, before)
        freed = await opened.truncate(name, position, dry_run=dry_run)
    if as_json:
        ledgers = [segment.ledger_id for segment in freed]
        print_json({
            "name": name, "before": str(position), "freed_ledgers": ledgers, "dry_run": dry_run
        })  # fmt: skip
    else:
        done = "would be truncated" if dry_run else "truncated"
        say(f"stream {name} {done} before {position}: {_freed(freed, dry_run)}")


def _freed(segments: list[StreamSegment], dry_run: bool) -> str:
    done = "would be freed" if dry_run else "freed"
    return f"{len(segments)} ledger{'' if len(segments) == 1 else 's'} {done}"


@click.command()
@metadata_option
@namespace_option
@name_argument(required=False)
@click.option("--all", "everything", is_flag=True, help="All streams of the namespace.")
@dry_run_option("Only say which ledgers would be freed.")
@json_option("One JSON object for each stream: name, freed_ledgers, dry_run.")
def retain(
    uri: str, path: str, name: str | None, everything: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete what the settings do not want kept (retention_s, retention_bytes), and what was
    truncated. Writers do the same when they roll."""
    if everything == (name is not None):
        raise click.UsageError("give the NAME of a stream, or --all")
    run_async(_retain(uri, path, name, dry_run, as_json))


async def _retain(uri: str, path: str, name: str | None, dry_run: bool, as_json: bool) -> None:
    from quire.errors import NoSuchStreamError

    async with namespace(uri, path) as opened:
        for one in [name] if name is not None else await opened.streams():
            try:
                freed = await opened.retain(one, dry_run=dry_run)
            except NoSuchStreamError:
                if name is not None:
                    raise
                continue  # deleted since it was listed
            if as_json:
                ledgers = [segment.ledger_id for segment in freed]
                print_json({"name": one, "freed_ledgers": ledgers, "dry_run": dry_run})
            elif freed or name is not None:
                say(f"stream {one}: {_freed(freed, dry_run)}")
