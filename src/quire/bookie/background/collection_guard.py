"""The guard that decides whether a bookie may delete entries that no metadata names.

Three conditions forbid it. Nothing overrides them, neither a full disk nor a pass that an operator
requests:

- The bookie's own configuration: `gc_enabled = false`.
- The switch of the cluster: `quire cluster gc off`.
- The store went back in time. The bookie raises a mark in the store every
  `metadata_mark_interval_s`, and remembers the newest one in its directories
  (`metadata.bookies.collection`). A store that does not hold the remembered mark was restored from
  an older backup, so ledgers that it does not name may exist. The bookie refuses until an operator
  has examined this store and accepts it.

The mark is raised in the store first and remembered second. A bookie that dies in between remembers
an older mark than the store holds, which is harmless.

A mark proves that the store has everything that was created before the mark was raised. It proves
nothing about younger ledgers: if the store goes back to a state that is newer than the last mark,
nobody can notice. `metadata_mark_interval_s` bounds that window.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.shortages import shortage
from quire.errors import (
    CollectionOffError,
    CookieError,
    KeyExistsError,
    LaterStorageError,
    MetadataWentBackError,
    NoSuchKeyError,
    QuireError,
    StorageError,
    VersionConflictError,
    written_later,
)
from quire.metadata.bookies.collection import (
    BookieMark,
    CollectionMark,
    CollectionRefusal,
    read_mark,
    read_switch,
    write_mark,
)
from quire.metadata.interface import MetadataStore, Versioned
from quire.storage.directory import CURRENT_DIRECTORY, read_small_file, write_small_file
from quire.storage.interfaces import Disk

MARK_NAME = f"{CURRENT_DIRECTORY}/METADATA"
_LINES = ("count", "token")
"""The names of the lines of `current/METADATA` before the line with the checksum."""
_TOKEN_BYTES = 16
_DAMAGED = "damaged"


async def check_cluster(
    metadata: MetadataStore, instance_id: str, unchanged: str, *, named: bool = False
) -> None:
    """Raise CookieError unless the metadata store still has the cluster of this bookie.

    `unchanged` is the end of the message, which says what was not changed. With `named`, a cluster
    without an instance id is refused as well. Raises MetadataError if the store does not answer.
    """
    found = await metadata.instance_id()
    if found != instance_id or (named and not instance_id):
        raise CookieError(
            f"the metadata store at {metadata.uri} holds cluster {found or '(none)'}, but this "
            f"bookie belongs to cluster {instance_id or '(none)'}: {unchanged}",
            remedy=(
                "Check the metadata URI of the bookie. If the store was created again, "
                "restore it from a backup (docs/guides/repair/disaster-recovery.md)"
            ),
        )


def encode_mark(mark: CollectionMark) -> bytes:
    """Return the content of `current/METADATA`: three lines, the last one a checksum."""
    body = f"count: {mark.count}\ntoken: {mark.token}\n".encode()
    return body + f"crc32: {zlib.crc32(body):08x}\n".encode()


def decode_mark(data: bytes, path: str = MARK_NAME) -> CollectionMark:
    """Return the mark in the content of `current/METADATA`. `path` names the file in the error.

    Raises:
        LaterStorageError: A later version of Quire wrote the file: its checksum is right, but it
            has other lines.
        ValueError: The file is damaged.
    """
    body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    names = [line.partition(b": ")[0].decode("ascii") for line in body.split(b"\n")]
    if last == b"crc32: %08x" % zlib.crc32(body + b"\n") and names != list(_LINES):
        raise LaterStorageError(
            written_later(path, f"the lines {', '.join(names)}", f"the lines {', '.join(_LINES)}")
        )
    count, token, checksum, end = data.decode("ascii").split("\n")
    values = [line.partition(": ") for line in (count, token, checksum)]
    names = [name for name, _, _ in values]
    if names != ["count", "token", "crc32"] or end:
        raise ValueError("its lines are not those of a mark")
    found = CollectionMark(int(values[0][2]), values[1][2])
    if encode_mark(found) != data:
        raise ValueError("its checksum does not match")
    return found


@dataclass(frozen=True, slots=True)
class Remembered:
    """The newest mark of the metadata store that is stored in a bookie's data directories."""

    mark: CollectionMark | None = None
    """The newest mark, or None if no directory has one, for example in a new bookie."""
    damaged: str = ""
    """The path of a mark file that cannot be read, and the error. Empty if any mark was read, or if
    no directory has one."""


def read_remembered(disks: Sequence[Disk]) -> Remembered:
    """Read the mark of the metadata store in each data directory, and return the newest.

    Blocks. Raises LaterStorageError if a later version of Quire wrote one of the marks.
    """
    marks, damaged = [], ""
    for disk in disks:
        try:
            data = read_small_file(disk, MARK_NAME)
            if data is not None:
                marks.append(decode_mark(data, f"{disk.path}/{MARK_NAME}"))
        except LaterStorageError:
            raise
        except (OSError, ValueError, StorageError) as error:
            damaged = f"{disk.path}/{MARK_NAME}: {error}"
    if marks:
        return Remembered(max(marks, key=lambda mark: mark.count))
    return Remembered(damaged=damaged)


def write_remembered(disks: Sequence[Disk], data: bytes) -> None:
    """Write the encoded mark of the metadata store to each data directory.

    Blocks. On return, the mark is durable in every directory that could be written. Raises
    StorageError if no directory could.
    """
    failed = ""
    written = 0
    for disk in disks:
        try:
            write_small_file(disk, MARK_NAME, data)
            written += 1
        except OSError as error:
            failed = f"{disk.path}/{MARK_NAME} could not be written: {shortage(error) or error}"
    if not written and failed:
        raise StorageError(
            "the bookie could not store the newest state of the metadata store that it has seen: "
            f"{failed}. It needs this to notice that an old backup of the store was restored",
            remedy="Check the disk and its free space. The bookie tries again by itself",
        )


class CollectionGuard:
    """The guard of one bookie's garbage collection, which lasts from its start to its stop."""

    def __init__(
        self,
        metadata: MetadataStore,
        bookie_id: str,
        remembered: Remembered,
        keep: Callable[[bytes], Awaitable[None]],
        *,
        enabled: bool,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        log: EventLog,
    ) -> None:
        """Create a guard.

        `remembered` is the mark that the bookie's directories have. `keep` writes an encoded mark
        into these directories. `enabled` is the bookie's setting `gc_enabled`.
        """
        self._metadata = metadata
        self._bookie_id = bookie_id
        self._keep = keep
        self._clock = clock
        self._random_bytes = random_bytes
        self._log = log
        self._changing = asyncio.Lock()
        self._damaged = remembered.damaged
        self._remembered = remembered.mark
        if self._damaged:
            self._remembered = CollectionMark(0, f"{_DAMAGED}-{random_bytes(_TOKEN_BYTES).hex()}")
        self.enabled = enabled
        self.switched_off = False
        """Whether collection was switched off for the cluster when the switch was last read."""
        self.went_back = False
        """Whether the metadata store lacks this bookie's newest mark, and no operator has accepted
        that."""
        self.raised_s: float | None = None
        """The monotonic time in seconds at which the metadata store last confirmed a mark of this
        process, or None before the first one."""
        self.not_raised = ""
        """The reason why the last mark could not be raised in the metadata store or written to the
        directories. Empty if that succeeded."""

    @property
    def may_collect(self) -> bool:
        """Whether no known reason is against collecting garbage.

        Collection is enabled, and the last check that could read the metadata store found neither
        that collection was switched off nor that the store went back to an older state. Only
        `check` decides: it also forbids collection while the store does not answer.
        """
        return self.enabled and not self.switched_off and not self.went_back

    async def check(self) -> None:
        """Raise an error unless the bookie may delete ledgers that are not in the metadata store.

        Raises CollectionOffError if an operator has switched collection off, for this bookie or for
        the cluster. Raises MetadataWentBackError if the metadata store went back to an older state,
        and MetadataError if it does not answer.
        """
        if not self.enabled:
            raise CollectionOffError(
                "garbage collection of this bookie is switched off by its configuration "
                "(gc_enabled): nothing was deleted",
                remedy="Set gc_enabled = true and restart the bookie",
            )
        await self.check_store()

    async def check_store(self) -> None:
        """Raise the errors of `check`, but ignore this bookie's setting `gc_enabled`."""
        switch = await read_switch(self._metadata)
        self.switched_off = switch is not None
        if switch is not None:
            raise CollectionOffError(f"{switch.sentence()}: nothing was deleted")
        async with self._changing:
            await self._look()

    async def raise_mark(self) -> None:
        """Raise this bookie's mark in the metadata store by one, and write it to the directories.

        The mark is durable on return, in the store and in each directory that could be written.
        Raises MetadataWentBackError if the metadata store went back to an older state,
        MetadataError if it does not answer or another process changed the mark, and StorageError
        if the mark could not be written to any directory. Safe to cancel.
        """
        async with self._changing:
            found = await self._look()
            known = 0 if self._remembered is None else self._remembered.count
            stored, version = (
                (0, None) if found is None else (found.value.mark.count, found.version)
            )
            made = CollectionMark(max(known, stored) + 1, self._random_bytes(_TOKEN_BYTES).hex())
            await write_mark(self._metadata, self._bookie_id, BookieMark(made), version)
            self._remembered, self._damaged = made, ""
            self.raised_s = self._clock.monotonic()
            await self._keep(encode_mark(made))

    async def raise_in_turn(self) -> None:
        """Raise the mark as `raise_mark` does, but record an error in `not_raised`.

        The first of several errors in a row is logged. If another process changed the mark at the
        same time, nothing is logged. The bookie calls this every `metadata_mark_interval_s`, so an
        error needs no retry.
        """
        try:
            await self.raise_mark()
        except MetadataWentBackError as error:
            self.not_raised = str(error)  # `_refuse` has logged it
        except (VersionConflictError, KeyExistsError, NoSuchKeyError) as error:
            self.not_raised = str(error)  # an operator accepts, or an earlier attempt succeeded
        except QuireError as error:
            if not self.not_raised:
                self._log("metadata_mark_not_raised", bookie=self._bookie_id, error=str(error))
            self.not_raised = str(error)
        else:
            self.not_raised = ""

    # -- internal methods: the caller holds `_changing` ---------------------------------------

    async def _look(self) -> Versioned[BookieMark] | None:
        """Return this bookie's mark in the metadata store, or None if there is none yet.

        Raises MetadataWentBackError if the metadata store lacks the remembered mark, unless an
        operator has accepted the store as it is.
        """
        found = await read_mark(self._metadata, self._bookie_id)
        if not self._proves_current(found):
            # The server may lag behind the one that stored the mark, for example after a restart.
            await self._metadata.tree.sync()
            found = await read_mark(self._metadata, self._bookie_id)
        if self._proves_current(found):
            self.went_back = False
            return found
        remembered = self._remembered
        assert remembered is not None
        refusal = None if found is None else found.value.refusal
        if refusal is not None and refusal.remembered == remembered and refusal.accepted:
            if self.went_back:
                self._log("metadata_accepted", bookie=self._bookie_id)
            self.went_back = False
            return found
        await self._refuse(found, remembered)
        raise MetadataWentBackError(self._why(found))

    def _proves_current(self, found: Versioned[BookieMark] | None) -> bool:
        """Return whether the mark that was found proves that the store did not go back."""
        if self._damaged:
            return False
        return self._remembered is None if found is None else found.value.holds(self._remembered)

    async def _refuse(
        self, found: Versioned[BookieMark] | None, remembered: CollectionMark
    ) -> None:
        """Record that this bookie refuses to collect garbage, because the metadata store went back.

        The refusal is logged once. It is also written to this bookie's mark in the metadata store,
        where operators see it.
        """
        if not self.went_back:
            self.went_back = True
            self._log("metadata_went_back", bookie=self._bookie_id, error=self._why(found))
        told = None if found is None else found.value.refusal
        if told is not None and told.remembered == remembered:
            return
        mark = CollectionMark(0, "") if found is None else found.value.mark
        unreadable = "" if told is None else told.unreadable
        made = BookieMark(
            mark, CollectionRefusal(remembered, self._clock.now_ms(), unreadable=unreadable)
        )
        version = None if found is None else found.version
        try:
            await write_mark(self._metadata, self._bookie_id, made, version)
        except (KeyExistsError, NoSuchKeyError, VersionConflictError):
            pass  # the next check records it

    def _why(self, found: Versioned[BookieMark] | None) -> str:
        if self._damaged:
            return (
                f"bookie {self._bookie_id} cannot read its own copy of its mark "
                f"({self._damaged}), so it cannot tell whether the metadata store went back in "
                "time. It collects no garbage"
            )
        assert self._remembered is not None
        refusal = None if found is None else found.value.refusal
        if refusal is not None and refusal.unreadable:
            return (
                f"the mark of bookie {self._bookie_id} in the metadata store at "
                f"{self._metadata.uri} cannot be read ({refusal.unreadable}), so the bookie cannot "
                "tell whether the store went back in time. It collects no garbage"
            )
        holds = "no mark" if found is None else f"mark {found.value.mark.count}"
        return (
            f"the metadata store at {self._metadata.uri} went back in time: bookie "
            f"{self._bookie_id} stored mark {self._remembered.count} in it, but now it holds "
            f"{holds}, or a mark that the bookie did not write. The bookie collects no garbage"
        )
