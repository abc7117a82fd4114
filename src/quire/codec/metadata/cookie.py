"""The cookie, which ties a data directory to one bookie of one cluster.

    <layout version> LF <body>

| layout  | body                                                                 |
|---------|----------------------------------------------------------------------|
| 4, 5... | `CookieFormat` in protobuf's text format, one field per line         |
| 3       | three lines of text: bookie id, journal directory, ledger dirs       |
| below 3 | too old to be read                                                   |

The format is that of Apache's class `Cookie`. The layout version is decimal text. The same bytes
are in the file VERSION of every directory and in the metadata store. Lists of ledger and index
directories are stored as `<count> TAB <directory> TAB <directory> ...`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.codec.metadata.protobuf_text import UnknownFieldError, parse_text, write_text
from quire.errors import CookieError, LaterCookieError, written_later

LAYOUT_VERSION = 5
_BY = "Quire or BookKeeper"
_LAYOUT_VERSION_TEXT = 4
_LAYOUT_VERSION_MIN = 3
_LAYOUT_DIGITS_MAX = 9
"""The largest number of digits that is read. Python refuses to read numbers of more than 4,300."""
_REQUIRED = ("bookieHost", "journalDir", "ledgerDirs")


@dataclass(frozen=True, slots=True)
class Cookie:
    """The content of a cookie."""

    bookie_id: str
    journal_dirs: str
    """The journal directories, joined by ','."""
    ledger_dirs: str
    """The ledger directories in the stored form: their number and the directories, separated by
    TAB."""
    instance_id: str | None = None
    """The instance id of the cluster, or None if the cookie contains none."""
    index_dirs: str | None = None
    """The index directories in the stored form, or None if the ledger directories contain the
    index."""
    layout_version: int = LAYOUT_VERSION

    @classmethod
    def of(
        cls,
        bookie_id: str,
        journal_dirs: Sequence[str],
        ledger_dirs: Sequence[str],
        instance_id: str | None = None,
        index_dirs: Sequence[str] | None = None,
    ) -> Cookie:
        """Return a cookie for lists of directories. An empty instance id counts as none.

        Without `index_dirs`, the ledger directories contain the index.
        """
        return cls(
            bookie_id=bookie_id,
            journal_dirs=",".join(journal_dirs),
            ledger_dirs=join_directories(ledger_dirs),
            instance_id=instance_id or None,
            index_dirs=join_directories(index_dirs) if index_dirs else None,
        )


def join_directories(directories: Sequence[str]) -> str:
    """Return the stored form of a list of directories."""
    return "\t".join((str(len(directories)), *directories))


def split_directories(stored: str) -> tuple[str, ...]:
    """Return the directories of a list in the stored form.

    Raises:
        CookieError: The number at the beginning does not match the directories.
    """
    count, *directories = stored.split("\t")
    if count != str(len(directories)):
        raise CookieError(
            "the cookie is damaged: the number at the beginning of its list of directories is "
            f"wrong: {stored!r}",
            remedy="Make the right cookie with `quire bookie cookie generate -o FILE`, and replace "
            "the damaged one by it. In a directory, it is the file current/VERSION. In the "
            "cluster, `quire bookie cookie update BOOKIE --from FILE` replaces it",
        )
    return tuple(directories)


def refuse_later_layout(cookie: Cookie, what: str) -> Cookie:
    """Return `cookie` unless its layout is later than the present one.

    Like Apache's programs, `decode` reads a later layout if it knows all of its fields. Use this
    for a cookie that may be written back, which would be in the present layout. `what` is the name
    of the cookie for the error.

    Raises:
        LaterCookieError: The layout of the cookie is a later one.
    """
    if cookie.layout_version > LAYOUT_VERSION:
        raise LaterCookieError(_later(what, cookie.layout_version))
    return cookie


def _later(what: str, layout_version: int) -> str:
    return written_later(
        what, f"layout {layout_version}",
        f"the layouts {_LAYOUT_VERSION_MIN} to {LAYOUT_VERSION}", by=_BY,
    )  # fmt: skip


def encode(cookie: Cookie) -> bytes:
    """Return the bytes of a cookie in the present layout, whatever layout it was read from."""
    # Imported here, because most commands that import this module read no cookie.
    from quire.codec.metadata.formats_pb2 import CookieFormat

    message = CookieFormat(
        bookieHost=cookie.bookie_id,
        journalDir=cookie.journal_dirs,
        ledgerDirs=cookie.ledger_dirs,
        instanceId=cookie.instance_id or None,
        indexDirs=cookie.index_dirs or None,
    )
    return b"%d\n" % LAYOUT_VERSION + write_text(message)


def decode(data: bytes) -> Cookie:
    """Decode a cookie, in a later layout too if all of its fields are known.

    Raises:
        LaterCookieError: A later version wrote the cookie, and this one cannot read it.
        CookieError: The bytes are not a cookie, or its layout is too old.
    """
    first, _, body = data.partition(b"\n")
    digits = first.strip()
    if not digits.isdigit() or len(digits) > _LAYOUT_DIGITS_MAX:
        raise CookieError(
            f"the cookie is damaged: its first line is {first[:20]!r}, not the number of a layout"
        )
    layout_version = int(digits)
    if layout_version < _LAYOUT_VERSION_MIN:
        raise CookieError(
            f"the cookie has layout {layout_version}, but this version of Quire reads only layouts "
            f"from {_LAYOUT_VERSION_MIN} on"
        )
    try:
        if layout_version < _LAYOUT_VERSION_TEXT:
            return _decode_lines(body, layout_version)
        return _decode_text(body, layout_version)
    except UnknownFieldError as error:
        if layout_version > LAYOUT_VERSION:
            raise LaterCookieError(_later("the cookie", layout_version)) from None
        message = written_later(
            "the cookie", f"an unknown field ({error})", f"those of layout {LAYOUT_VERSION}", by=_BY
        )
        raise LaterCookieError(message) from None
    except ValueError as error:
        if layout_version > LAYOUT_VERSION:
            raise LaterCookieError(_later("the cookie", layout_version)) from None
        raise CookieError(f"the cookie (layout {layout_version}) is damaged: {error}") from None


def _decode_text(body: bytes, layout_version: int) -> Cookie:
    from quire.codec.metadata.formats_pb2 import CookieFormat

    message = parse_text(body, CookieFormat(), required=_REQUIRED)
    missing = [name for name in _REQUIRED if not message.HasField(name)]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return Cookie(
        bookie_id=message.bookieHost,
        journal_dirs=message.journalDir,
        ledger_dirs=message.ledgerDirs,
        instance_id=message.instanceId or None,
        index_dirs=message.indexDirs or None,
        layout_version=layout_version,
    )


def _decode_lines(body: bytes, layout_version: int) -> Cookie:
    lines = body.decode().split("\n")
    if len(lines) < 3:
        raise ValueError("it has fewer than the three lines of its layout")
    return Cookie(lines[0], lines[1], lines[2], layout_version=layout_version)


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two cookies differ."""

    field: str
    configured: str | None
    stored: str | None


def differences(config: Cookie, stored: Cookie) -> tuple[Difference, ...]:
    """Return the fields in which the configured cookie and a stored one differ."""
    pairs = [
        ("bookie id", config.bookie_id, stored.bookie_id),
        ("journal directories", config.journal_dirs, stored.journal_dirs),
        ("ledger directories", config.ledger_dirs, stored.ledger_dirs),
        ("instance id", config.instance_id, stored.instance_id),
    ]
    if config.index_dirs or stored.index_dirs:
        wanted, found = (one.index_dirs or one.ledger_dirs for one in (config, stored))
        pairs.insert(3, ("index directories", wanted, found))
    return tuple(Difference(*pair) for pair in pairs if pair[1] != pair[2])
