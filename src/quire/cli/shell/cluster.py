"""Verbs of `quire shell` that create, destroy and show the cluster."""

from __future__ import annotations

import asyncio
import json

import click

from quire.cli.cluster.metadata import check_erasable, erase_now
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.shell.session import Shell, agreed, bookie_line, readable
from quire.codec.metadata.registration import RPC_ENDPOINT, RPC_PROTOCOL, TLS_EXTENSION, Endpoint


def show_help(shell: Shell, verb: str | None) -> None:
    """Show all verbs, or the help of VERB."""
    parent = click.get_current_context().parent
    assert parent is not None
    assert isinstance(parent.command, click.Group)
    if verb is None:
        click.echo(parent.get_help())
        return
    command = parent.command.get_command(parent, verb)
    if command is None:
        raise click.UsageError(f"unknown verb {verb!r}: `quire shell help` lists the verbs", parent)
    click.echo(command.get_help(click.Context(command, info_name=verb, parent=parent)))


# -- created and destroyed -------------------------------------------------------------------


async def init_new_cluster(shell: Shell, dry_run: bool) -> int:
    """Create a new, empty cluster.

    If the cluster exists already, the command fails and changes nothing.
    """
    uri = shell.cluster()
    async with shell.store(create=not dry_run) as store:
        if dry_run:
            there = await store.is_initialised()
            click.echo(f"{uri} {'has a cluster already' if there else 'would be initialised'}")
            return EXIT_ERROR if there else 0
        made = await store.initialise()
    click.echo(f"Successfully initiated cluster. {uri} instanceId: {made}")
    return 0


async def nuke(
    shell: Shell, root: str, instance_id: str | None, force: bool, dry_run: bool
) -> None:
    """Destroy the cluster's metadata, so that all ledgers are lost.

    The command fails while a bookie is registered. It does not ask for confirmation: as in Apache's
    shell, -p with either -i or -f confirms it.
    """
    from quire.metadata.uri import parse_uri

    if force == (instance_id is not None):
        raise click.UsageError("give exactly one of -force and -instanceid")
    uri = shell.cluster()

    if (own := parse_uri(uri).root) and own != root:
        raise click.UsageError(
            f"the ledgers root of {uri} is {own}, not {root}; nothing was changed. Give the root "
            "of the cluster that is to be destroyed with -zkledgersrootpath"
        )
    async with shell.store() as store:
        found = await check_erasable(store, instance_id)
        if not dry_run:
            await erase_now(store, found)
    done = "would be nuked" if dry_run else "was nuked"
    click.echo(f"The cluster {found or 'without an instance id'} at {uri} {done}")


async def meta_format(shell: Shell, silent: bool, force: bool, dry_run: bool) -> int:
    """Destroy the cluster's metadata, if the cluster exists, and create a new cluster.

    All ledgers are lost, and bookies must be formatted. The command fails while a bookie is
    registered.
    """
    uri = shell.cluster()
    async with shell.store() as store:
        if await store.is_initialised():
            found = await check_erasable(store, None)
            if dry_run:
                click.echo(f"the cluster {found} at {uri} would be formatted")
                return 0
            if silent and not force:
                raise click.UsageError(
                    f"{uri} already holds the cluster {found}. Nothing was changed. To destroy it, "
                    "use -nonInteractive together with -force"
                )
            question = f"Destroy all metadata of the cluster {found} at {uri}?"
            if not silent and not agreed(question, what="nothing was changed", without="-n -f"):
                return EXIT_ERROR
            await erase_now(store, found)
        elif dry_run:
            click.echo(f"{uri} has no cluster: one would be created")
            return 0
    async with shell.store(create=True) as store:
        made = await store.initialise()
    click.echo(f"Successfully formatted BookKeeper metadata. instanceId: {made}")
    return 0


# -- shown -----------------------------------------------------------------------------------


async def instance_id(shell: Shell) -> None:
    """Print the cluster's instance id."""
    async with shell.store() as store:
        found = await store.instance_id()
    click.echo(f"Metadata Service Uri: {shell.uri} InstanceId: {found}")


async def list_bookies(
    shell: Shell, writable: bool, readonly: bool, known: bool, hostnames: bool
) -> None:
    """List the bookies that -rw, -ro or -a selects."""
    if writable + readonly + known != 1:
        raise click.UsageError("give exactly one of -readwrite, -readonly and -all")
    async with shell.store() as store:
        found = await store.bookies()
        wanted = {*found.writable} if writable else {*found.readonly}
        if known:
            wanted = {*await store.list_cookies(), *found.writable, *found.readonly}
    lines = [await asyncio.to_thread(bookie_line, one, found.find(one)) for one in sorted(wanted)]
    if not lines:
        click.echo("No bookie exists!")
        return
    which = "ReadWrite" if writable else "Readonly" if readonly else "All"
    click.echo("\n".join((f"{which} Bookies :", *lines)))


async def bookie_info(shell: Shell) -> int:
    """Print the free and total disk space of each bookie, and their sums.

    The exit status is 1 if no bookie reports it.
    """
    from quire.http.routes.cluster import spaces_of

    async with shell.client() as client:
        spaces = await spaces_of(client)
        bookies = await client.bookies()
    told = {name: space for name, space in spaces.items() if space is not None}
    for name in sorted(set(spaces) - set(told)):
        say(f"bookie {name} did not report its disk space")
    if not told:
        say("Failed to retrieve bookie information from any of the bookies")
        return EXIT_ERROR
    click.echo("Free disk space info:")
    for name, (free, total) in told.items():
        line = await asyncio.to_thread(bookie_line, name, bookies.find(name))
        click.echo(f"{line}: \tFree: {readable(free)}\tTotal: {readable(total)}")
    free, total = (sum(space[at] for space in told.values()) for at in (0, 1))
    click.echo(f"Total free disk space in the cluster:\t{readable(free)}")
    click.echo(f"Total disk capacity in the cluster:\t{readable(total)}")
    return 0


async def cluster_info(shell: Shell) -> None:
    """Print the number of bookies, the auditor, and whether replicas are missing, as JSON."""
    from quire.http.routes.cluster import cluster_facts

    async with shell.client() as client:
        facts = json.dumps(await cluster_facts(client), indent=2, separators=(",", " : "))
    click.echo(f"--------- Cluster Info ---------\n{facts}")


async def endpoint_info(shell: Shell, bookie: str) -> int:
    """Print the network endpoints of a bookie."""
    async with shell.store() as store:
        found = (await store.bookies()).find(bookie)
    if found is None:
        say(f"bookie {bookie} is not registered: `listbookies -a` lists all known bookies")
        return EXIT_ERROR
    extensions = (TLS_EXTENSION,) if found.tls else ()
    own = Endpoint(RPC_ENDPOINT, found.host, found.port, RPC_PROTOCOL, extensions=extensions)
    click.echo(f"BookiedId: {bookie}")
    if found.properties:
        click.echo("Properties")
        for name, text in found.properties.items():
            click.echo(f"  {name}:{text}")
    for one in (own, *found.others):
        click.echo(f"Endpoint: {one.id}")
        click.echo(f"Protocol: {one.protocol}")
        click.echo(f"Address: {one.host} : {one.port}")
        click.echo(f"Auth: [{', '.join(one.auth)}]")
        click.echo(f"Extensions: [{', '.join(one.extensions)}]")
    return 0
