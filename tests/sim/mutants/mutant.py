"""A mutant, and how it is put into the code.

Most mutants are edits: a few words of a real function are replaced and the function is compiled
again, so that a mutant reads like a diff. An edit that no longer fits the code fails at once, so no
mutant disappears unnoticed.
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
"""Invariants that a mutant also breaks if it does not work at all. Only mutants that name them may
be found by them.
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect."""

    name: str
    room: str
    apply: Apply
    lost: str
    """The loss or effect that a user would notice."""
    invariants: tuple[str, ...]
    """The invariants that should notice."""
    workload: str
    seeds: int
    """The number of seeds of the workload, from 0 on, within which it is found.

    It has a margin, because every change of a workload changes the meaning of its seeds.
    """
    rule: str
    """A known case, in other software or in Quire, or the rule that it breaks.

    docs/internals/simulator.md lists the forms.
    """


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
    """Replace parts of the source of a function or method. Each must occur exactly once."""
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
    """Compile within a function that has `__class__`, so that `super()` works."""
    whole = f"def make(__class__):\n{textwrap.indent(source, '    ')}\n    return {name}\n"
    flags = __future__.annotations.compiler_flag
    code = compile(whole, f"<mutant of {owner.__name__}.{name}>", "exec", flags, True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return made["make"](owner)


def exchange(patch: pytest.MonkeyPatch, old: object, new: object) -> None:
    """Replace a function of a module by `new`, wherever it was imported."""
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith(SUBJECTS):
            continue
        for name, value in list(vars(module).items()):
            if value is old:
                patch.setattr(module, name, new)
