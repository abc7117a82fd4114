"""The command `quire cluster copies`: the continuous copies of streams, and which have stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quire._runtime.units import counted, duration_text
from quire.cli.common.groups import say
from quire.cli.common.options import asynchronous, json_option, metadata_option
from quire.cli.common.output import print_json, time_text
from quire.cli.common.pasting import pasteable
from quire.errors import UsageError

if TYPE_CHECKING:
    from quire.replication.marks.copy_notes import CopyNote


@click.command()
@metadata_option
@click.option(
    "--forget",
    "forgotten",
    metavar="NAME",
    help="Remove the note of this copy, because nobody needs the copy any more. The copied streams "
    "stay. The note in the other cluster is removed there.",
)
@json_option("Print one JSON object per copy.")
@asynchronous
async def copies(uri: str, forgotten: str | None, as_json: bool) -> None:
    """List the continuous copies of streams from and to this cluster, one per line.

    `quire pipeline replicate --continuous` keeps a note in both clusters, as far as it may write
    there. The note shows when the copy last reported, and how far it was behind. It stays if the
    process was killed. If the process still runs, a forgotten copy appears again with its next
    report.
    """
    import quire
    from quire.replication.marks.copy_notes import copy_notes, forget_copy

    async with quire.connect(uri) as client:
        store, now_ms = client.metadata, client.clock.now_ms()
        if forgotten is not None:
            if not await forget_copy(store, forgotten):
                raise UsageError(
                    f"the cluster has no note of a copy {forgotten!r}",
                    remedy="`quire cluster copies` lists the notes",
                )
            say(f"the note of copy {forgotten} is removed")
            return
        found, own_id = await copy_notes(store), await store.instance_id()
    for one in found:
        if as_json:
            print_json(one.as_json(now_ms, own_id))
        else:
            click.echo(copy_line(one, own_id, now_ms))
    if not as_json:
        _say_problems(found, own_id, now_ms)


def copy_line(one: CopyNote, own_id: str, now_ms: int) -> str:
    """Return one line about a copy: its name, state, what is copied, by whom, and how far."""
    from quire.replication.explain.copies import copied

    lag = "an unknown number of records" if one.records is None else counted(one.records, "record")
    behind_s = one.behind_s(now_ms)
    age = f", {duration_text(behind_s)}" if behind_s else ""
    return (
        f"{one.name} {one.state(now_ms)}: {copied(one, own_id)}, by {one.by} since "
        f"{time_text(one.since_ms)}; {lag}{age} behind, reported "
        f"{duration_text(one.silent_s(now_ms))} ago"
    )


def _say_problems(found: Sequence[CopyNote], own_id: str, now_ms: int) -> None:
    from quire.replication.explain.copies import of_copies

    for problem in of_copies(found, own_id, now_ms):
        say(f"{problem.what}. {pasteable(problem.next)}")
