"""The commands `quire bookie disk replace` and `quire bookie disk remove`."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.clock import SystemClock
from quire._runtime.units import are, counted, some_of, verb
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
    from quire.bookie.directories.lost_directory import DirectoryContent, KnownBookie
    from quire.bookie.directories.replacement import DirectoryReplacement
    from quire.codec.metadata.ledger_metadata import LedgerMetadata
    from quire.metadata.interface import Bookies, MetadataStore
    from quire.storage.interfaces import Disk

OWNERS_MAX = 100
"""The largest number of owners of lost ledgers that the command names."""


@dataclass(slots=True)
class Loss:
    """The ledgers that may lose replicas with a directory.

    Their metadata names the bookie, and none of its other directories has them.
    """

    all: SomeLedgers = field(default_factory=SomeLedgers)
    open: SomeLedgers = field(default_factory=SomeLedgers)
    only_here: SomeLedgers = field(default_factory=SomeLedgers)
    """The ledgers with a write quorum of 1: each of their entries has one replica."""
    waiting: SomeLedgers = field(default_factory=SomeLedgers)
    """The ledgers, beside those in `only_here`, with a segment that names the bookie and no other
    registered bookie."""
    owners: dict[str, None] = field(default_factory=dict)
    """The first `OWNERS_MAX` owners of ledgers in `only_here`, as far as the ledgers' metadata
    names them."""
    unread: Unread = field(default_factory=Unread)
    """The ledgers whose metadata cannot be read. They may name the bookie."""

    def add(self, ledger_id: int, metadata: LedgerMetadata, bookie: str, known: Bookies) -> None:
        self.all.add(ledger_id)
        if not metadata.closed:
            self.open.add(ledger_id)
        if metadata.write_quorum == 1:
            self.only_here.add(ledger_id)
            self._add_owner(metadata)
        elif any(
            bookie in segment.ensemble
            and not any(known.find(one) is not None for one in segment.ensemble if one != bookie)
            for segment in metadata.segments
        ):
            self.waiting.add(ledger_id)

    def _add_owner(self, metadata: LedgerMetadata) -> None:
        from quire.streams.ownership.owners import owner_hint

        hint = owner_hint(metadata)
        owners = [hint.owner] if hint.owner is not None else [one.owner for one in hint.claims]
        for owner in owners:
            if owner is not None and len(self.owners) < OWNERS_MAX:
                self.owners[str(owner)] = None

    def as_json(self) -> dict[str, Any]:
        return {
            "ledgers": _as_json(self.all),
            "open": _as_json(self.open),
            "only_here": _as_json(self.only_here),
            "waiting": _as_json(self.waiting),
            "owners": list(self.owners),
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
@dry_run_option("Only print what would be lost.")
@yes_option()
@json_option("Print one JSON object.")
@asynchronous
async def replace(
    uri: str, bookie: str, lost: str, new: str | None, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Replace a data directory that BOOKIE has lost for good by an empty one.

    LOST is the path of the lost directory, and NEW that of the empty one. Without NEW, the new disk
    must be mounted where the lost one was. Run the command on the bookie's machine, while the
    bookie is stopped.

    When BOOKIE is started, it marks the ledgers that it should have, and autorecovery restores the
    data of LOST from other bookies. Until all of these ledgers are restored, BOOKIE accepts no new
    ledgers. If it does not have an entry, it answers that the entry may be lost, and does not deny
    that the entry exists. If the log in LOST can be read, the directory is not lost, and the
    command changes nothing. It is safe to run the command twice. If LOST comes back later, BOOKIE
    refuses to start with it.
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
    """Print the result. `loss` is None if the directory was already replaced before."""
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
        click.echo(
            f"{new} has replaced {lost} of bookie {holder.bookie_id} already; nothing was changed"
        )
    else:
        done = "would replace" if dry_run else "replaces"
        click.echo(
            f"{new} {done} {lost} of bookie {holder.bookie_id}; the data in {lost} counts as lost"
        )
    if not as_json:
        _say_start([new if one == lost else one for one in holder.directories], dry_run)
    return 0


def _say_loss(
    holder: KnownBookie, lost: str, loss: Loss, others: dict[str, DirectoryContent]
) -> None:
    bookie = holder.bookie_id
    for path, found in others.items():
        if found.ledgers is None:
            say(f"{path} cannot be read either, and is counted as lost here: {found.unreadable}")
    if loss.unread:
        say(
            f"the metadata of {loss.unread} cannot be read, and may name bookie {bookie}. Until "
            "the metadata can be read, the bookie never answers that an entry does not exist"
        )
    if not loss.all.count:
        click.echo(f"{lost} had no data of a ledger that names bookie {bookie}")
        return
    count = loss.all.count
    click.echo(
        f"{counted(count, 'ledger')} {verb('name', count)} bookie {bookie} and "
        f"{are(count)} not in its other directories: {loss.all}; {loss.open.count:,} of them "
        f"{are(loss.open.count)} open"
    )
    click.echo(
        "The bookie marks these ledgers when it starts, and autorecovery restores them from the "
        "other bookies that have them"
    )
    if loss.only_here.count:
        has = verb("have", loss.only_here.count)
        click.echo(
            f"{loss.only_here.count:,} of them {has} only one replica of each entry (write quorum "
            f"1), and cannot be restored: {loss.only_here}"
        )
        if loss.owners:
            click.echo(f"They were created for {some_of(loss.owners)}")
    if loss.waiting.count:
        click.echo(
            f"{loss.waiting.count:,} of them can be restored only once one of their other bookies "
            f"is registered again: {loss.waiting}"
        )


# -- remove -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@bookie_argument()
@click.argument("directory", type=click.Path(file_okay=False))
@dry_run_option("Only check whether the directory can be removed.")
@json_option("Print one JSON object.")
@asynchronous
async def remove(uri: str, bookie: str, directory: str, dry_run: bool, as_json: bool) -> int:
    """Remove a data directory from BOOKIE, which must have others and must be stopped.

    The command fails if a ledger that names BOOKIE is not in the other directories. In that case,
    empty the bookie first (`quire bookie decommission BOOKIE --keep-cookie`), or replace a lost
    directory by an empty one (`quire bookie disk replace`). The files in DIRECTORY are not changed.
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
        done = "would be" if dry_run else "was"
        click.echo(f"{path} {done} removed from bookie {bookie}")
        _say_start(left, dry_run)
    return 0


# -- shared -----------------------------------------------------------------------------------


def _say_start(directories: Sequence[str], dry_run: bool) -> None:
    if not dry_run:
        named = " ".join(f"--dir {shlex.quote(one)}" for one in directories)
        say(f"start the bookie with {named}")


class _Here:
    """The directories of this machine, as the interface `replacement.Machine` accesses them.

    `stack` holds their locks, and releases them when it is closed.
    """

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
