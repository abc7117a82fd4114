"""`quire stream audit`."""

from __future__ import annotations

import sys

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.options import (
    LEDGER_ID_MAX,
    Duration,
    json_option,
    metadata_option,
    run_async,
)
from quire.cli.common.output import print_json, time_text
from quire.cli.common.tls import connect, tls_options

OLDER_THAN_S = 24 * 3600


@click.command()
@metadata_option
@tls_options
@click.option(
    "--delete/--dry-run",
    "delete",
    default=False,
    help="Delete them, or only tell. [default: --dry-run]",
)
@click.option(
    "--older-than",
    "older_than_s",
    metavar="SECONDS",
    type=Duration(),
    default=OLDER_THAN_S,
    show_default=True,
    help="Leave younger ledgers alone: a writer may be about to use them.",
)
@click.option(
    "--first",
    type=click.IntRange(0, LEDGER_ID_MAX),
    default=0,
    help="Look at ledgers from this id on.",
)
@json_option("One JSON object a line: ledger_id, stream, ctime, bytes, deleted.")
def audit(uri: str, delete: bool, older_than_s: float, first: int, as_json: bool) -> int:
    """Find ledgers that were created for streams and that no stream of the cluster names any more.

    The command prints the id of each ledger and the stream it was created for. Ledgers and streams
    that cannot be read are named on standard error, and no ledger is deleted that they may own. The
    exit status is 1 if a ledger or stream cannot be read, or if a ledger could not be deleted.
    """
    return run_async(_audit(uri, delete, older_than_s, first, as_json))


async def _audit(uri: str, delete: bool, older_than_s: float, first: int, as_json: bool) -> int:
    from quire.streams.ownership.orphans import delete_orphans, look_for_orphans

    async with connect(uri) as client:
        found = await look_for_orphans(client, older_than_s, first=first)
        orphans = found.orphans
        left = await delete_orphans(client, orphans) if delete else []
    stay = {one.orphan.ledger_id for one in left}
    for orphan in orphans:
        if as_json:
            print_json(
                {
                    "ledger_id": orphan.ledger_id,
                    "stream": orphan.stream,
                    "ctime": time_text(orphan.ctime_ms),
                    "bytes": orphan.size_bytes,
                    "deleted": delete and orphan.ledger_id not in stay,
                }
            )
        else:
            sys.stdout.write(f"{orphan.ledger_id} {orphan.stream}\n")
    sys.stdout.flush()
    for one in left:
        say(f"ledger {one.orphan.ledger_id} was left: {one.why}")
    for unread in found.skipped:
        fail(f"{unread}")
    deleted = f", {len(orphans) - len(left)} deleted" if delete else ""
    unread_count = f", {len(found.skipped)} not readable" if found.skipped else ""
    say(f"{counted(len(orphans), 'ledger')} of streams that no stream names{deleted}{unread_count}")
    return EXIT_ERROR if left or found.skipped else 0
