"""Verbs of `quire shell` about the local bookie and about cookies."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.cli.bookie.identity import opened_metadata
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import FiniteRange, run_async
from quire.cli.common.tls import connect
from quire.cli.shell.options import Shell, dry_run, flag, pass_shell, value

if TYPE_CHECKING:
    from quire.client import Client

SANITY_PAYLOAD_BYTES = 100
_force = click.option("--force", is_flag=True, help="As with `quire bookie cookie`: see there.")
_cookie_file = value(
    "file",
    "cf",
    "cookie-file",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A file with the cookie.",
)
_bookie = click.argument("bookie", metavar="BOOKIE")


@click.command("initbookie")
@click.pass_context
def init_bookie(context: click.Context) -> None:
    """Make a new bookie: its cookie in the directory and in the cluster. Prints its id."""
    from quire.cli.bookie.init import init

    shell = context.ensure_object(Shell)
    directories = shell.own_directories()
    if len(directories) > 1:
        raise click.UsageError(
            "a bookie with several directories is made by its first start: `quire bookie start`, "
            "with empty ones"
        )
    context.invoke(
        init,
        uri=shell.cluster(),
        directory=directories[0],
        bookie_id=str(shell.given.get("bookie.bookie_id") or ""),
        advertise=str(shell.given.get("bookie.advertise", "127.0.0.1")),
        port=int(shell.given.get("bookie.port", 3181)),
        as_json=False,
    )


@click.command("bookieformat")
@flag("silent", "n", "nonInteractive", help="Do not ask: without -force, fail if there is data.")
@flag("force", "f", "force", help="With -nonInteractive: destroy what there is.")
@flag("delete_cookie", "d", "deleteCookie", help="Remove the bookie from the cluster as well.")
@dry_run
@click.pass_context
def bookie_format(
    context: click.Context, silent: bool, force: bool, delete_cookie: bool, dry_run: bool
) -> int:
    """Destroy all that the local bookie has stored in its directories. Refused while it runs."""
    from quire.cli.bookie.init import erase_bookie

    shell = context.ensure_object(Shell)
    directories = shell.own_directories()
    sure = silent and force
    if not sure and not dry_run and (silent or not sys.stdin.isatty()):
        raise click.UsageError(
            "this destroys what the bookie has stored: give -nonInteractive and -force where "
            "nobody can be asked"
        )
    status: int = context.invoke(
        erase_bookie,
        uri=shell.cluster() if delete_cookie else shell.uri,
        directories=directories,
        delete_cookie=delete_cookie,
        force=False,
        dry_run=dry_run,
        yes=sure,
        as_json=False,
    )
    return status


# -- does it serve? ---------------------------------------------------------------------------


@click.command("bookiesanity")
@value("entries", "e", "entries", type=click.IntRange(1, 1_000_000), default=10, help="Entries to "
       "write. [default: 10]")  # fmt: skip
@value("timeout_s", "t", "timeout", type=FiniteRange(min=0.001), default=1.0, help="Seconds "
       "for a write or a read. [default: 1]")  # fmt: skip
@pass_shell
def bookie_sanity(shell: Shell, entries: int, timeout_s: float) -> int:
    """Write a ledger to the local bookie alone, read it back, and delete it.

    The bookie is that of -localbookie ID, else of -conf.
    """
    uri, bookie = shell.cluster(), shell.own_id()

    async def work() -> None:
        limits = {"add_timeout_s": timeout_s, "read_timeout_s": timeout_s}
        async with connect(uri, **limits) as client:
            await _try_bookie(client, bookie, entries)

    run_async(work())
    click.echo("Bookie sanity test succeeded")
    return 0


async def _try_bookie(client: Client, bookie: str, entries: int) -> None:
    from quire.core.placement.choice import Chance
    from quire.core.placement.policies import AnyBookie
    from quire.core.placement.values import View, Wanted
    from quire.errors import QuireError, UsageError

    class OnlyThis(AnyBookie):
        """A replacement would say nothing about the bookie."""

        def fill(self, wanted: Wanted, view: View, rng: Chance) -> dict[int, str]:
            may = bookie in view.writable and bookie not in wanted.barred and not wanted.gone
            return {0: bookie} if may else {}

    if (await client.bookies()).writable.get(bookie) is None:
        raise UsageError(
            f"bookie {bookie} is not registered as writable",
            remedy="`quire cluster bookies` lists those that are",
        )
    client.placement.policy = OnlyThis(client.placement.config)
    writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    ledger_id = writer.ledger_id
    click.echo(f"Ensemble: [{bookie}] for ledger: {ledger_id}")
    sent = [b"%0*d" % (SANITY_PAYLOAD_BYTES, number) for number in range(entries)]
    try:
        await writer.append_many(sent)
        await writer.close()
        async with await client.open_ledger(ledger_id) as reader:
            found = [bytes(entry.payload) async for entry in reader.read()]
        if found != sent:
            raise QuireError(f"bookie {bookie} does not give back what was written to it")
        click.echo(f"Read {len(found)} entries from ledger {ledger_id}")
    finally:
        await client.delete_ledger(ledger_id)


# -- cookies ----------------------------------------------------------------------------------


@click.command("cookie_get")
@_bookie
@pass_shell
def cookie_get(shell: Shell, bookie: str) -> None:
    """Print the cookie of BOOKIE in the cluster."""
    uri = shell.cluster()

    async def work() -> bytes:
        from quire.errors import CookieError, NoSuchKeyError

        async with opened_metadata(uri) as store:
            try:
                return (await store.read_cookie(bookie)).value
            except NoSuchKeyError:
                raise CookieError(f"Cookie not found for bookie '{bookie}'") from None

    text = run_async(work()).decode(errors="replace")
    click.echo(f"Cookie for bookie '{bookie}' is:\n---\n{text}\n---")


@click.command("cookie_create")
@_bookie
@_cookie_file
@_force
@dry_run
@click.pass_context
def cookie_create(
    context: click.Context, bookie: str, file: str, force: bool, dry_run: bool
) -> None:
    """Write the cookie of BOOKIE from a file into the cluster, where it has none."""
    from quire.cli.bookie.cookie import create

    uri = context.ensure_object(Shell).cluster()
    context.invoke(
        create, uri=uri, bookie=bookie, directory=None, file=file, force=force, dry_run=dry_run
    )


@click.command("cookie_update")
@_bookie
@_cookie_file
@_force
@dry_run
@click.pass_context
def cookie_update(
    context: click.Context, bookie: str, file: str, force: bool, dry_run: bool
) -> None:
    """Replace the cookie of BOOKIE in the cluster by what is in a file."""
    from quire.cli.bookie.cookie import update

    uri = context.ensure_object(Shell).cluster()
    context.invoke(
        update, uri=uri, bookie=bookie, directories=(), file=file, force=force, dry_run=dry_run
    )


@click.command("cookie_delete")
@_bookie
@_force
@dry_run
@click.pass_context
def cookie_delete(context: click.Context, bookie: str, force: bool, dry_run: bool) -> int:
    """Remove the cookie of BOOKIE from the cluster.

    Refused while the bookie is registered, and while ledgers name it (--force gives these up).
    """
    from quire.cli.bookie.cookie import delete

    uri = context.ensure_object(Shell).cluster()
    status: int = context.invoke(
        delete, uri=uri, bookie=bookie, force=force, dry_run=dry_run, yes=True
    )
    return status


@click.command("cookie_generate")
@_bookie
@value("instance_id", "i", "instance-id", metavar="ID", help="[default: what the cluster says]")
@value("journals", "j", "journal-dirs", metavar="DIR[,DIR...]", required=True,
       help="The journal directories; of a Quire bookie its data directories.")  # fmt: skip
@value("ledgers", "l", "ledger-dirs", metavar="DIR[,DIR...]", required=True,
       help="The ledger (data) directories.")  # fmt: skip
@value("indexes", "ix", "index-dirs", metavar="DIR[,DIR...]", default="",
       help="The index directories, if they are others.")  # fmt: skip
@value("output", "o", "output-file", required=True, type=click.Path(dir_okay=False),
       help="The file to write.")  # fmt: skip
@click.pass_context
def cookie_generate(
    context: click.Context,
    bookie: str,
    instance_id: str | None,
    journals: str,
    ledgers: str,
    indexes: str,
    output: str,
) -> int:
    """Write the cookie that BOOKIE has with these directories to a file."""
    from quire.cli.bookie.cookie import generate

    def split(text: str) -> tuple[str, ...]:
        return tuple(part for part in text.split(",") if part)

    shell = context.ensure_object(Shell)
    if not split(ledgers):
        say("no ledger directory is named")
        return EXIT_ERROR
    made = io.BytesIO()
    context.invoke(
        generate,
        uri=shell.uri,
        bookie=bookie,
        directories=split(ledgers),
        journals=split(journals),
        indexes=split(indexes),
        instance_id=instance_id,
        output=made,
    )
    Path(output).write_bytes(made.getvalue())
    click.echo(f"Successfully saved the generated cookie to {output}")
    return 0
