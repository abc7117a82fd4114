"""Defects of the scrub: what it reads, and what it does with damage."""

from __future__ import annotations

import pytest

from quire.storage.background import scrubber
from quire.storage.background.quarantine import Quarantine
from quire.storage.background.scrub import SegmentScrub
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="Damage in the last block of a segment is found too late to repair it.",
    invariants=("damage_is_found",),
    workload="amnesia",
    seeds=20,
)
def the_scrub_skips_the_last_block(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        SegmentScrub,
        "_blocks",
        ("found = block_checksums((data,))",
         "found = block_checksums((data,))[: self._target.end // 4096 - 1 - number]"),
        ("found.tolist() != list(expected)", "True"),
    )  # fmt: skip


@mutant(
    lost="After a restart a bookie does not know which of its blocks are damaged.",
    invariants=("damage_is_found",),
    workload="amnesia",
    seeds=20,
)
def damage_is_not_written_down(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Quarantine, "_save", ("or not self._unsaved", "or True"))


@mutant(
    lost="Good entries are copied from other bookies as if they were damaged.",
    invariants=("a_good_disk_is_not_called_damaged",),
    workload="rot",
    seeds=20,
)
def the_scrub_reads_what_is_not_written_yet(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        scrubber,
        "target_of",
        ("end = segment.end if", "end = segment.end + BLOCK_BYTES if"),
    )
