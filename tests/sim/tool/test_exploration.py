"""The exhaustive exploration of the protocol: what it visits, and the defects that it must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from quire.bookie.background import complete_ledger
from quire.core import ledger_changes, recovery
from quire.core.append import member_changes, quorum
from quire.core.append.pipeline import AddPipeline
from quire.core.recovery import RecoveryVotes
from quire_simulator.exploration.bounds import QUICK, UNDETECTABLE, Bounds, Rollback, Rules
from quire_simulator.exploration.command import explore
from quire_simulator.exploration.model import Model
from quire_simulator.exploration.pipelines import CHECKED, Pipelines
from quire_simulator.exploration.search import Search
from quire_simulator.exploration.symmetry import Renaming, Symmetry
from quire_simulator.exploration.text import sentence
from tests.sim.mutants.mutant import edit
from tests.support.long import long_after

STATES_MAX = 400_000
"""The number of states within which each defect is found."""

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("name", long_after(3, QUICK))
def test_every_state_has_all_properties(name: str) -> None:
    result = Search(QUICK[name]).run()
    assert result.violation is None, "\n".join(map(sentence, result.trace))
    assert result.complete
    assert result.closed
    assert result.judged


# -- planted defects --------------------------------------------------------------------------


def edited(owner: type | ModuleType, name: str, *changes: tuple[str, str]) -> Plant:
    return lambda patch: edit(patch, owner, name, *changes)


def refusals_are_denials(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecoveryVotes, "neither", RecoveryVotes.negative)


@dataclass(frozen=True)
class Defect:
    """A defect, the bounds within which it shows, and the property that notices."""

    bounds: Bounds
    invariants: tuple[str, ...]
    plant: Plant = lambda patch: None
    """The edit of Quire's code. Without one, a rule of the bounds is broken."""


LOST = ("acknowledged_is_kept",)
THIN = ("acknowledged_is_on_a_quorum", "closed_is_on_a_quorum")
ONE = Bounds(entries=1, recoverers=1, losses=0)
ALONE = Bounds(entries=1, recoverers=0)
"""A writer that loses a member once."""
PAIR = Bounds(ensemble=2, write_quorum=2, entries=1, recoverers=1)
"""A ledger with two members, and a spare bookie."""
ROLLED_BACK = replace(ONE, rollbacks=1)


def broken(bounds: Bounds, **rules: bool) -> Bounds:
    return replace(bounds, rules=Rules(**rules))


DEFECTS = {
    # Recovery: what proves that an entry does not exist, and who is fenced.
    "one_denial_less_is_needed": Defect(
        replace(ONE, judge=False), LOST,
        edited(
            quorum, "negatives_needed",
            ("write_quorum - ack_quorum + 1", "write_quorum - ack_quorum"),
        ),
    ),
    "everybody_must_deny": Defect(
        ONE, ("a_close_is_reachable",),
        edited(quorum, "negatives_needed", ("write_quorum - ack_quorum + 1", "write_quorum")),
    ),
    "what_is_unknown_is_denied": Defect(ROLLED_BACK, LOST, refusals_are_denials),
    "nothing_is_fenced": Defect(broken(ONE, lac_read_fences=False, reads_fence=False), LOST),
    "only_the_lac_read_fences": Defect(broken(ONE, reads_fence=False), LOST),
    "a_fence_is_forgotten": Defect(broken(ONE, fences_are_kept=False), LOST),
    "recovery_skips_an_entry": Defect(
        ONE, (*LOST, *THIN), edited(recovery, "recovery_lac", ("return max(", "return 1 + max("))
    ),
    "the_lac_has_no_floor": Defect(
        PAIR, LOST, edited(recovery, "recovery_lac", ("[last_segment_first - 1,", "[-1,"))
    ),
    "what_is_written_back_is_not_waited_for": Defect(broken(ONE, waits_for_copies=False), THIN),
    "what_is_written_back_carries_the_moving_lac": Defect(
        broken(Bounds(entries=2, losses=0), written_back_lac_is_old=False),
        ("lac_is_acknowledged", "what_was_read_stays"),
    ),
    "private_ensembles_are_forgotten": Defect(
        replace(PAIR, losses=0, recovery_losses=1), THIN,
        edited(
            ledger_changes, "closed_by_recovery",
            ("with_private(now, segments)", "with_private(now, ())"),
        ),
    ),
    # Metadata: who may change it, and when.
    "a_close_without_compare_and_swap": Defect(
        broken(replace(ONE, recoverers=2), compares_versions=False), ("one_close_wins",)
    ),
    "the_second_close_wins": Defect(
        replace(ONE, recoverers=2), ("one_close_wins",),
        edited(
            ledger_changes, "closed_by_recovery",
            ("if now.state is not LedgerState.IN_RECOVERY:", "if False:"),
        ),
    ),
    "the_ensemble_changes_during_a_recovery": Defect(
        PAIR, (*LOST, *THIN),
        edited(
            ledger_changes, "changed_ensemble",
            ("if now.state is not LedgerState.OPEN:", "if now.closed:"),
        ),
    ),
    # The writer: what it counts.
    "one_ack_less_is_needed": Defect(
        ONE, THIN,
        edited(AddPipeline, "__init__", ("= ack_quorum", "= ack_quorum - 1")),
    ),
    "late_answers_of_a_replaced_bookie_count": Defect(
        broken(replace(ALONE, bookies=4, late_answers=True), late_answers_ignored=False), THIN
    ),
    "the_acks_of_a_replaced_bookie_stay": Defect(
        PAIR, THIN,
        edited(
            member_changes, "members_after_change",
            ("frozenset(changed.union(failed.keys() - left_out))", "frozenset()"),
        ),
    ),
    "entries_are_confirmed_during_a_change": Defect(
        replace(ONE, bookies=4, losses=1), THIN,
        edited(AddPipeline, "confirm", ("if self.frozen:", "if False:")),
    ),
    "a_segment_begins_after_what_was_sent": Defect(
        broken(PAIR, changes_begin_after_the_lac=False), ("lac_is_acknowledged", *THIN)
    ),
    # Continuing with fewer bookies.
    "a_bookie_that_rejoins_counts_before_it_has_the_entries": Defect(
        ALONE, THIN,
        edited(
            AddPipeline, "restart",
            ("self._stripe_from(index, self.last_confirmed + 1)", "self.last_pushed + 1"),
        ),
    ),
    "a_bookie_that_is_left_out_counts": Defect(
        ALONE, THIN,
        edited(
            AddPipeline, "park",
            (
                "self._cursors[index] = None",
                "self._cursors[index] = None\n        self._next[index] = self.last_pushed + 1",
            ),
        ),
    ),
    "whoever_is_left_is_enough": Defect(
        ALONE, THIN,
        edited(
            AddPipeline, "park",
            ("self.detach()", "self.detach()\n    self._ack_quorum = 1"),
        ),
    ),
    # A disk that goes back in time.
    "a_bookie_that_lost_data_denies": Defect(broken(ROLLED_BACK, lost_is_unknown=False), LOST),
    "a_bookie_that_lost_a_fence_takes_adds": Defect(
        broken(replace(PAIR, losses=0, rollbacks=1), lost_takes_no_adds=False), LOST
    ),
    "a_closed_ledger_is_not_refused_after_a_loss": Defect(
        replace(PAIR, entries=2, losses=0, rollbacks=1), LOST,
        edited(
            complete_ledger, "is_complete",
            ("await _refuse(store, ledger_id, metadata)", "True"),
        ),
    ),
    "a_loss_ends_during_a_recovery": Defect(
        replace(PAIR, losses=0, recovery_losses=1, rollbacks=1), THIN,
        edited(complete_ledger, "is_complete", ("return recoveries_over", "return True")),
    ),
    "a_loss_ends_before_anything_is_restored": Defect(
        broken(ROLLED_BACK, heals_when_complete=False), (*LOST, *THIN)
    ),
}  # fmt: skip


PAGE = Path(__file__).parents[3] / "docs" / "internals" / "exploration.md"
STEPS_OF_PAGE = {
    "a_closed_ledger_is_not_refused_after_a_loss": "rollback-two-entries",
    "a_loss_ends_during_a_recovery": "rollback",
}
"""The faults whose shortest trace the page tells, and the bounds that it names. The smaller bounds
of these tests have traces of the same length."""


@pytest.mark.parametrize("name", long_after(2, DEFECTS))
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    defect = DEFECTS[name]
    defect.plant(monkeypatch)
    result = Search(defect.bounds).run(STATES_MAX)
    assert result.violation is not None
    assert result.violation.property in defect.invariants
    assert len(result.trace) <= result.depth + 1, "the trace is a shortest one"
    if name in STEPS_OF_PAGE:
        steps = len(result.trace)
        assert f"| {steps} steps, `{STEPS_OF_PAGE[name]}` |" in PAGE.read_text(encoding="utf-8")


def test_an_unnoticed_rollback_loses_acknowledged_entries() -> None:
    result = Search(UNDETECTABLE).run(STATES_MAX)
    assert result.violation is not None
    assert result.violation.property in (*LOST, *THIN)
    noticed = replace(UNDETECTABLE, rollback=Rollback.NOTICED)
    assert Search(noticed).run(STATES_MAX).violation is None


# -- the search itself ------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 3])
def test_symmetry_omits_only_renamed_states(members: int) -> None:
    """Every state has an equal among those that the search with symmetry visits, and no other."""
    bounds = Bounds(
        ensemble=members, write_quorum=members, entries=1, recoverers=1, losses=3 - members
    )
    model = Model(replace(bounds, symmetry=False))
    level = [model.first()]
    states = set(level)
    while level:
        level = list({after for one in level for _, after in model.steps(one)} - states)
        states.update(level)
    tables = model.writers, model.copies, model.recoveries
    symmetry = Symmetry(bounds, Renaming(bounds, model.pipelines, model.metadata), tables)
    reduced = Search(bounds).run()
    assert len({symmetry.canonical(one) for one in states}) == reduced.states
    assert reduced.states < len(states) / 2


def test_every_attribute_of_a_pipeline_is_compared() -> None:
    assert set(AddPipeline.__slots__) >= CHECKED
    pipelines = Pipelines(3, 3, 2)
    first = pipelines.new()
    pushed, add = pipelines.push(first, -1)
    assert add == (0, -1)
    once = pipelines.acked(pushed, 0, 0)
    assert len({first, pushed, once, pipelines.acked(once, 1, 0)}) == 4
    assert pipelines.confirmed(pipelines.acked(once, 1, 0)) == 0
    assert pipelines.restart(once, (0,)) == (pushed, {0: ((0, -1),)})


def test_the_command_shows_a_trace_and_fails() -> None:
    arguments = ["--entries", "1", "--recoverers", "1", "--losses", "0", "--quiet"]
    fine = CliRunner().invoke(explore, arguments)
    assert fine.exit_code == 0, fine.output
    assert "states (all)" in fine.output
    bad = CliRunner().invoke(explore, [*arguments, "--rollbacks", "1", "--rollback", "unnoticed"])
    assert bad.exit_code == 1
    assert "restarts with the copy of its disk." in bad.output
