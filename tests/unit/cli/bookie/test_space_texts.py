"""The sentences of `quire bookie explain space` about the disk as a whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.cli.bookie.space import _other_files

MB = 10**6


def report(path: Path, free_mb: int, mine_mb: int, total_mb: int = 1000) -> Any:
    return SimpleNamespace(
        path=str(path), free_bytes=free_mb * MB, total_bytes=total_mb * MB, file_bytes=mine_mb * MB
    )


def test_foreign_files_on_a_full_disk_are_reported_with_a_command_to_find_them(
    tmp_path: Path,
) -> None:
    """A person had to subtract two numbers to see that the bookie did not fill the disk."""
    text = _other_files(report(tmp_path, free_mb=50, mine_mb=300), 0)
    assert text.startswith("Other files take 650.0 MB of this disk: they are not in this directory")
    _, _, command = text.partition("du -ax --si --max-depth=2 ")
    top = Path(command.partition(" | ")[0])
    assert top.is_mount()
    assert tmp_path.is_relative_to(top)


def test_foreign_files_are_not_reported_if_they_do_not_matter(tmp_path: Path) -> None:
    assert _other_files(report(tmp_path, free_mb=500, mine_mb=300), 0) == "", "there is room"
    assert _other_files(report(tmp_path, free_mb=50, mine_mb=930), 0) == "", (
        "all files belong to the bookie"
    )
    short_for_the_bookie = _other_files(report(tmp_path, free_mb=500, mine_mb=300), 600 * MB)
    assert short_for_the_bookie.startswith("Other files take 200.0 MB")
