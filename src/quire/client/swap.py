"""The loop around a compare-and-swap whose outcome the store may not tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quire.errors import (
    KeyExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    VersionConflictError,
)

T = TypeVar("T")

UPDATE_ATTEMPTS_MAX = 100
"""Of one change; each failure means that somebody else succeeded."""
UNKNOWN_ATTEMPTS_MAX = 6
"""Of one change whose outcome the store does not tell."""
UNKNOWN_DELAY_S = 0.1
"""Before the second of these; doubled each time."""


async def swap(what: str, attempt: Callable[[], Awaitable[T]], *, ask_again: bool = False) -> T:
    """Repeat `attempt`, which reads a value, decides and writes, until no other change came between
    its read and its write.

    `ask_again`: also while the store does not tell what became of a write. Then `attempt` must know
    by the content that it succeeded before.
    """
    unknown = 0
    for _ in range(UPDATE_ATTEMPTS_MAX):
        try:
            return await attempt()
        except (VersionConflictError, KeyExistsError, NoSuchKeyError):
            continue
        except MetadataUnavailableError:
            unknown += 1
            if not ask_again or unknown == UNKNOWN_ATTEMPTS_MAX:
                raise
            await asyncio.sleep(UNKNOWN_DELAY_S * 2 ** (unknown - 1))
    raise too_many_conflicts(what)


def too_many_conflicts(what: str) -> MetadataError:
    return MetadataError(
        f"{what}: {UPDATE_ATTEMPTS_MAX} attempts in a row met a change by others",
        remedy="Let fewer writers change it at the same time",
    )
