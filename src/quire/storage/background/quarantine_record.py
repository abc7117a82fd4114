"""The record of a damaged segment: `log/NUMBER.damaged`, a small file beside the segment.

    crc: <CRC-32C of what follows, eight hexadecimal digits>
    {"format": 1, "segment": N, "found_ms": ..., "blocks": [[first, last], ...], "header": false,
     "index": "", "lost_tables": 0, "extent_known": true, "more": false,
     "ledgers": [[id, first, last, first, last, ...], ...]}

Losing a record is harmless, because the next scrub finds the damage again. A bookie does not start
on a directory with a record of another format, which a later version of Quire wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from quire._runtime.units import are, counted, plural, verb
from quire.codec.entry.digest import crc32c
from quire.codec.log.state_records import FormatError, VersionError
from quire.core.ranges import Range, count, widened
from quire.errors import LaterStorageError, StorageError
from quire.storage.directory import naming, read_small_file
from quire.storage.interfaces import Disk
from quire.storage.segment.segment import LOG_DIRECTORY

SUFFIX = ".damaged"
FORMAT = 1
_NAMES = (
    "format", "segment", "found_ms", "blocks", "header", "index", "lost_tables", "extent_known",
    "more", "ledgers",
)  # fmt: skip
LEDGERS_MAX = 8_192
"""The most ledgers of a segment that a record names. Further ledgers are named once the first ones
are repaired."""
RANGES_MAX = 16_384
"""The most ranges of entries in a record. If a ledger has too many ranges, some are joined, so that
the record also names the entries between them."""
RANGES_OF_LEDGER_MAX = 32


@dataclass(frozen=True, slots=True)
class SegmentDamage:
    """The damage in one segment, and the entries that this bookie lacks because of it."""

    number: int
    found_ms: int
    """The Unix time in milliseconds at which the damage was first noticed."""
    blocks: tuple[Range, ...] = ()
    """The ranges (first, last) of numbers of damaged blocks, counted from the start of the file."""
    header: bool = False
    index: str = ""
    """The problem with the footer in words, or ""."""
    lost_tables: int = 0
    """The number of groups whose run table is damaged. Only the footer knows what they contain."""
    extent_known: bool = True
    """Whether it is known which entries are damaged. If not, `ledgers` names all entries of the
    segment."""
    ledgers: Mapping[int, tuple[Range, ...]] = field(default_factory=dict)
    """The damaged entries that no good copy in this or a newer segment of the bookie replaces, as
    ranges (first, last) by ledger id."""
    more: bool = False
    """Whether further ledgers have damaged entries that `ledgers` does not name."""

    @property
    def entries(self) -> int:
        """The number of missing entries that `ledgers` names."""
        return sum(map(count, self.ledgers.values()))

    def describe(self) -> str:
        """Return the damage in words, for messages and reports."""
        parts = []
        if self.blocks:
            blocks = count(self.blocks)
            parts.append(f"{counted(blocks, 'block')} {are(blocks)} damaged")
        if self.header:
            parts.append("its header is damaged")
        if self.index:
            parts.append(f"its index is damaged ({self.index})")
        if self.ledgers:
            at_least = "at least " if self.more else ""
            entries, ledgers = self.entries, len(self.ledgers)
            whose = (
                f"{counted(entries, 'entry')} of {at_least}{ledgers} {plural('ledger', ledgers)}"
            )
            wait = verb("wait", entries)
            known = "" if self.extent_known else "may be lost and "
            parts.append(f"{whose} {known}{wait} for a copy from another bookie")
        elif not self.header and not (self.lost_tables and self.index):
            parts.append("no entry is missing, and it is rewritten next")
        else:
            parts.append("it is removed once nothing in it is alive")
        return ", ".join(parts)


def limited(ledgers: Mapping[int, list[Range]]) -> tuple[dict[int, tuple[Range, ...]], bool]:
    """Return the part of `ledgers` that fits into a record, and whether ledgers were left out.

    `ledgers` has the ranges of damaged entries by ledger id. If a ledger has too many ranges, some
    are joined.
    """
    chosen = sorted(ledgers)[:LEDGERS_MAX]
    most = min(RANGES_OF_LEDGER_MAX, max(1, RANGES_MAX // max(1, len(chosen))))
    named = {ledger_id: tuple(widened(ledgers[ledger_id], most)) for ledger_id in chosen}
    return named, len(chosen) < len(ledgers)


def record_name(number: int) -> str:
    return f"{LOG_DIRECTORY}/{number:016x}{SUFFIX}"


def encode_record(damage: SegmentDamage) -> bytes:
    body = json.dumps({
        "format": FORMAT,
        "segment": damage.number,
        "found_ms": damage.found_ms,
        "blocks": damage.blocks,
        "header": damage.header,
        "index": damage.index,
        "lost_tables": damage.lost_tables,
        "extent_known": damage.extent_known,
        "more": damage.more,
        "ledgers": [
            [ledger_id, *(bound for one in ranges for bound in one)]
            for ledger_id, ranges in damage.ledgers.items()
        ],
    }).encode()  # fmt: skip
    return b"crc: %08x\n%s\n" % (crc32c(body), body)


def decode_record(data: bytes, number: int) -> SegmentDamage:
    """Return the damage that is stored in a record.

    Raises:
        FormatError: The record fails its check, or is for another segment.
        VersionError: A later version wrote the record.
    """
    head, _, body = data.rstrip(b"\n").partition(b"\n")
    if head != b"crc: %08x" % crc32c(body):
        raise FormatError(f"the quarantine record of segment {number} has a wrong checksum")
    try:
        found = json.loads(body)
        if int(found["format"]) > FORMAT:
            raise VersionError(f"format {found['format']}", f"format {FORMAT}")
        if more := found.keys() - _NAMES:
            raise VersionError(f"the field {min(more)!r}", f"the fields {', '.join(_NAMES)}")
        if (found["format"], found["segment"]) != (FORMAT, number):
            raise FormatError(
                f"the quarantine record of segment {number} is for another segment or has another "
                "format"
            )
        return SegmentDamage(
            number,
            int(found["found_ms"]),
            tuple((int(first), int(last)) for first, last in found["blocks"]),
            bool(found["header"]),
            str(found["index"]),
            int(found["lost_tables"]),
            bool(found["extent_known"]),
            {
                int(row[0]): tuple(zip(row[1::2], row[2::2], strict=True))
                for row in found["ledgers"]
            },
            bool(found["more"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"the quarantine record of segment {number} cannot be decoded: {error}"
        ) from None


def stored_records(disk: Disk) -> Iterator[tuple[int, SegmentDamage | None]]:
    """Yield the segment number and the damage of each stored record.

    The damage is None if the record cannot be read.

    Raises:
        LaterStorageError: A later version wrote a record.
        OSError: The directory cannot be listed.
    """
    for name in disk.list(LOG_DIRECTORY):
        if not name.endswith(SUFFIX):
            continue
        try:
            number = int(name.removesuffix(SUFFIX), 16)
        except ValueError:
            continue
        try:
            data = read_small_file(disk, record_name(number)) or b""
            with naming(disk, record_name(number)):
                found: SegmentDamage | None = decode_record(data, number)
        except LaterStorageError:
            raise
        except (FormatError, OSError, StorageError):
            found = None
        yield number, found
