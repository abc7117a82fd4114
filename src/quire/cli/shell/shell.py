"""The command `quire shell VERB`, which has the verbs and flags of Apache's BookieShell.

Runbooks for Apache's shell can be used unchanged. Each verb calls the function behind the command
of Quire that does the same, and prints what scripts look for in Apache's format. Errors are those
of Quire: one line, and the same exit statuses as other commands.
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
    "Quire has only one kind of storage, whose log segments contain the index, so there is nothing "
    "to convert"
)
_REBUILD = "`quire bookie disk rebuild-index DIR` rebuilds the index from the log"
_CHECK = "`quire bookie disk check DIR` checks the index"
REFUSED = {
    "check-db-ledgers-index": f"Quire does not use RocksDB: {_CHECK}",
    "convert-to-db-storage": _ONE_INDEX,
    "convert-to-interleaved-storage": _ONE_INDEX,
    "rebuild-db-ledger-locations-index": f"Quire does not use RocksDB: {_REBUILD}",
    "rebuild-db-ledgers-index": f"Quire does not use RocksDB: {_REBUILD}",
    "regenerate-interleaved-storage-index-file": f"Quire has no index file per ledger: {_REBUILD}",
    "updatecookie": "use `quire bookie cookie show` (-list), `quire bookie cookie update --dir "
    "DIR...` (-bookieId, -expandstorage) or `quire bookie cookie delete BOOKIE` (-delete)",
}
"""The advice for each verb of Apache's shell that Quire does not have, by verb."""


class _Verbs(click.Group):
    """A group that has the verbs of the table, and imports the function of the called one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. The option -localbookie may have a value or none.

        The word after -localbookie is its value unless it is a verb, an option or the last word.
        """
        for at, one in enumerate(args):
            if not one.startswith("-"):
                follows = at > 0 and args[at - 1].lstrip("-") in _WITH_VALUES
                if not follows:
                    break
            if one in ("-localbookie", "--localbookie"):
                if not _is_value(args[at + 1 :]):
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


def _is_value(words: list[str]) -> bool:
    """Return whether the first of the words after -localbookie is its value."""
    if not words or words[0].startswith("-") or words[0] in VERBS or words[0] in REFUSED:
        return False
    return ":" in words[0] or len(words) > 1


def _refuser(verb: str) -> click.Command:
    """Return a command that fails and says what to type instead, whatever its flags are."""

    def refuse(given: tuple[str, ...]) -> None:
        raise click.UsageError(f"{verb}: {REFUSED[verb]}")

    return click.Command(
        verb,
        callback=refuse,
        params=[click.Argument(["given"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        help=f"Not supported: {REFUSED[verb]}.",
    )


def _option(parameter: str, name: str, help: str, **more: Any) -> Callable[[Command], Command]:
    """Return an option of `quire shell`, which is accepted with one dash or two."""
    return click.option(f"-{name}", f"--{name}", parameter, help=help, **more)


@click.group("shell", cls=_Verbs)
@optional_metadata_option("The metadata store of the cluster. It overrides that of -conf.")
@_option(
    "conf",
    "conf",
    "Apache's bk_server.conf, from which the cluster and the local bookie's directories and id are "
    "read.",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
)
@_option(
    "ledger_id_format",
    "ledgeridformat",
    "The format of ledger ids in input and output. [default: long]",
    type=click.Choice(("long", "hex", "uuid")),
    default="long",
)
@_option(
    "entry_format",
    "entryformat",
    "The format of payloads in the output. [default: string]",
    type=click.Choice(("string", "hex")),
    default="string",
)
@_option(
    "local_bookie",
    "localbookie",
    "The local bookie's id. It overrides the id in the file of -conf. Without ID the option has no "
    "effect.",
    metavar="[ID]",
)
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=click.Path(file_okay=False),
    help="A data directory of the local bookie. May be repeated. [default: those of -conf, else of "
    "Quire's configuration]",
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
    """Run the commands of Apache's BookieShell, with Apache's flags and output.

    Flags are accepted with one dash or two. Commands that read files use the directories of the
    local bookie, which may be running. For each command, Quire has one of its own with more
    options, for example `quire bookie cookie`, `quire bookie disk` and `quire autorecovery`.
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
