"""Notes of the continuous copies of streams that should be running.

A continuous `quire pipeline replicate` keeps a note in the metadata store of the copy, and in that
of the source if it may write there. It removes the notes when it ends as somebody demanded. If it
is killed, the notes stay, and people learn that the copy is no longer continued. An announcement
of a running job cannot tell them that, because it disappears with its process.

No decision about data depends on a note. A note contains no password, and nothing of the
configuration of Spark.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from quire._runtime.tasks import each
from quire._runtime.uris import without_credentials
from quire.codec.metadata.stored_json import stored_json
from quire.errors import KeyExistsError, NoSuchKeyError, QuireError, VersionConflictError
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.uri import Driver, parse_uri

SAY_INTERVAL_S = 10.0
"""Seconds between two reports of a copy."""
SILENT_S = 60.0
"""Seconds without a report after which a copy counts as stopped."""
BEHIND_S = 300.0
"""The age of the oldest record that is not copied, in seconds, from which a copy is too far behind.
"""
STREAMS_NAMED_MAX = 20
"""The largest number of streams that a note names: those that failed, and the others that are
furthest behind."""
NOTES_MAX = 100
"""The largest number of notes that are read."""
TEXT_MAX = 300
"""The largest number of characters of a reason in a note. The rest is cut off."""
CALL_TIMEOUT_S = 5.0
"""Seconds that the metadata store of one side may take to store a note."""
_KEY = ("jobs", "copies")
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StreamLag:
    """One stream of a continuous copy that is behind its source, or is no longer copied."""

    stream: str
    records: int | None = None
    """The number of records that are not copied, or None if it is unknown."""
    seconds: float | None = None
    """The age of the oldest record that is not copied, in seconds, or None if it is unknown."""
    error: str = ""
    """Why the stream is no longer copied, or ""."""


@dataclass(frozen=True, slots=True)
class CopyNote:
    """The note of one continuous copy, with what it last reported."""

    source: str
    """The URI of the source's metadata store."""
    source_id: str
    """The instance id of the source's cluster."""
    source_namespace: str
    target: str
    """The URI of the target's metadata store."""
    target_id: str
    target_namespace: str
    streams: str
    """The shell pattern of the names of the copied streams."""
    by: str
    """The name of the process that copies."""
    since_ms: int
    """When that process began to copy, in milliseconds since 1970."""
    said_ms: int = 0
    """When it last reported, in milliseconds since 1970. Both times are those of its machine."""
    truncation: bool = True
    """Whether the copy is truncated like the source."""
    skip_gaps: bool = False
    """Whether the copy continues after records that the source truncated before they were copied.
    """
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    """The settings of the copies that differ from those of the source."""
    count: int = 0
    """The number of streams that match."""
    failed: int = 0
    """The number of streams that are no longer copied."""
    records: int | None = None
    """The number of records that are not copied yet, or None if it is unknown for some streams."""
    seconds: float | None = None
    """The age of the oldest record that is not copied, in seconds, or None if it is unknown."""
    lags: tuple[StreamLag, ...] = ()
    """Some of the streams that failed or are behind, the worst first."""
    error: str = ""
    """Why the process ended, or "" if it did not say that."""

    @property
    def name(self) -> str:
        """The name of the note. A later run with the same source, streams and target has it too."""
        parts = (self.source_id, self.source_namespace, self.streams, self.target_id,
                 self.target_namespace)  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    def behind_s(self, now_ms: int) -> float:
        """Return the age in seconds of the oldest record that is not copied, or 0 if unknown.

        The result is also 0 if everything is copied. `now_ms` is the Unix time in milliseconds.
        """
        if self.seconds is None or self.records == 0:
            return 0.0
        return self.seconds + self.silent_s(now_ms)

    def silent_s(self, now_ms: int) -> float:
        """Return the number of seconds since the last report."""
        return max(0.0, (now_ms - self.said_ms) / 1000)

    def state(self, now_ms: int) -> str:
        """Return "stopped", "failed" (for some streams), "behind" or "running"."""
        if self.error or self.silent_s(now_ms) > SILENT_S:
            return "stopped"
        if self.failed:
            return "failed"
        return "behind" if self.behind_s(now_ms) > BEHIND_S else "running"

    def restart(self) -> str:
        """Return the command that continues the copy.

        It lacks the options for passwords, TLS and Spark, which a note does not contain.
        """
        words = ["quire", "pipeline", "replicate", "--continuous", "--metadata", self.source,
                 "--namespace", self.source_namespace, "--to", self.target]  # fmt: skip
        if self.target_namespace != self.source_namespace:
            words += ["--to-namespace", self.target_namespace]
        if self.streams != "*":
            words += ["--streams", self.streams]
        words += [] if self.truncation else ["--keep-truncated"]
        words += ["--skip-gaps"] if self.skip_gaps else []
        for key, value in self.settings.items():
            words += ["--set", f"{key}={_setting_text(value)}"]
        return shlex.join(words)

    def forget(self) -> str:
        """Return the command that removes the note from the cluster of the reader."""
        return f"quire cluster copies --forget {self.name}"

    def of_stream(self, name: str) -> StreamLag | None:
        """Return how far the copy of a stream is behind, or None if the note does not say it."""
        for one in self.lags:
            if one.stream == name:
                return one
        # Before its first measurement, the process knows no lag of any stream.
        known = self.records == 0 or 0 < len(self.lags) < STREAMS_NAMED_MAX
        return StreamLag(name, 0, 0.0) if known else None

    def name_of(self, own_id: str, path: str) -> str | None:
        """Return the name of a stream in this copy, or None if the copy does not have it.

        `path` is the whole path of a stream of the cluster `own_id`, from or to which it is copied.
        """
        ends = ((self.source_id, self.source_namespace), (self.target_id, self.target_namespace))
        for cluster, namespace in ends:
            above = f"{namespace.rstrip('/')}/"
            name = path.removeprefix(above)
            if cluster == own_id and name != path and fnmatchcase(name, self.streams):
                return name
        return None

    def only(self, *names: str) -> CopyNote:
        """Return the note as if it were about these streams alone."""
        lags = [one for name in names if (one := self.of_stream(name)) is not None]
        failed = sum(bool(one.error) for one in lags)
        if len(lags) < len(names):
            broken = tuple(one for one in lags if one.error)
            return replace(self, failed=failed, records=None, seconds=None, lags=broken)
        records = [one.records for one in lags]
        ages = [one.seconds for one in lags]
        return replace(
            self,
            count=len(names),
            failed=failed,
            records=None if None in records else sum(filter(None, records)),
            seconds=None if None in ages else max(filter(None, ages), default=0.0),
            lags=tuple(lags),
        )

    def as_json(self, now_ms: int, own_id: str) -> dict[str, Any]:
        """Return the note as JSON for a reader in the cluster with this instance id."""
        told = asdict(self)
        told["lags"] = [asdict(one) for one in self.lags]
        return {
            "name": self.name,
            **told,
            "state": self.state(now_ms),
            "behind_s": self.behind_s(now_ms),
            "role": "source" if own_id == self.source_id else "copy",
            "restart": self.restart(),
            "forget": self.forget(),
        }


def _setting_text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown_uri(uri: str) -> str:
    """Return a metadata URI as a note contains it: without credentials, and with a whole path."""
    where = parse_uri(uri)
    if where.driver is Driver.SQLITE:
        return f"sqlite:///{Path(where.path).absolute()}"
    return without_credentials(uri)


# -- reading ----------------------------------------------------------------------------------


async def copy_notes(store: MetadataStore) -> list[CopyNote]:
    """Return the notes in a metadata store, at most `NOTES_MAX`.

    They are sorted by the namespace of the source, the pattern of the streams, and the URI of the
    target. Notes that this version cannot decode are left out. Raises MetadataError. Cancel-safe.
    """

    async def read(name: str) -> CopyNote | None:
        try:
            return _decoded((await store.read_value((*_KEY, name))).value)
        except NoSuchKeyError:
            return None  # it was removed just now

    found = await each((await store.list_values(_KEY))[:NOTES_MAX], read)
    known = [one for one in found if one is not None]
    return sorted(known, key=lambda one: (one.source_namespace, one.streams, one.target))


async def forget_copy(store: MetadataStore, name: str) -> bool:
    """Remove a note. Return False if there is none of this name. Raises MetadataError."""
    if name not in await store.list_values(_KEY):
        return False
    await store.delete_value((*_KEY, name))
    return True


_TEXTS = ("source", "source_id", "source_namespace", "target", "target_id", "target_namespace",
          "streams", "by", "error")  # fmt: skip
_COUNTS = ("since_ms", "said_ms", "count", "failed")
_SWITCHES = ("truncation", "skip_gaps")


def _decoded(value: bytes) -> CopyNote | None:
    """Decode a note. Return None if it is damaged, or if this version does not understand it."""
    try:
        found = stored_json(value)
        known = {one.name for one in fields(CopyNote)}
        lags = tuple(_lag(one) for one in found.pop("lags", ()))
        note = CopyNote(**{key: one for key, one in found.items() if key in known}, lags=lags)
        good = (
            all(type(getattr(note, one)) is str for one in _TEXTS)
            and all(_is_count(getattr(note, one)) for one in _COUNTS)
            and all(type(getattr(note, one)) is bool for one in _SWITCHES)
            and _is_count(note.records, unknown=True)
            and _is_time(note.seconds)
            and all(type(key) is str and _is_plain(one) for key, one in note.settings.items())
        )
        return note if good else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _lag(found: Mapping[str, Any]) -> StreamLag:
    lag = StreamLag(found["stream"], found["records"], found["seconds"], found["error"])
    texts = type(lag.stream) is str and type(lag.error) is str
    if not (texts and _is_count(lag.records, unknown=True) and _is_time(lag.seconds)):
        raise ValueError("it is not the lag of a stream")
    return lag


def _is_count(value: object, *, unknown: bool = False) -> bool:
    if value is None:
        return unknown
    return type(value) is int and 0 <= value <= _INT64_MAX


def _is_time(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and type(value) is not bool and 0 <= value < math.inf


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (str, int, float, bool)


# -- writing ----------------------------------------------------------------------------------


class CopyReporter:
    """The process that copies, as the writer of its note."""

    def __init__(self, stores: Sequence[MetadataStore], note: CopyNote) -> None:
        """Create a reporter. `stores` are those of the source and the target, or the one of both.

        `note` has what does not change.
        """
        self.note = note
        self._places = [_Place(store) for store in stores]

    async def say(self, now_ms: int, **told: Any) -> None:
        """Store the note with the present report, whose values are fields of `CopyNote`.

        A store that does not answer, or that this process may only read, is left out. So is one in
        which another process keeps the note now, because it continues the copy.
        """
        self.note = replace(self.note, said_ms=now_ms, **told)
        await self._at_each(lambda place: place.write(self.note))

    async def leave(self) -> None:
        """Remove the note, because the copy has ended as somebody demanded."""
        await self._at_each(lambda place: place.remove(self.note))

    async def _at_each(self, do: Callable[[_Place], Awaitable[None]]) -> None:
        async def guarded(place: _Place) -> None:
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await do(place)
            except (QuireError, TimeoutError):
                pass  # the copy does not depend on it, and the next report tries again

        await each(self._places, guarded)


class _Place:
    """The note of a running copy in one metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._begun = False
        """Whether this process has replaced the note of an earlier one."""
        self._over = False
        """Whether another process continues the copy. The note is its own then."""

    async def write(self, note: CopyNote) -> None:
        found = await self._present(note)
        if self._over:
            return
        value = json.dumps(asdict(note)).encode()
        version, known = (None, None) if found is None else (found.version, found.value)
        try:
            await self._store.write_value((*_KEY, note.name), value, version, known=known)
        except (KeyExistsError, NoSuchKeyError, VersionConflictError):
            return  # another process has written or removed it just now: the next report looks
        self._begun = True

    async def remove(self, note: CopyNote) -> None:
        found = await self._present(note)
        if self._over or found is None:
            return
        try:
            key = (*_KEY, note.name)
            await self._store.delete_value(key, found.version, known=found.value)
        except VersionConflictError:
            pass  # another process has continued the copy just now

    async def _present(self, note: CopyNote) -> Versioned[bytes] | None:
        """Return the stored note, or None if there is none.

        The first report replaces the note of an earlier process. If a later report finds the note
        of another process, that process has continued the copy, and `_over` is set.
        """
        try:
            found = await self._store.read_value((*_KEY, note.name))
        except NoSuchKeyError:
            return None
        other = _decoded(found.value)
        same = other is not None and (other.by, other.since_ms) == (note.by, note.since_ms)
        self._over = self._over or (self._begun and not same)
        return found
