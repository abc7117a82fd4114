"""`quire shell VERB`: the verbs and flags of Apache's BookieShell, so that runbooks carry over.

Each verb calls what is behind the command of ours that does the same, and prints what scripts look
for in Apache's form. Errors are ours: one line, and the exit status of every other command.
"""

from __future__ import annotations

from typing import Any

import click

from quire.cli.common.groups import LazyGroup
from quire.cli.common.options import optional_metadata_option
from quire.cli.common.tls import tls_options
from quire.cli.shell.options import Shell, value

_CLUSTER = "quire.cli.shell.cluster"
_BOOKIE = "quire.cli.shell.bookie"
_REPLICAS = "quire.cli.shell.replicas"
_LEDGERS = "quire.cli.shell.ledgers"
_DISK = "quire.cli.shell.disk"
_RENAME = "quire.cli.shell.rename"

VERBS = {
    "activeledgers": (f"{_DISK}:active_ledgers", "List the ledgers of a segment that still exist."),
    "autorecovery": (f"{_REPLICAS}:autorecovery", "Switch autorecovery on or off."),
    "bookieformat": (f"{_BOOKIE}:bookie_format", "Destroy what the local bookie has stored."),
    "bookieinfo": (f"{_CLUSTER}:bookie_info", "Free and total disk space of all bookies."),
    "bookiesanity": (f"{_BOOKIE}:bookie_sanity", "Write to the local bookie, and read it back."),
    "clusterinfo": (f"{_CLUSTER}:cluster_info", "Bookies, auditor and missing replicas, as JSON."),
    "cookie_create": (f"{_BOOKIE}:cookie_create", "Write the cookie of a bookie into the cluster."),
    "cookie_delete": (f"{_BOOKIE}:cookie_delete", "Remove the cookie of a bookie."),
    "cookie_generate": (f"{_BOOKIE}:cookie_generate", "Write a cookie to a file."),
    "cookie_get": (f"{_BOOKIE}:cookie_get", "Print the cookie of a bookie."),
    "cookie_update": (f"{_BOOKIE}:cookie_update", "Replace the cookie of a bookie."),
    "decommissionbookie": (f"{_REPLICAS}:decommission_bookie", "Take a bookie away for good."),
    "deleteledger": (f"{_LEDGERS}:delete_ledger", "Delete a ledger."),
    "endpointinfo": (f"{_CLUSTER}:endpoint_info", "Where a bookie listens."),
    "forceauditchecks": (f"{_REPLICAS}:force_audit_checks", "Let the auditor's checks be due."),
    "help": (f"{_CLUSTER}:show_help", "Show the verbs, or what a verb takes."),
    "initbookie": (f"{_BOOKIE}:init_bookie", "Make a new bookie."),
    "initnewcluster": (f"{_CLUSTER}:init_new_cluster", "Make a new, empty cluster."),
    "lastmark": (f"{_DISK}:last_mark", "Print where the log ends."),
    "ledger": (f"{_DISK}:ledger", "Print where the entries of a ledger lie on the local bookie."),
    "ledgermetadata": (f"{_LEDGERS}:ledger_metadata", "Print, keep or restore ledger metadata."),
    "listbookies": (f"{_CLUSTER}:list_bookies", "List the bookies."),
    "listfilesondisc": (f"{_DISK}:list_files", "List the files of the local bookie."),
    "listledgers": (f"{_LEDGERS}:list_ledgers", "List all ledgers, or those of a bookie."),
    "listunderreplicated": (f"{_REPLICAS}:list_underreplicated", "List what lacks replicas."),
    "localconsistencycheck": (f"{_DISK}:consistency_check", "Check the local bookie's files."),
    "lostbookierecoverydelay": (f"{_REPLICAS}:delay", "How long a lost bookie is waited for."),
    "metaformat": (f"{_CLUSTER}:meta_format", "Destroy the cluster's metadata; make a new one."),
    "nukeexistingcluster": (f"{_CLUSTER}:nuke", "Destroy the cluster's metadata."),
    "queryautorecoverystatus": (f"{_REPLICAS}:query_status", "Which ledgers are worked on."),
    "readjournal": (f"{_DISK}:read_journal", "Print the entries of a segment: there is one log."),
    "readledger": (f"{_LEDGERS}:read_ledger", "Print entries of a ledger."),
    "readlog": (f"{_DISK}:read_log", "Print the entries of a segment of the log."),
    "readlogmetadata": (f"{_DISK}:read_log_metadata", "Print the ledgers of a segment."),
    "recover": (f"{_REPLICAS}:recover", "Replicate again what lost bookies held."),
    "simpletest": (f"{_LEDGERS}:simple_test", "Write a ledger, and delete it."),
    "triggeraudit": (f"{_REPLICAS}:trigger_audit", "Look for lost bookies now."),
    "updateBookieInLedger": (f"{_RENAME}:update_bookie", "Replace a bookie in all metadata."),
    "updateledgers": (f"{_RENAME}:update_ledgers", "Replace the local bookie's id in metadata."),
    "whatisinstanceid": (f"{_CLUSTER}:instance_id", "Print the cluster's instance id."),
    "whoisauditor": (f"{_REPLICAS}:who_is_auditor", "Print who the auditor is."),
}  # fmt: skip

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


class _Verbs(LazyGroup):
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
        return _refuser(cmd_name) if cmd_name in REFUSED else super().get_command(ctx, cmd_name)


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


@click.group("shell", cls=_Verbs, lazy=VERBS)
@optional_metadata_option("The cluster; counts more than -conf.")
@value(
    "conf",
    "conf",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Apache's bk_server.conf: the cluster, and the local bookie's directories and id.",
)
@value(
    "ledger_id_format",
    "ledgeridformat",
    type=click.Choice(("long", "hex", "uuid")),
    default="long",
    help="How ledger ids are written and read. [default: long]",
)
@value(
    "entry_format",
    "entryformat",
    type=click.Choice(("string", "hex")),
    default="string",
    help="How payloads are printed. [default: string]",
)
@value("local_bookie", "localbookie", metavar="[ID]", help="The local bookie's id, where -conf "
       "does not say it.")  # fmt: skip
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
