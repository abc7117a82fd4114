"""The command `quire bookie explain space`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.bookie.identity import reading
from quire.cli.common.groups import EXIT_ERROR
from quire.cli.common.options import json_option
from quire.cli.common.output import print_json
from quire.errors import StorageError

if TYPE_CHECKING:
    from quire.config import BookieConfig
    from quire.storage.inspect.space_report import SpaceReport

LEDGERS_SHOWN = 10


@click.group()
def explain() -> None:
    """Explain what takes space on a bookie's disk.

    `quire explain` explains what is wrong with a cluster or a ledger.
    """


@explain.command()
@click.argument(
    "directories",
    metavar="DIRECTORY...",
    nargs=-1,
    required=True,
    # If one directory may not be read, the others are shown all the same.
    type=click.Path(file_okay=False, readable=False),
)
@click.option(
    "--ledgers",
    "count",
    type=click.IntRange(0),
    default=LEDGERS_SHOWN,
    show_default=True,
    help="The number of ledgers to list, the largest first.",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="A key of the [bookie] table that the bookie was started with, for example "
    "compact_major_ratio=0.5. May be repeated.",
)
@json_option("Print one JSON object per directory.")
def space(
    directories: tuple[str, ...], count: int, settings: tuple[str, ...], as_json: bool
) -> int:
    """Explain, for each segment of the log, what is live and why the rest is not freed yet.

    DIRECTORY is a data directory of a bookie; each of its data directories has its own log. The
    bookie may be running. Nothing is changed. The exit status is 1 if a directory cannot be read;
    the others are shown all the same.
    """
    from quire.cli.bookie.start import bookie_config

    config = bookie_config(settings)
    failed = 0
    for number, directory in enumerate(directories):
        try:
            report = _look(directory, config)
        except StorageError as error:
            if len(directories) == 1:
                raise
            failed += 1
            if as_json:
                print_json({"path": str(Path(directory).absolute()), "error": str(error)})
            else:
                click.echo(f"{directory}: {error}")
            continue
        if as_json:
            print_json(_described(report, count))
        else:
            click.echo("\n" * (number > 0) + "\n".join(_lines(report, count)))
            if report.free_bytes < config.min_free_bytes:
                least = _mb(config.min_free_bytes)
                click.echo(
                    f"With min_free_bytes at {least} MB the bookie accepts no adds, because less "
                    "is free: free space on the disk, or delete ledgers"
                )
    return EXIT_ERROR if failed else 0


def _look(directory: str, config: BookieConfig) -> SpaceReport:
    from quire.bookie.directories.opening import storage_config
    from quire.storage.disk import RealDisk
    from quire.storage.inspect.space_report import look

    with reading(directory):
        disk = RealDisk(directory, read_only=True)
        return look(disk, storage_config(config, disk))


def _described(report: SpaceReport, count: int) -> dict[str, Any]:
    described = asdict(report)
    described["ledgers"] = described["ledgers"][:count]
    for segment, row in zip(report.segments, described["segments"], strict=True):
        row["other_bytes"] = segment.other_bytes
    described["totals"] = totals(report)
    described["file_bytes"] = report.file_bytes
    return described


def totals(report: SpaceReport) -> dict[str, int]:
    """Return the sums over all segments."""
    names = ("file_bytes", "live_bytes", "copies_bytes", "deleted_bytes", "index_bytes",
             "other_bytes")  # fmt: skip
    return {name: sum(getattr(one, name) for one in report.segments) for name in names}


def _lines(report: SpaceReport, count: int) -> list[str]:
    found = totals(report)
    lines = [
        f"{report.path}: {_mb(report.free_bytes)} MB of {_mb(report.total_bytes)} are free. The "
        f"bookie's files take {_mb(report.file_bytes)} MB: the log takes "
        f"{_mb(found['file_bytes'])} MB, of which {_mb(found['live_bytes'])} MB are live. "
        f"{_mb(report.reserve_bytes)} MB are reserved for compaction.",
        "",
        f"{'segment':>16} {'state':8} {'MB':>7} {'live':>7} {'copies':>7} {'deleted':>7} "
        f"{'other':>7} {'ledgers':>9}  why it is not smaller",
    ]
    for one in report.segments:
        ledgers = f"{one.live_ledgers}/{one.ledgers}"
        lines.append(
            f"{one.number:16x} {one.state:8} {_mb(one.file_bytes):>7} {_mb(one.live_bytes):>7} "
            f"{_mb(one.copies_bytes):>7} {_mb(one.deleted_bytes):>7} "
            f"{_mb(one.other_bytes + one.index_bytes):>7} {ledgers:>9}  {one.why}"
        )
    lines += ["", f"{'file':24} {'MB':>7}  what it is"]
    lines += [f"{one.name:24} {_mb(one.file_bytes):>7}  {one.what}" for one in report.files]
    if count and report.ledgers:
        lines += ["", f"{'ledger':>16} {'MB':>7} {'copies':>7} {'segments':>8}"]
        lines += [
            f"{one.ledger_id:16} {_mb(one.live_bytes):>7} {_mb(one.copies_bytes):>7} "
            f"{one.segments:>8}"
            for one in report.ledgers[:count]
        ]
        if len(report.ledgers) > count:
            lines.append(f"... and {counted(len(report.ledgers) - count, 'ledger')} more")
    lines += [f"damage: {problem}" for problem in report.problems]
    if report.absence_unknown:
        lines.append(
            "The bookie lost data: it accepts no new ledgers, and answers that an entry it does "
            "not have may be lost. This ends when autorecovery has repaired all its ledgers; its "
            "log then has the event `loss_healed`"
        )
    return lines


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f}"
