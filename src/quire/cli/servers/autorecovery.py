"""The commands `quire autorecovery ...`, which run and control autorecovery."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.names.process_name import process_name
from quire._runtime.tasks import TaskGroup
from quire._runtime.units import counted, verb
from quire.cli.common.configuration import assignments_layer, configured
from quire.cli.common.groups import say, warn
from quire.cli.common.logs import log_options, server_log
from quire.cli.common.options import (
    Command,
    Duration,
    asynchronous,
    check_bookie,
    checked,
    flag,
    json_option,
    metadata_option,
    placement_option,
    run_async,
)
from quire.cli.common.output import print_json, time_text
from quire.cli.common.tls import client_config, tls_options
from quire.cli.servers.http import (
    fill_options,
    given_options,
    http_options,
    settings_of,
    stop_event,
)

if TYPE_CHECKING:
    import quire
    from quire.configuration.layers import Layer
    from quire.http.server.security import HttpOptions
    from quire.replication.autorecovery.settings import AutorecoverySettings, AutorecoveryStats
    from quire.replication.explain.status import WhyNot

_LAYER = "quire.autorecovery.layer"
"""The key in the `meta` of a command's context for the layer of its settings of autorecovery."""


def _settings(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> AutorecoverySettings:
    """Return the configured settings of autorecovery with NAME=VALUE applied."""
    layer = assignments_layer(parameter.opts[0], "autorecovery", values)
    context.meta[_LAYER] = layer
    return configured(layer).autorecovery()


def settings_layers() -> list[Layer]:
    """Return the layer of the option that sets keys of `[autorecovery]`, if it was given."""
    layer = click.get_current_context().meta.get(_LAYER)
    return [] if layer is None else [layer]


def settings_option(flag: str, name: str = "autorecovery_settings") -> Callable[[Command], Command]:
    """Return the option that sets keys of the [autorecovery] table."""
    return click.option(
        flag,
        name,
        metavar="NAME=VALUE",
        multiple=True,
        callback=_settings,
        help="Set a key of the [autorecovery] table of the configuration, for example "
        "open_grace_s=60 or bytes_per_s=64m. May be repeated.",
    )


@click.command()
@metadata_option
@tls_options
@placement_option
@flag("--auditor-only", "Only run for auditor and look for missing replicas; repair nothing.")
@flag("--worker-only", "Only repair ledgers that the auditor of another process marked.")
@click.option(
    "--name",
    metavar="ID",
    callback=checked(check_bookie),
    help="The name of this process in locks and in the election of the auditor. [default: "
    "HOST.PID]",
)
@settings_option("--set", "settings")
@http_options("--http")
@log_options
def start(
    uri: str,
    auditor_only: bool,
    worker_only: bool,
    name: str | None,
    settings: AutorecoverySettings,
) -> None:
    """Run an auditor candidate and a repair worker in the foreground.

    All processes that run autorecovery elect one auditor, which looks for lost bookies and missing
    replicas, and marks the affected ledgers. Every worker repairs marked ledgers. The command
    prints its name on standard output once it runs, and one line of JSON per event on standard
    error. SIGTERM and Ctrl-C stop it cleanly, with exit status 0.
    """
    if auditor_only and worker_only:
        raise click.UsageError(
            "--auditor-only and --worker-only exclude each other: give one of them, or neither "
            "to run both parts"
        )

    fill_options(configured().http_side("autorecovery").options())
    name, http = name or process_name(), given_options()
    parts = {"auditor": not worker_only, "worker": not auditor_only}
    try:
        run_async(_start(uri, name, settings, http, **parts))
    except KeyboardInterrupt:
        pass


async def _start(
    uri: str,
    name: str,
    settings: AutorecoverySettings,
    http: HttpOptions | None,
    *,
    auditor: bool,
    worker: bool,
) -> None:
    from quire.metadata.outages import OutageNotes
    from quire.replication.autorecovery.autorecovery import Autorecovery, autorecovery_client

    log = server_log()
    stopping = stop_event()
    opened = autorecovery_client(uri, client_config())
    async with opened as client, AsyncExitStack() as around:
        autorecovery = Autorecovery(
            client, name, settings=settings, auditor=auditor, worker=worker, log=log
        )
        notes = OutageNotes(client.metadata, name, client.clock.now_ms, random.Random())
        notes.start()
        around.push_async_callback(notes.close)
        if http is not None:
            import quire
            from quire.client.client import metrics_of
            from quire.http.server.run import serve_cluster

            config, stats = client_config(), autorecovery.stats
            shown = settings_of(uri, "autorecovery", layers=settings_layers())
            served = serve_cluster(http, uri, config, quire.__version__, log,
                                   owner=name, autorecovery=stats,
                                   settings=shown,
                                   instance_id=client.metadata.instance_id,
                                   of_client=lambda: metrics_of(client))  # fmt: skip
            await around.enter_async_context(served)
        async with TaskGroup() as group:
            running = group.create_task(autorecovery.run())
            click.echo(name)
            await stopping.wait()
            running.cancel()
        log("stopped", **asdict(autorecovery.stats))


def beside(
    uri: str, settings: AutorecoverySettings, log: Callable[..., None], stats: AutorecoveryStats
) -> Callable[[str], Coroutine[Any, Any, None]]:
    """Return a function that runs autorecovery in a bookie's process, under the bookie's id.

    All its runs count in `stats`, including those after a restart. Raises `click.UsageError` if the
    options of the client are not valid.
    """
    config = client_config()

    async def run(bookie_id: str) -> None:
        from quire.replication.autorecovery.autorecovery import Autorecovery, autorecovery_client

        async with autorecovery_client(uri, config) as client:
            await Autorecovery(client, bookie_id, settings=settings, log=log, stats=stats).run()

    return run


@click.command()
@metadata_option
@json_option("Print one JSON object.")
@asynchronous
async def status(uri: str, as_json: bool) -> None:
    """Show whether autorecovery is enabled, the auditor, and the work left.

    `quire autorecovery list` shows why each marked ledger is not repaired yet.
    """
    from quire.replication.explain.status import overview, switched_off_text

    async with _store(uri) as client:
        found = await overview(client.metadata)
    if as_json:
        print_json(asdict(found))
        return
    auditor = found.auditor or "none; start one with `quire autorecovery start`"
    if found.auditor_age_s is not None:
        auditor += f", a candidate for {found.auditor_age_s:.0f} s"
    click.echo(
        "autorecovery is switched on"
        if found.enabled
        else f"autorecovery is switched off{switched_off_text(found.switched_off)}; "
        "`quire autorecovery enable` switches it on"
    )
    click.echo(f"auditor: {auditor}")
    click.echo(f"delay before a lost bookie is repaired: {found.delay_s} s")
    click.echo(
        f"ledgers: {found.marked} are marked as lacking replicas, {found.locked} are being "
        f"repaired, the last attempt failed for {found.failing}"
    )
    for one in found.repaired:
        click.echo(f"repaired in the last day: {one.sentence()}")
    if found.unexamined:
        click.echo(f"unexamined: {found.unexamined}")
    if found.unreadable is not None:
        click.echo(
            f"skipped, because its metadata or mark cannot be read: {found.unreadable.sentence()}, "
            f"as of {time_text(found.unreadable.at_ms)}"
        )
    for damaged in found.damaged:
        click.echo(f"damaged: {damaged}")
    if (check := found.placement) is not None:
        click.echo(
            f"placement: {check.misplaced:,} of {counted(check.ledgers, 'ledger')} "
            f"{verb('violate', check.misplaced or check.ledgers)} the placement "
            f"policy, as of {time_text(check.at_ms)}"
        )


def _store(uri: str) -> Any:
    """Return a client that is used only for the metadata store."""
    import quire

    return quire.connect(uri)


@click.command("list")
@metadata_option
@json_option("Print one JSON object per ledger.")
@asynchronous
async def list_marked(uri: str, as_json: bool) -> None:
    """List the ledgers that lack replicas, and why.

    For each ledger, the command shows which bookies lack replicas, when its mark was last changed,
    which process repairs it, and why it is not repaired yet. The mark changes whenever a bookie is
    added to it, so the ledger may lack replicas for longer. A warning says if nothing marks ledgers
    now.
    """
    from quire.replication.autorecovery.election import auditor_of
    from quire.replication.explain.status import marked_ledgers, unexamined
    from quire.replication.marks.marks import ReplicationMarks

    client: quire.Client
    malformed: dict[str, str] = {}
    async with _store(uri) as client:
        auditor = await auditor_of(client.metadata)
        enabled = await ReplicationMarks(client.metadata).enabled()
        async for one in marked_ledgers(client.metadata, malformed=malformed):
            if as_json:
                print_json({**asdict(one), "why": one.sentence()})
            else:
                click.echo(_line(one))
    if why := unexamined(enabled=enabled, auditor=None if auditor is None else auditor.owner):
        warn(why)
    for path, why in malformed.items():
        say(f"{path} is not a valid mark of an under-replicated ledger, and was skipped: {why}")


def _line(one: WhyNot) -> str:
    changed = time_text(one.marked_ms if one.marked_ms is not None else -1) or "at an unknown time"
    lacking = ", ".join(one.replicas) or "?"
    return f"{one.ledger} lacks {lacking} (mark last changed {changed}): {one.sentence()}"


@click.command()
@metadata_option
@asynchronous
async def enable(uri: str) -> None:
    """Enable autorecovery in the whole cluster."""
    changed = await _switch(uri, on=True)
    say("autorecovery is switched on" if changed else "autorecovery was switched on already")


@click.command()
@metadata_option
@asynchronous
async def disable(uri: str) -> None:
    """Disable autorecovery in the whole cluster, including that of Apache's bookies.

    Repairs that are under way are completed, and no new ones are started, until `quire autorecovery
    enable`.
    """
    changed = await _switch(uri, on=False)
    say("autorecovery is switched off" if changed else "autorecovery was switched off already")


async def _switch(uri: str, *, on: bool) -> bool:
    from quire.codec.metadata.underreplication import SwitchedOff
    from quire.replication.marks.marks import ReplicationMarks

    async with _store(uri) as client:
        marks = ReplicationMarks(client.metadata)
        switched = SwitchedOff(process_name(), client.clock.now_ms())
        return await (marks.enable() if on else marks.disable(switched))


@click.command()
@metadata_option
@click.argument("seconds", type=Duration(0, 2**31 - 1, whole=True), required=False)
@json_option("Print one JSON object: delay_s.")
@asynchronous
async def delay(uri: str, seconds: int | None, as_json: bool) -> None:
    """Show or set how long the auditor waits for a lost bookie to return, in seconds.

    The delay avoids copying when a bookie is only restarted. It applies to a single lost bookie: if
    several are lost at the same time, their ledgers are repaired at once. Setting the same value
    again wakes the auditor, as `quire autorecovery trigger` does.
    """
    from quire.replication.marks.marks import ReplicationMarks

    async with _store(uri) as client:
        marks = ReplicationMarks(client.metadata)
        if seconds is not None:
            await marks.set_delay(seconds)
        found = await marks.delay_s()
    if as_json:
        print_json({"delay_s": found})
    elif seconds is None:
        click.echo(str(found))


@click.command()
@metadata_option
@asynchronous
async def trigger(uri: str) -> None:
    """Make the auditor look for lost bookies now, whatever delay is set for their return.

    Standard error says which process is the auditor. A warning says if there is none, or if
    autorecovery is switched off. Then nothing is copied yet.
    """
    from quire.replication.autorecovery.election import auditor_of
    from quire.replication.marks.marks import ReplicationMarks

    async with _store(uri) as client:
        marks = ReplicationMarks(client.metadata)
        await marks.trigger()
        auditor, enabled = await auditor_of(client.metadata), await marks.enabled()
    if not enabled:
        warn("autorecovery is switched off, so nothing is copied: run `quire autorecovery enable`")
    if auditor is None:
        warn(
            "no autorecovery process runs as auditor, so nothing is copied: run `quire "
            "autorecovery start`"
        )
    elif enabled:
        say(f"the auditor {auditor.owner} looks for lost bookies now")
