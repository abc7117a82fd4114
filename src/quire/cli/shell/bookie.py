"""Verbs of `quire shell` for the local bookie and for cookies."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.core.placement.policies import AnyBookie
from quire.errors import CookieError, NoSuchKeyError, QuireError, UsageError

if TYPE_CHECKING:
    from quire.cli.shell.session import Shell
    from quire.client import Client
    from quire.core.placement.choice import Chance
    from quire.core.placement.values import View, Wanted

SANITY_PAYLOAD_BYTES = 100


def init_bookie(shell: Shell) -> None:
    """Create a new bookie in an empty directory, and print its id.

    The cookie is written into the directory and into the cluster. `quire bookie init` does the
    same.
    """
    from quire.cli.bookie.init import init

    directories = shell.own_directories()
    if len(directories) > 1:
        raise click.UsageError(
            "a bookie with several directories is created by its first start: run `quire bookie "
            "start` with empty directories"
        )
    shell.run(
        init,
        uri=shell.cluster(),
        directory=directories[0],
        bookie_id=str(shell.given.get("bookie.bookie_id") or ""),
        advertise=str(shell.given.get("bookie.advertise", "127.0.0.1")),
        port=int(shell.given.get("bookie.port", 3181)),
    )


def bookie_format(
    shell: Shell, silent: bool, force: bool, delete_cookie: bool, dry_run: bool
) -> Any:
    """Delete everything that the local bookie stores in its directories.

    The command fails while the bookie is running. `quire bookie format` does the same.
    """
    from quire.cli.bookie.init import erase_bookie

    directories = shell.own_directories()
    sure = silent and force
    if not sure and not dry_run and (silent or not sys.stdin.isatty()):
        raise click.UsageError(
            "nothing was deleted: this command deletes everything that the bookie stores, so it "
            "must be confirmed. Give -nonInteractive and -force, or run it in a terminal without "
            "-nonInteractive"
        )
    return shell.run(
        erase_bookie,
        uri=shell.cluster() if delete_cookie else shell.uri,
        directories=directories,
        delete_cookie=delete_cookie,
        dry_run=dry_run,
        yes=sure,
    )


# -- the sanity test -------------------------------------------------------------------------


async def bookie_sanity(shell: Shell, entries: int, timeout_s: float) -> None:
    """Write a ledger only to the local bookie, read it back, and delete it.

    The bookie is the one of -localbookie ID, else of -conf.
    """
    shell.cluster()
    bookie = shell.own_id()
    async with shell.client(add_timeout_s=timeout_s, read_timeout_s=timeout_s) as client:
        await _try_bookie(client, bookie, entries)
    click.echo("Bookie sanity test succeeded")


async def _try_bookie(client: Client, bookie: str, entries: int) -> None:
    class OnlyThis(AnyBookie):
        """A placement policy that chooses only the tested bookie, and never another one for it."""

        def fill(self, wanted: Wanted, view: View, rng: Chance) -> dict[int, str]:
            may = bookie in view.writable and bookie not in wanted.barred and not wanted.gone
            return {0: bookie} if may else {}

    if (await client.bookies()).writable.get(bookie) is None:
        raise UsageError(
            f"bookie {bookie} is not registered as writable, so it cannot be tested",
            remedy="`quire cluster bookies` lists the registered bookies and their states",
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
            raise QuireError(
                f"bookie {bookie} returned {counted(len(found), 'entry')} that differ from the "
                f"{counted(len(sent), 'entry')} that were written to it in ledger {ledger_id}",
                remedy="Stop using the bookie, and check its disk and memory",
            )
        click.echo(f"Read {len(found)} entries from ledger {ledger_id}")
    finally:
        await client.delete_ledger(ledger_id)


# -- cookies ----------------------------------------------------------------------------------


async def cookie_get(shell: Shell, bookie: str) -> None:
    """Print the cookie of BOOKIE in the cluster."""
    async with shell.store() as store:
        try:
            text = (await store.read_cookie(bookie)).value.decode(errors="replace")
        except NoSuchKeyError:
            raise CookieError(
                f"Cookie not found for bookie '{bookie}'",
                remedy="`quire bookie cookie show` lists the existing cookies",
            ) from None
    click.echo(f"Cookie for bookie '{bookie}' is:\n---\n{text}\n---")


def cookie_create(shell: Shell, **given: Any) -> None:
    """Write the cookie of BOOKIE from a file into the cluster.

    The command fails if the cluster has a cookie of BOOKIE. `quire bookie cookie create` can also
    copy the cookie from a data directory into the cluster, or from the cluster into the directory.
    """
    from quire.cli.bookie.cookie import create

    shell.run(create, uri=shell.cluster(), **given)


def cookie_update(shell: Shell, **given: Any) -> None:
    """Replace the cookie of BOOKIE in the cluster by the content of a file.

    `quire bookie cookie update` can also rewrite the cookies in the bookie's data directories.
    """
    from quire.cli.bookie.cookie import update

    shell.run(update, uri=shell.cluster(), **given)


def cookie_delete(shell: Shell, **given: Any) -> Any:
    """Remove the cookie of BOOKIE from the cluster.

    The command fails while the bookie is registered, and while ledgers have replicas on it. With
    --force, these replicas are given up.
    """
    from quire.cli.bookie.cookie import delete

    return shell.run(delete, uri=shell.cluster(), yes=True, **given)


def cookie_generate(
    shell: Shell,
    bookie: str,
    instance_id: str | None,
    journals: str,
    ledgers: str,
    indexes: str,
    output: str,
) -> int:
    """Write the cookie of BOOKIE with these directories to a file."""
    from quire.cli.bookie.cookie import generate

    def split(text: str) -> tuple[str, ...]:
        return tuple(part for part in text.split(",") if part)

    if not split(ledgers):
        raise click.UsageError("no ledger directory is given: use -ledger-dirs DIR[,DIR...]")
    made = io.BytesIO()
    shell.run(
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
