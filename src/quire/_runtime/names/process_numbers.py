"""Numbers that no two calls in one process share.

With the id of a session, such a number identifies one lock, candidate or stream among all that this
session ever made, also if several of them live in one process.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_numbers: ContextVar[Iterator[int]] = ContextVar("numbers", default=itertools.count(1))  # noqa: B039 - all contexts share it


def process_number() -> int:
    """Return a number that no earlier call in this process returned, counting from 1."""
    return next(_numbers.get())


@contextmanager
def numbers_from_one() -> Generator[None]:
    """Let the calls in this context count from 1 again, for a simulated cluster of their own.

    A run of the simulator then has the same names whatever ran before it in the process.
    """
    token = _numbers.set(itertools.count(1))
    try:
        yield
    finally:
        _numbers.reset(token)
