"""The state of a sample on disk, so that a run can be interrupted at any time and resumed.

A directory holds the trees and the samples:

    trees/DIGEST/copy/          the copy of the source tree
    trees/DIGEST/...            what was measured in it
    samples/NAME/sample.json    the drawn mutants
    samples/NAME/results.jsonl  one line for each stage of a mutant that has ended
    samples/NAME/work/          copies of mutants, which mean nothing after a crash
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.support.mutation.outcome import Outcome, VoidError
from tests.support.mutation.sites import Mutant
from tests.support.mutation.tree import Tree, copy_of_working_tree

UNIT, SIMULATOR = "unit tests", "simulator"


@dataclass(frozen=True, slots=True)
class Drawn:
    """The mutants of a sample, and everything that decided which mutants were drawn."""

    seed: int
    count: int
    simulator_only: bool
    seeds_max: int
    first_seed: int
    tree: str
    commit: str
    sites: int
    """The number of sites from which the mutants were drawn."""
    redrawn: int
    """The number of drawn sites that gave no valid Python, so that others replaced them."""
    mutants: tuple[Mutant, ...]

    @property
    def name(self) -> str:
        return sample_name(self.seed, self.count, self.simulator_only)


def sample_name(seed: int, count: int, simulator_only: bool) -> str:
    return f"{'simulator-' if simulator_only else ''}{count}-of-seed-{seed}"


@dataclass(slots=True)
class Session:
    """A sample and its results so far."""

    place: Path
    drawn: Drawn
    results: dict[tuple[int, str], Outcome] = field(default_factory=dict)
    """The outcome of each stage that has ended, by the mutant's number and the stage's name."""

    @property
    def work(self) -> Path:
        return self.place / "work"

    def add(self, number: int, stage: str, outcome: Outcome) -> None:
        """Note the outcome of a stage. It is on disk when this returns."""
        line = json.dumps({"number": number, "stage": stage, **asdict(outcome)})
        with (self.place / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())
        self.results[number, stage] = outcome

    def is_done(self, number: int) -> bool:
        """Return whether the tests found the mutant, or it was run in the simulator."""
        unit = self.results.get((number, UNIT))
        return (unit is not None and unit.found) or (number, SIMULATOR) in self.results


def write_sample(root: Path, drawn: Drawn) -> Path:
    place = root / "samples" / drawn.name
    place.mkdir(parents=True, exist_ok=True)
    unfinished = place / "sample.unfinished"
    unfinished.write_text(json.dumps(asdict(drawn), indent=1), encoding="utf-8")
    unfinished.rename(place / "sample.json")
    return place


def read_session(place: Path) -> Session:
    """Read a sample and its results. A line that a crash cut off is left out."""
    data = json.loads((place / "sample.json").read_text(encoding="utf-8"))
    data["mutants"] = tuple(Mutant(**one) for one in data["mutants"])
    session = Session(place, Drawn(**data))
    file = place / "results.jsonl"
    if file.exists():
        whole = file.read_bytes()
        complete = whole[: whole.rfind(b"\n") + 1]
        if len(complete) < len(whole):
            os.truncate(file, len(complete))
        for line in complete.decode().splitlines():
            one = json.loads(line)
            key = one.pop("number"), one.pop("stage")
            session.results[key] = Outcome(**one)
    return session


def samples(root: Path) -> Iterator[Path]:
    """Yield the directories of all samples, the oldest first."""
    found = (root / "samples").glob("*/sample.json")
    for file in sorted(found, key=lambda file: file.stat().st_mtime_ns):
        yield file.parent


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Keep other runs of this sample away, and remove what an earlier one has left behind."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SystemExit(f"Another process runs the sample in {place}.") from error
        shutil.rmtree(place / "work", ignore_errors=True)
        (place / "work").mkdir()
        yield


def take_tree(root: Path, working_tree: Path) -> str:
    """Copy the working tree below `root`, unless that copy exists, and return its digest."""
    new = root / "trees" / f"new-{os.getpid()}"
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        digest = copy_of_working_tree(working_tree, new).digest()[:16]
        target = root / "trees" / digest / "copy"
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return digest


def open_tree(root: Path, digest: str) -> Tree:
    """Return the copy of the source tree with this digest.

    Raises:
        VoidError: The copy is missing or was changed.
    """
    tree = Tree(root / "trees" / digest / "copy")
    if not tree.root.is_dir() or not tree.digest().startswith(digest):
        raise VoidError(f"{tree.root} is missing or was changed. Draw a new sample.")
    return tree
