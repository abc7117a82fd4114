"""The identity of a directory, and files that are replaced as a whole."""

from __future__ import annotations

import random

import pytest

from quire.errors import StorageError
from quire.storage.directory import (
    IDENTITY_NAME,
    Identity,
    ensure_directory,
    mark_log_begun,
    read_identity,
    read_small_file,
    remove_small_file,
    write_small_file,
)
from quire_simulator.machine.disk import PowerLossError
from tests.support.storage.storage import sim_disk


def test_an_empty_directory_is_formatted_once() -> None:
    disk = sim_disk()
    disk.create("LOCK")
    assert read_identity(disk) is None
    made = ensure_directory(disk, random.Random(1).randbytes)
    assert ensure_directory(disk, random.Random(2).randbytes) == made
    disk.crash()
    assert read_identity(disk) == made
    assert len(made.directory_id) == 16
    assert not made.log_begun
    begun = mark_log_begun(disk, made)
    assert begun.log_begun
    assert read_identity(disk) == begun == mark_log_begun(disk, begun)


@pytest.mark.parametrize("name", ["holiday.jpg", "current/VERSION", "log/0000000000000001.seg"])
def test_a_directory_with_foreign_files_is_refused(name: str) -> None:
    disk = sim_disk()
    if "/" in name:
        disk.make_directory(name.partition("/")[0])
    disk.create(name)
    with pytest.raises(StorageError, match="is not empty"):
        ensure_directory(disk, random.Random(1).randbytes)
    assert read_identity(disk) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "format: 1\ndirectory: zz\nlog: none\n",
        "format: 1\n",
        "\xff",
        # It must not pass for a directory whose log was never begun.
        "format: 1\ndirectory: " + "00" * 16 + "\nlof: begun\n",
        "format: 1\ndirectory: " + "00" * 16 + "\nlog: begum\n",
    ],
)
def test_an_identity_that_cannot_be_decoded_is_refused(text: str) -> None:
    disk = sim_disk()
    write_small_file(disk, IDENTITY_NAME, text.encode("latin-1"))
    with pytest.raises(StorageError, match="current/DIRECTORY is damaged"):
        ensure_directory(disk, random.Random(1).randbytes)


def test_an_identity_is_stored_as_readable_text() -> None:
    text = Identity(bytes(range(16)), True).encode().decode()
    assert text == "format: 1\ndirectory: 000102030405060708090a0b0c0d0e0f\nlog: begun\n"


def test_a_small_file_has_its_old_or_new_contents_after_a_crash() -> None:
    seen = set()
    for seed in range(40):
        disk = sim_disk(seed)
        disk.make_directory("d")
        write_small_file(disk, "d/f", b"old")
        disk.crash_after(1 + seed % 8, lambda: None)
        finished = False
        try:
            write_small_file(disk, "d/f", b"new, and longer")
            finished = True
        except PowerLossError:
            pass
        disk.kill()
        found = read_small_file(disk, "d/f")
        assert found in (b"old", b"new, and longer")
        assert found == b"new, and longer" or not finished
        seen.add(found)
        write_small_file(disk, "d/f", b"third")
        assert read_small_file(disk, "d/f") == b"third"
    assert seen == {b"old", b"new, and longer"}


def test_removing_a_small_file_is_durable() -> None:
    disk = sim_disk()
    write_small_file(disk, "f", b"x")
    remove_small_file(disk, "f")
    remove_small_file(disk, "f")
    disk.crash()
    assert read_small_file(disk, "f") is None


def test_a_small_file_over_the_size_limit_is_refused() -> None:
    disk = sim_disk()
    file = disk.create("f")
    file.truncate(2 << 20)
    with pytest.raises(StorageError, match="a bookie's file has at most"):
        read_small_file(disk, "f")
