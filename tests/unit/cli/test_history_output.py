"""The directory of `quire pipeline history --output`, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.pipeline.archive import new_directory
from quire.errors import JobError


def write(output: Path, *, complete: bool) -> None:
    with new_directory(str(output)) as begin:
        begin()
        (output / "_temporary").mkdir(parents=True)
        if not complete:
            raise KeyboardInterrupt


def test_an_incomplete_directory_is_removed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "copy", complete=False)
    assert not (tmp_path / "copy").exists()
    write(tmp_path / "copy", complete=True)
    assert (tmp_path / "copy").exists()


def test_an_empty_directory_is_none(tmp_path: Path) -> None:
    """A server of Spark Connect makes it while it cancels the job."""
    write(tmp_path, complete=True)
    assert (tmp_path / "_temporary").exists()


def test_a_directory_with_files_stays(tmp_path: Path) -> None:
    (tmp_path / "part-0").touch()
    with pytest.raises(JobError, match="already exists"):
        write(tmp_path, complete=False)
    assert [one.name for one in tmp_path.iterdir()] == ["part-0"]


def test_other_file_systems_are_left_to_spark() -> None:
    with new_directory("s3a://bucket/copy"), new_directory(None):
        pass


@pytest.mark.parametrize("begun", [False, True])
def test_what_another_job_has_written_meanwhile_stays(tmp_path: Path, begun: bool) -> None:
    """It began after the first look, or even after the second one, which only Spark notices."""
    output = tmp_path / "copy"

    def late() -> None:
        with new_directory(str(output)) as begin:
            if begun:
                begin()
            output.mkdir()
            (output / "part-0").touch()
            if not begun:
                begin()
            raise JobError("failed: [PATH_ALREADY_EXISTS] Path copy already exists", remedy="")

    with pytest.raises(JobError, match="already exists"):
        late()
    assert (output / "part-0").exists()


def test_what_was_not_written_by_this_job_stays(tmp_path: Path) -> None:
    output = tmp_path / "copy"

    def interrupted() -> None:
        with new_directory(str(output)):
            (output / "part-0").mkdir(parents=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert output.exists()
