"""The knobs of a bookie: its protocols, its answers, and its work for the cluster."""

from __future__ import annotations

from quire_simulator.knobs.knob import Knob, limits, settings

KNOBS = (
    *settings(
        "config", "BookieConfig",
        # A bookie looks every 20 ms which answers left it. With less room than for a few dozen
        # answers, the reads of one recovery take longer than their time-out.
        max_answer_bytes=4_096,
        # An answer takes up to 0.8 s over the slowest route, and a ledger has some hundred entries.
        max_batch_read_bytes=1_024,
        max_unsent_bytes=1, unsent_timeout_s=2.0,
        # With room for less than a request of each connection, a bookie closes connections whose
        # answers it holds up itself, as documented.
        max_partial_bytes=16 * 1024, partial_frame_timeout_s=2.0, first_request_timeout_s=2.0,
        idle_timeout_s=0.5, max_long_polls=1, max_long_poll_s=0.01, log_cache_bytes=1,
        # The ledgers of the workload `large` have up to 20 MB, which readers must get in time.
        catch_up_bytes_per_s=1024 * 1024,
        # A run has fewer clients than this, and each has a few connections.
        max_connections=64,
        scrub_bytes_per_s=64 * 1024,
        log_position_interval_s=0.05, max_queued_bytes=(1, 1 << 20), read_only_dwell_s=(0.0, 1.0),
        seal_idle_s=(0.001, 0.05), check_space_s=(0.01, 0.2),
    ),
    # -- answers that wait for room
    Knob("bookie.protocol.answer_budget", "TURN_BYTES", 1,
         derived=(("TURN_NOTICED_BYTES", lambda most: most // 2),)),
    *limits(
        "bookie.protocol.answer_budget", TURN_WAITS=1, RESUMED_AT_ONCE=1,
        MAX_WAITING_REQUESTS=1, MAX_WAITING_IN_ALL=1, PUMP_S=0.001, PRESSED_STALL_S=0.5,
        PRESSED_TAKING_BYTES=1, FAVOURED_BYTES=1, UNFAVOURED_PERCENT=1,
    ),
    # -- connections, and what is parsed and answered together
    *limits("bookie.protocol.connection", SMALL_UNSENT_BYTES=0, MAX_POLLS=1, JOINED_MAX_BYTES=1),
    *limits("bookie.protocol.connection_limits", NEWCOMER_GRACE_S=0.05, PARTIAL_GRACE_S=0.05,
            TOLD_EVERY_S=0.01),
    Knob("bookie.protocol.connection_limits", "HARD_FACTOR", 1,
         also=("quire_simulator.invariants.memory",)),
    Knob("bookie.protocol.connection_limits", "SWEEP_S", 0.05, also=("quire.bookie.server",)),
    Knob("bookie.protocol.connection_limits", "FREE_PARTIAL_BYTES", 64,
         also=("quire.bookie.protocol.connection", "quire_simulator.invariants.memory")),
    *limits("bookie.protocol.loading_store", WAIT_S=0.05, WAITING_MAX=0, POLL_S=0.01),
    *limits("bookie.protocol.service", FAREWELL_TIMEOUT_S=0.01, FAREWELL_POLL_S=0.001),
    *limits("bookie.protocol.v2", BATCH_WAIT_S=0.0005),
    *limits("bookie.protocol.v3", MIN_STRETCH=2, MAX_LIST_BYTES=4096),
    # -- the start, and work for the cluster
    *limits("bookie.announcement", ANNOUNCE_BACKOFF=0.05),
    *limits("bookie.server", LOADING_TOLD_S=0.05, LOADING_SHOWN_S=0.01, SERVE_EARLY_AFTER_S=0.01),
    *limits("bookie.background.damage", LEDGERS_PER_PASS=1, AGAIN_S=1.0, AWAITED_MAX=1),
    *limits(
        "bookie.background.garbage", MASS_LEDGERS_MIN=1, MASS_SHARE=0.05, FULL_LIST_PASSES=2
    ),
    *limits("bookie.background.orders", COOKIE_POLL_S=0.05),
    *limits("bookie.background.over_replicated", READS_MAX=1),
    *limits("bookie.directories.rollback", LOOK_S=0.05, REPORT_ATTEMPTS=2),
)  # fmt: skip
