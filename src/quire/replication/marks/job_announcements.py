"""The running jobs of a cluster, on all machines.

Each job announces itself in a node of its own, which disappears with its session, and updates its
progress every few seconds. Jobs of earlier versions of Quire do not announce themselves. A job that
cannot announce itself does its work all the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import quote

from quire._runtime.tasks import TaskSet, each
from quire._runtime.units import plural
from quire.codec.metadata.stored_json import stored_json
from quire.errors import KeyExistsError, NoSuchKeyError, QuireError
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create, Delete, Put
from quire.metadata.uri import VALUES_ROOT, Driver, parse_uri
from quire.replication.marks.pauses import KINDS

SAY_INTERVAL_S = 5.0
"""Seconds between two updates of a job's progress."""
LEAVE_TIMEOUT_S = 2.0
"""Seconds that a job which has ended waits for its announcement to be deleted. Otherwise the
announcement disappears with the session."""
RUNNING_MAX = 100
"""The largest number of jobs that are listed."""
TEXT_MAX = 200
"""The largest number of characters of a text in an announcement. The rest is cut off."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The progress of a job."""

    step: str = ""
    """The current step in words. If the step counts no ledgers, the words include its progress."""
    ledgers: int = 0
    ledgers_done: int = 0
    bytes: int = 0
    bytes_done: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The announcement of a job."""

    kind: str
    target: str
    by: str
    """The name of the process that runs the job."""
    started_ms: int
    said_ms: int
    """When the job last updated its progress, in milliseconds since 1970 by the clock of the job's
    machine."""
    far: JobStatus

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, **found.pop("far"), "pausable": self.kind in KINDS}

    def sentence(self) -> str:
        far = self.far
        ledgers = f"{far.ledgers_done} of {far.ledgers}" if far.ledgers else f"{far.ledgers_done}"
        noun = plural("ledger", far.ledgers or far.ledgers_done)
        counted = f"{ledgers} {noun}" if far.ledgers or far.ledgers_done else ""
        size = f"{far.bytes_done / 1e6:,.1f} of {far.bytes / 1e6:,.1f} MB" if far.bytes else ""
        parts = [far.step, counted, size, "paused" if far.paused else ""]
        said = ", ".join(filter(None, parts)) or "begins"
        return f"{self.kind} {self.target}, by {self.by}: {said}"


async def running_jobs(store: MetadataStore) -> list[RunningJob]:
    """Return the jobs that announce themselves, at most `RUNNING_MAX`, sorted by kind and target.

    Announcements that this version cannot decode are left out. Raises MetadataError. Cancel-safe.
    """
    root = _root(store.uri)
    try:
        names = await store.tree.children(root)
    except NoSuchKeyError:
        return []

    async def read(name: str) -> RunningJob | None:
        try:
            return _decoded((await store.tree.read(f"{root}/{name}")).value)
        except NoSuchKeyError:
            return None  # the job has ended since

    found = await each(names[:RUNNING_MAX], read)
    return [one for one in found if one is not None]


@asynccontextmanager
async def announced(
    store: MetadataStore,
    kind: str,
    target: str,
    by: str,
    now_ms: Callable[[], int],
    far: Callable[[], JobStatus],
) -> AsyncIterator[None]:
    """Announce a job during the context, with the progress that `far` returns every few seconds.

    `kind` and `target` say which job it is, and `by` is the name of this process. `now_ms` returns
    the Unix time in milliseconds. This never raises an error of its own.
    """
    one = _Announcement(store, kind, target, by, now_ms, far)
    tasks = TaskSet()
    tasks.start(one.say())
    try:
        yield
    finally:
        await tasks.close()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await one.leave()
        except (QuireError, TimeoutError):
            pass  # the announcement disappears with the session


class _Announcement:
    def __init__(
        self,
        store: MetadataStore,
        kind: str,
        target: str,
        by: str,
        now_ms: Callable[[], int],
        far: Callable[[], JobStatus],
    ) -> None:
        self._tree = store.tree
        self._now_ms = now_ms
        self._far = far
        self._kind, self._target, self._by = kind, target[:TEXT_MAX], by[:TEXT_MAX]
        self._started_ms = now_ms()
        name = quote(f"{kind} {self._target} {self._by} {self._started_ms}", safe="")
        self._root = _root(store.uri)
        self._path = f"{self._root}/{name}"
        self._said: JobStatus | None = None

    async def say(self) -> None:
        """Create the announcement, and update it every `SAY_INTERVAL_S` until cancelled.

        If the session was lost, the node is gone, and is created again.
        """
        while True:
            far = self._far()
            try:
                if self._said is None or not await self._put(far):
                    await self._make(far)
                self._said = far
            except QuireError:
                pass  # retried after the interval
            await asyncio.sleep(SAY_INTERVAL_S)

    async def _put(self, far: JobStatus) -> bool:
        """Update the node. Return False if it does not exist."""
        if far == self._said:
            return await self._tree.exists(self._path)
        try:
            await self._tree.commit(Put(self._path, self._value(far)))
        except NoSuchKeyError:
            return False
        return True

    async def _make(self, far: JobStatus) -> None:
        value = self._value(far)
        await self._tree.make_path(self._root)
        try:
            await self._tree.commit(Create(self._path, value, ephemeral=True))
        except KeyExistsError:
            # The answer to an earlier call was lost, or the node is of an earlier session of this
            # process and disappears soon.
            await self._tree.commit(Put(self._path, value))

    async def leave(self) -> None:
        try:
            await self._tree.commit(Delete(self._path))
        except NoSuchKeyError:
            pass

    def _value(self, far: JobStatus) -> bytes:
        found = asdict(far) | {"step": far.step[:TEXT_MAX]}
        names = {"kind": self._kind, "target": self._target, "by": self._by}
        times = {"started_ms": self._started_ms, "said_ms": self._now_ms()}
        return json.dumps({**names, **times, "far": found}).encode()


def _decoded(value: bytes) -> RunningJob | None:
    """Decode an announcement. Return None if this version does not understand it."""
    try:
        found = stored_json(value)
        known = {one.name for one in fields(JobStatus)}
        far = JobStatus(**{name: each for name, each in found.pop("far").items() if name in known})
        names = (found[name] for name in ("kind", "target", "by", "started_ms", "said_ms"))
        kind, target, by, started_ms, said_ms = names
        whole = (started_ms, said_ms, far.ledgers, far.ledgers_done, far.bytes, far.bytes_done)
        texts = (kind, target, by, far.step)
        if not all(type(one) is int for one in whole) or not all(type(o) is str for o in texts):
            return None
        return RunningJob(kind, target, by, started_ms, said_ms, far)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _root(uri: str) -> str:
    """Return the path of the announcements, next to Quire's other values."""
    where = parse_uri(uri)
    root = where.root if where.driver is Driver.ZOOKEEPER else ""
    return f"{VALUES_ROOT}{root}/jobs/running"
