"""The command `quire`, and the tables of its commands. A command is imported when it is called.

This module imports little, so that `quire --help` is quick.
"""

from __future__ import annotations

import click

from quire.cli.common.groups import CONFIG_VARIABLE, DefaultGroup, LazyGroup, RootGroup, commands

_COMMANDS = commands(
    """
    local         servers.local:local          Run a whole cluster on this machine, in the \
                                               foreground.
    bookie        main:bookie                  Run one bookie in the foreground; look after it; \
                                               take it away.
    autorecovery  main:autorecovery            Replicate again what is lost, without a command.
    http          servers.http:http            Serve the HTTP API and the metrics of a cluster.
    ui            servers.http:ui              Serve the dashboard of a cluster.
    zookeeper     servers.zookeeper:zookeeper  Run a single ZooKeeper server in the foreground.
    cluster       main:cluster                 Initialise a cluster; look at its bookies; rebalance.
    ledger        main:ledger                  Write, read, list, show, delete and recover ledgers.
    object        main:objects                 Put, get, list, show and delete objects.
    namespace     main:namespace               Make, list and show namespaces of streams; set \
                                               what streams inherit.
    stream        main:stream                  Write, read, tail, truncate and manage streams.
    pipeline      main:pipeline                Move, keep, compare and check data with Spark.
    config        main:config                  Show and check the configuration.
    explain       main:explain                 Say what is wrong with something, and why.
    bench         main:bench                   Measure a cluster.
    shell         shell.shell:shell            Take the verbs and flags of Apache's BookieShell.
    completion    main:completion              Print what makes a shell complete commands and \
                                               options.
    """
)
_BOOKIE = commands(
    """
    start         start:bookie        Run one bookie in the foreground.
    recover       moves:recover       Replicate again what a lost bookie held.
    decommission  moves:decommission  Take a bookie away for good, with nothing lost.
    explain       space:explain       Say what a bookie keeps on its disk, and why.
    scrub         check:scrub         Read all that a bookie has stored, and check it.
    disk          disk:disk           Look at the files of a bookie; check them; make their index \
                                      again.
    cookie        cookie:cookie       Show and mend what ties directories to a bookie.
    conf          conf:conf           Print the meaning of each key of Apache's bk_server.conf.
    init          init:init           Make a new bookie in an empty directory.
    format        init:erase_bookie   Destroy what a bookie has stored.
    """,
    "bookie",
)
_AUTORECOVERY = commands(
    """
    start    autorecovery:start        Stand for auditor, and repair ledgers, in the foreground.
    status   autorecovery:status       Who is the auditor, and how much there is to do.
    list     autorecovery:list_marked  List the ledgers that lack replicas, and why.
    enable   autorecovery:enable       Switch it on again, for the whole cluster.
    disable  autorecovery:disable      Switch it off, for the whole cluster.
    delay    autorecovery:delay        Show or set how long a lost bookie is waited for.
    trigger  autorecovery:trigger      Look for lost bookies now.
    """,
    "servers",
)
_CLUSTER = commands(
    """
    init       metadata:init      Make a new, empty cluster.
    bookies    bookies:bookies    List the registered bookies.
    erase      metadata:erase     Destroy a cluster and all its ledgers.
    locations  bookies:locations  Say where bookies stand: racks, regions, zones.
    rebalance  jobs:rebalance     Move entries from the fullest bookies to the emptiest.
    pause      jobs:pause         Pause a job, in whichever process it runs; list what is paused.
    resume     jobs:resume        Let a paused job go on.
    skip-ids   metadata:skip_ids  After a restore, give no new ledger an id up to this one.
    gc         gc:gc              Show garbage collection, and switch it off and on.
    """,
    "cluster",
)
_CONFIG = commands(
    """
    show   config:show   Show effective values, and their origins.
    check  config:check  Say what is wrong with a configuration file.
    """
)
_EXPLAIN = commands(
    """
    cluster  explain:explain_cluster     What is wrong with the cluster, what is being done about \
                                         it, and what to type.
    ledger   explain:explain_one_ledger  Where the replicas of a ledger are, what is missing, and \
                                         why.
    """
)
_LEDGER = commands(
    """
    write    write:write          Append the lines of standard input to a new ledger.
    read     read:read            Print the entries of a ledger, one a line.
    list     manage:list_ledgers  List the ids of all ledgers.
    show     manage:show          Show what the metadata says of a ledger.
    delete   manage:delete        Delete a ledger.
    recover  manage:recover       Fence the writer of a ledger and close the ledger.
    """,
    "ledger",
)
_OBJECT = commands(
    """
    put     transfer:put         Store a file as an object.
    get     transfer:get         Print an object, or write it to a file.
    list    manage:list_objects  List the names of objects.
    show    manage:show          Show what is known of an object.
    delete  manage:delete        Delete an object.
    """,
    "object",
)
_NAMESPACE = commands(
    """
    create  namespace:create           Make a namespace for streams.
    list    namespace:list_namespaces  List the paths of all namespaces.
    show    namespace:show             Show the settings of a namespace.
    set     namespace:change           Change settings that streams inherit.
    """,
    "stream",
)
_STREAM = commands(
    """
    create    manage:create      Make a stream.
    list      show:list_streams  List the streams of a namespace.
    show      show:show          Show settings, segments and subscriptions.
    set       manage:change      Change a stream's own settings.
    rename    manage:rename      Give a stream another name.
    delete    manage:delete      Delete a stream with all its ledgers.
    write     write:write        Append the lines of standard input.
    read      read:read          Print records, from any place on.
    tail      read:tail          Print the last records, and go on with -f.
    truncate  manage:truncate    Give up the beginning of a stream.
    retain    manage:retain      Delete what is not to be kept any longer.
    end       manage:end         End a stream for good.
    audit     show:audit         Find ledgers that no stream names any more.
    """,
    "stream",
)
_PIPELINE = commands(
    """
    ingest     ingest:ingest        Bring files and tables into streams.
    offload    archive:offload      Copy closed segments to Parquet, and free the bookies of them.
    history    archive:history      Read what was offloaded and what was not as one.
    compact    compact:compact      Keep the latest value of each key of a stream.
    replicate  replicate:replicate  Copy streams to another cluster, once or continuously.
    audit      repair:audit         Read every replica of every entry, and tell what is wrong.
    recover    repair:recover       Replicate again what a lost bookie held.
    """,
    "pipeline",
)
_BENCH = commands(
    """
    add          bench:add          Appends, many outstanding.
    read         bench:read         Sequential read of a whole ledger, digests verified.
    latency      bench:latency      Latency of single appends.
    tail         bench:tail         Time from an append to readers that follow.
    ledgers      bench:ledgers      Appends to many ledgers in turn.
    recover      bench:recover      Opening ledgers whose writer is gone.
    rereplicate  bench:rereplicate  Copying what a bookie held to others.
    stream       bench:stream       Records through streams.
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


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete the commands and options of quire.

    bash: eval "$(quire completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc. fish: quire
    completion fish > ~/.config/fish/completions/quire.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "quire", COMPLETE_VARIABLE).source())


def main() -> None:
    """The program; always ends in SystemExit."""
    cli.main()
