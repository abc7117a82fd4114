"""The command `quire`. Each command has a module of its own, imported when it is called."""

from __future__ import annotations

import click

from quire.admin.groups import DefaultGroup, LazyGroup, RootGroup
from quire.admin.options import CONFIG_VARIABLE

_COMMANDS = {
    "local": (
        "quire.admin.local:local",
        "Run a whole cluster on this machine, in the foreground.",
    ),
    "bookie": (
        "quire.admin.main:bookie",
        "Run one bookie in the foreground; look after it; take it away.",
    ),
    "autorecovery": (
        "quire.admin.main:autorecovery",
        "Replicate again what is lost, without a command.",
    ),
    "http": (
        "quire.admin.http:http",
        "Serve the HTTP API and the metrics of a cluster.",
    ),
    "ui": (
        "quire.admin.ui:ui",
        "Serve the dashboard of a cluster.",
    ),
    "zookeeper": (
        "quire.admin.zookeeper:zookeeper",
        "Run a single ZooKeeper server in the foreground.",
    ),
    "cluster": (
        "quire.admin.main:cluster",
        "Initialise a cluster; look at its bookies; rebalance.",
    ),
    "ledger": ("quire.admin.main:ledger", "Write, read, list, show, delete and recover ledgers."),
    "object": ("quire.admin.main:objects", "Put, get, list, show and delete objects."),
    "namespace": (
        "quire.admin.main:namespace",
        "Make, list and show namespaces of streams; set what streams inherit.",
    ),
    "stream": ("quire.admin.main:stream", "Write, read, tail, truncate and manage streams."),
    "pipeline": ("quire.admin.main:pipeline", "Move, keep, compare and check data with Spark."),
    "config": ("quire.admin.main:config", "Show and check the configuration."),
    "explain": ("quire.admin.main:explain", "Say what is wrong with something, and why."),
    "bench": ("quire.admin.main:bench", "Measure a cluster."),
    "shell": ("quire.admin.shell:shell", "Take the verbs and flags of Apache's BookieShell."),
    "completion": (
        "quire.admin.completion:completion",
        "Print what makes a shell complete commands and options.",
    ),
    "simulate": (
        "quire.admin.simulate:simulate",
        "Run whole clusters with faults on seeds, and check them.",
    ),
}

_BOOKIE = {
    "start": ("quire.admin.bookie:bookie", "Run one bookie in the foreground."),
    "recover": (
        "quire.admin.bookie_recover:recover",
        "Replicate again what a lost bookie held.",
    ),
    "decommission": (
        "quire.admin.bookie_decommission:decommission",
        "Take a bookie away for good, with nothing lost.",
    ),
    "explain": (
        "quire.admin.bookie_explain:explain",
        "Say what a bookie keeps on its disk, and why.",
    ),
    "scrub": (
        "quire.admin.bookie_scrub:scrub",
        "Read all that a bookie has stored, and check it.",
    ),
    "disk": (
        "quire.admin.bookie_disk:disk",
        "Look at the files of a bookie; check them; make their index again.",
    ),
    "cookie": (
        "quire.admin.bookie_cookie:cookie",
        "Show and mend what ties directories to a bookie.",
    ),
    "conf": (
        "quire.admin.bookie_conf:conf",
        "Say what becomes of each key of Apache's bk_server.conf.",
    ),
    "init": ("quire.admin.bookie_init:init", "Make a new bookie in an empty directory."),
    "format": ("quire.admin.bookie_format:erase_bookie", "Destroy what a bookie has stored."),
}

_AUTORECOVERY = {
    "start": (
        "quire.admin.autorecovery:start",
        "Stand for auditor, and repair ledgers, in the foreground.",
    ),
    "status": (
        "quire.admin.autorecovery:status",
        "Who is the auditor, and how much there is to do.",
    ),
    "list": (
        "quire.admin.autorecovery:list_marked",
        "List the ledgers that lack replicas, and why.",
    ),
    "enable": ("quire.admin.autorecovery:enable", "Switch it on again, for the whole cluster."),
    "disable": ("quire.admin.autorecovery:disable", "Switch it off, for the whole cluster."),
    "delay": (
        "quire.admin.autorecovery:delay",
        "Show or set how long a lost bookie is waited for.",
    ),
    "trigger": ("quire.admin.autorecovery:trigger", "Look for lost bookies now."),
}

_CLUSTER = {
    "init": ("quire.admin.cluster_init:init", "Make a new, empty cluster."),
    "bookies": ("quire.admin.cluster_bookies:bookies", "List the registered bookies."),
    "erase": ("quire.admin.cluster_erase:erase", "Destroy a cluster and all its ledgers."),
    "locations": (
        "quire.admin.cluster_locations:locations",
        "Say where bookies stand: racks, regions, zones.",
    ),
    "rebalance": (
        "quire.admin.cluster_rebalance:rebalance",
        "Move entries from the fullest bookies to the emptiest.",
    ),
    "pause": (
        "quire.admin.cluster_pause:pause",
        "Pause a job, in whichever process it runs; list what is paused.",
    ),
    "resume": ("quire.admin.cluster_pause:resume", "Let a paused job go on."),
    "skip-ids": (
        "quire.admin.cluster_skip_ids:skip_ids",
        "After a restore, give no new ledger an id up to this one.",
    ),
    "gc": ("quire.admin.cluster_gc:gc", "Show garbage collection, and switch it off and on."),
}

_CONFIG = {
    "show": ("quire.admin.config_show:show", "Show effective values, and their origins."),
    "check": ("quire.admin.config_check:check", "Say what is wrong with a configuration file."),
}

_EXPLAIN = {
    "cluster": (
        "quire.admin.explain_cluster:explain",
        "What is wrong with the cluster, what is being done about it, and what to type.",
    ),
    "ledger": (
        "quire.admin.explain_ledger:explain",
        "Where the replicas of a ledger are, what is missing, and why.",
    ),
}

_LEDGER = {
    "write": (
        "quire.admin.ledger_write:write",
        "Append the lines of standard input to a new ledger.",
    ),
    "read": ("quire.admin.ledger_read:read", "Print the entries of a ledger, one a line."),
    "list": ("quire.admin.ledger_list:list_ledgers", "List the ids of all ledgers."),
    "show": ("quire.admin.ledger_show:show", "Show what the metadata says of a ledger."),
    "delete": ("quire.admin.ledger_delete:delete", "Delete a ledger."),
    "recover": (
        "quire.admin.ledger_recover:recover",
        "Fence the writer of a ledger and close the ledger.",
    ),
}

_OBJECT = {
    "put": ("quire.admin.object_put:put", "Store a file as an object."),
    "get": ("quire.admin.object_get:get", "Print an object, or write it to a file."),
    "list": ("quire.admin.object_list:list_objects", "List the names of objects."),
    "show": ("quire.admin.object_show:show", "Show what is known of an object."),
    "delete": ("quire.admin.object_delete:delete", "Delete an object."),
}

_NAMESPACE = {
    "create": ("quire.admin.namespace_create:create", "Make a namespace for streams."),
    "list": ("quire.admin.namespace_list:list_namespaces", "List the paths of all namespaces."),
    "show": ("quire.admin.namespace_show:show", "Show the settings of a namespace."),
    "set": ("quire.admin.namespace_show:change", "Change settings that streams inherit."),
}

_STREAM = {
    "create": ("quire.admin.stream_create:create", "Make a stream."),
    "list": ("quire.admin.stream_list:list_streams", "List the streams of a namespace."),
    "show": ("quire.admin.stream_show:show", "Show settings, segments and subscriptions."),
    "set": ("quire.admin.stream_create:change", "Change a stream's own settings."),
    "rename": ("quire.admin.stream_create:rename", "Give a stream another name."),
    "delete": ("quire.admin.stream_delete:delete", "Delete a stream with all its ledgers."),
    "write": ("quire.admin.stream_write:write", "Append the lines of standard input."),
    "read": ("quire.admin.stream_read:read", "Print records, from any place on."),
    "tail": ("quire.admin.stream_read:tail", "Print the last records, and go on with -f."),
    "truncate": ("quire.admin.stream_trim:truncate", "Give up the beginning of a stream."),
    "retain": ("quire.admin.stream_trim:retain", "Delete what is not to be kept any longer."),
    "end": ("quire.admin.stream_delete:end", "End a stream for good."),
    "audit": ("quire.admin.stream_audit:audit", "Find ledgers that no stream names any more."),
}

_PIPELINE = {
    "ingest": ("quire.admin.pipeline_ingest:ingest", "Bring files and tables into streams."),
    "offload": (
        "quire.admin.pipeline_offload:offload",
        "Copy closed segments to Parquet, and free the bookies of them.",
    ),
    "history": (
        "quire.admin.pipeline_history:history",
        "Read what was offloaded and what was not as one.",
    ),
    "compact": (
        "quire.admin.pipeline_compact:compact",
        "Keep the latest value of each key of a stream.",
    ),
    "replicate": (
        "quire.admin.pipeline_replicate:replicate",
        "Copy streams to another cluster, once or continuously.",
    ),
    "audit": (
        "quire.admin.pipeline_audit:audit",
        "Read every replica of every entry, and tell what is wrong.",
    ),
    "recover": (
        "quire.admin.pipeline_recover:recover",
        "Replicate again what a lost bookie held.",
    ),
}

_BENCH = {
    "add": ("quire.admin.bench:add", "Appends, many outstanding."),
    "read": ("quire.admin.bench:read", "Sequential read of a whole ledger, digests verified."),
    "latency": ("quire.admin.bench:latency", "Latency of single appends."),
    "tail": ("quire.admin.bench:tail", "Time from an append to readers that follow."),
    "ledgers": ("quire.admin.bench:ledgers", "Appends to many ledgers in turn."),
    "recover": ("quire.admin.bench:recover", "Opening ledgers whose writer is gone."),
    "rereplicate": ("quire.admin.bench:rereplicate", "Copying what a bookie held to others."),
    "stream": ("quire.admin.bench:stream", "Records through streams."),
}

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        import quire

        click.echo(f"quire {quire.__version__}")
        context.exit()


def _config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is not None:
        context.meta[CONFIG_VARIABLE] = path


@click.group("quire", cls=RootGroup, lazy=_COMMANDS, context_settings=_SETTINGS)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    expose_value=False,
    callback=_config,
    help="The configuration (TOML). [default: QUIRE_CONFIG, else ~/.config/quire/quire.toml, else "
    "/etc/quire/quire.toml]",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Quire: Apache BookKeeper in Python.

    Commands that talk to a cluster take --metadata URI after their name; QUIRE_METADATA gives the
    default.
    """


@click.group(cls=DefaultGroup, lazy=_BOOKIE, default="start")
def bookie() -> None:
    """Run one bookie in the foreground; look after it; take it away.

    `quire bookie --dir DIR ...` is short for `quire bookie start --dir DIR ...`.
    """


@click.group(cls=LazyGroup, lazy=_AUTORECOVERY)
def autorecovery() -> None:
    """Replicate again what is lost, without a command; see what is being done."""


@click.group(cls=LazyGroup, lazy=_CONFIG)
def config() -> None:
    """Show and check the configuration: one TOML file, environment variables, options."""


@click.group(cls=DefaultGroup, lazy=_EXPLAIN, default="cluster", alone=True)
def explain() -> None:
    """Say what is wrong with something, why it is not repaired, and what to type.

    `quire explain` alone is short for `quire explain cluster`.
    """


@click.group(cls=LazyGroup, lazy=_CLUSTER)
def cluster() -> None:
    """Initialise a cluster; look at its bookies; rebalance them."""


@click.group(cls=LazyGroup, lazy=_LEDGER)
def ledger() -> None:
    """Write, read, list, show, delete and recover ledgers."""


@click.group("object", cls=LazyGroup, lazy=_OBJECT)
def objects() -> None:
    """Put, get, list, show and delete objects."""


@click.group(cls=LazyGroup, lazy=_NAMESPACE)
def namespace() -> None:
    """Make, list and show namespaces of streams; set what streams inherit."""


@click.group(cls=LazyGroup, lazy=_STREAM)
def stream() -> None:
    """Write, read, tail, truncate and manage streams."""


@click.group(cls=LazyGroup, lazy=_PIPELINE)
def pipeline() -> None:
    """Move, keep, compare and check data with Spark.

    A command runs in a local session of Spark, or where --master says; started by spark-submit it
    runs in that session.
    """


@click.group(cls=LazyGroup, lazy=_BENCH)
def bench() -> None:
    """Measure a cluster: one line of results a round, on standard output."""


def main() -> None:
    """The program; always ends in SystemExit."""
    cli.main()
