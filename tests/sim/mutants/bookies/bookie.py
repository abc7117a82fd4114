"""Defects of the bookie: fencing, answers, garbage collection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.bookie.announcement import Announcement
from quire.bookie.background import garbage
from quire.bookie.directories import identity
from quire.bookie.protocol.add_batcher import AddBatcher
from quire.bookie.protocol.service import BookieService
from quire.bookie.protocol.v2 import RequestsV2
from quire.bookie.protocol.v3 import RequestsV3
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.codec.wire.v2 import Code
from quire.errors import MetadataUnavailableError
from quire.metadata.interface import LedgerRange
from quire.storage.store import LedgerStore
from quire_simulator.metadata.store import MemoryStore
from tests.sim.mutants.mutant import edit, exchange, mutant


@mutant(
    lost="Appends of the old writer are acknowledged after another client closed the ledger.",
    invariants=("nothing_acknowledged_beyond_the_close",),
    workload="recovery",
    seeds=20,
    rule="rule 34",
)
def a_fence_is_not_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerStore, "fence", lambda self, ledger_id, done: done(None))


@mutant(
    lost="A crash undoes a fence, so there are two writers.",
    invariants=("what_is_durable_stays", "nothing_acknowledged_beyond_the_close"),
    workload="torn",
    seeds=110,
    rule="rule 33",
)
def a_fence_is_answered_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        LedgerStore,
        "fence",
        (
            "StateRecord(RecordKind.FENCE, ledger_id)], durable)",
            "StateRecord(RecordKind.FENCE, ledger_id)], lambda error: None)\n    durable(None)",
        ),
    )


@mutant(
    lost="A late first append is acknowledged after another client closed the ledger.",
    invariants=("acknowledged_is_kept", "nothing_acknowledged_beyond_the_close"),
    workload="churn",
    seeds=110,
    rule="rule 34",
)
def a_ledger_that_is_not_known_is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookieService,
        "fence",
        (
            "code = self._open(",
            "code = Code.NO_LEDGER if ledger_id not in store.ledgers else self._open(",
        ),
    )


@mutant(
    lost="An append passes the fence: it is acknowledged, and recovery cuts it off.",
    invariants=("acknowledged_is_on_a_quorum", "nothing_acknowledged_beyond_the_close"),
    workload="recovery",
    seeds=20,
    rule="bk#4701, rule 35",
)
def an_add_slips_past_the_fence(patch: pytest.MonkeyPatch) -> None:
    """The fence is checked, and then the add waits before it is stored."""
    real = AddBatcher._hand_over

    def hand_over(self: Any, *add: Any) -> None:
        asyncio.get_running_loop().call_later(0.02, real, self, *add)

    patch.setattr(AddBatcher, "_hand_over", hand_over)


@mutant(
    lost="A ledger whose writer died can never be closed.",
    invariants=("quiet_heals",),
    workload="recovery",
    seeds=20,
    rule="rule 34",
)
def a_fence_refuses_recovery_too(patch: pytest.MonkeyPatch) -> None:
    edit(patch, BookieService, "may_add", (" and not flags & RECOVERY_ADD", ""))


@mutant(
    lost="A bookie denies damaged entries, and recoveries cut them off.",
    invariants=("no_false_absence", "acknowledged_is_kept"),
    workload="spoiled",
    seeds=190,
    rule="bk#2908, rule 32",
)
def damaged_is_answered_as_absent(patch: pytest.MonkeyPatch) -> None:
    real = BookieService._read_code

    def read_code(self: Any, error: Exception, ledger_id: int) -> int:
        code = real(self, error, ledger_id)
        return Code.NO_ENTRY if code == Code.IO_ERROR else code

    patch.setattr(BookieService, "_read_code", read_code)


@mutant(
    lost="A bookie denies entries that it lost, and recoveries cut them off.",
    invariants=("no_false_absence", "acknowledged_is_kept"),
    workload="amnesia",
    seeds=250,
    rule="bk#2909, rule 31",
)
def lost_data_is_answered_as_absent(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        BookieService,
        "code_of_missing",
        ("if self.store.absence_unknown(ledger_id):", "if False:"),
    )


@mutant(
    lost="A bookie that comes back with an empty disk denies what it acknowledged.",
    invariants=("an_empty_disk_is_refused", "acknowledged_is_kept", "no_false_absence"),
    workload="rot",
    seeds=20,
    rule="rule 31",
)
def an_empty_disk_is_let_in(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        identity,
        "check_identity",
        (
            "if local is None:\n            raise",
            "if local is None:\n"
            "            ensure_directory(disk, random_bytes)\n"
            "            write_small_file(disk, COOKIE_FILE, known)\n"
            "            return instance_id\n"
            "        if local is None:\n            raise",
        ),
    )


@mutant(
    lost="Every ledger is deleted when the metadata store cannot be reached.",
    invariants=("no_false_absence", "acknowledged_is_kept"),
    workload="delete",
    seeds=55,
    rule="rule 30",
)
def garbage_collection_trusts_an_empty_list(patch: pytest.MonkeyPatch) -> None:
    real = MemoryStore.list_ledgers

    async def lenient(self: Any, first: int = 0, **options: Any) -> Any:
        try:
            async for span in real(self, first, **options):
                yield span
        except MetadataUnavailableError:
            yield LedgerRange(first, LEDGER_ID_MAX, ())

    async def gone(metadata: Any, ledger_id: int) -> bool:
        return True

    patch.setattr(MemoryStore, "list_ledgers", lenient)
    exchange(patch, garbage._is_gone, gone)


@mutant(
    lost="Ledgers that were created during a garbage collection are deleted.",
    invariants=("what_is_durable_stays", "no_false_absence", "acknowledged_is_kept"),
    workload="many",
    seeds=40,
    rule="rule 30",
)
def garbage_collection_trusts_an_old_list(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        garbage,
        "_find_unnamed",
        (
            "local = sorted(store.ledger_ids())\n    if not local:\n        return {}\n    await",
            "await",
        ),
        (
            "        here = within(",
            "        local = sorted(store.ledger_ids())\n        here = within(",
        ),
        (
            "unchanged.known(local)",
            "unchanged.known(sorted(store.ledger_ids()))",
        ),
        ("if await _is_gone(metadata, ledger):", "if True:"),
    )


@mutant(
    lost="Deleted ledgers stay on disk.",
    invariants=("garbage_is_collected",),
    workload="delete",
    seeds=20,
)
def garbage_is_left(patch: pytest.MonkeyPatch) -> None:
    edit(patch, garbage, "_is_gone", ("return True", "return False"))


@mutant(
    lost="Forced appends are lost when the power fails.",
    invariants=("acknowledged_is_on_a_quorum",),
    workload="deferred",
    seeds=20,
)
def a_force_is_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    edit(patch, RequestsV3, "_force", ("self._service.store.force(ledger, done)", "done(None)"))


@mutant(
    lost="A bookie stays registered as read-only or as writable, and is not.",
    invariants=("quiet_heals",),
    workload="full",
    seeds=210,
    rule="ours",
)
def a_lost_announcement_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    edit(patch, Announcement, "_announce", ("await retry.pause()", "return"))


@mutant(
    lost="The last of several entries that arrive in one piece is lost.",
    invariants=(
        "acknowledged_is_kept",
        "no_bookie_serves_wrong_bytes",
        "quiet_heals",
        "the_run_comes_to_its_end",
    ),
    workload="together",
    seeds=20,
)
def the_last_of_alternating_entries_is_lost(patch: pytest.MonkeyPatch) -> None:
    edit(
        patch,
        RequestsV2,
        "_take_each",
        ("at + len(ledgers) * size", "at + (len(ledgers) - 1) * size"),
    )
