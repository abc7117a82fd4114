"""Copies of the source tree, so that the working tree is never changed.

A `Tree` is a directory that holds what the tests and the simulator need. The first copy is made
from the working tree when a sample begins, and every result belongs to that copy, whatever happens
to the working tree later. A mutant gets a copy of its own, which is deleted afterwards.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COMPARED = ("src", "simulator", "tests", "pyproject.toml", "docs")
"""The files and folders whose content identifies a tree, including the documents that tests read.
"""
NEEDED = (*COMPARED, "deploy", "README.md", "Makefile", "ARCHITECTURE.md", "CONTRIBUTING.md")
CACHED = ("src", "simulator", "tests")


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the source tree."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of processes that import this copy and no other.

        The processes write no bytecode, and strings have the same hash in each of them.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
        return kept | {
            "PYTHONPATH": os.pathsep.join(str(self.root / part) for part in ("src", "simulator")),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "QUIRE_MUTATION_ROOT": str(self.root),
        }

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def digest(self) -> str:
        """Return a digest of all files of the copy that can change a result."""
        whole = hashlib.sha256()
        for path in sorted(files_of(self.root)):
            content = (self.root / path).read_bytes()
            whole.update(f"{path}\0{len(content)}\0".encode() + content)
        return whole.hexdigest()

    @contextmanager
    def mutated(self, path: str, text: str, place: Path) -> Iterator[Tree]:
        """Make a copy in the directory `place` in which the file `path` has another text.

        The copy is deleted at the end. If the process is killed before, the copy stays in `place`,
        which the next run of the sample clears.
        """
        root = place / f"{os.getpid()}-{os.urandom(4).hex()}"
        try:
            shutil.copytree(self.root, root)
            file = root / path
            # A new file: the bytecode that was compiled from the old one must not be taken for it.
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
                compiled.unlink()
            file.write_text(text, encoding="utf-8")
            yield Tree(root)
        finally:
            shutil.rmtree(root, ignore_errors=True)


def files_of(root: Path) -> Iterator[str]:
    """Yield the paths of the compared files below `root`."""
    for part in COMPARED:
        place = root / part
        found = [place] if place.is_file() else place.rglob("*")
        for path in found:
            if path.is_file() and path.suffix != ".pyc":
                yield str(path.relative_to(root))


def copy_of_working_tree(working_tree: Path, root: Path) -> Tree:
    """Copy the working tree to `root` and compile it: all files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *NEEDED],
        cwd=working_tree, check=True, capture_output=True, text=True,
    )  # fmt: skip
    unfinished = root.with_name(f"{root.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in sorted(set(listed.stdout.split("\0")) - {""}):
        source, target = working_tree / name, unfinished / name
        if source.is_file():  # It may be deleted, and not yet in git.
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    # Copies take the bytecode with them, which saves each process of a mutant several seconds.
    compiling = [sys.executable, "-m", "compileall", "-q", *CACHED]
    subprocess.run(compiling, cwd=unfinished, check=True)
    unfinished.rename(root)
    return Tree(root)
