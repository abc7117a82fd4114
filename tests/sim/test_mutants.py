"""Defects that the simulator must find: each is put into the real code, for this test only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from quire.bookie import garbage
from quire.bookie.service import BookieService
from quire.client import last_confirmed, recovery
from quire.client.add_session import AddSession
from quire.client.recovery import Recovery
from quire.client.write_handle import WriteHandle
from quire.codec.frames import Code, Flag
from quire.codec.ledger_path import LEDGER_ID_MAX
from quire.core.add_pipeline import AddPipeline
from quire.core.recovery import RecoveryVotes
from quire.errors import MetadataUnavailableError
from quire.metadata.base import LedgerRange
from quire.metadata.memory import MemoryStore
from quire.storage.store import LedgerStore
from quire.testing.disk import SimFile
from quire.testing.simulation import simulate

Mutant = Callable[[pytest.MonkeyPatch], None]


def recovery_reads_do_not_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "FENCED_READ", Flag.HIGH_PRIORITY)
    real = last_confirmed.read_last_confirmed

    async def without(metadata, codec, pool, timeout_s, *, fence_with=None):  # type: ignore[no-untyped-def]
        return await real(metadata, codec, pool, timeout_s)

    patch.setattr(recovery, "read_last_confirmed", without)


def fsync_is_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimFile, "sync", lambda self: None)


def ensemble_change_is_not_stored(patch: pytest.MonkeyPatch) -> None:
    async def change(self, failed, replacements, first):  # type: ignore[no-untyped-def]
        ensemble = list(self._session_ensemble())
        for index, bookie in replacements.items():
            ensemble[index] = bookie
        self._unstored = tuple(ensemble)
        return self._unstored

    def current(self):  # type: ignore[no-untyped-def]
        return getattr(self, "_unstored", self.metadata.last_segment.ensemble)

    patch.setattr(WriteHandle, "_session_ensemble", current, raising=False)
    patch.setattr(WriteHandle, "_change_ensemble", change)


def recovery_closes_at_the_lac(patch: pytest.MonkeyPatch) -> None:
    async def write_back(self, snapshot, lac):  # type: ignore[no-untyped-def]
        return lac, 0

    patch.setattr(Recovery, "_write_back", write_back)


def one_no_is_enough(patch: pytest.MonkeyPatch) -> None:
    real = RecoveryVotes.__init__

    def init(self, *arguments):  # type: ignore[no-untyped-def]
        real(self, *arguments)
        self._negatives_needed = 1

    patch.setattr(RecoveryVotes, "__init__", init)


def an_error_counts_as_a_no(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecoveryVotes, "neither", RecoveryVotes.negative)


def damaged_is_answered_as_absent(patch: pytest.MonkeyPatch) -> None:
    real = BookieService._read_code

    def read_code(self, error):  # type: ignore[no-untyped-def]
        code = real(self, error)
        return Code.NO_ENTRY if code == Code.IO_ERROR else code

    patch.setattr(BookieService, "_read_code", read_code)


def an_ack_is_counted_twice(patch: pytest.MonkeyPatch) -> None:
    real = AddPipeline.__init__

    def init(self, *arguments):  # type: ignore[no-untyped-def]
        real(self, *arguments)
        self._ack_quorum = max(1, self._ack_quorum - 1)

    patch.setattr(AddPipeline, "__init__", init)


def a_fence_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerStore, "fence", lambda self, ledger_id, done: done(None))


def garbage_collection_trusts_an_empty_list(patch: pytest.MonkeyPatch) -> None:
    real = MemoryStore.list_ledgers

    async def lenient(self, first=0):  # type: ignore[no-untyped-def]
        try:
            async for span in real(self, first):
                yield span
        except MetadataUnavailableError:
            yield LedgerRange(first, LEDGER_ID_MAX, ())

    async def gone(metadata, ledger_id):  # type: ignore[no-untyped-def]
        return True

    patch.setattr(MemoryStore, "list_ledgers", lenient)
    patch.setattr(garbage, "_is_gone", gone)


def entries_carry_the_pushed_lac(patch: pytest.MonkeyPatch) -> None:
    real = AddSession.push

    def push(self, payloads):  # type: ignore[no-untyped-def]
        if self._lac_sent is None:
            self._lac_sent = self.pipeline.last_pushed
            try:
                return real(self, payloads)
            finally:
                self._lac_sent = None
        return real(self, payloads)

    patch.setattr(AddSession, "push", push)


@dataclass(frozen=True)
class Case:
    mutant: Mutant
    workload: str
    seeds: int
    """Within so many seeds, from 0 on, the mutant is found."""


CASES = [
    Case(recovery_reads_do_not_fence, "recovery", 20),
    Case(fsync_is_skipped, "disk", 40),
    Case(ensemble_change_is_not_stored, "all", 10),
    Case(recovery_closes_at_the_lac, "recovery", 10),
    Case(one_no_is_enough, "recovery", 100),
    Case(an_error_counts_as_a_no, "recovery", 100),
    Case(damaged_is_answered_as_absent, "rot", 100),
    Case(an_ack_is_counted_twice, "all", 100),
    Case(a_fence_is_not_kept, "recovery", 20),
    Case(garbage_collection_trusts_an_empty_list, "delete", 60),
    Case(entries_carry_the_pushed_lac, "tail", 100),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_the_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.mutant(monkeypatch)
    for seed in range(case.seeds):
        failure = simulate(seed, case.workload).failure
        if failure is not None:
            print(f"{case.mutant.__name__}: {seed + 1} seeds, {failure.law}: {failure.what}")
            return
    pytest.fail(f"{case.mutant.__name__} was not found in {case.seeds} seeds of {case.workload}")
