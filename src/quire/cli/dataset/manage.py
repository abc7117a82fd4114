"""The commands `quire dataset delete` and `sweep`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.options import (
    Duration,
    LedgerId,
    asynchronous,
    confirmed,
    dry_run_option,
    json_option,
    metadata_option,
    yes_option,
)
from quire.cli.common.output import print_json, time_text
from quire.cli.dataset.options import name_argument
from quire.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    VersionConflictError,
)

if TYPE_CHECKING:
    from quire.client.datasets.datasets import Datasets

OLDER_THAN_S = 86_400
"""The default age in seconds from which `sweep` deletes ledgers: a day, longer than most jobs."""


# -- delete -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@name_argument()
@yes_option()
@dry_run_option("Only print what would be deleted.")
@asynchronous
async def delete(uri: str, name: str, yes: bool, dry_run: bool) -> int:
    """Delete a dataset and the ledgers that were written for it.

    Bookies free the space at their next garbage collection. Ledgers that the dataset holds, but
    that were not written for it, are kept. The command asks for confirmation if standard input is a
    terminal. It succeeds if the dataset does not exist.
    """

    import quire

    async with quire.connect(uri) as client:
        datasets = client.datasets
        if dry_run or (not yes and sys.stdin.isatty()):
            seen = await _held(datasets, name)
            if seen is None:
                say(f"dataset {name} does not exist")
                return 0
            held, sequence = seen
            if dry_run:
                say(f"dataset {name} ({held}) would be deleted")
                return 0
            if not confirmed(f"Delete dataset {name} ({held})?", yes):
                return EXIT_ERROR
            now = await _held(datasets, name)
            if now is not None and now[1] != sequence:
                raise VersionConflictError(
                    f"the dataset {name} was changed, or dropped and created again, while the "
                    "command waited for an answer; nothing was deleted",
                    remedy="If you mean the present dataset, run the command again",
                )
        dropped = await datasets.drop(name)
        if dropped is None:
            say(f"dataset {name} does not exist")
            return 0
        ledger_ids = dropped.ledger_ids
        deleted = await datasets.discard(name, ledger_ids)
    kept = len(ledger_ids) - len(deleted)
    kept_text = f"; {counted(kept, 'ledger')} kept" if kept else ""
    say(f"dataset {name} deleted with {counted(len(deleted), 'ledger')}{kept_text}")
    return 0


async def _held(datasets: Datasets, name: str) -> tuple[str, int] | None:
    """Return what a dataset holds, in words, and its sequence number.

    The number is -1 if the dataset cannot be read. The result is None if it does not exist.
    """
    try:
        dataset = await datasets.read(name)
    except NoSuchKeyError:
        return None
    except MetadataUnavailableError:
        raise
    except MetadataError as error:
        return f"which cannot be read: {error.args[0]}", -1
    held = f"{counted(len(dataset.ledger_ids), 'ledger')}, {counted(dataset.rows, 'row')}"
    return held, dataset.sequence


# -- sweep ------------------------------------------------------------------------------------


@click.command()
@metadata_option
@name_argument(required=False)
@click.option(
    "--older-than",
    "older_than_s",
    metavar="SECONDS",
    type=Duration(),
    default=OLDER_THAN_S,
    show_default=True,
    help="Keep younger ledgers, because a running job may publish them. In seconds, or with a "
    "unit. It must be longer than your longest job takes.",
)
@click.option(
    "--first",
    metavar="ID",
    type=LedgerId(),
    default=0,
    help="Examine only ledgers with this id or a higher one. [default: 0]",
)
@yes_option()
@dry_run_option("Only print the ledgers.")
@json_option("Print one JSON object per ledger: ledger_id, dataset, job, ctime, bytes, deleted.")
@asynchronous
async def sweep(
    uri: str,
    name: str | None,
    older_than_s: float,
    first: int,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Delete the ledgers that interrupted jobs wrote for datasets and never published.

    With NAME, only ledgers that were written for this dataset are deleted. The command prints the
    id of each ledger and its dataset. It asks for confirmation if standard input is a terminal.
    Ledgers and datasets that cannot be read are reported on standard error, and no ledger that they
    may own is deleted. The exit status is then 1.
    """

    import quire

    async with quire.connect(uri) as client:
        datasets = client.datasets
        found = await datasets.look_for_orphans(older_than_s, name=name, first=first)
        orphans, skipped = found.orphans, list(found.skipped)
        count = counted(len(orphans), "unpublished ledger")
        deleted: set[int] = set()
        if orphans and not dry_run:
            if not confirmed(f"Delete {count} of datasets?", yes):
                return EXIT_ERROR
            swept = await datasets.delete_orphans(orphans)
            deleted.update(swept.deleted)
            skipped += swept.skipped
    for orphan in orphans:
        if as_json:
            print_json(
                {
                    "ledger_id": orphan.ledger_id,
                    "dataset": orphan.dataset,
                    "job": orphan.job or None,
                    "ctime": time_text(orphan.ctime_ms),
                    "bytes": orphan.bytes,
                    "deleted": orphan.ledger_id in deleted,
                }
            )
        else:
            sys.stdout.write(f"{orphan.ledger_id} {orphan.dataset}\n")
    sys.stdout.flush()
    for one in skipped:
        fail(f"{one}")
    unread = f"; {len(skipped)} could not be read" if skipped else ""
    done = " would be deleted" if dry_run else f", {len(deleted):,} deleted"
    say(f"{count} of datasets{done if orphans else ''}{unread}")
    return EXIT_ERROR if skipped else 0
