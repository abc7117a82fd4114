"""Servers that start on a full disk, or on a file system that is mounted read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.cli import Quire

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root of Linux can mount a disk"
)
FULL = "the disk is full. Free some space on it"
READ_ONLY = "its file system is read-only. Mount it writable"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB with a metadata file and the data directory of a bookie."""
    there = tmp_path / "disk"
    there.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(there)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        Quire()("cluster", "init", "--metadata", meta(there)).ok()
        (there / "used").mkdir()
        yield there
    finally:
        subprocess.run(["umount", "-l", str(there)], check=True)


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """A metadata store on another disk."""
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    Quire()("cluster", "init", "--metadata", uri).ok()
    return uri


def meta(disk: Path) -> str:
    return f"sqlite:///{disk}/metadata.db"


def fill(disk: Path) -> None:
    with (disk / "fill").open("wb", buffering=0) as file:
        for size in (64 * 1024, 4096, 512, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass


def mount_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


@pytest.mark.parametrize(("spoil", "why"), [(fill, FULL), (mount_read_only, READ_ONLY)])
@pytest.mark.parametrize("directory", ["new", "used"])
def test_a_bookie_names_its_directory_and_what_to_do(
    disk: Path, elsewhere: str, spoil: object, why: str, directory: str
) -> None:
    """The error once said "No space left on device" without a path."""
    assert callable(spoil)
    spoil(disk)
    start = ("bookie", "start", "--dir", str(disk / directory), "--port", "0")
    done = Quire(elsewhere)(*start)
    assert done.status == 1
    error = done.err.splitlines()[-1]
    assert error.startswith("error: ")
    assert str(disk / directory) in error
    assert why in error
    assert "[Errno" not in error
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("spoil", "why"), [(fill, FULL), (mount_read_only, READ_ONLY)])
def test_a_local_cluster_names_its_directory_and_what_to_do(
    disk: Path, spoil: object, why: str
) -> None:
    """The cluster once retried for a minute if the disk was full."""
    assert callable(spoil)
    spoil(disk)
    Quire()("local", "--dir", str(disk / "local"), "--no-ui").fails(1, str(disk / "local"), why)


@pytest.mark.parametrize("command", ["http", "ui"])
def test_an_http_server_names_the_full_disk_of_the_metadata(disk: Path, command: str) -> None:
    fill(disk)
    Quire(meta(disk))(command, "--http", "127.0.0.1:0").fails(
        1, f"the disk of the metadata file is full ({disk}/metadata.db: 0 B of 2.1 MB free)"
    )


@pytest.mark.parametrize("command", ["http", "ui"])
def test_an_http_server_names_the_read_only_file_system(disk: Path, command: str) -> None:
    """The error once advised to check the permissions of the file."""
    mount_read_only(disk)
    Quire(meta(disk))(command, "--http", "127.0.0.1:0").fails(
        1, f"the metadata file {disk}/metadata.db cannot be opened for writing: {READ_ONLY}"
    )


def test_a_new_metadata_file_on_a_read_only_file_system_is_refused(disk: Path) -> None:
    mount_read_only(disk)
    new = f"sqlite:///{disk}/new.db"
    Quire()("cluster", "init", "--metadata", new).fails(1, f"{disk}/new.db", READ_ONLY)
