"""Defects of replaced disks: replacing them, and disks that come back."""

from __future__ import annotations

import pytest

from quire.bookie.background import complete_ledger
from quire.bookie.background.damage import DamageReports
from quire.bookie.directories import cookie_directories as directories
from quire.bookie.directories import identity, lost_directory
from quire.bookie.directories import replacement as disk_replacement
from quire.storage import directory
from quire.storage.directories import LedgerDirectories
from quire.storage.recovery.incarnation import ExpectedLog
from quire.storage.recovery.log_recovery import LogRecovery
from quire.storage.store import LedgerStore
from tests.sim.mutants.mutant import edit, mutant
from tests.sim.mutants.storage.storage import LOST_IN_A_CRASH

TAKEN_FOR_ABSENT = ("what_is_lost_is_unknown", "no_false_absence", "acknowledged_is_kept")


@mutant(
    lost="A bookie denies the entries of the disk that died.",
    invariants=TAKEN_FOR_ABSENT,
    workload="replaced",
    seeds=60,
)
def the_new_directory_is_one_that_held_nothing(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        directory,
        "begin_lost",
        ("mark_log_begun(disk, ensure_directory(disk, random_bytes))",
         "ensure_directory(disk, random_bytes)"),
    )  # fmt: skip


@mutant(
    lost="The same, if the replacement was interrupted between two steps.",
    invariants=TAKEN_FOR_ABSENT,
    workload="replaced",
    seeds=300,
)
def it_is_lost_only_once_it_has_its_cookie(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lost_directory, "ensure_directory", directory.ensure_directory, raising=False)
    patch.setattr(lost_directory, "mark_log_begun", directory.mark_log_begun, raising=False)
    edit(
        patch,
        lost_directory,
        "replace_directory",
        ("name = begin_lost(new, random_bytes).name",
         "identity = ensure_directory(new, random_bytes)\n    name = identity.name"),
        ("write_small_file(new, COOKIE_FILE, encode(cookie))",
         "write_small_file(new, COOKIE_FILE, encode(cookie))\n    mark_log_begun(new, identity)"),
    )  # fmt: skip


@mutant(
    lost="The same, if somebody mounts an empty disk without running the command.",
    invariants=TAKEN_FOR_ABSENT,
    workload="replaced",
    seeds=60,
)
def an_empty_disk_in_its_place_is_a_new_one(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        directories,
        "check_directories",
        ("if one.disk.path in listed:", "if one.disk.path in listed and one.cookie is not None:"),
    )


@mutant(
    lost="An old disk comes back: newer entries are denied, fences and deletions are undone.",
    invariants=("an_old_disk_is_refused", *TAKEN_FOR_ABSENT, *LOST_IN_A_CRASH),
    workload="replaced",
    seeds=60,
)
def a_disk_that_was_replaced_is_let_in(patch: pytest.MonkeyPatch) -> None:
    edit(patch, identity, "check_current", ("if not wrong:", "if True:"))


@mutant(
    lost="A bookie takes its new disk for a wrong one and never starts.",
    invariants=("quiet_heals", "an_old_disk_is_refused"),
    workload="replaced",
    seeds=20,
)
def the_cluster_is_not_told_which_disk_it_is(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        lost_directory,
        "replace_directory",
        (
            "await _keep(metadata, holder, left, cookie, {**ids, **left.ids, new.path: name})",
            "pass",
        ),
    )


@mutant(
    lost="The same, because an interrupted replacement counts as finished.",
    invariants=("quiet_heals",),
    workload="replaced",
    seeds=200,
)
def what_was_begun_is_done(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        disk_replacement,
        "_successor",
        ("and found.cookie == holder.cookie(holder.directories)", ""),
    )


@mutant(
    lost="A healthy disk is given up because of an operator's mistake.",
    invariants=("what_is_durable_stays", *LOST_IN_A_CRASH),
    workload="replaced",
    seeds=60,
)
def a_disk_that_is_well_is_given_up(patch: pytest.MonkeyPatch) -> None:
    edit(patch, lost_directory, "check_lost", ("if found.ledgers is None or", "if True or"))


@mutant(
    lost="The copies on a lost disk are never replaced, because nobody marks them.",
    invariants=(
        "what_is_lost_comes_back",
        "a_loss_comes_to_its_end",
        "everything_is_replicated_again",
    ),
    workload="replaced",
    seeds=20,
)
def what_is_lost_is_not_marked(patch: pytest.MonkeyPatch) -> None:
    edit(patch, DamageReports, "report", ("if unknown and not resting:", "if False:"))


@mutant(
    lost="A bookie denies entries that have not been restored yet.",
    invariants=TAKEN_FOR_ABSENT,
    workload="replaced",
    seeds=60,
)
def a_loss_ends_with_the_first_round(patch: pytest.MonkeyPatch) -> None:
    edit(patch, DamageReports, "_end_round", ("if not self._wanting and", "if"))


@mutant(
    lost="A bookie denies the rest of a ledger as soon as some of it is restored.",
    invariants=TAKEN_FOR_ABSENT,
    workload="replaced",
    seeds=60,
)
def what_comes_back_goes_where_nothing_was_lost(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LedgerDirectories, "_place_for", ("if place.lossy:", "if False:"))


@mutant(
    lost="A bookie denies entries of an open ledger that nobody has marked.",
    invariants=TAKEN_FOR_ABSENT,
    workload="replaced",
    seeds=200,
)
def an_open_ledger_has_all_that_it_needs(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        complete_ledger,
        "is_complete",
        ("if recovering:\n        return False", "if False:\n        return False"),
        ("if not metadata.closed and bookie in metadata.last_segment.ensemble:", "if False:"),
    )


@mutant(
    lost="A bookie that lost a fence takes entries, so there are two writers.",
    invariants=("nothing_acknowledged_beyond_the_close", *TAKEN_FOR_ABSENT),
    workload="replaced",
    seeds=200,
    rule="rule 34",
)
def who_lost_a_fence_takes_entries(patch: pytest.MonkeyPatch) -> None:
    edit(patch, LedgerStore, "writable", ("and not self._catalogue.negatives_unknown", ""))
    edit(patch, LedgerDirectories, "writable", ("and not place.lossy", ""))


@mutant(
    lost="The same, after all entries have been restored.",
    invariants=("what_is_lost_comes_back", "nothing_acknowledged_beyond_the_close"),
    workload="replaced",
    seeds=60,
    rule="rule 34",
)
def a_lost_fence_does_not_come_back(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        complete_ledger,
        "is_complete",
        ("return not metadata.closed or await _fence(store, ledger_id, metadata)", "return True"),
    )


@mutant(
    lost="A bookie denies later entries after a directory was restored from an older copy.",
    invariants=(*TAKEN_FOR_ABSENT, *LOST_IN_A_CRASH),
    workload="rolled_back",
    seeds=20,
)
def an_older_copy_is_let_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExpectedLog, "held_against", lambda expected, found: "")


@mutant(
    lost="The same: the start reports the older copy and continues.",
    invariants=TAKEN_FOR_ABSENT,
    workload="rolled_back",
    seeds=20,
)
def an_older_copy_is_only_told(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LogRecovery,
        "_run",
        ("missing.append(max(newest + 1, self._expected.position.newest_file))", "pass"),
    )
