"""The directory of `quire pipeline history --output`, without Spark."""

from __future__ import annotations

import shutil
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


def test_an_empty_output_directory_is_accepted(tmp_path: Path) -> None:
    """A server of Spark Connect makes it while it cancels the job."""
    write(tmp_path, complete=True)
    assert (tmp_path / "_temporary").exists()


def test_a_directory_with_files_is_kept(tmp_path: Path) -> None:
    (tmp_path / "part-0").touch()
    with pytest.raises(JobError, match="already exists"):
        write(tmp_path, complete=False)
    assert [one.name for one in tmp_path.iterdir()] == ["part-0"]


def test_directories_on_other_file_systems_are_not_touched() -> None:
    with new_directory("s3a://bucket/copy"), new_directory(None):
        pass


def fails_before_it_writes(output: Path) -> None:
    with new_directory(str(output)):
        write(output, complete=True)
        raise JobError("Spark could not start")


def test_output_that_another_command_created_meanwhile_is_kept(tmp_path: Path) -> None:
    """The same command ran twice, and the one that failed removed the result of the other."""
    output = tmp_path / "copy"

    def fails(error: Exception, *, first: bool) -> None:
        with new_directory(str(output)) as begin:
            if first:
                begin()
                (output / "_temporary").mkdir(parents=True)  # on another machine
            else:
                write(output, complete=True)
                begin()
            raise error

    with pytest.raises(JobError, match="already exists"):
        fails(JobError("never raised"), first=False)
    assert (output / "_temporary").exists()
    shutil.rmtree(output)
    with pytest.raises(JobError, match="PATH_ALREADY_EXISTS"):
        fails(JobError("[PATH_ALREADY_EXISTS] Path file:/copy already exists."), first=True)
    assert (output / "_temporary").exists()
    shutil.rmtree(output)
    with pytest.raises(JobError, match="could not start"):
        fails_before_it_writes(output)
    assert (output / "_temporary").exists()


def test_only_one_of_two_concurrent_commands_writes(tmp_path: Path) -> None:
    """Both found no directory, and both wrote into it. The one that failed removed it."""
    output = tmp_path / "new" / "copy"

    def writes(*, while_other_writes: bool) -> None:
        with new_directory(str(output)) as begin:
            begin()
            if while_other_writes:
                # Spark has not created the directory yet.
                with pytest.raises(JobError, match="another command is writing"):
                    writes(while_other_writes=False)
            (output / "_temporary").mkdir(parents=True)

    writes(while_other_writes=True)
    assert output.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["new"]
    with pytest.raises(JobError, match="already exists"):
        writes(while_other_writes=False)
    shutil.rmtree(output)
    with new_directory(str(output)) as begin:
        begin()


def test_a_directory_that_cannot_be_locked_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError("read-only")

    monkeypatch.setattr("quire.cli.pipeline.archive.os.open", refuse)
    with new_directory(str(tmp_path / "copy")) as begin:
        begin()


def test_a_uri_has_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with new_directory("s3a://bucket/copy") as begin:
        begin()
        assert not list(tmp_path.iterdir())
