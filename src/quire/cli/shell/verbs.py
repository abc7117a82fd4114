"""The verbs of Apache's BookieShell: what each is here, and its flags in Apache's spelling.

A function is imported when its verb is called. Its docstring is the help of the verb, and its
parameters are the flags.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import click
from click import Argument, Choice, IntRange, Option, Parameter, Path

from quire.cli.common.options import ENTRY_ID_MAX, Duration, Size, run_async
from quire.cli.shell.session import LOOKUPS_IN_FLIGHT, Shell, as_ledger_id

UPDATES_PER_S = 5


class Verb:
    """`where` is `module:function` in `quire.cli.shell`; `line` is for the list of verbs."""

    def __init__(self, where: str, line: str, *parameters: Parameter) -> None:
        self.where = where
        self.line = line
        self.parameters = parameters

    def command(self, name: str) -> click.Command:
        module, _, function = self.where.partition(":")
        run = getattr(import_module(f"quire.cli.shell.{module}"), function)
        return click.Command(
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
    """A flag with a value: `-m`, `--m`, `-msg` and `--msg` for the names "m msg", as commons-cli
    takes them."""
    spelled = [dashes + name for name in names.split() for dashes in ("-", "--")]
    return Option([*spelled, parameter], help=help, **more)


flag = partial(value, is_flag=True)


def ledger(parameter: str, names: str, help: str, **more: Any) -> Option:
    """A flag with the id of a ledger, in the format of -ledgeridformat."""
    return value(parameter, names, help, metavar="LEDGER", callback=as_ledger_id, **more)


def _segment(context: click.Context, parameter: Parameter, text: str) -> int:
    from quire.cli.bookie.disk import segment_number

    return segment_number(context, parameter, text)


BOOKIE = Argument(["bookie"], metavar="BOOKIE")
SEGMENT = Argument(["number"], metavar="SEGMENT", callback=_segment)
LEDGER_ID = ledger("ledger_id", "l ledgerid", "Its id.", required=True)
DRY_RUN = Option(["--dry-run"], is_flag=True, help="Change nothing; say what would be done.")
FORCE = Option(["--force"], is_flag=True, help="As with `quire bookie cookie`: see there.")
COOKIE_FILE = value("file", "cf cookie-file", "A file with the cookie.", required=True,
                    type=Path(exists=True, dir_okay=False))  # fmt: skip
# fmt: off
RATE = (
    value("every_s", "p printprogress", "Not needed: progress is shown on a terminal.",
          type=IntRange(min=1)),
    value("verbose", "v verbose", "Name each ledger.", type=bool),
    value("reads", "r maxOutstandingReads", f"Not needed: {LOOKUPS_IN_FLIGHT} are read at a time.",
          type=IntRange(min=1)),
    value("per_s", "s updatespersec", f"Ledgers a second. [default: {UPDATES_PER_S}]",
          type=IntRange(min=1), default=UPDATES_PER_S),
    value("limit", "l limit", "At most so many ledgers.", type=IntRange(min=1)),
)

# -- the table --------------------------------------------------------------------------------

VERBS = {
    "activeledgers": Verb("disk:active_ledgers", "List the ledgers of a segment that still exist.",
        value("number", "l logId", "Its number, or its file's name.", metavar="SEGMENT",
              required=True, callback=_segment),
        value("timeout_ms", "t timeout", "Not needed.", type=IntRange(min=1))),
    "autorecovery": Verb("replicas:autorecovery", "Switch autorecovery on or off.",
        flag("enable", "e enable", "Switch it on."),
        flag("disable", "d disable", "Switch it off: nothing new is begun.")),
    "bookieformat": Verb("bookie:bookie_format", "Destroy what the local bookie has stored.",
        flag("silent", "n nonInteractive", "Do not ask: without -force, fail if there is data."),
        flag("force", "f force", "With -nonInteractive: destroy what there is."),
        flag("delete_cookie", "d deleteCookie", "Remove the bookie from the cluster as well."),
        DRY_RUN),
    "bookieinfo": Verb("cluster:bookie_info", "Free and total disk space of all bookies."),
    "bookiesanity": Verb("bookie:bookie_sanity", "Write to the local bookie, and read it back.",
        value("entries", "e entries", "Entries to write. [default: 10]", type=IntRange(1,
              1_000_000), default=10),
        value("timeout_s", "t timeout", "Seconds for a write or a read. [default: 1]",
              type=Duration(0.001), default=1.0)),
    "clusterinfo": Verb("cluster:cluster_info", "Bookies, auditor and missing replicas, as JSON."),
    "cookie_create": Verb("bookie:cookie_create", "Write the cookie of a bookie into the cluster.",
        BOOKIE, COOKIE_FILE, FORCE, DRY_RUN),
    "cookie_delete": Verb("bookie:cookie_delete", "Remove the cookie of a bookie.",
        BOOKIE, FORCE, DRY_RUN),
    "cookie_generate": Verb("bookie:cookie_generate", "Write a cookie to a file.",
        BOOKIE,
        value("instance_id", "i instance-id", "[default: what the cluster says]", metavar="ID"),
        value("journals", "j journal-dirs",
              "The journal directories; of a Quire bookie its data directories.",
              metavar="DIR[,DIR...]", required=True),
        value("ledgers", "l ledger-dirs", "The ledger (data) directories.", metavar="DIR[,DIR...]",
              required=True),
        value("indexes", "ix index-dirs", "The index directories, if they are others.",
              metavar="DIR[,DIR...]", default=""),
        value("output", "o output-file", "The file to write.", required=True,
              type=Path(dir_okay=False))),
    "cookie_get": Verb("bookie:cookie_get", "Print the cookie of a bookie.", BOOKIE),
    "cookie_update": Verb("bookie:cookie_update", "Replace the cookie of a bookie.",
        BOOKIE, COOKIE_FILE, FORCE, DRY_RUN),
    "decommissionbookie": Verb("replicas:decommission_bookie", "Take a bookie away for good.",
        value("bookie", "bookieid", "[default: the local bookie]", metavar="ID"), DRY_RUN),
    "deleteledger": Verb("ledgers:delete_ledger", "Delete a ledger.",
        LEDGER_ID,
        flag("force", "f force", "Do not ask, and also delete ledgers that an application needs."),
        DRY_RUN),
    "endpointinfo": Verb("cluster:endpoint_info", "Where a bookie listens.",
        value("bookie", "b bookieid", "The bookie.", metavar="ID", required=True)),
    "forceauditchecks": Verb("replicas:force_audit_checks", "Let the auditor's checks be due.",
        flag("ledgers", "calc checkallledgerscheck", "The check that all entries can be read."),
        flag("placement", "ppc placementpolicycheck", "The check where replicas lie."),
        flag("replicas", "rc replicascheck", "The check that all replicas are there.")),
    "help": Verb("cluster:show_help", "Show the verbs, or what a verb takes.",
        Argument(["verb"], required=False)),
    "initbookie": Verb("bookie:init_bookie", "Make a new bookie."),
    "initnewcluster": Verb("cluster:init_new_cluster", "Make a new, empty cluster.", DRY_RUN),
    "lastmark": Verb("disk:last_mark", "Print where the log ends."),
    "ledger": Verb("disk:ledger", "Print where the entries of a ledger lie on the local bookie.",
        Argument(["ledger_id"], metavar="LEDGER", callback=as_ledger_id),
        flag("meta", "m meta", "Print what is known of the ledger, too.")),
    "ledgermetadata": Verb("ledgers:ledger_metadata", "Print, keep or restore ledger metadata.",
        LEDGER_ID,
        value("dump", "dumptofile", "Write its bytes to this file.", type=Path(dir_okay=False)),
        value("restore", "restorefromfile", "Make the ledger anew from such a file.",
              type=Path(exists=True, dir_okay=False)),
        flag("update", "update", "With -restorefromfile: also where there is metadata already."),
        DRY_RUN),
    "listbookies": Verb("cluster:list_bookies", "List the bookies.",
        flag("writable", "rw readwrite", "Bookies that take entries."),
        flag("readonly", "ro readonly", "Bookies that are read-only."),
        flag("known", "a all", "All that the cluster knows, running or not."),
        flag("hostnames", "h hostnames", "They are printed in any case.")),
    "listfilesondisc": Verb("disk:list_files", "List the files of the local bookie.",
        flag("journals", "txn journal", "The journal's: there are none beside the log."),
        flag("logs", "log entrylog", "The segments of the log."),
        flag("indexes", "idx index", "The index's: it is in the segments.")),
    "listledgers": Verb("ledgers:list_ledgers", "List all ledgers, or those of a bookie.",
        flag("meta", "m meta", "Print the metadata, too."),
        value("bookie", "bookieid", "Only ledgers that name this bookie.", metavar="ID")),
    "listunderreplicated": Verb("replicas:list_underreplicated", "List what lacks replicas.",
        value("missing", "mr missingreplica", "Only those that this bookie lacks.", metavar="ID"),
        value("others", "emr excludingmissingreplica", "Not those that this bookie lacks.",
              metavar="ID"),
        flag("with_replicas", "pmr printmissingreplica", "Print which bookies lack them."),
        flag("with_workers", "prw printreplicationworkerid", "Print who works on them."),
        flag("count_only", "c onlydisplayledgercount", "Print only how many there are.")),
    "localconsistencycheck": Verb("disk:consistency_check", "Check the local bookie's files."),
    "lostbookierecoverydelay": Verb("replicas:delay", "How long a lost bookie is waited for.",
        flag("asked", "g get", "Print it."),
        value("seconds", "s set", "Set it, in seconds.",
              type=Duration(0, 2**31 - 1, whole=True))),
    "metaformat": Verb("cluster:meta_format", "Destroy the cluster's metadata; make a new one.",
        flag("silent", "n nonInteractive", "Do not ask: without -force, fail if there is data."),
        flag("force", "f force", "With -nonInteractive: destroy what there is."), DRY_RUN),
    "nukeexistingcluster": Verb("cluster:nuke", "Destroy the cluster's metadata.",
        value("root", "p zkledgersrootpath", "The ledgers root.", metavar="PATH", required=True),
        value("instance_id", "i instanceid", "The cluster's instance id.", metavar="ID"),
        flag("force", "f force", "Whatever the instance id is."), DRY_RUN),
    "queryautorecoverystatus": Verb("replicas:query_status", "Which ledgers are worked on.",
        flag("verbose", "v verbose", "With the size of each ledger, as far as it is known.")),
    "readjournal": Verb("disk:read_journal", "Print the entries of a segment: there is one log.",
        SEGMENT,
        value("directory", "dir", "The data directory. [default: all of the local bookie]",
              type=Path(exists=True, file_okay=False)),
        flag("message", "m msg", "Print the payloads, too.")),
    "readledger": Verb("ledgers:read_ledger", "Print entries of a ledger.",
        LEDGER_ID,
        value("first", "fe firstentryid", "[default: 0]", type=IntRange(0, ENTRY_ID_MAX), default=0,
              metavar="ENTRY"),
        value("last", "le lastentryid", "Inclusive. [default: the last one that is acknowledged]",
              type=IntRange(-1, ENTRY_ID_MAX), default=-1, metavar="ENTRY"),
        flag("message", "m msg", "Print the payloads, too."),
        flag("recover", "r force-recovery", "Fence the writer and close the ledger first."),
        value("bookie", "b bookie",
              "Read from this bookie only. Exit status 1: it lacks something.", metavar="ID")),
    "readlog": Verb("disk:read_log", "Print the entries of a segment of the log.",
        SEGMENT,
        flag("message", "m msg", "Print the payloads, too."),
        ledger("ledger_id", "l ledgerid", "Only this ledger."),
        value("entry_id", "e entryid", "Only this entry.", type=IntRange(0, ENTRY_ID_MAX),
              metavar="ENTRY"),
        value("start", "sp startpos", "Only what begins at this byte or behind.",
              type=IntRange(min=0), metavar="OFFSET"),
        value("end", "ep endpos", "Only what begins at this byte or before.", type=IntRange(min=0),
              metavar="OFFSET")),
    "readlogmetadata": Verb("disk:read_log_metadata", "Print the ledgers of a segment.", SEGMENT),
    "recover": Verb("replicas:recover", "Replicate again what lost bookies held.",
        Argument(["bookies"], metavar="ID[,ID...]"),
        flag("query", "q query", "Only print which ledgers name them."),
        flag("plan", "dr dryrun", "Change nothing; say what would be copied."),
        flag("force", "f force", "Do not ask."),
        ledger("ledger_id", "l ledger", "Only this ledger."),
        flag("skip_open", "sk skipOpenLedgers", "Leave ledgers that are still written."),
        flag("delete_cookie", "d deleteCookie", "Then remove the bookies' cookies."),
        flag("skip_failed", "sku skipUnrecoverableLedgers",
              "Ledgers that cannot be recovered do not count as a failure."),
        value("rate", "rate replicationRate", "Write at most so many bytes a second.",
              type=Size(1), metavar="BYTES"), DRY_RUN),
    "simpletest": Verb("ledgers:simple_test", "Write a ledger, and delete it.",
        value("ensemble", "e ensemble", "[default: 3]", type=IntRange(min=1), default=3),
        value("write_quorum", "w writeQuorum", "[default: 2]", type=IntRange(min=1), default=2),
        value("ack_quorum", "a ackQuorum", "[default: 2]", type=IntRange(min=1), default=2),
        value("entries", "n numEntries", "[default: 1000]", type=IntRange(1, ENTRY_ID_MAX),
              default=1000)),
    "triggeraudit": Verb("replicas:trigger_audit", "Look for lost bookies now."),
    "updateBookieInLedger": Verb("rename:update_bookie", "Replace a bookie in all metadata.",
        value("source", "sb srcBookie", "Who is named now.", metavar="ID", required=True),
        value("target", "db destBookie", "Who is to be named.", metavar="ID", required=True),
        *RATE, DRY_RUN),
    "updateledgers": Verb("rename:update_ledgers", "Replace the local bookie's id in metadata.",
        value("form", "b bookieId", "What the local bookie is called from now on.",
              type=Choice(("ip", "hostname")), required=True), *RATE, DRY_RUN),
    "whatisinstanceid": Verb("cluster:instance_id", "Print the cluster's instance id."),
    "whoisauditor": Verb("replicas:who_is_auditor", "Print who the auditor is."),
}
# fmt: on
