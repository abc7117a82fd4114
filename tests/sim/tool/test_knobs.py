"""The knobs: that every limit has one or a reason, that a drawn number takes effect and is put
back, and that the rest of a plan does not depend on it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from quire._runtime.retry import Backoff
from quire.errors import UsageError
from quire_simulator import (
    WORKLOADS,
    RunPlan,
    as_text,
    describe_plan,
    dump_plan,
    load_plan,
    run_plan,
    shrink,
)
from quire_simulator.knobs import exclusions
from quire_simulator.knobs.applied import applied
from quire_simulator.knobs.drawing import DrawnKnob, draw_knobs
from quire_simulator.knobs.knob import Knob, RareBranch, function_of
from quire_simulator.knobs.table import knobs
from quire_simulator.report.result import RunFailure, RunResult
from tests.support.long import long_after

REPOSITORY = Path(__file__).parents[3]
ROOMS = (
    "_runtime", "bookie", "client", "codec", "core", "metadata", "net", "replication", "storage",
    "streams",
)  # fmt: skip
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
SETTINGS = {
    "ClientConfig": "config",
    "BookieConfig": "config",
    "PlacementConfig": "config",
    "TlsClientConfig": "config",
    "TlsServerConfig": "config",
    "StorageConfig": "storage.config",
    "AutorecoverySettings": "replication.autorecovery.settings",
    "MoveOptions": "replication.moves.recover",
    "RebalanceOptions": "replication.moves.rebalance",
    "StreamSettings": "streams.namespace.settings",
}


SEEDS_MAX = 30
"""The number of seeds that are tried to find a run that a knob changes."""


# -- the table and the source -----------------------------------------------------------------


@cache
def modules() -> Mapping[str, ast.Module]:
    """The syntax trees of the rooms and of the simulator, by the names of the modules."""
    files = [REPOSITORY / "src/quire/config.py"]
    for room in ROOMS:
        files += (REPOSITORY / "src/quire" / room).rglob("*.py")
    found = {}
    for file in sorted(files):
        if not file.name.endswith("_pb2.py"):
            found[module_name(file, REPOSITORY / "src")] = ast.parse(file.read_text())
    for file in sorted((REPOSITORY / "simulator/quire_simulator").rglob("*.py")):
        found[module_name(file, REPOSITORY / "simulator")] = ast.parse(file.read_text())
    return found


def module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def numbers_of(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield the names of the module's constants that are numbers or pauses."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            if isinstance(target, ast.Name) and CONSTANT.fullmatch(target.id):
                value = getattr(importlib.import_module(name), target.id)
                plain = isinstance(value, int | float) and not isinstance(value, bool)
                if plain or isinstance(value, Backoff):
                    yield target.id


def not_simulated(home: str) -> bool:
    return any(
        home == one or (one.endswith(".*") and f"{home}.".startswith(one[:-1]))
        for one in exclusions.NOT_SIMULATED
    )


def excluded() -> list[str]:
    return [
        f"{home}.{name}"
        for of_modules in exclusions.EXCLUDED.values()
        for home, names in of_modules.items()
        for name in names.split()
    ]


def test_every_named_number_has_a_knob_or_a_reason() -> None:
    """A new limit belongs into `quire_simulator.knobs`, or into `exclusions` with a reason."""
    there = [
        f"{module.removeprefix('quire.')}.{name}"
        for module, tree in modules().items()
        if module.startswith("quire.") and not not_simulated(module.removeprefix("quire."))
        for name in numbers_of(module, tree)
    ]
    drawn = [
        f"{knob.home}.{name}"
        for knob in knobs().values()
        if not knob.of_settings and knob.module != knob.home
        for name in (knob.name, *(name for name, _ in knob.derived))
    ]
    known = [*drawn, *excluded()]
    assert sorted(set(there) - set(known)) == []
    assert sorted(set(known) - set(there)) == [], "these are no longer in the source"
    assert len(known) == len(set(known)), "a constant is in the table twice"


def test_every_setting_has_a_knob_or_a_reason() -> None:
    there = [
        f"{kind}.{field.name}"
        for kind, home in SETTINGS.items()
        for field in fields(getattr(importlib.import_module(f"quire.{home}"), kind))
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    ]
    left_out = [
        f"{kind}.{name}"
        for of_classes in exclusions.SETTINGS.values()
        for kind, names in of_classes.items()
        for name in names.split()
    ]
    known = [*(knob.name for knob in knobs().values() if knob.of_settings), *left_out]
    assert sorted(set(there) - set(known)) == []
    assert sorted(set(known) - set(there)) == [], "these are no longer in the source"
    assert len(known) == len(set(known)), "a setting is in the table twice"


def test_a_knob_is_set_in_every_module_that_imports_its_constant() -> None:
    importers: dict[tuple[str, str], set[str]] = {}
    for module, tree in modules().items():
        for node in ast.walk(tree):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                assert isinstance(node, ast.ImportFrom)
                key = (node.module or "", alias.name)
                importers.setdefault(key, set()).add(module)
                if key in {(knob.module, knob.name) for knob in knobs().values()}:
                    assert alias.asname is None, f"{module} imports {key} under another name"
    for knob in knobs().values():
        for name in () if knob.of_settings else (knob.name, *(name for name, _ in knob.derived)):
            found = importers.get((knob.module, name), set())
            assert found == (set(knob.also) if name == knob.name else set()), knob.key


class EvaluatedAtImport(ast.NodeVisitor):
    """Finds the names that are read when a module is imported, and not when a function runs."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.defaults: set[tuple[str, str, str]] = set()
        """Function, parameter and name of each default of a parameter."""
        self._classes: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        function, arguments = ".".join([*self._classes, node.name]), node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = [
            *zip(positional[::-1], arguments.defaults[::-1], strict=False),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            for name in ast.walk(default) if default is not None else ():
                if isinstance(name, ast.Name):
                    self.defaults.add((function, argument.arg, name.id))

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Skip the body, which runs later."""

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read.add(node.id)


def test_no_default_is_computed_from_a_knob_at_import() -> None:
    """A constant that computes another, or the default of a parameter, is read only once."""
    for knob in knobs().values():
        if knob.of_settings:
            continue
        defaults = set()
        for module in (knob.module, *knob.also):
            visitor = EvaluatedAtImport()
            visitor.visit(modules()[module])
            home = module.removeprefix("quire.")
            defaults |= {
                f"{home}:{function}.{parameter}"
                for function, parameter, name in visitor.defaults
                if name == knob.name
            }
            if knob.name in visitor.read:
                assert knob.derived or knob.frozen, f"{module} uses {knob.key} at import"
        assert defaults == set(knob.parameters), knob.key


# -- a drawn number takes effect --------------------------------------------------------------


def places_of(knob: Knob) -> Iterator[Any]:
    """Yield the number wherever the code reads it: in modules, and as the default of parameters."""
    parameters = list(knob.parameters)
    if knob.of_settings:
        kind, _, field = knob.name.partition(".")
        parameters.append(f"{knob.home}:{kind}.__init__.{field}")
    else:
        for module in (knob.module, *knob.also):
            yield getattr(importlib.import_module(module), knob.name)
    for parameter in parameters:
        function, name = function_of(parameter)
        yield inspect.signature(function, follow_wrapped=False).parameters[name].default


@pytest.mark.parametrize("name", knobs())
def test_a_knob_is_set_and_restored(name: str) -> None:
    knob = knobs()[name]
    extreme = knob.least if knob.least < knob.largest else knob.most
    assert extreme is not None
    if not isinstance(knob, RareBranch):
        assert extreme < knob.largest <= knob.default_number
    before = list(places_of(knob))
    assert before == [knob.default] * len(before)
    with applied([DrawnKnob(name, extreme)]):
        inside = list(places_of(knob))
        assert inside == [knob.value(extreme)] * len(before)
        assert all(type(value) is type(knob.default) for value in inside)
    assert list(places_of(knob)) == before


def test_a_setting_gets_the_drawn_number() -> None:
    drawn = (
        DrawnKnob("ClientConfig.read_windows", 2.0),
        DrawnKnob("ClientConfig.add_timeout_s", 0.9),
        DrawnKnob("BookieConfig.max_queued_bytes", 77.0),
        DrawnKnob("StorageConfig.max_group_bytes", 5.0),
    )
    from quire.storage.config import StorageConfig

    plan = replace(RunPlan.make(0, "all"), knobs=drawn)
    assert (plan.client_config.read_windows, plan.client_config.add_timeout_s) == (2, 0.9)
    assert plan.bookie_config.max_queued_bytes == 77
    with applied(drawn):
        assert StorageConfig().max_group_bytes == 5
    assert StorageConfig().max_group_bytes > 5


def test_a_derived_constant_follows_its_knob() -> None:
    from quire.bookie.protocol import answer_budget

    before = answer_budget.TURN_NOTICED_BYTES
    with applied([DrawnKnob("bookie.protocol.answer_budget.TURN_BYTES", 10.0)]):
        assert answer_budget.TURN_NOTICED_BYTES == 5
    assert before == answer_budget.TURN_NOTICED_BYTES


@pytest.mark.parametrize(
    "name",
    long_after(
        2,
        (
            "client.read.engine.FIRST_WINDOW_ENTRIES", "StorageConfig.max_group_bytes",
            "ClientConfig.max_turn_bytes", "bookie.protocol.answer_budget.TURN_BYTES",
        ),
    ),
)  # fmt: skip
def test_a_knob_changes_a_run_and_is_restored(name: str) -> None:
    """Some run goes another way, and the next run of the same process has the default again."""
    for seed in range(SEEDS_MAX):
        plan = replace(RunPlan.make(seed, "all"), knobs=())
        drawn = replace(plan, knobs=(DrawnKnob(name, knobs()[name].least),))
        before, changed = steps_of(plan), steps_of(drawn)
        if changed != before:
            assert steps_of(drawn) == changed
            assert steps_of(plan) == before
            return
    pytest.fail(f"no run is changed by {name}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("workload", "seed"),
    [
        ("stream walks", 366),  # an audit, while an add to the last member was on its way
        ("ledger walks", 400),  # the metrics of a bookie, whose clients left during reads
        ("ledger walks", 1045),  # the costs of a close whose compare-and-swap was made to lose
        ("ledger walks", 376),  # the suspects of a client that counts only a few
        ("ledger walks", 2056),  # the costs of appends whose connection was made to break
    ],
)
def test_no_check_is_too_strict_with_knobs(workload: str, seed: int) -> None:
    """Each of these seeds failed because of its check and not because of Quire."""
    plan = RunPlan.make(seed, workload)
    assert plan.knobs
    assert run_plan(plan).failure is None


def steps_of(plan: RunPlan) -> list[str]:
    result = run_plan(plan, trace=True)
    assert result.failure is None
    return as_text(result, every_step=True)


# -- drawing ----------------------------------------------------------------------------------


def test_numbers_are_drawn_between_their_bounds() -> None:
    for knob in knobs().values():
        chance = random.Random(1)
        numbers = [knob.draw(chance) for _ in range(50)]
        if isinstance(knob, RareBranch):
            assert knob.most is not None
            assert all(knob.least < number <= knob.most for number in numbers), knob.key
            assert knob.most in numbers
            continue
        assert all(knob.least <= number <= knob.largest for number in numbers), knob.key
        assert knob.least in numbers
        if isinstance(knob.default, int):
            assert all(number % knob.multiple == 0 for number in numbers), knob.key


def test_runs_draw_no_knob_a_few_or_many() -> None:
    counts = [len(draw_knobs(seed, "all")) for seed in range(60)]
    assert 0 in counts
    assert any(0 < count < 8 for count in counts)
    assert any(count > 80 for count in counts)
    assert {one.name for seed in range(60) for one in draw_knobs(seed, "all")} == set(knobs())


def test_the_rest_of_a_plan_does_not_depend_on_the_knobs(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [RunPlan.make(seed, "all") for seed in range(20)]
    monkeypatch.setattr("quire_simulator.plans.plans.draw_knobs", lambda seed, workload: ())
    without = [RunPlan.make(seed, "all") for seed in range(20)]
    assert [replace(plan, knobs=()) for plan in plans] == without
    assert plans != without


def test_a_knob_does_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = knobs()
    some = {name: knob for name, knob in everything.items() if "read" in name}
    before = {seed: draw_knobs(seed, "all") for seed in range(20)}
    monkeypatch.setattr("quire_simulator.knobs.drawing.knobs", lambda: some)
    for seed, drawn in before.items():
        assert draw_knobs(seed, "all") == tuple(one for one in drawn if one.name in some)


def test_every_workload_draws_knobs() -> None:
    for workload in WORKLOADS:
        assert any(RunPlan.make(seed, workload).knobs for seed in range(10)), workload


# -- plans, traces, shrinking -----------------------------------------------------------------


def a_plan_with_knobs() -> RunPlan:
    plans = (RunPlan.make(seed, "all") for seed in range(100))
    return next(plan for plan in plans if 10 < len(plan.knobs) < 40)


def test_knobs_are_saved_and_described() -> None:
    plan = a_plan_with_knobs()
    assert load_plan(dump_plan(plan)) == plan
    told = [line.strip() for line in describe_plan(plan)]
    for one in plan.knobs:
        assert str(one) in told
    assert str(DrawnKnob("net.channel.AHEAD_ANSWERS", 3.0)) == (
        "Knob net.channel.AHEAD_ANSWERS=3 instead of 1024"
    )


def test_a_plan_saved_without_knobs_has_none() -> None:
    data = json.loads(dump_plan(a_plan_with_knobs()))
    del data["plan"]["knobs"]
    assert load_plan(json.dumps(data)) == replace(a_plan_with_knobs(), knobs=())


def test_a_plan_with_an_unknown_knob_is_refused() -> None:
    plan = replace(RunPlan.make(0, "calm"), knobs=(DrawnKnob("no.such.LIMIT", 1.0),))
    with pytest.raises(UsageError, match=r"no knob 'no\.such\.LIMIT'"):
        run_plan(plan)


def test_a_failure_keeps_only_the_knobs_that_it_needs() -> None:
    plan = a_plan_with_knobs()
    needed = plan.knobs[3].name

    def run(candidate: RunPlan) -> RunResult:
        fails = any(one.name == needed for one in candidate.knobs)
        failure = RunFailure("made up", "") if fails else None
        return RunResult(plan.seed, plan.workload, "", 0.0, 0, 0, failure, ())

    small = shrink(plan, run=run).plan
    assert small.knobs == (plan.knobs[3],)
    assert small.schedule == ()
