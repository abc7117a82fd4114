"""Verbs of `quire shell` for missing replicas: autorecovery, recovery and decommissioning."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from quire._runtime.names.process_name import process_name
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.moves import (
    done_text,
    how_to_go_on,
    planned_text,
    run_job,
    say_what_is_left,
)
from quire.cli.common.options import run_async
from quire.cli.common.output import time_text
from quire.cli.shell.ledgers import each_metadata, say_unread
from quire.cli.shell.session import Shell, agreed, bookie_line
from quire.codec.metadata.underreplication import (
    CHECKED_LEDGERS,
    CHECKED_PLACEMENT,
    CHECKED_REPLICAS,
)
from quire.errors import NoSuchLedgerError
from quire.replication.autorecovery.settings import OPEN_GRACE_S

if TYPE_CHECKING:
    from quire.cli.common.progress import JobBar
    from quire.client import Client
    from quire.codec.metadata.ledger_metadata import LedgerMetadata
    from quire.replication import ReplicationLocks
    from quire.replication.moves.cookie_removal import BookieIdentity
    from quire.replication.moves.decommission import Decommissioned
    from quire.replication.moves.recover import RecoverResult


# -- the switch and the auditor ---------------------------------------------------------------


async def autorecovery(shell: Shell, enable: bool, disable: bool) -> None:
    """Enable or disable autorecovery in the whole cluster."""
    from quire.codec.metadata.underreplication import SwitchedOff
    from quire.replication.marks.marks import ReplicationMarks

    if enable == disable:
        raise click.UsageError("give exactly one of -enable and -disable")
    async with shell.client() as client:
        marks = ReplicationMarks(client.metadata)
        switched = SwitchedOff(process_name(), client.clock.now_ms())
        changed = await (marks.enable() if enable else marks.disable(switched))
    if changed:
        click.echo("Enabling autorecovery" if enable else "Disabling autorecovery")
    else:
        done = "enabled" if enable else "disabled"
        click.echo(f"Autorecovery already {done}. Doing nothing")


async def who_is_auditor(shell: Shell) -> int:
    """Print which process is the auditor. The exit status is 1 if there is none."""
    from quire.replication.autorecovery.election import auditor_of

    async with shell.client() as client:
        found = await auditor_of(client.metadata)
        if found is None:
            say("No auditor elected: `quire autorecovery start` runs one")
            return EXIT_ERROR
        line = bookie_line(found.owner, (await client.bookies()).find(found.owner))
    click.echo(f"Auditor: {line}")
    return 0


async def delay(shell: Shell, asked: bool, seconds: int | None) -> None:
    """Print or set how long the auditor waits for a lost bookie to return, in seconds."""
    from quire.replication.marks.marks import ReplicationMarks

    if asked == (seconds is not None):
        raise click.UsageError("give exactly one of -get and -set")
    async with shell.client() as client:
        marks = ReplicationMarks(client.metadata)
        if seconds is not None:
            await marks.set_delay(seconds)
        found = await marks.delay_s()
    done = "" if asked else "Successfully set "
    click.echo(f"{done}LostBookieRecoveryDelay value in ZK: {found}")


async def trigger_audit(shell: Shell) -> None:
    """Make the auditor look for lost bookies now, whatever delay is set for their return."""
    from quire.replication.marks.marks import ReplicationMarks

    async with shell.client() as client:
        await ReplicationMarks(client.metadata).trigger()


async def force_audit_checks(shell: Shell, ledgers: bool, placement: bool, replicas: bool) -> None:
    """Make periodic checks of the auditor due, as if they had never been run.

    The auditor reads this when it is elected, so restart it afterwards.
    """
    from quire.replication.marks.marks import ReplicationMarks

    checks = {CHECKED_LEDGERS: ledgers, CHECKED_PLACEMENT: placement, CHECKED_REPLICAS: replicas}
    if not any(checks.values()):
        raise click.UsageError("give at least one of -calc, -ppc and -rc")
    async with shell.client() as client:
        marks = ReplicationMarks(client.metadata)
        for name, wanted in checks.items():
            if wanted:
                await marks.set_checked(name, 0)
                click.echo(f"Resetting {name} to 0")


# -- marked ledgers ---------------------------------------------------------------------------


async def list_underreplicated(
    shell: Shell,
    missing: str | None,
    others: str | None,
    with_replicas: bool,
    with_workers: bool,
    count_only: bool,
) -> None:
    """List the ledgers that lack replicas."""
    from quire.replication.autorecovery.election import auditor_of
    from quire.replication.explain.status import marked_ledgers, unexamined
    from quire.replication.marks.marks import ReplicationMarks

    count = 0
    async with shell.client() as client:
        async for one in marked_ledgers(client.metadata):
            if missing is not None and missing not in one.replicas:
                continue
            if others is not None and others in one.replicas:
                continue
            count += 1
            if count_only:
                continue
            click.echo(shell.ledger(one.ledger))
            if (since := time_text(-1 if one.marked_ms is None else one.marked_ms)) is not None:
                click.echo(f"\tCtime : {since}")
            for replica in one.replicas if with_replicas else ():
                click.echo(f"\tMissingReplica : {replica}")
            if with_workers and one.lock_owner is not None:
                click.echo(f"\tReplicationWorkerId : {one.lock_owner}")
        auditor = await auditor_of(client.metadata)
        enabled = await ReplicationMarks(client.metadata).enabled()
    click.echo(f"Under replicated ledger count: {count}")
    if why := unexamined(enabled=enabled, auditor=None if auditor is None else auditor.owner):
        say(why)


async def query_status(shell: Shell, verbose: bool) -> None:
    """Print which ledgers are being repaired now, and by whom.

    The name after BookieId is that of a bookie or of an autorecovery process, or the host of a
    command such as recover. -verbose adds the size of each ledger, in bytes.
    """
    from quire.metadata.ledgers.unreadable import UNREADABLE
    from quire.replication.marks.locks import ReplicationLocks
    from quire.replication.marks.marks import ReplicationMarks

    lines = []
    async with shell.client() as client:
        locks = ReplicationLocks(client.metadata, "", client.clock)
        for ledger_id in sorted(await ReplicationMarks(client.metadata).locked()):
            holder = await locks.held_by(ledger_id)
            if holder is None:
                continue  # the repair has just ended
            line = f"\tLedgerId:{shell.ledger(ledger_id)}\tBookieId:{holder.owner}"
            if verbose:
                try:
                    line += f"\tLedgerSize:{(await client.ledger_metadata(ledger_id)).length}"
                except NoSuchLedgerError:
                    pass
                except UNREADABLE:
                    line += "\tLedgerSize:unknown (its metadata cannot be read)"
            lines.append(line)
    lines = lines or ["\t No Ledger is being recovered."]
    click.echo("\n".join(("CurrentRecoverLedgerInfo:", *lines)))


# -- bookies that are lost, or taken away -----------------------------------------------------


def decommission_bookie(shell: Shell, bookie: str | None, dry_run: bool) -> int:
    """Empty a bookie, then remove it from the cluster. It may be running or stopped.

    `quire bookie decommission` does the same, with more options.
    """
    uri, name = shell.cluster(), bookie or shell.own_id()

    async def work(client: Client, locks: ReplicationLocks, progress: JobBar) -> Decommissioned:
        from quire.replication.moves.decommission import decommission

        owner, now_ms = socket.gethostname(), client.clock.now_ms
        return await decommission(
            client, locks, name, owner=owner, now_ms=now_ms, dry_run=dry_run, progress=progress
        )

    found = run_job(uri, work, as_json=False, kind="decommission", target=name)
    if dry_run:
        click.echo(planned_text(found.moved))
        return 0
    if not found.drained:
        say_what_is_left(found.moved, open_skipped=False)
        say(
            f"ledgers still have replicas on bookie {name}, which stays read-only: "
            f"{how_to_go_on(name)}"
        )
        return EXIT_ERROR
    click.echo(
        f"The ledgers stored in the given decommissioning bookie: {name} are properly replicated"
    )
    click.echo(f"Cookie of the decommissioned bookie: {name} is deleted successfully")
    return 0


def recover(
    shell: Shell,
    bookies: str,
    query: bool,
    plan: bool,
    force: bool,
    ledger_id: int | None,
    skip_open: bool,
    delete_cookie: bool,
    skip_failed: bool,
    rate: int | None,
    dry_run: bool,
) -> int:
    """Re-replicate the data of lost bookies to other bookies.

    `quire bookie recover` does the same for one bookie, with more options.
    """
    uri, plan = shell.cluster(), plan or dry_run
    names = [name for name in bookies.split(",") if name]
    if not names:
        raise click.UsageError("no bookie is given: name at least one, and separate them by commas")
    click.echo(f"Bookies : [{', '.join(names)}]")
    if query:
        return run_async(_query(shell, names))
    if (
        not force
        and not plan
        and not agreed(
            "Are you sure to recover them?", what="the recovery was not started", without="-force"
        )
    ):
        return EXIT_ERROR
    complete = True
    for name in names:
        removing = delete_cookie and ledger_id is None and not plan
        before = run_async(_identity(shell, name)) if removing else None
        work = _recovering(name, ledger_id, plan, skip_open, rate)
        result = run_job(uri, work, as_json=False, kind="recover", target=name)
        text = planned_text(result) if plan else done_text(result, open_skipped=skip_open)
        click.echo(text)
        if plan:
            continue
        say_what_is_left(result, open_skipped=skip_open)
        bad = result.locked or (result.open and not skip_open) or (
            (result.failed or result.unreadable_count) and not skip_failed
        )  # fmt: skip
        complete &= not bad
        if before is not None and result.complete:
            run_async(_delete_cookie(shell, name, before))
        elif delete_cookie:
            say(f"the cookie of bookie {name} was kept: ledgers may still have replicas on it")
    return 0 if complete else EXIT_ERROR


def _recovering(
    name: str, ledger_id: int | None, plan: bool, skip_open: bool, rate: int | None
) -> Callable[[Client, ReplicationLocks, JobBar], Awaitable[RecoverResult]]:
    async def work(client: Client, locks: ReplicationLocks, progress: JobBar) -> RecoverResult:
        from quire.replication.moves.recover import (
            MoveOptions,
            OpenLedgers,
            RecoverResult,
            check_bookie,
            recover_bookie,
            refuse_unknown,
            take_out_of,
        )
        from quire.replication.repair.bookie_removal import move_of

        opened = OpenLedgers.SKIP if skip_open else OpenLedgers.WAIT
        options = MoveOptions(opened, OPEN_GRACE_S, bytes_per_s=rate)
        if ledger_id is None:
            return await recover_bookie(
                client, locks, name, dry_run=plan, options=options, progress=progress
            )
        await check_bookie(client, name, even_if_alive=False)
        one = await move_of(client, ledger_id, name)
        if one is None:
            await refuse_unknown(client, name, 0, ledger_id)
        moves = [] if one is None else [one]
        if plan:
            return RecoverResult(name, True, tuple(moves))
        return await take_out_of(client, locks, name, moves, options=options, progress=progress)

    return work


async def _query(shell: Shell, names: list[str]) -> int:
    """Print the ledgers that name any of the bookies, with all their segments.

    After each ledger, print how many of the bookies each segment names. Return the exit status,
    which is 1 if the metadata of a ledger cannot be read.
    """
    from quire.metadata.ledgers.unreadable import Unread

    unread = Unread()
    async with shell.client() as client:
        say("NOTE: Bookies in inspection list are marked with '*'.")
        async for ledger_id, metadata in each_metadata(client, unread):
            _tell_ledger(shell, ledger_id, metadata, names)
    say("Done")
    return say_unread(unread)


def _tell_ledger(shell: Shell, ledger_id: int, metadata: LedgerMetadata, names: list[str]) -> None:
    counts = {
        segment.first_entry_id: sum(one in names for one in segment.ensemble)
        for segment in metadata.segments
    }
    if not any(counts.values()):
        return
    click.echo(f"ledger {shell.ledger(ledger_id)} : {metadata.state.name}")
    for segment in metadata.segments:
        members = " ".join(f"{one}{'*' if one in names else ''}" for one in segment.ensemble)
        click.echo(f"{segment.first_entry_id}:\t{members}")
    told = ", ".join(f"{first}={count}" for first, count in counts.items())
    click.echo(f"summary: [{told}]\n")


async def _identity(shell: Shell, name: str) -> BookieIdentity:
    from quire.replication.moves.cookie_removal import identity_of

    async with shell.store() as store:
        return await identity_of(store, name)


async def _delete_cookie(shell: Shell, name: str, before: BookieIdentity) -> None:
    from quire.replication.moves.cookie_removal import remove_lost_bookie

    async with shell.store() as store:
        removed = await remove_lost_bookie(store, name, before)
    if removed:
        click.echo(f"the cluster's cookie of bookie {name} was removed")
    else:
        say(f"No cookie to remove for {name}")
