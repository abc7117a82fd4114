"""Defects that a sweep must find: a sync that is missing, too late, or of the wrong file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from quire.bookie.directories import identity
from quire.codec.log import index_cache as index_cache_format
from quire.storage import directory
from quire.storage.background.collector import Collector
from quire.storage.background.rewrite import Rewrite
from quire.storage.log import preallocation
from quire.storage.log.group_commit import LogWriter
from quire.storage.recovery import replay, startup
from quire.storage.recovery.index_cache import CachedIndex
from quire.storage.segment import footer
from tests.sim.mutants.mutant import edit
from tests.support.crash.crash_scripts import COMPACTS, DELETES, FILLS, FIRST_START, ROLLS, WIDE
from tests.support.crash.crash_sweep import Script

Apply = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Defect:
    apply: Apply
    script: Script
    """The script that reveals the defect."""
    every: int
    """The share of what is tried in depth: one in this many states, and one in this many
    operations.

    At these operations the process is killed.
    """

    @property
    def name(self) -> str:
        return self.apply.__name__


DEFECTS: list[Defect] = []


def defect(script: Script, every: int = 8) -> Callable[[Apply], Apply]:
    def add(apply: Apply) -> Apply:
        DEFECTS.append(Defect(apply, script, every))
        return apply

    return add


@defect(ROLLS)
def a_group_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LogWriter, "write", ("file.sync()", "pass"))


@defect(ROLLS)
def another_file_is_synced(patch: pytest.MonkeyPatch) -> None:
    """Sync the file of the first segment, as with a handle that was kept too long."""
    edit(
        patch,
        LogWriter,
        "write",
        ("file.sync()", "vars(self).setdefault('first', file).sync()"),
    )


@defect(ROLLS)
def a_group_is_written_before_the_header_is_synced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LogWriter, "_begin", ("segment.file.sync()", "pass"))


@defect(ROLLS)
def a_new_segment_has_no_durable_name(patch: pytest.MonkeyPatch) -> None:
    edit(patch, preallocation, "prepare", ("disk.sync_directory(LOG_DIRECTORY)", "pass"))


@defect(FIRST_START)
def a_small_file_is_renamed_before_it_is_synced(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        directory,
        "write_small_file",
        ("file.write([data], 0)\n        file.sync()", "file.write([data], 0)"),
        (
            "disk.rename(temporary, name)",
            "disk.rename(temporary, name)\n"
            "    file = disk.open(name)\n    file.sync()\n    file.close()",
        ),
    )


@defect(FIRST_START)
def a_small_file_has_no_durable_name(patch: pytest.MonkeyPatch) -> None:
    edit(patch, directory, "write_small_file", ("disk.sync_directory(directory)", "pass"))


@defect(FIRST_START, every=1)
def the_cookie_is_told_before_its_file_is_durable(patch: pytest.MonkeyPatch) -> None:
    edit(patch, identity, "_tie", ("settle_names(disk)", "pass"))


@defect(FIRST_START, every=1)
def the_directory_of_the_log_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    edit(patch, startup, "start_log", ("disk.sync_directory()", "pass"))


@defect(WIDE)
def a_trailer_is_synced_with_its_index(patch: pytest.MonkeyPatch) -> None:
    edit(patch, footer, "write_footer", ("file_bytes)\n    segment.file.sync()", "file_bytes)"))


@defect(ROLLS)
def the_last_group_is_not_written_again(patch: pytest.MonkeyPatch) -> None:
    edit(patch, replay, "_judge_tail", ("_write_again(chain, newest, last, kept)", "pass"))


@defect(DELETES)
def a_segment_goes_before_that_is_logged(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        Collector,
        "_on_records",
        (
            "self._log_records(needed, partial(self._on_logged, segment))",
            "self._remove_file(segment)\n"
            "    self._log_records(needed, partial(self._on_logged, segment))",
        ),
    )


@defect(DELETES)
def dropped_segments_go_before_the_last_group_is_copied(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        startup,
        "start_log",
        (
            "expected=expected\n    ).run()",
            "expected=expected\n    ).run()\n"
            "    while recovered.stale:\n"
            "        disk.remove(recovered.stale.pop())",
        ),
    )


@defect(COMPACTS)
def a_compaction_takes_its_place_before_it_is_whole(patch: pytest.MonkeyPatch) -> None:
    rename = "self._disk.rename(SPARE_NAME, output.name)"
    edit(patch, Rewrite, "finish", (rename, "pass"))
    edit(
        patch,
        Rewrite,
        "write_header",
        (
            "output, trailer = self._output, self._last.trailer",
            f"output, trailer = self._output, self._last.trailer\n    {rename}",
        ),
    )


@defect(COMPACTS)
def a_compaction_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Rewrite, "copy", ("self._file.sync()", "pass"))
    edit(
        patch,
        Rewrite,
        "finish",
        ("assert file is not None", "assert file is not None\n    file.sync = lambda: None"),
    )


@defect(DELETES)
def an_index_cache_counts_although_a_segment_is_gone(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        CachedIndex,
        "check",
        ("if gone:", "for one in gone:\n        self.segments.pop(one)\n    if False:"),
    )


@defect(ROLLS)
def an_index_cache_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(index_cache_format, "check_block", lambda header, body, kind: None)


@defect(FILLS)
def a_start_on_a_full_disk_leaves_an_interrupted_one_its_room(patch: pytest.MonkeyPatch) -> None:
    edit(patch, startup, "_cut_preallocated", ("if emptied is not None", "if False"))


@defect(FILLS, every=1_000)
def a_disk_that_was_full_stays_so(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch, preallocation.PreallocatedSegments, "_on_free", ("if self._not_prepared", "if False")
    )
