"""Objects: immutable blobs under a name, each in one sealed ledger, published in one
compare-and-swap.

    objects = client.objects()
    await objects.put("jobs/42/checkpoint-7", data)
    async with objects.get("jobs/42/checkpoint-7") as found:
        data = await found.read_all()

A reader sees a whole object or none: the ledger is written and closed first, and the head that
names it (`object_format`) is written last. What a put that died leaves behind is never seen, and
`sweep` removes it.

Who may delete a ledger, and when? A slow put could publish a ledger that a sweep, or a put that
replaces, is about to delete. Therefore a ledger is *condemned* first, by a mark in its own
metadata; then its head is looked at, by a write where there is one; and only where the head does
not name it, it is deleted. A put looks for the mark after it read the head that it swaps, and once
more where it made a head that was not there. Both write before they look, so at least one of them
sees the other: the object of a put that succeeded has its ledger. (One case is left to the age
limit of sweeps: a put that replaces sleeps right before its swap, while its ledger is swept and the
name is deleted and put again until its head has the same version.)

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
from quire.client import Client, LedgerWriter
from quire.client.client import DEFAULT_ACK_QUORUM, DEFAULT_ENSEMBLE_SIZE, DEFAULT_WRITE_QUORUM
from quire.client.skipped import NAMED_MAX, Skipped, log_skipped, skipping
from quire.client.swap import swap
from quire.codec.entry.digest import DigestType
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import (
    MetadataError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchObjectError,
    ObjectDamagedError,
    ObjectExistsError,
    QuireError,
    UsageError,
)
from quire.metadata.bookies.collection import check_collectable
from quire.metadata.ledgers.update import update_ledger
from quire.streams.objects.format import (
    BUCKET_KEY,
    CHUNK_BYTES_DEFAULT,
    CONDEMNED_KEY,
    NAME_KEY,
    ObjectInfo,
    check_bucket,
    check_chunk_bytes,
    check_metadata,
    check_name,
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
"""Of one page of a listing."""
LEDGERS_LOOKED_AT = 256
"""At a time, for orphans."""
OPEN_ATTEMPTS_MAX = 100
"""Of one `get`; each failure means that the object was replaced in between."""
CLEAN_UP_LIMIT_S = 5.0
"""Of a put that failed; what it cannot remove within that time is left for a sweep."""

logger = logging.getLogger("quire.objects")


@dataclass(frozen=True, slots=True)
class Orphan:
    """A ledger that was written for an object and is no object's now."""

    ledger_id: int
    name: str
    """Of the object that it was written for."""
    ctime_ms: int
    size_bytes: int
    """0 where it was never closed."""


class Objects(Ready):
    """The objects of one bucket of a cluster.

    All calls raise MetadataUnavailableError when the store does not answer; unless said otherwise
    the outcome of a change is unknown then.
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
        """Store all bytes of `source` (a buffer, or an async iterator of buffers) under `name`.

        On return the object is durable, on at least `ack_quorum` bookies, and every later `get`
        finds it. Before that nobody sees anything of it. Memory is bounded by
        `ClientConfig.max_unacked_bytes`, `chunk_bytes` and the largest buffer of the source.

        `replace`: take the place of what has the name, in one step, and delete its ledger; who
        reads the old version may go on for a while (see `ObjectReader`). A function is asked about
        what is there, in the moment in which it is replaced. Without it, or where it says no,
        ObjectExistsError, before anything is written where the object is there at the beginning.

        Raises UsageError for a bad name, size or metadata; what `create_ledger` and `append` raise,
        and what the source raises: then the object is not there and its ledger is deleted, or left
        for `sweep`. NoSuchLedgerError when a sweep has taken the ledger (its age limit was shorter
        than this put). If cancelled, or after MetadataUnavailableError, the object is there as a
        whole or not at all.
        """
        check_name(name)
        check_chunk_bytes(chunk_bytes)
        check_metadata(name, metadata or {})
        check_source(source)
        if not replace:
            await self._refuse_taken((await self._head(name))[0])
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
            # Where it was published after all, the head names it and it stays.
            await self._clean_up(name, writer.ledger_id, logging.INFO)
            raise
        if previous is not None:
            await self._clean_up(name, previous.ledger_id, logging.WARNING)
        return info

    async def _publish(
        self, info: ObjectInfo, replace: bool | Callable[[ObjectInfo], bool]
    ) -> ObjectInfo | None:
        """Make the head name the ledger; what it named before."""
        previous: ObjectInfo | None = None

        async def attempt() -> None:
            nonlocal previous
            head, version = await self._head(info.name)
            if head is not None and head.ledger_id == info.ledger_id:
                return  # the answer to an earlier attempt was lost
            if not replace or (head is not None and callable(replace) and not replace(head)):
                await self._refuse_taken(head)
            await self._refuse_condemned(info)
            previous = head
            await self._store.write_value(self._key(info.name), encode_head(info), version)

        await swap(_what(info.name), attempt, self._client.rng, ask_again=True)
        if previous is None:
            # No write of whoever deletes could come in between, as it does where there is a head.
            try:
                await swap(
                    _what(info.name),
                    lambda: self._refuse_condemned(info),
                    self._client.rng,
                    ask_again=True,
                )
            except NoSuchLedgerError:
                await self._remove_head(info)
                raise
        return previous

    async def _refuse_taken(self, head: ObjectInfo | None) -> None:
        """ObjectExistsError, unless the name is free."""
        if head is None:
            return
        try:
            await self._store.read_ledger(head.ledger_id)
        except NoSuchLedgerError:
            return  # nobody can read it
        raise ObjectExistsError(
            f"object {head.name!r} exists already in bucket {self.bucket!r} (ledger "
            f"{head.ledger_id}); it was not changed",
            remedy="Choose another name, or replace it",
        )

    async def _refuse_condemned(self, info: ObjectInfo) -> None:
        try:
            if CONDEMNED_KEY not in (await self._store.read_ledger(info.ledger_id)).value.custom:
                return
        except NoSuchLedgerError:
            pass
        raise NoSuchLedgerError(
            f"object {info.name!r}: ledger {info.ledger_id} was swept before it was published; "
            "there is no such object, or it was replaced",
            remedy="Put it again; sweep with an age limit longer than the longest put",
        )

    # -- looking ------------------------------------------------------------------------------

    async def info(self, name: str) -> ObjectInfo:
        """What is known of the object now. Raises NoSuchObjectError, MetadataError when it cannot
        be understood. Cancel-safe."""
        head, _ = await self._head(check_name(name))
        if head is None:
            raise NoSuchObjectError(
                f"object {name!r} does not exist in bucket {self.bucket!r}",
                remedy="Check the name and the bucket; nothing may have been put yet",
            )
        return head

    @opening
    async def get(self, name: str) -> ObjectReader:
        """Open the object as it is now. Raises NoSuchObjectError, ObjectDamagedError. Cancel-safe.
        The reader stays with this version, see there."""
        for _ in range(OPEN_ATTEMPTS_MAX):
            info = await self.info(name)
            try:
                return ObjectReader(info, await self._client.open_ledger(info.ledger_id))
            except NoSuchLedgerError as error:
                await self._store.tree.sync()  # a deleted head may still be visible
                if (await self._head(name))[0] == info:
                    raise ObjectDamagedError(
                        f"object {name!r} is lost: its ledger {info.ledger_id} was deleted, and "
                        "the object was not",
                        remedy="Put it again from where its bytes came from",
                    ) from error
        raise MetadataError(f"{_what(name)} was replaced {OPEN_ATTEMPTS_MAX} times while opened")

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects whose names begin with `prefix` and come after `after`, sorted by code
        points.

        They are read in pages, so memory is bounded. Objects that are put or deleted meanwhile may
        be missing or not. Cancel-safe: continue after the last name. Objects that cannot be decoded
        are left out. They are named in the MetadataError that ends the listing after all the
        others.
        """
        async with aclosing(self.pages(prefix, after=after)) as pages:
            async for page in pages:
                for info in page:
                    yield info

    async def pages(
        self, prefix: str = "", *, after: str = ""
    ) -> AsyncGenerator[builtins.list[ObjectInfo], None]:
        """As `list`, some (at most 100) at a time."""
        *folder, _ = prefix.split("/")
        if any(part in ("", ".", "..") for part in folder):
            return  # no name begins like that
        page: builtins.list[str] = []
        skipped: builtins.list[Skipped] = []
        async with aclosing(self._names(folder, prefix, after)) as names:
            async for name in names:
                page.append(name)
                if len(page) == PAGE_OBJECTS:
                    yield await self._infos(page, skipped)
                    page = []
        if page:
            yield await self._infos(page, skipped)
        if skipped:
            named = "; ".join(map(str, skipped[:NAMED_MAX]))
            raise MetadataError(
                f"{len(skipped)} objects of bucket {self.bucket!r} cannot be read, all others were "
                f"listed: {named}"
            )

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

    async def _infos(
        self, names: builtins.list[str], skipped: builtins.list[Skipped]
    ) -> builtins.list[ObjectInfo]:
        async def info(name: str) -> ObjectInfo | None:
            with skipping(_what(name), skipped):
                return (await self._head(name))[0]
            return None

        return [found for found in await each(names, info) if found is not None]

    # -- deleting -----------------------------------------------------------------------------

    async def delete(self, name: str) -> bool:
        """Delete the object and its ledger; whether there was one (a missing one is success). On
        return no `get` finds it; bookies free its space at their next garbage collection. Where the
        ledger could not be deleted it is left for `sweep`. Safe to call again; cancel-safe."""
        gone = (await self._head(check_name(name)))[0]
        if gone is None:
            return False
        await self._remove_head(gone)
        await self._clean_up(name, gone.ledger_id, logging.WARNING)
        return True

    async def orphans(self, older_than_s: float, *, first: int = 0) -> AsyncGenerator[Orphan, None]:
        """Return the ledgers that were written for objects of this bucket, are older than the
        limit, and belong to no object now.

        They were left by puts that died, or that are still in progress. Reads the metadata of every
        ledger from `first` on. Ledgers without a creation time are not found. Ledgers and objects
        that cannot be read are skipped, and a warning in the log names them. A ledger that was
        written for such an object is not returned: the object may name it.
        """
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
        """Delete the `orphans`, and return their ids.

        The age limit must be longer than the longest put. A put whose ledger is swept fails; it
        never publishes an object without bytes. Safe to call again, and while others put; if
        cancelled, the next call continues. Raises CollectionOffError or MetadataWentBackError if
        nothing may be deleted according to this metadata store.
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
        """Delete a ledger of an object, unless the head names it. Whether it is gone."""
        try:
            stored = await self._store.read_ledger(ledger_id)
            if self._name_of(stored.value) != name:
                return False  # not ours to delete
            await update_ledger(self._store, ledger_id, stored, _condemned)
        except NoSuchLedgerError:
            return True

        async def unnamed() -> bool:
            head, version = await self._head(name)
            if head is None:
                return True
            if head.ledger_id == ledger_id:
                return False
            # So that a put that has read this head already does not succeed any more.
            await self._store.write_value(self._key(name), encode_head(head), version)
            return True

        if not await swap(_what(name), unnamed, self._client.rng, ask_again=True):
            return False
        await self._store.delete_ledger(ledger_id)
        return True

    async def _clean_up(self, name: str, ledger_id: int, level: int) -> None:
        """`_discard`, as far as it goes."""
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

    async def _head(self, name: str) -> tuple[ObjectInfo | None, int | None]:
        """What the name stands for, and the version; (None, None) if for nothing."""
        try:
            stored = await self._store.read_value(self._key(name))
        except NoSuchKeyError:
            return None, None
        return decode_head(name, stored.value), stored.version

    async def _remove_head(self, info: ObjectInfo) -> None:
        """Unless it names another version by now."""

        async def attempt() -> None:
            head, version = await self._head(info.name)
            if version is not None and head is not None and head.ledger_id == info.ledger_id:
                await self._store.delete_value(self._key(info.name), version)

        await swap(_what(info.name), attempt, self._client.rng, ask_again=True)

    def _name_of(self, ledger: LedgerMetadata) -> str | None:
        """The object of this bucket that a ledger was written for."""
        if ledger.custom.get(BUCKET_KEY) != self.bucket.encode():
            return None
        name = ledger.custom.get(NAME_KEY)
        return None if name is None else name.decode(errors="replace")


# -- inside -----------------------------------------------------------------------------------


async def _write(writer: LedgerWriter, source: Source, chunk_bytes: int) -> tuple[str, int]:
    """All bytes into the ledger, which is closed then; their SHA-256, and how many they are."""
    hashed = hashlib.sha256()
    size_bytes = 0
    async with aclosing(chunks_of(source, chunk_bytes)) as chunks:
        async for chunk in chunks:
            hashed.update(chunk)
            size_bytes += len(chunk)
            writer.submit(chunk)
            await writer.room()
            await asyncio.sleep(0)  # a source that never waits must not keep the answers waiting
    await writer.close()
    return hashed.hexdigest(), size_bytes


def _condemned(now: LedgerMetadata) -> LedgerMetadata | None:
    if CONDEMNED_KEY in now.custom:
        return None
    return dataclasses.replace(now, custom={**now.custom, CONDEMNED_KEY: b"1"})


def _what(name: str) -> str:
    return f"object {name!r}"
