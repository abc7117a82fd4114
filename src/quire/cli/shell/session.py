"""The options before the verb, and Apache's formats of ids, bookies and sizes."""

from __future__ import annotations

import shlex
import socket
import sys
import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from quire.cli.bookie.identity import opened_metadata
from quire.cli.common.groups import say
from quire.cli.common.options import LEDGER_ID_MAX, WHICH_CLUSTER, asked
from quire.cli.common.tls import connect
from quire.codec.metadata.registration import default_bookie_id
from quire.errors import CookieError, MetadataURIError, StorageError

if TYPE_CHECKING:
    from quire._runtime.opening import Opening
    from quire.client import Client
    from quire.configuration.fields import BookieProcessConfig
    from quire.metadata.interface import BookieAddress, MetadataStore

UNKNOWN = "Unknown"
HEX_ROW_BYTES = 16
SHOWN_BOOKIES = 4
"""The number of bookies of a service whose directories an error names."""
LOOKUPS_IN_FLIGHT = 64
"""The number of ledgers whose metadata is read at the same time."""


# -- what all verbs know ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shell:
    """The options of `quire shell` before the verb, and what the verbs derive from them."""

    uri: str | None
    given: Mapping[str, Any]
    """The values that the file of -conf sets, by the key of Quire's configuration."""
    directories: tuple[str, ...]
    local_bookie: str
    ledger_id_format: str
    hex_entries: bool

    def cluster(self) -> str:
        """Return the URI of the metadata store.

        Raises `click.UsageError` if none was given, or if it is not valid.
        """
        from quire.metadata.uri import parse_uri

        if not self.uri:
            raise click.UsageError(f"{WHICH_CLUSTER}, or use -conf bk_server.conf")
        try:
            parse_uri(self.uri)
        except MetadataURIError as error:
            raise click.UsageError(str(error)) from None
        return self.uri

    def client(self, **limits: Any) -> Opening[Client]:
        """Open a client of the cluster. Raises `click.UsageError` as `cluster` does."""
        return connect(self.cluster(), **limits)

    def store(self, *, create: bool = False) -> AbstractAsyncContextManager[MetadataStore]:
        """Open the metadata store of the cluster. Raises `click.UsageError` as `cluster` does."""
        return opened_metadata(self.cluster(), create=create)

    def run(self, command: click.Command, **parameters: Any) -> Any:
        """Run a command of Quire with these parameters, and return its exit status."""
        return click.get_current_context().invoke(command, **parameters)

    def own_directories(self) -> tuple[str, ...]:
        """Return the local bookie's directories.

        Raises `click.UsageError` if there are none, or if the configuration has several bookies.
        """
        if self.directories:
            return self.directories
        from quire.cli.common.configuration import configured

        process = configured().bookie_process()
        found = tuple(self.given.get("bookie.directories", ())) or process.directories
        if not found:
            raise click.UsageError(
                "the directories of the bookie are not given: use -conf bk_server.conf or --dir "
                "DIR before the verb"
            )
        if process.processes > 1:
            raise click.UsageError(_which_of_several(replace(process, directories=found)))
        return found

    def own_id(self) -> str:
        """Return the id of the local bookie. Raises `click.UsageError` if it is not known."""
        if self.local_bookie:
            return self.local_bookie
        from quire.cli.common.configuration import configured

        process = configured().bookie_process()
        several = process.processes > 1
        named = self.given.get("bookie.bookie_id") or process.bookie_id
        if named and not several:  # Several bookies derive their ids from it.
            return str(named)
        for directory in self.directories or self.given.get("bookie.directories", ()):
            if (stored := _stored_id(str(directory))) is not None:
                return stored
        if several:
            raise click.UsageError(
                f"the configuration runs {process.processes} bookies as one service, and the id of "
                "one of them is needed: use -localbookie ID, or --dir DIR with a directory of this "
                "bookie, before the verb"
            )
        if "bookie.port" not in self.given and "bookie.advertise" not in self.given:
            raise click.UsageError(
                "the id of the bookie is not given: use -localbookie ID or -conf bk_server.conf"
            )

        host = self.given.get("bookie.advertise", process.advertise)
        return default_bookie_id(host, self.given.get("bookie.port", process.port))

    def ledger(self, ledger_id: int) -> str:
        """Return a ledger id in the format of -ledgeridformat."""
        if self.ledger_id_format == "hex":
            return f"{ledger_id:x}"
        return str(uuid.UUID(int=ledger_id)) if self.ledger_id_format == "uuid" else str(ledger_id)

    def parse_ledger(self, text: str) -> int:
        """Parse a ledger id in the format of -ledgeridformat.

        Raises ValueError if the text is not in this format, or the id is out of range.
        """
        text = text.strip()
        if self.ledger_id_format == "uuid":
            found = uuid.UUID(text).int
        else:
            found = int(text, 16 if self.ledger_id_format == "hex" else 10)
        if not 0 <= found <= LEDGER_ID_MAX:
            raise ValueError("it is not from 0 to 2**63-1")
        return found

    def entry(self, payload: bytes) -> str:
        """Return a payload in the format of -entryformat."""
        return hex_dump(payload) if self.hex_entries else payload.decode(errors="replace")


def as_ledger_id(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> int | None:
    """Return the ledger id in an option or argument, in the format of -ledgeridformat.

    It is None if the option is not given. Raises `click.BadParameter`.
    """
    shell = context.find_object(Shell)
    if value is None or shell is None:
        return None
    try:
        return shell.parse_ledger(value)
    except ValueError:
        kind = shell.ledger_id_format
        raise click.BadParameter(
            f"{value!r} is not a ledger id in the format {kind} (-ledgeridformat)",
            context,
            parameter,
        ) from None


def _which_of_several(process: BookieProcessConfig) -> str:
    """Return an error that names the directories of each bookie of a service."""
    from quire.cli.servers.processes.division import divide

    shares = divide(process, process.processes)
    each = [" ".join(f"--dir {shlex.quote(path)}" for path in one.directories) for one in shares]
    more = f", and {len(each) - SHOWN_BOOKIES} more" if len(each) > SHOWN_BOOKIES else ""
    return (
        f"the configuration runs {process.processes} bookies as one service, and each has its own "
        "directories: name those of one bookie before the verb, which are "
        f"{' or '.join(each[:SHOWN_BOOKIES])}{more}"
    )


def _stored_id(directory: str) -> str | None:
    from quire.bookie.directories.identity import stored_cookie
    from quire.storage.disk import RealDisk

    try:
        found = stored_cookie(RealDisk(directory, read_only=True))
    except (CookieError, StorageError, OSError):
        return None
    return None if found is None else found.bookie_id


def agreed(question: str, *, what: str, without: str) -> bool:
    """Ask the user for confirmation.

    If standard input is not a terminal, raise an error. It says `what` was not done, such as "the
    recovery was not started", and names the flag `without`, which means yes.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{what}: the command must be confirmed, and there is no terminal to ask. Confirm with "
            f"{without}"
        )
    if asked(question):
        return True
    say("nothing was changed")
    return False


# -- as Apache's tools write it ---------------------------------------------------------------


def bookie_line(bookie_id: str, address: BookieAddress | None) -> str:
    """Describe a bookie as Apache's tools do. Host names are looked up; unknown parts are
    `Unknown`."""
    host, port = ("", 0) if address is None else (address.host, address.port)
    if address is None:
        host, _, digits = bookie_id.rpartition(":")
        port = int(digits) if digits.isdecimal() else 0
    if not host or not port:
        return f"BookieID:{bookie_id}, IP:{UNKNOWN}, Port:{UNKNOWN}, Hostname:{UNKNOWN}"
    try:
        ip = socket.gethostbyname(host)
        name = socket.gethostbyaddr(ip)[0] if ip == host else host
    except OSError:
        ip, name = UNKNOWN, host
    return f"BookieID:{bookie_id}, IP:{ip}, Port:{port}, Hostname:{name}"


def hex_dump(data: bytes) -> str:
    """Return a hex dump with sixteen bytes per line: offset, hexadecimal, and printable text."""
    lines = []
    for at in range(0, len(data), HEX_ROW_BYTES):
        row = data[at : at + HEX_ROW_BYTES]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{at:08X} {row.hex(' ').upper():<47} {text}")
    return "\n".join(lines)


def readable(size_bytes: int) -> str:
    """Return a size such as `79375319040(79.375GB)`, truncated to three decimal places."""
    unit, thousandths = 0, size_bytes * 1000
    while thousandths >= 1_000_000 and unit < 4:
        thousandths //= 1000
        unit += 1
    if unit == 0:
        return str(size_bytes)
    text = f"{thousandths // 1000}.{thousandths % 1000:03}".rstrip("0").rstrip(".")
    return f"{size_bytes}({text}{('', 'KB', 'MB', 'GB', 'TB')[unit]})"
