"""The commands `quire stream list`, `show` and `audit`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

import click

from quire._runtime.names.in_commands import command_with
from quire._runtime.tasks import each
from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.options import (
    Duration,
    LedgerId,
    asynchronous,
    dry_run_option,
    flag,
    json_option,
    metadata_option,
)
from quire.cli.common.output import print_json, time_text
from quire.cli.common.tls import connect, tls_options
from quire.cli.stream.options import (
    Values,
    columns,
    is_topic,
    name_argument,
    namespace,
    namespace_option,
    password_option,
    settings_lines,
    sources,
)
from quire.errors import MetadataUnavailableError, NoSuchStreamError, QuireError, StreamDamagedError

if TYPE_CHECKING:
    from quire.streams import Namespace

STREAMS_AT_ONCE = 64
"""The number of streams that --long examines at the same time."""
LIST_HEAD = ("NAME", "SEGMENTS", "RECORDS", "BYTES", "FIRST", "AT", "LAST", "AT")
LIST_KEYS = ("name", "segments", "records", "bytes", "first", "first_time", "last", "last_time")
SEGMENT_KEYS = ("number", "ledger_id", "state", "records", "bytes", "first", "last", "completed")
SEGMENT_HEAD = ("NUMBER", "LEDGER", "STATE", "RECORDS", "BYTES", "FIRST", "LAST", "COMPLETED")
OLDER_THAN_S = 24 * 3600


# -- list -------------------------------------------------------------------------------------


@click.command("list")
@metadata_option
@tls_options
@namespace_option
@click.argument("prefix", metavar="[PREFIX]", default="")
@flag(
    "-l --long",
    "Also show segments, records, bytes, and the first and last position and time.",
    name="long",
)
@password_option
@json_option(
    "Print one JSON object per stream or topic: name, the number of partitions of a topic, "
    "deleting if its deletion has begun, and the values that --long shows."
)
@asynchronous
async def list_streams(
    uri: str, path: str, prefix: str, long: bool, password: bytes, as_json: bool
) -> int:
    """List the streams of a namespace whose names begin with PREFIX, one per line.

    A topic is one line. To list its partitions, give its name with a slash as PREFIX. A topic whose
    deletion has begun is reported on standard error as well. With --long, streams that cannot be
    read are reported on standard error, and the exit status is 1 if there are any.
    """

    from quire.http.views.stream_statistics import stream_statistics

    failed: list[str] = []

    async def described(opened: Namespace, name: str) -> Values | None:
        try:
            return (await stream_statistics(opened, name, password)).as_json()
        except NoSuchStreamError:
            return None  # deleted since it was listed
        except MetadataUnavailableError:
            raise
        except QuireError as error:
            failed.append(f"stream {name}: {error}")
            return None

    async with namespace(uri, path, password) as opened:
        topics = await _topics(opened, prefix)
        partitions = {one for topic in topics.values() for one in topic.streams}
        names = [one for one in await opened.streams(prefix) if one not in partitions]
        names = sorted([*names, *topics])
        if not long:
            for name in names:
                if as_json:
                    topic = topics[name].as_json() if name in topics else {}
                    print_json({"name": name, **topic})
                else:
                    sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            _say_deleting(topics, path)
            return 0

        async def shown(name: str) -> Values | None:
            if name not in topics:
                return await described(opened, name)
            topic = topics[name]
            found = await each(topic.streams, lambda one: described(opened, one))
            return {**_together(name, found), **topic.as_json()}

        rows: list[tuple[str, ...]] = [LIST_HEAD]
        for at in range(0, len(names), STREAMS_AT_ONCE):
            piece = names[at : at + STREAMS_AT_ONCE]
            for found in await each(piece, shown):
                if found is None:
                    continue
                if as_json:
                    print_json(found)
                else:
                    rows.append(_row(found))
        if not as_json:
            sys.stdout.write("".join(f"{line}\n" for line in columns(rows)))
            sys.stdout.flush()
    _say_deleting(topics, path)
    for line in failed:
        fail(line)
    return EXIT_ERROR if failed else 0


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic in the list."""

    streams: list[str]
    """The names of the partitions. If `deleting`, some of them may not exist any more."""
    deleting: bool
    """Whether the deletion of the topic has begun."""

    def as_json(self) -> Values:
        deleting = {"deleting": True} if self.deleting else {}
        return {"partitions": len(self.streams), **deleting}


async def _topics(opened: Namespace, prefix: str) -> dict[str, ListedTopic]:
    """Return the topics whose names begin with a prefix, by name."""
    from quire.streams.topics.topic_metadata import TopicMetadata, partition_stream

    metadata = TopicMetadata(opened.client, opened.path)

    async def listed(name: str) -> ListedTopic | None:
        found = await metadata.find(name)
        if found is None:
            return None  # deleted since it was listed
        streams = [partition_stream(name, at) for at in range(found.partitions)]
        return ListedTopic(streams, found.deleting)

    names = await opened.topics(prefix)
    topics = zip(names, await each(names, listed))
    return {name: topic for name, topic in topics if topic is not None}


def _say_deleting(topics: Mapping[str, ListedTopic], path: str) -> None:
    """Print which topics are being deleted, and how to complete a deletion."""
    for name, topic in topics.items():
        if topic.deleting:
            delete = command_with("quire stream delete", name, f"-n {quote(path)}")
            say(
                f"topic {name} is being deleted, or its deletion was interrupted. To complete the "
                f"deletion: {delete}"
            )


def _together(name: str, found: Sequence[Values | None]) -> Values:
    """Return the values that --long shows of a topic.

    There is no position among them, because a position belongs to one partition. `found` has the
    values of each partition, or None for one that cannot be read and may get more records.
    """
    partitions = [one for one in found if one is not None]

    def times(key: str) -> list[str]:
        return [one[key] for one in partitions if one[key] is not None]

    return {
        "name": name,
        "partitions": len(found),
        "ended": all(one is not None and one["ended"] for one in found),
        **{key: sum(one[key] for one in partitions) for key in ("segments", "records", "bytes")},
        "first": None,
        "first_time": min(times("first_time"), default=None),
        "last": None,
        "last_time": max(times("last_time"), default=None),
    }


def _row(found: Values) -> tuple[str, ...]:
    return tuple("-" if found[key] is None else str(found[key]) for key in LIST_KEYS)


# -- show -------------------------------------------------------------------------------------


@click.command()
@metadata_option
@tls_options
@namespace_option
@name_argument()
@password_option
@json_option("Print one JSON object.")
@asynchronous
async def show(uri: str, path: str, name: str, password: bytes, as_json: bool) -> None:
    """Show the settings, segments and subscriptions of a stream, or the partitions of a topic.

    The command shows where each setting comes from, and how many records each subscription lags
    behind the end of the stream.
    """
    async with namespace(uri, path, password) as opened:
        if await is_topic(opened, name):
            topic = await _topic_described(opened, path, name, password)
            if as_json:
                print_json(topic)
            else:
                click.echo("\n".join(_topic_lines(topic)))
            return
        described = await _described(opened, path, name, password)
    if as_json:
        print_json(described)
    else:
        click.echo("\n".join(_lines(described)))


async def _topic_described(opened: Namespace, path: str, name: str, password: bytes) -> Values:
    from quire.http.views.stream_statistics import stream_statistics

    topic = await opened.topic(name)

    async def described(partition: int) -> Values:
        facts = await stream_statistics(opened, topic.stream(partition), password)
        return {**facts.as_json(), "lost": facts.lost_as_json()}

    found = await each(range(topic.partitions), described)
    together = _together(name, found)
    kept = ("name", "partitions", "ended", "records", "bytes", "first_time", "last_time")
    return {"namespace": path, **{key: together[key] for key in kept}, "streams": found}


def _topic_lines(described: Values) -> list[str]:
    rows = [LIST_HEAD, *(_row(one) for one in described["streams"])]
    return [
        f"topic      {described['name']}",
        f"namespace  {described['namespace']}",
        f"records    {described['records']}",
        f"bytes      {described['bytes']}",
        f"ended      {'yes' if described['ended'] else 'no'}",
        *(
            f"lost       {stream['name']}: {one['what']}: ledger {one['ledger_id']} no longer "
            "exists"
            for stream in described["streams"]
            for one in stream["lost"]
        ),
        "partitions",
        *(f"  {line}" for line in columns(rows)),
    ]


async def _described(opened: Namespace, path: str, name: str, password: bytes) -> Values:
    from quire.http.views.stream_statistics import segment_as_json, stream_statistics
    from quire.streams.read.statistics import records_from

    found = await stream_statistics(opened, name, password)
    own = await opened.own_stream_settings(name)
    inherited = await opened.inherited_stream_settings(name)
    subscriptions: list[Values] = []
    for subscriber in await opened.subscriptions(name):
        try:
            position = await opened.subscription(name, subscriber).position()
        except StreamDamagedError as error:
            subscriptions.append(
                {
                    "name": subscriber,
                    "position": None,
                    "lag": None,
                    "missed": False,
                    "error": str(error),
                }
            )
            continue
        start = found.oldest if position is None else position
        lag = await records_from(opened.client, found.facts, start, password)
        stored = None if position is None else str(position)
        missed = position is not None and found.has_truncated_from(position)
        subscriptions.append({"name": subscriber, "position": stored, "lag": lag, "missed": missed})
    return {
        "namespace": path,
        **found.as_json(),
        "segments": [segment_as_json(fact) for fact in found.facts],
        "lost": found.lost_as_json(),
        "settings": sources(found.settings.as_json(), own, inherited, "stream"),
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
            if one["missed"]:
                lag += ", and records before them were truncated unread"
            rows.append((one["name"], text(one["position"]), lag))
        lines += ["subscriptions", *(f"  {line}" for line in columns(rows))]
    return lines


# -- audit ------------------------------------------------------------------------------------


@click.command()
@metadata_option
@tls_options
@flag("--delete", "Delete the ledgers.")
@dry_run_option("Only print the ledgers. This is the default.")
@click.option(
    "--older-than",
    "older_than_s",
    metavar="SECONDS",
    type=Duration(),
    default=OLDER_THAN_S,
    show_default=True,
    help="Ignore younger ledgers, because a writer may be about to use them. In seconds, or with a "
    "unit.",
)
@click.option(
    "--first",
    metavar="ID",
    type=LedgerId(),
    default=0,
    help="Examine only ledgers with this id or a higher one. [default: 0]",
)
@json_option("Print one JSON object per ledger: ledger_id, stream, ctime, bytes, deleted.")
@asynchronous
async def audit(
    uri: str, delete: bool, dry_run: bool, older_than_s: float, first: int, as_json: bool
) -> int:
    """Find the ledgers of streams that no stream refers to any more.

    The command prints the id of each ledger and the stream it was created for. Ledgers and streams
    that cannot be read are reported on standard error, and no ledger that they may own is deleted.
    The exit status is 1 if a ledger or stream cannot be read, or if a ledger could not be deleted.
    """

    if delete and dry_run:
        raise click.UsageError("--delete and --dry-run exclude each other: give one of them")
    from quire.streams.ownership.orphans import delete_orphans, look_for_orphans

    async with connect(uri) as client:
        found = await look_for_orphans(client, older_than_s, first=first)
        orphans = found.orphans
        left = await delete_orphans(client, orphans) if delete else []
    stay = {one.orphan.ledger_id for one in left}
    for orphan in orphans:
        if as_json:
            print_json(
                {
                    "ledger_id": orphan.ledger_id,
                    "stream": orphan.stream,
                    "ctime": time_text(orphan.ctime_ms),
                    "bytes": orphan.size_bytes,
                    "deleted": delete and orphan.ledger_id not in stay,
                }
            )
        else:
            sys.stdout.write(f"{orphan.ledger_id} {orphan.stream}\n")
    sys.stdout.flush()
    for one in left:
        say(f"ledger {one.orphan.ledger_id} was not deleted: {one.why}")
    for unread in found.skipped:
        fail(f"{unread}")
    deleted = f", {len(orphans) - len(left)} deleted" if delete else ""
    unread_count = f", {len(found.skipped)} could not be read" if found.skipped else ""
    say(f"{counted(len(orphans), 'orphaned ledger')} of streams{deleted}{unread_count}")
    return EXIT_ERROR if left or found.skipped else 0
