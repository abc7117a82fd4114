"""Defects that the simulator must find: each is put into the real code for one test only.

The seed that found a mutant in the last measurement (`scripts/mutants`, which writes the table of
docs/internals/simulator.md) is tried first. Then come the others up to a limit with a margin, so
that a workload may change the meaning of its seeds without failing a test.

`make test-long` includes two mutants of each module, those that take the fewest seeds and whose
runs are short. `make test` includes one mutant of every fourth module, and `make sim` includes all.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quire.core.append import quorum
from quire.core.append.pipeline import AddPipeline
from quire_simulator import WORKLOADS
from tests.sim.mutants import MUTANTS, ROOMS, Mutant, applied, kill
from tests.sim.mutants.mutant import edit

MUTANTS_MIN = 34
QUICK_SEEDS_MAX = 40
"""A mutant that may take more is left to `make sim`."""
QUICK_PER_ROOM = 2
SLOW = (
    "a_client_may_have_any_number_of_answers", "a_deletion_goes_with_its_segment",
    "a_handle_keeps_its_first_bookies", "a_lost_bookie_is_not_waited_for",
    "a_move_to_another_rack_is_not_noticed", "an_unreadable_ledger_ends_a_pass",
    "any_other_bookie_is_better", "damage_is_not_written_down",
    "only_the_first_ledger_is_looked_for",
    "the_last_entry_that_is_loaded_is_the_last", "the_scrub_skips_the_last_block",
    "what_is_misplaced_is_only_counted", "what_is_not_loaded_is_absent",
    "what_is_skipped_is_not_named",
)  # fmt: skip
"""Mutants whose runs take more than two seconds of processor time, tried only if their module has
no others."""
SEEDS_MIN = 200
"""The least number of seeds to try.

If the meaning of seeds changes, the first that finds a mutant may come much later than before, and
only a large number without a finding proves anything.
"""
FULL_SEEDS = 200
"""The least number of seeds of `make sim`."""
FULL = int(os.environ.get("QUIRE_SIM_SEEDS", "0")) >= FULL_SEEDS
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "internals" / "simulator.md"
ROWS = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
MEASURED = {name: int(seeds) - 1 for name, seeds in ROWS}
"""The seed that found each."""


def quick(per_room: int = QUICK_PER_ROOM) -> list[Mutant]:
    """Return the quick mutants, in the order of the list."""
    few: list[Mutant] = []
    for room in ROOMS:
        soonest = sorted(of(room), key=lambda one: MEASURED.get(one.name, one.seeds))
        able = [
            one for one in soonest if one.seeds <= QUICK_SEEDS_MAX and one.name not in SLOW
        ] or soonest[:1]
        few += able[:per_room]
    return [one for one in MUTANTS if one in few]


def of(room: object) -> list[Mutant]:
    return [one for one in MUTANTS if vars(room).get(one.name) is one.apply]


IN_SHORT = quick(per_room=1)[2::4]
CASES = [
    pytest.param(one, marks=() if one in IN_SHORT else pytest.mark.long)
    for one in (MUTANTS if FULL else quick())
]


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_the_mutant_is_found(one: Mutant) -> None:
    seeds = max(one.seeds, SEEDS_MIN)
    for seed in sorted(range(seeds), key=lambda seed: seed != MEASURED.get(one.name)):
        result = kill(one, seed)
        if result is not None:
            print(f"{one.name}: seed {seed} of {one.workload}, {result.failure}")
            return
    pytest.fail(f"{one.name} was not found in {seeds} seeds of {one.workload}")


@pytest.mark.parametrize("one", MUTANTS, ids=lambda one: one.name)
def test_the_mutant_can_be_applied_and_removed(one: Mutant) -> None:
    """Tried by `make check` too: code that moves away from under a mutant is seen in seconds."""
    before = quorum.covered, vars(AddPipeline)["confirm"]
    with applied(one):
        pass
    assert (quorum.covered, vars(AddPipeline)["confirm"]) == before


def test_the_table_of_mutants_is_consistent() -> None:
    names = [one.name for one in MUTANTS]
    assert len(set(names)) == len(names) >= MUTANTS_MIN
    assert {one.room for one in MUTANTS} == {room.__name__.rpartition(".")[2] for room in ROOMS}
    for one in MUTANTS:
        assert one.workload in WORKLOADS, one.name
        assert one.lost, one.name
        assert one.invariants, one.name
        assert one.seeds > 0, one.name


def test_every_component_has_a_quick_mutant() -> None:
    assert {one.room for one in quick()} == {one.room for one in MUTANTS}


def test_the_slow_mutants_exist() -> None:
    assert set(SLOW) <= {one.name for one in MUTANTS}


def test_the_document_lists_every_mutant() -> None:
    assert [name for name, _ in ROWS] == [one.name for room in ROOMS for one in of(room)]


def test_an_edit_that_does_not_fit_fails() -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match="moved on"):
        edit(patch, quorum, "covered", ("something that is not there", ""))


def unfit() -> Mutant:
    def apply(patch: pytest.MonkeyPatch) -> None:
        edit(patch, quorum, "covered", ("something that is not there", ""))

    return replace(MUTANTS[0], apply=apply)


def test_a_mutant_that_does_not_fit_is_an_error_not_a_miss() -> None:
    """It was once reported as not found, after all of its seeds."""
    with pytest.raises(AssertionError, match="moved on"):
        kill(unfit(), 0)


def test_a_mutant_that_does_not_fit_does_not_change_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script: Any = ModuleType("mutants_script")
    source = DOCUMENT.parents[2] / "scripts" / "mutants"
    script.__file__ = str(source)
    monkeypatch.setitem(sys.modules, script.__name__, script)
    exec(compile(source.read_text("utf-8"), str(source), "exec"), vars(script))
    one, copy = unfit(), tmp_path / "simulator.md"
    copy.write_bytes(DOCUMENT.read_bytes())
    found = script.measure_one(one, one.workload, 1)
    assert "moved on" in script.complaint(one, found)
    monkeypatch.setattr(script, "DOCUMENT", copy)
    monkeypatch.setattr(script, "measure_all", lambda *_: iter([found]))
    monkeypatch.setattr(sys, "argv", ["mutants", one.name, "--write-docs"])
    assert script.main() == 1
    assert "does not fit the code any more" in capsys.readouterr().out
    assert copy.read_bytes() == DOCUMENT.read_bytes()


def test_an_edit_keeps_super_and_reaches_every_module() -> None:
    from quire.core import recovery
    from quire.core.append.deferred_pipeline import DeferredPipeline

    with pytest.MonkeyPatch.context() as patch:
        edit(patch, DeferredPipeline, "restart", ("self.generation += 1", "self.generation += 7"))
        pipeline = DeferredPipeline(3, 3, 2)
        pipeline.restart([1], 0.0)
        assert pipeline.generation == 7
        edit(patch, quorum, "covered", ("return True", "return 'edited'"))
        assert recovery.covered({0, 1, 2}, 3, 3, 2) == "edited"
    assert recovery.covered({0, 1, 2}, 3, 3, 2) is True
