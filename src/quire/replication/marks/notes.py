"""Notes that auditors and workers leave in the metadata store for people.

They say why the last repair of a ledger failed, what a pass skipped, what a check of placement
found, and which lost bookie the auditor waits for.

No decision about data depends on a note. They are values of Quire, outside of what Apache's tools
read, because Apache's text format of a mark has no field for them. The failure of a ledger is
deleted with its mark; where a Java worker repaired the ledger, it stays for a while and is not
shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from quire.errors import KeyExistsError, NoSuchKeyError, VersionConflictError
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.unreadable import Unread, named_ledgers

MISPLACED_TOLD_MAX = 20
"""Of what a check of placement has found."""
_KEY = ("autorecovery", "failures")
_PLACEMENT = ("autorecovery", "placement")
_UNREADABLE = ("autorecovery", "unreadable")
_WAITING = ("autorecovery", "waiting")
_ATTEMPTS = 5
"""Of noting one failure, against others that note theirs."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    """Why a worker gave a ledger up, for now."""

    reason: str
    at_ms: int
    attempts: int
    """In a row."""
    next_attempt_ms: int
    by: str
    """The worker."""


@dataclass(frozen=True, slots=True)
class PlacementCheck:
    """What the last check of placement has found."""

    at_ms: int
    ledgers: int
    """That were looked at."""
    misplaced: int
    """Those that lie otherwise than the policy of the auditor wants."""
    first: tuple[int, ...]
    """Some of these."""


@dataclass(frozen=True, slots=True)
class AwaitedBookie:
    """A lost bookie that the auditor gives time to come back."""

    bookie: str
    since_ms: int
    """When it was missed."""
    until_ms: int
    """From then on its ledgers are copied."""


@dataclass(frozen=True, slots=True)
class UnreadableLedgers:
    """The ledgers that a pass of the auditor skipped."""

    at_ms: int
    """The time at which the pass ended."""
    ledgers: int
    first: tuple[tuple[int, str], ...]
    """Some of the ledgers, each with the reason."""

    def sentence(self) -> str:
        """Return the number of ledgers, the first of them, and the first reason."""
        why = self.first[0][1] if self.first else "no reason is noted"
        return f"{named_ledgers(dict(self.first), self.ledgers)}: {why}"


Key = tuple[str, ...]
Note = LastFailure | PlacementCheck | UnreadableLedgers | AwaitedBookie
N = TypeVar("N", LastFailure, PlacementCheck, UnreadableLedgers, AwaitedBookie)


async def _read(store: MetadataStore, key: Key, make: Callable[..., N | None]) -> N | None:
    """None: nothing is noted there, or nothing that can be understood."""
    try:
        return make(**json.loads((await store.read_value(key)).value))
    except (NoSuchKeyError, ValueError, TypeError):
        return None


async def _write(store: MetadataStore, key: Key, note: Note) -> None:
    value = json.dumps(asdict(note)).encode()
    for _ in range(_ATTEMPTS):
        version: int | None = None
        try:
            version = (await store.read_value(key)).version
        except NoSuchKeyError:
            pass
        try:
            await store.write_value(key, value, version)
            return
        except (KeyExistsError, NoSuchKeyError, VersionConflictError):
            continue


async def last_failure(store: MetadataStore, ledger_id: int) -> LastFailure | None:
    return await _read(store, (*_KEY, str(ledger_id)), LastFailure)


async def note_failure(store: MetadataStore, ledger_id: int, failure: LastFailure) -> None:
    """The last one counts. It is only told: no decision about data rests on it."""
    await _write(store, (*_KEY, str(ledger_id)), failure)


async def last_placement(store: MetadataStore) -> PlacementCheck | None:
    def made(first: list[int], **rest: Any) -> PlacementCheck:
        return PlacementCheck(first=tuple(first), **rest)

    return await _read(store, _PLACEMENT, made)


async def note_placement(store: MetadataStore, found: PlacementCheck) -> None:
    """The last one counts."""
    await _write(store, _PLACEMENT, found)


async def last_unreadable(store: MetadataStore) -> UnreadableLedgers | None:
    """Return the ledgers that the auditor's last pass skipped, or None if it skipped none."""

    def made(first: list[tuple[int, str]], **rest: Any) -> UnreadableLedgers:
        return UnreadableLedgers(first=tuple((ledger, why) for ledger, why in first), **rest)

    return await _read(store, _UNREADABLE, made)


async def note_unreadable(store: MetadataStore, unread: Unread, now_ms: int) -> None:
    """Store a note of the ledgers that a pass skipped. It replaces the last note, or removes it if
    none was skipped."""
    if not unread:
        await store.delete_value(_UNREADABLE)
        return
    found = UnreadableLedgers(now_ms, len(unread), tuple(unread.named.items()))
    await _write(store, _UNREADABLE, found)


async def last_waiting(store: MetadataStore, now_ms: int) -> AwaitedBookie | None:
    """None: no bookie is waited for any more, or none was."""

    def made(**note: Any) -> AwaitedBookie | None:
        found = AwaitedBookie(**note)
        return found if found.until_ms > now_ms else None

    return await _read(store, _WAITING, made)


async def note_waiting(store: MetadataStore, found: AwaitedBookie) -> None:
    """The last one counts, until it comes to its end by itself: nobody takes it back."""
    await _write(store, _WAITING, found)


async def forget_failure(store: MetadataStore, ledger_id: int) -> None:
    await store.delete_value((*_KEY, str(ledger_id)))


async def failing_ledgers(store: MetadataStore) -> list[int]:
    """Ledgers of which a failure is noted, marked or not."""
    return sorted(int(name) for name in await store.list_values(_KEY) if name.isdecimal())
