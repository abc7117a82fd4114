"""The pauses of jobs that copy replicas.

A pause is stored in the metadata store, so that the job notices it within seconds, on whichever
machine it runs, and observes it when it is started again. The job stops between two ledgers, when
nothing is locked or incomplete. A job is identified by its kind and its target, for example
`recover 10.0.0.1:3181` or `rebalance cluster`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from quire.codec.metadata.registration import check_bookie_id
from quire.codec.metadata.stored_json import stored_json
from quire.errors import (
    KeyExistsError,
    MetadataError,
    NoSuchKeyError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.interface import MetadataStore

LOOK_INTERVAL_S = 2.0
"""Seconds between two checks in which a job asks the metadata store whether it is paused."""
KINDS = ("recover", "decommission", "rebalance")
CLUSTER = "cluster"
"""The target of a job that applies to all bookies."""
_KEY = ("jobs", "paused")


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of one job."""

    kind: str
    target: str
    by: str
    """The name of the process that paused the job."""
    at_ms: int


class Pauses:
    """The paused jobs of a cluster. Calls raise MetadataError, and are cancel-safe."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def pause(self, one: Pause) -> bool:
        """Pause a job. Return False if it was paused already.

        Raises UsageError for an unknown kind of job or an invalid target, and MetadataError.
        """
        if one.kind not in KINDS:
            raise UsageError(
                f"{one.kind!r} is not a kind of job that can be paused: use one of "
                f"{', '.join(KINDS)}"
            )
        if one.kind != "rebalance":
            check_bookie_id(one.target)
        elif one.target != CLUSTER:
            raise UsageError(
                f"a rebalance can only be paused for the whole {CLUSTER!r}, not for {one.target!r}"
            )
        value = json.dumps(asdict(one)).encode()
        try:
            await self._store.write_value(_key(one.kind, one.target), value, None)
        except KeyExistsError:
            return False
        return True

    async def resume(self, kind: str, target: str) -> bool:
        """Resume a job. Return False if it was not paused.

        Raises VersionConflictError if another process has resumed and paused the job meanwhile.
        That later pause stays. Raises MetadataError if the store fails.
        """
        key = _key(kind, target)
        try:
            found = await self._store.read_value(key)
            await self._store.delete_value(key, found.version, known=found.value)
        except NoSuchKeyError:
            return False
        except VersionConflictError:
            now = await self.of(kind, target)
            if now is None:
                return False  # the other process has only resumed it
            raise VersionConflictError(
                f"{kind} {target} is still paused: {now.by or 'another process'} paused it again "
                "while it was to be resumed",
                remedy="Find out why, and then run the command again to resume it",
            ) from None
        return True

    async def of(self, kind: str, target: str) -> Pause | None:
        """Return the pause of a job, or None if the job is not paused.

        A pause that cannot be decoded counts, without the process and the time. Raises
        MetadataError.
        """
        try:
            found = await self._store.read_value(_key(kind, target))
        except NoSuchKeyError:
            return None
        return _decoded(found.value, kind, target)

    async def all(self) -> list[Pause]:
        """Return the pauses of all jobs. Raises MetadataError."""
        found = []
        for name in await self._store.list_values(_KEY):
            kind, _, target = name.partition(" ")
            one = await self.of(kind, target)
            found += [one] if one is not None else []
        return found


def _key(kind: str, target: str) -> tuple[str, ...]:
    return (*_KEY, f"{kind} {target}")


def _decoded(value: bytes, kind: str, target: str) -> Pause:
    """Decode a pause. A value that cannot be decoded pauses the job all the same."""
    unknown = Pause(kind, target, "", 0)
    try:
        found = Pause(**stored_json(value))
    except (ValueError, TypeError):
        return unknown
    texts = (found.kind, found.target, found.by)
    good = all(type(one) is str for one in texts) and type(found.at_ms) is int
    return found if good else unknown


class PauseGate:
    """The gate at which a job waits while it is paused.

    `changed` is called with the pause when the job begins to wait, and with None when it resumes.
    """

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
        """A lock that lets only one part of the job ask the store, while the others wait."""

    async def passes(self) -> None:
        """Wait while the job is paused.

        This does not raise: if the store does not answer, the last known state applies.
        Cancel-safe.
        """
        while True:
            async with self._lock:
                await self._look()
            if self._paused is None:
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _look(self) -> None:
        """Ask the store whether the job is paused, unless it was asked within `LOOK_INTERVAL_S`."""
        now_s = asyncio.get_running_loop().time()
        if self._looked_s is not None and now_s - self._looked_s < LOOK_INTERVAL_S:
            return
        try:
            found = await self._pauses.of(self._kind, self._target)
        except MetadataError:
            found = self._paused
        self._looked_s = now_s  # set last, so that a cancelled look does not count
        if found != self._paused:
            self._paused = found
            self._changed(found)
