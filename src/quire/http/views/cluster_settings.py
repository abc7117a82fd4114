"""The settings of a whole cluster, which are in the metadata store and apply to every process."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from quire._runtime.units import counted, some_of
from quire.client import Client
from quire.codec.metadata.underreplication import (
    CHECKED_LEDGERS,
    CHECKED_PLACEMENT,
    CHECKED_REPLICAS,
    DELAY,
    DISABLE,
)
from quire.core.placement.tables import parse_groups
from quire.errors import NoSuchKeyError, UsageError
from quire.http.views.bookie_list import LOCATIONS_NODE
from quire.http.views.ledger_json import time_text
from quire.metadata.bookies.collection import SWITCH_NODE, read_switch
from quire.metadata.bookies.orders import NODE as ORDERS_NODE
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.unreadable import UNREADABLE, reason_of
from quire.replication.autorecovery.election import auditor_of
from quire.replication.marks.marks import ReplicationMarks
from quire.replication.marks.pauses import Pauses


@dataclass(frozen=True, slots=True)
class ClusterSetting:
    """One setting of the cluster, or a fact such as its instance id, which is listed with them."""

    name: str
    value: str
    meaning: str
    default: str = ""
    """The value in a new cluster. Empty if there is no default."""
    changed: bool = False
    """Whether the value differs from that of a new cluster."""
    node: str = ""
    """The node of the metadata store that has the value. Empty if it is not one node."""
    command: str = ""
    """The command that changes it. Empty if nothing does."""


async def cluster_settings(client: Client) -> list[dict[str, Any]]:
    """Return the settings of a cluster as JSON. Raises MetadataError. Safe to cancel."""
    store = client.metadata
    found = await asyncio.gather(
        _identity(store),
        _autorecovery(store),
        _delay(store),
        _collection(store),
        _locations(store),
        _orders(store),
        _pauses(store),
        _checks(store),
    )
    return [asdict(one) for part in found for one in part]


async def _identity(store: MetadataStore) -> list[ClusterSetting]:
    return [
        ClusterSetting("metadata", store.uri, "The URI of the metadata store."),
        ClusterSetting(
            "instance id",
            await store.instance_id(),
            "The identity of the cluster. Each data directory belongs to one cluster for good.",
        ),
    ]


async def _autorecovery(store: MetadataStore) -> list[ClusterSetting]:
    marks = ReplicationMarks(store)
    enabled, auditor = await asyncio.gather(marks.enabled(), auditor_of(store))
    return [
        ClusterSetting(
            "autorecovery",
            "on" if enabled else "off",
            "Whether auditors look for lost bookies and workers repair ledgers. It applies to "
            "Apache's processes as well.",
            "on",
            not enabled,
            f"{marks.root}/{DISABLE}",
            f"quire autorecovery {'disable' if enabled else 'enable'}",
        ),
        ClusterSetting(
            "auditor",
            auditor.owner if auditor is not None else "none",
            "The process that looks for lost bookies now.",
            command="" if auditor is not None else "quire autorecovery start",
        ),
    ]


async def _delay(store: MetadataStore) -> list[ClusterSetting]:
    marks = ReplicationMarks(store)
    try:
        delay_s = await marks.delay_s()
        value = counted(delay_s, "second")
    except UNREADABLE as error:
        delay_s, value = -1, f"unreadable: {reason_of(error)}"
    return [
        ClusterSetting(
            "lost bookie delay",
            value,
            "The time that the auditor waits for a single lost bookie to return before its ledgers "
            "are copied.",
            "0 seconds",
            delay_s != 0,
            f"{marks.root}/{DELAY}",
            "quire autorecovery delay SECONDS",
        )
    ]


async def _collection(store: MetadataStore) -> list[ClusterSetting]:
    switch = await read_switch(store)
    return [
        ClusterSetting(
            "garbage collection",
            "on" if switch is None else f"off: {switch.sentence()}",
            "Whether bookies free the space of deleted ledgers.",
            "on",
            switch is not None,
            f"{ReplicationMarks(store).root}/{SWITCH_NODE}",
            f"quire cluster gc {'off' if switch is None else 'on'}",
        )
    ]


async def _locations(store: MetadataStore) -> list[ClusterSetting]:
    try:
        known = parse_groups((await store.tree.read(LOCATIONS_NODE)).value)
        value = counted(len(known), "bookie") if known else "none"
    except NoSuchKeyError:
        known, value = {}, "none"
    except UsageError as error:
        known, value = {}, f"unreadable: {error.args[0]}"
    return [
        ClusterSetting(
            "locations",
            value,
            "The racks of bookies, for clients whose placement has locations=metadata.",
            "none",
            value != "none",
            LOCATIONS_NODE,
            "quire cluster locations set BOOKIE LOCATION",
        )
    ]


async def _orders(store: MetadataStore) -> list[ClusterSetting]:
    path = f"{ReplicationMarks(store).root}/{ORDERS_NODE}"
    try:
        names = sorted(await store.tree.children(path))
    except NoSuchKeyError:
        names = []
    return [
        ClusterSetting(
            "bookies being decommissioned",
            some_of(names) if names else "none",
            "The bookies that an operator ordered to be emptied. They accept no entries of "
            "writers.",
            "none",
            bool(names),
            path,
            "quire bookie decommission BOOKIE --cancel" if names else "",
        )
    ]


async def _pauses(store: MetadataStore) -> list[ClusterSetting]:
    paused = [f"{one.kind} {one.target}" for one in await Pauses(store).all()]
    return [
        ClusterSetting(
            "paused jobs",
            some_of(paused) if paused else "none",
            "The jobs that no process continues until somebody resumes them.",
            "none",
            bool(paused),
            command="quire cluster resume KIND TARGET" if paused else "",
        )
    ]


async def _checks(store: MetadataStore) -> list[ClusterSetting]:
    marks = ReplicationMarks(store)
    names = (
        ("last check of ledgers", CHECKED_LEDGERS, "of the first and last entry of every replica"),
        ("last check of replicas", CHECKED_REPLICAS, "of the entry lists of all bookies"),
        ("last check of placement", CHECKED_PLACEMENT, "whether placement follows the policy"),
    )
    times = await asyncio.gather(*(marks.checked_ms(node) for _, node, _ in names))
    return [
        ClusterSetting(
            name,
            (time_text(at_ms) if at_ms is not None else None) or "never",
            f"When the auditor last completed its check {what}.",
            node=f"{marks.root}/{node}",
        )
        for (name, node, what), at_ms in zip(names, times, strict=True)
    ]
