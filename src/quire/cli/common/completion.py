"""Completion of ids and names from the cluster: ledgers, streams, bookies, namespaces, objects,
datasets.

A shell asks while the user waits, so the answer is limited in time and number, and any failure is
an empty answer.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from quire.client import Client

COMPLETION_LIMIT_S = 2.0
"""Seconds after which a shell gets the names that were found by then."""
COMPLETION_NAMES_MAX = 200
"""The largest number of names that a shell gets."""

Search = Callable[["Client", click.Context], AsyncIterator[str]]
"""A function that yields the ids or names of all items of a kind, such as all streams."""
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def completes(search: Search) -> Complete:
    """Return the `shell_complete` function of a parameter whose values `search` yields.

    The function returns what it finds within the limits, and before an error.
    """

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        uri = context.params.get("uri")
        if not uri:
            return []
        given = context.params.get(parameter.name or "")
        had = set(map(str, given)) if isinstance(given, list | tuple) else set()
        names = _names(search, context, uri, incomplete)
        return [CompletionItem(name) for name in names if name not in had]

    return complete


def _names(search: Search, context: click.Context, uri: str, incomplete: str) -> list[str]:
    """Return the names that begin with `incomplete`, as far as they are found in time."""
    found: list[str] = []

    def run() -> None:
        try:
            asyncio.run(_collect(search, context, uri, incomplete, found))
        except Exception:  # noqa: BLE001 - a shell would show the error in the middle of a line
            pass

    # A client of ZooKeeper may need longer than the limit to stop, so nobody waits for the thread.
    thread = threading.Thread(target=run, name="quire-completion", daemon=True)
    thread.start()
    thread.join(COMPLETION_LIMIT_S)
    if thread.is_alive() and not found:
        sys.stdout.flush()
        os._exit(0)  # at a usual end the interpreter would wait for the executor's threads
    return list(found)


async def _collect(
    search: Search, context: click.Context, uri: str, incomplete: str, found: list[str]
) -> None:
    import quire

    async with quire.connect(uri) as client:
        async for name in search(client, context):
            if name.startswith(incomplete):
                found.append(name)
                if len(found) == COMPLETION_NAMES_MAX:
                    return


async def _ledgers(client: Client, context: click.Context) -> AsyncIterator[str]:
    async for ledger_id in client.list_ledgers():
        yield str(ledger_id)


async def _bookies(client: Client, context: click.Context) -> AsyncIterator[str]:
    registered = await client.bookies()
    known = {*await client.metadata.list_cookies(), *registered.writable, *registered.readonly}
    for bookie in sorted(known):
        yield bookie


async def _namespaces(client: Client, context: click.Context) -> AsyncIterator[str]:
    from quire.streams.namespace.tree_search import namespaces

    for path in await namespaces(client):
        yield path


async def _streams(client: Client, context: click.Context) -> AsyncIterator[str]:
    from quire.streams.namespace.namespace import open_namespace

    async with await open_namespace(client, context.params.get("path") or "/streams") as opened:
        for name in await opened.topics():  # before the many partitions that they may have
            yield name
        for name in await opened.streams():
            yield name


async def _objects(client: Client, context: click.Context) -> AsyncIterator[str]:
    from quire.streams.objects.objects import Objects

    async for one in Objects(client, context.params.get("bucket") or "default").list():
        yield one.name


async def _datasets(client: Client, context: click.Context) -> AsyncIterator[str]:
    for name in await client.datasets.list_datasets():
        yield name


complete_ledgers = completes(_ledgers)
complete_bookies = completes(_bookies)
complete_namespaces = completes(_namespaces)
complete_streams = completes(_streams)
complete_objects = completes(_objects)
complete_datasets = completes(_datasets)
