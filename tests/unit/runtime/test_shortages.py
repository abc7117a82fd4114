"""What a process lacks, such as file descriptors, and what is said about it."""

from __future__ import annotations

import errno
import os
import resource
from typing import Any

import pytest

from quire._runtime.shortages import (
    CONNECTIONS_MIN,
    LEAST,
    connections_max,
    http_connections_max,
    limit,
    no_descriptor,
    none_left,
    raise_limit,
    reason_of,
    shortage,
    too_low,
)

WITHOUT_CLIENTS = 22
"""The number of descriptors of a bookie without clients."""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit of the process, as the functions see it."""
    found = [60, 100]
    monkeypatch.setattr(resource, "getrlimit", lambda what: tuple(found))

    def change(what: int, wanted: tuple[int, int]) -> None:
        found[:] = wanted

    monkeypatch.setattr(resource, "setrlimit", change)
    return found


def test_the_message_names_the_limit_and_how_to_raise_it(limits: list[int]) -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    assert shortage(error) == reason_of(error)
    assert shortage(error) == (
        "no file descriptor is left: the limit of file descriptors of this process (`ulimit -n`) "
        "is 60. Raise it: `ulimit -n 65536` in the shell before the start, or LimitNOFILE=65536 in "
        "the systemd unit"
    )
    assert "fs.file-max" in reason_of(OSError(errno.ENFILE, "File table overflow"))
    assert shortage(OSError(errno.EIO, "Input/output error")) == ""
    for full in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        assert no_descriptor(OSError(full, "as the system says it")) == ""
    assert reason_of(OSError(errno.ENOSPC, "")).startswith(
        "the disk is full. Free some space on it"
    )
    assert reason_of(OSError(errno.EROFS, "")).startswith("its file system is read-only. Mount it")
    assert reason_of(OSError(errno.EIO, "Input/output error")) == "Input/output error"
    assert reason_of(OSError("odd")) == "odd"


def test_the_limit_is_raised_as_far_as_permitted(limits: list[int]) -> None:
    assert raise_limit() == 100
    limits[:] = [resource.RLIM_INFINITY] * 2
    assert raise_limit() is None


def test_a_limit_that_is_too_low_is_reported(limits: list[int]) -> None:
    assert too_low() == ""
    limits[0] = LEAST
    assert too_low() == ""
    limits[0] = LEAST - 1
    assert too_low().startswith("the limit of file descriptors of this process (`ulimit -n`) is 31")


@pytest.mark.parametrize(
    ("descriptors", "most"),
    [(32, CONNECTIONS_MIN), (60, 16), (100, 20), (1_024, 768), (65_536, 4_096), (None, 4_096)],
)
def test_connections_leave_descriptors_to_files(descriptors: int | None, most: int) -> None:
    assert connections_max(4_096, descriptors) == most
    assert connections_max(10, descriptors) == 10


@pytest.mark.parametrize("descriptors", [60, 64, 100, 128, 200, 256, 384, 512, 1_024, 4_096])
def test_a_bookie_and_its_http_server_together_leave_descriptors_to_files(
    descriptors: int,
) -> None:
    """Each of them took what the limit had, so the log could not begin a segment."""
    taken = connections_max(4_096, descriptors) + http_connections_max(128, descriptors)
    assert WITHOUT_CLIENTS + taken + 12 <= descriptors


def test_a_lack_of_file_descriptors_is_detected_by_opening_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert none_left() == ""

    def refused(*how: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", refused)
    assert none_left().startswith("no file descriptor is left")
    assert limit() is not None
