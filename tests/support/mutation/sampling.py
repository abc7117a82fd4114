"""The random choice of mutants, and the run of each against tests and against seeds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager

from tests.support.mutation.baseline import Baseline
from tests.support.mutation.outcome import Outcome
from tests.support.mutation.processes import stopping
from tests.support.mutation.rooms import PACKAGE, ROOMS, seeds_of
from tests.support.mutation.session import SIMULATOR, UNIT, Session
from tests.support.mutation.simulator_stage import find_by_seeds
from tests.support.mutation.sites import Mutant, Site, mutated, sites
from tests.support.mutation.tree import Tree
from tests.support.mutation.unit_stage import run_tests

Tell = Callable[[int, str, Outcome], None]


def sites_of_rooms(tree: Tree) -> list[Site]:
    """Return all sites in the rooms (`rooms.ROOMS`), in the order of their paths."""
    files = [
        str(file.relative_to(tree.root))
        for room in ROOMS
        for file in sorted((tree.root / PACKAGE / room).rglob("*.py"))
    ]
    return [site for path in files for site in sites(path, tree.read(path))]


def draw(tree: Tree, among: list[Site], seed: int, count: int) -> tuple[list[Mutant], int]:
    """Draw `count` mutants at random, and return them with the number of sites that gave none.

    Each site has the same chance. Then one of its changes is drawn. If the result is no valid
    Python, another site is drawn.
    """
    chance = random.Random(seed)
    waiting = list(among)
    chance.shuffle(waiting)
    drawn: list[Mutant] = []
    redrawn = 0
    for site in waiting:
        if len(drawn) == count:
            break
        mutant = chance.choice(site.mutants)
        if mutated(mutant, tree.read(site.path)) is None:
            redrawn += 1
        else:
            drawn.append(mutant)
    return drawn, redrawn


def run_sample(
    session: Session, tree: Tree, baseline: Baseline | None, processes: int, tell: Tell
) -> None:
    """Run all mutants that have no result yet: first against the tests, then against seeds.

    Raises:
        VoidError: The unmutated copy fails as well. What was noted before stays valid.
    """

    def simulate(number: int) -> None:
        mutant = session.drawn.mutants[number]
        runs = seeds_of(mutant.path, session.drawn.seeds_max, session.drawn.first_seed)
        with _copy_of_mutant(session, number, tree) as copy:
            note(number, SIMULATOR, find_by_seeds(copy, tree, runs))

    def note(number: int, stage: str, outcome: Outcome) -> None:
        session.add(number, stage, outcome)
        tell(number, stage, outcome)

    numbers = range(len(session.drawn.mutants))
    if baseline is not None:
        waiting = [n for n in numbers if (n, UNIT) not in session.results]
        # Coverage's data belongs to one thread, so the tests are chosen here.
        chosen = {n: baseline.tests_of(session.drawn.mutants[n]) for n in waiting}

        def test(number: int) -> None:
            with _copy_of_mutant(session, number, tree) as copy:
                outcome = run_tests(copy, tree, chosen[number], baseline.seconds)
            note(number, UNIT, outcome)

        _run_each(test, waiting, processes)
    _run_each(simulate, [n for n in numbers if not session.is_done(n)], processes)


def _run_each(stage: Callable[[int], None], numbers: Sequence[int], processes: int) -> None:
    with ThreadPoolExecutor(processes) as pool:
        running = [pool.submit(stage, number) for number in numbers]
        try:
            for one in as_completed(running):
                one.result()
        except BaseException:
            stopping.set()
            pool.shutdown(cancel_futures=True)
            raise


def _copy_of_mutant(session: Session, number: int, tree: Tree) -> AbstractContextManager[Tree]:
    mutant = session.drawn.mutants[number]
    text = mutated(mutant, tree.read(mutant.path))
    assert text is not None
    return tree.mutated(mutant.path, text, session.work)
