"""`quire explain cluster`, and `quire explain` alone."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json
from quire.cli.common.tls import tls_options
from quire.cli.explain.client import explaining

if TYPE_CHECKING:
    from quire.http.views.cluster_view import ClusterState
    from quire.http.views.problems import Problem

WAIT_S = 2.0
"""For bookies that tell their space, and as much for the count of ledgers that lack copies; what
is known by then is told."""
ANSWER_TIMEOUT_S = 8.0
"""For all of it, and some is left of ten seconds to start and to end."""
SIGNS = {"bad": "✗ wrong", "warn": "! soon", "note": "note"}


@click.command("cluster")
@metadata_option
@tls_options
@json_option("One JSON object, as the overview of the HTTP API.")
def explain(uri: str, as_json: bool) -> None:
    """Say what is wrong with the cluster: bookies, disks, racks, the metadata store, repair.

    Of each thing: what happened, what is at risk, what is being done about it without you, and what
    to type. It answers within ten seconds, whatever is away. Nothing is changed.
    """
    view = run_async(_look(uri))
    if as_json:
        print_json(view.as_json())
    else:
        click.echo("\n".join(_lines(view)))


async def _look(uri: str) -> ClusterState:
    from quire.http.views.cluster_view import ClusterView

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(explaining(uri, ANSWER_TIMEOUT_S))
        cluster = ClusterView(time.monotonic, await _fetch(stack), WAIT_S)
        stack.push_async_callback(cluster.close)
        return await cluster.look(client)


async def _fetch(stack: AsyncExitStack) -> Any:
    """Without the extra `http` bookies' metrics are not read: they are told of by less."""
    try:
        from quire.http.server.fetch import fetcher

        return await stack.enter_async_context(fetcher())
    except ImportError:
        return _nothing


async def _nothing(url: str) -> str:
    return ""


def _lines(view: ClusterState) -> list[str]:
    count = view.count()
    found = view.autorecovery
    lines = [
        f"cluster {view.instance_id}, metadata {view.metadata}",
        ", ".join(f"{number} {state}" for state, number in count.items())
        + f" bookies; autorecovery is {'on' if found['enabled'] else 'off'}, "
        f"auditor: {found['auditor'] or 'nobody'}",
    ]
    for one in view.problems:
        lines += _problem(one)
    if not view.problems:
        lines.append("✓ Nothing is wrong that is known of")
    if view.lost is None or not view.lost.whole:
        looked_at = 0 if view.lost is None else view.lost.records
        lines.append(
            "note: the search for missing ledgers has not covered all streams, objects and "
            f"datasets yet ({looked_at} so far)"
        )
    lines += [f"runs: {one.sentence()}" for one in view.running]
    return lines


def _problem(one: Problem) -> list[str]:
    lines = [f"{SIGNS[one.severity]}: {one.what}"]
    for name, text in (("at risk", one.risk), ("being done", one.doing), ("do", one.next)):
        if text:
            lines.append(f"    {name}: {text}")
    return lines
