"""The command `quire stream write`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from quire._runtime.units import counted
from quire.cli.common.groups import EXIT_ERROR, fail, say
from quire.cli.common.input import (
    InputSource,
    LineSplitter,
    Splitter,
    input_bytes,
    signals_to,
    unreadable,
)
from quire.cli.common.options import (
    Duration,
    asynchronous,
    flag,
    json_option,
    metadata_option,
    placement_option,
)
from quire.cli.common.output import print_json
from quire.cli.common.progress import ProgressBar
from quire.cli.common.tls import tls_options
from quire.cli.stream.input_records import LineFormat, LineParser
from quire.cli.stream.options import (
    Values,
    delimiter_option,
    headers_option,
    is_topic,
    key_option,
    key_separator_option,
    name_argument,
    namespace,
    namespace_option,
    password_option,
    set_option,
)
from quire.codec.distributedlog.record import MAX_PAYLOAD_BYTES
from quire.errors import EntryTooLargeError, QuireError, StreamExistsError, UsageError

if TYPE_CHECKING:
    from quire.streams import (
        DLSN,
        Appended,
        Namespace,
        StreamWriter,
        TopicAppended,
        TopicWriter,
    )

STDIN = 0
FORMATS = ("text", "json")
PIECE_RECORDS = 1_024
"""The number of records that are appended together. After a failure, it is known for each group of
this size, not for each record, whether it was acknowledged."""
OUTSTANDING_RECORDS_MAX = 65_536
"""The largest number of unacknowledged records. The writer limits only their bytes, which short
lines do not reach."""
JSON_LINE_BYTES_MAX = 8 * 1024 * 1024
"""The longest line of JSON. Its Base64 and its escapes take more bytes than the record."""


@click.command()
@metadata_option
@placement_option
@tls_options
@namespace_option
@name_argument()
@delimiter_option(
    r"The byte that separates records: one byte, or \n, \0 (for find -print0), \t or \r. "
    r"[default: \n]"
)
@flag("--base64", "Decode each line from Base64.", name="base64")
@key_separator_option(
    r"The text between the key and the value of a line, such as : or \t. A line without it is a "
    "record without a key. [default: a line is a value]"
)
@key_option("The key of lines that have none of their own. [default: no key]")
@headers_option
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="The format of the input. text: each line is a record. json: each line is an object as "
    "`quire stream read --json` prints it, with value and perhaps key, headers and event_time.",
)
@flag("--create", "Create the stream if it does not exist.")
@set_option
@click.option(
    "--roll-every",
    metavar="RECORDS",
    type=click.IntRange(min=1),
    help="Begin a new segment after this many records, in addition to the stream's settings.",
)
@click.option(
    "--lock",
    "lock_s",
    metavar="SECONDS",
    type=Duration(),
    help="Wait this long for the stream's lock, which DistributedLog's writers take, and hold it. "
    "[default: do not take the lock, and fence the present writer]",
)
@click.option(
    "--token",
    default="",
    metavar="TEXT",
    help="The fencing token that the stream must have for the records to be appended. [default: "
    "none]",
)
@password_option
@json_option("Print one JSON object at the end: name, records, bytes, first, last, next_sequence.")
@asynchronous
async def write(
    uri: str,
    path: str,
    name: str,
    delimiter: bytes,
    base64: bool,
    separator: bytes,
    key: str | None,
    headers: dict[str, str],
    form: str,
    create: bool,
    values: Values,
    roll_every: int | None,
    lock_s: float | None,
    token: str,
    password: bytes,
    as_json: bool,
) -> int:
    """Append the lines of standard input to a stream.

    Each line becomes one record, and is appended as soon as it is read. At the end, the command
    prints the number of records and the position of the last one. Exit status 0 means that every
    line is acknowledged. Ctrl-C and SIGTERM end the input. Another writer of the stream is fenced.
    NAME may be a topic: each line then goes to the partition of its key.

    With --create, --set gives settings to the new stream. --key-separator, --key, --header and
    --format json give records a key, headers or an event time.
    """
    if values and not create:
        raise click.UsageError("--set gives settings to a new stream, so it requires --create")
    if form == "json" and (base64 or separator):
        option = "--base64" if base64 else "--key-separator"
        raise click.UsageError(f"--format json and {option} exclude each other: give one of them")
    line_format = LineFormat(form == "json", base64, separator, key, headers)

    async with namespace(uri, path, password, make=create) as opened:
        if create:
            await _create(opened, name, values)
        topic = await opened.topic(name) if await is_topic(opened, name) else None
        if topic is not None and token:
            raise click.UsageError(
                f"--token cannot be used for topic {name}, because each partition has a fencing "
                f"token of its own: write to a partition, such as {name}/0"
            )
        stream = name if topic is None else topic.stream(0)
        if (await opened.stream_settings(stream)).txids == "given":
            raise UsageError(
                f"nothing was appended: each record of stream {stream} needs a txid (its setting "
                "txids is 'given'), but lines have none",
                remedy="Write the stream from a program that gives txids, or use a stream with the "
                "setting txids = 'time'",
            )
        writer: StreamWriter | TopicWriter
        if topic is None:
            writer = await opened.open_writer(name, lock=lock_s)
        else:
            writer = await topic.open_writer(lock=lock_s)
        if os.isatty(STDIN):
            say("type lines; each becomes one record; Ctrl-D ends the input")
        lines = RecordSplitter(delimiter, line_format)
        input_ = InputAppender(writer, line_format, roll_every, token)
        with closing(InputSource(STDIN, lines)) as source, signals_to(source) as caught:
            try:
                await input_.append_all(source)
            except QuireError as error:
                writer.abandon()
                await input_.settle()
                fail(f"{error}. {input_.told()}")
                return EXIT_ERROR
            except asyncio.CancelledError:
                writer.abandon()
                await input_.settle()
                if not caught:
                    raise
                say(f"interrupted. {input_.told()}")
                return 128 + caught[0]
    return _report(input_, as_json, caught)


async def _create(opened: Namespace, name: str, values: Values) -> None:
    if await opened.exists(name):
        return
    try:
        await opened.create_stream(name, settings=values)
    except StreamExistsError:
        pass


def _report(input_: InputAppender, as_json: bool, caught: list[int]) -> int:
    if as_json:
        print_json(input_.as_json())
    else:
        sys.stdout.write(f"{input_.told()}\n")
        sys.stdout.flush()
    if isinstance(input_.refused, OSError):
        fail(unreadable(input_.refused))
    elif input_.refused is not None:
        fail(str(input_.refused))
    if input_.refused is not None:
        return EXIT_ERROR
    if caught:
        say("interrupted: the input was ended")
        return 128 + caught[0]
    return 0


class RecordSplitter:
    """A splitter of the input into records.

    A line that is too long raises an error only after the lines before it were returned.
    """

    def __init__(self, delimiter: bytes, form: LineFormat) -> None:
        self._limit_bytes = MAX_PAYLOAD_BYTES
        if form.base64:
            self._limit_bytes = (MAX_PAYLOAD_BYTES + 2) // 3 * 4 + len(form.separator)
        elif form.json:
            self._limit_bytes = JSON_LINE_BYTES_MAX
        self._splitter: Splitter = LineSplitter(self._limit_bytes, delimiter, "record")
        self._failure: EntryTooLargeError | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._failure is not None:
            raise self._failure
        lines: list[bytes] = []
        for at in range(0, len(chunk), self._limit_bytes):
            try:
                lines += self._splitter.feed(chunk[at : at + self._limit_bytes])
            except EntryTooLargeError as error:
                if not lines:
                    raise
                self._failure = error
                break
        return lines

    def finish(self) -> list[bytes]:
        if self._failure is not None:
            raise self._failure
        return self._splitter.finish()


class InputAppender:
    """An appender of the input to a stream or a topic, which counts what was acknowledged."""

    def __init__(
        self,
        writer: StreamWriter | TopicWriter,
        form: LineFormat,
        roll_every: int | None,
        token: str,
    ) -> None:
        self._writer = writer
        self._roll_every = roll_every
        self._parser = LineParser(form)
        self._token = token
        self._outstanding: deque[tuple[Appended | TopicAppended, int]] = deque()
        """The appends that are not acknowledged yet, each with its number of bytes, in the order of
        the stream."""
        self._outstanding_records = 0
        self._since_roll = 0
        self.records = 0
        """The number of acknowledged records."""
        self.size_bytes = 0
        """The number of bytes of the acknowledged records."""
        self.first: DLSN | None = None
        self.last: DLSN | None = None
        self.refused: QuireError | OSError | None = None
        """The error for the first line that cannot be a record, or of reading the input, or None.
        The lines before it are appended."""

    async def append_all(self, source: InputSource) -> None:
        """Append every line, wait until all are acknowledged, and close the writer.

        The first line that cannot be a record, and an error of reading the input, end the input,
        and are in `refused`. After an error of appending, which is raised, the writer is not closed
        and some records may not be acknowledged.
        """
        shown = not os.isatty(STDIN)  # a bar would mix with the typed lines
        with ProgressBar(
            "append", total=input_bytes(STDIN), in_bytes=True, shown=shown, counted="records"
        ) as progress:
            try:
                async for lines in source:
                    await self._append(lines, progress)
                    if self.refused is not None:
                        break
            except EntryTooLargeError as error:
                self.refused = error
            except QuireError:  # some are errors of Python as well, such as time-outs
                raise
            except OSError as error:
                self.refused = error
            while self._outstanding:
                await self._wait()
        await self._writer.close()

    async def _append(self, lines: list[bytes], progress: ProgressBar) -> None:
        records = self._parser.records(lines)
        self.refused = self.refused or self._parser.refused
        count, at = len(records.values), 0
        while at < count:
            end = min(count, at + PIECE_RECORDS)
            if self._roll_every is not None:
                end = min(end, at + self._roll_every - self._since_roll)
            size_bytes = sum(map(len, records.values[at:end]))
            more: dict[str, Any] = {"token": self._token} if self._token else {}
            appended = await self._writer.submit_many(**records.part(at, end), **more)
            self._outstanding.append((appended, size_bytes))
            self._outstanding_records += end - at
            self._since_roll += end - at
            progress.advance(end - at, sum(map(len, lines[at:end])) + end - at)
            at = end
            while self._outstanding_records > OUTSTANDING_RECORDS_MAX:
                await self._wait()
            if self._since_roll == self._roll_every:
                # Records that are not sent yet would go into the next segment.
                while self._outstanding:
                    await self._wait()
                await self._writer.roll()
                self._since_roll = 0
            await asyncio.sleep(0)  # let the event loop send records and receive answers

    async def _wait(self) -> None:
        """Wait for the oldest outstanding append."""
        appended, size_bytes = self._outstanding[0]
        await appended.wait()
        self._outstanding.popleft()
        self._outstanding_records -= len(appended)
        self.records += len(appended)
        self.size_bytes += size_bytes
        if isinstance(appended, Sequence):  # records of a topic have no common order
            if self.first is None:
                self.first = appended.first
            self.last = appended.last

    async def settle(self) -> None:
        """Count the outstanding appends that were acknowledged, after the writer has ended.

        After one that failed, those to other partitions of a topic may be acknowledged.
        """
        while self._outstanding:
            try:
                await self._wait()
            except QuireError:
                self._outstanding.popleft()

    def told(self) -> str:
        """Return the sentence that says what was acknowledged."""
        name, records = self._writer.name, counted(self.records, "record")
        if hasattr(self._writer, "partitions"):
            return f"topic {name}: {records} acknowledged"
        if self.last is None:
            return f"stream {name}: 0 records acknowledged"
        return f"stream {name}: {records} acknowledged, the last at {self.last}"

    def as_json(self) -> Values:
        if hasattr(self._writer, "partitions"):
            return {
                "name": self._writer.name,
                "partitions": self._writer.partitions,
                "records": self.records,
                "bytes": self.size_bytes,
            }
        return {
            "name": self._writer.name,
            "records": self.records,
            "bytes": self.size_bytes,
            "first": None if self.first is None else str(self.first),
            "last": None if self.last is None else str(self.last),
            "next_sequence": self._writer.next_sequence,
        }
