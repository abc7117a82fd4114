"""Defects of the scrub: what it looks at, and what it makes of what it finds."""

from __future__ import annotations

import pytest

from quire.storage.background import scrubber
from quire.storage.background.quarantine import Quarantine
from quire.storage.background.scrub import SegmentScrub
from tests.sim.mutants.mutant import edit, mutant


@mutant(
    lost="damage in the last block of a segment is found when it is too late to heal it",
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
    lost="what was found damaged, when the bookie starts again",
    invariants=("damage_is_found",),
    workload="amnesia",
    seeds=20,
)
def damage_is_not_written_down(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Quarantine, "_save", ("or not self._unsaved", "or True"))


@mutant(
    lost="nothing, but good entries are copied from other bookies as if they were damaged",
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
