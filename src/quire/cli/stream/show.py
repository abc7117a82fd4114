"""`quire stream show`."""

from __future__ import annotations

import click

from quire._runtime.units import counted
from quire.cli.common.options import json_option, metadata_option, run_async
from quire.cli.common.output import print_json
from quire.cli.common.tls import tls_options
from quire.cli.stream.options import (
    Values,
    columns,
    name_argument,
    namespace,
    namespace_option,
    password_option,
    settings_lines,
    sources,
)

SEGMENT_KEYS = ("number", "ledger_id", "state", "records", "bytes", "first", "last", "completed")
SEGMENT_HEAD = ("NUMBER", "LEDGER", "STATE", "RECORDS", "BYTES", "FIRST", "LAST", "COMPLETED")


@click.command()
@metadata_option
@tls_options
@namespace_option
@name_argument()
@password_option
@json_option("One JSON object.")
def show(uri: str, path: str, name: str, password: bytes, as_json: bool) -> None:
    """Show a stream: settings and where they come from, segments, subscriptions and how far they
    lag behind."""
    described = run_async(_described(uri, path, name, password))
    if as_json:
        print_json(described)
    else:
        click.echo("\n".join(_lines(described)))


async def _described(uri: str, path: str, name: str, password: bytes) -> Values:
    from quire.errors import StreamDamagedError
    from quire.http.views.stream_facts import segment_as_json, stream_facts
    from quire.streams.read.facts import records_from

    async with namespace(uri, path, password) as opened:
        found = await stream_facts(opened, name, password)
        own = await opened.own_stream_settings(name)
        subscriptions: list[Values] = []
        for subscriber in await opened.subscriptions(name):
            try:
                position = await opened.subscription(name, subscriber).position()
            except StreamDamagedError as error:
                subscriptions.append(
                    {"name": subscriber, "position": None, "lag": None, "error": str(error)}
                )
                continue
            start = found.oldest if position is None else position
            lag = await records_from(opened.client, found.facts, start, password)
            stored = None if position is None else str(position)
            subscriptions.append({"name": subscriber, "position": stored, "lag": lag})
        return {
            "namespace": path,
            **found.as_json(),
            "segments": [segment_as_json(fact) for fact in found.facts],
            "lost": found.lost_as_json(),
            "settings": sources(found.settings.as_json(), own, opened.given_settings, "stream"),
            "subscriptions": subscriptions,
        }


def _lines(described: Values) -> list[str]:
    def text(value: object) -> str:
        return "-" if value is None else str(value)

    lines = [
        f"stream     {described['name']}",
        f"namespace  {described['namespace']}",
        f"records    {described['records']}",
        f"bytes      {described['bytes']}",
        f"first      {text(described['first'])}  {text(described['first_time'])}",
        f"last       {text(described['last'])}  {text(described['last_time'])}",
        f"ended      {'yes' if described['ended'] else 'no'}",
        *(
            f"lost       {one['what']}: ledger {one['ledger_id']} no longer exists"
            for one in described["lost"]
        ),
        "settings",
        *settings_lines(described["settings"]),
    ]
    if described["segments"]:
        rows: list[tuple[str, ...]] = [SEGMENT_HEAD]
        for segment in described["segments"]:
            rows.append(tuple(text(segment[key]) for key in SEGMENT_KEYS))
        lines += ["segments", *(f"  {line}" for line in columns(rows))]
    if described["subscriptions"]:
        rows = [("NAME", "POSITION", "LAG")]
        for one in described["subscriptions"]:
            lag = "unreadable" if one["lag"] is None else counted(one["lag"], "record")
            rows.append((one["name"], text(one["position"]), lag))
        lines += ["subscriptions", *(f"  {line}" for line in columns(rows))]
    return lines
