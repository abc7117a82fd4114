"""Named numbers and settings of Quire that no run draws, each with the reason.

A test compares these lists and the table of knobs with the source. A new number has to be in
one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

NOT_SIMULATED = (
    "_runtime.heap",
    "_runtime.scheduling",
    "_runtime.shortages",
    "bookie.main",
    "codec.certificate_dates",
    "metadata.sqlite.*",
    "metadata.zookeeper.*",
    "storage.inspect.*",
    "storage.disk",
    "storage.worker",
    "net.accepting",
    "net.certificates",
    "net.handshake",
    "net.network",
    "net.tls",
    "client.cluster.location_files",
    "client.datasets.rows",
    "client.read.arrow",
    "client.read.outcomes",
    "streams.read.arrow",
    "streams.mirror.*",
    "streams.ownership.lost_ledgers",
    "replication.audit.*",
    "replication.explain.at_risk",
    "replication.explain.silence",
    "replication.explain.status",
    "streams.ownership.owner_index",
    "replication.marks.copy_notes",
    "replication.marks.job_announcements",
    "replication.marks.pauses",
    "replication.repair.deleted_ledger",
)
"""Modules whose code no simulated run executes: threads, processes, sockets, other metadata
drivers, and commands for people. A star stands for all modules of a folder."""

EXCLUDED: Mapping[str, Mapping[str, str]] = {
    (
        "It is part of a format or a protocol: a size, a version, a flag, or a number "
        "with a meaning of its own."
    ): {
        "_runtime.secret_files": "PRIVATE_FILE_MODE PRIVATE_DIRECTORY_MODE",
        "bookie.background.collection_guard": "_TOKEN_BYTES",
        "bookie.protocol.add_batcher": "MIN_ENTRY_BYTES",
        "replication.moves.rebalance": "BOOKIES_MIN",
        "bookie.protocol.connection": "MIN_ADD_BYTES",
        "bookie.protocol.v2": "ADD_KIND MIN_ANSWERABLE_BYTES LAC_AT",
        "bookie.protocol.v3": "ADD RECOVERY PRIORITY BASE_BYTES MAX_LAC_PACKET_BYTES",
        "client.client": "CTOKEN_BITS",
        "client.datasets.format": "FORMAT TYPED_FORMAT",
        "client.datasets.schema": "VERSION",
        "client.recovery": "FENCED_READ RECOVERY_ADD",
        "codec.distributedlog.compression": "CODEC_BITS",
        "codec.distributedlog.control_record": "MAX_ID_BYTES MAX_PRODUCERS MAX_SEQUENCE _INT64_END",
        "codec.distributedlog.dlsn": "VERSION V0_BYTES _INT64_END",
        "codec.distributedlog.envelope": "VERSION MAX_BODY_BYTES",
        "codec.distributedlog.limits": (
            "FIRST_LSSN UNASSIGNED_LSSN UNASSIGNED_SEQUENCE_ID MAX_TXID MAX_USER_TXID "
            "INVALID_TXID MAX_POSITION MAX_RECORD_BYTES MAX_ENTRY_BYTES MAX_EXPANDED_BYTES"
        ),
        "codec.distributedlog.lock": "_PARTS NO_NUMBER",
        "codec.distributedlog.name": "_INT64_END",
        "codec.distributedlog.record": (
            "HEAD_BYTES MAX_PAYLOAD_BYTES _FLAG_BITS _CONTROL _END_OF_STREAM _RECORD_SET "
            "_POSITION_SHIFT _POSITION_BITS _STEP _METADATA_END _SPECIAL_BITS"
        ),
        "codec.distributedlog.record_envelope": (
            "VERSION HEAD_BYTES ENVELOPE_FLAG HAS_KEY HAS_EVENT_TIME HEADERS_MAX "
            "HEADER_NAME_BYTES_MAX EVENT_TIME_MIN_US EVENT_TIME_MAX_US _CRC_AT _CRC_END"
        ),
        "codec.distributedlog.namespace_binding": "_VERSION_DIGITS_MAX",
        "codec.distributedlog.record_set": "VERSION VERSION_BITS",
        "codec.distributedlog.segment": (
            "CURRENT_LAYOUT OLDEST_LAYOUT _ENVELOPED_SINCE _MIN_ACTIVE_SINCE _VERSION_BITS "
            "_TRUNCATION_BITS _LOST_BIT _COUNT_SHIFT LOST_LAST_ENTRY_ID _INT64_END "
            "_KNOWN_STATUS"
        ),
        "codec.entry.digest": "_CRC32C_POLYNOMIAL",
        "codec.entry.entry": "META_BYTES PIECES RESPONSE_OVERHEAD_BYTES MAX_ENTRY_ID",
        "codec.log.footer": (
            "CONSECUTIVE DISJOINT TRAILER_BARE TRAILER_BYTES TRAILER_VERSION _ROW_BYTES "
            "_SUMMARY_BYTES"
        ),
        "codec.log.group": (
            "BARE_HEAD_BYTES _TABLE_BYTES_AT GROUP_HEADER_BYTES ROW_HAS_IDS GROUP_COMPACTED "
            "GROUP_LAST GROUP_BARE GROUP_FLAGS GROUP_VERSION WRONG_BYTES_MAX"
        ),
        "codec.log.index_cache": "VERSION BLOCK_HEADER_BYTES ID_BYTES _FLAGS",
        "codec.log.segment_header": (
            "CLEAN_VERSION FORMAT_VERSION FRAMED_COMPACTED_VERSION COMPACTED_VERSION ID_BYTES"
        ),
        "codec.log.state_records": "BLOCK_BYTES KINDS_MAX MAX_TABLE_BYTES RECORD_BYTES",
        "codec.metadata.cookie": (
            "LAYOUT_VERSION _LAYOUT_VERSION_TEXT _LAYOUT_VERSION_MIN _LAYOUT_DIGITS_MAX"
        ),
        "codec.metadata.layout": "FORMAT_VERSION MANAGER_VERSION _VERSION_DIGITS_MAX",
        "codec.metadata.ledger_metadata": "NO_ENTRY CURRENT_FORMAT",
        "codec.metadata.ledger_metadata_format": (
            "CURRENT_VERSION _VERSION_DIGITS_MAX _V1_IN_RECOVERY"
        ),
        "codec.metadata.ledger_path": (
            "LEDGER_ID_MAX SHORT_ID_END LEAF_CAPACITY HIGH_ORDER_MAX _SEQUENCE_DIGITS "
            "_PART_DIGITS _FLAT_DIGITS_MIN _ID_DIGITS_MAX _SHORT_DIGITS _LONG_DIGITS"
        ),
        "codec.metadata.registration": "_PORT_MAX _PORT_DIGITS_MAX",
        "codec.metadata.stored_json": "BITS_64",
        "codec.protobuf_wire": "_VARINT_BYTES_MAX _MASK64",
        "codec.wire.availability": "VERSION _SIZE_MAX ENTRY_MAX",
        "codec.wire.v2": (
            "MAX_FRAME_BYTES VERSION MAX_VERSION RECOVERY_ADD HIGH_PRIORITY ADD_WORD "
            "READ_WORD BATCH_READ_WORD FRAME_HEADER_BYTES KEY_BYTES ADD_RESPONSE_BYTES "
            "READ_RESPONSE_BYTES BATCH_RESPONSE_BYTES BATCH_ENTRY_OVERHEAD_BYTES "
            "BATCH_READ_BASE_BYTES LAST_ENTRY"
        ),
        "codec.wire.v3": "FIRST_BYTE VERSION HIGH_PRIORITY DEFERRED_SYNC",
        "codec.wire.v3_adds": "_HEAD_BYTES MAX_HEAD_BYTES",
        "metadata.ledgers.size": "_ENTRY_ID_MAX",
        "metadata.uri": "DEFAULT_ZOOKEEPER_PORT _PORT_MAX",
        "metadata.values": "ANY_VERSION UNKNOWN_CREATION",
        "net.control": "MAX_ANSWER_BYTES",
        "net.link": "PROBE_LEDGER",
        "replication.autorecovery.worker": "NEVER_WRITTEN",
        "replication.marks.locks": "MARK_DEPTH",
        "replication.moves.remaining": "REASONS_MAX",
        "replication.repair.replica_reader": "NO_LEDGER",
        "storage.background.quarantine_record": "FORMAT",
        "storage.background.sealer": "NO_SEGMENT_BEFORE",
        "storage.read.fetched": "FRAMES_AT",
        "storage.read.reader": "DEFAULT_OVERHEAD_BYTES",
        "storage.recovery.incarnation": "NONCE_BYTES",
        "storage.recovery.log_recovery": "UNREPAIRED",
        "storage.recovery.scan": "SECTOR_BYTES",
        "storage.segment.batch": "_IN_MEMORY",
        "storage.segment.frames": "ID_BYTES _LOW_BYTES _LOW_IDS",
        "streams.namespace.settings": "FORMAT",
        "streams.objects.format": "FORMAT _SHA256_DIGITS",
        "streams.publish.published": "FORMAT NOT_THERE",
        "streams.read.positions": "TIME_MAX_MS TIME_TXID_MIN",
        "streams.publish.segment_builder": "NO_NUMBER NEVER_DUE_S",
        "streams.topics.partitioner": "SEED MULTIPLIER",
        "streams.topics.topic_metadata": "FORMAT",
        "streams.write.producers": "NONE_YET",
    },
    ("It only shortens a message, a log line or a note for people."): {
        "_runtime.limits": "_SHOWN_CHARACTERS_MAX",
        "_runtime.names.in_commands": "COMMANDS_MAX",
        "_runtime.units": "_TEXT_MAX NAMED_MAX",
        "bookie.background.damage": "NAMED_PER_PASS",
        "bookie.protocol.read_failures": "SAME_FILE_S FILES_MAX",
        "bookie.server": "UNNAMED_TOLD NOTE_BACKOFF",
        "client.datasets.datasets": "LOST_NAMED_MAX",
        "metadata.bookies.damage_notes": (
            "NOTES_MAX LEDGERS_NAMED_MAX REPAIRED_KEPT_MS BOOKIES_READ_MAX"
        ),
        "metadata.bookies.start_commands": "WORDS_BYTES_MAX",
        "metadata.outages": ("RECENT_MS OUTAGES_MAX SERVERS_READ_MAX WRITE_BACKOFF WRITE_ATTEMPTS"),
        "client.datasets.unpublished": "IDS_NAMED_MAX",
        "client.unreadable_items": "NAMED_MAX",
        "core.placement.descriptions": "NAMES_MAX RACKS_MAX",
        "metadata.ledgers.deletions": "KEPT_MAX",
        "metadata.ledgers.naming": "NAMED_MAX KEPT_MAX",
        "metadata.ledgers.unreadable": "NAMED_MAX TOLD_MAX REASON_CHARS_MAX",
        "replication.marks.marks": "MALFORMED_MAX",
        "replication.autorecovery.recent_repairs": "NAMED_MAX NOTE_INTERVAL_MS PAUSE_MS",
        "replication.marks.notes": "MISPLACED_TOLD_MAX REPAIRED_KEPT_MS REPAIRED_TOLD_MAX",
        "replication.repair.bookie_removal": "REASON_CHARS_MAX",
        "replication.repair.replica_source": "UNREADABLE_NAMED_MAX",
        "storage.background.suspension": "BY_MAX",
        "streams.ownership.named_ledgers": "RANGES_SHOWN_MAX",
        "streams.ownership.owners": "DOUBTS_MAX",
    },
    ("It is an estimate or a measure, and not a limit. A smaller number would be wrong."): {
        "_runtime.metrics": "WINDOW_S",
        "_runtime.retry": "_DOUBLINGS_MAX",
        "bookie.protocol.answer_budget": "REQUEST_COST_BYTES",
        "bookie.protocol.service": "ANSWER_HEAD_BYTES",
        "client.write.caller_ids": "HELD_ENTRY_BYTES",
        "config": "KIB MIB FRAME_BYTES_LEAST SEGMENT_BYTES_LEAST",
        "core.compaction": "FIXED_BYTES FRAME_SHARE GAIN_SHARE",
        "metadata.tree": "OPERATION_BYTES",
        "replication.repair.fragment": "SEGMENT_MARGIN_BYTES",
        "storage.config": "KIB MIB",
        "storage.read.cache": "ENTRY_OVERHEAD_BYTES",
        "streams.namespace.namespace": "FENCED_OPERATIONS",
        "storage.recovery.startup": "LEAST_ROOM_BYTES FOOTER_SHARE",
    },
    (
        "It is a promise to users or between programs. With a smaller number, Quire does "
        "what the invariants forbid."
    ): {
        "bookie.directories.rollback": "LAST_REPORT_S",
        "client.datasets.format": "TRANSACTIONS_MAX",
        "metadata.bookies.directories": "GIVEN_UP_MAX",
        "net.link": "SPENT_KEPT_S",
        "replication.moves.decommission": "SETTLE_S",
        "bookie.background.damage": "RECOVERIES_END_S SOON_S",
        "replication.autorecovery.autorecovery": "SETTLE_S",
        "storage.segment.catalogue": "TOMBSTONE_TTL_MS",
        "streams.ownership.orphans": "CLOCK_SKEW_S OLDER_THAN_S",
        "streams.publish.plans": "OPEN_JOBS_MAX",
        "streams.publish.published": "JOBS_MAX FORMER_MAX",
        "streams.publish.publishing": "SWEEP_BEFORE SWEEP_LEDGERS_MAX",
        "streams.read.reader": "MISSING_LOOKS MISSING_DELAY_S",
        "streams.write.producers": "PRODUCERS_MAX",
        "streams.write.takeover": "DELETE_ATTEMPTS",
    },
    (
        "Beyond it a call is refused, or a value counts as damaged. A smaller number "
        "refuses what every program may ask for."
    ): {
        "_runtime.limits": "INTEGER_MAX SECONDS_MAX",
        "bookie.options": "BOOKIE_ID_BYTES_MAX",
        "client.datasets.format": (
            "VALUE_BYTES_MAX SWEPT_BYTES_MAX TRANSACTION_KEY_BYTES_MAX "
            "TRANSACTION_KEY_STORED_BYTES_MAX NAME_BYTES_MAX"
        ),
        "client.datasets.schema": "SCHEMA_BYTES_MAX PARTITION_COLUMNS_MAX",
        "core.placement.search": "STEPS_MAX",
        "replication.moves.preflight": "SHAPES_MAX SPACE_TIMEOUT_S",
        "core.placement.values": "ENSEMBLE_MAX LOCATION_CHARACTERS_MAX",
        "metadata.common": "CREATE_ATTEMPTS_MAX NODE_BYTES_MAX",
        "metadata.ledgers.size": "CLOSING_BYTES ENSEMBLE_CHANGES_RESERVED",
        "metadata.tree": "COMMIT_OPERATIONS_MAX COMMIT_BYTES_MAX",
        "streams.statemachine.durable_dict": "NESTING_MAX FORMER_NESTING_MAX",
        "replication.autorecovery.misplaced": "CHOICES_MAX",
        "replication.moves.decommission": "DRAIN_WAIT_S RETIRE_WAIT_S",
        "storage.directories": "MAX_DIRECTORIES",
        "storage.directory": "MAX_SMALL_FILE_BYTES",
        "storage.recovery.scan": "UNREADABLE_BLOCKS_MAX",
        "streams.namespace.settings": "ENTRY_BYTES_MAX",
        "streams.objects.format": (
            "NAME_BYTES_MAX BUCKET_BYTES_MAX METADATA_BYTES_MAX CHUNK_BYTES_MAX"
        ),
        "streams.publish.published": "KEY_BYTES_MAX",
        "streams.publish.publishing": "SEGMENTS_MAX",
        "streams.topics.topic_metadata": "PARTITIONS_MAX",
    },
    (
        "It is the default of an option that every caller in the simulator sets, or that "
        "has a knob of its own."
    ): {
        "_runtime.retry": "EQUAL_JITTER",
        "client.client": "DEFAULT_ENSEMBLE_SIZE DEFAULT_WRITE_QUORUM DEFAULT_ACK_QUORUM",
        "metadata.common": "SESSION_TIMEOUT_MS",
        "replication.autorecovery.settings": (
            "BYTES_PER_S OPEN_GRACE_S PARALLEL TARGET_SPREAD_PERCENT"
        ),
        "storage.config": "SEGMENT_BYTES_LEAST SEGMENT_BYTES_MOST SEGMENTS_OF_DISK",
        "streams.statemachine.durable_dict": "SNAPSHOT_EVERY",
    },
    (
        "A smaller number is not the boundary: it is a divisor, a bound that a smaller "
        "number widens, or the size of a cache of values that never change."
    ): {
        "bookie.protocol.add_batcher": "BATCH_SHARE",
        "bookie.protocol.answer_budget": "TAKING_BYTES",
        "bookie.protocol.connection": "MAX_UNSENT_BEFORE_TLS_BYTES",
        "bookie.protocol.connection_limits": "NEWCOMERS_SHARE",
        "codec.packed_rows": "LAYOUTS_MAX",
        "streams.namespace.settings": "ENTRY_BYTES_MIN TIME_MIN_S TIME_MAX_S",
        "streams.topics.partitioner": "KEYS_REMEMBERED",
    },
}
"""The constants that are not drawn: for each reason the modules, with names separated by spaces."""

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "The plan of a run draws it.": {
        "ClientConfig": (
            "max_unacked_bytes max_unforced_bytes read_window_bytes explicit_lac_interval_s "
            "assume_liars ledger_metadata_version"
        ),
        "BookieConfig": (
            "segment_bytes min_free_bytes gc_interval_s compact_minor_ratio compact_major_ratio "
            "compact_bytes_per_s compact_reserve_bytes scrub_interval_s index_cache_interval_s "
            "index_cache_segments damage_report_interval_s gc_over_replicated_interval_s "
            "metadata_mark_interval_s gc_full_interval_s"
        ),
        "AutorecoverySettings": "lost_bookie_delay_s open_grace_s",
        "MoveOptions": "open_grace_s parallel",
        "RebalanceOptions": "target_spread_percent parallel",
        "StreamSettings": (
            "ensemble_size write_quorum ack_quorum entry_bytes entries_in_flight roll_bytes "
            "roll_interval_s retention_s retention_bytes"
        ),
    },
    "The bookie passes its own setting of this name to the storage.": {
        "StorageConfig": (
            "segment_bytes max_queued_bytes min_free_bytes writable_free_bytes read_only_dwell_s "
            "seal_idle_s log_cache_bytes catch_up_bytes_per_s index_cache_interval_s "
            "index_cache_segments compact_minor_ratio compact_minor_interval_s "
            "compact_major_ratio compact_major_interval_s compact_bytes_per_s "
            "compact_reserve_bytes scrub_interval_s scrub_bytes_per_s"
        ),
    },
    "The simulator has a value of its own, as short as the rest of a run allows.": {
        "BookieConfig": "compact_minor_interval_s compact_major_interval_s",
        "AutorecoverySettings": "replicas_check_interval_s placement_check_interval_s",
    },
    "Its default of 0 switches something off, which the smallest value would switch on.": {
        "ClientConfig": "add_quorum_timeout_s quarantine_errors",
        "BookieConfig": "writable_free_bytes",
        "AutorecoverySettings": "ledger_check_percent bytes_per_s",
        "StreamSettings": "bytes_max streams_max",
    },
    "It belongs to something that is not simulated: quarantine, TLS, processes, keepalive, tables "
    "and scripts of locations.": {
        "ClientConfig": "quarantine_window_s quarantine_s dead_link_s",
        "BookieConfig": "dead_client_s stop_timeout_s session_timeout_s",
        "TlsClientConfig": "reload_check_s",
        "TlsServerConfig": "reload_check_s handshake_timeout_s max_handshakes",
        "PlacementConfig": (
            "weight_refresh_s table_check_s script_names_max script_timeout_s script_refresh_s"
        ),
    },
    "It is what a policy promises, and not a limit.": {
        "PlacementConfig": "min_racks min_regions min_zones desired_zones weight_multiple_max",
    },
    "Beyond it a call is refused, or its connection is closed.": {
        "ClientConfig": "max_held_bytes",
        "BookieConfig": "max_frame_bytes",
    },
}
"""The fields of settings classes that are not drawn, in the same form."""
