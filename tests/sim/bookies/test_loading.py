"""The answers of simulated bookies that take time to load their logs."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from quire.bookie.server import Bookie
from quire_simulator import RunPlan, run_plan, simulate
from quire_simulator.invariants import loading_answers
from quire_simulator.invariants.checker import Checker, InvariantError
from quire_simulator.invariants.claims import Claims
from quire_simulator.machine.stepped_thread import SteppedThread
from quire_simulator.plans.workloads import WORKLOADS
from quire_simulator.report.wire import Said
from quire_simulator.world.stage import Stage

FIRST_SEED = 105
SEEDS_MAX = 30
ENOUGH = 5
REFUSED = (
    "TOO_MANY_REQUESTS to read",
    "TOO_MANY_REQUESTS to read the last entry",
    "TOO_MANY_REQUESTS to read the LAC",
    "READ_ONLY to add",
)

# -- stepped threads --------------------------------------------------------------------------


def test_a_stepped_thread_runs_from_pause_to_pause() -> None:
    done: list[int] = []

    def work() -> str:
        for number in range(3):
            done.append(number)
            strand.pause()
        return "all"

    strand = SteppedThread(work)
    assert done == []
    for steps in range(1, 4):
        strand.resume()
        assert done == list(range(steps))
        assert not strand.done
        strand.pause()  # Nothing happens in any other thread.
    strand.resume()
    assert strand.done
    assert strand.result() == "all"


def test_a_stepped_thread_raises_the_error_of_its_work() -> None:
    def work() -> None:
        strand.pause()
        raise ValueError("wrong")

    strand = SteppedThread(work)
    strand.resume()
    strand.resume()
    with pytest.raises(ValueError, match="wrong"):
        strand.result()


@pytest.mark.parametrize("begun", [False, True])
def test_a_stepped_thread_that_was_ended_runs_no_further(begun: bool) -> None:
    done: list[str] = []

    def work() -> None:
        try:
            strand.pause()
            done.append("work")
        except Exception:  # noqa: BLE001 - what is thrown is none
            done.append("handled")
        finally:
            strand.pause()
            done.append("unwound")

    strand = SteppedThread(work)
    if begun:
        strand.resume()
    strand.end()
    assert strand.done
    assert done == []
    assert stepped_threads() == []


def stepped_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stepped"]


# -- runs -------------------------------------------------------------------------------------


class Heard:
    """The answers before logs were loaded, and the results of these starts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.verbs: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.claims: list[Claims] = []
        wrong, begin, serve = loading_answers._wrong, Claims.__init__, Bookie._serve_while_loading

        def heard(said: Said, *, fenced: bool | None) -> InvariantError | None:
            self.verbs[said.verb] += 1
            return wrong(said, fenced=fenced)

        def begun(claims: Claims) -> None:
            self.claims.append(claims)
            begin(claims)

        async def serving(bookie: Bookie) -> None:
            await serve(bookie)
            self.events["served"] += 1

        def ended(bookie: Bookie, early: object) -> None:
            self.events["loaded"] += 1
            self.events["waited"] += early._waiting  # type: ignore[attr-defined]
            end(bookie, early)  # type: ignore[arg-type]

        end = Bookie._end_loading
        patch.setattr(loading_answers, "_wrong", heard)
        patch.setattr(Claims, "__init__", begun)
        patch.setattr(Bookie, "_serve_while_loading", serving)
        patch.setattr(Bookie, "_end_loading", ended)

    def everything(self) -> bool:
        given = self.verbs["entry"] + self.verbs["entries"]
        served = sum(claims.served_while_loading for claims in self.claims)
        refused = all(self.verbs[verb] for verb in REFUSED)
        # Bookies that served and did not come to the end of their logs were stopped, or died.
        ended = self.events["served"] > self.events["loaded"] > 0
        return refused and ended and min(given, served, self.events["waited"]) > ENOUGH


@pytest.mark.long
def test_bookies_are_read_while_they_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run seeds until every case has occurred."""
    heard, end = Heard(monkeypatch), loading_answers.judge
    died: list[threading.Thread] = []

    async def judge(stage: Stage) -> None:
        died.extend(stepped_threads())  # of bookies that had no power any more
        await end(stage)

    monkeypatch.setattr(loading_answers, "judge", judge)
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        result = simulate(seed, "loading")
        assert result.failure is None, (seed, result.failure)
        assert stepped_threads() == []
        if heard.everything() and died:
            break
    assert died
    assert heard.everything(), (heard.verbs, heard.events)


def test_a_start_takes_no_time_in_other_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    assert [name for name, mix in WORKLOADS.items() if mix.slow_starts] == ["loading"]
    assert simulate(0, "index").failure is None
    assert heard.events["served"] == 0


@pytest.mark.parametrize(
    ("verb", "fenced", "invariant"),
    [
        ("entry", False, None),
        ("entries", False, None),
        ("TOO_MANY_REQUESTS to read", True, None),
        ("TOO_MANY_REQUESTS to list", None, None),
        ("READ_ONLY to add", False, None),
        ("IO_ERROR to force", None, None),
        ("entry", True, "what_is_not_loaded_takes_nothing"),
        ("added", False, "what_is_not_loaded_takes_nothing"),
        ("force done", None, "what_is_not_loaded_takes_nothing"),
        ("entry", None, "what_is_not_loaded_is_unknown"),
        ("the LAC", None, "what_is_not_loaded_is_unknown"),
        ("list done", None, "what_is_not_loaded_is_unknown"),
        ("IO_ERROR to read", False, "what_is_not_loaded_is_unknown"),
        ("NO_ENTRY to read", False, "what_is_not_loaded_is_unknown"),
        ("NO_LEDGER to read the LAC", None, "what_is_not_loaded_is_unknown"),
    ],
)
def test_only_the_allowed_answers_are_given_before_a_log_is_loaded(
    verb: str, fenced: bool | None, invariant: str | None
) -> None:
    found = loading_answers._wrong(Said(verb, True, 1, 2, 2), fenced=fenced)
    assert invariant == (found and found.invariant)


def test_a_checker_that_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checker once ended at the first starting bookie, in a third of all runs, unnoticed.

    Changes without a history record were not checked any more.
    """

    def fail(checker: Checker) -> None:
        raise AttributeError("of a bookie that has not read its log")

    monkeypatch.setattr(Checker, "queues_are_bounded", fail)
    failure = run_plan(RunPlan.make(0, "calm")).failure
    assert failure is not None
    assert failure.invariant == "the_run_comes_to_its_end"
    assert "has not read its log" in failure.what


def test_a_starting_bookie_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case as it happened: metadata is slow while a bookie starts."""
    starting: list[bool] = []
    look = Checker.queues_are_bounded

    def looked(checker: Checker) -> None:
        starting.extend(not bookie.recovered for bookie in checker.world.bookies.values())
        look(checker)

    monkeypatch.setattr(Checker, "queues_are_bounded", looked)
    assert simulate(FIRST_SEED, "loading").failure is None
    assert any(starting)
