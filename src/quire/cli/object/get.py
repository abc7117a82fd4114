"""`quire object get`."""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager

import click

from quire.cli.common.options import metadata_option, run_async
from quire.cli.common.output import OutputThread
from quire.cli.common.progress import Progress
from quire.cli.common.tls import connect, tls_options
from quire.cli.object.options import bucket_option, name_argument

STANDARD_OUTPUT = "-"


def _range(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int | None]:
    """(first byte, how many)."""
    if value is None:
        return 0, None
    match = re.fullmatch(r"(\d+)-(\d*)", value, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{value!r} is not A-B or A-", context, parameter)
    first = int(match[1])
    if not match[2]:
        return first, None
    if int(match[2]) < first:
        raise click.BadParameter(f"{value!r} ends before it begins", context, parameter)
    return first, int(match[2]) - first + 1


@click.command()
@metadata_option
@tls_options
@bucket_option
@name_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default=STANDARD_OUTPUT,
    help="Where to write it: the file is there once all of it is. [default: standard output]",
)
@click.option(
    "--range",
    "wanted",
    metavar="A-B",
    callback=_range,
    help="Only the bytes from A to B, counted from 0, both included; A-: to the end.",
)
def get(uri: str, bucket: str, name: str, output: str, wanted: tuple[int, int | None]) -> None:
    """Print an object, or write it to a file.

    Every chunk is checked against its digest, and a whole object against its SHA-256: where that
    differs, standard output lacks the last chunk, a file is not made, and the exit status is 1.
    """
    _check_output(output)
    sys.stdout.flush()
    run_async(_get(uri, bucket, name, output, *wanted))


def _check_output(path: str) -> None:
    """Raise UsageError for a file that cannot be created, before anything is read."""
    if path == STANDARD_OUTPUT:
        return
    if os.path.isdir(path):
        raise click.UsageError(f"--output {path}: it is a directory")
    above = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(above):
        raise click.UsageError(f"--output {path}: there is no directory {above}")


async def _get(
    uri: str, bucket: str, name: str, output: str, first_byte: int, size: int | None
) -> None:
    from quire.streams.objects.objects import Objects

    async with (
        connect(uri) as client,
        await Objects(client, bucket).get(name) as found,
        aclosing(found.read(first_byte, size)) as pieces,
    ):
        left = max(found.info.size_bytes - first_byte, 0)
        total = left if size is None else min(size, left)
        shown = output != STANDARD_OUTPUT or not sys.stdout.isatty()
        with (
            _opened(output) as descriptor,
            closing(OutputThread(descriptor)) as thread,
            Progress("get", total=total, in_bytes=True, counted="pieces", shown=shown) as progress,
        ):
            async for piece in pieces:
                await thread.write(piece)
                progress.advance(1, len(piece))


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """A descriptor to write to. A regular file takes the name when all of it is written, and on the
    disk; until then, and after an error, what had the name before is untouched."""
    if path == STANDARD_OUTPUT:
        yield sys.stdout.fileno()
        return
    path = os.path.realpath(path)
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        regular = True
    if not regular:
        descriptor = os.open(path, os.O_WRONLY)  # a device or a pipe stays what it is
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        return
    part = f"{path}.{secrets.token_hex(4)}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
