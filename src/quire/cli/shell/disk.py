"""Verbs of `quire shell` for the files of the local bookie, which may be running.

Quire has one log, whose segments contain their own index. So the verbs for Apache's journal and
for its entry logs all show segments. `quire bookie disk` shows more details.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from quire._runtime.tasks import each
from quire._runtime.units import are, counted
from quire.cli.bookie.disk import looked_at
from quire.cli.common.groups import EXIT_ERROR, say
from quire.cli.common.progress import ProgressBar
from quire.codec.entry.digest import DIGEST_SIZE_BYTES, DigestType, digester
from quire.codec.entry.entry import META, META_BYTES
from quire.errors import NoSuchLedgerError, StorageError

if TYPE_CHECKING:
    from quire.cli.shell.session import Shell
    from quire.storage.inspect.contents import SegmentDump
    from quire.storage.segment.extents import FrameExtent


@contextmanager
def _segments(directories: tuple[str, ...], number: int) -> Iterator[list[SegmentDump]]:
    """Open the segments with this number in all directories, each of which has its own log.

    Raises `StorageError` if there is none.
    """
    from contextlib import ExitStack

    from quire.storage.inspect.contents import open_segment
    from quire.storage.segment.segment import segment_name

    with ExitStack() as stack:
        found = []
        for directory in directories:
            place = stack.enter_context(looked_at(directory))
            try:
                found.append(stack.enter_context(open_segment(place, number)))
            except FileNotFoundError:
                continue
        if not found:
            raise StorageError(
                f"segment {segment_name(number)} does not exist in {', '.join(directories)}",
                remedy="`quire shell listfilesondisc -entrylog` lists the segments",
            )
        yield found


# -- what is in a segment ---------------------------------------------------------------------


def _print_entries(
    shell: Shell,
    dump: SegmentDump,
    message: bool,
    wanted: Callable[[int, int, int], bool] = lambda ledger_id, entry_id, offset: True,
) -> None:
    """Print the entries of a segment for which `wanted(ledger_id, entry_id, offset)` is true."""
    for run, head_bytes in _runs(dump):
        for entry_id, offset, size, entry in dump.frames(run, head_bytes):
            if not wanted(run.ledger_id, entry_id, offset):
                continue
            lac, payload = _opened(entry)
            click.echo(
                f"--------- Lid={shell.ledger(run.ledger_id)}, Eid={entry_id}, "
                f"ByteOffset={offset}, EntrySize={size} ---------"
            )
            click.echo(f"Type:           DATA\nLastConfirmed:  {lac}")
            if message:
                click.echo(f"Data:\n{shell.entry(payload)}")
            click.echo("")


def _runs(dump: SegmentDump) -> Iterator[tuple[FrameExtent, int]]:
    """Yield the runs of a segment in file order.

    Each comes with the number of bytes that precede the entry in each of its frames.
    """
    from quire.storage.segment.extents import FrameExtent

    for group in dump.groups():
        if damaged := group.damaged_blocks:
            say(f"group {group.header.number}: {counted(damaged, 'block')} {are(damaged)} damaged")
        for row in group.table.runs:
            extent = FrameExtent(
                row.ledger_id, row.first, group.header.payload_offset + row.offset, row.count,
                row.frame_size, row.sizes, row.ids,
            )  # fmt: skip
            yield extent, group.header.head_bytes


def _opened(entry: bytes) -> tuple[int, bytes]:
    """Return the LAC in an entry, and its payload.

    The digest type is not stored with the entry. The digest before the payload is removed if it
    matches as CRC32C or CRC32; otherwise it stays a part of the payload.
    """
    meta, rest = entry[:META_BYTES], entry[META_BYTES:]
    if len(meta) < META_BYTES:
        return -1, b""
    lac: int = META.unpack(meta)[2]
    for kind in (DigestType.CRC32C, DigestType.CRC32):
        size = DIGEST_SIZE_BYTES[kind]
        if rest[:size] == digester(kind, b"")(meta, rest[size:]):
            return lac, rest[size:]
    return lac, rest


def read_log(
    shell: Shell,
    number: int,
    message: bool,
    ledger_id: int | None,
    entry_id: int | None,
    start: int | None,
    end: int | None,
) -> None:
    """Print the entries of a segment of the log.

    SEGMENT is the number of a segment or the name of its file.
    """

    def wanted(ledger: int, entry: int, offset: int) -> bool:
        return (
            (ledger_id is None or ledger == ledger_id)
            and (entry_id is None or entry == entry_id)
            and (start is None or offset >= start)
            and (end is None or offset <= end)
        )

    with _segments(shell.own_directories(), number) as dumps:
        for dump in dumps:
            click.echo(f"Scan entry log {number} ({number:x}.log)")
            _print_entries(shell, dump, message, wanted)


def read_journal(shell: Shell, number: int, directory: str | None, message: bool) -> None:
    """Print the entries of a segment in the order in which they were written.

    Quire has one log, which is both journal and entry log, so this shows the same as readlog.
    """
    directories = shell.own_directories() if directory is None else (directory,)
    with _segments(directories, number) as dumps:
        for dump in dumps:
            click.echo(f"Scan journal {number} ({number:x}.txn)")
            _print_entries(shell, dump, message)


def _sizes(dump: SegmentDump) -> dict[int, int]:
    """Return the number of bytes of each ledger in a segment, by ledger id.

    They come from the index of the segment, or from its groups if it has no index.
    """
    if dump.summary is not None:
        summary = dump.summary
        return dict(zip(summary.ledger_ids, summary.size_bytes, strict=True))
    sizes: dict[int, int] = {}
    for run, _ in _runs(dump):
        sizes[run.ledger_id] = sizes.get(run.ledger_id, 0) + run.size_bytes
    return dict(sorted(sizes.items()))


def read_log_metadata(shell: Shell, number: int) -> None:
    """Print the ledgers in a segment, and the bytes of each."""
    with _segments(shell.own_directories(), number) as dumps:
        for dump in dumps:
            sizes = _sizes(dump)
            click.echo(f"Print entryLogMetadata of entrylog {number} ({number:x}.log)")
            total = sum(sizes.values())
            click.echo(f"entryLogId: {number}, total size: {total}")
            for ledger_id, size in sizes.items():
                click.echo(
                    f"--------- Lid={shell.ledger(ledger_id)}, "
                    f"TotalSizeOfEntriesOfLedger={size} ---------"
                )


async def active_ledgers(shell: Shell, number: int, timeout_ms: int | None) -> None:
    """List the ledgers of a segment that the cluster still has."""
    from quire.metadata.ledgers.unreadable import UNREADABLE

    with _segments(shell.own_directories(), number) as dumps:
        held = sorted({ledger_id for dump in dumps for ledger_id in _sizes(dump)})
    async with shell.client() as client:

        async def there(ledger_id: int) -> bool:
            try:
                await client.ledger_metadata(ledger_id)
            except NoSuchLedgerError:
                return False
            except UNREADABLE:
                pass  # the cluster has this ledger, even if its metadata cannot be read
            return True

        known = await each(held, there)
    found = [ledger_id for ledger_id, one in zip(held, known, strict=True) if one]
    if not found:
        click.echo(f"No active ledgers on log file {number}")
        return
    click.echo(f"Active ledgers on entry log {number} as follow:")
    click.echo(" ".join(shell.ledger(ledger_id) for ledger_id in found))


# -- the whole bookie -------------------------------------------------------------------------


def last_mark(shell: Shell) -> int:
    """Print where the log ends, one line per data directory.

    The exit status is 1 if a part of the log is missing or damaged.
    """
    from quire.storage.inspect.contents import end_of_log

    bad = False
    for directory in shell.own_directories():
        with looked_at(directory) as place:
            end = end_of_log(place)
        click.echo(
            f"LastLogMark : Journal Id - {end.segment}({end.segment:x}.txn), "
            f"Pos - {end.offset_bytes}"
        )
        for problem in end.problems:
            say(f"{directory}: {problem}")
            bad = True
    return EXIT_ERROR if bad else 0


def list_files(shell: Shell, journals: bool, logs: bool, indexes: bool) -> None:
    """List the files of the local bookie. Without a flag, all kinds are listed."""
    from quire.storage.inspect.contents import list_files as listed

    every = not (journals or logs or indexes)
    segments = []
    for directory in shell.own_directories():
        with looked_at(directory) as place:
            segments += [
                f"{place.path}/{one.name}" for one in listed(place) if one.segment is not None
            ]
    for wanted, title, names in (
        (journals, "Journal Files", []),
        (logs, "EntryLog/Ledger Files", segments),
        (indexes, "Index Files", []),
    ):
        if wanted or every:
            click.echo(f"--------- Printing the list of {title} ---------")
            click.echo("\n".join((*names, "")))


def ledger(shell: Shell, ledger_id: int, meta: bool) -> int:
    """Print where the local bookie stores the entries of a ledger.

    The exit status is 1 if the bookie has no entries of the ledger, or if the index of a segment
    with entries of the ledger is damaged.
    """
    from quire.storage.inspect.contents import describe_ledger

    click.echo(f"===== LEDGER: {shell.ledger(ledger_id)} =====")
    bad = held = False
    for directory in shell.own_directories():
        with looked_at(directory) as place:
            found = describe_ledger(place, ledger_id)
        if found is None:
            continue
        held = True
        if meta:
            click.echo(f"master key  : {'known' if found.has_master_key else 'unknown'}")
            click.echo(f"size        : {found.size_bytes}")
            click.echo(f"fenced      : {str(found.fenced).lower()}")
            click.echo(f"last entry  : {found.last_entry_id}")
        for part in found.parts:
            if part.problem:
                say(f"{directory}: segment {part.segment}: {part.problem}")
                bad = True
            for run in part.runs:
                _print_run(run, part.segment)
        if found.absence_unknown:
            say(f"{directory}: a part of the log was lost: the missing entries may have been in "
                "it")  # fmt: skip
    if not held:
        say(f"{', '.join(shell.own_directories())}: no entries of ledger {shell.ledger(ledger_id)}")
    return EXIT_ERROR if bad or not held else 0


def _print_run(run: FrameExtent, segment: int) -> None:
    at = run.offset
    for index in range(run.count):
        entry_id = run.first + index if run.ids is None else run.ids[index]
        click.echo(f"entry {entry_id}\t:\t(log: {segment}, pos: {at})")
        at += run.frame_size if run.sizes is None else run.sizes[index]


def consistency_check(shell: Shell) -> int:
    """Check every block, run and index of the local bookie, which may be running.

    The exit status is 1 if something is damaged.
    """
    from quire.storage.inspect.check import check_segments, survey

    click.echo("=== Performing local consistency check ===")
    problems: list[str] = []
    for directory in shell.own_directories():
        with looked_at(directory) as place:
            found = survey(place)
            problems += [f"{directory}: {one}" for one in found.problems]
            with ProgressBar(
                "check", total=found.size_bytes, in_bytes=True, counted="segments"
            ) as progress:
                read = partial(progress.advance, 0)
                for one in check_segments(place, found, read):
                    progress.advance(1, 0)
                    problems += [f"{directory}: segment {one.number}: {what}"
                                 for what in one.problems]  # fmt: skip
    for problem in problems:
        click.echo(problem)
    click.echo("=== Check returned errors ===" if problems else "=== Check passed ===")
    return EXIT_ERROR if problems else 0
