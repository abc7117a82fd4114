"""The knobs of streams, objects and state machines."""

from __future__ import annotations

from quire_simulator.knobs.knob import Knob, limits

KNOBS = (
    *limits("streams.namespace.namespace", RENAME_ATTEMPTS=2,
            ALL_BUFFERED_BYTES_MAX=1),
    *limits("streams.namespace.removal", ATTEMPTS_MAX=3),
    *limits("streams.namespace.stream_life", FIND_ATTEMPTS=3),
    *limits(
        "streams.namespace.stream_metadata", LOST_REPLY_ATTEMPTS=1, LOST_REPLY_LIMIT_S=5.0,
        LOST_REPLY_BACKOFF=0.01, NODES_PER_COMMIT=1, REST_ATTEMPTS=3, CREATE_ATTEMPTS=2,
    ),
    Knob("streams.namespace.stream_metadata", "LIST_ATTEMPTS", 3,
         also=("quire.streams.namespace.known_segments", "quire.streams.ownership.named_ledgers")),
    *limits("streams.namespace.known_segments", READ_ANEW_S=0.1, DOUBTED_MIN=1),
    *limits("streams.namespace.known_sizes", STREAMS_KEPT_MAX=1),
    *limits("streams.namespace.tree_search", NODES_AT_ONCE=1, STREAMS_AT_ONCE=1,
            PAGE_STREAMS_MAX=1),
    *limits("streams.namespace.truncation", ATTEMPTS_MAX=3, SEGMENTS_PER_COMMIT=1),
    *limits("streams.objects.objects", PAGE_OBJECTS=1, LEDGERS_LOOKED_AT=1, OPEN_ATTEMPTS_MAX=3,
            CLEAN_UP_LIMIT_S=0.1),
    Knob("streams.objects.format", "CHUNK_BYTES_DEFAULT", 16,
         also=("quire.streams.objects.objects",),
         parameters=("streams.objects.objects:Objects.put.chunk_bytes",)),
    *limits("streams.ownership.named_ledgers", OWNERS_AT_ONCE=1),
    *limits("streams.ownership.orphans", LEDGERS_LOOKED_AT=1),
    *limits("streams.ownership.owners", MISSED_LIMIT_S=0.1),
    *limits("streams.publish.plans", PLAN_ATTEMPTS=2),
    *limits("streams.publish.publishing", MERGE_BYTES=1, COMMIT_LIMIT_S=0.2, COMMIT_BACKOFF=0.005),
    *limits("streams.publish.segment_builder", UNACKED_ENTRIES_MAX=1),
    *limits("streams.publish.stream_end", TAKE_ATTEMPTS=2, TAKE_BACKOFF=0.01),
    Knob("streams.read.ahead", "AHEAD_ENTRIES", 1,
         also=("quire.streams.read.reader",)),
    Knob("streams.read.ahead", "AHEAD_LEDGERS", 1,
         also=("quire.streams.read.reader",)),
    *limits("streams.read.ahead", AHEAD_BYTES=1),
    *limits("streams.read.merged", STREAMS_AT_ONCE=1, FIRST_CHUNK_MAX=1, CHUNK_MAX=1),
    *limits("streams.read.segment_list", LIST_AGAIN_S=0.2),
    *limits("streams.read.subscriptions", COMMIT_ATTEMPTS_MAX=3),
    *limits("streams.statemachine.state_machine", RESTORE_ATTEMPTS=3, TRIES_BETWEEN_SNAPSHOTS=1),
    *limits("streams.topics.topic_metadata", CREATE_TOPIC_ATTEMPTS=2),
    *limits("streams.topics.writer", STICKY_BYTES=1),
    *limits("streams.write.producers", ENTRIES_AT_ONCE=1),
    *limits("streams.write.takeover", DELETE_BACKOFF=0.01, BACKWARD_ENTRIES=1),
    *limits(
        "streams.write.writer_task", BUFFERED_BYTES_MAX=1, FULL_ENTRIES_IN_FLIGHT_MAX=1,
        TURNS_BEFORE_CONTROL=1, SEGMENT_BACKOFF=0.005, GIVE_UP_S=5.0,
        NEXT_LEDGER_PAUSE_S=0.05,
    ),
)  # fmt: skip
