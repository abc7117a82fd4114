"""Jobs that run, wherever they do: each says so itself, in a node of its own that goes with its
session, and how far it is, every few seconds. What nobody can read, or an earlier Quire began, is
not known here; a job does its work all the same when it cannot say so.
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
from quire.errors import KeyExistsError, NoSuchKeyError, QuireError
from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create, Delete, Put
from quire.metadata.uri import VALUES_ROOT, Driver, parse_uri
from quire.replication.marks.pauses import KINDS

SAY_INTERVAL_S = 5.0
"""Between two times that a job says how far it is."""
LEAVE_TIMEOUT_S = 2.0
"""A job that has ended waits so long for the store to forget it; else its session does."""
RUNNING_MAX = 100
"""That are told of."""
TEXT_MAX = 200
"""Characters of a text."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How far a job is."""

    step: str = ""
    """What it is at; with how much of it, where no ledgers are counted."""
    ledgers: int = 0
    ledgers_done: int = 0
    bytes: int = 0
    bytes_done: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True)
class RunningJob:
    """What a job said of itself."""

    kind: str
    target: str
    by: str
    """The process."""
    started_ms: int
    said_ms: int
    """When it said how far it is, by the calendar of its machine."""
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
    """Those that say so, the first `RUNNING_MAX` by name. MetadataError. Cancel-safe."""
    root = _root(store.uri)
    try:
        names = await store.tree.children(root)
    except NoSuchKeyError:
        return []

    async def read(name: str) -> RunningJob | None:
        try:
            return _decoded((await store.tree.read(f"{root}/{name}")).value)
        except NoSuchKeyError:
            return None  # it has ended since

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
    """While this is open, the job is among those that run. Never raises by itself."""
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
            pass  # it goes with the session


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
        """Until it is cancelled. A session that was lost has taken the node along: it is made
        again."""
        while True:
            far = self._far()
            try:
                if self._said is None or not await self._put(far):
                    await self._make(far)
                self._said = far
            except QuireError:
                pass  # tried again
            await asyncio.sleep(SAY_INTERVAL_S)

    async def _put(self, far: JobStatus) -> bool:
        """False: there is no node."""
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
            # An answer was lost, or it is that of a session of ours that has ended, and goes soon.
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
    """None: it makes no sense to this version."""
    try:
        found = json.loads(value)
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
    """Beside the values of ours."""
    where = parse_uri(uri)
    root = where.root if where.driver is Driver.ZOOKEEPER else ""
    return f"{VALUES_ROOT}{root}/jobs/running"
