"""The list of bookies: each with its state, location, disk space and rates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from quire._runtime.names.in_commands import COMMANDS_MAX
from quire._runtime.tasks import each
from quire._runtime.units import host_port
from quire.core.placement.tables import parse_groups
from quire.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    UsageError,
)
from quire.metadata.bookies import tls_files
from quire.metadata.bookies.orders import stored_order
from quire.metadata.bookies.start_commands import read_start_command
from quire.metadata.bookies.unwritable import FULL, from_properties
from quire.replication.explain.silence import SilenceKind, data_directories

if TYPE_CHECKING:
    from quire.client import Client
    from quire.http.watch.known_reports import KnownReports
    from quire.http.watch.observations import DiskSpaces, GonePorts
    from quire.http.watch.rates import Rates
    from quire.metadata.interface import Bookies, MetadataStore

NEARLY_FULL = 0.8
"""The used share from which on a disk is nearly full if at most `NEARLY_FULL_BYTES` are free."""
NEARLY_FULL_BYTES = 20 * 10**9
"""The largest number of free bytes with which a disk is nearly full at the share `NEARLY_FULL`."""
CERTAINLY_NEARLY_FULL = 0.9
"""The used share from which on every disk is nearly full, however large it is."""
GONE_NAMED_MAX = COMMANDS_MAX
"""The largest number of bookies that do not run whose data directories and start commands are
looked up."""
LOCATIONS_NODE = "/bookies"
"""The metadata node with the location of each bookie, as Pulsar and `quire cluster locations` write
it."""


async def bookie_facts(
    client: Client,
    *,
    gone: bool = False,
    spaces: DiskSpaces | None = None,
    rates: Rates | None = None,
    reports: KnownReports | None = None,
    ports: GonePorts | None = None,
) -> list[dict[str, Any]]:
    """Return a description of each bookie, sorted by id.

    Args:
        client: The client to ask.
        gone: Whether to include bookies that have a cookie and are not registered.
        spaces: If given, each description has the free space, and `answers` says whether the bookie
            answered. `answers` is None if the bookie was not asked yet. `silence` says why it did
            not answer, and `certificate_expires_ms` when its certificate expires. `directories` has
            the data directories of the bookie's cookie, if little space is free, or if the bookie
            reports damage. The first `GONE_NAMED_MAX` bookies whose process does not run have it
            too, and also `start_command`, if the command that started them is known. `fullness` is
            "warn" if a disk of the bookie is nearly full or full, and otherwise "". It is the
            severity of the problem that reports the disk. Each of the `disks` has it, too.
        rates: If given, each description has what the bookie's metrics show: rates, the space of
            each disk, suspended compaction, damage, and the free space that it needs.
        reports: If given, each description has the last report of the bookie as `report`, or None.
            `report_refused` says whether its HTTP server last refused to give one.
        ports: If given, `probe` of the first `GONE_NAMED_MAX` bookies that are not registered says
            how the bookie's address answers: "refused", "accepted", "silent", or None if
            that is not known.

    Raises:
        MetadataError: The metadata store did not answer.
    """
    found = await client.bookies()
    where = await locations(client.metadata)
    registered = {**found.readonly, **found.writable}
    names = {*registered, *(await client.metadata.list_cookies() if gone else ())}
    # All may wait for an observation, so they wait at the same time.
    gone_ones = sorted(names - registered.keys())[:GONE_NAMED_MAX]
    space, current, known, probes = await asyncio.gather(
        spaces.of(client, registered) if spaces is not None else _nothing(),
        rates.of(registered) if rates is not None else _nothing(),
        reports.of(registered) if reports is not None else _nothing(),
        ports.of(client, gone_ones) if ports is not None else _nothing(),
    )
    orders = await _orders(client.metadata, [name for name in names if name in found.readonly])
    listed = []
    for name in sorted(names):
        described = {
            **_described(found, name), "location": where.get(name), "order": orders.get(name)
        }  # fmt: skip
        if spaces is not None:
            one = space.get(name) if name in registered else None
            answers = one is not None if name in registered and name in space else None
            silence = spaces.silent.get(name) if answers is False else None
            described |= {
                "free_bytes": one.free_bytes if one is not None else None,
                "total_bytes": one.total_bytes if one is not None else None,
                "space_age_s": spaces.age_s,
                "answers": answers,
                "silence": None if silence is None else asdict(silence),
                "certificate_expires_ms": spaces.certificates_ms.get(name),
            }
        if rates is not None:
            described["rates"] = current.get(name)
            described["free_shares"] = dict(rates.directories.get(name, {}))
            described["disks"] = [
                {
                    "directory": path,
                    "free_bytes": int(free),
                    "total_bytes": int(total),
                    "fullness": disk_fullness(free, total),
                }
                for path, (free, total) in rates.disks.get(name, {}).items()
            ]
            described["compaction_suspended"] = rates.suspended.get(name, [])
            described["damaged"] = rates.damaged.get(name)
            described["min_free_bytes"] = rates.min_free_bytes.get(name)
        if spaces is not None:
            described["fullness"] = bookie_fullness(described)
        if reports is not None:
            described["report"] = known.get(name)
            described["report_refused"] = name in reports.refused
        if ports is not None:
            described["probe"] = probes.get(name)
        listed.append(described)
    if spaces is not None:
        away = [one for one in listed if _is_down(one)][:GONE_NAMED_MAX]
        await _add_start_commands(client.metadata, away)
        full = [one for one in listed if nearly_full(one) or damaged(one)]
        await _add_directories(client.metadata, [*away, *full])
    return listed


def _is_down(described: Mapping[str, Any]) -> bool:
    """Return whether a bookie is known not to run: it is not registered, or refuses connections."""
    silence = described.get("silence")
    refused = silence is not None and silence["kind"] == SilenceKind.REFUSED
    return bool(described["state"] == "gone" or refused)


def nearly_full(described: Mapping[str, Any]) -> bool:
    """Return whether a disk of a bookie is nearly full.

    A disk of unknown size does not count as nearly full.
    """
    pairs = [(described.get("free_bytes"), described.get("total_bytes"))]
    pairs += [(one["free_bytes"], one["total_bytes"]) for one in described.get("disks", ())]
    return any(total and disk_nearly_full(free or 0, total) for free, total in pairs)


def disk_nearly_full(free_bytes: float, total_bytes: float) -> bool:
    """Return whether a disk is nearly full.

    A disk is nearly full if the used share is at least `CERTAINLY_NEARLY_FULL`. A small disk is
    nearly full from the share `NEARLY_FULL` on, because the last `NEARLY_FULL_BYTES` are soon used
    up.
    """
    used = 1 - free_bytes / total_bytes
    return used >= CERTAINLY_NEARLY_FULL or (
        used >= NEARLY_FULL and free_bytes <= NEARLY_FULL_BYTES
    )


def disk_fullness(free_bytes: float | None, total_bytes: float | None) -> Literal["", "warn"]:
    """Return "warn" if a disk is nearly full, and otherwise "".

    A disk of unknown size (None or 0) does not count as nearly full. Unknown free space counts as
    none.
    """
    return "warn" if total_bytes and disk_nearly_full(free_bytes or 0, total_bytes) else ""


def bookie_fullness(described: Mapping[str, Any]) -> Literal["", "warn"]:
    """Return "warn" if a disk of a bookie is nearly full or too full for it, and otherwise ""."""
    full = any(reason["why"] == FULL for reason in described["unwritable"] or ())
    return "warn" if full or nearly_full(described) else ""


def damaged(described: Mapping[str, Any]) -> bool:
    """Return whether a bookie reports damaged segments."""
    found = described.get("damaged")
    return bool(found and found["segments"])


async def _add_directories(store: MetadataStore, bookies: list[dict[str, Any]]) -> None:
    """Add the key `directories` to the descriptions of bookies, from their cookies."""

    async def read(described: dict[str, Any]) -> None:
        if found := await data_directories(store, described["id"]):
            described["directories"] = list(found)

    await each(bookies, read)


async def _add_start_commands(store: MetadataStore, bookies: list[dict[str, Any]]) -> None:
    """Add the key `start_command` to the descriptions of bookies whose command is known."""

    async def read(described: dict[str, Any]) -> None:
        if found := await read_start_command(store, described["id"]):
            described["start_command"] = asdict(found)

    await each(bookies, read)


async def _orders(store: MetadataStore, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the order of an operator to each of these bookies, by bookie id, as JSON.

    A bookie without an order, or with one that cannot be decoded, is missing.
    """

    async def read(name: str) -> dict[str, Any] | None:
        try:
            found = await stored_order(store, name)
        except MetadataUnavailableError:
            raise
        except MetadataError:
            return None  # the bookie itself reports an order that it does not understand
        return None if found is None else {**asdict(found.value), "what": found.value.what.value}

    answers = zip(names, await each(names, read))
    return {name: order for name, order in answers if order is not None}


async def _nothing() -> dict[str, Any]:
    return {}


def _described(found: Bookies, name: str) -> dict[str, Any]:
    address = found.find(name)
    if address is None:
        return {
            "id": name, "state": "gone", "host": None, "port": None, "tls": None, "http": [],
            "unwritable": None, "tls_files": None,
        }  # fmt: skip
    reasons = from_properties(address.properties)
    files = tls_files.from_properties(address.properties)
    if reasons is None and name in found.writable:
        reasons = ()
    return {
        "id": name,
        "state": "writable" if name in found.writable else "read-only",
        "host": address.host,
        "port": address.port,
        "tls": address.tls,
        "http": [f"{one.protocol}://{host_port(one.host, one.port)}" for one in address.others],
        "unwritable": None if reasons is None else [asdict(one) for one in reasons],
        "tls_files": None if files is None else asdict(files),
    }


async def locations(store: MetadataStore) -> dict[str, str]:
    """Return the location of each bookie, by bookie id.

    A table that cannot be parsed counts as empty here, because clients report it.
    """
    try:
        return parse_groups((await store.tree.read(LOCATIONS_NODE)).value)
    except (NoSuchKeyError, UsageError):
        return {}
