"""The commands `quire bookie disk ...` that read the files of a bookie, which may be running."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.bookie.identity import reading
from quire.cli.common.groups import EXIT_ERROR, LazyGroup, commands, say
from quire.cli.common.options import LedgerId, flag, json_option
from quire.cli.common.output import print_json, time_text
from quire.core.ranges import merged
from quire.errors import StorageError

if TYPE_CHECKING:
    from quire.codec.log.state_records import StateRecord
    from quire.storage.disk import RealDisk
    from quire.storage.inspect.contents import (
        FileDescription,
        LedgerDescription,
        SegmentDescription,
        SegmentDump,
    )
    from quire.storage.recovery.scan import ScannedGroup
    from quire.storage.segment.extents import FrameExtent

_COMMANDS = commands(
    """
    files          disk:files           List the files of a data directory.
    segment        disk:segment         Show the content of one segment of the log.
    ledger         disk:ledger          Show where the entries of one ledger are stored.
    last-mark      disk:last_mark       Show where the log ends.
    check          check:check          Check every block, run and index.
    rebuild-index  check:rebuild_index  Rebuild the damaged indexes of segments.
    replace        replace:replace      Replace a lost data directory by an empty one.
    remove         replace:remove       Remove a data directory from a bookie that has several.
    """,
    "bookie",
)


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def disk() -> None:
    """Inspect and check a bookie's files; replace or remove a data directory.

    DIRECTORY is a data directory. All commands except the last three only read files. If the bookie
    is running, they show a snapshot of its log. The commands readlog, ledger, lastmark, ... of
    `quire shell` show the same in the format of Apache's BookieShell.
    """


def directory_argument(command: Any) -> Any:
    return click.argument("directory", type=click.Path(exists=True, file_okay=False))(command)


@contextmanager
def looked_at(directory: str) -> Iterator[RealDisk]:
    """Open a data directory for reading. Nothing in it is changed.

    Raises StorageError if it is not a bookie's data directory, or if it cannot be read.
    """
    from quire.storage.disk import RealDisk

    with reading(directory):
        yield RealDisk(directory, read_only=True)


# -- files ------------------------------------------------------------------------------------


@click.command()
@directory_argument
@json_option("Print one JSON object per file.")
def files(directory: str, as_json: bool) -> None:
    """List the files of a data directory, with their sizes and kinds.

    Only the header and the trailer of each segment are read.
    """
    from quire.storage.inspect.contents import list_files

    with looked_at(directory) as place:
        if not as_json:
            click.echo(
                f"{'file':27} {'MB':>7} {'segment':>8} {'state':8} {'groups':>15} {'ledgers':>8} "
                f"{'records':>8}"
            )
        for one in list_files(place):
            if as_json:
                print_json(_file_as_json(one))
            else:
                click.echo(_file_line(one))


def _file_line(one: FileDescription) -> str:
    from quire.storage.inspect.contents import kind_of

    if one.size_bytes is None:
        return f"{one.name:27} deleted by the bookie meanwhile"
    line = f"{one.name:27} {one.size_bytes / 1e6:>7.1f}"
    found = one.segment
    if found is None:
        return f"{line} {kind_of(one.name)}"
    if found.later:
        return (
            f"{line} {found.number:>8} {found.state:8} a later version of Quire wrote it: it has "
            f"{found.later}"
        )
    groups = ledgers = records = "-"
    if found.trailer is not None:
        groups = f"{found.trailer.first_group}..{found.trailer.end_group - 1}"
        ledgers, records = str(found.trailer.ledgers), str(found.trailer.records)
    elif found.header is not None:
        groups = f"{found.header.first_group}.."
    return f"{line} {found.number:>8} {found.state:8} {groups:>15} {ledgers:>8} {records:>8}" + (
        " compacted" if found.header is not None and found.header.compacted else ""
    )


def _file_as_json(one: FileDescription) -> dict[str, Any]:
    from quire.storage.inspect.contents import kind_of

    kind = kind_of(one.name)
    described: dict[str, Any] = {"name": one.name, "bytes": one.size_bytes, "kind": kind}
    if one.segment is not None:
        described |= _facts_as_json(one.segment)
    return described


def _facts_as_json(found: SegmentDescription) -> dict[str, Any]:
    header, trailer = found.header, found.trailer
    return {
        "segment": found.number,
        "state": found.state,
        "later": found.later or None,
        "compacted": None if header is None else header.compacted,
        "previous": None if header is None else header.previous,
        "first_group": _either(header and header.first_group, trailer and trailer.first_group),
        "end_group": None if trailer is None else trailer.end_group,
        "groups_at": found.groups_at,
        "footer_at": None if trailer is None else trailer.footer_at,
        "ledgers": None if trailer is None else trailer.ledgers,
        "records": None if trailer is None else trailer.records,
    }


def _either(one: Any, other: Any) -> Any:
    return other if one is None else one


# -- segment ----------------------------------------------------------------------------------


def segment_number(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """Return the number of a segment, which is given as a number or as the name of its file.

    Raises `click.BadParameter` for any other text.
    """
    from quire.storage.segment.segment import number_of

    name = "log/" + value.rpartition("/")[2]
    found = number_of(name)
    if found is None and value.isdecimal() and int(value) < 2**63:
        found = int(value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is neither the number nor the file name of a segment", context, parameter
        )
    return found


@click.command()
@directory_argument
@click.argument("number", callback=segment_number)
@flag("--runs", "Also show the runs of every group.")
@json_option("Print one JSON object per line: the segment, then its groups, then its index.")
def segment(directory: str, number: int, runs: bool, as_json: bool) -> int:
    """Show the content of one segment: its groups with their state records, and its index.

    NUMBER is the decimal number of a segment, as the other commands print it, or the name of its
    file. The exit status is 1 if something in
    it does not match its checksum.
    """
    from quire.storage.inspect.contents import open_segment
    from quire.storage.segment.segment import segment_name

    bad = False
    with looked_at(directory) as place:
        try:
            with open_segment(place, number) as dump:
                _show(
                    dump.description.number,
                    {"what": "segment", **_facts_as_json(dump.description)},
                    as_json,
                )
                end = dump.description.groups_at
                for group in dump.groups():
                    if group.header.offset != end:
                        bad |= _gap(end, group.header.offset, as_json)
                    bad |= group.damaged_blocks > 0
                    _show_group(group, runs, as_json)
                    end = group.header.end
                if dump.description.trailer is not None and end != dump.description.groups_end:
                    bad |= _gap(end, dump.description.groups_end, as_json)
                bad |= _show_index(dump, as_json)
        except FileNotFoundError:
            raise StorageError(
                f"segment {directory}/{segment_name(number)} does not exist: the number is "
                "wrong, or the bookie has deleted the segment",
                remedy=f"`quire bookie disk files {shlex.quote(str(directory))}` lists the "
                "segments",
            ) from None
    return EXIT_ERROR if bad else 0


def _show(number: int, described: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(described)
        return
    what = "compacted, " if described["compacted"] else ""
    click.echo(
        f"segment {number}: {what}{described['state']}, groups from byte {described['groups_at']}"
    )


def _gap(start: int, end: int, as_json: bool) -> bool:
    if as_json:
        print_json({"what": "unknown", "offset": start, "bytes": end - start})
    else:
        click.echo(f"  {start:>10} the bytes from here up to {end} are damaged")
    return True


def _show_group(group: ScannedGroup, runs: bool, as_json: bool) -> None:
    header = group.header
    records = [_record_as_json(one) for one in group.table.records]
    described: dict[str, Any] = {
        "what": "group",
        "group": header.number,
        "offset": header.offset,
        "bytes": header.end - header.offset,
        "payload_bytes": header.payload_bytes,
        "runs": len(group.table.runs),
        "entries": sum(row.count for row in group.table.runs),
        "damaged_blocks": group.damaged_blocks,
        "records": records,
    }
    if as_json:
        if runs:
            described["rows"] = [
                {
                    "ledger_id": row.ledger_id, "first": row.first, "count": row.count,
                    "offset": header.payload_offset + row.offset, "frame_bytes": row.frame_size,
                    "frame_sizes": None if row.sizes is None else list(row.sizes),
                    "ids": None if row.ids is None else list(row.ids),
                }
                for row in group.table.runs
            ]  # fmt: skip
        print_json(described)
        return
    damaged = group.damaged_blocks
    damage = f", {counted(damaged, 'block')} damaged" if damaged else ""
    click.echo(
        f"  {header.offset:>10} group {header.number}: {counted(described['runs'], 'run')}, "
        f"{counted(described['entries'], 'entry')}, {counted(header.payload_bytes, 'byte')}{damage}"
    )
    for one in records:
        click.echo(f"  {'':10}   {_record_text(one)}")
    for row in group.table.runs if runs else ():
        last = row.first + row.count - 1 if row.ids is None else row.ids[-1]
        click.echo(
            f"  {header.payload_offset + row.offset:>10}   ledger {row.ledger_id}: entries "
            f"{row.first}..{last}, {row.count} frames"
        )


def _record_as_json(record: StateRecord) -> dict[str, Any]:
    """Return a state record of the log as JSON.

    Only the length of a master key is shown, because the key allows writing to the ledger.
    """
    from quire.codec.log.state_records import Deleted, RecordKind, Superseded, decode_segment_value

    described: dict[str, Any] = {
        # Its name in the output is older than that in the code.
        "record": "merged" if record.kind is RecordKind.SUPERSEDED else record.kind.name.lower(),
        "ledger_id": None if record.ledger_id < 0 else record.ledger_id,
    }
    if record.kind is RecordKind.DELETED:
        deleted = Deleted.decode(record.value)
        described |= {
            "time": time_text(deleted.time_ms), "fenced": deleted.fenced,
            "before_segment": deleted.before_segment or None,
        }  # fmt: skip
    elif record.kind is RecordKind.SUPERSEDED:
        described["segment"] = Superseded.decode(record.value).segment
    elif record.kind in (RecordKind.DROPPED, RecordKind.REPAIRED):
        described["segment"] = decode_segment_value(record.value)
    elif record.value:
        described["bytes"] = len(record.value)
    return described


def _record_text(described: dict[str, Any]) -> str:
    rest = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in described.items()
        if name not in ("record", "ledger_id") and value is not None
    ]
    ledger = "" if described["ledger_id"] is None else f" of ledger {described['ledger_id']}"
    return f"record {described['record'].replace('_', ' ')}{ledger}" + (
        f" ({', '.join(rest)})" if rest else ""
    )


def _show_index(dump: SegmentDump, as_json: bool) -> bool:
    """Print the index of a segment, and return whether it is damaged."""
    from quire.codec.log.state_records import FormatError

    trailer, bad = dump.description.trailer, bool(dump.problem)
    if trailer is None or dump.summary is None:
        if as_json:
            print_json({"what": "index", "problem": dump.problem or "it has none yet"})
        else:
            click.echo(f"  the segment has no index{f': {dump.problem}' if bad else ' yet'}")
        return bad
    if not as_json:
        click.echo(
            f"  {trailer.footer_at:>10} index: {counted(trailer.ledgers, 'ledger')}, "
            + counted(trailer.records, "record")
            + (f": {dump.problem}" if bad else "")
        )
    elif bad:
        print_json({"what": "index", "problem": dump.problem})
    summary = dump.summary
    for at, ledger_id in enumerate(summary.ledger_ids):
        problem = ""
        try:
            dump.rows(ledger_id)
        except FormatError as error:
            problem, bad = str(error), True
        if as_json:
            print_json({
                "what": "index", "ledger_id": ledger_id, "first": summary.firsts[at],
                "last": summary.lasts[at], "runs": summary.rows[at],
                "bytes": summary.size_bytes[at],
                "last_add_confirmed": summary.last_add_confirmeds[at], "problem": problem or None,
            })  # fmt: skip
        else:
            click.echo(
                f"  {'':10} ledger {ledger_id}: entries {summary.firsts[at]}..{summary.lasts[at]} "
                f"in {counted(summary.rows[at], 'run')}, {counted(summary.size_bytes[at], 'byte')}"
                + (f": {problem}" if problem else "")
            )
    return bad


# -- ledger -----------------------------------------------------------------------------------


@click.command()
@directory_argument
@click.argument("ledger_id", metavar="LEDGER", type=LedgerId())
@flag("--runs", "Show every run, not only the segments.")
@json_option("Print one JSON object.")
def ledger(directory: str, ledger_id: int, runs: bool, as_json: bool) -> int:
    """Show which entries of one ledger the directory has, and in which segments.

    The exit status is 1 if the directory has no entries of the ledger, or if the index of a segment
    with entries of the ledger is damaged.
    """
    from quire.storage.inspect.contents import describe_ledger

    with looked_at(directory) as place:
        found = describe_ledger(place, ledger_id)
    if found is None:
        say(f"{directory} has no entries of ledger {ledger_id}")
        return EXIT_ERROR
    if as_json:
        print_json(_ledger_as_json(found))
    else:
        click.echo("\n".join(_ledger_lines(found, runs)))
    problems = [f"segment {part.segment}: {part.problem}" for part in found.parts if part.problem]
    if found.absence_unknown:
        say("a part of the log was lost: the missing entries may have been in it")
    for problem in problems:
        say(problem)
    return EXIT_ERROR if problems else 0


def _ledger_as_json(found: LedgerDescription) -> dict[str, Any]:
    return {
        "ledger_id": found.ledger_id,
        "fenced": found.fenced,
        "master_key": found.has_master_key,
        "last_entry_id": found.last_entry_id,
        "last_add_confirmed": found.last_add_confirmed,
        "explicit_lac": found.has_explicit_lac,
        "refused_until": None
        if found.refused_until_ms is None
        else time_text(found.refused_until_ms),
        "absence_unknown": found.absence_unknown,
        "bytes": found.size_bytes,
        "entries": [list(span) for span in found.entries],
        "segments": [
            {
                "segment": part.segment,
                "sealed": part.sealed,
                "problem": part.problem or None,
                "runs": [_run_as_json(run) for run in part.runs],
            }
            for part in found.parts
        ],
    }


def _run_as_json(run: FrameExtent) -> dict[str, Any]:
    return {
        "first": run.first,
        "last": run.entries()[-1][1],
        "count": run.count,
        "offset": run.offset,
        "bytes": run.size_bytes,
    }


def _ledger_lines(found: LedgerDescription, runs: bool) -> list[str]:
    from quire.storage.inspect.check import words_of

    state = [
        "fenced" if found.fenced else "not fenced",
        "its master key is known" if found.has_master_key else "its master key is not known",
        "no entry is known to be confirmed"
        if found.last_add_confirmed < 0
        else f"confirmed at least up to entry {found.last_add_confirmed}",
    ]
    if found.has_explicit_lac:
        state.append("with an explicit LAC")
    if found.refused_until_ms is not None:
        state.append(
            f"deleted after it was fenced: adds are refused until "
            f"{time_text(found.refused_until_ms)}"
        )
    lines = [f"ledger {found.ledger_id}: {', '.join(state)}"]
    held = words_of(found.entries) if found.entries else "no entries"
    lines.append(f"{held}; {counted(found.size_bytes, 'byte')}")
    for part in found.parts:
        spans = merged(span for run in part.runs for span in run.entries())
        where = f"segment {part.segment} ({'sealed' if part.sealed else 'open'})"
        span = f"{spans[0][0]}..{spans[-1][1]}" if spans else "-"
        size = counted(sum(run.size_bytes for run in part.runs), "byte")
        lines.append(f"  {where}: entries {span} in {counted(len(part.runs), 'run')}, {size}")
        for run in part.runs if runs else ():
            lines.append(
                f"  {run.offset:>12} entries {run.first}..{run.entries()[-1][1]}, "
                f"{counted(run.count, 'frame')}, {counted(run.size_bytes, 'byte')}"
            )
    return lines


# -- the end of the log -----------------------------------------------------------------------


@click.command("last-mark")
@directory_argument
@json_option("Print one JSON object.")
def last_mark(directory: str, as_json: bool) -> int:
    """Show where the log ends: after the last group that is known to be synced.

    The exit status is 1 if a part of the log is missing or damaged.
    """
    from quire.storage.inspect.contents import end_of_log
    from quire.storage.segment.segment import segment_name

    with looked_at(directory) as place:
        end = end_of_log(place)
    if as_json:
        print_json({
            "segment": end.segment or None, "offset": end.offset_bytes, "group": end.last_group,
            "unsure_group": end.unsure_group, "torn_group": end.torn_group, "clean": end.clean,
            "problems": list(end.problems),
        })  # fmt: skip
    else:
        if not end.segment:
            click.echo("the log is empty")
        else:
            group = "no group yet" if end.last_group is None else f"group {end.last_group}"
            click.echo(
                f"segment {end.segment} ({segment_name(end.segment)}), byte {end.offset_bytes}, "
                f"after {group}"
            )
            click.echo(
                "the bookie was stopped cleanly"
                if end.clean
                else "the bookie is running, or was not stopped cleanly"
            )
        if end.unsure_group is not None:
            click.echo(
                f"group {end.unsure_group}, which follows, is complete but may not be synced: the "
                "bookie writes it again at its next start, before it serves"
            )
        if end.torn_group is not None:
            click.echo(
                f"group {end.torn_group}, which follows, is incomplete: it is being written, or it "
                "was never acknowledged"
            )
        for problem in end.problems:
            say(problem)
    return EXIT_ERROR if end.problems else 0
