"""The command `quire explain stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

import click

from quire._runtime.names.in_commands import command_with
from quire._runtime.tasks import each
from quire._runtime.units import are, counted, verb
from quire.cli.common.logs import printable
from quire.cli.common.options import asynchronous, json_option, metadata_option
from quire.cli.common.output import print_json
from quire.cli.common.pasting import pasteable
from quire.cli.common.tls import tls_options
from quire.cli.stream.options import (
    Values,
    is_topic,
    name_argument,
    namespace,
    namespace_option,
    password_option,
)
from quire.errors import MetadataUnavailableError, NoSuchStreamError, QuireError
from quire.metadata.ledgers.unreadable import named_ledgers

if TYPE_CHECKING:
    from quire.http.views.ledger_list import Replication
    from quire.http.watch.stream_replicas import StreamReplicas
    from quire.streams import Namespace


@click.command("stream")
@metadata_option
@tls_options
@namespace_option
@name_argument()
@password_option
@json_option("Print one JSON object, or one per partition of a topic.")
@asynchronous
async def explain_stream(uri: str, path: str, name: str, password: bytes, as_json: bool) -> None:
    """Explain what is wrong with a stream or a topic, and what to do about it.

    The command reports lost segments, ledgers that lack copies, subscriptions that can no longer
    read some records, a limit that is nearly reached, and continuous copies that have stopped or
    are far behind. Nothing is changed.
    """
    from quire.http.views.ledger_list import Replication
    from quire.http.views.stream_statistics import copies_of_streams

    async with namespace(uri, path, password) as opened:
        names = [name]
        if await is_topic(opened, name):
            topic = await opened.topic(name)
            names = [topic.stream(partition) for partition in range(topic.partitions)]
        copies = await copies_of_streams(opened, names)
        replication = await Replication.of(opened.client)
        found = await each(
            names, lambda one: _explained(opened, one, password, copies[one], replication)
        )
    for one in found:
        if as_json:
            print_json(one)
        else:
            click.echo("\n".join(map(printable, _lines(one))))


async def _explained(
    opened: Namespace,
    name: str,
    password: bytes,
    copies: Sequence[Values],
    replication: Replication,
) -> Values:
    from quire.http.views.stream_statistics import stream_statistics, subscription_lags
    from quire.http.watch.stream_limits import NEARLY_FULL
    from quire.http.watch.stream_replicas import replicas_of

    replicas = await replicas_of(opened, name, replication)
    where = f"-n {quote(opened.path)}"
    problems: list[dict[str, str]] = []

    def problem(severity: str, what: str, do: str, risk: str = "") -> None:
        problems.append({"severity": severity, "what": what, "next": do, "risk": risk})

    def explained(described: Values, subscriptions: int | None) -> Values:
        return {
            "name": name, "namespace": opened.path, "records": described["records"],
            "segments": described["segments"], "bytes": described["bytes"],
            "subscriptions": subscriptions, "copies": copies, "replicas": replicas.as_json(),
            "problems": problems,
        }  # fmt: skip

    for severity, what, ledger_id in _replica_problems(replicas):
        problem(severity, what, f"quire explain ledger {ledger_id}")
    try:
        facts = await stream_statistics(opened, name, password)
        lags = await subscription_lags(opened, facts, password)
    except (MetadataUnavailableError, NoSuchStreamError):
        raise
    except QuireError as error:
        # What is known of its ledgers says why, for example that their bookies are gone.
        problem("bad", f"The stream cannot be read: {error.args[0]}", error.remedy)
        return explained(dict.fromkeys(("records", "segments", "bytes")), None)
    described = facts.as_json()
    for one in facts.lost_as_json():
        problem("bad", f"{one['what']}: ledger {one['ledger_id']} no longer exists",
                "Follow docs/guides/repair/disaster-recovery.md")  # fmt: skip
    for one in lags:
        if one.get("error"):
            problem("bad", f"Subscription {one['name']} cannot be read: {one['error']}",
                    command_with("quire stream show", name, where))  # fmt: skip
        elif one["missed"]:
            problem("warn", f"Subscription {one['name']} can no longer read its next records, "
                    "because they were truncated", "Find out why its reader was late. It continues "
                    "with the oldest record that is left")  # fmt: skip
    limit = facts.settings.bytes_max
    if limit and described["bytes"] >= NEARLY_FULL * limit:
        problem("warn", f"The stream holds {described['bytes']:,} bytes of the {limit:,} that its "
                "setting bytes_max allows",
                f"Raise the limit: {command_with('quire stream set', name, where)} "
                f"bytes_max={2 * limit}",
                "Appends that do not fit are refused with StreamQuotaError")  # fmt: skip
    for copy in copies:
        if (found := copy["problem"]) is not None:
            problem("warn", found["what"], found["next"], found["risk"])
    return explained(described, len(lags))


def _replica_problems(found: StreamReplicas) -> Iterator[tuple[str, str, int]]:
    """Yield the severity, the sentence and a ledger of each problem of the replicas of a stream.

    Lost ledgers are not among them, because they are lost segments.
    """
    if unreadable := found.found.get("unreadable"):
        yield (
            "bad",
            f"Some entries of {named_ledgers(dict.fromkeys(unreadable, ''), len(unreadable))} have "
            "no copy on a registered bookie, so they cannot be read now",
            unreadable[0],
        )
    if unknown := found.found.get("unknown"):
        named = named_ledgers(dict.fromkeys(unknown, ""), len(unknown))
        yield "bad", f"The metadata of {named} cannot be read", unknown[0]
    lacking = {state: found.found.get(state, ()) for state in ("lacking", "marked", "repairing")}
    ids = sorted(ledger_id for those in lacking.values() for ledger_id in those)
    if ids:
        words = {"lacking": "not marked for repair yet", "marked": "waiting for repair"}
        states = ", ".join(
            f"{'it' if len(ids) == 1 else len(those)} {are(len(those))} "
            f"{words.get(state, 'being repaired')}"
            for state, those in lacking.items()
            if those
        )
        named = named_ledgers(dict.fromkeys(ids, ""), len(ids))
        named = f"{named[0].upper()}{named[1:]}"
        yield "warn", f"{named} {verb('lack', len(ids))} copies: {states}", ids[0]


def _lines(found: Values) -> list[str]:
    from quire.cli.explain import SIGNS

    size = "its size is not known"
    if found["records"] is not None:
        size = (
            f"{counted(found['records'], 'record')} in {counted(found['segments'], 'segment')}, "
            f"{counted(found['bytes'], 'byte')}; "
            f"{counted(found['subscriptions'], 'subscription')}"
        )
    lines = [f"stream {found['name']} of {found['namespace']}: {size}"]
    for one in found["problems"]:
        lines.append(f"{SIGNS[one['severity']]}: {one['what']}")
        for word, text in (("at risk", one["risk"]), ("do", one["next"])):
            if text:
                lines.append(f"    {word}: {pasteable(text)}")
    if not found["problems"]:
        lines.append("✓ No problems were found")
    lines += [f"copy: {_copy(one)}" for one in found["copies"] if one["problem"] is None]
    return lines


def _copy(one: Values) -> str:
    here = one["role"] == "source"
    other = f"{one['target_namespace']} in {one['target']}"
    if not here:
        other = f"{one['source_namespace']} in {one['source']}"
    lag = one["lag"]
    behind = "an unknown number of records"
    if lag is not None and lag["records"] is not None:
        behind = counted(lag["records"], "record")
    return f"{'to' if here else 'from'} {other}, by {one['by']}, {behind} behind"
