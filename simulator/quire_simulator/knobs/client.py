"""The knobs of the ledger client."""

from __future__ import annotations

from quire_simulator.knobs.knob import Knob, limits, settings

KNOBS = (
    *settings(
        "config", "ClientConfig",
        # A connection of the slowest route takes 0.8 s to be made.
        connect_timeout_s=2.0,
        silent_link_s=0.05, idle_link_s=0.05, probe_timeout_s=0.02, max_turn_bytes=1,
        read_windows=1, single_reads_in_flight=8, slow_bookie_s=0.05, absence_recheck_s=0.05,
        # Every fault that strikes the ensemble of a ledger may replace a member.
        max_ensemble_changes=3,
        # An answer over the slowest route takes 0.8 s.
        add_timeout_s=(0.85, 1.0), read_timeout_s=(0.85, 1.0), speculative_read_s=(0.001, 0.3),
        recovery_timeout_s=(5.0, 10.0), long_poll_s=(0.01, 0.3), bookies_wait_s=(0.01, 0.5),
        lost_quorum_wait_s=(0.1, 5.0), avoid_failed_bookie_s=(0.05, 2.0),
    ),
    # -- writing: sessions, coalesced adds, ensemble changes, LACs in messages of their own
    *limits("client.write.add_session", REACH_S=0.01, CHECKS=1, AT_ONCE=1, STEPS_MAX=1),
    *limits("client.write.flush", COALESCED_ROWS_MIN=1, FLUSHES_ALONE=0),
    *limits("client.write.ensemble_changes", RETURN_REST_S=0.1, REJOIN_BACKOFF=0.05),
    Knob("client.write.ensemble_changes", "REJOIN_DELAY_S", 0.05,
         frozen="REJOIN_BACKOFF, which has a knob of its own"),
    *limits("client.write.explicit_lac", TICKS=1, APPEND_ITERATIONS=1, RETRY_DELAY_S=0.001),
    # -- reading: windows, hedges, tails, followers
    # A window takes up to 0.8 s over the slowest route, and a ledger has some hundred entries.
    *limits("client.read.engine", FIRST_WINDOW_ENTRIES=1, FIRST_SINGLE_READS=1, MOVES_MAX=1),
    Knob("client.read.engine", "MAX_WINDOW_ENTRIES", 8, also=("quire.client.read.tail",)),
    *limits("client.read.follow", KEPT_RUNS_MAX=1, READ_ATTEMPTS=1, READ_BACKOFF=0.005),
    *limits("client.read.hedge", PATIENCE_ROUNDS=1),
    *limits(
        "client.read.tail", OVERDUE_GAPS=1, OVERDUE_MIN_S=0.0005, LEVEL_POLL_MS=1, POLLS_MAX=1,
        PROOF_ENTRY_BYTES_MAX=1, AHEAD_BYTES_MAX=1, ASK_BACKOFF=0.001, EMPTY_BACKOFF=0.001,
    ),
    *limits("client.recovery", WINDOW_ENTRIES=8, STRIPED_WINDOW_ENTRIES=8),
    # -- what a client remembers about bookies, and when it looks after its connections
    Knob("client.cluster.absences", "CHECKS", 1, also=("quire.client.cluster.health",),
         parameters=("client.cluster.absences:Absences.denied.checks",)),
    *limits("client.cluster.absences", PENDING_MAX=1, CONFIRMED_MAX=1, COUNTED_MAX=1),
    *limits("client.cluster.health", UNHEALTHY_MAX=1, REPORTED_MAX=1, LEVELS_MAX=1),
    *limits("client.cluster.link_watch", LOOKS=1, LOOK_MIN_S=0.001),
    *limits("client.cluster.placement", RETRY_S=0.1),
    # Without a pause, an ensemble changes as fast as connections are refused.
    Knob("client.cluster.pool", "REST_S", 0.1, also=("quire_simulator.invariants.costs",)),
    *limits("client.cluster.pool", OPENS_AT_ONCE_MAX=1, RECOVERIES_AT_ONCE_MAX=1),
    # -- compare-and-swaps, and datasets
    Knob("client.compare_and_swap", "UPDATE_ATTEMPTS_MAX", 5,
         also=("quire.client.datasets.heads",)),
    *limits("client.compare_and_swap", UNKNOWN_ATTEMPTS_MAX=2, UNKNOWN_BACKOFF=0.01),
    *limits("client.datasets.format", INLINE_BYTES_MAX=0, CHUNK_BYTES_MAX=64),
    Knob("client.datasets.format", "CONDEMNED_MAX", 1, also=("quire.client.datasets.unpublished",)),
    *limits("client.forgotten", REST_S=1.0),
)  # fmt: skip
