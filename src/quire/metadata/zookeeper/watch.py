"""Watches in ZooKeeper that survive lost connections.

ZooKeeper's own watches fire once and are lost with the connection. A watch here is a task with a
loop: it reads and sets ZooKeeper's watches, delivers what it read, and waits until one of them
fires or the connection is replaced. No change is missed, because a change during the read causes
another read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from quire._runtime.retry import Backoff, Retry
from quire._runtime.tasks import TaskSet
from quire.errors import ClientClosedError, MetadataError
from quire.metadata.common import WatchHandle, logger
from quire.metadata.zookeeper.kazoo_adapter import LostConnectionError, NodeError, Notify
from quire.metadata.zookeeper.root import ZooKeeperRoot

T = TypeVar("T")

BACKOFF = Backoff(1.0, 1.0)
"""The pause after an error, such as a cluster that is not initialised yet."""


class ZooKeeperWatch(WatchHandle, Generic[T]):
    """A watch that calls `deliver` with each value that `look` returns.

    `look` reads a value, and sets ZooKeeper watches on what it read. These call the function that
    `look` receives. `deliver` returns whether the watch continues.
    """

    def __init__(
        self,
        root: ZooKeeperRoot,
        tasks: TaskSet,
        look: Callable[[Notify], Awaitable[T]],
        deliver: Callable[[T], bool],
    ) -> None:
        super().__init__(self._end)
        self._root = root
        self._look = look
        self._deliver = deliver
        self._dirty = asyncio.Event()
        self._forget = root.zk.on_connected(self._dirty.set)
        self._task = tasks.start(self._run())

    def _end(self) -> None:
        self._forget()
        self._root.zk.forget(self._dirty.set)
        if self._task is not asyncio.current_task():
            self._task.cancel()

    async def _run(self) -> None:
        failing = False
        retry = Retry(BACKOFF, self._root.rng)
        while not self.closed:
            self._dirty.clear()
            try:
                await self._root.zk.wait_connected()
                found = await self._look(self._dirty.set)
                failing = False
            except LostConnectionError:
                await asyncio.sleep(0)
                continue
            except ClientClosedError:
                return
            except (MetadataError, NodeError) as error:
                if not failing:
                    logger.warning("a watch cannot read the metadata and tries again: %s", error)
                failing = True
                await retry.pause()
                continue
            # Called from the event loop, so that an error in the callback does not end the watch.
            asyncio.get_running_loop().call_soon(self._deliver_unless_closed, found)
            await self._dirty.wait()

    def _deliver_unless_closed(self, found: T) -> None:
        if not self.closed and not self._deliver(found):
            self.close()
