"""Clients that a program forgets to close.

A client that `connect` made is closed, with a ResourceWarning, when its event loop cancels its
tasks at the end, as `asyncio.run` does. If no event loop ends this way, as in the blocking API, the
warning is issued when the process ends.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Coroutine
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from quire._runtime.names.caller_warnings import CallerLine, caller_line, warn_caller
from quire.errors import QuireError
from quire.metadata.interface import MetadataStore

REST_S = 86_400.0
"""Seconds for which the background task of `watch` sleeps at a time. The pending timer makes the
event loop keep the task, and with it the client, alive."""


class Closable(Protocol):
    """The attributes and methods of a client that this module uses."""

    metadata: MetadataStore

    @property
    def closed(self) -> bool: ...

    async def close(self) -> None: ...


_open: WeakKeyDictionary[Closable, CallerLine | None] = WeakKeyDictionary()
"""The clients to warn about if they are never closed. The value is the line of the program that
connected the client, or None if it is not known."""


def watch(client: Closable) -> Coroutine[Any, Any, None]:
    """Register a client, and return a coroutine that closes it if the program forgets to.

    Start the coroutine as a background task of the client. When the event loop cancels it, the
    coroutine warns if the client is still open, and closes it. The warning names the line of the
    program that is calling Quire now, so call this function while the program connects.
    """
    _open[client] = caller_line()
    return _close_at_the_end(client)


async def _close_at_the_end(client: Closable) -> None:
    """Wait until this task is cancelled. Then warn if the client is still open, and close it."""
    try:
        while True:
            await asyncio.sleep(REST_S)
    finally:
        _warn_if_open(client)
        try:
            await client.close()
        except QuireError:
            pass  # nobody waits for this


def _warn_if_open(client: Closable) -> None:
    at = _open.pop(client, None)
    if not client.closed:
        warn_caller(
            f"this client of {client.metadata.uri} was never closed. Enter it with `async with` "
            "(`with` in quire.blocking), or call its `close`",
            ResourceWarning,
            at,
        )


def _warn_of_all() -> None:
    for client in list(_open):
        _warn_if_open(client)


atexit.register(_warn_of_all)
os.register_at_fork(after_in_child=_open.clear)
