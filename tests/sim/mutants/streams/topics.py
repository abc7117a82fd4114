"""Defects of topics: their partitions, their nodes, and how they are read and written together."""

from __future__ import annotations

import pytest

from quire.streams.read.subscriptions import Subscription
from quire.streams.topics import partitioner
from quire.streams.topics.reader import TopicReader
from quire.streams.topics.topic import Topic
from quire.streams.topics.topic_metadata import TopicMetadata
from quire.streams.topics.writer import TopicAppended, TopicWriter
from tests.sim.mutants.mutant import edit, exchange, mutant


@mutant(
    lost="Records of a key are in another partition than those that Kafka's clients appended.",
    invariants=("a_record_of_a_topic_is_in_its_partition",),
    workload="topics",
    seeds=100,
)
def the_tail_of_a_key_is_not_hashed(patch: pytest.MonkeyPatch) -> None:
    edit(patch, partitioner, "murmur2", ("if whole < len(data):", "if whole < 0:"))
    exchange(patch, partitioner.partition_of, partitioner.partition_of.__wrapped__)


@mutant(
    lost="A program is told that its records are in places where others are.",
    invariants=(
        "a_record_of_a_topic_is_there_once",
        "a_record_of_a_topic_is_what_was_appended",
        "a_record_of_a_topic_is_in_its_partition",
    ),
    workload="topics",
    seeds=100,
)
def places_are_those_of_the_partitions_in_order(patch: pytest.MonkeyPatch) -> None:
    edit(patch, TopicAppended, "wait", ("for partition in self._chosen]",
                                        "for partition in sorted(self._chosen)]"))  # fmt: skip


@mutant(
    lost="A record gets the key of another record of the same call.",
    invariants=("a_record_of_a_topic_is_what_was_appended",),
    workload="topics",
    seeds=100,
)
def keys_are_not_those_of_their_records(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, TopicWriter, "submit_many",
        ("[column[at] for at in indexes]", "[column[at] for at in sorted(indexes, reverse=True)]"),
    )  # fmt: skip


@mutant(
    lost="Records are appended to a partition that belongs to another program.",
    invariants=("a_wrong_call_is_refused", "what_was_refused_is_not_done", "only_our_errors"),
    workload="topics",
    seeds=200,
)
def any_partition_is_assigned(patch: pytest.MonkeyPatch) -> None:
    edit(patch, TopicWriter, "_check_assigned", ("if partition in self._writers:", "if True:"))


@mutant(
    lost="A program that continues at its stored positions skips records that it has not read.",
    invariants=("a_record_of_a_topic_is_there", "a_stored_position_moves_forward"),
    workload="topics",
    seeds=200,
)
def a_reader_is_where_its_prefetch_is(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, TopicReader, "one_by_one",
        ("record.position.next_slot()", "record.position.next_slot().next_slot()"),
        ("behind = self._positions[partition]",
         "behind = self._positions[partition].next_slot()"),
    )  # fmt: skip


@mutant(
    lost="A reader that has a position for some partitions reads the others from their end.",
    invariants=("a_record_of_a_topic_is_there",),
    workload="topics",
    seeds=200,
)
def partitions_without_a_position_begin_at_the_end(patch: pytest.MonkeyPatch) -> None:
    edit(patch, TopicReader, "__init__", ("start.get(partition, EARLIEST)",
                                          'start.get(partition, "latest")'))  # fmt: skip


@mutant(
    lost="A subscription goes back, so records are processed again.",
    invariants=("a_stored_position_moves_forward",),
    workload="topics",
    seeds=300,
)
def a_subscription_may_go_back(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Subscription, "commit", ("before >= position", "before == position"))


@mutant(
    lost="Partition 0 of a topic has no stored position.",
    invariants=("a_stored_position_moves_forward",),
    workload="topics",
    seeds=100,
)
def the_first_position_is_left_out(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Topic, "positions", ("if position is not None}", "if position is not None and at}"))


@mutant(
    lost="A topic that was deleted leaves a partition behind, whose name nobody can use.",
    invariants=("a_topic_is_whole",),
    workload="topics",
    seeds=100,
)
def a_deletion_leaves_the_last_partition(patch: pytest.MonkeyPatch) -> None:
    edit(patch, TopicMetadata, "delete", ("in range(known.partitions)",
                                          "in range(known.partitions - 1)"))  # fmt: skip


@mutant(
    lost="A topic is opened while it is being deleted.",
    invariants=("a_topic_is_whole", "a_topic_is_there", "quiet_heals",
                "a_deleted_topic_takes_no_more"),
    workload="topics",
    seeds=200,
)  # fmt: skip
def a_deletion_does_not_begin_with_a_mark(patch: pytest.MonkeyPatch) -> None:
    edit(patch, TopicMetadata, "delete", ("deleting=True, version", "deleting=False, version"),
         ("marked.id == known.id and not marked.deleting", "marked is known"))  # fmt: skip


@mutant(
    lost="A list of topics leaves out those whose name contains a /.",
    invariants=("a_list_is_complete",),
    workload="topics",
    seeds=100,
)
def names_of_topics_stay_quoted(patch: pytest.MonkeyPatch) -> None:
    edit(patch, TopicMetadata, "names", ("map(unquote, found)", "found"))
