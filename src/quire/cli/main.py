"""The `quire` command and the tables of its subcommands.

A subcommand's module is imported only when the command is called, so that `quire --help` is quick.
"""

from __future__ import annotations

import click

from quire.cli.common import logs
from quire.cli.common.groups import CONFIG_VARIABLE, DefaultGroup, LazyGroup, RootGroup, commands

_COMMANDS = commands(
    """
    local         servers.local:local          Run a complete cluster on this machine, in the \
                                               foreground.
    bookie        main:bookie                  Run a bookie; inspect, repair, drain or remove it.
    autorecovery  main:autorecovery            Run and control the service that restores lost \
                                               replicas.
    http          servers.http:http            Serve the HTTP API and the metrics of a cluster.
    ui            servers.http:ui              Serve the dashboard of a cluster.
    zookeeper     servers.zookeeper:zookeeper  Run a single ZooKeeper server for development and \
                                               tests.
    cluster       main:cluster                 Create a cluster; list, place and rebalance its \
                                               bookies.
    ledger        main:ledger                  Write, read, list, show, delete and recover ledgers.
    object        main:objects                 Put, get, list, show and delete objects.
    dataset       main:dataset                 List, show and delete datasets, and delete \
                                               ledgers of interrupted jobs.
    namespace     main:namespace               Create, list, show and configure namespaces of \
                                               streams.
    stream        main:stream                  Write, read, tail, truncate and manage streams.
    pipeline      main:pipeline                Ingest, offload, compact, replicate and audit data \
                                               with Spark.
    config        main:config                  Show and check the configuration.
    explain       main:explain                 Explain what is wrong with a cluster, a ledger or \
                                               a stream.
    bench         main:bench                   Measure the performance of a cluster.
    shell         shell.shell:shell            Run the commands of Apache's BookieShell.
    completion    main:completion              Print a script that completes commands and options \
                                               in a shell.
    """
)
_BOOKIE = commands(
    """
    start         start:bookie        Run one bookie in the foreground.
    recover       moves:recover       Re-replicate the data of a lost bookie to other bookies.
    decommission  moves:decommission  Empty a bookie, then remove it from the cluster.
    explain       space:explain       Explain what takes space on a bookie's disk.
    scrub         check:scrub         Verify the checksums of everything that a bookie stores.
    disk          disk:disk           Inspect and check a bookie's files; replace or remove a data \
                                      directory.
    cookie        cookie:cookie       Show and repair the cookies, the identity files of a bookie.
    conf          conf:conf           Show how Quire translates each key of Apache's \
                                      bk_server.conf.
    init          init:init           Create a new bookie in an empty directory.
    format        init:erase_bookie   Delete everything that a bookie stores.
    """,
    "bookie",
)
_AUTORECOVERY = commands(
    """
    start    autorecovery:start        Run an auditor candidate and a repair worker in the \
                                       foreground.
    status   autorecovery:status       Show whether autorecovery is enabled, the auditor, and the \
                                       work left.
    list     autorecovery:list_marked  List the ledgers that lack replicas, and why.
    enable   autorecovery:enable       Enable autorecovery in the whole cluster.
    disable  autorecovery:disable      Disable autorecovery in the whole cluster.
    delay    autorecovery:delay        Show or set how long the auditor waits for a lost bookie to \
                                       return.
    trigger  autorecovery:trigger      Make the auditor look for lost bookies now.
    """,
    "servers",
)
_CLUSTER = commands(
    """
    init       metadata:init      Create a new, empty cluster.
    bookies    bookies:bookies    List the registered bookies.
    erase      metadata:erase     Destroy a cluster and all its ledgers.
    locations  bookies:locations  Show and set the rack, region or zone of each bookie.
    rebalance  jobs:rebalance     Move entries from the fullest bookies to the emptiest.
    pause      jobs:pause         Pause a job, or list the paused jobs.
    resume     jobs:resume        Resume a paused job.
    copies     copies:copies      List the continuous copies of streams, and forget one.
    skip-ids   metadata:skip_ids  Reserve all ledger ids up to this one, after a restore.
    gc         gc:gc              Show garbage collection in the cluster, and switch it off and on.
    """,
    "cluster",
)
_CONFIG = commands(
    """
    show   config:show   Show the effective value of every key, and where it comes from.
    check  config:check  Report the problems of a configuration file.
    """
)
_EXPLAIN = commands(
    """
    cluster  explain:explain_cluster     Explain what is wrong with the cluster, and what to do \
                                         about it.
    ledger   explain:explain_one_ledger  Explain where the replicas of a ledger are, and which are \
                                         missing.
    stream   stream.explain:explain_stream  Explain what is wrong with a stream or a topic, and \
                                         what to do about it.
    """
)
_LEDGER = commands(
    """
    write    write:write          Append the lines of standard input to a new ledger.
    read     read:read            Print the entries of a ledger, one per line.
    list     manage:list_ledgers  List the ids of all ledgers.
    show     manage:show          Show the metadata of a ledger.
    delete   manage:delete        Delete ledgers.
    recover  manage:recover       Fence the writer of a ledger and close the ledger.
    """,
    "ledger",
)
_OBJECT = commands(
    """
    put     transfer:put         Store a file as an object.
    get     transfer:get         Print an object, or write it to a file.
    list    manage:list_objects  List the names of objects.
    show    manage:show          Show the size, SHA-256, ledger and metadata of an object.
    delete  manage:delete        Delete an object.
    """,
    "object",
)
_DATASET = commands(
    """
    list    show:list_datasets  List the names of datasets.
    show    show:show           Show the rows, columns, ledgers and transaction keys of a dataset.
    delete  manage:delete       Delete a dataset with its ledgers.
    sweep   manage:sweep        Delete the ledgers that interrupted jobs never published.
    """,
    "dataset",
)
_NAMESPACE = commands(
    """
    create  namespace:create           Create a namespace for streams.
    list    namespace:list_namespaces  List the paths of all namespaces.
    show    namespace:show             Show the settings of a namespace.
    set     namespace:change           Change the settings that streams inherit.
    """,
    "stream",
)
_STREAM = commands(
    """
    create    manage:create      Create a stream.
    list      show:list_streams  List the streams of a namespace.
    show      show:show          Show the settings, segments and subscriptions of a stream.
    set       manage:change      Change a stream's own settings.
    rename    manage:rename      Rename a stream within its namespace.
    delete    manage:delete      Delete a stream with all its ledgers.
    write     write:write        Append the lines of standard input to a stream.
    read      read:read          Print the records of a stream, from any position.
    tail      read:tail          Print the last records of a stream; with -f, follow it.
    truncate  manage:truncate    Drop the oldest records of a stream.
    retain    manage:retain      Delete the records that the retention settings no longer keep.
    end       manage:end         End a stream permanently, so that nothing more can be appended.
    audit     show:audit         Find the ledgers of streams that no stream refers to any more.
    """,
    "stream",
)
_PIPELINE = commands(
    """
    ingest     ingest:ingest        Append the rows of files and tables to streams.
    offload    archive:offload      Copy closed segments of streams to Parquet files.
    history    archive:history      Inspect and read a stream across its offloaded and live parts.
    compact    compact:compact      Keep the latest record of each key of a stream.
    replicate  replicate:replicate  Copy streams to another cluster, once or continuously.
    audit      repair:audit         Read every replica of every entry, and report what is wrong.
    recover    repair:recover       Re-replicate the data of a lost bookie to other bookies.
    """,
    "pipeline",
)
_BENCH = commands(
    """
    add          bench:add          Measure append throughput with many appends outstanding.
    read         bench:read         Measure sequential reads of a whole ledger.
    latency      bench:latency      Measure the latency of single appends.
    tail         bench:tail         Measure the time from an append to its delivery at readers.
    ledgers      bench:ledgers      Measure appends that are spread over many ledgers.
    recover      bench:recover      Measure recovery of ledgers whose writer is gone.
    rereplicate  bench:rereplicate  Measure how fast the data of a bookie is re-replicated.
    stream       bench:stream       Measure writing, reading or following streams.
    """,
    "bench",
)

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_QUIRE_COMPLETE"
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
    help="The configuration file (TOML). [default: QUIRE_CONFIG, else ~/.config/quire/quire.toml, "
    "else /etc/quire/quire.toml]",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version and exit.",
)
@logs.log_options
def cli() -> None:
    """Quire: Apache BookKeeper in Python.

    Commands that talk to a cluster take --metadata URI, which follows the command's name. The
    environment variable QUIRE_METADATA sets its default. To try Quire, run `quire local`.
    """
    from quire.cli.common.configuration import configured_log

    logs.configure(*configured_log())


@click.group(cls=DefaultGroup, lazy=_BOOKIE, default="start")
def bookie() -> None:
    """Run a bookie; inspect, repair, drain or remove it.

    A bookie is a server that stores the entries of ledgers. `quire bookie --dir DIR ...` is short
    for `quire bookie start --dir DIR ...`.
    """


@click.group(cls=LazyGroup, lazy=_AUTORECOVERY)
def autorecovery() -> None:
    """Run and control the service that restores lost replicas.

    The auditor, elected among all processes that run autorecovery, looks for lost bookies and
    missing replicas and marks the affected ledgers. Workers in the same processes copy the replicas
    to other bookies.
    """


@click.group(cls=LazyGroup, lazy=_CONFIG)
def config() -> None:
    """Show and check the configuration.

    Options override environment variables, which override the one TOML file.
    """


@click.group(cls=DefaultGroup, lazy=_EXPLAIN, default="cluster", alone=True)
def explain() -> None:
    """Explain what is wrong with a cluster, a ledger or a stream, and what to do about it.

    `quire explain` alone is short for `quire explain cluster`. To find out what takes space on a
    bookie's disk, use `quire bookie explain space`.
    """


@click.group(cls=LazyGroup, lazy=_CLUSTER)
def cluster() -> None:
    """Create a cluster; list, place and rebalance its bookies."""


@click.group(cls=LazyGroup, lazy=_LEDGER)
def ledger() -> None:
    """Write, read, list, show, delete and recover ledgers.

    A ledger is an append-only sequence of entries with one writer. It is replicated to several
    bookies, and read-only once it is closed.
    """


@click.group("object", cls=LazyGroup, lazy=_OBJECT)
def objects() -> None:
    """Put, get, list, show and delete objects.

    An object is an immutable file under a name such as jobs/42/result, stored in one ledger.
    """


@click.group(cls=LazyGroup, lazy=_DATASET)
def dataset() -> None:
    """List, show and delete datasets, and delete the ledgers of interrupted jobs.

    A dataset is a named set of ledgers that is published in one step, such as a table that Spark
    has written.
    """


@click.group(cls=LazyGroup, lazy=_NAMESPACE)
def namespace() -> None:
    """Create, list, show and configure namespaces of streams.

    Streams inherit the settings of their namespace. The default namespace is /streams.
    """


@click.group(cls=LazyGroup, lazy=_STREAM)
def stream() -> None:
    """Write, read, tail, truncate and manage streams.

    A stream is an unbounded log of records under a name, stored in a sequence of ledgers that are
    called its segments.
    """


@click.group(cls=LazyGroup, lazy=_PIPELINE)
def pipeline() -> None:
    """Ingest, offload, compact, replicate and audit data with Spark.

    A command starts a Spark session, on this machine or on the cluster that --master names. If it
    is started by spark-submit, it runs in that session.
    """


@click.group(cls=LazyGroup, lazy=_BENCH)
def bench() -> None:
    """Measure the performance of a cluster.

    Each command prints one line of results per round on standard output.
    """


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes the commands and options of quire in a shell.

    For bash, put eval "$(quire completion bash)" into ~/.bashrc. For zsh, put eval "$(quire
    completion zsh)" into ~/.zshrc. For fish, run: quire completion fish >
    ~/.config/fish/completions/quire.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "quire", COMPLETE_VARIABLE).source())


def main() -> None:
    """Run the program. It always ends in SystemExit."""
    cli.main()
