"""The rooms, whose code is mutated, and the simulator's workloads that exercise each folder.

A room is a folder directly below src/quire.
"""

from __future__ import annotations

from itertools import count, islice

ROOMS = ("core", "storage", "client", "bookie", "replication", "streams")

PACKAGE = "src/quire"

SEEDS_MAX = 300
"""The largest number of seeds that one mutant gets, over all its workloads together."""

WORKLOADS: dict[str, tuple[str, ...]] = {
    "core": ("all", "recovery", "race", "takeover", "fences", "space", "ledger walks"),
    "core/append": ("all", "churn", "deferred", "own ids", "many", "silent", "switch", "takeover"),
    "core/placement": ("all", "racks", "churn", "autorecovery", "decommission", "ledger walks"),
    "storage": ("store walks", "rolled_back", "replaced", "resized", "loading", "full", "all"),
    "storage/background": ("store walks", "space", "index", "amnesia", "spoiled", "replaced"),
    "storage/inspect": ("store walks", "all", "rolled_back", "replaced"),
    "storage/log": ("store walks", "rolled_back", "all", "disk", "full", "torn", "together"),
    "storage/read": ("store walks", "loading", "space", "hostile", "all", "large"),
    "storage/recovery": (
        "rolled_back", "loading", "amnesia", "store walks", "index", "torn", "resized",
    ),
    "storage/segment": ("store walks", "together", "space", "all", "index", "torn"),
    "client": ("all", "recovery", "race", "takeover", "resets", "zombies", "liars", "ledger walks"),
    "client/cluster": ("all", "churn", "racks", "silent", "switch", "liars", "ledger walks"),
    "client/datasets": ("datasets", "ledger walks", "lagging metadata"),
    "client/observability": ("ledger walks", "all"),
    "client/read": (
        "all", "tail", "recovery", "liars", "forgers", "silent", "own ids", "ledger walks",
    ),
    "client/write": (
        "all", "churn", "zombies", "own ids", "deferred", "large", "silent", "switch", "cancelled",
        "calm", "ledger walks",
    ),
    "bookie": ("all", "loading", "protocol walks", "older metadata", "decommission", "sessions"),
    "bookie/background": ("replaced", "decommission", "older metadata", "spoiled", "space", "rot"),
    "bookie/directories": ("replaced", "resized", "rolled_back", "loading", "directories"),
    "bookie/protocol": (
        "protocol walks", "hostile", "together", "loading", "all", "deferred", "fences", "tail",
        "full",
    ),
    "replication": ("replaced", "racks", "decommission", "autorecovery", "repair walks"),
    "replication/audit": ("repair walks", "all", "deferred", "together"),
    "replication/explain": ("repair walks", "all", "deferred", "racks"),
    "replication/marks": ("repair walks", "autorecovery", "racks", "decommission"),
    "replication/repair": (
        "repair walks", "replaced", "decommission", "racks", "resized", "autorecovery",
    ),
    "replication/moves": ("decommission", "resized", "racks", "moving"),
    "streams": ("streams", "relay", "lives", "stream walks"),
    "streams/mirror": ("stream walks",),
    "streams/namespace": ("streams", "relay", "lives", "retention", "topics", "stream walks"),
    "streams/ownership": ("streams", "publishing", "damaged", "stream walks"),
    "streams/publish": ("publishing", "spark"),
    "streams/read": (
        "streams", "lives", "retention", "damaged", "stream walks", "lagging metadata",
    ),
    "streams/write": ("streams", "relay", "lives", "stream walks"),
    "streams/objects": ("objects", "stream walks", "lagging metadata"),
    "streams/statemachine": ("streams", "stream walks"),
    "streams/topics": ("topics", "stream walks"),
}  # fmt: skip
"""The simulator's workloads that exercise each folder below src/quire.

A folder that is not a key has the workloads of the folder that contains it.
"""


def room_of(path: str) -> str:
    """Return the room of a source file, such as "core" for src/quire/core/recovery.py."""
    return path.removeprefix(f"{PACKAGE}/").partition("/")[0]


def workloads_of(path: str) -> tuple[str, ...]:
    """Return the simulator's workloads that exercise the folder of a source file."""
    folder = path.removeprefix(f"{PACKAGE}/")
    while folder not in WORKLOADS:
        folder = folder.rpartition("/")[0]
    return WORKLOADS[folder]


def seeds_of(path: str, seeds_max: int, first_seed: int = 0) -> list[tuple[str, int]]:
    """Return the (workload, seed) pairs for the runs against a mutant of a file.

    There are `seeds_max` of them, from seed `first_seed` on. The workloads alternate, so all of
    them get about the same number of seeds.
    """
    workloads = workloads_of(path)
    turns = ((workload, seed) for seed in count(first_seed) for workload in workloads)
    return list(islice(turns, seeds_max))
