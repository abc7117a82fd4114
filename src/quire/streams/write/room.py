"""How much may be appended and not acknowledged: of one writer, and of all writers together."""

from __future__ import annotations

import asyncio


class Room:
    """Bytes in use under a limit. More than the limit is used when something large comes: who asks
    waits before, not for its own size."""

    def __init__(self, limit_bytes: int, outer: Room | None = None) -> None:
        """What is used here is used in `outer` as well."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._outer = outer
        self._free = asyncio.Event()
        self._free.set()

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        if self.used_bytes >= self.limit_bytes:
            self._free.clear()
        if self._outer is not None:
            self._outer.take(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self.used_bytes < self.limit_bytes:
            self._free.set()
        if self._outer is not None:
            self._outer.give_back(size_bytes)

    @property
    def full(self) -> bool:
        return not self._free.is_set() or (self._outer is not None and self._outer.full)

    async def wait(self) -> None:
        """Until there is room, here and in `outer`. Cancel-safe."""
        while self.full:
            await self._free.wait()
            if self._outer is not None:
                await self._outer.wait()
