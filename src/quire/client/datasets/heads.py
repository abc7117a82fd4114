"""The head of a dataset, which names its ledgers, and the chunks of its list.

The metadata store holds a head for each dataset. It names ledgers itself, or chunks that name
them. A publication stores its chunks first and then swaps the head, so a reader of the head never
sees a part of a publication. Chunks that no head names any more are removed afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from quire._runtime.tasks import each
from quire.client.compare_and_swap import UPDATE_ATTEMPTS_MAX, too_many_conflicts
from quire.client.datasets.format import (
    CHUNK_REMEDY,
    VALUE_BYTES_MAX,
    Chunk,
    DatasetLedger,
    Head,
    chunk_base_version,
    decode_chunk,
    decode_head,
    encode_head,
    split,
)
from quire.client.datasets.schema import DatasetSchema
from quire.errors import (
    KeyExistsError,
    LaterMetadataError,
    MetadataError,
    NoSuchKeyError,
    VersionConflictError,
)
from quire.metadata.interface import MetadataStore

HEADS = "datasets"
CHUNKS = "dataset_chunks"

logger = logging.getLogger("quire.datasets")


class DatasetHeads:
    """The heads and chunks of the datasets of one cluster.

    Every call raises MetadataUnavailableError if the metadata store does not answer. Reads are
    cancel-safe. The outcome of a cancelled change is unknown.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def names(self) -> list[str]:
        """Return the names of all datasets that were ever published, also of dropped ones."""
        await self._store.tree.sync()
        return await self._store.list_values((HEADS,))

    async def newest(self, name: str) -> Head:
        """Return the head with all acknowledged changes, even if a server lags behind them.

        Raises MetadataError if the head is damaged.
        """
        await self._store.tree.sync()
        return (await self.read(name))[0]

    async def read(self, name: str) -> tuple[Head, int | None]:
        """Return the head and its version, or None as the version if nothing was ever stored.

        A server may lag behind. Raises MetadataError if the head is damaged.
        """
        try:
            stored = await self._store.read_value((HEADS, name))
        except NoSuchKeyError:
            return Head(), None
        return decode_head(name, stored.value), stored.version

    async def newest_ledgers(self, name: str) -> tuple[Head, tuple[DatasetLedger, ...]]:
        """Return the head with all acknowledged changes, and all ledgers of the dataset.

        Raises MetadataError if the dataset is damaged, or if other clients changed it during each
        of 100 attempts.
        """
        await self._store.tree.sync()
        for _ in range(UPDATE_ATTEMPTS_MAX):
            head, version = await self.read(name)
            try:
                return head, await self.ledgers(name, head, version)
            except VersionConflictError:
                continue
        raise too_many_conflicts(f"dataset {name!r}", "read")

    async def ledgers(
        self, name: str, head: Head, version: int | None
    ) -> tuple[DatasetLedger, ...]:
        """Return all ledgers of the head that has this version.

        Raises VersionConflictError if the head was replaced meanwhile, and MetadataError if the
        dataset is damaged.
        """

        async def load(chunk: Chunk) -> tuple[DatasetLedger, ...]:
            return decode_chunk(name, chunk, await self._chunk(name, chunk))

        try:
            parts = await each(head.chunks, load)
        except NoSuchKeyError as error:
            # A chunk may be deleted once the head was replaced. Before that, it is lost.
            if (await self.read(name))[1] != version:
                raise VersionConflictError(
                    f"dataset {name!r} was changed while its list of ledgers was read",
                    remedy="Read the dataset again",
                ) from error
            raise MetadataError(
                f"dataset {name!r} is damaged: a part of its list of ledgers is missing "
                f"in the metadata store ({error.args[0]})",
                remedy=CHUNK_REMEDY,
            ) from error
        return (*(ledger for part in parts for ledger in part), *head.ledgers)

    async def readable_ledgers(
        self, name: str, head: Head
    ) -> tuple[tuple[DatasetLedger, ...], Sequence[str]]:
        """Return the ledgers of a head as far as they can be read, and what is wrong with the rest.

        The result means something only if a compare-and-swap on the version of this head succeeds
        afterwards: the chunks of a head that was replaced may have been deleted. Raises
        LaterMetadataError if a later version wrote a chunk.
        """
        lost: list[str] = []

        async def load(chunk: Chunk) -> tuple[DatasetLedger, ...]:
            try:
                data = await self._chunk(name, chunk)
            except NoSuchKeyError as error:
                lost.append(str(error.args[0]))
                return ()
            try:
                return decode_chunk(name, chunk, data)
            except LaterMetadataError:
                raise
            except MetadataError as error:
                lost.append(str(error.args[0]))
                return ()

        parts = await each(head.chunks, load)
        return (*(ledger for part in parts for ledger in part), *head.ledgers), lost

    async def _chunk(self, name: str, chunk: Chunk) -> bytes:
        return (await self._store.read_value((CHUNKS, name, chunk.chunk_id))).value

    async def publish(
        self,
        name: str,
        head: Head,
        version: int | None,
        added: Sequence[DatasetLedger],
        overwrite: bool,
        txn: str | None,
        schema: DatasetSchema | None,
    ) -> int:
        """Add ledgers to the head that has this version, and return the number of publications.

        With `overwrite` the ledgers replace those of the head. The errors are those of
        `MetadataStore.write_value`, and UsageError if the dataset would become too large.
        """
        kept, tail = ((), ()) if overwrite else (head.chunks, head.ledgers)
        chunks, inline = split((*tail, *added), version)
        new = head.published((*kept, *(chunk for chunk, _ in chunks)), inline, txn, schema)
        encode_head(name, new, VALUE_BYTES_MAX)  # raises before anything is stored

        async def store(part: tuple[Chunk, bytes]) -> None:
            try:
                await self._store.write_value((CHUNKS, name, part[0].chunk_id), part[1], None)
            except KeyExistsError:
                pass  # the id contains a digest, so the stored chunk has the same bytes

        await each(chunks, store)
        await self.write(name, new, version)
        if head.chunks or chunks:
            await self.remove_chunks(name)
        return new.sequence

    async def write(self, name: str, head: Head, version: int | None) -> None:
        """Replace the head that has this version, or store the first one if the version is None.

        The errors are those of `MetadataStore.write_value`, and UsageError if the head is too
        large.
        """
        await self._store.write_value((HEADS, name), encode_head(name, head), version)

    async def remove_chunks(self, name: str) -> None:
        """Delete the chunks that no head can name any more.

        This is best effort. A later call finds the chunks that it leaves.
        """
        try:
            found = await self._store.list_values((CHUNKS, name))
            head, version = await self.read(name)
            named = {chunk.chunk_id for chunk in head.chunks}
            for chunk_id in found:
                base = chunk_base_version(chunk_id)
                if chunk_id in named or base is None or version is None or base >= version:
                    continue
                await self._store.delete_value((CHUNKS, name, chunk_id))
        except MetadataError as error:
            logger.warning(
                "dataset %s: old chunks were not removed: %s", name, error,
                extra={"event": "chunks_not_removed", "dataset": name, "error": str(error)},
            )  # fmt: skip
