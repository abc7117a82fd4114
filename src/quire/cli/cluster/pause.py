"""`quire cluster pause` and `resume`: jobs that copy replicas, in whichever process."""

from __future__ import annotations

import click

from quire.cli.common.groups import say
from quire.cli.common.options import check_bookie, json_option, metadata_option, run_async
from quire.cli.common.output import print_json, time_text
from quire.replication.marks.pauses import CLUSTER, KINDS, Pause, Pauses


def _target(kind: str, bookie: str | None) -> str:
    if (kind == "rebalance") == (bookie is not None):
        what = (
            "is about the whole cluster" if bookie is not None else "needs the BOOKIE it is about"
        )
        raise click.UsageError(f"{kind} {what}")
    if bookie is not None:
        check_bookie(bookie)
    return CLUSTER if bookie is None else bookie


@click.command()
@metadata_option
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.argument("bookie", required=False)
@json_option("One JSON object a line, of what is paused.")
def pause(uri: str, kind: str | None, bookie: str | None, as_json: bool) -> None:
    """Pause a job: recover or decommission BOOKIE, or rebalance. Without arguments: list what is.

    The job sees that within seconds, wherever it runs: it ends the ledgers that it is at,
    begins no other, and waits, also when it is started again, until `quire cluster resume`.
    Autorecovery is paused with `quire autorecovery disable`.
    """
    target = _target(kind, bookie) if kind is not None else None
    found, changed = run_async(_pause(uri, kind, target))
    if changed is False:
        say(f"{kind} {target} was paused already")
    if as_json:
        for one in found:
            print_json(one.as_json())
    elif kind is None:
        for one in found:
            click.echo(f"{one.kind} {one.target}, by {one.by or 'nobody known'}, since "
                       f"{time_text(one.at_ms) or 'some time'}")  # fmt: skip


async def _pause(uri: str, kind: str | None, target: str | None) -> tuple[list[Pause], bool | None]:
    import quire
    from quire.cli.autorecovery import default_name
    from quire.replication.moves.recover import check_known

    async with quire.connect(uri) as client:
        pauses, changed = Pauses(client.metadata), None
        if kind is not None and target is not None:
            if kind != "rebalance":
                await check_known(client, target)
            one = Pause(kind, target, default_name(), client.clock.now_ms())
            changed = await pauses.pause(one)
        return await pauses.all(), changed


@click.command()
@metadata_option
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("bookie", required=False)
def resume(uri: str, kind: str, bookie: str | None) -> None:
    """Let a paused job go on, within seconds: recover or decommission BOOKIE, or rebalance."""
    target = _target(kind, bookie)
    if not run_async(_resume(uri, kind, target)):
        say(f"{kind} {target} was not paused")


async def _resume(uri: str, kind: str, target: str) -> bool:
    import quire

    async with quire.connect(uri) as client:
        return await Pauses(client.metadata).resume(kind, target)
