"""The division of one configuration among the bookies of a service.

Bookie K of N has the directory `bookie-K` in each data directory that it uses. If there are at
least N data directories, they are dealt out in turn, and no two bookies share one. Otherwise the
bookies are dealt out, and each of them uses one data directory. So a bookie writes to as few disks
as possible, and as few bookies as possible sync the same disk.

A start that leaves out a bookie of an earlier start would lose that bookie. The directory of the
bookie shows that it was there, so such a start is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from quire._runtime.units import host_port
from quire.configuration.fields import BookieProcessConfig
from quire.configuration.layers import Layer, options_layer
from quire.errors import UsageError

PORT_MAX = 65_535
_NAME = re.compile(r"bookie-(\d{1,4})")
_SHARE = re.compile(r"(\d{1,4})/(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the configuration that one bookie of the service has for itself."""

    number: int
    """The number of the bookie in the service, from 0 on."""
    count: int
    """The number of bookies of the service."""
    directories: tuple[str, ...]
    port: int
    """The port of the bookie. 0 means any free port."""
    bookie_id: str
    """The id of the bookie. Empty means the one that its directory stores, or ADVERTISE:PORT."""
    advertise: str
    autorecovery: bool
    """Whether the process also runs autorecovery. Only that of the first bookie does, so that a
    machine has one repair worker however many bookies it has."""

    @property
    def name(self) -> str:
        """The id of a new bookie with this share, for messages."""
        return self.bookie_id or (host_port(self.advertise, self.port) if self.port else self.label)

    @property
    def label(self) -> str:
        """The share in the form of the option `--share`."""
        return f"{self.number}/{self.count}"

    def layer(self) -> Layer:
        """Return the layer of configuration that has the values of this share."""
        origin = f"--share {self.label}"
        return options_layer(
            {
                "bookie.directories": (self.directories, origin),
                "bookie.port": (self.port, origin),
                "bookie.bookie_id": (self.bookie_id or None, origin),
                "bookie.autorecovery": (self.autorecovery, origin),
            }
        )


def divide(process: BookieProcessConfig, count: int) -> list[Share]:
    """Return the share of each of `count` bookies.

    Raises:
        UsageError: There are not enough ports.
    """
    if process.port and process.port + count - 1 > PORT_MAX:
        raise UsageError(
            f"{count} bookies need the ports {process.port} to {process.port + count - 1}, but the "
            f"largest port is {PORT_MAX}",
            remedy="Choose a smaller port",
        )
    return [
        Share(
            number,
            count,
            directories,
            process.port + number if process.port else 0,
            f"{process.bookie_id}-{number}" if process.bookie_id else "",
            process.advertise,
            process.autorecovery and number == 0,
        )
        for number, directories in enumerate(_places(process.directories, count))
    ]


def _places(directories: Sequence[str], count: int) -> list[tuple[str, ...]]:
    """Return the directories of each of `count` bookies."""
    places: list[list[str]] = [[] for _ in range(count)]
    for turn in range(max(count, len(directories))):
        number = turn % count
        places[number].append(
            os.path.join(directories[turn % len(directories)], f"bookie-{number}")
        )
    return [tuple(paths) for paths in places]


def check_places(directories: Sequence[str], shares: Sequence[Share]) -> None:
    """Check that this start runs every bookie that has used these data directories.

    Args:
        directories: The data directories of the configuration.
        shares: The shares of the service. It is empty for a bookie that uses the directories
            themselves.

    Raises:
        UsageError: A directory holds a bookie that would not be started.
    """
    planned = {path for share in shares for path in share.directories}
    used = [path for directory in directories for path in _used(directory)]
    if shares:
        for directory in directories:
            if _holds_bookie(directory):
                raise UsageError(
                    f"the data directory {directory} belongs to a bookie that was started without "
                    f"--processes, and {len(shares)} processes would not start it",
                    remedy="Give directories that no such bookie has used. The old bookie can run "
                    "beside the new ones until it is decommissioned",
                )
    left_out = [path for path in used if path not in planned]
    if not left_out:
        return
    path, more = left_out[0], len(left_out) - 1
    others = f" (and {more} more)" if more else ""
    how = f"--processes {len(shares)}" if shares else "one process"
    highest = max(_number(one) for one in left_out)
    remedy = (
        f"Start with --processes {highest + 1} or more"
        if highest >= max(1, len(shares))
        else "Give the data directories and the number of processes of the earlier start"
    )
    raise UsageError(
        f"{path}{others} holds a bookie of an earlier start, which a start with {how} and these "
        "directories would leave out; nothing was started",
        remedy=f"{remedy}. To run fewer bookies, first decommission those with the highest "
        "numbers (`quire bookie decommission`), and remove their directories",
    )


def _used(directory: str) -> list[str]:
    """Return the directories of numbered bookies in a data directory, in the order of their
    numbers. A data directory that cannot be listed has none here: its bookie reports the error."""
    names: list[str] = []
    with suppress(OSError):
        names = [one for one in os.listdir(directory) if _NAME.fullmatch(one)]
    paths = sorted((os.path.join(directory, one) for one in names), key=_number)
    return [path for path in paths if _holds_bookie(path)]


def _number(path: str) -> int:
    return int(os.path.basename(path).removeprefix("bookie-"))


def _holds_bookie(directory: str) -> bool:
    return os.path.isdir(os.path.join(directory, "current"))


def parse_share(text: str) -> tuple[int, int]:
    """Return the number and the count of K/N. Raises UsageError for another text."""
    found = _SHARE.fullmatch(text)
    if found is None or not 0 <= int(found[1]) < int(found[2]):
        raise UsageError(f"{text!r} is not a share of a service: give K/N with K from 0 to N-1")
    return int(found[1]), int(found[2])


def check_ports(port: int, http_port: int | None, count: int) -> None:
    """Raise UsageError if the ports of the bookies and those of HTTP overlap.

    The bookies use `count` ports from `port` on. The HTTP server of the service uses `http_port`,
    and those of the bookies use the ports after it. 0 means any free port, and None no HTTP.
    """
    if not port or not http_port:
        return
    last, http_last = port + count - 1, http_port + count
    if http_last > PORT_MAX:
        raise UsageError(
            f"the HTTP servers of {count} bookies need the ports {http_port} to {http_last}, but "
            f"the largest port is {PORT_MAX}",
            remedy="Choose a smaller port for --http",
        )
    if port <= http_last and http_port <= last:
        raise UsageError(
            f"the bookies need the ports {port} to {last}, and HTTP the ports {http_port} to "
            f"{http_last}: choose --port and --http farther apart"
        )
