"""The problem of a metadata store that does not answer, or does not answer reliably."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from quire._runtime.units import NAMED_MAX, counted, duration_text, percent_text, some_of
from quire.errors import MetadataUnavailableError, MetadataURIError
from quire.http.views.problems.disks import Disk, disks_of
from quire.http.views.problems.problem import Bookie, Problem
from quire.metadata.outages import START_STORE, Outage
from quire.metadata.sqlite.disk_space import MetadataDisk
from quire.metadata.uri import parse_uri

UNSTEADY_MS = 3_600_000
"""Milliseconds during which outages of the metadata store are reported."""
OUTAGES_NOTICED = "metadata_outages_noticed"
"""The key of the outages that servers noticed, in the overview of a cluster."""
UNSTEADY_MIN = 2
"""The number of outages in that time that makes the store unsteady. One is a restart."""
METADATA_DISK = "The disk of the metadata file is"
"""The first words of the problem of a disk with the metadata file, and of no other problem."""
SLOW_S = 2.0
"""Seconds that the metadata store may take to answer a small request before that is reported."""
SLOW = "answers slowly: a small request waited"
"""Words of the problem of a store that answers slowly, and of no other problem."""
PAUSED = "whether its process is paused (by a signal, its virtual machine or garbage collection)"
UNSTEADY_NEXT = f"Look at the load and the disk of the store, {PAUSED}, and at the network to it"
UNSTEADY_TOGETHER = (
    f"Several servers lost the store at the same time. So look at the store: at its load and disk, "
    f"{PAUSED}, and at the network to it"
)
UNSTEADY_ALONE = (
    "No two servers lost the store at the same time. So look at the machine and the network of "
    "the servers that are named"
)
UNSTEADY_RISK = (
    "If the store is away for longer than the session timeout, bookies are taken for lost"
)
UNSTEADY_DOING = (
    "Bookies and clients wait for the store, and connect again by themselves if they lose it"
)
ASK_WATCHER = (
    "A server that watches the store, such as the dashboard, knows how often it was away in the "
    "last hour: quire explain --server http://HOST:8080"
)


def metadata_lost(uri: str, since_ms: int, error: MetadataUnavailableError) -> Problem:
    """Return the problem of a store that has not answered since this Unix time in milliseconds.

    It names the time only. A page that shows the problem says beside it for how long that is.
    """
    causes = some_of(f"{server}: {why}" for server, why in error.causes.items())
    return Problem(
        "bad",
        f"The metadata store {uri} has not answered since {_utc(since_ms)}"
        f"{f' ({causes})' if causes else ''}",
        find_out(uri, START_STORE),
        "No ledger can be created, opened or repaired until the store answers. Open ledgers can "
        "still be written and read while their bookies run. Everything below is the last known "
        "state",
        "Bookies, clients and this server connect again by themselves",
    )


def metadata_unsteady(uri: str, outages: Iterable[Outage], now_ms: int) -> list[Problem]:
    """Return the problem of a store that answers now, but was away repeatedly."""
    recent = [one for one in outages if one.until_ms >= now_ms - UNSTEADY_MS]
    if len(recent) < UNSTEADY_MIN:
        return []
    often = f"The metadata store did not answer {len(recent)} times"
    return [_unsteady(uri, often, recent[-1], now_ms)]


def metadata_slow(uri: str, longest_s: float) -> list[Problem]:
    """Return the problem of a store that took long to answer while the cluster was examined.

    `longest_s` is the longest time in seconds that a small request had to wait. A store in a file
    is not judged: it waits only for the disk and the processors of this machine.
    """
    if longest_s < SLOW_S or uri.startswith("sqlite:"):
        return []
    return [
        Problem(
            "warn",
            f"The metadata store {uri} {SLOW} {longest_s:.1f} s for its answer",
            f"{find_out(uri, UNSTEADY_NEXT)}. {ASK_WATCHER}",
            "Programs wait as long when they create, open or close ledgers, or store positions. "
            f"{UNSTEADY_RISK}",
            UNSTEADY_DOING,
        )
    ]


def of_noticed_outages(
    uri: str, noticed: Mapping[str, Sequence[Outage]], now_ms: int
) -> list[Problem]:
    """Return the problem of a store that servers have lost repeatedly in the last hour.

    `noticed` has the outages that each server has noticed. The server may have lost only its
    network, so the problem names the servers.
    """
    if not unsteady(noticed.values()):
        return []
    outages = together(one for found in noticed.values() for one in found)
    counts = sum(map(len, noticed.values()))
    most_first = sorted(noticed.items(), key=lambda one: (-len(one[1]), one[0]))
    named = some_of(f"{server} ({counted(len(found), 'time')})" for server, found in most_first)
    often = (
        f"{counted(len(noticed), 'server')} noticed {counted(len(outages), 'outage')} of the "
        "metadata store"
    )
    first = UNSTEADY_TOGETHER if counts > len(outages) else UNSTEADY_ALONE
    return [_unsteady(uri, often, outages[-1], now_ms, f": {named}", first)]


def of_metadata_disk(disk: MetadataDisk | None, bookies: Iterable[Bookie] = ()) -> list[Problem]:
    """Return the problem of a disk that is full or nearly full, and that has the metadata file.

    A disk that is nearly full is reported for the bookie instead if one of `bookies` uses it too.
    None as `disk` means that this machine has no metadata file, or that its disk is not known.
    """
    if disk is None or not disk.total_bytes:
        return []
    free = (
        f"On this machine, see what takes the space: du -xh {shlex.quote(_directory(disk))}. "
        "Then delete other files on that disk, or make it larger"
    )
    if disk.full:
        return [
            Problem(
                "bad",
                f"{METADATA_DISK} full: {disk}",
                f"{free}. Never delete the files whose names begin with {_name(disk)}",
                "No ledger can be created, closed or repaired. Bookies cannot keep their "
                "registrations, so they seem to be lost",
                "Bookies and clients go on by themselves when there is space again",
            )
        ]
    own = Disk(disk.path, disk.free_bytes, disk.total_bytes)
    if not own.nearly_full or any(own.same_as(one) for each in bookies for one in disks_of(each)):
        return []
    return [
        Problem(
            "warn",
            f"{METADATA_DISK} nearly full: {percent_text(own.used)} of it is used ({disk})",
            free,
            "When it is full, no ledger can be created, closed or repaired, and bookies lose their "
            "registrations",
        )
    ]


def _directory(disk: MetadataDisk) -> str:
    return str(Path(disk.path).parent)


def _name(disk: MetadataDisk) -> str:
    return shlex.quote(Path(disk.path).name)


def together(noticed: Iterable[Outage]) -> list[Outage]:
    """Return the outages in the order of time, and merge those that overlap.

    Servers notice the same outage of the store at slightly different times.
    """
    merged: list[Outage] = []
    for one in sorted(noticed, key=_since_ms):
        if merged and one.since_ms <= merged[-1].until_ms:
            last = merged[-1]
            merged[-1] = Outage(last.since_ms, max(last.until_ms, one.until_ms))
        else:
            merged.append(one)
    return merged


def _unsteady(
    uri: str, often: str, last: Outage, now_ms: int, more: str = "", first: str = UNSTEADY_NEXT
) -> Problem:
    """Return the problem of outages in the last hour.

    `often` says how many outages there were, and who noticed them. `last` is the last outage, and
    `more` names the servers. `first` is the advice on what to look at first.
    """
    ago, away = (
        duration_text(max(0, ms) / 1000)
        for ms in (now_ms - last.until_ms, last.until_ms - last.since_ms)
    )
    return Problem(
        "warn",
        f"{often} in the last hour, the last time {ago} ago for {away}{more}",
        find_out(uri, first),
        UNSTEADY_RISK,
        UNSTEADY_DOING,
    )


def unsteady(noticed: Iterable[Sequence[object]]) -> bool:
    """Return whether one of the servers has noticed enough outages for a problem."""
    return any(len(outages) >= UNSTEADY_MIN for outages in noticed)


def _since_ms(outage: Outage) -> int:
    return outage.since_ms


def find_out(uri: str, first: str) -> str:
    """Return what to do first, and the commands that ask the servers of ZooKeeper."""
    servers = servers_of(uri)
    if not servers:
        return first
    ask = "; ".join(
        f"echo srvr | curl -sm 3 {shlex.quote(f'telnet://{server}')}"
        for server in servers[:NAMED_MAX]
    )
    return (
        f"{first}. To ask each server for its role and its latency: {ask}. In the log of a server, "
        "look for fsync and expired: its disk may be slow, or its machine overloaded. A server "
        "that is silent for seconds and then reports a low latency was paused"
    )


def servers_of(uri: str) -> Sequence[str]:
    """Return the servers of a metadata store as HOST:PORT. A store in a file has none."""
    try:
        return parse_uri(uri).servers
    except MetadataURIError:
        return ()


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
