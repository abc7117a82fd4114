"""The report of a sample: the score by room, and the mutants that survived, with their diffs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.mutation.rooms import ROOMS, room_of, workloads_of
from tests.support.mutation.session import SIMULATOR, UNIT, Session
from tests.support.mutation.sites import diff
from tests.support.mutation.tree import Tree

HEAD = f"{'room':<12} {'drawn':>6} {'by tests':>9} {'by seeds':>9} {'survived':>9} {'found':>6}"


def report(session: Session, tree: Tree) -> Iterator[str]:
    """Yield the lines of the report on a sample."""
    drawn = session.drawn
    done = [n for n in range(len(drawn.mutants)) if session.is_done(n)]
    found_by = {n: _found_by(session, n) for n in done}
    yield ""
    for number in done:
        if not found_by[number]:
            yield from _survivor(session, number, tree)
    yield (
        f"{drawn.count} mutants of seed {drawn.seed}, among {drawn.sites} sites of commit "
        f"{drawn.commit}; {drawn.redrawn} draws were not applicable, because they gave no valid "
        "Python, and were repeated"
    )
    seeds = f"{drawn.first_seed}..{drawn.first_seed + drawn.seeds_max}"
    yield f"at most {drawn.seeds_max} seeds for each, from {seeds} of all its workloads in turn"
    if len(done) < len(drawn.mutants):
        yield f"{len(drawn.mutants) - len(done)} mutants have no result yet"
    yield ""
    yield HEAD
    for room in ROOMS:
        here = [n for n in done if room_of(drawn.mutants[n].path) == room]
        if here:
            yield _row(room, [found_by[n] for n in here])
    yield _row("all", list(found_by.values()))


def _found_by(session: Session, number: int) -> str:
    for stage in (UNIT, SIMULATOR):
        outcome = session.results.get((number, stage))
        if outcome is not None and outcome.found:
            return stage
    return ""


def _row(name: str, found_by: list[str]) -> str:
    units, seeds, left = (found_by.count(stage) for stage in (UNIT, SIMULATOR, ""))
    share = f"{(units + seeds) / len(found_by):.0%}" if found_by else "-"
    return f"{name:<12} {len(found_by):>6} {units:>9} {seeds:>9} {left:>9} {share:>6}"


def _survivor(session: Session, number: int, tree: Tree) -> Iterator[str]:
    mutant = session.drawn.mutants[number]
    unit = session.results.get((number, UNIT))
    simulated = session.results[number, SIMULATOR]
    tests = "" if unit is None else f"{unit.tried} tests and "
    yield (
        f"[{number}] survived {tests}{simulated.tried} seeds of "
        f"{', '.join(workloads_of(mutant.path))}: {mutant}"
    )
    yield diff(mutant, tree.read(mutant.path))
    yield ""
