"""`quire stream delete` and `quire stream end`: what cannot be taken back."""

from __future__ import annotations

import sys

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import dry_run_option, metadata_option, run_async
from quire.cli.common.tls import tls_options
from quire.cli.stream.options import (
    name_argument,
    namespace,
    namespace_option,
    password_option,
    yes_option,
)


@click.command()
@metadata_option
@namespace_option
@name_argument()
@yes_option
@dry_run_option("Only say what would be deleted.")
def delete(uri: str, path: str, name: str, yes: bool, dry_run: bool) -> int:
    """Delete a stream with all its ledgers and subscriptions.

    Whoever is writing it is fenced. Asks first where standard input is a terminal.
    """
    return run_async(_delete(uri, path, name, ask=not yes and sys.stdin.isatty(), dry_run=dry_run))


async def _delete(uri: str, path: str, name: str, ask: bool, dry_run: bool) -> int:
    async with namespace(uri, path) as opened:
        held = counted(len(await opened.segments(name)), "segment")
        if dry_run:
            say(f"stream {name} ({held}) would be deleted")
            return 0
        if ask and not click.confirm(f"Delete stream {name} ({held})?", err=True):
            say("nothing was deleted")
            return EXIT_ERROR
        await opened.delete_stream(name)
    say(f"stream {name} deleted")
    return 0


@click.command()
@metadata_option
@tls_options
@namespace_option
@name_argument()
@password_option
@yes_option
@dry_run_option("Only say what would be ended.")
def end(uri: str, path: str, name: str, password: bytes, yes: bool, dry_run: bool) -> int:
    """End a stream for good: nobody can append to it any more, and readers come to an end.

    Whoever is writing it is fenced. Asks first where standard input is a terminal.
    """
    ask = not yes and sys.stdin.isatty()
    return run_async(_end(uri, path, name, password, ask, dry_run))


async def _end(uri: str, path: str, name: str, password: bytes, ask: bool, dry_run: bool) -> int:
    async with namespace(uri, path, password) as opened:
        if dry_run:
            held = counted(len(await opened.segments(name)), "segment")
            say(f"stream {name} ({held}) would be ended for good")
            return 0
        if ask and not click.confirm(f"End stream {name} for good?", err=True):
            say("nothing was changed")
            return EXIT_ERROR
        async with await opened.open_writer(name) as writer:
            count = writer.next_sequence
            await writer.end_stream()
    say(f"stream {name} ended behind {counted(count, 'record')}")
    return 0
