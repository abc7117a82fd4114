"""`quire bookie disk replace` and `remove`: a data directory that is gone, or goes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.clock import SystemClock
from quire._runtime.units import are
from quire.cli.bookie.identity import (
    absolute,
    errors_of,
    held,
    looking_at_ledgers,
    opened_metadata,
    pages_naming,
)
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import (
    asynchronous,
    bookie_argument,
    confirmed,
    dry_run_option,
    json_option,
    metadata_option,
    yes_option,
)
from quire.cli.common.output import print_json
from quire.cli.common.progress import JobBar
from quire.metadata.ledgers.naming import SomeLedgers
from quire.metadata.ledgers.unreadable import Unread

if TYPE_CHECKING:
    from quire.bookie.directories.lost import DirectoryContent, KnownBookie
    from quire.bookie.directories.replacement import DirectoryReplacement
    from quire.codec.metadata.ledger_metadata import LedgerMetadata
    from quire.metadata.interface import Bookies, MetadataStore
    from quire.storage.interfaces import Disk


@dataclass(slots=True)
class Loss:
    """Ledgers that name the bookie and are in none of its other directories."""

    all: SomeLedgers = field(default_factory=SomeLedgers)
    open: SomeLedgers = field(default_factory=SomeLedgers)
    only_here: SomeLedgers = field(default_factory=SomeLedgers)
    """Each entry is on one bookie alone."""
    waiting: SomeLedgers = field(default_factory=SomeLedgers)
    """Ledgers with a segment that names the bookie and no other registered bookie."""
    unread: Unread = field(default_factory=Unread)
    """The ledgers whose metadata cannot be read. They may name the bookie."""

    def add(self, ledger_id: int, metadata: LedgerMetadata, bookie: str, known: Bookies) -> None:
        self.all.add(ledger_id)
        if not metadata.closed:
            self.open.add(ledger_id)
        if metadata.write_quorum == 1:
            self.only_here.add(ledger_id)
        elif any(
            bookie in segment.ensemble
            and not any(known.find(one) is not None for one in segment.ensemble if one != bookie)
            for segment in metadata.segments
        ):
            self.waiting.add(ledger_id)

    def as_json(self) -> dict[str, Any]:
        return {
            "ledgers": _as_json(self.all),
            "open": _as_json(self.open),
            "only_here": _as_json(self.only_here),
            "waiting": _as_json(self.waiting),
            "unreadable": {"count": len(self.unread), "ledger_ids": list(self.unread.named)},
        }


def _as_json(some: SomeLedgers) -> dict[str, Any]:
    return {"count": some.count, "ledger_ids": some.ledger_ids}


# -- replace ----------------------------------------------------------------------------------


@click.command()
@metadata_option
@bookie_argument()
@click.argument("lost", type=click.Path(file_okay=False))
@click.argument("new", type=click.Path(file_okay=False), required=False)
@dry_run_option("Only say what would be lost.")
@yes_option()
@json_option("One JSON object.")
@asynchronous
async def replace(
    uri: str, bookie: str, lost: str, new: str | None, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Put an empty directory in the place of one that BOOKIE has lost for good.

    LOST is the path of the lost one, NEW the empty one; without NEW the new disk is mounted where
    the lost one was. To be run on the machine of the bookie, which must be stopped.

    What was in LOST comes back from other bookies: once BOOKIE runs it marks the ledgers that it
    should have for autorecovery. Until they are all there it takes no new ledgers, and says of what
    it does not have that it may be lost, never that it does not exist. A directory whose log can be
    read is not lost, and nothing is done. Safe to run twice. Should the lost one come back later,
    BOOKIE refuses to start with it.
    """
    from quire.bookie.directories.replacement import find_replacement

    lost, new = absolute([lost, new or lost])

    async with opened_metadata(uri) as store:
        with ExitStack() as stack:
            found = await find_replacement(store, bookie, lost, new, _Here(stack))
            if found.disk is None:
                return _replaced(found, None, as_json, dry_run)
            loss = await _loss(store, found.holder, found.others, shown=not as_json)
            if not as_json:
                _say_loss(found.holder, lost, loss, found.others)
            question = f"Give up what was in {lost}?"
            if not confirmed(question, dry_run or yes, "nothing was changed"):
                return EXIT_ERROR
            if not dry_run:
                with errors_of(new):
                    await found.carry_out(store, secrets.token_bytes, _now_ms())
    return _replaced(found, loss, as_json, dry_run)


def _replaced(found: DirectoryReplacement, loss: Loss | None, as_json: bool, dry_run: bool) -> int:
    """`loss` None: that was done before."""
    holder, lost, new = found.holder, found.lost, found.new
    if as_json:
        print_json(
            {
                "bookie": holder.bookie_id,
                "lost": lost,
                "directory": new,
                "replaced_before": loss is None,
                "loss": None if loss is None else loss.as_json(),
                "dry_run": dry_run,
            }
        )
    elif loss is None:
        click.echo(f"bookie {holder.bookie_id} has {new} in the place of {lost} already")
    else:
        done = "would be put" if dry_run else "is put"
        click.echo(f"{new} {done} in the place of {lost}, as one that lost what was in it")
    if not as_json:
        _say_start([new if one == lost else one for one in holder.directories], dry_run)
    return 0


def _say_loss(
    holder: KnownBookie, lost: str, loss: Loss, others: dict[str, DirectoryContent]
) -> None:
    bookie = holder.bookie_id
    for path, found in others.items():
        if found.ledgers is None:
            say(f"{path} cannot be used either, and counts as lost here: {found.unreadable}")
    if loss.unread:
        say(
            f"the metadata of {loss.unread} cannot be read: it may name bookie {bookie}. Until it "
            f"can be read again, the bookie does not say that an entry does not exist"
        )
    if not loss.all.count:
        click.echo(f"no ledger that names bookie {bookie} was in {lost}")
        return
    click.echo(
        f"{loss.all.count} ledgers name bookie {bookie} and are not in its other directories: "
        f"{loss.all}; {loss.open.count} of them {are(loss.open.count)} open"
    )
    click.echo(
        "From the bookie's start on it marks them, and autorecovery brings them back from the "
        "other bookies that have them"
    )
    if loss.only_here.count:
        click.echo(
            f"{loss.only_here.count} of them have each entry on one bookie alone (write quorum 1), "
            f"and do not come back: {loss.only_here}"
        )
    if loss.waiting.count:
        click.echo(
            f"{loss.waiting.count} of them wait for other bookies, of which none is registered: "
            f"{loss.waiting}"
        )


# -- remove -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@bookie_argument()
@click.argument("directory", type=click.Path(file_okay=False))
@dry_run_option("Only say whether it may go.")
@json_option("One JSON object.")
@asynchronous
async def remove(uri: str, bookie: str, directory: str, dry_run: bool, as_json: bool) -> int:
    """Take a data directory away from BOOKIE, which has others and must be stopped.

    Refused while a ledger that names BOOKIE is not in the others: empty the bookie first
    (`quire bookie decommission BOOKIE --keep-cookie`), or put an empty directory in the place of a
    lost one (`quire bookie disk replace`). DIRECTORY itself is left as it is.
    """
    from quire.bookie.directories.replacement import find_removal

    (path,) = absolute([directory])

    async with opened_metadata(uri) as store:
        with ExitStack() as stack:
            found = await find_removal(store, bookie, path, _Here(stack))
            with JobBar(shown=not as_json) as progress:
                await found.check_not_needed(store, looking_at_ledgers(progress))
            if not dry_run:
                with errors_of(", ".join(found.left)):
                    await found.carry_out(store, _now_ms())
    left = found.left
    if as_json:
        print_json({"bookie": bookie, "directory": path, "directories": left, "dry_run": dry_run})
    else:
        done = "would be" if dry_run else "is"
        click.echo(f"{path} {done} taken away from bookie {bookie}")
        _say_start(left, dry_run)
    return 0


# -- shared -----------------------------------------------------------------------------------


def _say_start(directories: Sequence[str], dry_run: bool) -> None:
    if not dry_run:
        say("start the bookie with " + " ".join(f"--dir {one}" for one in directories))


class _Here:
    """This machine: `disk_replacement.Machine`. What it holds is let go with the stack."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def hold(self, path: str) -> Disk | None:
        return self._stack.enter_context(held(path)) if Path(path).is_dir() else None

    def look(self, path: str) -> Disk | None:
        from quire.storage.disk import RealDisk

        return RealDisk(path, read_only=True)


def _now_ms() -> int:
    return SystemClock().now_ms()


async def _loss(
    store: MetadataStore, holder: KnownBookie, others: dict[str, DirectoryContent], *, shown: bool
) -> Loss:
    loss = Loss()
    here = [one.ledgers for one in others.values() if one.ledgers is not None]
    known = await store.bookies()
    with JobBar(shown=shown) as progress:
        async for page in pages_naming(store, holder.bookie_id, progress, loss.unread):
            for ledger_id, metadata in page:
                if not any(ledger_id in ledgers for ledgers in here):
                    loss.add(ledger_id, metadata, holder.bookie_id, known)
    return loss
