"""The commands `quire bookie disk check`, `quire bookie disk rebuild-index` and `quire bookie
scrub`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import are, counted, plural
from quire.cli.bookie.disk import directory_argument, looked_at
from quire.cli.bookie.identity import (
    behind,
    expected_of,
    held,
    old_directory,
    opened_metadata,
    reading,
)
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.options import (
    dry_run_option,
    json_option,
    optional_metadata_option,
    run_async,
)
from quire.cli.common.output import print_json
from quire.cli.common.progress import ProgressBar
from quire.core.ranges import count
from quire.errors import MetadataError

if TYPE_CHECKING:
    from quire.storage.disk import RealDisk
    from quire.storage.inspect.check import CheckedSegment, Survey
    from quire.storage.inspect.rebuild import Rebuilt
    from quire.storage.inspect.scrub_report import SegmentScrubbed
    from quire.storage.recovery.incarnation import ExpectedLog

LEDGERS_SHOWN = 10
"""The number of ledgers that are named for one segment. JSON output names all."""


@click.command()
@optional_metadata_option(
    "The metadata store of the bookie's cluster, which knows whether the directory is outdated."
)
@directory_argument
@json_option("Print one JSON object per segment, and one for the whole directory at the end.")
def check(uri: str | None, directory: str, as_json: bool) -> int:
    """Check that a data directory is complete and consistent: every block, run and index.

    The command reads the whole directory. The exit status is 1 if something is missing or damaged,
    or if the bookie no longer uses this directory. It is also 1 if the directory went back in time:
    it was restored from an older copy, or its newest files were deleted. The bookie's next start
    treats such a directory as lost, and autorecovery repairs it. If the bookie is running, it may
    delete segments during the check; that is reported and is not an error.

    `quire bookie scrub` also checks the entry headers, and reports which entries are damaged.
    """
    from quire.storage.inspect.check import check_segments, survey
    from quire.storage.recovery.incarnation import ExpectedLog

    counts = {"sealed": 0, "open": 0, "gone": 0}
    bad = 0
    with looked_at(directory) as place:
        # Ask the cluster first: if the bookie runs, its log grows during the check.
        old, expected = run_async(_asked(uri, place)) if uri is not None else ("", ExpectedLog())
        found = survey(place)
        if not old and (why := expected.held_against(found.position)):
            old = behind(place.path, why)
        with ProgressBar(
            "check", total=found.size_bytes, in_bytes=True, shown=not as_json, counted="segments"
        ) as progress:
            for one in check_segments(place, found, lambda size: progress.advance(0, size)):
                progress.advance(1, 0)
                counts[one.state] += 1
                bad += bool(one.problems)
                _tell(one, as_json)
    _total(directory, found, counts, bad, old, as_json)
    return EXIT_ERROR if bad or old or found.problems else 0


async def _asked(uri: str, place: RealDisk) -> tuple[str, ExpectedLog]:
    """Return why the cluster rejects the directory, and how far its log must reach.

    If the cluster does not answer, print that and return empty values, because a disk can be
    checked without its cluster.
    """
    from quire.storage.recovery.incarnation import ExpectedLog

    try:
        async with opened_metadata(uri) as store:
            return await old_directory(store, place), await expected_of(store, place)
    except MetadataError as error:
        say(f"the cluster did not say whether a bookie still uses {place.path}: {error}")
        return "", ExpectedLog()


def _tell(one: CheckedSegment, as_json: bool) -> None:
    if as_json:
        print_json({
            "segment": one.number, "state": one.state, "bytes": one.size_bytes,
            "problems": list(one.problems),
        })  # fmt: skip
        return
    if one.state == "gone":
        click.echo(f"segment {one.number} was deleted by the bookie during the check")
    for problem in one.problems:
        click.echo(f"segment {one.number}: {problem}")


def _total(
    directory: str, found: Survey, counts: dict[str, int], bad: int, old: str, as_json: bool
) -> None:
    if as_json:
        print_json({
            **counts, "bytes": found.size_bytes, "ledgers": len(found.ledgers),
            "damaged_segments": bad, "torn_group": found.torn_group,
            "problems": list(found.problems), "old": old or None,
            "ok": not bad and not old and not found.problems,
        })  # fmt: skip
        return
    for problem in found.problems:
        click.echo(problem)
    if found.torn_group is not None:
        click.echo(
            f"group {found.torn_group}, the last one, is incomplete: it is being written, or it "
            "was never acknowledged"
        )
    if bad or found.problems:
        say(
            "to repair a damaged index, stop the bookie and run `quire bookie disk rebuild-index`; "
            "the bookie restores damaged entries from other replicas: see `quire explain ledger`"
        )
    if old:
        click.echo(old)
    if bad:
        what = f"{counted(bad, 'segment')} {are(bad)} damaged"
    elif found.problems:
        what = "the segments that are here are not damaged, but the log is incomplete (see above)"
    elif old:
        what = "the segments that are here are not damaged, but newer data is missing (see above)"
    else:
        what = "no damage"
    click.echo(
        f"{directory}: {counts['sealed']} sealed and {counts['open']} open "
        f"{plural('segment', counts['open'])}, {counted(len(found.ledgers), 'ledger')}, "
        f"{found.size_bytes / 1e6:.1f} MB: {what}"
    )


@click.command("rebuild-index")
@directory_argument
@dry_run_option("Only print which indexes would be rebuilt.")
@json_option("Print one JSON object per segment.")
def rebuild_index(directory: str, dry_run: bool, as_json: bool) -> int:
    """Rebuild the damaged indexes of segments from the entries that the segments hold.

    The bookie must be stopped, except with --dry-run. Intact indexes are not changed. A segment
    with missing groups is not changed either, and the exit status is 1.
    """
    from quire.storage.inspect.rebuild import RebuildOutcome, plan, rebuild

    bad = made = 0
    with ExitStack() as stack:
        place: RealDisk
        looked = stack.enter_context(looked_at(directory))
        place = looked if dry_run else stack.enter_context(held(directory))
        todo = plan(place)
        total = sum(one.size_bytes for one in todo)
        with ProgressBar(
            "examine", total=total, in_bytes=True, shown=not as_json, counted="segments"
        ) as progress:
            advance = progress.advance
            for one in rebuild(place, todo, lambda size: advance(0, size), dry_run=dry_run):
                advance(1, 0)
                bad += one.outcome is RebuildOutcome.INCOMPLETE
                made += one.outcome is RebuildOutcome.REBUILT
                _tell_rebuilt(one, dry_run, as_json)
    if not as_json:
        done = "would be" if dry_run else "was" if made == 1 else "were"
        say(f"{counted(len(todo), 'segment')}: the index of {made} {done} rebuilt")
    return EXIT_ERROR if bad else 0


def _tell_rebuilt(one: Rebuilt, dry_run: bool, as_json: bool) -> None:
    from quire.storage.inspect.rebuild import RebuildOutcome

    if as_json:
        print_json({
            "segment": one.number, "outcome": one.outcome.value, "why": one.why or None,
            "dry_run": dry_run,
        })  # fmt: skip
    elif one.outcome is RebuildOutcome.REBUILT:
        done = "would be rebuilt" if dry_run else "was rebuilt"
        click.echo(f"segment {one.number}: its index {done}: {one.why}")
    elif one.outcome is not RebuildOutcome.GOOD:
        click.echo(
            f"segment {one.number}: {one.outcome.value}: "
            f"{one.why or 'the bookie deleted it meanwhile'}"
        )


# -- scrub ------------------------------------------------------------------------------------


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@json_option("Print one JSON object per damaged segment, and one for the whole directory.")
def scrub(directory: str, as_json: bool) -> int:
    """Verify the checksums of everything in DIRECTORY, a data directory of a bookie.

    The command checks every block, run, entry header and index. The bookie may be running. Nothing
    is changed or reported to the cluster: a running bookie scrubs its own directories, and reports
    what it finds. The exit status is 1 if anything is damaged.
    """
    from quire.storage.disk import RealDisk
    from quire.storage.inspect.scrub_report import DirectoryScrub

    damaged = checked = segments = lacking = 0
    with reading(directory):
        whole = DirectoryScrub(RealDisk(directory, read_only=True))
        bar = ProgressBar(
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
        elif problems:
            what = "the segments that are here are not damaged, but the log is incomplete"
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
        parts.append("newer segments have all damaged entries")
    return f"{one.name}: {'; '.join(parts)}"
