"""Repetition of a compare-and-swap until it succeeds, even if the store reports no outcome."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire._runtime.retry import Backoff, Retry
from quire.errors import (
    KeyExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    VersionConflictError,
)

T = TypeVar("T")

UPDATE_ATTEMPTS_MAX = 100
"""The largest number of attempts at one change. Each failed attempt means that another client
changed the value."""
UNKNOWN_ATTEMPTS_MAX = 6
"""The number of attempts with an unknown outcome after which `swap` gives up."""
UNKNOWN_BACKOFF = Backoff(0.1)
"""The pauses between attempts whose outcome is unknown."""


async def swap(
    what: str,
    attempt: Callable[[], Awaitable[T]],
    rng: random.Random,
    *,
    ask_again: bool = False,
) -> T:
    """Repeat `attempt`, which reads a value, decides and writes, until no other change interferes.

    Args:
        what: The name of the value that is changed, for messages.
        attempt: One attempt. It raises VersionConflictError, KeyExistsError or NoSuchKeyError if
            another change came between its read and its write.
        rng: The source of the jitter of the pauses.
        ask_again: Whether to repeat an attempt whose outcome the store does not report. `attempt`
            must then recognise from the stored value that it succeeded before.

    Returns:
        The result of the attempt that succeeded.

    Raises:
        MetadataUnavailableError: The store did not report the outcome, which is unknown. With
            `ask_again` this is raised after `UNKNOWN_ATTEMPTS_MAX` such attempts. Without it, this
            is also raised if the value was changed again after a write that may have been done.
        MetadataError: Another change interfered with each of `UPDATE_ATTEMPTS_MAX` attempts.
        QuireError: The other errors of `attempt`.
    """
    unknown = Retry(UNKNOWN_BACKOFF, rng, attempts=UNKNOWN_ATTEMPTS_MAX)
    for _ in range(UPDATE_ATTEMPTS_MAX):
        try:
            return await attempt()
        except (VersionConflictError, KeyExistsError, NoSuchKeyError) as error:
            if not error.outcome_known and not ask_again:
                raise _in_doubt(what) from error
        except MetadataUnavailableError:
            if not ask_again or not await unknown.pause():
                raise
    raise too_many_conflicts(what)


def _in_doubt(what: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"it is unknown whether {what} was changed: the answer of the metadata store was lost, and "
        "another client has changed it since",
        remedy="Read the present value before you try again",
    )


def too_many_conflicts(what: str, done: str = "changed") -> MetadataError:
    return MetadataError(
        f"{what} was not {done}, because other clients changed it during each of "
        f"{UPDATE_ATTEMPTS_MAX} attempts",
        remedy="Try again, and let fewer clients change it at the same time",
    )
