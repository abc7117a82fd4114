"""An error of a maintenance job about damaged segments is not dropped."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.storage.background.job import JobContext
from quire.storage.background.quarantine import Quarantine
from quire.storage.background.quarantine_record import SegmentDamage
from quire.storage.segment.segment import LogSegment

RECORD = SegmentDamage(3, 0, (), False, "", 0, True, {}, False)


class _Jobs:
    """A queue whose jobs fail at once with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, work: Any, done: Any, *, urgent: bool = False) -> None:
        done(None, self.error)


def _checked(sealed: bool, error: Exception) -> list[Exception]:
    """Return the errors that a check of a damaged segment reports."""
    broken: list[Exception] = []
    segment = cast(
        "LogSegment", SimpleNamespace(number=3, parts={}, trailer=object() if sealed else None)
    )
    catalogue = SimpleNamespace(segments={3: segment}, ledgers={})
    none = cast(Any, None)
    context = JobContext(
        none, b"", cast(Any, catalogue), none, cast(Any, _Jobs(error)), none, none, none,
        lambda: 0, lambda: 0.0, broken.append,
    )  # fmt: skip
    quarantine = Quarantine(context)
    quarantine.records[3] = RECORD
    quarantine.tick()
    return broken


@pytest.mark.parametrize("sealed", [False, True])
def test_a_disk_that_fails_during_the_check_is_reported(sealed: bool) -> None:
    error = OSError(errno.EIO, "I/O error")
    assert _checked(sealed, error) == [error]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_transient_error_during_the_check_is_not_reported(sealed: bool) -> None:
    assert _checked(sealed, OSError(errno.EMFILE, "too many open files")) == []
