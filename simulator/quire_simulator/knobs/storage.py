"""The knobs of a bookie's storage."""

from __future__ import annotations

from quire_simulator.knobs.knob import Knob, limits, settings

KNOBS = (
    # -- the log: what shares a group, and what waits for it
    *limits(
        "storage.log.appender", MAX_NOTE_BYTES=64, STATE_SHARE=2, PATIENCE_S=0.0001,
        PATIENT_BYTES_MAX=1,
    ),
    Knob("storage.log.page_cache", "PIECE_BYTES", 4_096, multiple=4_096),
    *settings(
        "storage.config", "StorageConfig",
        # A store with one run a segment has a segment for each batch, and spends its time on them.
        max_runs_per_segment=8,
        max_group_bytes=1, footer_cache_bytes=0, max_open_files=1,
    ),
    Knob("storage.config", "StorageConfig.reserve_bytes", 64 * 1024, multiple=4_096),
    # -- segments: what is handed over, packed and kept in a narrow form
    *limits("storage.background.sealer", LEDGERS_PER_SLICE=1),
    *limits("storage.segment.footer_rows", LEDGERS_AT_ONCE=1),
    *limits("storage.segment.frames", COLUMNS_FROM=2),
    *limits("storage.segment.ledger_ids", _NARROW_MAX=0),
    *limits("storage.segment.sealed_rows", _NARROW_MAX=0),
    # -- background work: steps, memory, and how often
    *limits("storage.background.collector", READ_AGAIN_S=1.0),
    *limits(
        "storage.background.index_cache_writer", LEDGERS_PER_BLOCK=1, BLOCK_BYTES_MAX=1,
        STEP_BYTES=1,
        # A cache takes a fraction of a second to write at these rates. With less, none is ever
        # complete, and starts from a cache are not tested.
        WRITE_BYTES_PER_S=64 * 1024, MEAN_BYTES_PER_S=16 * 1024,
    ),
    *limits("storage.background.quarantine", CHECK_INTERVAL_S=0.1),
    *limits(
        "storage.background.quarantine_record", LEDGERS_MAX=1, RANGES_MAX=1,
        RANGES_OF_LEDGER_MAX=1,
    ),
    # `core.compaction` reserves one byte in 128 for what groups cost: up to a block for each.
    *limits("storage.background.rewrite", GROUP_BYTES=640 * 1024, SMALL_BYTES=0, BLOCKS_MAX=1),
    *limits("storage.background.scrub", BLOCK_RANGES_MAX=1, INDEX_ROWS=1),
    *limits("storage.background.scrubber", FIRST_DELAY_S=0.1, SAVE_INTERVAL_S=0.1,
            SUSPECT_AGAIN_S=0.5),
    Knob("storage.recovery.scan", "SCAN_BYTES", 4_096, also=("quire.storage.background.scrub",),
         multiple=4_096, frozen="zeros to compare with, more than are needed"),
    # -- reads: what is read at once, ahead, and in one event-loop iteration
    *limits("storage.recovery.early_reads", FOUND_BYTES=1),
    *limits("storage.read.cold_reads", ROWS_PER_TURN=1, LARGE_BYTES=1, TRIES=1),
    *limits("storage.read.fetched", VIEWS_MAX=1),
    *limits(
        "storage.read.gather_read", GATHERED_BYTES=1, GATHERED_EXTENTS_MAX=1, RUNS_MIN=1,
        ENTRIES_MAX=1, SPREAD_MAX=1, PASSED_MAX_BYTES=0, PASSED_SHARE=1,
    ),
    *limits(
        "storage.read.read_ahead", AHEAD_BYTES=1, STEP_BYTES=1, AHEAD_EXTENTS_MAX=1, CALLS_MAX=1,
        FOLLOWED_MAX=1, STEPS_BEFORE=0, THROUGH_BYTES=1, ROWS_MAX=1,
    ),
    *limits("storage.read.read_budget", STEP_S=0.001, PAUSE_S=0.001, STEP_MIN_S=0.0001,
            READ_PER_TAKEN=1),
    Knob("storage.read.reader", "MAX_READ_BYTES", 1, also=("quire.storage.read.cold_reads",)),
    Knob("storage.read.reader", "SLICE_BYTES", 1,
         frozen="UNSHARED_BYTES, which has a knob of its own"),
    Knob("storage.read.reader", "UNSHARED_BYTES", 0,
         also=("quire.storage.read.cold_reads", "quire.bookie.protocol.service")),
    Knob("storage.read.reader", "SCATTERED_BYTES", 0, also=("quire.storage.read.cold_reads",)),
    *limits("storage.read.reader", SCATTERED_MAX=1),
)  # fmt: skip
