"""The commands `quire cluster gc ...`, which control whether bookies delete ledgers that the
metadata store does not have."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from quire._runtime.clock import SystemClock
from quire._runtime.names.process_name import process_name
from quire.cli.bookie.identity import opened_metadata
from quire.cli.common.groups import EXIT_ERROR, LazyGroup, commands, say
from quire.cli.common.logs import printable
from quire.cli.common.options import (
    asked,
    asynchronous,
    check_bookie,
    checked,
    dry_run_option,
    json_option,
    metadata_option,
    run_async,
    yes_option,
)
from quire.cli.common.output import print_json, time_text
from quire.errors import UsageError

if TYPE_CHECKING:
    from quire.metadata.bookies.collection import CollectionRefusal, Switch

_COMMANDS = commands(
    """
    status  gc:status  Show whether bookies collect garbage, and which refuse to.
    off     gc:off     Stop all bookies from deleting anything.
    on      gc:on      Let bookies delete the data of deleted ledgers again.
    accept  gc:accept  Let bookies resume with a metadata store that went back in time.
    """,
    "cluster",
)


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def gc() -> None:
    """Show garbage collection in the cluster, and switch it off and on.

    Bookies delete the ledgers that the metadata store does not have. They refuse to do so if the
    store went back in time, for example after a backup was restored. These commands apply to the
    whole cluster; `quire bookie explain space` shows what one bookie has not freed yet, and why.
    """


@click.command()
@metadata_option
@json_option("Print one JSON object: off, since_ms, by, why, refusing, unreadable.")
@asynchronous
async def status(uri: str, as_json: bool) -> None:
    """Show whether garbage collection is switched off, and which bookies refuse it.

    A bookie refuses when it has proof that the metadata store went back to an older state. Its log
    names the ledgers that it holds and the store lacks (event garbage_unnamed).
    """
    switch, refusing, later = await _status(uri)
    if as_json:
        print_json(
            {
                "off": switch is not None,
                "since_ms": None if switch is None else switch.since_ms,
                "by": None if switch is None else switch.by,
                "why": None if switch is None else switch.why,
                "refusing": {name: one.since_ms for name, one in refusing.items()},
                "unreadable": {
                    **{name: one.unreadable for name, one in refusing.items() if one.unreadable},
                    **later,
                },
            }
        )
        return
    if switch is None:
        click.echo("garbage collection is on")
    else:
        since = time_text(switch.since_ms) or "an unknown time"
        click.echo(printable(f"{switch.sentence()}, since {since}"))
    for name, one in sorted(refusing.items()):
        click.echo(_line(name, one))
    for name, why in sorted(later.items()):
        click.echo(f"{name} may collect garbage or not: {why}")


def _line(name: str, one: CollectionRefusal) -> str:
    if one.unreadable:
        since = f" since {time_text(one.since_ms)}" if one.since_ms else ""
        return f"{name} collects no garbage{since}: its mark could not be read ({one.unreadable})"
    return (
        f"{name} collects no garbage: at {time_text(one.since_ms)} it found that the metadata "
        f"store is older than its mark {one.remembered.count}"
    )


async def _status(uri: str) -> tuple[Switch | None, dict[str, CollectionRefusal], dict[str, str]]:
    """Return the switch, the refusals, and the reason for each mark of a later version."""
    from quire.metadata.bookies.collection import read_switch, refusals

    async with opened_metadata(uri) as store:
        await store.instance_id()  # raises if there is no cluster
        later: dict[str, str] = {}
        return await read_switch(store), await refusals(store, later), later


def _check_why(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is not UTF-8") from None


@click.command()
@metadata_option
@click.option(
    "--why",
    metavar="TEXT",
    default="",
    callback=checked(_check_why),
    help="The reason, which `quire cluster gc status` shows.",
)
@asynchronous
async def off(uri: str, why: str) -> None:
    """Stop all bookies from deleting ledgers or copies, until `quire cluster gc on`.

    Nothing overrides the switch: not a full disk, not a bookie's interval, and not a collection
    that an operator requests. Compaction still frees the space of ledgers that were deleted before.
    """
    from quire.metadata.bookies.collection import Switch, switch_off

    async with opened_metadata(uri) as store:
        await store.instance_id()
        changed = await switch_off(store, Switch(SystemClock().now_ms(), process_name(), why))
    say(f"garbage collection {'' if changed else 'was already '}switched off")


@click.command()
@metadata_option
@asynchronous
async def on(uri: str) -> None:
    """Let bookies delete the ledgers that the metadata store does not have, after `off`.

    A bookie that refuses because the store went back in time still refuses: see `quire cluster gc
    accept`.
    """
    from quire.metadata.bookies.collection import switch_on

    async with opened_metadata(uri) as store:
        await store.instance_id()
        changed = await switch_on(store)
    say("garbage collection is on" if changed else "garbage collection was on already")


@click.command()
@metadata_option
@click.argument("bookies", nargs=-1, metavar="[BOOKIE]...", callback=checked(check_bookie))
@dry_run_option("Only print which bookies would resume.")
@yes_option("Do not ask for confirmation. Required if standard input is not a terminal.")
@json_option("Print one JSON object per bookie that resumes: bookie, dry_run.")
def accept(uri: str, bookies: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool) -> int:
    """Let bookies resume garbage collection with a metadata store that went back in time.

    Without BOOKIE, all bookies that refuse resume. They then delete the ledgers that they hold and
    the store does not have. First find out which ledgers these are, and restore the missing
    metadata: deleted ledgers cannot be recovered.
    """
    _, refusing, later = run_async(_status(uri))
    for name in bookies:
        if name in later:
            raise click.UsageError(f"nothing was changed: {later[name]}")
        if name not in refusing:
            raise click.UsageError(
                f"bookie {name} does not refuse to collect garbage, so there is nothing to "
                "accept: `quire cluster gc status` lists the bookies that do"
            )
    wanted = sorted(bookies or refusing)
    if not wanted:
        say("no bookie refuses to collect garbage")
        return 0
    if not dry_run and not yes and not _agreed(wanted, refusing):
        say("nothing was changed")
        return EXIT_ERROR
    for name in wanted:
        done = dry_run or run_async(_accept(uri, name, refusing[name]))
        if done and as_json:
            print_json({"bookie": name, "dry_run": dry_run})
        elif done:
            say(f"{name} {'would resume' if dry_run else 'resumes'} with this metadata store")
        else:
            say(f"{name} does not refuse any more")
    return 0


def _agreed(wanted: list[str], refusing: dict[str, CollectionRefusal]) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "nothing was changed: bookies would delete the ledgers that the present metadata store "
            "does not have, and there is no terminal to ask for confirmation. Confirm with --yes"
        )
    for name in wanted:
        say(_line(name, refusing[name]))
    return asked("Let them delete the ledgers that this store does not have?")


async def _accept(uri: str, bookie: str, shown: CollectionRefusal) -> bool:
    from quire.metadata.bookies.collection import accept as accept_one

    async with opened_metadata(uri) as store:
        return await accept_one(store, bookie, shown)
