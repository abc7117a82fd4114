"""The exit status of a bookie tells its supervisor what to do."""

from __future__ import annotations

import asyncio

import pytest

from quire.bookie.main import EXIT_DISK_FAILED, _until_stopped, log_event
from quire.errors import CookieError, KeyExistsError, QuireError, StorageError


class Failing:
    """The part of a bookie that is asked."""

    def __init__(self, why: QuireError | None, at_stop: BaseException | None = None) -> None:
        self.failed: asyncio.Future[QuireError] = asyncio.get_running_loop().create_future()
        if why is not None:
            self.failed.set_result(why)
        self._at_stop = at_stop

    async def stop(self) -> None:
        if self._at_stop is not None:
            raise self._at_stop


@pytest.mark.parametrize(
    ("why", "status"),
    [
        (StorageError("fdatasync failed"), EXIT_DISK_FAILED),
        (KeyExistsError("another has its id"), 1),
        (CookieError("it was decommissioned"), 0),
        (None, 0),
    ],
)
async def test_the_exit_status_depends_on_the_failure(why: QuireError | None, status: int) -> None:
    stopping = asyncio.Event()
    if why is None:
        stopping.set()
    bookie = Failing(why)
    assert await _until_stopped(bookie, stopping, 1.0, log_event) == status  # type: ignore[arg-type]


async def test_a_failed_disk_decides_the_exit_status_even_if_the_stop_fails() -> None:
    error = StorageError("fdatasync failed")
    bookie = Failing(error, at_stop=error)
    status = await _until_stopped(bookie, asyncio.Event(), 1.0, log_event)  # type: ignore[arg-type]
    assert status == EXIT_DISK_FAILED
