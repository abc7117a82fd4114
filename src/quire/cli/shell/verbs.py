"""The table of the verbs of Apache's BookieShell, with their functions and flags.

A function is imported when its verb is called. Its docstring is the help of the verb, and its
parameters are the flags, in Apache's spelling.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import click
from click import Argument, Choice, IntRange, Option, Parameter, Path

from quire._runtime.names.suggest import nearest
from quire.cli.common.options import ENTRY_ID_MAX, Duration, Size, run_async
from quire.cli.shell.session import LOOKUPS_IN_FLIGHT, Shell, as_ledger_id

UPDATES_PER_S = 5


class _VerbCommand(click.Command):
    """A command that reports a misspelt flag as an unknown flag.

    Click's parser would read `-lx` as the flag `-l` with the value `x`, and report a bad value.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            known = {name for one in self.params for name in one.opts}
            for word in words:
                if (
                    word[:1] == "-"
                    and word[2:]
                    and word not in known
                    and repr(word[2:]) in str(error)
                ):
                    near = nearest(word, known)
                    likely = [] if near is None else [near]
                    raise click.NoSuchOption(word, possibilities=likely, ctx=ctx) from None
            raise


class Verb:
    """One verb of Apache's BookieShell.

    `where` is the `module:function` in `quire.cli.shell` that carries it out. `line` is its help in
    the list of verbs. `parameters` are its flags and arguments.
    """

    def __init__(self, where: str, line: str, *parameters: Parameter) -> None:
        self.where = where
        self.line = line
        self.parameters = parameters

    def command(self, name: str) -> click.Command:
        module, _, function = self.where.partition(":")
        run = getattr(import_module(f"quire.cli.shell.{module}"), function)
        return _VerbCommand(
            name,
            callback=partial(_called, run),
            params=[*self.parameters],
            help=inspect.getdoc(run),
        )


def _called(run: Callable[..., Any], **given: Any) -> Any:
    found = run(click.get_current_context().find_object(Shell), **given)
    return run_async(found) if inspect.iscoroutine(found) else found


# -- flags ------------------------------------------------------------------------------------


def value(parameter: str, names: str, help: str, **more: Any) -> Option:
    """Return an option with the spellings that Java's commons-cli accepts.

    For the names "m msg", these are `-m`, `--m`, `-msg` and `--msg`.
    """
    spelled = [dashes + name for name in names.split() for dashes in ("-", "--")]
    return Option([*spelled, parameter], help=help, **more)


flag = partial(value, is_flag=True)


def ledger(parameter: str, names: str, help: str, **more: Any) -> Option:
    """Return an option whose value is a ledger id, in the format of -ledgeridformat."""
    return value(parameter, names, help, metavar="LEDGER", callback=as_ledger_id, **more)


def _segment(context: click.Context, parameter: Parameter, text: str) -> int:
    from quire.cli.bookie.disk import segment_number

    return segment_number(context, parameter, text)


BOOKIE = Argument(["bookie"], metavar="BOOKIE")
SEGMENT = Argument(["number"], metavar="SEGMENT", callback=_segment)
LEDGER_ID = ledger("ledger_id", "l ledgerid", "The id of the ledger.", required=True)
DRY_RUN = Option(["--dry-run"], is_flag=True, help="Change nothing; print what would be done.")
FORCE = Option(
    ["--force"],
    is_flag=True,
    help="Proceed despite a safety check; `quire bookie cookie` describes which.",
)
COOKIE_FILE = value("file", "cf cookie-file", "A file with the cookie.", required=True,
                    type=Path(exists=True, dir_okay=False))  # fmt: skip
# fmt: off
RATE = (
    value("every_s", "p printprogress", "Ignored: progress is shown on a terminal.",
          type=IntRange(min=1)),
    value("verbose", "v verbose", "Print each ledger.", type=bool),
    value("reads", "r maxOutstandingReads",
          f"Ignored: {LOOKUPS_IN_FLIGHT} ledgers are read at the same time.",
          type=IntRange(min=1)),
    value("per_s", "s updatespersec",
          f"Update at most this many ledgers per second. [default: {UPDATES_PER_S}]",
          type=IntRange(min=1), default=UPDATES_PER_S),
    value("limit", "l limit", "Update at most this many ledgers. [default: no limit]",
          type=IntRange(min=1)),
)

# -- the table --------------------------------------------------------------------------------

VERBS = {
    "activeledgers": Verb("disk:active_ledgers", "List the ledgers of a segment that still exist.",
        value("number", "l logId", "The number of the segment, or the name of its file.",
              metavar="SEGMENT", required=True, callback=_segment),
        value("timeout_ms", "t timeout", "Ignored.", type=IntRange(min=1))),
    "autorecovery": Verb("replicas:autorecovery", "Enable or disable autorecovery.",
        flag("enable", "e enable", "Enable autorecovery."),
        flag("disable", "d disable", "Disable autorecovery; repairs under way are completed.")),
    "bookieformat": Verb("bookie:bookie_format", "Delete everything that the local bookie stores.",
        flag("silent", "n nonInteractive",
             "Do not ask for confirmation; fail without -force."),
        flag("force", "f force", "With -nonInteractive: delete existing data."),
        flag("delete_cookie", "d deleteCookie", "Also remove the bookie from the cluster."),
        DRY_RUN),
    "bookieinfo": Verb("cluster:bookie_info", "Print the disk space of all bookies."),
    "bookiesanity": Verb("bookie:bookie_sanity", "Write to the local bookie, and read it back.",
        value("entries", "e entries", "The number of entries to write. [default: 10]",
              type=IntRange(1, 1_000_000), default=10),
        value("timeout_s", "t timeout", "Seconds for each write and read. [default: 1]",
              type=Duration(0.001), default=1.0)),
    "clusterinfo": Verb("cluster:cluster_info", "Print a summary of the cluster as JSON."),
    "cookie_create": Verb("bookie:cookie_create", "Write the cookie of a bookie into the cluster.",
        BOOKIE, COOKIE_FILE, FORCE, DRY_RUN),
    "cookie_delete": Verb("bookie:cookie_delete", "Remove the cookie of a bookie.",
        BOOKIE, FORCE, DRY_RUN),
    "cookie_generate": Verb("bookie:cookie_generate", "Write a cookie to a file.",
        BOOKIE,
        value("instance_id", "i instance-id",
              "The instance id of the cluster. [default: read from the cluster]", metavar="ID"),
        value("journals", "j journal-dirs",
              "The journal directories. For a Quire bookie, give its data directories.",
              metavar="DIR[,DIR...]", required=True),
        value("ledgers", "l ledger-dirs", "The ledger (data) directories.", metavar="DIR[,DIR...]",
              required=True),
        value("indexes", "ix index-dirs",
              "The index directories. [default: the ledger directories]",
              metavar="DIR[,DIR...]", default=""),
        value("output", "o output-file", "The file to write.", required=True,
              type=Path(dir_okay=False))),
    "cookie_get": Verb("bookie:cookie_get", "Print the cookie of a bookie.", BOOKIE),
    "cookie_update": Verb("bookie:cookie_update", "Replace the cookie of a bookie.",
        BOOKIE, COOKIE_FILE, FORCE, DRY_RUN),
    "decommissionbookie": Verb("replicas:decommission_bookie",
        "Empty a bookie, then remove it from the cluster.",
        value("bookie", "bookieid", "The id of the bookie. [default: the local bookie]",
              metavar="ID"), DRY_RUN),
    "deleteledger": Verb("ledgers:delete_ledger", "Delete a ledger.",
        LEDGER_ID,
        flag("force", "f force",
             "Do not ask for confirmation, and also delete ledgers that an application needs."),
        DRY_RUN),
    "endpointinfo": Verb("cluster:endpoint_info", "Print the network endpoints of a bookie.",
        value("bookie", "b bookieid", "The id of the bookie.", metavar="ID", required=True)),
    "forceauditchecks": Verb("replicas:force_audit_checks", "Make the auditor's checks due.",
        flag("ledgers", "calc checkallledgerscheck", "The check that all entries can be read."),
        flag("placement", "ppc placementpolicycheck",
             "The check that replicas follow the placement policy."),
        flag("replicas", "rc replicascheck", "The check that all replicas exist.")),
    "help": Verb("cluster:show_help", "Show all verbs, or the help of a verb.",
        Argument(["verb"], required=False)),
    "initbookie": Verb("bookie:init_bookie", "Create a new bookie."),
    "initnewcluster": Verb("cluster:init_new_cluster", "Create a new, empty cluster.", DRY_RUN),
    "lastmark": Verb("disk:last_mark", "Print where the log ends."),
    "ledger": Verb("disk:ledger", "Print where the local bookie stores the entries of a ledger.",
        Argument(["ledger_id"], metavar="LEDGER", callback=as_ledger_id),
        flag("meta", "m meta", "Also print the state of the ledger on the bookie.")),
    "ledgermetadata": Verb("ledgers:ledger_metadata", "Print, save or restore ledger metadata.",
        LEDGER_ID,
        value("dump", "dumptofile", "Save the metadata to this file.", type=Path(dir_okay=False)),
        value("restore", "restorefromfile", "Restore the metadata from this file.",
              type=Path(exists=True, dir_okay=False)),
        flag("update", "update", "With -restorefromfile: replace existing metadata."),
        DRY_RUN),
    "listbookies": Verb("cluster:list_bookies", "List the bookies.",
        flag("writable", "rw readwrite", "List writable bookies."),
        flag("readonly", "ro readonly", "List read-only bookies."),
        flag("known", "a all", "List all bookies that the cluster knows, running or stopped."),
        flag("hostnames", "h hostnames", "Ignored: host names are always printed.")),
    "listfilesondisc": Verb("disk:list_files", "List the files of the local bookie.",
        flag("journals", "txn journal", "List journal files. Quire has none besides the log."),
        flag("logs", "log entrylog", "List the segments of the log."),
        flag("indexes", "idx index", "List index files. Quire has none besides the segments.")),
    "listledgers": Verb("ledgers:list_ledgers", "List all ledgers, or those of a bookie.",
        flag("meta", "m meta", "Also print the metadata."),
        value("bookie", "bookieid", "List only ledgers that use this bookie.", metavar="ID")),
    "listunderreplicated": Verb("replicas:list_underreplicated",
        "List the ledgers that lack replicas.",
        value("missing", "mr missingreplica",
              "List only ledgers that lack replicas on this bookie.", metavar="ID"),
        value("others", "emr excludingmissingreplica",
              "Do not list ledgers that lack replicas on this bookie.", metavar="ID"),
        flag("with_replicas", "pmr printmissingreplica", "Print which bookies lack the replicas."),
        flag("with_workers", "prw printreplicationworkerid", "Print which process repairs them."),
        flag("count_only", "c onlydisplayledgercount", "Print only the number of ledgers.")),
    "localconsistencycheck": Verb("disk:consistency_check", "Check the local bookie's files."),
    "lostbookierecoverydelay": Verb("replicas:delay",
        "Print or set how long the auditor waits for a lost bookie to return.",
        flag("asked", "g get", "Print the delay."),
        value("seconds", "s set", "Set the delay, in seconds.",
              type=Duration(0, 2**31 - 1, whole=True))),
    "metaformat": Verb("cluster:meta_format",
        "Destroy the cluster's metadata, and create a new cluster.",
        flag("silent", "n nonInteractive",
             "Do not ask for confirmation; without -force, fail if there is a cluster."),
        flag("force", "f force", "With -nonInteractive: destroy an existing cluster."), DRY_RUN),
    "nukeexistingcluster": Verb("cluster:nuke", "Destroy the cluster's metadata.",
        value("root", "p zkledgersrootpath", "The root path of the ledgers in ZooKeeper.",
              metavar="PATH", required=True),
        value("instance_id", "i instanceid", "The instance id of the cluster.", metavar="ID"),
        flag("force", "f force", "Proceed without checking the instance id."), DRY_RUN),
    "queryautorecoverystatus": Verb("replicas:query_status",
        "Print which ledgers are being repaired.",
        flag("verbose", "v verbose", "Also print the size of each ledger, if it is known.")),
    "readjournal": Verb("disk:read_journal", "Print the entries of a segment, like readlog.",
        SEGMENT,
        value("directory", "dir",
              "The data directory. [default: all directories of the local bookie]",
              type=Path(exists=True, file_okay=False)),
        flag("message", "m msg", "Also print the payloads.")),
    "readledger": Verb("ledgers:read_ledger", "Print the entries of a ledger.",
        LEDGER_ID,
        value("first", "fe firstentryid", "The id of the first entry to print. [default: 0]",
              type=IntRange(0, ENTRY_ID_MAX), default=0, metavar="ENTRY"),
        value("last", "le lastentryid",
              "The id of the last entry to print. [default: the last acknowledged entry]",
              type=IntRange(-1, ENTRY_ID_MAX), default=-1, metavar="ENTRY"),
        flag("message", "m msg", "Also print the payloads."),
        flag("recover", "r force-recovery", "First fence the writer and close the ledger."),
        value("bookie", "b bookie",
              "Read only from this bookie. The exit status is 1 if it lacks entries.",
              metavar="ID")),
    "readlog": Verb("disk:read_log", "Print the entries of a segment of the log.",
        SEGMENT,
        flag("message", "m msg", "Also print the payloads."),
        ledger("ledger_id", "l ledgerid", "Print only entries of this ledger."),
        value("entry_id", "e entryid", "Print only entries with this id.",
              type=IntRange(0, ENTRY_ID_MAX), metavar="ENTRY"),
        value("start", "sp startpos", "Print only entries that begin at this byte or later.",
              type=IntRange(min=0), metavar="OFFSET"),
        value("end", "ep endpos", "Print only entries that begin at this byte or earlier.",
              type=IntRange(min=0), metavar="OFFSET")),
    "readlogmetadata": Verb("disk:read_log_metadata", "Print the ledgers in a segment.", SEGMENT),
    "recover": Verb("replicas:recover", "Re-replicate the data of lost bookies.",
        Argument(["bookies"], metavar="ID[,ID...]"),
        flag("query", "q query", "Only print which ledgers use these bookies."),
        flag("plan", "dr dryrun", "Change nothing; print what would be copied."),
        flag("force", "f force", "Do not ask for confirmation."),
        ledger("ledger_id", "l ledger", "Recover only this ledger."),
        flag("skip_open", "sk skipOpenLedgers", "Leave open ledgers as they are."),
        flag("delete_cookie", "d deleteCookie", "Remove the bookies' cookies at the end."),
        flag("skip_failed", "sku skipUnrecoverableLedgers",
              "Do not count ledgers that cannot be recovered as failures."),
        value("rate", "rate replicationRate", "Write at most this many bytes per second.",
              type=Size(1), metavar="BYTES"), DRY_RUN),
    "simpletest": Verb("ledgers:simple_test", "Write a ledger, read it back, and delete it.",
        value("ensemble", "e ensemble", "The ensemble size. [default: 3]",
              type=IntRange(min=1), default=3),
        value("write_quorum", "w writeQuorum", "The write quorum. [default: 2]",
              type=IntRange(min=1), default=2),
        value("ack_quorum", "a ackQuorum", "The ack quorum. [default: 2]",
              type=IntRange(min=1), default=2),
        value("entries", "n numEntries", "The number of entries. [default: 1000]",
              type=IntRange(1, ENTRY_ID_MAX), default=1000)),
    "triggeraudit": Verb("replicas:trigger_audit", "Make the auditor look for lost bookies now."),
    "updateBookieInLedger": Verb("rename:update_bookie",
        "Replace the id of a bookie in the metadata of all ledgers.",
        value("source", "sb srcBookie", "The present id.", metavar="ID", required=True),
        value("target", "db destBookie", "The new id.", metavar="ID", required=True),
        *RATE, DRY_RUN),
    "updateledgers": Verb("rename:update_ledgers",
        "Replace the local bookie's id by its address or host name.",
        value("form", "b bookieId", "The form of the new id.",
              type=Choice(("ip", "hostname")), required=True), *RATE, DRY_RUN),
    "whatisinstanceid": Verb("cluster:instance_id", "Print the cluster's instance id."),
    "whoisauditor": Verb("replicas:who_is_auditor", "Print which process is the auditor."),
}
# fmt: on
