"""Defects of what calls report in a quiet cluster: results, counters and costs."""

from __future__ import annotations

import pytest

from quire.client.client import LedgerClient
from quire.client.observability.metrics import ClientCounters
from quire.client.read.hedge import Hedge
from quire.client.read.reader import LedgerReader
from quire.streams.mirror.lag import Lag
from quire.streams.mirror.mirror import Mirror
from quire.streams.mirror.topics import TopicCopies
from quire.streams.ownership.owner_index import OwnerIndex
from quire.streams.read.arrow import RecordColumns
from tests.sim.mutants.mutant import edit, mutant

# -- ledgers -----------------------------------------------------------------------------------


@mutant(
    lost="A read of unconfirmed entries up to some entry gives the entries after it as well.",
    invariants=("reports_are_true", "a_right_call_is_not_refused"),
    workload="ledger walks",
    seeds=60,
)
def an_unconfirmed_read_has_no_end(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, LedgerReader, "read_unconfirmed",
        ("MAX_ENTRY_ID if last is None else last", "MAX_ENTRY_ID"),
    )  # fmt: skip


@mutant(
    lost="The metric of written bytes has only the bytes of the last batch.",
    invariants=("reports_are_true",),
    workload="ledger walks",
    seeds=60,
)
def the_bytes_of_a_batch_replace_those_before(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, ClientCounters, "count_adds",
        ("self.add_bytes += size_bytes", "self.add_bytes = size_bytes"),
    )  # fmt: skip


@mutant(
    lost="Each opening of a ledger reads its metadata twice.",
    invariants=("a_quiet_cluster_costs_little",),
    workload="ledger walks",
    seeds=60,
)
def a_ledger_is_opened_twice(patch: pytest.MonkeyPatch) -> None:
    again = "value = (await self.metadata.read_ledger(ledger_id)).value"
    edit(patch, LedgerClient, "_open", ("value = stored.value", again))


@mutant(
    lost="A read asks every replica of an entry at once, and gets it several times.",
    invariants=("a_quiet_cluster_costs_little",),
    workload="ledger walks",
    seeds=60,
)
def every_replica_is_asked(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, Hedge, "_some",
        ("patience_s = min(patience_s, self._config.speculative_read_s)", "patience_s = 0.0"),
    )  # fmt: skip


# -- streams -----------------------------------------------------------------------------------


@mutant(
    lost="The report of a replication counts the entries of one segment only.",
    invariants=("reports_are_true",),
    workload="stream walks",
    seeds=60,
)
def a_replication_counts_its_last_segment(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, Mirror, "_count", ("self.copied.entries += entries", "self.copied.entries = entries")
    )


@mutant(
    lost="A copy keeps what its source has truncated, although it should be truncated as well.",
    invariants=("reports_are_true",),
    workload="stream walks",
    seeds=60,
)
def a_copy_is_not_truncated(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Mirror, "keep", ("if await truncate(self._to, oldest, life=life):", "if False:"))


@mutant(
    lost="The lag of a copy is one record too small.",
    invariants=("reports_are_true",),
    workload="stream walks",
    seeds=60,
)
def a_lag_is_one_record_too_small(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Lag, "measure", ("return max(left, 0)", "return max(left - 1, 0)"))


@mutant(
    lost="A topic is announced although copies of some of its partitions are not planned.",
    invariants=("reports_are_true",),
    workload="stream walks",
    seeds=60,
)
def a_topic_comes_without_its_partitions(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, TopicCopies, "upcoming",
        ("if await self._is_complete(topic, streams)", "if topic.name"),
    )  # fmt: skip


@mutant(
    lost="Records after a control record have wrong slots in Arrow columns.",
    invariants=("reports_are_true",),
    workload="stream walks",
    seeds=60,
)
def columns_count_slots_from_zero(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, RecordColumns, "_add_alike",
        ("numpy.arange(slot, slot + count)", "numpy.arange(count)"),
    )  # fmt: skip


@mutant(
    lost="A page says of a ledger of nobody that its owners are not known yet.",
    invariants=("reports_are_true",),
    workload="stream walks",
    seeds=60,
)
def a_ledger_of_nobody_is_never_known(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, OwnerIndex, "of",
        ("None if unread or metadata.ctime_ms >= self._began_ms else list(self._doubts)", "None"),
    )  # fmt: skip
