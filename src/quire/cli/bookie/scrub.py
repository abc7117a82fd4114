"""`quire bookie scrub`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import are, counted
from quire.cli.common.groups import EXIT_ERROR
from quire.cli.common.options import json_option
from quire.cli.common.output import print_json
from quire.cli.common.progress import Progress

if TYPE_CHECKING:
    from quire.storage.inspect.scrub_report import SegmentScrubbed

LEDGERS_SHOWN = 10
"""Of one segment; --json has all."""


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@json_option("One JSON object a segment that is damaged, and one for the whole.")
def scrub(directory: str, as_json: bool) -> int:
    """Read all that a bookie has stored and check it: every block, run, entry header and index.

    DIRECTORY is a bookie's data directory; the bookie may run or not. Nothing is changed, and
    nothing is reported to the cluster: a bookie that runs does so for what it finds itself. Exit
    status 1 if anything is damaged.
    """
    from quire.errors import StorageError
    from quire.storage.disk import RealDisk
    from quire.storage.inspect.scrub_report import DirectoryScrub

    if not Path(directory, "current").is_dir():
        raise StorageError(
            f"{directory} holds no data of a Quire bookie", remedy="Name its data directory"
        )
    damaged = checked = segments = lacking = 0
    try:
        whole = DirectoryScrub(RealDisk(directory, read_only=True))
        bar = Progress(
            "scrub", total=whole.total_bytes, in_bytes=True, shown=not as_json, counted="segments"
        )
        with bar as progress:
            for one in whole.segments(lambda size: progress.advance(0, size)):
                progress.advance(1, 0)
                segments += 1
                checked += one.checked_bytes
                if not one.clean:
                    damaged += 1
                    lacking += one.lacking_entries
                    if as_json:
                        print_json(_described(one))
                    else:
                        click.echo(_line(one))
    except OSError as error:
        raise StorageError(
            f"reading {directory} failed: {error.strerror or error}",
            remedy="Run this as the user of the bookie",
        ) from None
    problems = list(whole.problems)
    if as_json:
        print_json({
            "path": directory, "segments": segments, "checked_bytes": checked,
            "damaged_segments": damaged, "lacking_entries": lacking, "problems": problems,
        })  # fmt: skip
    else:
        for problem in problems:
            click.echo(f"damage: {problem}")
        what = "nothing is damaged"
        if damaged:
            what = f"{damaged} damaged, {counted(lacking, 'entry')} missing"
        click.echo(
            f"{directory}: {counted(segments, 'segment')}, {checked / 1e6:.1f} MB checked: {what}"
        )
    return EXIT_ERROR if damaged or problems else 0


def _described(one: SegmentScrubbed) -> dict[str, Any]:
    return {
        "segment": one.number,
        "file": one.name,
        "checked_bytes": one.checked_bytes,
        "damaged_blocks": [list(span) for span in one.blocks],
        "damaged_header": one.header,
        "damaged_index": one.index or None,
        "lost_groups": one.lost_groups,
        "damaged_entries": _ranges(one.damaged),
        "lacking_entries": _ranges(one.lacking),
    }


def _ranges(ledgers: dict[int, Any]) -> dict[str, list[list[int]]]:
    return {str(ledger): [list(span) for span in spans] for ledger, spans in ledgers.items()}


def _line(one: SegmentScrubbed) -> str:
    from quire.core.ranges import count

    parts = []
    if one.blocks:
        blocks = count(one.blocks)
        parts.append(f"{counted(blocks, 'block')} {are(blocks)} damaged")
    if one.header:
        parts.append("the header is damaged")
    if one.index:
        parts.append(f"the index is damaged ({one.index})")
    if one.lost_groups:
        groups = one.lost_groups
        parts.append(f"the tables of {counted(groups, 'group')} are lost")
    if one.lacking:
        some = sorted(one.lacking.items())[:LEDGERS_SHOWN]
        texts = [f"{count(ranges)} of ledger {ledger}" for ledger, ranges in some]
        left = len(one.lacking) - len(some)
        more = f", and of {counted(left, 'ledger')} more" if left else ""
        parts.append(f"entries are missing: {', '.join(texts)}{more}")
    elif one.damaged:
        parts.append("newer segments have all that it hits")
    return f"{one.name}: {'; '.join(parts)}"
