"""The workloads: how many ledgers of which kind, which other clients, and which faults."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire_simulator.plans.faults import (
    ALL_KINDS,
    BETWEEN_TWO,
    BOOKIE_KINDS,
    CLIENT_KINDS,
    DIRECTORY_KINDS,
    DISORDER_KINDS,
    FLOW_KINDS,
    FULL_KINDS,
    HEALER_KINDS,
    HOSTILE_KINDS,
    INDEX_KINDS,
    ISLAND_KINDS,
    JOB_KINDS,
    LAG_KINDS,
    LIES,
    LOAD_KINDS,
    LOG_FILE_KINDS,
    MOVE_KINDS,
    OLDER_KINDS,
    RACK_KINDS,
    REPLACEMENT_KINDS,
    RESET_KINDS,
    RESIZE_KINDS,
    ROLLBACK_KINDS,
    SILENT_KINDS,
    UNREADABLE_KINDS,
    WRITER_KINDS,
)

RACKS = 4


@dataclass(frozen=True, slots=True)
class Mix:
    """The composition of a workload.

    Shares are probabilities for each ledger, unless a field says otherwise.
    """

    kinds: tuple[str, ...]
    """The kinds of faults."""
    faults: tuple[int, int]
    ledgers: tuple[int, int] = (2, 4)
    takeover: float = 0.6
    """The share of ledgers that are recovered while their writer may still write."""
    recoverers: tuple[int, ...] = (1, 2, 2, 3)
    """The choices for the number of recoverers that begin at almost the same moment."""
    tail: float = 0.6
    readers: tuple[int, int] = (0, 2)
    """The range of the number of clients that open the ledger without recovery at any time."""
    eager: int = 0
    """The number of readers of each ledger that begin when it is closed."""
    delete: float = 0.25
    deferred: float = 0.12
    """The share with deferred sync, where only `force` makes entries durable."""
    own_ids: float = 0.12
    """The share whose writer chooses its entry ids."""
    large: float = 0.05
    """The share with entries larger than one socket read or the network window."""
    crowd: float = 0.04
    """The share of runs with dozens of small ledgers."""
    sparse: bool = False
    """Whether writers write few entries over the whole time."""
    busy: bool = False
    """Whether writers write without pause, and recoverers come meanwhile."""
    idle: float = 0.1
    """The share whose writer does nothing for a while."""
    uneven: float = 0.3
    """The share of runs in which each route between a client and a bookie has its own delay."""
    tight: float = 0.1
    """The share of runs with only as many bookies as the ensembles need."""
    bookies_min: int = 0
    """The smallest number of bookies in all other runs."""
    metadata_delays_s: tuple[float, ...] = (0.0, 0.002, 0.05, 0.3)
    """The choices for the longest delay of a call of the metadata store."""
    datasets: float = 0.05
    """The share of runs in which ledgers are published as datasets, and swept."""
    objects: float = 0.0
    """The share of runs with objects that several clients put, get, delete and sweep."""
    topics: float = 0.0
    """The share of runs with topics that several clients create, write, read and delete."""
    streaming: float = 0.0
    """The share of runs with streams."""
    streams: tuple[int, int] = (1, 1)
    streams_mostly: str = ""
    """The main kind of stream work.

    relay: one process after the other writes a stream. lives: streams are truncated, renamed,
    deleted and recreated while writers sleep. retention: many small segments are truncated at any
    place, by age and by size. publishing: drivers publish batches. spark: a
    query reads all streams but the last, and writes to the last. damaged: ledgers of segments in
    progress are deleted, and nodes of segments cannot be read.
    """
    shapes: tuple[tuple[int, int, int], ...] = ()
    """The possible shapes of ledgers, or empty for all."""
    bit_rot: bool = False
    """Whether the disk of bookie-0 rots and bookies scrub their data. All entries have one more
    copy.
    """
    healing: bool = False
    """Whether autorecovery runs."""
    compacting: bool = False
    """Whether bookies compact their logs, with small segments that many ledgers share."""
    hostile: bool = False
    """Whether bookies have limits that hostile clients reach, and what they hold is measured."""
    short_segments: bool = False
    """Whether segments are as small as with compaction, so that logs have several."""
    caching: bool = False
    """Whether bookies write their index caches all the time, and not only at clean stops."""
    slow_starts: bool = False
    """Whether bookies take time to load their logs, and serve reads meanwhile."""
    byzantine: bool = False
    """Whether bookie-0 is Byzantine, and clients assume one Byzantine bookie."""
    directories: tuple[int, ...] = (1,)
    """The choices for the number of data directories of each bookie."""
    replacing: bool = False
    """Whether disks of bookie-0 die and are replaced."""
    racked: bool = False
    """Whether bookies are in racks, and ensembles must span several racks."""
    moving: bool = False
    """Whether bookies join later, and all those that were there first are decommissioned, while
    long-lived readers keep their handles.
    """
    older_metadata: bool = False
    """Whether the metadata store is rolled back. Ledgers are then created over the whole time, and
    bookies raise their marks often.
    """
    metadata_lags: float = 0.0
    """The share of runs in which servers of the metadata store lag behind the others."""
    cancelling: tuple[float, ...] = (0.0,)
    """The choices for the share of clients' calls that are cancelled."""
    jobs: bool = False
    """Whether operators decommission a bookie and rebalance."""
    small_metadata: bool = False
    """Whether ledgers reach the largest size of their metadata after a few ensemble changes."""
    walks: float = 0.0
    """The share of runs that end with a walkthrough (`quire_simulator.actors.walkthroughs`)."""
    walks_mostly: str = ""
    """The kind of walkthroughs: "ledgers", "streams", or empty for any."""
    together: bool = False
    """Whether one client writes all ledgers, an entry to each in turn."""
    shuttling: bool = False
    """Whether operators move ledgers away from bookies and back, again and again."""


PLACED = Mix((), (0, 0), crowd=0.0, datasets=0.0, tight=0.0)
"""A base with few ledgers and with spare bookies, for workloads about placement."""
WALKS = replace(
    PLACED,
    kinds=("pause client",),
    ledgers=(0, 0),
    metadata_delays_s=(0.0, 0.002),
    walks=1.0,
)
"""A base without a ledger of other clients, whose runs consist of a walkthrough."""
STREAMED = Mix((), (0, 0), ledgers=(0, 0), crowd=0.0, datasets=0.0, streaming=1.0)


LOST_DATA = Mix(
    ("rot, crash", "rot, crash", "rot, crash", "kill client", "kill client", "crash"),
    (4, 12),
    ledgers=(6, 10),
    takeover=0.3,
    tail=0.2,
    delete=0,
    tight=0.0,
    bookies_min=5,
    datasets=0.0,
    bit_rot=True,
)

WORKLOADS: dict[str, Mix] = {
    "all": Mix(
        ALL_KINDS,
        (2, 14),
        objects=0.05,
        streaming=0.1,
        metadata_lags=0.1,
        cancelling=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.5),
    ),
    "calm": Mix(("pause client",), (0, 0), crowd=0.3, uneven=0.7),
    "lagging": Mix(
        ("pause client",),
        (0, 0),
        ledgers=(4, 8),
        takeover=0.2,
        tail=0.2,
        readers=(0, 0),
        eager=3,
        delete=0.0,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        busy=True,
        uneven=1.0,
        shapes=((3, 3, 2), (3, 2, 1), (2, 2, 1), (4, 3, 2), (5, 3, 2), (3, 3, 1)),
    ),
    "recovery": Mix(
        (*CLIENT_KINDS, "crash", "kill", "crash member in write", *BETWEEN_TWO),
        (2, 10),
        takeover=1.0,
        delete=0,
    ),
    "disk": Mix(BOOKIE_KINDS, (3, 12)),
    "tail": Mix((*BETWEEN_TWO, "crash", "pause", "slow network"), (2, 10), tail=1.0),
    "delete": Mix(
        ("crash", "restart", "metadata fails", "pause client", "rolling crash"),
        (1, 8),
        takeover=0.8,
        delete=0.7,
        idle=0.5,
        tight=0.5,
    ),
    "rot": Mix(
        ("rot", "rot", "rot, crash", "flip", "lose disk", "restart", "crash", "kill client", "kill",
         "cut"),
        (4, 12),
        tight=0.0,
        bookies_min=5,
        datasets=0.0,
        bit_rot=True,
    ),
    "rolling": Mix(("rolling restart", "restart", "pause client"), (1, 3)),
    "deferred": Mix(
        (*BOOKIE_KINDS, "crash member", *CLIENT_KINDS, "power loss everywhere", "cut"),
        (2, 10),
        deferred=1.0,
    ),
    "own ids": Mix((*BOOKIE_KINDS, "crash member", *CLIENT_KINDS, "cut"), (1, 8), own_ids=1.0),
    "large": Mix((*BOOKIE_KINDS, *BETWEEN_TWO, "slow network"), (1, 6), ledgers=(1, 2), large=1.0),
    "many": Mix(ALL_KINDS, (1, 6), crowd=1.0),
    "churn": Mix(
        ("crash member", "crash member", "crash fastest member", "expire session", "kill client",
         "slow metadata"),
        (8, 24),
        takeover=1.0,
        delete=0.05,
        sparse=True,
        tight=0.0,
        bookies_min=5,
    ),
    "full metadata": Mix(
        ("crash member", "crash member", "crash fastest member", "restart", "kill client",
         "slow metadata", "cut"),
        (12, 30),
        ledgers=(3, 6),
        takeover=0.6,
        recoverers=(1, 1, 2, 3),
        delete=0.05,
        sparse=True,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        tight=0.0,
        bookies_min=6,
        small_metadata=True,
    ),
    "race": Mix(
        (*CLIENT_KINDS, *CLIENT_KINDS, "crash member", "crash", "pause", "slow metadata"),
        (3, 12),
        ledgers=(1, 2),
        takeover=1.0,
        recoverers=(3, 4, 5, 6),
        delete=0,
    ),
    "takeover": Mix(
        ("cut and reset", "cut and reset", "cut", "crash fastest member", "kill client",
         "pause client"),
        (2, 10),
        ledgers=(4, 8),
        takeover=1.0,
        recoverers=(1, 1, 2, 3),
        tail=0.2,
        delete=0,
        busy=True,
        uneven=0.8,
    ),
    "zombies": Mix(
        ("zombie", "zombie", "crash member", "pause", "cut one way", "metadata fails"),
        (2, 8),
        takeover=1.0,
        delete=0.1,
    ),
    "idle": Mix(
        ("rolling crash", "rolling crash", "rolling restart", "crash", "kill, start, crash"),
        (1, 4),
        takeover=0.9,
        delete=0.4,
        idle=1.0,
        tight=0.9,
    ),
    "streams": replace(
        STREAMED,
        kinds=(*ALL_KINDS, *CLIENT_KINDS, *WRITER_KINDS, "metadata fails"),
        faults=(0, 14),
        streams=(1, 4),
    ),
    "relay": replace(
        STREAMED,
        kinds=(*CLIENT_KINDS, *WRITER_KINDS, "crash member", "crash member in write",
               "metadata fails"),
        faults=(1, 10),
        streams=(1, 3),
        streams_mostly="relay",
    ),
    "lives": replace(
        STREAMED,
        kinds=(*CLIENT_KINDS, *WRITER_KINDS, "metadata fails", "slow metadata"),
        faults=(1, 8),
        streams=(2, 5),
        streams_mostly="lives",
    ),
    "retention": replace(
        STREAMED,
        kinds=(*CLIENT_KINDS, *WRITER_KINDS, "metadata fails", "slow metadata", "crash member",
               "late watches"),
        faults=(0, 8),
        streams=(1, 3),
        streams_mostly="retention",
    ),
    "damaged": replace(
        STREAMED,
        kinds=(*CLIENT_KINDS, *WRITER_KINDS, "metadata fails", "slow metadata", "crash member",
               "late watches"),
        faults=(0, 6),
        streams=(1, 3),
        streams_mostly="damaged",
    ),
    "publishing": replace(
        STREAMED,
        kinds=(*CLIENT_KINDS, "kill client", "metadata fails", "metadata fails", "slow metadata",
               "crash member"),
        faults=(0, 8),
        streams=(1, 2),
        streams_mostly="publishing",
    ),
    "spark": replace(
        STREAMED,
        kinds=(*CLIENT_KINDS, "kill client", *WRITER_KINDS, "metadata fails", "slow metadata",
               "crash member"),
        faults=(0, 6),
        streams=(2, 3),
        streams_mostly="spark",
    ),
    "datasets": Mix(
        ("metadata fails", "metadata fails", "slow metadata", "pause client", "kill client",
         "sessions expire", "crash", "restart"),
        (2, 10),
        ledgers=(0, 1),
        datasets=1.0,
    ),
    "objects": Mix(
        ("metadata fails", "metadata fails", "metadata fails", "slow metadata", "slow metadata",
         "pause client", "kill client", "expire client", "sessions expire", "crash", "crash",
         "crash in write", "restart", "slow disk", "cut and reset"),
        (2, 10),
        ledgers=(0, 1),
        datasets=0.0,
        objects=1.0,
        cancelling=(0.0, 0.0, 0.0, 0.2),
    ),
    "topics": Mix(
        (*CLIENT_KINDS, "zombie", "metadata fails", "expire client", "late watches", "crash",
         "restart", "cut and reset"),
        (0, 6),
        ledgers=(0, 0),
        metadata_delays_s=(0.0, 0.002, 0.002, 0.02),
        datasets=0.0,
        topics=1.0,
        cancelling=(0.0, 0.0, 0.0, 0.2),
    ),
    "amnesia": LOST_DATA,
    "spoiled": replace(
        LOST_DATA,
        kinds=("rot entries, crash", "rot entries, crash", "kill client", "kill client", "crash"),
    ),
    "full": Mix(
        ("disk full", "disk full", "disk full", "metadata fails", "metadata fails", "slow disk",
         *FULL_KINDS[:4], "crash", "restart"),
        (4, 16),
        large=0.3,
        busy=True,
    ),
    "fences": Mix(
        ("cut and reset", "lose connections", "crash fastest member"),
        (0, 4),
        ledgers=(8, 14),
        takeover=1.0,
        recoverers=(1, 1, 2),
        tail=0.0,
        delete=0,
        deferred=0.0,
        own_ids=0.0,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        busy=True,
        uneven=1.0,
        shapes=((2, 2, 2), (2, 2, 2), (3, 3, 3), (3, 3, 2), (3, 2, 2)),
    ),
    "resets": Mix(
        (*RESET_KINDS, *RESET_KINDS, *RESET_KINDS, "cut and reset"),
        (20, 40),
        ledgers=(8, 14),
        takeover=1.0,
        recoverers=(1, 1, 2),
        tail=0.0,
        readers=(0, 0),
        delete=0,
        deferred=0.0,
        own_ids=0.0,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        busy=True,
        uneven=1.0,
        tight=0.0,
        shapes=((2, 2, 2),),
    ),
    "disorder": Mix(
        (*DISORDER_KINDS, *DISORDER_KINDS, *DISORDER_KINDS, "crash member", "crash member in write",
         "fsync fails, crash", "cut and reset", "kill client", "slow disk", "restart"),
        (6, 20),
        ledgers=(3, 8),
        takeover=0.8,
        recoverers=(1, 1, 2, 3),
        delete=0.05,
        deferred=0.2,
        own_ids=0.2,
        datasets=0.0,
        busy=True,
        uneven=0.5,
    ),
    "hostile": Mix(
        (*HOSTILE_KINDS, *HOSTILE_KINDS, *HOSTILE_KINDS, "crash member", "restart", "kill client",
         "pause", "slow disk"),
        (4, 12),
        ledgers=(2, 5),
        delete=0.0,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        uneven=0.0,
        short_segments=True,
        hostile=True,
    ),
    "silent": replace(
        PLACED,
        kinds=(*SILENT_KINDS, *SILENT_KINDS, *SILENT_KINDS, *FLOW_KINDS, *FLOW_KINDS, *MOVE_KINDS,
               *MOVE_KINDS, "crash member", "kill client", "pause", "restart", "kill healer",
               "slow disk"),
        faults=(6, 20),
        ledgers=(4, 8),
        takeover=0.5,
        delete=0.1,
        deferred=0.3,
        bookies_min=4,
        sparse=True,
        healing=True,
    ),
    "torn": Mix(
        ("crash in write", "crash member in write", "crash member in write", "crash in start",
         "fsync fails, crash", "kill, start, crash"),
        (8, 24),
        delete=0.1,
        large=0.15,
        busy=True,
    ),
    "autorecovery": replace(
        PLACED,
        kinds=("lose disk", "lose disk", "crash", "crash member", "crash member", "restart",
               "kill client", *HEALER_KINDS, "kill healer", "slow metadata", "metadata fails",
               "cut"),
        faults=(6, 18),
        ledgers=(4, 8),
        takeover=0.3,
        delete=0.15,
        tail=0.2,
        bookies_min=5,
        sparse=True,
        bit_rot=True,
        healing=True,
        cancelling=(0.0, 0.0, 0.2),
    ),
    "cancelled": Mix(
        ("crash member", "crash fastest member", "metadata fails", "slow metadata", "cut",
         "cut and reset", "pause", "slow network", "restart", "silence client"),
        (2, 10),
        takeover=0.8,
        recoverers=(1, 2, 2, 3),
        tail=0.7,
        delete=0.3,
        deferred=0.2,
        own_ids=0.2,
        datasets=0.2,
        cancelling=(0.2, 0.5, 0.8),
    ),
    "recreated": replace(
        PLACED,
        kinds=("recreate ledger", "recreate ledger", "recreate ledger", "crash member", "crash",
               "restart", "slow metadata", "metadata fails", "expire client", "pause client",
               "kill client", "cut", "kill healer"),
        faults=(6, 16),
        ledgers=(4, 8),
        takeover=0.7,
        recoverers=(1, 2, 2, 3),
        tail=0.6,
        readers=(1, 3),
        delete=0.1,
        deferred=0.2,
        idle=0.4,
        bookies_min=5,
        large=0.0,
        healing=True,
    ),
    "moving": replace(
        PLACED,
        kinds=("crash member", "crash", "restart", "kill client", "kill job", "metadata fails",
               "slow network", "cut", "late watches", "expire client"),
        faults=(0, 6),
        ledgers=(3, 6),
        takeover=0.3,
        tail=0.3,
        delete=0.0,
        deferred=0.2,
        idle=0.3,
        large=0.0,
        bookies_min=8,
        shapes=((3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 1), (2, 2, 2), (3, 3, 3), (1, 1, 1)),
        jobs=True,
        moving=True,
    ),
    "older metadata": Mix(
        (*OLDER_KINDS, *OLDER_KINDS, "metadata goes back", "disk full", "disk full", "restart",
         "crash", "kill", "crash member", "expire session", "metadata fails", "kill client"),
        (5, 12),
        ledgers=(6, 12),
        takeover=0.4,
        tail=0.2,
        delete=0.5,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        older_metadata=True,
    ),
    "lagging metadata": replace(
        PLACED,
        kinds=("crash member", "crash member", "crash", "restart", "kill client", "pause client",
               "expire client", "expire session", "kill healer", "slow metadata", "recreate ledger",
               "disk full", *LAG_KINDS),
        faults=(2, 8),
        ledgers=(3, 6),
        takeover=0.6,
        tail=0.5,
        readers=(1, 3),
        delete=0.3,
        idle=0.3,
        large=0.0,
        bookies_min=5,
        datasets=0.2,
        objects=0.2,
        topics=0.3,
        streaming=0.3,
        healing=True,
        metadata_lags=1.0,
    ),
    "unreadable": replace(
        PLACED,
        kinds=(*UNREADABLE_KINDS, *UNREADABLE_KINDS, *UNREADABLE_KINDS, "lose disk", "lose disk",
               "crash", "crash member", "crash member", "restart", "kill client", "kill healer",
               "expire healer", "metadata fails"),
        faults=(8, 20),
        ledgers=(5, 9),
        takeover=0.3,
        delete=0.15,
        tail=0.3,
        bookies_min=5,
        sparse=True,
        bit_rot=True,
        healing=True,
    ),
    "decommission": replace(
        PLACED,
        kinds=(*JOB_KINDS, *JOB_KINDS, "unreadable ledger", "unreadable cookie", "crash",
               "crash member", "crash in write", "kill", "restart", "expire session",
               "kill client", "cut", "metadata fails", "slow network"),
        faults=(2, 10),
        ledgers=(3, 6),
        takeover=0.3,
        tail=0.2,
        delete=0.15,
        idle=0.3,
        bookies_min=6,
        large=0.0,
        shapes=((3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 1), (2, 2, 2), (3, 3, 3), (1, 1, 1)),
        jobs=True,
    ),
    "liars": replace(
        PLACED,
        kinds=(*LIES, *LIES, "deny", "deny", "forge", "crash member", "crash", "restart", "cut",
               "cut", "cut and reset", "kill client"),
        faults=(6, 16),
        ledgers=(3, 6),
        takeover=1.0,
        recoverers=(1, 1, 2),
        tail=1.0,
        delete=0.1,
        large=0.0,
        bookies_min=6,
        uneven=0.9,
        busy=True,
        shapes=((4, 4, 3), (4, 4, 3), (5, 4, 3), (3, 3, 3)),
        byzantine=True,
    ),
    "forgers": replace(
        PLACED,
        kinds=("forge", "forge", "forge", "crash member", "cut", "pause client"),
        faults=(3, 8),
        ledgers=(4, 8),
        takeover=0.2,
        tail=0.5,
        readers=(3, 8),
        delete=0,
        deferred=0.0,
        large=0.0,
        bookies_min=6,
        shapes=((4, 4, 3), (5, 4, 3), (3, 3, 3)),
        byzantine=True,
    ),
    "switch": Mix(
        (*ISLAND_KINDS, *ISLAND_KINDS, *ISLAND_KINDS, "power loss everywhere", "crash member",
         "restart", "kill client", "late watches"),
        (2, 10),
        takeover=0.5,
        recoverers=(1, 1, 2),
        delete=0.1,
        deferred=0.3,
        busy=True,
        tight=0.9,
    ),
    "racks": replace(
        PLACED,
        kinds=(*RACK_KINDS, *RACK_KINDS, *RACK_KINDS, "crash member", "crash", "restart", "cut",
               "kill client", "kill healer", "slow metadata", "metadata fails"),
        faults=(4, 14),
        ledgers=(3, 6),
        takeover=0.4,
        delete=0.1,
        tail=0.2,
        bookies_min=8,
        large=0.0,
        shapes=((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (4, 2, 2)),
        healing=True,
        racked=True,
    ),
    "space": Mix(
        (*FULL_KINDS[:5], "disk full", "disk full", "crash", "crash in write", "crash in write",
         "kill", "kill, start, crash", "crash in start", "restart", "rolling crash",
         "foreign store", "foreign store", "fsync fails, crash", "metadata fails", "slow disk"),
        (4, 16),
        ledgers=(6, 12),
        takeover=0.5,
        delete=0.6,
        tail=0.2,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        idle=0.4,
        tight=0.5,
        compacting=True,
    ),
    "together": Mix(
        ("crash", "restart", "crash in write", "kill", "slow disk", "disk full", "cut", "pause",
         "crash member"),
        (0, 5),
        ledgers=(4, 8),
        takeover=0.3,
        delete=0.1,
        deferred=0.0,
        own_ids=0.0,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        tight=1.0,
        uneven=0.0,
        together=True,
        short_segments=True,
    ),
    "returning": replace(
        PLACED,
        kinds=("crash", "crash", "crash in write", "kill", "kill, start, crash", "crash in start",
               "restart", "rolling crash", "disk full", "fsync fails, crash", "metadata fails",
               "kill job", *FULL_KINDS[3:5], *INDEX_KINDS),
        faults=(4, 14),
        ledgers=(5, 9),
        takeover=0.5,
        delete=0.3,
        tail=0.1,
        large=0.0,
        bookies_min=5,
        shapes=((3, 3, 2), (3, 2, 2), (2, 2, 2), (2, 2, 1)),
        compacting=True,
        caching=True,
        shuttling=True,
    ),
    "index": Mix(
        (*INDEX_KINDS, *INDEX_KINDS, *INDEX_KINDS, *FULL_KINDS[3:], "crash", "crash in write",
         "kill", "kill, start, crash", "crash in start", "restart", "disk full",
         "fsync fails, crash"),
        (5, 12),
        ledgers=(5, 8),
        takeover=0.8,
        delete=0.6,
        tail=0.1,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        idle=0.3,
        tight=0.5,
        compacting=True,
        caching=True,
    ),
    "loading": Mix(
        (*LOAD_KINDS, *LOAD_KINDS, "restart", "kill", "crash", "crash member", "crash in start",
         "kill, start, crash", "lose index", "power loss everywhere", "kill client", "cut"),
        (5, 14),
        ledgers=(8, 14),
        takeover=0.8,
        recoverers=(1, 1, 2),
        tail=0.2,
        readers=(3, 6),
        delete=0.2,
        deferred=0.4,
        uneven=0.0,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        idle=0.5,
        tight=0.5,
        compacting=True,
        slow_starts=True,
        directories=(1, 1, 2, 3),
    ),
    "directories": Mix(
        (*DIRECTORY_KINDS, *DIRECTORY_KINDS, "crash", "crash in write", "kill",
         "kill, start, crash", "crash in start", "restart", "fsync fails, crash", "disk full",
         "slow disk", "kill client", "cut and reset"),
        (4, 16),
        ledgers=(6, 12),
        takeover=0.8,
        delete=0.3,
        tail=0.2,
        deferred=0.3,
        large=0.0,
        crowd=0.0,
        datasets=0.0,
        idle=0.4,
        directories=(2,),
    ),
    "replaced": replace(
        PLACED,
        kinds=(*REPLACEMENT_KINDS, "replace directory", "replace directory", "replace directory",
               "old disk comes back", *DIRECTORY_KINDS, "crash", "crash member", "crash in write",
               "kill, start, crash", "crash in start", "restart", "fsync fails, crash",
               "metadata fails", "slow metadata", "kill client", "kill healer"),
        faults=(8, 18),
        ledgers=(5, 10),
        takeover=0.6,
        delete=0.2,
        tail=0.2,
        deferred=0.2,
        large=0.0,
        idle=0.4,
        bookies_min=4,
        shapes=((3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 2)),
        healing=True,
        replacing=True,
        directories=(1, 2, 2, 3),
    ),
    "rolled_back": replace(
        PLACED,
        kinds=(*ROLLBACK_KINDS, *ROLLBACK_KINDS, *ROLLBACK_KINDS, "crash", "crash member",
               "crash in write", "kill, start, crash", "crash in start", "restart",
               "fsync fails, crash", "metadata fails", "slow metadata", "kill client",
               "kill healer"),
        faults=(6, 14),
        ledgers=(5, 10),
        takeover=0.6,
        delete=0.2,
        tail=0.2,
        deferred=0.2,
        large=0.0,
        idle=0.4,
        bookies_min=4,
        shapes=((3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 2)),
        healing=True,
        replacing=True,
        directories=(1, 1, 2, 3),
    ),
    "log files": replace(
        PLACED,
        kinds=(*LOG_FILE_KINDS, *LOG_FILE_KINDS, *LOG_FILE_KINDS, *INDEX_KINDS, "crash",
               "crash member", "crash in write", "kill, start, crash", "crash in start", "restart",
               "metadata fails", "kill client", "kill healer"),
        faults=(6, 14),
        ledgers=(5, 10),
        takeover=0.6,
        delete=0.2,
        tail=0.2,
        deferred=0.2,
        large=0.0,
        idle=0.4,
        bookies_min=4,
        shapes=((3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 2)),
        healing=True,
        replacing=True,
        caching=True,
        uneven=0.0,
        short_segments=True,
        directories=(1, 1, 2),
    ),
    "resized": replace(
        PLACED,
        kinds=(*RESIZE_KINDS, *RESIZE_KINDS, *DIRECTORY_KINDS, "crash", "crash member",
               "crash in write", "kill, start, crash", "crash in start", "restart",
               "fsync fails, crash", "metadata fails", "slow metadata", "kill client"),
        faults=(6, 16),
        ledgers=(4, 9),
        takeover=0.6,
        delete=0.3,
        tail=0.2,
        deferred=0.2,
        large=0.0,
        idle=0.4,
        bookies_min=5,
        shapes=((3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 2), (1, 1, 1)),
        directories=(1, 2, 2, 3),
    ),
    "ledger walks": replace(
        PLACED,
        kinds=("pause client",),
        ledgers=(0, 1),
        large=0.0,
        bookies_min=4,
        walks=1.0,
        walks_mostly="ledgers",
    ),
    "stream walks": replace(WALKS, bookies_min=3, walks_mostly="streams"),
    "store walks": replace(WALKS, walks_mostly="stores"),
    "repair walks": replace(WALKS, bookies_min=4, walks_mostly="repairs"),
    "protocol walks": replace(WALKS, bookies_min=1, walks_mostly="protocol"),
    "sessions": Mix(
        ("sessions expire", "expire session", "expire client", "expire client", "metadata fails",
         "late watches", "slow metadata", "restart", "clock jumps", "kill"),
        (2, 10),
    ),
}  # fmt: skip
