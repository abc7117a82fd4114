"""Notes that auditors and workers leave in the metadata store for people.

They say why the last repair of a ledger failed, what was repaired lately, what a pass skipped, what
a check of placement found, and which lost bookie the auditor waits for.

No decision about data depends on a note. Notes are values of Quire that Apache's tools do not read,
because Apache's text format of a mark has no field for them. The note about a ledger's failure is
deleted with its mark. If a Java worker repaired the ledger, the note stays for a while, and is not
shown.

Every call raises MetadataUnavailableError if the metadata store does not answer. Calls may be
cancelled: a note that was being written is then old or new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from quire._runtime.units import counted, utc_text
from quire.codec.metadata.stored_json import stored_json
from quire.errors import KeyExistsError, NoSuchKeyError, VersionConflictError
from quire.metadata.interface import MetadataStore
from quire.metadata.ledgers.unreadable import Unread, named_ledgers

MISPLACED_TOLD_MAX = 20
"""The number of misplaced ledgers that the note of a placement check names."""
_KEY = ("autorecovery", "failures")
_PLACEMENT = ("autorecovery", "placement")
_UNREADABLE = ("autorecovery", "unreadable")
_WAITING = ("autorecovery", "waiting")
_REPAIRED = ("autorecovery", "repaired")
REPAIRED_KEPT_MS = 86_400_000
"""How long a note about repaired ledgers is shown, in milliseconds."""
REPAIRED_TOLD_MAX = 100
"""The largest number of notes about repaired ledgers that are read."""
_ATTEMPTS = 5
"""The number of attempts to write a note while other processes write theirs. After that, the note
is not written, and no error is raised."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The last failed attempt to repair a ledger."""

    reason: str
    at_ms: int
    attempts: int
    """The number of failed attempts in a row."""
    next_attempt_ms: int
    by: str
    """The name of the worker's process."""


@dataclass(frozen=True, slots=True)
class PlacementCheck:
    """The result of the last check of placement."""

    at_ms: int
    ledgers: int
    """The number of ledgers that were examined."""
    misplaced: int
    """The number of examined ledgers that violate the placement policy of the auditor."""
    first: tuple[int, ...]
    """Some of the misplaced ledgers."""


@dataclass(frozen=True, slots=True)
class AwaitedBookie:
    """A lost bookie that the auditor waits for."""

    bookie: str
    since_ms: int
    """When the bookie was found to be missing."""
    until_ms: int
    """When the auditor stops waiting, and the bookie's ledgers are copied."""


@dataclass(frozen=True, slots=True)
class UnreadableLedgers:
    """The ledgers that a pass of the auditor skipped."""

    at_ms: int
    """The time at which the pass ended."""
    ledgers: int
    first: tuple[tuple[int, str], ...]
    """Some of the ledgers, each with the reason."""

    def sentence(self) -> str:
        """Return the ledgers in words, such as `3 ledgers (7, 9, 12): REASON`.

        The reason is that of the first ledger.
        """
        why = self.first[0][1] if self.first else "the reason is not known"
        return f"{named_ledgers(dict(self.first), self.ledgers)}: {why}"


@dataclass(frozen=True, slots=True)
class RepairedLedgers:
    """The ledgers that a worker has repaired lately, one after the other."""

    by: str
    """The name of the worker's process."""
    since_ms: int
    """When the first of the ledgers was repaired."""
    at_ms: int
    """When the last of the ledgers was repaired."""
    ledgers: int
    """The number of ledgers that were repaired."""
    entries: int
    """The number of entries that were copied."""
    bytes: int
    """The number of payload bytes that were copied."""
    last: tuple[int, ...]
    """The ids of some of the ledgers, in the order of their repair, the last one at the end."""
    replicas: tuple[str, ...]
    """Some of the bookies that lacked entries, as far as the marks named them."""

    def sentence(self) -> str:
        """Return the repairs in words, with the worker that made them.

        For example, `3 ledgers (7, 9, 12) that lacked copies on b1, with 8 entries copied by w1,
        the last at TIME`.
        """
        named = ", ".join(map(str, self.last))
        others = "the last: " if self.ledgers > len(self.last) else ""
        where = f" that lacked copies on {', '.join(self.replicas)}" if self.replicas else ""
        return (
            f"{counted(self.ledgers, 'ledger')} ({others}{named}){where}, with "
            f"{counted(self.entries, 'entry')} copied by {self.by}, the last at "
            f"{utc_text(self.at_ms)}"
        )


Key = tuple[str, ...]
Note = LastFailure | PlacementCheck | UnreadableLedgers | AwaitedBookie | RepairedLedgers
N = TypeVar("N", LastFailure, PlacementCheck, UnreadableLedgers, AwaitedBookie, RepairedLedgers)


async def _read(store: MetadataStore, key: Key, make: Callable[..., N | None]) -> N | None:
    """Return a note, or None if there is none that can be decoded."""
    try:
        found = make(**stored_json((await store.read_value(key)).value))
    except (NoSuchKeyError, ValueError, TypeError):
        return None
    return found if found is None or _has_its_types(found) else None


def _has_its_types(note: Note) -> bool:
    """Return whether the numbers and texts of a note are numbers and texts.

    A damaged note, or one of a later version, may have other values. A number of more than 64 bits
    is no time and no count either, and cannot be converted to a float.
    """
    for one in fields(note):
        value: object = getattr(note, one.name)
        if one.type == "str" and type(value) is not str:
            return False
        if one.type == "int" and not (type(value) is int and -(2**63) <= value < 2**63):
            return False
    return True


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
    """Return the note about the last failed repair of a ledger.

    The result is None if there is no note that can be decoded. Raises MetadataError.
    """
    return await _read(store, (*_KEY, str(ledger_id)), LastFailure)


async def note_failure(store: MetadataStore, ledger_id: int, failure: LastFailure) -> None:
    """Store a note about a failed repair of a ledger, in place of an earlier one.

    If other processes keep changing the note, it is not stored, and no error is raised. Raises
    MetadataError if the store fails.
    """
    await _write(store, (*_KEY, str(ledger_id)), failure)


async def last_placement(store: MetadataStore) -> PlacementCheck | None:
    """Return the note about the last check of placement.

    The result is None if there is no note that can be decoded. Raises MetadataError.
    """

    def made(first: list[int], **rest: Any) -> PlacementCheck:
        return PlacementCheck(first=tuple(first), **rest)

    return await _read(store, _PLACEMENT, made)


async def note_placement(store: MetadataStore, found: PlacementCheck) -> None:
    """Store a note about a check of placement, in place of an earlier one.

    If other processes keep changing the note, it is not stored, and no error is raised. Raises
    MetadataError if the store fails.
    """
    await _write(store, _PLACEMENT, found)


async def last_unreadable(store: MetadataStore) -> UnreadableLedgers | None:
    """Return the note about the ledgers that the auditor's last pass skipped.

    The result is None if the pass skipped none, or if there is no note that can be decoded. Raises
    MetadataError.
    """

    def made(first: list[tuple[int, str]], **rest: Any) -> UnreadableLedgers:
        return UnreadableLedgers(first=tuple((ledger, why) for ledger, why in first), **rest)

    return await _read(store, _UNREADABLE, made)


async def note_unreadable(store: MetadataStore, unread: Unread, now_ms: int) -> None:
    """Store a note about the ledgers that a pass skipped, in place of an earlier one.

    `now_ms` is the Unix time in milliseconds. If no ledger was skipped, the earlier note is
    deleted. If other processes keep changing the note, it is not stored, and no error is raised.
    Raises MetadataError if the store fails.
    """
    if not unread:
        await store.delete_value(_UNREADABLE)
        return
    found = UnreadableLedgers(now_ms, len(unread), tuple(unread.named.items()))
    await _write(store, _UNREADABLE, found)


async def last_waiting(store: MetadataStore, now_ms: int) -> AwaitedBookie | None:
    """Return the note about the lost bookie that the auditor waits for.

    The result is None if there is no note that can be decoded, or if the wait ended before
    `now_ms`, the Unix time in milliseconds. Raises MetadataError.
    """

    def made(**note: Any) -> AwaitedBookie | None:
        found = AwaitedBookie(**note)
        return found if found.until_ms > now_ms else None  # TypeError if it is no number

    return await _read(store, _WAITING, made)


async def note_waiting(store: MetadataStore, found: AwaitedBookie) -> None:
    """Store a note about the bookie that the auditor waits for, in place of an earlier one.

    The note is valid until the end of the wait. If other processes keep changing it, it is not
    stored, and no error is raised. Raises MetadataError if the store fails.
    """
    await _write(store, _WAITING, found)


async def forget_waiting(store: MetadataStore) -> None:
    """Delete the note about a bookie that is waited for, if there is one. Raises MetadataError."""
    await store.delete_value(_WAITING)


async def forget_failure(store: MetadataStore, ledger_id: int) -> None:
    await store.delete_value((*_KEY, str(ledger_id)))


async def failing_ledgers(store: MetadataStore) -> list[int]:
    """Return the ids of the ledgers with a note about a failure, marked or not, ascending.

    Raises MetadataError.
    """
    return sorted(int(name) for name in await store.list_values(_KEY) if name.isdecimal())


async def note_repaired(store: MetadataStore, found: RepairedLedgers) -> None:
    """Store a note about the ledgers that a worker has repaired, in place of its earlier one.

    Raises MetadataError if the store fails.
    """
    await _write(store, (*_REPAIRED, _name_of(found.by)), found)


async def repaired_lately(store: MetadataStore, now_ms: int) -> list[RepairedLedgers]:
    """Return the notes of workers that repaired a ledger in the last day, the newest first.

    Raises MetadataError.
    """
    found = [one for _, one in await _repaired(store)]
    recent = [one for one in found if one is not None and now_ms - one.at_ms <= REPAIRED_KEPT_MS]
    return sorted(recent, key=lambda one: one.at_ms, reverse=True)


async def forget_repaired(store: MetadataStore, now_ms: int) -> None:
    """Delete the notes about repaired ledgers that are not shown any more. Raises MetadataError."""
    for key, one in await _repaired(store):
        if one is None or now_ms - one.at_ms > REPAIRED_KEPT_MS:
            await store.delete_value(key)


async def _repaired(store: MetadataStore) -> list[tuple[Key, RepairedLedgers | None]]:
    def made(last: list[int], replicas: list[str], **rest: Any) -> RepairedLedgers:
        return RepairedLedgers(last=tuple(last), replicas=tuple(replicas), **rest)

    names = (await store.list_values(_REPAIRED))[:REPAIRED_TOLD_MAX]
    return [((*_REPAIRED, name), await _read(store, (*_REPAIRED, name), made)) for name in names]


def _name_of(process: str) -> str:
    """Return a name of a node for a process, whose own name may have any characters."""
    return hashlib.sha256(process.encode()).hexdigest()[:12]
