"""The commands `quire stream create`, `set`, `rename`, `delete`, `end`, `truncate` and `retain`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.options import (
    asked,
    asynchronous,
    dry_run_option,
    flag,
    json_option,
    metadata_option,
    yes_option,
)
from quire.cli.common.output import print_json
from quire.cli.common.tls import tls_options
from quire.cli.stream.options import (
    PLACES,
    Values,
    change_arguments,
    changes,
    end_if_beyond,
    is_topic,
    name_argument,
    namespace,
    namespace_option,
    password_option,
    place_option,
    set_option,
)
from quire.errors import MetadataUnavailableError, NoSuchStreamError, QuireError

if TYPE_CHECKING:
    from quire.codec.distributedlog.segment import StreamSegment
    from quire.streams.namespace.namespace import Namespace
    from quire.streams.read.positions import Start


# -- create -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@namespace_option
@name_argument()
@set_option
@click.option(
    "--partitions",
    metavar="N",
    type=click.IntRange(min=1),
    help="Create a topic: N streams, NAME/0 and so on, which are written and read as one. The "
    "number cannot be changed later. [default: one stream, and no topic]",
)
@flag("--adopt", "Make a topic of the streams NAME/0 and so on that exist already.")
@asynchronous
async def create(
    uri: str, path: str, name: str, values: Values, partitions: int | None, adopt: bool
) -> None:
    """Create a stream, or with --partitions a topic.

    Settings that are not given with --set are inherited from the namespace. The default namespace,
    /streams, is created with its first stream; create others with `quire namespace create`.
    """

    if adopt and partitions is None:
        raise click.UsageError("--adopt needs --partitions, the number of streams to adopt")
    async with namespace(uri, path, make=not adopt) as opened:
        if partitions is None:
            await opened.create_stream(name, settings=values)
        else:
            await opened.create_topic(name, partitions, settings=values, adopt=adopt)
    if partitions is None:
        say(f"stream {name} created")
    else:
        say(f"topic {name} created with {counted(partitions, 'partition')}")


@click.command("set")
@metadata_option
@namespace_option
@name_argument()
@change_arguments
@asynchronous
async def change(uri: str, path: str, name: str, values: Values, unset: tuple[str, ...]) -> None:
    """Change a stream's own settings.

    A writer that is open keeps the old settings. `quire stream show` lists all settings.
    """

    values = changes(values, unset)
    async with namespace(uri, path) as opened:
        await opened.configure_stream(name, values)
    say(f"stream {name} changed")


@click.command()
@metadata_option
@namespace_option
@name_argument()
@name_argument("new_name", "NEW")
@flag("--force", "Rename the stream even if it is the log of a state machine with a snapshot.")
@asynchronous
async def rename(uri: str, path: str, name: str, new_name: str, force: bool) -> None:
    """Rename a stream within its namespace.

    The stream keeps its settings, records and subscriptions. A writer of the stream is fenced. The
    stream of a state machine that has a snapshot is not renamed without --force, because the
    snapshot keeps the old name.
    """

    async with namespace(uri, path) as opened:
        await opened.rename_stream(name, new_name, force=force)
    say(f"stream {name} renamed to {new_name}")


# -- delete -----------------------------------------------------------------------------------


@click.command()
@metadata_option
@namespace_option
@name_argument()
@yes_option()
@dry_run_option("Only print what would be deleted.")
@asynchronous
async def delete(uri: str, path: str, name: str, yes: bool, dry_run: bool) -> int:
    """Delete a stream, or a topic, with all its ledgers and subscriptions.

    A topic is deleted with all its partitions. Writers are fenced. The command asks for
    confirmation if standard input is a terminal.
    """

    async with namespace(uri, path) as opened:
        topic = await is_topic(opened, name)
        if topic:
            what, held = f"topic {name}", "all its partitions"
        else:
            what, held = f"stream {name}", counted(len(await opened.segments(name)), "segment")
        if dry_run:
            say(f"{what} ({held}) would be deleted")
            return 0
        identity = await (_topic_id if topic else _life)(opened, name)
        if not yes and sys.stdin.isatty() and not asked(f"Delete {what} ({held})?"):
            say("nothing was deleted")
            return EXIT_ERROR
        if not topic:
            await _check_same(opened, name, identity)
        elif await _topic_id(opened, name) not in (identity, ""):
            raise _another(f"the topic {name} was deleted", "topic")
        await (opened.delete_topic(name) if topic else opened.delete_stream(name))
    say(f"{what} deleted")
    return 0


@click.command()
@metadata_option
@tls_options
@namespace_option
@name_argument()
@password_option
@yes_option()
@dry_run_option("Only print what would be ended.")
@asynchronous
async def end(uri: str, path: str, name: str, password: bytes, yes: bool, dry_run: bool) -> int:
    """End a stream permanently, so that nothing more can be appended.

    Readers that follow the stream finish after its last record. A writer of the stream is fenced.
    The command asks for confirmation if standard input is a terminal.
    """
    async with namespace(uri, path, password) as opened:
        if dry_run:
            held = counted(len(await opened.segments(name)), "segment")
            say(f"stream {name} ({held}) would be ended permanently")
            return 0
        life = await _life(opened, name)
        if not yes and sys.stdin.isatty() and not asked(f"End stream {name} permanently?"):
            say("nothing was changed")
            return EXIT_ERROR
        await _check_same(opened, name, life)
        async with await opened.open_writer(name) as writer:
            count = writer.next_sequence
            await writer.end_stream()
    say(f"stream {name} ended after {counted(count, 'record')}")
    return 0


async def _life(opened: Namespace, name: str) -> str:
    return (await opened.metadata(name).life()).path


async def _check_same(opened: Namespace, name: str, life: str) -> None:
    """Raise NoSuchStreamError if another stream has the name than the one with this life."""
    if await _life(opened, name) != life:
        raise _another(f"the stream {name} was deleted or renamed", "stream")


async def _topic_id(opened: Namespace, name: str) -> str:
    """Return the id of a topic, or "" if there is none with this name."""
    from quire.streams.topics.topic_metadata import TopicMetadata

    found = await TopicMetadata(opened.client, opened.path).find(name)
    return "" if found is None else found.id


def _another(what: str, kind: str) -> NoSuchStreamError:
    return NoSuchStreamError(
        f"{what} while the command waited for an answer, and another {kind} has its name now; "
        "nothing was changed",
        remedy=f"If you mean the present {kind}, run the command again",
    )


# -- trim -------------------------------------------------------------------------------------


@click.command()
@metadata_option
@tls_options
@namespace_option
@name_argument()
@place_option("before", f"Drop all records before this position: {PLACES}.", required=True)
@password_option
@dry_run_option("Only print how many ledgers would be freed.")
@json_option("Print one JSON object: name, before, freed_ledgers, dry_run.")
@asynchronous
async def truncate(
    uri: str,
    path: str,
    name: str,
    before_place: Start,
    password: bytes,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Drop the oldest records of a stream.

    Ledgers with only dropped records are deleted. The segment that is being written is not changed;
    run the command again later to drop the records in it.
    """
    from quire.streams.read.positions import place_text

    async with namespace(uri, path, password) as opened:
        life = await _life(opened, name)  # read first: a position belongs to one life only
        end = await end_if_beyond(opened, name, before_place)
        if end is not None:
            drops = "would drop" if dry_run else "drops"
            say(
                f"stream {name} has no record at or after {place_text(before_place)}, so this "
                f"{drops} every record that can be dropped: it ends at position {end}"
            )
        position = await opened.find(name, before_place)
        freed = await opened.truncate(name, position, dry_run=dry_run, life=life)
    if as_json:
        ledgers = [segment.ledger_id for segment in freed]
        print_json({
            "name": name, "before": str(position), "freed_ledgers": ledgers, "dry_run": dry_run
        })  # fmt: skip
    else:
        done = "would be truncated" if dry_run else "truncated"
        say(f"stream {name} {done} before {position}: {_freed(freed, dry_run)}")


def _freed(segments: list[StreamSegment], dry_run: bool) -> str:
    done = "would be freed" if dry_run else "freed"
    return f"{counted(len(segments), 'ledger')} {done}"


@click.command()
@metadata_option
@namespace_option
@name_argument(required=False)
@flag("--all", "Apply the settings to all streams of the namespace.", name="everything")
@dry_run_option("Only print how many ledgers would be freed.")
@json_option("Print one JSON object per stream: name, freed_ledgers, dry_run.")
@asynchronous
async def retain(
    uri: str, path: str, name: str | None, everything: bool, dry_run: bool, as_json: bool
) -> int:
    """Delete the records that the retention settings no longer keep.

    The settings are retention_s and retention_bytes. Segments that were truncated are deleted too.
    Writers do the same whenever they complete a segment. The ledger of the newest completed segment
    is never freed, even if all of its records are too old. With --all, streams that cannot be read
    or changed are reported on standard error, and the exit status is 1 if there are any.
    """
    if everything == (name is not None):
        raise click.UsageError("give exactly one of the NAME of a stream and --all")

    failed = False
    async with namespace(uri, path) as opened:
        for one in [name] if name is not None else await opened.streams():
            try:
                freed = await opened.retain(one, dry_run=dry_run)
            except NoSuchStreamError:
                if name is not None:
                    raise
                continue  # deleted since it was listed
            except MetadataUnavailableError:
                raise
            except QuireError as error:
                if name is not None:
                    raise
                failed = True
                fail(f"stream {one}: {error}")
                continue
            if as_json:
                ledgers = [segment.ledger_id for segment in freed]
                print_json({"name": one, "freed_ledgers": ledgers, "dry_run": dry_run})
            elif freed or name is not None:
                say(f"stream {one}: {_freed(freed, dry_run)}")
    return EXIT_ERROR if failed else 0
