"""Defects of freeing space: compaction, what it keeps, full disks, foreign stores."""

from __future__ import annotations

import pytest

from quire.bookie.background import garbage
from quire.storage.background.collector import Collector
from quire.storage.background.compactor import CompactionReserve, Compactor
from quire.storage.background.rewrite import Rewrite
from quire.storage.segment.catalogue import Catalogue
from tests.sim.mutants.mutant import edit, mutant
from tests.sim.mutants.storage.storage import LOST_IN_A_CRASH


@mutant(
    lost="Compacted entries are lost when the power fails.",
    invariants=LOST_IN_A_CRASH,
    workload="space",
    seeds=20,
)
def a_compaction_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Rewrite, "copy", ("self._file.sync()", "pass"))
    edit(
        patch,
        Rewrite,
        "finish",
        ("assert file is not None", "assert file is not None\n    file.sync = lambda: None"),
    )


@mutant(
    lost="A compaction loses a fence, so there are two writers.",
    invariants=("what_is_durable_stays", "nothing_acknowledged_beyond_the_close"),
    workload="space",
    seeds=20,
    rule="rule 34",
)
def a_compaction_forgets_fences(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Compactor,
        "_still_needed",
        ("if needed:", "if needed and kind is not RecordKind.FENCE:"),
    )


@mutant(
    lost="A live ledger is lost in every segment that is compacted.",
    invariants=(*LOST_IN_A_CRASH, "no_false_absence"),
    workload="space",
    seeds=20,
)
def a_compaction_forgets_a_ledger(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Rewrite,
        "_look",
        ("for ledger_id in source.ledger_ids:", "for ledger_id in source.ledger_ids[1:]:"),
    )


@mutant(
    lost="Entries are lost because another run of their ledger hides them.",
    invariants=(*LOST_IN_A_CRASH, "no_false_absence"),
    workload="space",
    seeds=20,
)
def runs_that_go_on_count_as_copies(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Rewrite,
        "_without_copies",
        ("if _overlap(extents):\n            extents", "if True:\n            extents"),
    )
    edit(
        patch,
        Rewrite,
        "_newest",
        ("include(seen, every)", "include(seen, [(max(0, extent.first - 1), extent.last)])"),
    )


@mutant(
    lost="An append to a ledger that was closed and deleted is acknowledged.",
    invariants=("nothing_acknowledged_beyond_the_close", "what_is_dropped_stays_refused"),
    workload="space",
    seeds=90,
    rule="bk#4462, rule 36",
)
def a_compaction_forgets_tombstones(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Compactor, "_is_deletion_needed", ("if deleted.fenced and", "if False and"))


@mutant(
    lost="Every ledger is deleted when the metadata address leads to another cluster.",
    invariants=(*LOST_IN_A_CRASH, "no_false_absence"),
    workload="space",
    seeds=20,
    rule="rule 30",
)
def a_foreign_store_is_believed(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        garbage,
        "check_cluster",
        ("found != instance_id or (named and not instance_id)", "False"),
    )


@mutant(
    lost="A full bookie stays full, because there is no space for a compaction.",
    invariants=("space_comes_back",),
    workload="space",
    seeds=120,
)
def the_reserve_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CompactionReserve, "keep", lambda self, *, wanted: None)


@mutant(
    lost="The disk fills with deleted ledgers.",
    invariants=("space_comes_back",),
    workload="space",
    seeds=20,
)
def nothing_is_compacted(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Compactor,
        "_due",
        ("now >= self._next_major_s", "False"),
        ("now >= self._next_minor_s", "False"),
    )


@mutant(
    lost="Entries of a ledger that came back are lost when its first deletion is logged again.",
    invariants=(*LOST_IN_A_CRASH, "no_false_absence"),
    workload="returning",
    seeds=30,
)
def a_deletion_counts_from_its_copy(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Collector,
        "_deletion",
        ("Deleted(deleted.time_ms, deleted.fenced, before)",
         "Deleted(deleted.time_ms, deleted.fenced)"),
    )  # fmt: skip


@mutant(
    lost="Entries of a ledger that came back are lost, because all segments count as older ones.",
    invariants=(*LOST_IN_A_CRASH, "no_false_absence"),
    workload="returning",
    seeds=30,
)
def a_copied_deletion_takes_everything(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Catalogue, "forget_before", ("if info.touched < number:", "if True:"))


@mutant(
    lost="A dropped copy is there again when the segment with its deletion is removed.",
    invariants=("what_is_dropped_stays_gone",),
    workload="returning",
    seeds=30,
)
def a_deletion_goes_with_its_segment(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Collector, "_deletion", ("if not spoken_of and", "if"))


@mutant(
    lost="The same, when that segment is compacted.",
    invariants=("what_is_dropped_stays_gone",),
    workload="returning",
    seeds=30,
)
def a_deletion_goes_with_a_compaction(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Compactor, "_is_deletion_needed", ("return any(", "return False and any("))
