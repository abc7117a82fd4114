"""The locks that keep two jobs of one kind from working on one stream at the same time.

A lock is an ephemeral node, so the lock of a job that was killed ends with its session.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from quire._runtime.tasks import TaskSet
from quire.blocking.background import call
from quire.client import Client
from quire.errors import StreamLockedError
from quire.streams.write.lock import StreamLock

WAIT_S = 30.0
"""Seconds to wait for another job on the same stream.

The session of a job that was killed ends within this time.
"""


async def take_lock(
    client: Client, path: str, name: str, tasks: TaskSet, wait_s: float, doing: str, undone: str
) -> StreamLock:
    """Take the lock of a stream.

    Args:
        client: The client of the cluster.
        path: The path below which the locks of this kind of job are. It is created.
        name: The name of the stream.
        tasks: The tasks of the lock.
        wait_s: The number of seconds to wait for another job.
        doing: What the other job does, for the error.
        undone: The sentence of the error that says what this job has not done.

    Returns:
        The lock. Its `release` ends it.

    Raises:
        StreamLockedError: Another job still held the lock after `wait_s` seconds.
    """
    path = f"{path}/{quote(name, safe='')}"
    await client.metadata.tree.make_path(path)
    lock = StreamLock(client.metadata.tree, path, tasks)
    try:
        await lock.acquire(wait_s)
    except StreamLockedError:
        raise StreamLockedError(
            f"another job is {doing}, and did not end within {wait_s:g} s. {undone}",
            remedy="Wait for that job. If it was killed, its lock is released when its session in "
            "the metadata store expires",
        ) from None
    return lock


@contextmanager
def locked(
    client: Client, path: str, name: str, wait_s: float, doing: str, undone: str
) -> Iterator[None]:
    """Hold the lock of a stream, as `take_lock` takes it, while the context is entered."""
    tasks = TaskSet()

    async def take() -> StreamLock:
        return await take_lock(client, path, name, tasks, wait_s, doing, undone)

    try:
        lock = call(take())
        try:
            yield
        finally:
            call(lock.release())
    finally:
        call(tasks.close())
