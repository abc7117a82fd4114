"""The knobs of autorecovery, and of moves and repairs of replicas."""

from __future__ import annotations

from quire_simulator.knobs.knob import Knob, limits, settings

KNOBS = (
    *settings(
        "replication.autorecovery.settings", "AutorecoverySettings", ledgers_at_once=1,
        bookie_check_interval_s=(1.0, 20.0), ledger_check_interval_s=(0.5, 7.0),
        backoff_s=(0.02, 0.5), backoff_max_s=(0.5, 5.0), poll_s=(0.05, 1.0),
    ),
    *limits("replication.autorecovery.auditor", SAMPLES_MAX=1, PAGE_LEDGERS=1, GAPS_AT_ONCE=1),
    *limits("replication.explain.explain", GAPS_MAX=1),
    *limits("replication.autorecovery.settings", BACKOFF_JITTER=0.0),
    *limits("replication.autorecovery.worker", RESTING_MAX=1, FRESH_S=0.01, POLL_JITTER=0.0),
    *limits("replication.budget", BURST_S=0.001, SLICE_S=0.001, SLICE_BYTES_MIN=1),
    *limits("replication.marks.marks", CHANGES_MAX=2),
    *limits("replication.marks.notes", _ATTEMPTS=1),
    *limits("replication.moves.decommission", POLL_S=0.01, ORDER_ATTEMPTS=2, PASSES_MAX=5),
    *limits("replication.moves.rebalance", LOCATIONS_WAIT_S=0.05),
    *limits("replication.moves.rebalance_plan", CANDIDATES_MAX=1, TRIED_MAX=1, MOVES_MAX=1),
    *limits("replication.moves.recover", LOCKED_ROUNDS=1, LOCKED_PAUSE_S=0.1),
    Knob("replication.moves.recover", "LEDGERS_PER_LOOK", 1,
         also=("quire.replication.moves.rebalance",)),
    Knob("replication.repair.bookie_removal", "CONFLICTS_MAX", 1,
         also=("quire.replication.autorecovery.worker",
               "quire.replication.repair.repair_findings")),
    *limits("replication.repair.bookie_removal", TARGET_ATTEMPTS=1, CONFLICT_SHRINKS=2),
    *limits("replication.repair.fragment", COPY_WINDOW_BYTES=1, COPY_WINDOW_ENTRIES_MAX=1,
            COPY_WINDOW_ENTRIES=1, BATCH_BYTES_MAX=1),
    Knob("replication.repair.fragment", "BATCH_SEGMENTS_MAX", 1,
         also=("quire.replication.repair.bookie_removal",)),
    *limits("replication.repair.recovery_adds", UNACKED_BYTES_MAX=1, UNACKED_SLICES_MAX=1),
    *limits("replication.repair.repair_findings", WRITE_BACK_ATTEMPTS=1),
    *limits(
        "replication.repair.replica_reader", FIRST_WINDOW_ENTRIES=1, ASKED_BYTES_MIN=1,
        WINDOW_ENTRIES_MAX=1, SINGLE_ENTRIES_MAX=1, ATTEMPTS=1, LOST_ATTEMPTS=1, BUSY_ATTEMPTS=1,
        BUSY_BACKOFF=0.01, PATIENCE_ROUNDS=1, LISTED_RANGES_MAX=1,
    ),
    Knob("replication.repair.replica_reader", "LAG_S", 0.05,
         also=("quire.replication.audit.audit", "quire.replication.autorecovery.auditor",
               "quire.replication.explain.explain")),
)  # fmt: skip
