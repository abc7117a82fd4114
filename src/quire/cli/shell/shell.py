"""`quire shell VERB`: the verbs and flags of Apache's BookieShell, so that runbooks carry over.

Each verb calls what is behind the command of ours that does the same, and prints what scripts look
for in Apache's form. Errors are ours: one line, and the exit status of every other command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from quire.cli.common.options import Command, optional_metadata_option
from quire.cli.common.tls import tls_options
from quire.cli.shell.session import Shell
from quire.cli.shell.verbs import VERBS

_ONE_INDEX = (
    "Quire keeps the index in the segments of its log: there is one kind of storage, and nothing "
    "to convert"
)
_REBUILD = "the index is made again from the log by `quire bookie disk rebuild-index DIR`"
_CHECK = "the index is checked by `quire bookie disk check DIR`"
REFUSED = {
    "check-db-ledgers-index": f"there is no RocksDB here: {_CHECK}",
    "convert-to-db-storage": _ONE_INDEX,
    "convert-to-interleaved-storage": _ONE_INDEX,
    "rebuild-db-ledger-locations-index": f"there is no RocksDB here: {_REBUILD}",
    "rebuild-db-ledgers-index": f"there is no RocksDB here: {_REBUILD}",
    "regenerate-interleaved-storage-index-file": f"a ledger has no index file here: {_REBUILD}",
    "updatecookie": "use `quire bookie cookie show` (-list), `update --dir DIR...` (-bookieId, "
    "-expandstorage) or `delete BOOKIE` (-delete)",
}
"""Verbs that make no sense here, and what to type instead."""


class _Verbs(click.Group):
    """Takes the verbs from the table, and imports the function of the one that is called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The value of -localbookie may be left out."""
        for at, one in enumerate(args):
            if not one.startswith("-"):
                follows = at > 0 and args[at - 1].lstrip("-") in _WITH_VALUES
                if not follows:
                    break
            if one in ("-localbookie", "--localbookie"):
                if ":" not in "".join(args[at + 1 : at + 2]):
                    args = [*args[: at + 1], "", *args[at + 1 :]]
                break
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in REFUSED:
            return _refuser(cmd_name)
        verb = VERBS.get(cmd_name)
        return None if verb is None else verb.command(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.line) for name, verb in VERBS.items()])


_WITH_VALUES = (
    "conf", "ledgeridformat", "entryformat", "metadata", "dir",
    "tls-ca", "tls-cert", "tls-key", "tls-key-password-file",
)  # fmt: skip


def _refuser(verb: str) -> click.Command:
    """Whatever its flags are."""

    def refuse(given: tuple[str, ...]) -> None:
        raise click.UsageError(f"{verb}: {REFUSED[verb]}")

    return click.Command(
        verb,
        callback=refuse,
        params=[click.Argument(["given"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        help=f"Not offered: {REFUSED[verb]}.",
    )


def _option(parameter: str, name: str, help: str, **more: Any) -> Callable[[Command], Command]:
    """An option before the verb, with one dash or two."""
    return click.option(f"-{name}", f"--{name}", parameter, help=help, **more)


@click.group("shell", cls=_Verbs)
@optional_metadata_option("The cluster; counts more than -conf.")
@_option(
    "conf",
    "conf",
    "Apache's bk_server.conf: the cluster, and the local bookie's directories and id.",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
)
@_option(
    "ledger_id_format",
    "ledgeridformat",
    "How ledger ids are written and read. [default: long]",
    type=click.Choice(("long", "hex", "uuid")),
    default="long",
)
@_option(
    "entry_format",
    "entryformat",
    "How payloads are printed. [default: string]",
    type=click.Choice(("string", "hex")),
    default="string",
)
@_option(
    "local_bookie",
    "localbookie",
    "The local bookie's id, where -conf does not say it.",
    metavar="[ID]",
)
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(file_okay=False),
    help="A data directory of the local bookie. [default: those of -conf, else of the "
    "configuration]",
)
@tls_options
@click.pass_context
def shell(
    context: click.Context,
    uri: str | None,
    conf: str | None,
    ledger_id_format: str,
    entry_format: str,
    local_bookie: str | None,
    directories: tuple[str, ...],
) -> None:
    """Apache's BookieShell: its verbs and flags. A flag is taken with one dash or two.

    Verbs on files look at the local bookie's directories, whether it runs or not.
    """
    given: dict[str, Any] = {}
    if conf is not None:
        from quire.cli.bookie.conf import read

        for line in read(conf):
            if line.outcome.verdict == "taken":
                given.update(line.outcome.keys)
    named = context.get_parameter_source("uri") is click.core.ParameterSource.COMMANDLINE
    context.obj = Shell(
        uri=uri if named else str(given.get("metadata") or uri or "") or None,
        given=given,
        directories=directories,
        local_bookie=local_bookie or "",
        ledger_id_format=ledger_id_format,
        hex_entries=entry_format == "hex",
    )
