"""The knobs of the rooms that clients and bookies share: core, codec, metadata, net, _runtime."""

from __future__ import annotations

from quire_simulator.knobs.knob import Knob, limits

KNOBS = (
    Knob("_runtime.tasks", "EACH_AT_ONCE", 1, parameters=("_runtime.tasks:each.at_once",)),
    *limits("codec.entry.frame_runs", FRAMES_AT_ONCE=1),
    *limits("codec.distributedlog.record", _SHORTEST_RUN=2),
    Knob("codec.log.footer", "PLAIN_ROWS_MAX", 0, also=("quire.storage.segment.footer_rows",),
         frozen="the sizes of two caches, which are merely larger than they need to be"),
    *limits("codec.packed_rows", ROWS_MAX=1),
    *limits("codec.wire.availability", RANGES_MAX=3),
    *limits("core.append.pipeline", PUSHES_ALONE=0),
    *limits("core.placement.search", FIRST_STEPS_MAX=1),
    Knob("core.replicas", "BLOCK_ENTRIES", 2,
         also=("quire.replication.audit.pieces",
               "quire.replication.repair.replica_scan")),
    *limits("metadata.bookies.collection", ATTEMPTS_MAX=3),
    *limits("metadata.bookies.directories", FORGET_ATTEMPTS=2),
    Knob("metadata.common", "LIST_RANGE_LEDGERS", 8,
         also=("quire.metadata.sqlite.store", "quire_simulator.metadata.store")),
    *limits("metadata.ledgers.naming", LEDGERS_PER_LOOK=1),
    *limits("metadata.ledgers.underreplicated", MARK_ATTEMPTS=5),
    *limits("metadata.ledgers.update", MAX_ATTEMPTS=5),
    *limits("net.channel", AHEAD_ANSWERS=1),
    *limits("net.control", MAX_OUTSTANDING_CALLS=8),
    *limits("net.link", WRITE_BUFFER_HIGH_BYTES=1),
    Knob("net.link", "CLOSE_DRAIN_S", 0.01, also=("quire.client.cluster.pool",)),
)  # fmt: skip
