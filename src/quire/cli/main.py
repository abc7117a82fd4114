"""The command `quire`. Each command has a module of its own, imported when it is called."""

from __future__ import annotations

import click

from quire.cli.common.groups import CONFIG_VARIABLE, DefaultGroup, LazyGroup, RootGroup

_COMMANDS = {
    "local": (
        "quire.cli.local:local",
        "Run a whole cluster on this machine, in the foreground.",
    ),
    "bookie": (
        "quire.cli.main:bookie",
        "Run one bookie in the foreground; look after it; take it away.",
    ),
    "autorecovery": (
        "quire.cli.main:autorecovery",
        "Replicate again what is lost, without a command.",
    ),
    "http": (
        "quire.cli.http:http",
        "Serve the HTTP API and the metrics of a cluster.",
    ),
    "ui": (
        "quire.cli.ui:ui",
        "Serve the dashboard of a cluster.",
    ),
    "zookeeper": (
        "quire.cli.zookeeper:zookeeper",
        "Run a single ZooKeeper server in the foreground.",
    ),
    "cluster": (
        "quire.cli.main:cluster",
        "Initialise a cluster; look at its bookies; rebalance.",
    ),
    "ledger": ("quire.cli.main:ledger", "Write, read, list, show, delete and recover ledgers."),
    "object": ("quire.cli.main:objects", "Put, get, list, show and delete objects."),
    "namespace": (
        "quire.cli.main:namespace",
        "Make, list and show namespaces of streams; set what streams inherit.",
    ),
    "stream": ("quire.cli.main:stream", "Write, read, tail, truncate and manage streams."),
    "pipeline": ("quire.cli.main:pipeline", "Move, keep, compare and check data with Spark."),
    "config": ("quire.cli.main:config", "Show and check the configuration."),
    "explain": ("quire.cli.main:explain", "Say what is wrong with something, and why."),
    "bench": ("quire.cli.main:bench", "Measure a cluster."),
    "shell": ("quire.cli.shell.shell:shell", "Take the verbs and flags of Apache's BookieShell."),
    "completion": (
        "quire.cli.completion:completion",
        "Print what makes a shell complete commands and options.",
    ),
}

_BOOKIE = {
    "start": ("quire.cli.bookie.start:bookie", "Run one bookie in the foreground."),
    "recover": (
        "quire.cli.bookie.recover:recover",
        "Replicate again what a lost bookie held.",
    ),
    "decommission": (
        "quire.cli.bookie.decommission:decommission",
        "Take a bookie away for good, with nothing lost.",
    ),
    "explain": (
        "quire.cli.bookie.explain:explain",
        "Say what a bookie keeps on its disk, and why.",
    ),
    "scrub": (
        "quire.cli.bookie.scrub:scrub",
        "Read all that a bookie has stored, and check it.",
    ),
    "disk": (
        "quire.cli.bookie.disk:disk",
        "Look at the files of a bookie; check them; make their index again.",
    ),
    "cookie": (
        "quire.cli.bookie.cookie:cookie",
        "Show and mend what ties directories to a bookie.",
    ),
    "conf": (
        "quire.cli.bookie.conf:conf",
        "Say what becomes of each key of Apache's bk_server.conf.",
    ),
    "init": ("quire.cli.bookie.init:init", "Make a new bookie in an empty directory."),
    "format": ("quire.cli.bookie.format:erase_bookie", "Destroy what a bookie has stored."),
}

_AUTORECOVERY = {
    "start": (
        "quire.cli.autorecovery:start",
        "Stand for auditor, and repair ledgers, in the foreground.",
    ),
    "status": (
        "quire.cli.autorecovery:status",
        "Who is the auditor, and how much there is to do.",
    ),
    "list": (
        "quire.cli.autorecovery:list_marked",
        "List the ledgers that lack replicas, and why.",
    ),
    "enable": ("quire.cli.autorecovery:enable", "Switch it on again, for the whole cluster."),
    "disable": ("quire.cli.autorecovery:disable", "Switch it off, for the whole cluster."),
    "delay": (
        "quire.cli.autorecovery:delay",
        "Show or set how long a lost bookie is waited for.",
    ),
    "trigger": ("quire.cli.autorecovery:trigger", "Look for lost bookies now."),
}

_CLUSTER = {
    "init": ("quire.cli.cluster.init:init", "Make a new, empty cluster."),
    "bookies": ("quire.cli.cluster.bookies:bookies", "List the registered bookies."),
    "erase": ("quire.cli.cluster.erase:erase", "Destroy a cluster and all its ledgers."),
    "locations": (
        "quire.cli.cluster.locations:locations",
        "Say where bookies stand: racks, regions, zones.",
    ),
    "rebalance": (
        "quire.cli.cluster.rebalance:rebalance",
        "Move entries from the fullest bookies to the emptiest.",
    ),
    "pause": (
        "quire.cli.cluster.pause:pause",
        "Pause a job, in whichever process it runs; list what is paused.",
    ),
    "resume": ("quire.cli.cluster.pause:resume", "Let a paused job go on."),
    "skip-ids": (
        "quire.cli.cluster.skip_ids:skip_ids",
        "After a restore, give no new ledger an id up to this one.",
    ),
    "gc": ("quire.cli.cluster.gc:gc", "Show garbage collection, and switch it off and on."),
}

_CONFIG = {
    "show": ("quire.cli.config.show:show", "Show effective values, and their origins."),
    "check": ("quire.cli.config.check:check", "Say what is wrong with a configuration file."),
}

_EXPLAIN = {
    "cluster": (
        "quire.cli.explain.cluster:explain",
        "What is wrong with the cluster, what is being done about it, and what to type.",
    ),
    "ledger": (
        "quire.cli.explain.ledger:explain",
        "Where the replicas of a ledger are, what is missing, and why.",
    ),
}

_LEDGER = {
    "write": (
        "quire.cli.ledger.write:write",
        "Append the lines of standard input to a new ledger.",
    ),
    "read": ("quire.cli.ledger.read:read", "Print the entries of a ledger, one a line."),
    "list": ("quire.cli.ledger.list:list_ledgers", "List the ids of all ledgers."),
    "show": ("quire.cli.ledger.show:show", "Show what the metadata says of a ledger."),
    "delete": ("quire.cli.ledger.delete:delete", "Delete a ledger."),
    "recover": (
        "quire.cli.ledger.recover:recover",
        "Fence the writer of a ledger and close the ledger.",
    ),
}

_OBJECT = {
    "put": ("quire.cli.object.put:put", "Store a file as an object."),
    "get": ("quire.cli.object.get:get", "Print an object, or write it to a file."),
    "list": ("quire.cli.object.list:list_objects", "List the names of objects."),
    "show": ("quire.cli.object.show:show", "Show what is known of an object."),
    "delete": ("quire.cli.object.delete:delete", "Delete an object."),
}

_NAMESPACE = {
    "create": ("quire.cli.namespace.create:create", "Make a namespace for streams."),
    "list": ("quire.cli.namespace.list:list_namespaces", "List the paths of all namespaces."),
    "show": ("quire.cli.namespace.show:show", "Show the settings of a namespace."),
    "set": ("quire.cli.namespace.show:change", "Change settings that streams inherit."),
}

_STREAM = {
    "create": ("quire.cli.stream.create:create", "Make a stream."),
    "list": ("quire.cli.stream.list:list_streams", "List the streams of a namespace."),
    "show": ("quire.cli.stream.show:show", "Show settings, segments and subscriptions."),
    "set": ("quire.cli.stream.create:change", "Change a stream's own settings."),
    "rename": ("quire.cli.stream.create:rename", "Give a stream another name."),
    "delete": ("quire.cli.stream.delete:delete", "Delete a stream with all its ledgers."),
    "write": ("quire.cli.stream.write:write", "Append the lines of standard input."),
    "read": ("quire.cli.stream.read:read", "Print records, from any place on."),
    "tail": ("quire.cli.stream.read:tail", "Print the last records, and go on with -f."),
    "truncate": ("quire.cli.stream.trim:truncate", "Give up the beginning of a stream."),
    "retain": ("quire.cli.stream.trim:retain", "Delete what is not to be kept any longer."),
    "end": ("quire.cli.stream.delete:end", "End a stream for good."),
    "audit": ("quire.cli.stream.audit:audit", "Find ledgers that no stream names any more."),
}

_PIPELINE = {
    "ingest": ("quire.cli.pipeline.ingest:ingest", "Bring files and tables into streams."),
    "offload": (
        "quire.cli.pipeline.offload:offload",
        "Copy closed segments to Parquet, and free the bookies of them.",
    ),
    "history": (
        "quire.cli.pipeline.history:history",
        "Read what was offloaded and what was not as one.",
    ),
    "compact": (
        "quire.cli.pipeline.compact:compact",
        "Keep the latest value of each key of a stream.",
    ),
    "replicate": (
        "quire.cli.pipeline.replicate:replicate",
        "Copy streams to another cluster, once or continuously.",
    ),
    "audit": (
        "quire.cli.pipeline.audit:audit",
        "Read every replica of every entry, and tell what is wrong.",
    ),
    "recover": (
        "quire.cli.pipeline.recover:recover",
        "Replicate again what a lost bookie held.",
    ),
}

_BENCH = {
    "add": ("quire.cli.bench.bench:add", "Appends, many outstanding."),
    "read": ("quire.cli.bench.bench:read", "Sequential read of a whole ledger, digests verified."),
    "latency": ("quire.cli.bench.bench:latency", "Latency of single appends."),
    "tail": ("quire.cli.bench.bench:tail", "Time from an append to readers that follow."),
    "ledgers": ("quire.cli.bench.bench:ledgers", "Appends to many ledgers in turn."),
    "recover": ("quire.cli.bench.bench:recover", "Opening ledgers whose writer is gone."),
    "rereplicate": ("quire.cli.bench.bench:rereplicate", "Copying what a bookie held to others."),
    "stream": ("quire.cli.bench.bench:stream", "Records through streams."),
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
