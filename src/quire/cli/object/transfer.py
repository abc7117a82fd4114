"""The commands `quire object put` and `quire object get`."""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from quire._runtime.units import counted
from quire.cli.common.groups import say
from quire.cli.common.input import InputSource, WholeChunks
from quire.cli.common.options import (
    Size,
    check_quorums,
    checked,
    flag,
    json_option,
    key_values,
    metadata_option,
    placement_option,
    quorum_options,
    run_async,
)
from quire.cli.common.output import OutputThread, print_json
from quire.cli.common.progress import ProgressBar
from quire.cli.common.tls import connect, tls_options
from quire.cli.object.options import bucket_option, check_name, name_argument, object_as_json

if TYPE_CHECKING:
    from quire.streams.objects.objects import ObjectInfo

STANDARD_INPUT = "-"
CHUNK_BYTES = 256 * 1024
CHUNK_BYTES_MAX = 4 * 1024 * 1024
STANDARD_OUTPUT = "-"


# -- put --------------------------------------------------------------------------------------


@click.command()
@metadata_option
@placement_option
@tls_options
@bucket_option
@click.argument("path", metavar="FILE")
@click.argument("name", metavar="[NAME]", required=False, callback=checked(check_name))
@flag("--replace", "Replace an object that has the name already.")
@key_values("--meta", "metadata", help_text="Metadata to store with the object. May be repeated.")
@click.option(
    "--chunk-bytes",
    metavar="SIZE",
    type=Size(1, CHUNK_BYTES_MAX),
    default=CHUNK_BYTES,
    show_default=True,
    help="The size of a chunk, which is one entry of the object's ledger, in bytes.",
)
@quorum_options
@json_option("Print the object as one JSON object, as `quire object show --json` does.")
def put(uri: str, path: str, name: str | None, bucket: str, as_json: bool, **how: Any) -> None:
    """Store FILE as an object.

    FILE '-' is standard input. NAME defaults to the name of the file. The object becomes visible
    only when all of it is stored. Exit status 0 means that it is stored on an ack quorum of
    bookies.
    """
    from quire.streams.objects.format import check_metadata, check_name

    check_quorums(how["ensemble_size"], how["write_quorum"], how["ack_quorum"])
    if name is None:
        if path == STANDARD_INPUT:
            raise click.UsageError(
                "an object from standard input has no name of its own: give NAME"
            )
        name = os.path.basename(path)
    check_name(name)  # before the whole object is stored, and not after
    check_metadata(name, how["metadata"])
    with _opened_input(path) as file:
        info = run_async(_put(uri, bucket, name, file, how))
    if as_json:
        print_json(object_as_json(bucket, info))
    else:
        say(
            f"object {name} put: {counted(info.size_bytes, 'byte')} in ledger {info.ledger_id}, "
            f"SHA-256 {info.sha256}"
        )


def _opened_input(path: str) -> BinaryIO:
    if path == STANDARD_INPUT:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    return open(path, "rb", buffering=0)


async def _put(uri: str, bucket: str, name: str, file: BinaryIO, how: dict[str, Any]) -> ObjectInfo:
    from quire.streams.objects.objects import Objects

    found = os.fstat(file.fileno())
    total = found.st_size if stat.S_ISREG(found.st_mode) else None
    async with connect(uri) as client:
        with (
            closing(InputSource(file.fileno(), WholeChunks())) as source,
            ProgressBar("put", total=total, in_bytes=True, counted="pieces") as progress,
        ):
            return await Objects(client, bucket).put(name, _counted(source, progress), **how)


async def _counted(source: InputSource, progress: ProgressBar) -> AsyncGenerator[bytes, None]:
    async for pieces in source:
        for piece in pieces:
            yield piece
            progress.advance(1, len(piece))


# -- get --------------------------------------------------------------------------------------


def _range(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int | None]:
    """Return the offset of the first byte, and the number of bytes or None for all."""
    if value is None:
        return 0, None
    match = re.fullmatch(r"(\d+)-(\d*)", value, re.ASCII)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not a range of bytes: use A-B or A-, counted from 0", context, parameter
        )
    first = int(match[1])
    if not match[2]:
        return first, None
    if int(match[2]) < first:
        raise click.BadParameter(
            f"the range {value!r} ends before it begins: use A-B with B not less than A",
            context,
            parameter,
        )
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
    help="The file to write. It appears only when it is complete. [default: standard output]",
)
@click.option(
    "--range",
    "wanted",
    metavar="A-B",
    callback=_range,
    help="Print only the bytes A to B, both included and counted from 0. A- means from A to the "
    "end.",
)
def get(uri: str, bucket: str, name: str, output: str, wanted: tuple[int, int | None]) -> None:
    """Print an object, or write it to a file.

    Every chunk is checked against its digest and, without --range, the whole object against its
    SHA-256. If the SHA-256 differs, the last chunk is not printed, no file is created, and the exit
    status is 1.
    """
    _check_output(output)
    sys.stdout.flush()
    run_async(_get(uri, bucket, name, output, *wanted))


def _check_output(path: str) -> None:
    """Raise UsageError if the file cannot be created, before anything is read."""
    if path == STANDARD_OUTPUT:
        return
    if not path:
        raise click.UsageError(
            "--output is empty: give the name of a file, or - for standard output"
        )
    if os.path.isdir(path):
        raise click.UsageError(f"--output {path} is a directory: give the name of a file")
    above = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(above):
        raise click.UsageError(
            f"--output {path} cannot be created: the directory {above} does not exist"
        )


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
            _opened_output(output) as descriptor,
            closing(OutputThread(descriptor)) as thread,
            ProgressBar(
                "get", total=total, in_bytes=True, counted="pieces", shown=shown
            ) as progress,
        ):
            async for piece in pieces:
                await thread.write(piece)
                progress.advance(1, len(piece))


@contextmanager
def _opened_output(path: str) -> Iterator[int]:
    """Open the output, and yield its file descriptor.

    A regular file gets its name when all of it is written and synced. Until then, and after an
    error, a file that had the name before is unchanged. The new file has the mode of that file.
    """
    if path == STANDARD_OUTPUT:
        yield sys.stdout.fileno()
        return
    path = os.path.realpath(path)
    mode: int | None = None
    try:
        found = os.stat(path).st_mode
        mode, regular = stat.S_IMODE(found), stat.S_ISREG(found)
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
    try:
        made_mode = 0o666 if mode is None else 0o600
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, made_mode)
    except OSError as error:
        error.filename = path  # The user does not know the name of the temporary file.
        raise
    try:
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)  # others must not read what they could not before
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
