"""Jobs that somebody has paused. It stands in the metadata store, so that whoever does the work
sees it within seconds, in whichever process, and keeps to it when it is started again.

A job stops between two ledgers, when nothing is locked or half done. What it is called by is its
kind and its target: `recover 10.0.0.1:3181`, `rebalance cluster`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from quire.codec.metadata.registration import check_bookie_id
from quire.errors import (
    KeyExistsError,
    MetadataError,
    NoSuchKeyError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.interface import MetadataStore

LOOK_INTERVAL_S = 2.0
"""Between two looks of a job whether it is paused."""
KINDS = ("recover", "decommission", "rebalance")
CLUSTER = "cluster"
"""The target of what is about all bookies."""
_KEY = ("jobs", "paused")


@dataclass(frozen=True, slots=True)
class Pause:
    kind: str
    target: str
    by: str
    """Who paused it."""
    at_ms: int


class Pauses:
    """Calls raise MetadataError. Cancel-safe."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def pause(self, one: Pause) -> bool:
        """False: it was paused already. UsageError for a kind of job, or a target, that there
        cannot be."""
        if one.kind not in KINDS:
            raise UsageError(f"there are no jobs {one.kind!r}: use one of {', '.join(KINDS)}")
        if one.kind != "rebalance":
            check_bookie_id(one.target)
        elif one.target != CLUSTER:
            raise UsageError(f"rebalance is about the whole {CLUSTER}, not about {one.target!r}")
        value = json.dumps(asdict(one)).encode()
        try:
            await self._store.write_value(_key(one.kind, one.target), value, None)
        except KeyExistsError:
            return False
        return True

    async def resume(self, kind: str, target: str) -> bool:
        """False: it was not paused."""
        key = _key(kind, target)
        try:
            await self._store.delete_value(key, (await self._store.read_value(key)).version)
        except (NoSuchKeyError, VersionConflictError):
            return False
        return True

    async def of(self, kind: str, target: str) -> Pause | None:
        """None: it is not paused."""
        try:
            found = await self._store.read_value(_key(kind, target))
        except NoSuchKeyError:
            return None
        return _decoded(found.value, kind, target)

    async def all(self) -> list[Pause]:
        found = []
        for name in await self._store.list_values(_KEY):
            kind, _, target = name.partition(" ")
            one = await self.of(kind, target)
            found += [one] if one is not None else []
        return found


def _key(kind: str, target: str) -> tuple[str, ...]:
    return (*_KEY, f"{kind} {target}")


def _decoded(value: bytes, kind: str, target: str) -> Pause:
    """What cannot be understood pauses all the same."""
    try:
        return Pause(**json.loads(value))
    except (ValueError, TypeError):
        return Pause(kind, target, "", 0)


class PauseGate:
    """Where a job waits while it is paused. `changed` is told when it begins and ends to wait."""

    def __init__(
        self,
        store: MetadataStore,
        kind: str,
        target: str,
        changed: Callable[[Pause | None], None] = lambda found: None,
    ) -> None:
        self._pauses = Pauses(store)
        self._kind = kind
        self._target = target
        self._changed = changed
        self._paused: Pause | None = None
        self._looked_s: float | None = None
        self._lock = asyncio.Lock()
        """Nobody goes by what is not known yet, as another part of the job is still asking."""

    async def passes(self) -> None:
        """Returns once the job may go on. Does not raise: a store that does not answer changes
        nothing. Cancel-safe."""
        while True:
            async with self._lock:
                await self._look()
            if self._paused is None:
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _look(self) -> None:
        """At most every `LOOK_INTERVAL_S`, by however many parts of the job."""
        now_s = asyncio.get_running_loop().time()
        if self._looked_s is not None and now_s - self._looked_s < LOOK_INTERVAL_S:
            return
        try:
            found = await self._pauses.of(self._kind, self._target)
        except MetadataError:
            found = self._paused
        self._looked_s = now_s  # whoever is cancelled before has not looked
        if found != self._paused:
            self._paused = found
            self._changed(found)
