"""The simulator's command: its output and exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire_simulator import WORKLOADS, RunPlan, Shrunk, dump_plan, load_plan, run_plan, shrink
from quire_simulator.command.simulate import simulate as program
from tests.support.sim.defects import failing_plan, recovery_closes_at_the_lac

TIMEOUT_S = 120
SHRINK_LIMIT_S = 600.0
BUILD = re.compile(r"quire \S+, commit \S+, Python \d+\.\d+\.\d+\S*")


def quire(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire_simulator", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_range_of_seeds_is_run() -> None:
    done = quire("--seeds", "3..6", "--workload", "calm", "--processes", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["seeds"], found["first_seed"], found["runs"]) == (3, 3, 3)
    assert (found["failures"], found["shrunk"]) == ([], [])
    assert found["simulated_s"] > 0
    assert found["python"] == sys.version.split()[0]
    assert found["commit"]


def test_the_summary_is_in_words() -> None:
    done = quire("--seeds", "1..2", "--workload", "calm")
    assert done.returncode == 0, done.stderr
    summary, build = done.stdout.splitlines()
    assert summary.startswith("1 seeds of calm (1..2) in ")
    assert " seeds/s, " in summary
    assert summary.endswith(" simulated hours per real minute; 0 failed")
    assert BUILD.fullmatch(build)
    # Printed at once, in case nobody sees the end.
    assert done.stderr.splitlines()[0] == f"{build}: seeds 1..2 of calm"


@pytest.mark.long
def test_several_workloads_are_run() -> None:
    done = quire("--seeds", "1..3", "--workload", "calm,tail", "--processes", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["workloads"], found["seeds"], found["runs"]) == (["calm", "tail"], 2, 4)


@pytest.mark.long
def test_fresh_seeds_are_printed_and_differ_each_time() -> None:
    firsts = set()
    for _ in range(2):
        done = quire("--fresh", "2", "--workload", "calm", "--processes", "1", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["runs"] == 2
        first = found["first_seed"]
        assert f"seeds {first}..{first + 2} of calm" in done.stderr
        firsts.add(first)
    assert len(firsts) == 2


def test_the_trace_of_one_seed_is_printed() -> None:
    one, other = (quire("--trace", "5", "--workload", "calm") for _ in range(2))
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout
    lines = one.stdout.splitlines()
    assert lines[0].startswith("seed 5, workload calm; quire ")
    assert lines[1].startswith("RunPlan seed=5 workload=calm ")
    assert lines[-1] == "every invariant holds"
    assert any(re.fullmatch(r" +\d+\.\d{4}  writer-0 +create ledger .*", line) for line in lines)


def test_the_output_of_a_diagram_is_only_the_diagram() -> None:
    done = quire("--trace", "5", "--format", "mermaid")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sequenceDiagram\n    title: seed 5, workload all\n")
    assert "every invariant holds" in done.stderr


def test_a_trace_is_printed_as_json() -> None:
    done = quire("--trace", "5", "--format", "full", "--json")
    found = json.loads(done.stdout)
    plan = RunPlan.make(5, "all")
    assert found["trace_digest"] == run_plan(plan).trace_digest
    assert (found["failure"], found["shrunk"]) == (None, None)
    assert found["plan"] == json.loads(dump_plan(plan))["plan"]
    assert len(found["story"]) > 50


def test_invalid_simulator_options_are_refused(tmp_path: Path) -> None:
    done = quire("--seeds", "7..3")
    assert done.returncode == 2
    assert "'7..3' is not a range of seeds" in done.stderr
    done = quire("--workload", "calm,none")
    assert done.returncode == 2
    assert f"no workload 'none'. Use 'every', or one of: {', '.join(WORKLOADS)}." in done.stderr
    done = quire("--trace", "3", "--fresh", "3")
    assert done.returncode == 2
    assert "--fresh and --trace cannot be used together" in done.stderr
    done = quire("--trace", "3", "--workload", "every")
    assert done.returncode == 2
    assert "--trace shows one run. Name exactly one workload." in done.stderr
    (tmp_path / "plan.json").write_text("{}")
    done = quire("--plan", str(tmp_path / "plan.json"))
    assert done.returncode == 2
    assert "The file is not a plan" in done.stderr


# -- failures: in this process, where the defect is ---------------------------------------------


SMALL: dict[str, Shrunk] = {}
"""What plans became when they were made small. That is tested elsewhere, and takes a while."""


def made_small(plan: RunPlan, **more: Any) -> Shrunk:
    key = dump_plan(plan)
    if key not in SMALL:
        # A busy machine needs longer than the default to make the plan as small as it can be.
        SMALL[key] = shrink(plan, **{**more, "budget_s": SHRINK_LIMIT_S})
    return SMALL[key]


@pytest.fixture
def defective(monkeypatch: pytest.MonkeyPatch) -> RunPlan:
    """The first plan that fails. The processes of a range of seeds would not have the defect:
    here its runs are carried out in this one."""
    recovery_closes_at_the_lac(monkeypatch)

    class Inline:
        def __init__(self, *arguments: object, **more: object) -> None:
            pass

        def __enter__(self) -> Inline:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def submit(self, function, *arguments):  # type: ignore[no-untyped-def]
            from concurrent.futures import Future

            future: Future[object] = Future()
            future.set_result(function(*arguments))
            return future

    monkeypatch.setattr("quire_simulator.command.simulate.ProcessPoolExecutor", Inline)
    monkeypatch.setattr("quire_simulator.shrink", made_small)
    return failing_plan("recovery")


def run_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    found = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, found.out, found.err


@pytest.mark.long
def test_a_failure_is_shrunk_and_saved(
    defective: RunPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failing.json"
    seeds = f"{defective.seed}..{defective.seed + 1}"
    status, out, err = run_here(
        capsys, "--seeds", seeds, "--workload", "recovery", "--save", str(file)
    )
    failure = run_plan(defective).failure
    assert failure is not None
    assert status == 1
    assert f"seed {defective.seed} of 'recovery': {failure.invariant}: " in err
    assert f"replay: python -m quire_simulator --workload recovery --trace {defective.seed}" in err
    lines = out.splitlines()
    assert re.fullmatch(rf"made small in \d+ runs?: {failure.invariant}: .*", lines[0])
    assert lines[1].startswith("  RunPlan seed=")
    assert f"replay: python -m quire_simulator --plan {file}" in lines
    assert lines[-2].endswith("; 1 failed")

    small = load_plan(file.read_text())
    assert len(small.ledgers) == 1
    status, out, _ = run_here(capsys, "--plan", str(file))
    assert status == 1
    assert out.splitlines()[-1].startswith(f"{failure.invariant}: ")
    status, out, err = run_here(capsys, "--plan", str(file), "--format", "mermaid")
    assert status == 1
    assert out.startswith("sequenceDiagram\n")
    assert failure.invariant in out
    assert f"{failure.invariant}: " in err


@pytest.mark.long
def test_a_failure_is_printed_as_json(
    defective: RunPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = f"{defective.seed}..{defective.seed + 1}"
    status, out, _ = run_here(capsys, "--seeds", seeds, "--workload", "recovery", "--json")
    assert status == 1
    found = json.loads(out)
    (failure,), (shrunk,) = found["failures"], found["shrunk"]
    assert (failure["seed"], failure["workload"]) == (defective.seed, "recovery")
    assert shrunk["law"] == failure["law"]
    assert shrunk["finished"] is True
    assert len(shrunk["plan"]["schedule"]) == len(shrunk["schedule"])
    assert len(shrunk["plan"]["ledgers"]) == 1


def test_the_no_shrink_option_keeps_the_plan(
    defective: RunPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failing.json"
    for runs in (("--seeds", f"{defective.seed}..{defective.seed + 1}"), ("--trace", "{}")):
        option, value = runs
        status, out, _ = run_here(
            capsys, option, value.format(defective.seed), "--workload", "recovery",
            "--no-shrink", "--save", str(file),
        )  # fmt: skip
        assert status == 1
        assert "made small" not in out
        assert load_plan(file.read_text()) == defective
        file.unlink()


@pytest.mark.long
def test_the_plan_of_a_saved_trace_is_shrunk(
    defective: RunPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "failing.json"
    status, out, err = run_here(
        capsys, "--trace", str(defective.seed), "--workload", "recovery", "--save", str(file)
    )
    assert status == 1
    assert out.startswith(f"seed {defective.seed}, workload recovery; ")
    assert "made small in " in err
    assert len(load_plan(file.read_text()).ledgers) == 1


def test_a_passing_plan_is_saved_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    status, _, _ = run_here(capsys, "--trace", "2", "--workload", "calm", "--save", str(file))
    assert status == 0
    assert load_plan(file.read_text()) == RunPlan.make(2, "calm")
    assert json.loads(file.read_text())["python"] == sys.version.split()[0]
