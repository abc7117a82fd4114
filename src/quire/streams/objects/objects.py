"""Objects: immutable blobs with a name, each in one closed ledger.

    objects = client.objects()
    await objects.put("jobs/42/checkpoint-7", data)
    async with objects.get("jobs/42/checkpoint-7") as found:
        data = await found.read_all()

An object is published by one compare-and-swap: the ledger is written and closed first, and the head
that names it (`format`) is written last. A reader therefore sees a whole object or none. A put that
dies leaves a ledger that no reader ever sees, and `sweep` removes it.

A slow put could publish a ledger that a sweep, or a put that replaces the object, is about to
delete. Deletion therefore takes three steps:

1. A mark in the ledger's own metadata condemns the ledger.
2. The head is read. If it names the ledger, the deletion ends here. If it names another ledger, it
   is written again unchanged, so that every put that has read it fails.
3. The ledger is deleted.

A put looks for the mark after it has read the head that it replaces. If the deletion marks the
ledger after that, its step 2 changes the version of the head, and the put fails. A put that
creates the head looks for the mark once more afterwards, because step 2 had no head to write. An
object whose put succeeded therefore keeps its ledger.

Only the age limit of sweeps protects against one case. A put that replaces an object sleeps right
before it writes the head. Meanwhile its ledger is swept, and the object is deleted and put again
until its head has the same version as before.

The blocking form is `quire.blocking.Objects`.
"""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from quire._runtime.clock import Clock
from quire._runtime.opening import Ready, opening, represented
from quire._runtime.tasks import each, pages
from quire._runtime.units import counted
from quire.client import Client, LedgerWriter
from quire.client.client import DEFAULT_ACK_QUORUM, DEFAULT_ENSEMBLE_SIZE, DEFAULT_WRITE_QUORUM
from quire.client.compare_and_swap import swap
from quire.client.unreadable_items import NAMED_MAX, Skipped, log_skipped, skipping
from quire.codec.entry.digest import DigestType
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import (
    LaterMetadataError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchObjectError,
    ObjectDamagedError,
    ObjectExistsError,
    QuireError,
    UsageError,
    check_seconds,
    check_type,
)
from quire.metadata.bookies.collection import check_collectable
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.update import update_ledger
from quire.streams.objects.format import (
    BUCKET_KEY,
    CHUNK_BYTES_DEFAULT,
    CONDEMNED_KEY,
    NAME_KEY,
    ObjectInfo,
    check_bucket,
    check_metadata,
    check_name,
    checked_chunk_bytes,
    decode_head,
    encode_head,
    folder_key,
    head_key,
    listed_names,
)
from quire.streams.objects.reader import ObjectReader
from quire.streams.objects.source import Source, check_source, chunks_of

__all__ = ["ObjectInfo", "ObjectReader", "Objects", "Orphan", "Source"]

DEFAULT_BUCKET = "default"
PAGE_OBJECTS = 100
"""The number of objects in one page of a listing."""
LEDGERS_LOOKED_AT = 256
"""The number of ledgers whose metadata the search for orphans reads at the same time."""
OPEN_ATTEMPTS_MAX = 100
"""The largest number of attempts of one `get` to open an object.

An attempt fails if the object is replaced while its ledger is being opened.
"""
CLEAN_UP_LIMIT_S = 5.0
"""Seconds in which a `put` tries to delete its own ledger after a failure, or the replaced one.

A ledger that is not deleted in this time is left for a sweep.
"""

logger = logging.getLogger("quire.objects")


@dataclass(frozen=True, slots=True)
class Orphan:
    """A ledger that was written for an object and belongs to no object now."""

    ledger_id: int
    """The id of the ledger."""
    name: str
    """The name of the object for which the ledger was written."""
    ctime_ms: int
    """The time at which the ledger was created, in milliseconds since 1970."""
    size_bytes: int
    """The number of bytes in the ledger, or 0 if it was never closed."""


class Objects(Ready):
    """The objects of one bucket of a cluster. `Client.objects` returns it.

    All calls raise MetadataUnavailableError if the metadata store does not answer. Unless a call
    says otherwise, the outcome of a change is then unknown. A call raises MetadataDeniedError if
    the metadata store refuses this client, unless it skips what it cannot read. If the client is
    closed, all calls raise ClientClosedError.
    """

    bucket: str
    """The name of the bucket."""

    def __init__(
        self, client: Client, bucket: str = DEFAULT_BUCKET, *, clock: Clock | None = None
    ) -> None:
        self.bucket = check_bucket(bucket)
        self._client = client
        self._store = client.metadata
        self._clock = clock or client.clock

    def __repr__(self) -> str:
        return represented(self, bucket=self.bucket)

    # -- putting ------------------------------------------------------------------------------

    async def put(
        self,
        name: str,
        source: Source,
        *,
        replace: bool | Callable[[ObjectInfo], bool] = False,
        metadata: Mapping[str, str] | None = None,
        chunk_bytes: int = CHUNK_BYTES_DEFAULT,
        ensemble_size: int = DEFAULT_ENSEMBLE_SIZE,
        write_quorum: int = DEFAULT_WRITE_QUORUM,
        ack_quorum: int = DEFAULT_ACK_QUORUM,
        digest: DigestType | str = DigestType.CRC32C,
    ) -> ObjectInfo:
        """Store an object under a name.

        On return the object is durable on at least `ack_quorum` bookies, and every later `get`
        finds it. Until then no reader sees any part of it. Memory is bounded by
        `ClientConfig.max_unacked_bytes`, `chunk_bytes` and the largest buffer of the source.

        After an error, the object was not stored unless the outcome is unknown. Its ledger is
        deleted, or left for `sweep`. If the call is cancelled, or after MetadataUnavailableError,
        the object is either stored completely or not at all.

        Args:
            name: The name of the object.
            source: The bytes of the object (a buffer, or an async iterator of buffers).
            replace: Whether to replace an object that has this name, in one step, and delete its
                ledger. True also replaces an object whose head is damaged. A function receives the
                object that would be replaced, and returns whether to replace it. Readers of the old
                version may continue for a while (see `ObjectReader`).
            metadata: Text that is stored with the object, by key.
            chunk_bytes: The size of the chunks in which the object is stored, in bytes. Each chunk
                is an entry of the ledger.
            ensemble_size: The number of bookies over which the chunks are spread.
            write_quorum: The number of bookies that store each chunk.
            ack_quorum: The number of bookies that must have fsynced a chunk.
            digest: The digest of the chunks.

        Returns:
            The stored object.

        Raises:
            ObjectExistsError: An object has this name, and it was not to be replaced. Nothing was
                changed. With `replace=False`, nothing is even written if the object exists when the
                call begins.
            UsageError: An argument is not valid.
            NoSuchLedgerError: A sweep deleted the ledger, because its age limit was shorter than
                this put. The object was not stored.
            MetadataError: The head of the object with this name cannot be decoded, and `replace` is
                not True, or a later version wrote the head. Or other clients changed the object
                during each of 100 attempts. Nothing was changed.
            QuireError: The ledger could not be created or written. See `Client.create_ledger` and
                `LedgerWriter.append`.
            Exception: The error that the source, or the function `replace`, raised.
        """
        check_name(name)
        chunk_bytes = checked_chunk_bytes(chunk_bytes)
        check_metadata(name, metadata or {})
        check_source(source)
        if not replace:
            await self._refuse_taken(await self._newest(name))
        writer = await self._client.create_ledger(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            custom={BUCKET_KEY: self.bucket.encode(), NAME_KEY: name.encode()},
        )
        try:
            hashed, size_bytes = await _write(writer, source, chunk_bytes)
            info = ObjectInfo(
                name,
                ledger_id=writer.ledger_id,
                size_bytes=size_bytes,
                chunk_bytes=chunk_bytes,
                sha256=hashed,
                ctime_ms=writer.metadata.ctime_ms,
                metadata=dict(metadata or {}),
            )
            previous = await self._publish(info, replace)
        except BaseException:
            writer.abandon()
            # If the object was published after all, the head names the ledger, and it is kept.
            await self._clean_up(name, writer.ledger_id, logging.INFO)
            raise
        if previous is not None:
            await self._clean_up(name, previous.ledger_id, logging.WARNING)
        return info

    async def _publish(
        self, info: ObjectInfo, replace: bool | Callable[[ObjectInfo], bool]
    ) -> ObjectInfo | None:
        """Write the head so that it names the new ledger, and return the object that it replaces.

        Returns None if no object had the name. Raises ObjectExistsError if `replace` forbids to
        replace the present object, and NoSuchLedgerError if a sweep is deleting the new ledger. If
        an earlier attempt may have stored the object, it raises MetadataUnavailableError instead.
        """
        previous: ObjectInfo | None = None
        in_doubt = False

        async def attempt() -> bool:
            """Make one attempt, and return False if others changed the object since another."""
            nonlocal previous, in_doubt
            head, stored = await self._head(info.name, damaged=replace is True)
            if head is not None and head.ledger_id == info.ledger_id:
                return True  # the answer to an earlier attempt was lost
            if in_doubt and head != previous:
                # Perhaps they have replaced or deleted the object of this put, which must not be
                # stored twice.
                return False
            if not replace or (head is not None and callable(replace) and not replace(head)):
                await self._refuse_taken(head)
            await self._refuse_condemned(info)
            previous = head
            try:
                await self._write_head(info, stored)
            except QuireError as error:
                in_doubt |= not error.outcome_known
                raise
            return True

        try:
            if not await swap(_what(info.name), attempt, self._client.rng, ask_again=True):
                raise _perhaps_stored(info)
        except QuireError as error:
            if in_doubt and error.outcome_known:
                raise _perhaps_stored(info) from error
            raise
        if previous is None:
            # There was no head that a deletion would have written, so look for its mark once more.
            try:
                await swap(
                    _what(info.name),
                    lambda: self._refuse_condemned(info),
                    self._client.rng,
                    ask_again=True,
                )
            except NoSuchLedgerError as error:
                match await self._remove_head(info):
                    case True:
                        raise
                    case None:
                        raise _perhaps_stored(info) from error
                # Others have replaced or deleted the object, and now delete its ledger.
            except QuireError as error:
                if error.outcome_known:  # of the second look, but the head is written
                    raise MetadataUnavailableError(
                        f"{_what(info.name)} was stored in ledger {info.ledger_id}, but it is "
                        f"unknown whether a sweep deletes that ledger: {error.args[0]}",
                        remedy="Read the object, and put it again if it is lost",
                    ) from error
                raise
        return previous

    async def _refuse_taken(self, head: ObjectInfo | None) -> None:
        """Raise ObjectExistsError if `head` names a ledger that exists."""
        if head is None:
            return
        try:
            await self._store.read_ledger(head.ledger_id)
        except NoSuchLedgerError:
            return  # the object is lost, so its name is free
        raise ObjectExistsError(
            f"object {head.name!r} already exists in bucket {self.bucket!r} (ledger "
            f"{head.ledger_id}). It was not changed",
            remedy="Choose another name, or replace the object (--replace, replace=True)",
        )

    async def _refuse_condemned(self, info: ObjectInfo) -> None:
        """Raise NoSuchLedgerError if the ledger of this object is being deleted, or is gone."""
        try:
            if CONDEMNED_KEY not in (await self._store.read_ledger(info.ledger_id)).value.custom:
                return
        except NoSuchLedgerError:
            pass
        raise NoSuchLedgerError(
            f"object {info.name!r} was not stored: its ledger {info.ledger_id} was deleted before "
            "the object was published, probably by a sweep",
            remedy="Put it again, and sweep with an age limit that is longer than the longest put",
        )

    # -- reading ------------------------------------------------------------------------------

    async def info(self, name: str) -> ObjectInfo:
        """Return what is known of an object without reading it. Cancelling this call is safe.

        Args:
            name: The name of the object.

        Returns:
            The name, size, digest and metadata of the present version.

        Raises:
            NoSuchObjectError: There is no object with this name.
            MetadataError: The head of the object cannot be decoded.
            UsageError: The name is not valid.
        """
        check_name(name)
        head = await self._newest(name)
        if head is None:
            raise NoSuchObjectError(
                f"object {name!r} does not exist in bucket {self.bucket!r}",
                remedy="Check the name and the bucket",
            )
        return head

    @opening
    async def get(self, name: str) -> ObjectReader:
        """Open the present version of an object for reading. Cancelling this call is safe.

        Args:
            name: The name of the object.

        Returns:
            A reader of this version. Use it with `async with`, or close it.

        Raises:
            NoSuchObjectError: There is no object with this name.
            ObjectDamagedError: The ledger of the object is gone or does not match the object.
            MetadataError: The head of the object, or the metadata of its ledger, cannot be decoded.
                Or the object was replaced during each attempt to open it.
            UsageError: The name is not valid.
        """
        for _ in range(OPEN_ATTEMPTS_MAX):
            info = await self.info(name)
            try:
                return ObjectReader(info, await self._client.open_ledger(info.ledger_id))
            except NoSuchLedgerError as error:
                if await self._newest(name) == info:
                    raise ObjectDamagedError(
                        f"object {name!r} is lost: its ledger {info.ledger_id} was deleted, but "
                        "the object still names it",
                        remedy="Put the object again",
                    ) from error
        raise MetadataError(
            f"{_what(name)} could not be opened: it was replaced during each of "
            f"{OPEN_ATTEMPTS_MAX} attempts",
            remedy="Try again",
        )

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects with a common prefix, sorted by code points.

        Objects are read in pages, so memory is bounded. Objects that are put or deleted meanwhile
        may or may not be included. Cancelling is safe: continue after the last name.

        Args:
            prefix: Yield only objects whose names begin with this text.
            after: Yield only objects whose names sort after this one.

        Yields:
            The objects.

        Raises:
            MetadataError: Some objects cannot be decoded. The error names them, and is raised after
                all other objects were yielded.
            UsageError: `prefix` or `after` is not text.
        """
        async with aclosing(self.pages(prefix, after=after)) as pages:
            async for page in pages:
                for info in page:
                    yield info

    async def pages(
        self, prefix: str = "", *, after: str = ""
    ) -> AsyncGenerator[builtins.list[ObjectInfo], None]:
        """Yield the objects with a common prefix in pages of up to 100.

        Cancelling is safe: continue after the last name.

        Args:
            prefix: As for `list`.
            after: As for `list`.

        Yields:
            A page of objects.

        Raises:
            MetadataError: As for `list`.
            UsageError: As for `list`.
        """
        check_type("prefix", prefix, str)
        check_type("after", after, str)
        skipped: builtins.list[Skipped] = []
        async with aclosing(self._listed(prefix, after)) as listed:
            async for found in listed:
                skipped += [one for one in found if isinstance(one, Skipped)]
                yield [one for one in found if not isinstance(one, Skipped)]
        if skipped:
            named = "; ".join(map(str, skipped[:NAMED_MAX]))
            raise MetadataError(
                f"{counted(len(skipped), 'object')} of bucket {self.bucket!r} cannot be read. All "
                f"others were listed. {named}",
                remedy="Follow the advice for each of them",
            )

    async def _listed(
        self, prefix: str, after: str
    ) -> AsyncGenerator[builtins.list[ObjectInfo | Skipped], None]:
        """Yield pages of objects as `pages` does, with those that cannot be read in their places.

        Raises MetadataUnavailableError if the store does not answer.
        """
        *folder, _ = prefix.split("/")
        if any(part in ("", ".", "..") for part in folder):
            return  # no valid name begins with this prefix
        await self._store.tree.sync()
        async with aclosing(pages(self._names(folder, prefix, after), PAGE_OBJECTS)) as names:
            async for page in names:
                found = await each(page, self._info_or_skipped)
                yield [one for one in found if one is not None]

    async def _info_or_skipped(self, name: str) -> ObjectInfo | Skipped | None:
        """Return an object, None if it was deleted since, or why it cannot be read."""
        skipped: builtins.list[Skipped] = []
        with skipping(_what(name), skipped):
            return (await self._head(name))[0]
        return skipped[0]

    async def _names(
        self, folder: builtins.list[str], prefix: str, after: str
    ) -> AsyncGenerator[str, None]:
        found = await self._store.list_values(folder_key(self.bucket, folder))
        for name in listed_names(folder, found):
            if not name.endswith("/"):
                if name.startswith(prefix) and name > after:
                    yield name
                continue
            wanted = name.startswith(prefix) or prefix.startswith(name)
            passed = after > name and not after.startswith(name)
            if wanted and not passed:
                async with aclosing(self._names(name[:-1].split("/"), prefix, after)) as below:
                    async for inner in below:
                        yield inner

    # -- deleting -----------------------------------------------------------------------------

    async def delete(self, name: str) -> bool:
        """Delete an object and its ledger. Deleting an object that does not exist succeeds.

        On return the deletion is durable, and no `get` finds the object. Bookies free its space at
        their next garbage collection. If the ledger cannot be deleted, it is left for `sweep`.
        Calling this again is safe. If the call is cancelled, the object may or may not have been
        deleted.

        Args:
            name: The name of the object.

        Returns:
            Whether the object existed.

        Raises:
            MetadataError: The head of the object cannot be decoded, or other clients changed the
                object during each of 100 attempts. The object was not deleted. `put` with
                `replace=True` replaces a damaged head.
            UsageError: The name is not valid.
        """
        check_name(name)
        gone = await self._newest(name)
        if gone is None:
            return False
        await self._remove_head(gone)
        await self._clean_up(name, gone.ledger_id, logging.WARNING)
        return True

    async def orphans(self, older_than_s: float, *, first: int = 0) -> AsyncGenerator[Orphan, None]:
        """Yield the ledgers that were written for objects of this bucket and belong to no object.

        Orphans are left by puts that died, and the ledgers of puts that are in progress look the
        same. The call reads the metadata of every ledger from `first` on. It does not find ledgers
        without a creation time. Ledgers and objects that cannot be read are skipped, and a warning
        in the log names them. A ledger that was written for such an object is not an orphan,
        because the object may name it. Cancelling is safe.

        Args:
            older_than_s: Yield only ledgers that are older than this, in seconds.
            first: The id of the first ledger to look at.

        Yields:
            The orphans.

        Raises:
            MetadataError: The list of ledgers could not be read completely.
            UsageError: An argument is not valid.
        """
        check_seconds("older_than_s", older_than_s)
        before_ms = self._clock.now_ms() - round(older_than_s * 1000)
        skipped: builtins.list[Skipped] = []
        ledger_ids = pages(self._client.list_ledgers(first), LEDGERS_LOOKED_AT)
        async with aclosing(ledger_ids) as pieces:
            async for piece in pieces:
                for orphan in await each(piece, lambda i: self._orphan(i, before_ms, skipped)):
                    if orphan is not None:
                        yield orphan
        log_skipped(logger, "the search for orphans of objects", skipped)

    async def sweep(self, older_than_s: float, *, first: int = 0) -> builtins.list[int]:
        """Delete the orphans of this bucket. See `orphans`.

        The age limit must be longer than the longest put, because a put whose ledger was swept
        fails. Calling this again is safe, also while others put objects. If the call is cancelled,
        the next call continues.

        Args:
            older_than_s: Delete only ledgers that are older than this, in seconds.
            first: The id of the first ledger to look at.

        Returns:
            The ids of the ledgers that were deleted.

        Raises:
            CollectionOffError: Garbage collection is switched off. Nothing was deleted.
            MetadataWentBackError: The metadata store is in an older state than before. Nothing was
                deleted.
            MetadataError: The list of ledgers could not be read completely. Orphans that were found
                before are deleted.
            UsageError: An argument is not valid.
        """
        await check_collectable(self._store)
        deleted = []
        skipped: builtins.list[Skipped] = []
        async with aclosing(self.orphans(older_than_s, first=first)) as orphans:
            async for orphan in orphans:
                with skipping(f"ledger {orphan.ledger_id}", skipped):
                    if await self._discard(orphan.name, orphan.ledger_id):
                        deleted.append(orphan.ledger_id)
        log_skipped(logger, "the sweep of orphans of objects", skipped)
        return deleted

    async def _orphan(
        self, ledger_id: int, before_ms: int, skipped: builtins.list[Skipped]
    ) -> Orphan | None:
        with skipping(f"ledger {ledger_id}", skipped):
            try:
                value = (await self._store.read_ledger(ledger_id)).value
            except NoSuchLedgerError:
                return None
            name = self._name_of(value)
            if name is None or not 0 <= value.ctime_ms <= before_ms:
                return None
            with skipping(f"ledger {ledger_id} of {_what(name)}", skipped, UsageError):
                head, _ = await self._head(check_name(name))
                if head is None or head.ledger_id != ledger_id:
                    return Orphan(ledger_id, name, value.ctime_ms, value.length)
        return None

    async def _discard(self, name: str, ledger_id: int) -> bool:
        """Delete a ledger of an object unless the head names it, and return whether it is gone."""
        try:
            stored = await self._store.read_ledger(ledger_id)
            if self._name_of(stored.value) != name:
                return False  # the ledger was written for something else
            await update_ledger(self._store, ledger_id, stored, _condemned)
        except NoSuchLedgerError:
            return True

        async def unnamed() -> bool:
            head, stored = await self._head(name)
            if head is None:
                return True
            if head.ledger_id == ledger_id:
                return False
            # This write makes every put fail that has already read this head.
            await self._write_head(head, stored)
            return True

        if not await swap(_what(name), unnamed, self._client.rng, ask_again=True):
            return False
        await self._store.delete_ledger(ledger_id)
        return True

    async def _clean_up(self, name: str, ledger_id: int, level: int) -> None:
        """Call `_discard` for at most `CLEAN_UP_LIMIT_S` seconds, and only log a failure.

        `level` is the log level of that message.
        """
        try:
            async with asyncio.timeout(CLEAN_UP_LIMIT_S):
                await self._discard(name, ledger_id)
        except (QuireError, TimeoutError) as error:
            logger.log(
                level, "object %s: ledger %d is left for a sweep: %s", name, ledger_id, error
            )

    # -- heads --------------------------------------------------------------------------------

    def _key(self, name: str) -> tuple[str, ...]:
        return head_key(self.bucket, name)

    async def _newest(self, name: str) -> ObjectInfo | None:
        """Return the object as it is after all acknowledged changes, or None.

        A server of the store that lags behind may lack the present version, or have a deleted one.
        """
        await self._store.tree.sync()
        return (await self._head(name))[0]

    async def _head(
        self, name: str, *, damaged: bool = False
    ) -> tuple[ObjectInfo | None, Versioned[bytes] | None]:
        """Return the object with this name and its head as it is stored, or (None, None).

        With `damaged`, a head that cannot be decoded is returned as (None, head), but one that a
        later version wrote is an error too.
        """
        try:
            stored = await self._store.read_value(self._key(name))
        except NoSuchKeyError:
            return None, None
        try:
            return decode_head(name, stored.value), stored
        except LaterMetadataError:
            raise
        except MetadataError:
            if not damaged:
                raise
            return None, stored

    async def _write_head(self, info: ObjectInfo, stored: Versioned[bytes] | None) -> None:
        """Replace the head `stored`, which names its ledger and so differs from all others.

        Its version may be that of a later head: others may have deleted the object and put another
        one.
        """
        version, known = (None, None) if stored is None else (stored.version, stored.value)
        await self._store.write_value(self._key(info.name), encode_head(info), version, known=known)

    async def _remove_head(self, info: ObjectInfo) -> bool | None:
        """Delete the head of an object unless it names another version by now.

        Returns whether this call has deleted it, or None if the answer to an attempt was lost.
        """
        in_doubt = False

        async def attempt() -> bool:
            nonlocal in_doubt
            head, stored = await self._head(info.name)
            if head is not None and stored is not None and head.ledger_id == info.ledger_id:
                key, known = self._key(info.name), stored.value
                try:
                    # Others may have deleted it since, and then nothing is deleted here.
                    return await self._store.delete_value(key, stored.version, known=known)
                except QuireError as error:
                    in_doubt |= not error.outcome_known
                    raise
            return False

        removed = await swap(_what(info.name), attempt, self._client.rng, ask_again=True)
        return None if in_doubt else removed

    def _name_of(self, ledger: LedgerMetadata) -> str | None:
        """Return the name of the object of this bucket for which a ledger was written, or None."""
        if ledger.custom.get(BUCKET_KEY) != self.bucket.encode():
            return None
        name = ledger.custom.get(NAME_KEY)
        return None if name is None else name.decode(errors="replace")


# -- inside -----------------------------------------------------------------------------------


async def _write(writer: LedgerWriter, source: Source, chunk_bytes: int) -> tuple[str, int]:
    """Write all bytes to the ledger and close it, and return their SHA-256 and their number."""
    hashed = hashlib.sha256()
    size_bytes = 0
    async with aclosing(chunks_of(source, chunk_bytes)) as chunks:
        async for chunk in chunks:
            hashed.update(chunk)
            size_bytes += len(chunk)
            writer.submit(chunk)
            await writer.room()
            await asyncio.sleep(0)  # let answers be processed even if the source never waits
    await writer.close()
    return hashed.hexdigest(), size_bytes


def _perhaps_stored(info: ObjectInfo) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"{_what(info.name)} may have been stored in ledger {info.ledger_id}: an answer of the "
        "metadata store was lost, and other clients have changed the object since",
        remedy="Read the object, and put it again if it is not the one you want",
    )


def _condemned(now: LedgerMetadata) -> LedgerMetadata | None:
    if CONDEMNED_KEY in now.custom:
        return None
    return dataclasses.replace(now, custom={**now.custom, CONDEMNED_KEY: b"1"})


def listed_objects(
    bucket: Objects, prefix: str, after: str
) -> AsyncGenerator[builtins.list[ObjectInfo | Skipped], None]:
    """Yield pages of a bucket's objects, with those that cannot be read in their places.

    `prefix` and `after` are as for `Objects.list`. Use this for a list that people read page by
    page: `Objects.list` reports what cannot be read only after the last object.
    """
    return bucket._listed(prefix, after)


def _what(name: str) -> str:
    return f"object {name!r}"
