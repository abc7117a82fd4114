"""The proof that scripts/mutants-sample tells the truth, in a source tree of a few lines.

The tree has a package that looks like Quire, a test for it, and a simulator that is one function.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.mutation import simulator_stage, unit_stage
from tests.support.mutation.outcome import Outcome, VoidError
from tests.support.mutation.processes import run, stopping
from tests.support.mutation.sampling import draw, sites_of_rooms
from tests.support.mutation.session import (
    SIMULATOR,
    UNIT,
    Drawn,
    Session,
    locked,
    open_tree,
    read_session,
    samples,
    take_tree,
    write_sample,
)
from tests.support.mutation.sites import sites
from tests.support.mutation.tree import Tree

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "scripts" / "mutants-sample"
FILE = "src/quire/core/answers.py"
CODE = """\
def fatal(flag):
    return "yes" if flag else "no"


def simulated(flag):
    return "yes" if flag else "no"


def equivalent(flag):
    return flag or flag


def unused(flag):
    return flag and "yes"
"""
TEST = """\
import pytest

from quire.core.answers import equivalent, fatal


@pytest.mark.parametrize("flag", [True, False])
def test_fatal(flag):
    assert fatal(flag) == ("yes" if flag else "no")


def test_equivalent():
    assert equivalent(3) == 3
"""
SIMULATED = """\
from types import SimpleNamespace

from quire.core.answers import equivalent, fatal, simulated


def simulate(seed, workload):
    broken = seed == 2 and simulated(True) != "yes"
    failure = SimpleNamespace(invariant="answers_are_right", what="no") if broken else None
    equivalent(seed), fatal(seed)
    return SimpleNamespace(failure=failure)
"""
FATAL, IN_SIMULATOR, EQUIVALENT, UNUSED = range(4)
"""The sites, in the order of the code."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A source tree in miniature, which git knows."""
    root = tmp_path / "tree"
    files = {
        FILE: CODE,
        "src/quire/__init__.py": "",
        "src/quire/core/__init__.py": "",
        "src/quire/testing/__init__.py": "",
        "src/quire/testing/pytest_plugin.py": "",
        "simulator/quire_simulator/__init__.py": SIMULATED,
        "tests/__init__.py": "",
        "tests/support/__init__.py": "",
        "tests/unit/__init__.py": "",
        "tests/unit/core/__init__.py": "",
        "tests/unit/core/test_answers.py": TEST,
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-ra -p no:cacheprovider"\n',
        ".gitignore": "__pycache__/\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    tools = "tests/support/mutation"
    shutil.copytree(ROOT / tools, root / tools, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return tmp_path


def sample(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, "--tree", place / "tree", "--state", place / "state"]
    command += ["--count", "9", "--seeds", "40", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def only_session(place: Path) -> Session:
    (found,) = samples(place / "state")
    return read_session(found)


def outcomes(session: Session) -> dict[int, str]:
    """Return by which stage each site was found, or '', by the number of the site."""
    lines = sorted(mutant.line for mutant in session.drawn.mutants)
    found = dict.fromkeys(range(len(lines)), "")
    for (number, stage), outcome in session.results.items():
        if outcome.found:
            found[lines.index(session.drawn.mutants[number].line)] = stage
    return found


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


@pytest.mark.long
def test_fatal_mutants_are_found_and_equivalent_ones_survive(place: Path) -> None:
    before = content(place / "tree")
    done = sample(place, "--seed", "5")
    assert done.returncode == 0, done.stderr
    session = only_session(place)
    expected = {FATAL: UNIT, IN_SIMULATOR: SIMULATOR, EQUIVALENT: "", UNUSED: ""}
    assert outcomes(session) == expected
    assert done.stdout.split("\n")[-2].split() == ["all", "4", "1", "1", "2", "50%"]
    assert "+    return flag and flag" in done.stdout, "the survivor's diff"
    assert '+    return flag or "yes"' in done.stdout, "the survivor's diff"
    assert "found by tests/unit/core/test_answers.py::test_fatal" in done.stdout
    assert "found by seed 2 of 'all': answers_are_right: no" in done.stdout
    unit = {number: one for (number, stage), one in session.results.items() if stage == UNIT}
    # The two cases of `test_fatal`, and `test_equivalent`; no test executes the others.
    assert sorted(one.tried for one in unit.values()) == [0, 0, 1, 2]
    assert content(place / "tree") == before, "nothing is left in the working tree"
    assert list(session.work.iterdir()) == [], "no copy is left"

    # The same command again has nothing to do, and says the same.
    again = sample(place, "--seed", "5")
    assert again.returncode == 0
    assert "resumed: 4 of 9 are done" in again.stdout
    assert "found by" not in again.stdout
    assert read_session(session.place) == session


def test_the_simulator_only_option_skips_the_tests(place: Path) -> None:
    done = sample(place, "--seed", "5", "--simulator-only")
    assert done.returncode == 0, done.stderr
    session = only_session(place)
    assert outcomes(session)[IN_SIMULATOR] == SIMULATOR
    assert outcomes(session)[FATAL] == "", "the simulator of this test looks at one answer only"
    assert {stage for _, stage in session.results} == {SIMULATOR}


@pytest.mark.long
def test_a_resumed_sample_keeps_its_draw(place: Path) -> None:
    assert sample(place, "--seed", "5").returncode == 0
    session = only_session(place)
    file = session.place / "results.jsonl"
    kept = file.read_bytes().split(b"\n")[:2]
    # A crash within a write, after which somebody changed the working tree.
    file.write_bytes(b"\n".join(kept) + b'\n{"number": 3, "sta')
    (session.work / "1-left").mkdir()
    (place / "tree" / FILE).write_text("nothing = None\n", encoding="utf-8")
    done = sample(place)
    assert done.returncode == 0, done.stderr
    resumed = read_session(session.place)
    assert resumed.drawn == session.drawn
    assert outcomes(resumed) == outcomes(session)
    assert file.read_bytes().split(b"\n")[:2] == kept
    assert len(list(samples(place / "state"))) == 1
    assert list(session.work.iterdir()) == []


@pytest.mark.parametrize("kind", ["test", "seed"])
@pytest.mark.long
def test_no_report_is_made_if_the_unmutated_copy_fails(place: Path, kind: str) -> None:
    if kind == "test":
        file = place / "tree" / "tests/unit/core/test_answers.py"
        file.write_text(f"{TEST}\n\ndef test_more():\n    assert not 1\n", encoding="utf-8")
    else:
        file = place / "tree" / "simulator/quire_simulator/__init__.py"
        file.write_text(SIMULATED.replace("seed == 2 and", "True or"), encoding="utf-8")
    done = sample(place, "--seed", "5")
    assert done.returncode == 2
    assert "There is no result" in done.stderr
    assert "survived" not in done.stdout
    assert only_session(place).results == {}


def test_many_seeds_that_fail_without_the_mutant_give_no_result(place: Path) -> None:
    """Seed 0 is checked before all mutants, and any other seed when it has found one."""
    file = place / "tree" / "simulator/quire_simulator/__init__.py"
    text = SIMULATED.replace('seed == 2 and simulated(True) != "yes"', "seed > 0")
    file.write_text(text, encoding="utf-8")
    done = sample(place, "--seed", "5", "--simulator-only")
    assert done.returncode == 2
    assert "These also happen without the mutant: seed 1 of 'all'" in done.stderr


def drawn_sample(place: Path) -> Session:
    """Draw a sample and run nothing of it."""
    digest = take_tree(place / "state", place / "tree")
    tree = open_tree(place / "state", digest)
    among = sites_of_rooms(tree)
    mutants, redrawn = draw(tree, among, 5, 9)
    sampled = Drawn(
        5, 9, False, 40, 0, digest, "unknown", len(among), redrawn, tuple(mutants)
    )  # fmt: skip
    return read_session(write_sample(place / "state", sampled))


def test_no_report_is_made_from_a_changed_copy(place: Path) -> None:
    copy = open_tree(place / "state", drawn_sample(place).drawn.tree).root
    assert sample(place, "--report").returncode == 0
    (copy / FILE).write_text(f"{CODE}\n\nadded = 1\n", encoding="utf-8")
    done = sample(place, "--report")
    assert done.returncode == 2
    assert "was changed" in done.stderr


@pytest.mark.long
def test_an_interrupted_sample_ends_at_once(place: Path) -> None:
    """The test of a mutant hangs. The sample receives SIGTERM, and ends its processes."""
    file = place / "tree" / "tests/unit/core/test_answers.py"
    marker = place / "hangs"
    hanging = (
        f"    if fatal(flag) != ('yes' if flag else 'no'):\n"
        f"        import os, time\n"
        f"        open({str(marker)!r}, 'w').write(str(os.getpid()))\n"
        f"        time.sleep(600)\n"
    )
    file.write_text(TEST.replace("    assert fatal", f"{hanging}    assert fatal"))
    command = [sys.executable, SCRIPT, "--tree", place / "tree", "--state", place / "state"]
    with subprocess.Popen([*command, "--count", "9", "--seed", "5", "--seeds", "9"]) as process:
        deadline = time.monotonic() + 120
        while not (marker.exists() and marker.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
    assert FATAL not in {number for number, _ in only_session(place).results}


def trees(place: Path, code: str) -> tuple[Tree, Tree]:
    """Return the tree with other code, and the one with the real code."""
    mutated = place / "mutated"
    shutil.copytree(place / "tree", mutated)
    (mutated / FILE).write_text(code, encoding="utf-8")
    return Tree(mutated), Tree(place / "tree")


HANGS = CODE.replace('return "yes" if', 'while flag: pass\n    return "yes" if')
TESTS = {
    "tests/unit/core/test_answers.py::test_equivalent": 0.01,
    "tests/unit/core/test_answers.py::test_fatal[True]": 0.01,
}


@pytest.mark.parametrize("limit", ["CPU", "CLOCK"])
@pytest.mark.long
def test_a_hanging_test_counts_as_finding_the_mutant(
    place: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    limit_s = 3.0 if limit == "CPU" else 6.0
    monkeypatch.setattr(unit_stage, f"{limit}_MIN_S", limit_s)
    monkeypatch.setattr(unit_stage, "FAR_FROM_IT", 10)
    code = HANGS if limit == "CPU" else HANGS.replace("pass", "__import__('time').sleep(1)")
    mutated, unmutated = trees(place, code)
    outcome = unit_stage.run_tests(mutated, unmutated, list(TESTS), TESTS)
    assert (outcome.found, outcome.by) == (True, "time-out")
    if limit == "CLOCK":  # It needs no processor while it hangs.
        monkeypatch.setattr(unit_stage, "FAR_FROM_IT", 1)
        with pytest.raises(VoidError):  # It hangs without a mutant as well.
            unit_stage.run_tests(mutated, mutated, list(TESTS), TESTS)


@pytest.mark.long
def test_a_hanging_simulator_run_counts_as_finding_the_mutant(place: Path) -> None:
    mutated, unmutated = trees(place, HANGS)
    process = mutated.root / "tests/support/mutation/seeds_process.py"
    text = process.read_text(encoding="utf-8")
    process.write_text(text.replace("CPU_MAX_S = 60.0", "CPU_MAX_S = 1.0"), encoding="utf-8")
    runs = [("all", 0), ("all", 1)]  # 0 is not true, so only the second one hangs.
    outcome = simulator_stage.find_by_seeds(mutated, unmutated, runs)
    assert (outcome.found, outcome.by, outcome.tried) == (True, "seed 1 of 'all': time-out", 2)


def test_a_seed_that_fails_without_the_mutant_is_left_out(place: Path) -> None:
    mutated, unmutated = trees(place, CODE.replace("yes", "no"))
    for tree in (mutated, unmutated):
        package = tree.root / "simulator/quire_simulator/__init__.py"
        text = package.read_text(encoding="utf-8")
        text = text.replace("broken = seed == 2 and", "broken = seed == 1 or seed == 2 and")
        package.write_text(text, encoding="utf-8")
    outcome = simulator_stage.find_by_seeds(mutated, unmutated, [("all", n) for n in range(4)])
    assert (outcome.found, outcome.tried) == (True, 3)
    assert outcome.by.startswith("seed 2 of 'all'")
    outcome = simulator_stage.find_by_seeds(mutated, unmutated, [("all", 0), ("all", 1)])
    assert (outcome.found, outcome.tried) == (False, 2)
    assert "fail without the mutant: seed 1 of 'all'" in outcome.by


def test_a_tree_in_which_many_seeds_fail_gives_no_result(place: Path) -> None:
    mutated, unmutated = trees(place, "raise RuntimeError\n")
    runs = [("all", n) for n in range(simulator_stage.LEFT_OUT_MAX + 1)]
    assert not simulator_stage.find_by_seeds(mutated, mutated, runs[1:]).found
    with pytest.raises(VoidError, match="without the mutant"):
        simulator_stage.find_by_seeds(mutated, mutated, runs)
    assert simulator_stage.find_by_seeds(mutated, unmutated, runs).found


def test_a_mutant_that_cannot_be_imported_is_found(place: Path) -> None:
    mutated, unmutated = trees(place, "raise RuntimeError\n")
    assert unit_stage.run_tests(mutated, unmutated, list(TESTS), TESTS).found
    assert simulator_stage.find_by_seeds(mutated, unmutated, [("all", 0)]).found


def test_a_process_that_imports_another_tree_is_refused(place: Path) -> None:
    tree = Tree(place / "tree")
    elsewhere = tree.environment | {"PYTHONPATH": f"{ROOT}/src:{ROOT}/simulator"}
    command = [sys.executable, "-m", "tests.support.mutation.seeds_process", "[]"]
    ended = run(command, tree.root, elsewhere, 60.0)
    assert ended.status == 1
    assert "was imported from" in ended.output


def test_a_copy_does_not_use_the_bytecode_of_the_old_text(place: Path) -> None:
    """Both texts have the same size, and the file has the same time."""
    tree = Tree(place / "tree")
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src"], cwd=tree.root, check=True)
    time_ns = (tree.root / FILE).stat().st_mtime_ns
    text = CODE.replace('"yes" if flag else "no"', '"no" if flag else "yes"')
    assert len(text) == len(CODE)
    with tree.mutated(FILE, text, place) as copy:
        os.utime(copy.root / FILE, ns=(time_ns, time_ns))
        program = "from quire.core.answers import fatal; print(fatal(True))"
        ended = run([sys.executable, "-c", program], copy.root, copy.environment, 60.0)
        assert ended.output == "no\n"
    assert not copy.root.exists()
    assert tree.read(FILE) == CODE


def test_concurrent_runs_of_one_sample_are_refused(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(SystemExit, match="Another process"), locked(tmp_path):
        raise AssertionError


def test_a_result_is_on_disk_before_it_is_reported(place: Path) -> None:
    session = drawn_sample(place)
    session.add(0, UNIT, Outcome(found=True, by="a test", tried=1, seconds=0.5))
    last = (session.place / "results.jsonl").read_text(encoding="utf-8").split("\n")[-2]
    assert json.loads(last) == {
        "number": 0, "stage": UNIT, "found": True, "by": "a test", "tried": 1, "seconds": 0.5,
    }  # fmt: skip
    assert read_session(session.place) == session


def test_the_miniature_has_the_four_sites() -> None:
    assert [site.line for site in sites(FILE, CODE)] == [2, 6, 10, 14]
    assert not stopping.is_set()
