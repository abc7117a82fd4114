"""The commands `quire cluster init`, `erase` and `skip-ids`, which change the metadata store."""

from __future__ import annotations

import re
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from quire._runtime.units import some_of
from quire.cli.bookie.identity import opened_metadata
from quire.cli.cluster.destroyed import destroyed
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import (
    asked,
    asynchronous,
    dry_run_option,
    flag,
    json_option,
    ledger_manager_option,
    metadata_option,
    yes_option,
)
from quire.cli.common.output import print_json
from quire.errors import NoSuchKeyError, UsageError

if TYPE_CHECKING:
    from quire.metadata.interface import MetadataStore

SURE_IDS = 10**12
"""The largest ledger id that `skip-ids` takes without --force. No cluster has had as many ledgers,
so a larger id may be mistyped, and with the largest ones no ledger could ever be created again."""
_LAST = ("LAYOUT", "INSTANCEID", "available")
"""The nodes that make a cluster recognisable. They are deleted last, so that an interrupted
`quire cluster erase` can be run again."""
_OWN = re.compile(
    r"LAYOUT|INSTANCEID|available|cookies|idgen|idgen-long|underreplication|ID-\d+|L\d+", re.ASCII
)
"""The names of nodes below the root of a cluster that belong to the cluster itself.

The directories of its ledgers are not among them, because the root of another cluster may have the
name of a directory.
"""
_DIRECTORY = re.compile(r"\d{2,4}", re.ASCII)
"""The names of directories of ledgers: two or three digits, and below them four."""
_LEDGER = re.compile(r"L\d{4}", re.ASCII)
"""The names of ledgers in a directory."""


# -- init -------------------------------------------------------------------------------------


@click.command()
@metadata_option
@ledger_manager_option
@json_option("Print one JSON object: instance_id.")
@asynchronous
async def init(uri: str, ledger_manager: str | None, as_json: bool) -> None:
    """Create a new, empty cluster and print its instance id.

    If the cluster exists already, the command fails and changes nothing.
    """
    _check_manager(uri, ledger_manager)
    async with opened_metadata(uri, create=True) as store:
        made = await store.initialise(ledger_manager)
    if as_json:
        print_json({"instance_id": made})
    else:
        click.echo(made)


def _check_manager(uri: str, ledger_manager: str | None) -> None:
    """Raise UsageError for --ledger-manager if the store has none, before the store is created."""
    from quire.metadata.uri import Driver, parse_uri

    if ledger_manager is not None and parse_uri(uri).driver is not Driver.ZOOKEEPER:
        raise click.UsageError(
            f"--ledger-manager {ledger_manager} only applies to ZooKeeper, not to {uri}: "
            "leave it out"
        )


# -- erase ------------------------------------------------------------------------------------


@click.command()
@metadata_option
@click.option(
    "--instance-id",
    metavar="ID",
    help="Proceed only if the cluster has this instance id.",
)
@dry_run_option("Only print what would be destroyed.")
@yes_option("Do not ask for confirmation. Required if standard input is not a terminal.")
@asynchronous
async def erase(uri: str, instance_id: str | None, dry_run: bool, yes: bool) -> int:
    """Destroy a cluster and all its ledgers, by deleting its metadata in ZooKeeper.

    The command fails while a bookie is registered, and if the root of another cluster is below that
    of this one. It names the streams, objects and datasets that lose their ledgers. It does not
    delete the files of bookies (use `quire bookie format`), nor the metadata of streams, which is
    stored elsewhere in ZooKeeper.
    """

    async with opened_metadata(uri) as store:
        found = await check_erasable(store, instance_id)
        say(await destroyed(store))
        if not dry_run and not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(
                    f"nothing was changed: this command destroys the cluster at {uri}, and there "
                    "is no terminal to ask for confirmation. Confirm with --yes"
                )
            if not asked(f"Destroy the cluster {found} at {uri}?"):
                say("nothing was destroyed")
                return EXIT_ERROR
        if not dry_run:
            await erase_now(store, found)
    done = "would be destroyed" if dry_run else "was destroyed"
    say(f"the metadata of the cluster {found} at {uri} {done}")
    return 0


async def check_erasable(store: MetadataStore, instance_id: str | None) -> str:
    """Return the instance id of a cluster that may be erased.

    Raises UsageError if a bookie is registered, if the root of another cluster is below that of
    this one, if the cluster has another id than `instance_id`, or if the store is not in ZooKeeper.
    Raises MetadataError.
    """
    from quire.metadata.uri import Driver, parse_uri

    where = parse_uri(store.uri)
    if where.driver is not Driver.ZOOKEEPER:
        raise UsageError(
            f"{store.uri} is not in ZooKeeper; nothing was changed",
            remedy=f"Stop the processes of the cluster and delete the file {where.path}, which "
            "holds all its metadata",
        )
    found = await store.instance_id()
    if instance_id is not None and instance_id != found:
        raise UsageError(
            f"the instance id of the cluster at {store.uri} is {found or 'not set'}, not "
            f"{instance_id}; nothing was changed",
            remedy="Give the metadata URI and the instance id of the same cluster",
        )
    await store.tree.sync()  # the server may lag behind a bookie that has just started
    bookies = await store.bookies()
    running = sorted({*bookies.writable, *bookies.readonly})
    if running:
        raise UsageError(
            f"bookies of the cluster at {store.uri} are still registered ({some_of(running)}); "
            "nothing was changed",
            remedy="Stop them first. A bookie that was killed stays registered until its ZooKeeper "
            "session expires",
        )
    inside = await _clusters_inside(store, where.root)
    if inside:
        raise UsageError(
            f"the nodes of the cluster at {store.uri} contain those of another cluster "
            f"({some_of(inside)}), which would be destroyed as well; nothing was changed",
            remedy="If nobody needs the other cluster either, erase it first: its metadata URI "
            "ends with that path",
        )
    return found


async def _clusters_inside(store: MetadataStore, root: str) -> list[str]:
    """Return the roots of other clusters below the root of this one, sorted.

    The nodes of this cluster itself are not searched, except for the directories of its ledgers.
    """
    from quire._runtime.tasks import each
    from quire.streams.namespace.tree_search import LEDGERS_ROOT_SIGNS, NODES_AT_ONCE, walk

    async def children(path: str) -> list[str]:
        try:
            return await store.tree.children(path)
        except NoSuchKeyError:
            return []  # deleted since its parent was read

    names = [name for name in await store.tree.children(root) if not _OWN.fullmatch(name)]
    tops = [f"{root}/{name}" for name in names if not _DIRECTORY.fullmatch(name)]
    todo = [f"{root}/{name}" for name in names if _DIRECTORY.fullmatch(name)]
    while todo:
        piece, todo = todo[-NODES_AT_ONCE:], todo[:-NODES_AT_ONCE]
        for path, below in zip(piece, await each(piece, children)):
            if set(below) >= LEDGERS_ROOT_SIGNS:
                tops.append(path)
                continue
            others = [name for name in below if not _LEDGER.fullmatch(name)]
            todo += [f"{path}/{name}" for name in others if _DIRECTORY.fullmatch(name)]
            tops += [f"{path}/{name}" for name in others if not _DIRECTORY.fullmatch(name)]
    found: list[str] = []
    async with aclosing(walk(store.tree, tops, left_out=found)) as nodes:
        async for _ in nodes:
            pass
    return sorted(found)


async def erase_now(store: MetadataStore, instance_id: str) -> None:
    """Delete the nodes of the cluster that `check_erasable` examined, and whose id it returned.

    The cluster is examined once more, because a question may have waited for its answer since.
    After an interruption some nodes are left; call both again. Raises UsageError and MetadataError.
    """
    from quire.metadata.uri import VALUES_ROOT, parse_uri

    await check_erasable(store, instance_id)
    root = parse_uri(store.uri).root
    await store.tree.delete_tree(VALUES_ROOT + root)
    for name in await store.tree.children(root):
        if name not in _LAST:
            await store.tree.delete_tree(f"{root}/{name}")
    await store.tree.delete_tree(root)


# -- skip ids ---------------------------------------------------------------------------------


@click.command("skip-ids")
@metadata_option
@click.argument("last", type=click.IntRange(0, 2**63 - 2), metavar="ID")
@flag("--force", f"Also accept an ID above {SURE_IDS:,}, which may be mistyped.")
@asynchronous
async def skip_ids(uri: str, last: int, force: bool) -> None:
    """Reserve all ledger ids up to ID, so that new ledgers get higher ids.

    Use this after restoring the metadata store from an older backup. The store would otherwise
    reuse the ids of ledgers that were created after the backup, and bookies still hold their
    entries. If you skip more than a million ids, restart the Java clients of the cluster, which may
    otherwise continue to use lower ids. Ids cannot be given back.
    """
    if last > SURE_IDS and not force:
        raise click.UsageError(
            f"nothing was changed: {last:,} is a very large id, and ids that are skipped cannot be "
            "given back. If you mean it, give --force"
        )
    async with opened_metadata(uri) as store:
        await store.skip_ledger_ids(last)
    say(f"new ledgers get ids above {last}")
