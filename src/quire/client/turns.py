"""What the writers of a client do at the end of a turn of the event loop, in one callback.

With thousands of ledgers that get an entry each, a callback for each costs as much as a fifth of
the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        """Each writer is here once at most: its bound is the number of open writers."""

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it when what runs now has come to its end, in the order of these requests. It sees
        the context of whoever asked first."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._end)
        self._waiting.append(call)

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - as the loop does: the others have their turn
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "sending what was appended in a turn failed", "exception": error}
                )
