"""The permissions of files with secrets and of files with data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire._runtime.secret_files import exposure_of
from quire.metadata import open_metadata
from quire.storage.disk import RealDisk


@pytest.fixture
def open_umask() -> Iterator[None]:
    """New files are open to everybody, unless their mode says otherwise."""
    former = os.umask(0)
    yield
    os.umask(former)


def modes(directory: Path) -> dict[str, int]:
    found = [directory, *sorted(directory.rglob("*"))]
    return {str(one.relative_to(directory)): one.stat().st_mode & 0o777 for one in found}


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_secret_that_everybody_can_read_is_refused(
    tmp_path: Path, mode: int, refused: bool
) -> None:
    file = tmp_path / "key"
    file.write_text("secret")
    file.chmod(mode)
    problem = exposure_of(file)
    assert (problem is not None) == refused
    assert problem is None or problem.endswith(f"(mode 0644): chmod 600 {file}")


def test_devices_and_missing_files_are_not_refused(tmp_path: Path) -> None:
    assert exposure_of("/dev/null") is None
    assert exposure_of(tmp_path / "missing") is None


def test_the_files_of_a_bookie_are_private(tmp_path: Path, open_umask: None) -> None:
    disk = RealDisk(str(tmp_path / "data"))
    disk.make_directory("log/more")
    disk.create("log/0001.seg").close()
    disk.lock()
    found = modes(tmp_path / "data")
    assert {*found.values()} == {0o700, 0o600}
    assert found["log/0001.seg"] == 0o600
    assert [found[name] for name in (".", "log", "log/more")] == [0o700] * 3


async def test_a_metadata_file_and_its_log_are_private(tmp_path: Path, open_umask: None) -> None:
    """It holds the passwords of ledgers."""
    directory = tmp_path / "metadata"
    directory.mkdir(0o700)
    store = await open_metadata(f"sqlite:///{directory}/metadata.db", create=True)
    await store.initialise()
    found = modes(directory)
    await store.close()
    assert {*found} >= {"metadata.db", "metadata.db-wal", "metadata.db-shm"}
    assert {mode for name, mode in found.items() if name != "."} == {0o600}
