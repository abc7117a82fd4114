"""A recorder of the functions of Quire that are called, in the order of their first calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

import quire

SOURCE = Path(quire.__file__).parent
Function = tuple[str, str]
"""A function: the path of its file below the package, and its qualified name."""


class CallTrace:
    """A recorder of calls, in the thread that enters it and in threads that start meanwhile.

    A thread that is already running takes part once it has called `follow_this_thread`.
    """

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()
        self._calls: list[Function] = []
        self._recording = False
        self._root = f"{SOURCE}/"

    def __enter__(self) -> Self:
        threading.setprofile(self._on_event)
        self.follow_this_thread()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recording = False
        sys.setprofile(None)
        threading.setprofile(None)

    def follow_this_thread(self) -> None:
        """Record the calls of the thread that calls this."""
        sys.setprofile(self._on_event)

    @contextmanager
    def recorded(self) -> Iterator[list[Function]]:
        """Record what is called inside of the block; the list is complete when the block ends."""
        self._seen.clear()
        calls: list[Function] = []
        self._calls = calls
        self._recording = True
        try:
            yield calls
        finally:
            self._recording = False

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not self._recording or event != "call" or code in self._seen:
            return
        self._seen.add(code)
        if code.co_filename.startswith(self._root):
            self._calls.append((code.co_filename[len(self._root) :], code.co_qualname))
