"""The command `quire bookie explain space`."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted, some_of
from quire.cli.bookie.identity import opened_metadata, reading
from quire.cli.common.groups import EXIT_ERROR
from quire.cli.common.options import json_option, optional_metadata_option, run_async
from quire.cli.common.output import print_json
from quire.errors import QuireError, StorageError

if TYPE_CHECKING:
    from quire.config import BookieConfig
    from quire.storage.inspect.space_report import LedgerSpace, SpaceReport

LEDGERS_SHOWN = 10
OTHER_SHARE = 0.05
"""The share of a disk that files which are not the bookie's must take before they are reported."""
METADATA_TIMEOUT_S = 20.0
"""Seconds to wait for the metadata store, without which the report is still useful."""


@click.group()
def explain() -> None:
    """Explain what takes space on a bookie's disk.

    `quire explain` explains what is wrong with a cluster or a ledger.
    """


@explain.command()
@optional_metadata_option(
    "The metadata store of the bookie's cluster. With it, the report counts the ledgers that are "
    "deleted there, but that the bookie still keeps."
)
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
    uri: str | None,
    directories: tuple[str, ...],
    count: int,
    settings: tuple[str, ...],
    as_json: bool,
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
        kept, why = run_async(_uncollected(uri, report)) if uri else (None, "")
        if as_json:
            print_json(_described(report, count) | _as_json(kept))
        else:
            click.echo("\n" * (number > 0) + "\n".join(_lines(report, count)))
            click.echo(_about_deletions(kept, why, config.gc_interval_s))
            if other := _other_files(report, config.min_free_bytes):
                click.echo(other)
            if report.free_bytes < config.min_free_bytes:
                least = _mb(config.min_free_bytes)
                click.echo(
                    f"With min_free_bytes at {least} MB the bookie accepts no adds, because less "
                    "is free: free space on the disk, or delete ledgers"
                )
    return EXIT_ERROR if failed else 0


async def _uncollected(uri: str, report: SpaceReport) -> tuple[list[LedgerSpace] | None, str]:
    """Return the ledgers of the report that the metadata store does not have, the largest first.

    Instead of a list, return None and the reason if the store cannot answer.
    """
    from quire.bookie.directories.identity import stored_cookie
    from quire.storage.disk import RealDisk

    try:
        cookie = stored_cookie(RealDisk(report.path, read_only=True), uri)
        async with asyncio.timeout(METADATA_TIMEOUT_S), opened_metadata(uri) as store:
            if cookie is not None and cookie.instance_id != await store.instance_id():
                return None, "the directory belongs to another cluster"
            alive: set[int] = set()
            async for span in store.list_ledgers(complete=True):
                alive.update(span.ledger_ids)
    except QuireError as error:
        return None, str(error)
    except TimeoutError:
        return None, f"it did not answer within {METADATA_TIMEOUT_S:g} s"
    except OSError as error:
        return None, str(error)
    return [one for one in report.ledgers if one.ledger_id not in alive], ""


def _about_deletions(kept: list[LedgerSpace] | None, why: str, interval_s: float) -> str:
    looks = f"The bookie looks for deleted ledgers every {interval_s:g} s (gc_interval_s)"
    if kept is None:
        asked = f"The metadata store was not compared: {why}" if why else (
            "With --metadata, this command shows such ledgers"
        )  # fmt: skip
        return f"{looks}. Until then, a deleted ledger counts as live. {asked}"
    if not kept:
        return "All ledgers that count as live exist in the metadata store"
    size, named = _mb(sum(one.live_bytes for one in kept)), [str(one.ledger_id) for one in kept]
    return (
        f"Deleted in the metadata store, but counted as live here: {counted(len(kept), 'ledger')} "
        f"with {size} MB ({some_of(named)}). {looks}"
    )


def _other_files(report: SpaceReport, least_bytes: int) -> str:
    """Return a text that says how much of a nearly full disk is not the bookie's, or ''.

    It also says how to find out what it is. The result is '' if there is enough space, or if the
    bookie's files take nearly all of it.
    """
    from quire.http.views.bookie_list import disk_nearly_full

    other = report.total_bytes - report.free_bytes - report.file_bytes
    short = report.free_bytes < least_bytes or (
        report.total_bytes and disk_nearly_full(report.free_bytes, report.total_bytes)
    )
    if not short or other < OTHER_SHARE * report.total_bytes:
        return ""
    top = Path(report.path).absolute()
    while not top.is_mount() and top != top.parent:
        top = top.parent
    return (
        f"Other files take {_mb(other)} MB of this disk: they are not in this directory, or the "
        f"space is reserved by the system. To find large files, in the same units: "
        f"du -ax --si --max-depth=2 "
        f"{shlex.quote(str(top))} | sort -h | tail"
    )


def _look(directory: str, config: BookieConfig) -> SpaceReport:
    from quire.bookie.directories.opening import storage_config
    from quire.storage.disk import RealDisk
    from quire.storage.inspect.space_report import look

    with reading(directory):
        disk = RealDisk(directory, read_only=True)
        return look(disk, storage_config(config, disk))


def _as_json(kept: list[LedgerSpace] | None) -> dict[str, Any]:
    if kept is None:
        return {"uncollected_ledgers": None, "uncollected_bytes": None}
    size = sum(one.live_bytes for one in kept)
    return {"uncollected_ledgers": len(kept), "uncollected_bytes": size}


def _described(report: SpaceReport, count: int) -> dict[str, Any]:
    described = asdict(report)
    described["ledgers"] = described["ledgers"][:count]
    for segment, row in zip(report.segments, described["segments"], strict=True):
        row["other_bytes"] = segment.other_bytes
    described["totals"] = totals(report)
    described["file_bytes"] = report.file_bytes
    return described


def totals(report: SpaceReport) -> dict[str, int]:
    """Return the sums, in bytes, of the numbers of all segments, by their names in JSON output."""
    names = ("file_bytes", "live_bytes", "copies_bytes", "deleted_bytes", "index_bytes",
             "other_bytes")  # fmt: skip
    return {name: sum(getattr(one, name) for one in report.segments) for name in names}


def _lines(report: SpaceReport, count: int) -> list[str]:
    found = totals(report)
    lines = [
        f"{report.path}: {_mb(report.free_bytes)} MB of {_mb(report.total_bytes)} MB are free. The "
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
            f"{one.number:16} {one.state:8} {_mb(one.file_bytes):>7} {_mb(one.live_bytes):>7} "
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
