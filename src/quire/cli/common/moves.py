"""Options and output of the commands that copy replicas between bookies."""

from __future__ import annotations

import functools
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quire._runtime.names.in_commands import command_with
from quire._runtime.units import counted, verb
from quire.cli.common.groups import say
from quire.cli.common.options import (
    Duration,
    composed,
    dry_run_option,
    json_option,
    metadata_option,
    password_option,
    placement_option,
    run_async,
    size_option,
)
from quire.cli.common.progress import JobBar
from quire.cli.common.tls import connect, tls_options
from quire.replication.autorecovery.settings import OPEN_GRACE_S, PARALLEL

if TYPE_CHECKING:
    from quire.client import Client
    from quire.replication import ReplicationLocks
    from quire.replication.moves.recover import RecoverResult, RemainingLedger
    from quire.replication.repair.bookie_removal import LedgerMove

T = TypeVar("T")

PARALLEL_MAX = 256
LISTED_MAX = 1_000
"""The number of ledgers in each list of a JSON result. The counts cover all ledgers."""
LINES_MAX = 100

rate_option = size_option(
    "--bytes-per-s",
    "Write at most this many bytes per second, for example 20m. [default: no limit]",
    name="rate",
)
parallel_option = click.option(
    "--parallel",
    type=click.IntRange(1, PARALLEL_MAX),
    default=PARALLEL,
    show_default=True,
    help="The number of ledgers to copy at the same time.",
)
dry_run_of_moves = dry_run_option(
    "Change nothing; print which ledgers would be copied, and about how many bytes."
)

no_check_option = click.option(
    "--no-check",
    is_flag=True,
    help="Do not check first whether the job can succeed. What can be moved is moved.",
)

_OPTIONS = (
    dry_run_of_moves,
    no_check_option,
    click.option(
        "--open-ledgers",
        type=click.Choice(("wait", "fence", "skip")),
        default="wait",
        show_default=True,
        help="What to do with a ledger that is still open and uses the bookie. wait: give its "
        "writer --grace to replace the bookie, then fence the writer and close the ledger. fence: "
        "do that at once. skip: leave the ledger as it is.",
    ),
    click.option(
        "--grace",
        "open_grace_s",
        type=Duration(),
        metavar="SECONDS",
        default=OPEN_GRACE_S,
        show_default=True,
        help="With --open-ledgers wait: how long to wait for the writer of an open ledger, in "
        "seconds or with a unit (15m).",
    ),
    parallel_option,
    rate_option,
    placement_option,
    password_option,
    tls_options,
    json_option("Print the result as one JSON object, without progress."),
)


def move_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --metadata and the options that control how ledgers are copied.

    The command receives `uri`, `options`, `dry_run` and `as_json`.
    """

    @functools.wraps(command)
    def called(
        *arguments: Any,
        open_ledgers: str,
        open_grace_s: float,
        parallel: int,
        rate: float | None,
        password: bytes,
        no_check: bool,
        **more: Any,
    ) -> Any:
        from quire.replication.moves.recover import MoveOptions, OpenLedgers

        options = MoveOptions(
            OpenLedgers(open_ledgers), open_grace_s, parallel, rate, password, check=not no_check
        )
        return command(*arguments, options=options, **more)

    return composed(metadata_option, *_OPTIONS)(called)


def run_job(
    uri: str,
    work: Callable[[Client, ReplicationLocks, JobBar], Awaitable[T]],
    *,
    as_json: bool,
    kind: str,
    target: str,
    counted: str = "ledgers",
) -> T:
    """Run `work(client, locks, progress)` with a client of the cluster, and return its result.

    `kind` and `target` identify the job in the list of running jobs, and for `quire cluster pause`.
    `counted` is the name of the things that the progress bar counts. Raises the errors of `connect`
    and of `work`.
    """

    async def job() -> T:
        from quire._runtime.names.process_name import process_name
        from quire.replication import ReplicationLocks
        from quire.replication.marks.job_announcements import announced
        from quire.replication.marks.pauses import PauseGate

        async with connect(uri) as client:
            store, clock = client.metadata, client.clock
            locks = ReplicationLocks(store, socket.gethostname(), clock)
            with JobBar(counted, shown=not as_json) as progress:
                progress.gate = PauseGate(store, kind, target, progress.paused)
                name = process_name()
                async with announced(store, kind, target, name, clock.now_ms, progress.far):
                    return await work(client, locks, progress)

    return run_async(job())


def say_what_is_left(result: RecoverResult, *, open_skipped: bool, repeat: bool = False) -> None:
    """Print which ledgers still name the bookie, and why, in at most `LINES_MAX` lines.

    Ledgers that were left for the same reason share a line. More lines are only counted. The
    ledgers whose metadata cannot be read come in addition. `open_skipped` says that the job left
    open ledgers alone, so that it is not known whether they have writers. With `repeat`, the last
    line says that the command is to be run again.
    """
    from quire.replication.moves.remaining import all_left, lines_of

    left = all_left(result, open_skipped=open_skipped)
    say_first(lines_of(left))
    say_what_was_skipped(result.unreadable, result.unreadable_count)
    if result.unreadable_count:
        from quire.metadata.ledgers.unreadable import REMEDY

        say(f"the skipped ledgers may have replicas on {result.bookie}. {REMEDY}")
    if repeat and (left or result.unreadable_count) and not result.dry_run:
        say(
            "the job is incomplete. The copies that were made stay. To make the others, run the "
            "same command again"
        )


def say_first(lines: Sequence[str]) -> None:
    """Print at most `LINES_MAX` lines, and the number of the others.

    One line may be about several ledgers.
    """
    for line in lines[:LINES_MAX]:
        say(line)
    if len(lines) > LINES_MAX:
        say(f"... and {counted(len(lines) - LINES_MAX, 'line')} more")


def say_what_was_skipped(named: Sequence[RemainingLedger], count: int) -> None:
    """Print a line for each of the first ledgers whose metadata cannot be read, and the number of
    the others."""
    for one in named:
        say(f"ledger {one.ledger} was skipped: {one.why}")
    if count > len(named):
        say(f"... and {counted(count - len(named), 'ledger')} more whose metadata cannot be read")


def how_to_go_on(bookie: str) -> str:
    """Return what to type after a decommissioning that was not completed."""
    return (
        "run the same command again to continue. To cancel it and make the bookie writable, run: "
        f"{command_with('quire bookie decommission', bookie, '--cancel')}"
    )


def planned_text(result: RecoverResult) -> str:
    """Return the description of a dry run."""
    lines = [
        f"ledger {one.ledger}: {counted(one.fragments, 'segment')}, "
        f"{counted(one.entries, 'entry')}, {_about(one)}"
        f"{', still open' if one.open else ''}"
        for one in result.moves[:LINES_MAX]
    ]
    if len(result.moves) > LINES_MAX:
        lines.append(f"... and {counted(len(result.moves) - LINES_MAX, 'ledger')} more")
    if not result.moves:
        return f"no ledger has replicas on {result.bookie}: nothing would be copied"
    entries = sum(one.entries for one in result.moves)
    size = _about(*result.moves)
    waiting = sum(one.open for one in result.moves)
    lines.append(
        f"{counted(len(result.moves), 'ledger')} {verb('have', len(result.moves))} "
        f"replicas on {result.bookie}: {counted(entries, 'entry')}, {size} would be copied; "
        f"{waiting:,} of these ledgers still open"
    )
    return "\n".join(lines)


def _about(*moves: LedgerMove) -> str:
    # The size of an open ledger is not known, and those of parts of ledgers are computed from the
    # mean size of an entry.
    if size_bytes := sum(one.bytes for one in moves):
        return f"about {counted(size_bytes, 'byte')}"
    return "an unknown number of bytes" if any(one.open for one in moves) else "0 bytes"


def done_text(result: RecoverResult, *, open_skipped: bool) -> str:
    """Return the description of a finished job.

    `open_skipped` says that the job left open ledgers alone, so that it is not known whether they
    have writers.
    """
    text = (
        f"{result.ledgers:,} of {counted(len(result.moves), 'ledger')} "
        f"no longer {verb('use', result.ledgers or len(result.moves))} {result.bookie}: "
        f"{counted(result.fragments, 'segment')} replaced, {counted(result.entries, 'entry')} "
        f"({counted(result.bytes, 'byte')}) copied"
    )
    for what, ledgers in (
        ("closed because their writers were gone", result.recovered),
        ("fenced and closed at once", result.fenced),
        ("still open" if open_skipped else "still being written", result.open),
        ("being copied by other processes", result.locked),
        ("failed", result.failed),
    ):
        if ledgers:
            text += f"; {len(ledgers)} {what}"
    if result.unreadable_count:
        text += f"; {result.unreadable_count} skipped, because their metadata cannot be read"
    return text
