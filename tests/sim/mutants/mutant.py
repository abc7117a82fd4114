"""What a mutant is, and how one is put into the code.

Most are edits: a few words of a real function are exchanged and the function is compiled again, so
that a mutant reads like a diff. An edit that does not fit any more, because the code has moved on,
fails at once: a mutant cannot die out unnoticed.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import pytest

from quire_simulator import RunResult, simulate
from tests.support.sim.runs import plain_run

Apply = Callable[[pytest.MonkeyPatch], None]

SUBJECTS = ("quire.", "quire_simulator.metadata")
"""The modules that see the mutated code. The rest of the simulator sees the code as it was: an
invariant that is mutated with it would see nothing."""
CRASHES = ("the_run_comes_to_its_end", "only_our_errors")
"""Broken also by a mutant that does not even work: only one that says so may be found by these."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect."""

    name: str
    room: str
    apply: Apply
    lost: str
    """What a user would lose, or see."""
    invariants: tuple[str, ...]
    """Those that should notice."""
    workload: str
    seeds: int
    """Within so many seeds of that workload, from 0 on, it is found; with room, because the meaning
    of a seed changes with every workload."""
    rule: str
    """Where it happened to others, or which rule it breaks."""


MUTANTS: list[Mutant] = []
"""All of them, in the order of the modules."""


def mutant(
    *, lost: str, invariants: tuple[str, ...], workload: str, seeds: int, rule: str = ""
) -> Callable[[Apply], Apply]:
    """Put a function that makes the defect into the list."""

    def add(apply: Apply) -> Apply:
        room = apply.__module__.rpartition(".")[2]
        MUTANTS.append(Mutant(apply.__name__, room, apply, lost, invariants, workload, seeds, rule))
        return apply

    return add


@contextmanager
def applied(one: Mutant) -> Iterator[None]:
    """The defect is in the code until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        one.apply(patch)
        yield


def kill(one: Mutant, seed: int, workload: str = "") -> RunResult | None:
    """The run that finds this mutant on this seed, if it does. What fails without the mutant as
    well, and a crash that is not what the mutant is about, finds nothing. AssertionError where an
    edit does not fit any more."""
    workload = workload or one.workload
    with applied(one):
        try:
            result = simulate(seed, workload)
        except Exception:  # noqa: BLE001 - the judges ask the code itself, and it may be broken
            return None
    failure = result.failure
    misfit = failure is not None and f"{one.name}.<locals>." in failure.what
    assert not misfit, f"{one.name} replaces a function that has another signature now: {failure}"
    if failure is None or (
        failure.invariant in CRASHES and failure.invariant not in one.invariants
    ):
        return None
    return None if plain_run(seed, workload).failure else result


# -- edits ------------------------------------------------------------------------------------


def edit(
    patch: pytest.MonkeyPatch, owner: type | ModuleType, name: str, *changes: tuple[str, str]
) -> None:
    """Exchange pieces of the source of a function or method; each stands there exactly once."""
    found = vars(owner)[name]
    function: Any = found
    if isinstance(found, property):
        function = found.fget
    elif isinstance(found, staticmethod | classmethod):
        function = found.__func__
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        count = source.count(old)
        assert count == 1, f"{owner.__name__}.{name} has {old!r} {count} times: the code moved on"
        source = source.replace(old, new)
    new_function = _compiled(source, name, owner, function)
    if isinstance(owner, ModuleType):
        exchange(patch, found, new_function)
    else:
        patch.setattr(owner, name, new_function)


def _compiled(source: str, name: str, owner: type | ModuleType, function: FunctionType) -> Any:
    """Within a function that has `__class__`, so that `super()` works."""
    whole = f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {name}\n"
    flags = __future__.annotations.compiler_flag
    code = compile(whole, f"<mutant of {owner.__name__}.{name}>", "exec", flags, True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return made["make"](owner)


def exchange(patch: pytest.MonkeyPatch, old: object, new: object) -> None:
    """Put `new` in the place of a function of a module, wherever it was imported."""
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith(SUBJECTS):
            continue
        for name, value in list(vars(module).items()):
            if value is old:
                patch.setattr(module, name, new)
