"""Datasets: named sets of ledgers that are published in one compare-and-swap.

    datasets = client.datasets
    await datasets.publish("flights", [DatasetLedger(7, 0, 99, 100, 5120)], txn="2026-11-03")
    for ledger in (await datasets.read("flights")).ledgers: ...

A reader sees all ledgers of a publication or none. Ledgers are written first and published last.
Ledgers of writers that died are never part of a dataset, and `sweep_orphans` deletes them. A
dataset does not store the passwords of its ledgers.

Publishing and deleting could race: a sweep finds an unpublished ledger, a slow job publishes it,
and the sweep deletes it. Therefore a sweep *condemns* ledgers first, by a compare-and-swap on the
head that a publication swaps as well. A condemned ledger can no longer be published, and a
published ledger cannot be condemned.

`quire.blocking.Datasets` is the blocking form.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.opening import Ready, represented
from quire._runtime.tasks import each
from quire._runtime.units import end_text
from quire.client.checks import checked_ledger_id
from quire.client.compare_and_swap import UPDATE_ATTEMPTS_MAX, swap, too_many_conflicts
from quire.client.datasets.format import (
    CHUNK_REMEDY,
    CONDEMNED_MAX,
    VALUE_BYTES_MAX,
    Chunk,
    DatasetLedger,
    Head,
    check_dataset_name,
    check_transaction_key,
    chunk_base_version,
    decode_chunk,
    decode_head,
    encode_head,
    split,
)
from quire.client.datasets.schema import DatasetSchema, check_partition
from quire.client.unreadable_items import Skipped, log_skipped, skipping
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import (
    ArgumentTypeError,
    KeyExistsError,
    LaterMetadataError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchKeyError,
    NoSuchLedgerError,
    QuireError,
    UsageError,
    VersionConflictError,
    check_seconds,
)
from quire.metadata.bookies.collection import check_collectable, may_collect
from quire.metadata.interface import MetadataStore

__all__ = [
    "Dataset",
    "DatasetLedger",
    "DatasetOrphan",
    "DatasetOrphans",
    "Datasets",
    "Publication",
    "Skipped",
    "Sweep",
]

HEADS = "datasets"
CHUNKS = "dataset_chunks"
OWNER_KEY = "quire.dataset"
"""The key of a ledger's custom metadata that holds the dataset for which the ledger was written.
This module deletes only ledgers that have their dataset's name here."""
JOB_KEY = "quire.job"
"""The key of a ledger's custom metadata that holds the job that wrote the ledger."""

IDS_NAMED_MAX = 10
"""The number of ledger ids, or of lost parts of a list, that one message names."""

logger = logging.getLogger("quire.datasets")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as it was at one moment."""

    name: str
    """The name of the dataset."""
    sequence: int
    """The number of publications so far."""
    ledgers: tuple[DatasetLedger, ...]
    """The ranges of entries that the dataset consists of, in the order of their publications."""
    transactions: Mapping[str, int]
    """The newest transaction keys, each with the sequence number of its publication."""
    schema: DatasetSchema | None = None
    """The schema of the rows, or None if each entry is a row of its own."""

    @property
    def ledger_ids(self) -> list[int]:
        """The ids of the ledgers, each once, in the order of the dataset."""
        return list(dict.fromkeys(ledger.ledger_id for ledger in self.ledgers))

    @property
    def rows(self) -> int:
        """The number of rows in all ledgers."""
        return sum(ledger.rows for ledger in self.ledgers)

    @property
    def bytes(self) -> int:
        """The number of payload bytes in all ledgers."""
        return sum(ledger.bytes for ledger in self.ledgers)


@dataclass(frozen=True, slots=True)
class Publication:
    """The result of `Datasets.publish`."""

    sequence: int
    """The sequence number of the publication with this transaction key."""
    repeated: bool
    """Whether the key had been published before, by another client or by an earlier attempt of this
    call."""
    replaced: tuple[DatasetLedger, ...] = ()
    """The ledgers that an overwrite removed from the dataset. They still exist: delete them with
    `discard`."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of a sweep."""

    deleted: list[int]
    """The ids of the deleted ledgers, ascending."""
    skipped: list[Skipped]
    """The ledgers and datasets that could not be read. Nothing that they may own was deleted."""


@dataclass(frozen=True, slots=True)
class DatasetOrphan:
    """A ledger that was written for a dataset and that the dataset does not name."""

    ledger_id: int
    """The id of the ledger."""
    dataset: str
    """The name of the dataset for which the ledger was written."""
    job: str
    """The job that wrote the ledger, or "" if its metadata names none."""
    ctime_ms: int
    """The time at which the ledger was created, in milliseconds since 1970."""
    bytes: int
    """The number of payload bytes in the ledger, or 0 if it was never closed."""


@dataclass(frozen=True, slots=True)
class DatasetOrphans:
    """The result of a search for orphans."""

    orphans: list[DatasetOrphan]
    """The orphans, in the order of their ledger ids."""
    skipped: list[Skipped]
    """The ledgers and datasets that could not be read. Nothing that they may own is an orphan."""


class Datasets(Ready):
    """The datasets of one cluster. `client.datasets` returns it.

    Every call raises MetadataUnavailableError if the metadata store does not answer. The outcome of
    a change is then unknown, unless the call says otherwise. If the client is closed, every call
    raises ClientClosedError.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._store = store
        self._rng = rng or random.Random()
        self._clock = clock or SystemClock()

    # -- reading ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return represented(self, cluster=self._store.uri)

    async def read(self, name: str) -> Dataset:
        """Read a dataset as it is now.

        Cancelling this call is safe.

        Args:
            name: The name of the dataset.

        Returns:
            The dataset, with every ledger that was published and no other.

        Raises:
            NoSuchKeyError: The dataset does not exist.
            MetadataError: The dataset is damaged or has an unknown format, or other clients changed
                it during each of 100 attempts.
            UsageError: The name is not valid.
        """
        check_dataset_name(name)
        await self._store.tree.sync()
        for _ in range(UPDATE_ATTEMPTS_MAX):
            head, version = await self._head(name)
            if not head.exists:
                raise no_such_dataset(name)
            try:
                ledgers = await self._ledgers(name, head, version)
            except VersionConflictError:
                continue
            return Dataset(name, head.sequence, ledgers, head.transactions, head.schema)
        raise too_many_conflicts(f"dataset {name!r}")

    async def read_schema(self, name: str) -> DatasetSchema | None:
        """Read the schema of a dataset, without its list of ledgers.

        Cancelling this call is safe.

        Args:
            name: The name of the dataset.

        Returns:
            The schema, or None if each entry of the dataset is a row of its own.

        Raises:
            NoSuchKeyError: The dataset does not exist.
            MetadataError: The head of the dataset is damaged or has an unknown format.
            UsageError: The name is not valid.
        """
        check_dataset_name(name)
        head = await self._newest(name)
        if not head.exists:
            raise no_such_dataset(name)
        return head.schema

    async def find_transaction(self, name: str, txn: str) -> int | None:
        """Find the publication that used a transaction key.

        Cancelling this call is safe.

        Args:
            name: The name of the dataset.
            txn: The transaction key.

        Returns:
            The sequence number of the publication, or None if the dataset does not exist, or if the
            key was never published to it or has been forgotten (see `publish`).

        Raises:
            MetadataError: The head of the dataset is damaged or has an unknown format.
            UsageError: The name is not valid.
        """
        check_dataset_name(name)
        return (await self._newest(name)).transactions.get(txn)

    async def list_datasets(self) -> list[str]:
        """List the names of all datasets.

        Each head is read. A dataset that cannot be read is listed too, with a warning in the log:
        `read` reports what is wrong with it. Cancelling this call is safe.

        Returns:
            The names, sorted.
        """
        await self._store.tree.sync()
        names = await self._store.list_values((HEADS,))
        skipped: list[Skipped] = []

        async def exists(name: str) -> bool:
            with skipping(f"dataset {name!r}", skipped, UsageError):
                return (await self._head(name))[0].exists
            return True

        found = await each(names, exists)
        log_skipped(logger, "the listing of datasets", skipped)
        return [name for name, there in zip(names, found) if there]

    # -- publishing ---------------------------------------------------------------------------

    async def publish(
        self,
        name: str,
        ledgers: Iterable[DatasetLedger],
        *,
        overwrite: bool = False,
        txn: str | None = None,
        schema: DatasetSchema | None = None,
    ) -> Publication:
        """Add ledgers to a dataset, or replace all its ledgers, in one step.

        On return the publication is as durable as the metadata store, and every later `read`
        includes it. With a transaction key the call is idempotent: a key that was published before
        changes nothing, and the call itself repeats an attempt whose outcome is unknown. A dataset
        remembers its newest 1,000 keys, across overwrites, until it is dropped. If the call is
        cancelled, the outcome is unknown.

        Args:
            name: The name of the dataset, which is created if it does not exist.
            ledgers: The ledgers to add. Ranges of the same ledger must not overlap. Ranges that
                earlier calls published are not compared with them.
            overwrite: Whether the new ledgers replace all ledgers of the dataset. The replaced
                ledgers are not deleted. If parts of the old list are missing or damaged, the
                ledgers in them are replaced as well, but the result cannot name them. A warning in
                the log says so.
            txn: A transaction key, which identifies this publication if it is repeated.
            schema: The schema of the rows, if the entries are Arrow batches of
                `quire.client.datasets.rows`. A new dataset gets this schema, and an overwrite
                replaces the schema. Otherwise it must be that of the dataset.

        Returns:
            The sequence number, and what an overwrite replaced.

        Raises:
            NoSuchLedgerError: A ledger does not exist or is being deleted, for example by a sweep
                whose age limit is shorter than the job. Nothing was published.
            UsageError: An argument is not valid, two ranges overlap, a ledger is not closed, ends
                before a range or was written for another dataset, the dataset has another schema,
                or it would become too large. Nothing was published.
            MetadataUnavailableError: The metadata store does not answer. The outcome is unknown.
                With a transaction key, call again with the same arguments.
            MetadataError: The head of the dataset is damaged, or other clients changed the dataset
                during each of 100 attempts. Nothing was published. Without `overwrite`, it is not
                noticed if a part of the dataset's list of ledgers is missing or damaged.
        """
        check_dataset_name(name)
        added = _parts(ledgers)
        _check_apart(name, added)
        for ledger in added:
            check_partition(schema, ledger.partition)
        if txn is not None:
            check_transaction_key(txn)
        tried = -1
        replaced: tuple[DatasetLedger, ...] = ()
        lost: Sequence[str] = ()

        async def attempt() -> Publication:
            nonlocal tried, replaced, lost
            head, version = await self._head(name)
            if txn is not None and (done := head.transactions.get(txn)) is not None:
                # If this call made the publication and only the answer was lost, it knows which
                # ledgers it replaced.
                return Publication(done, True, replaced if done == tried else ())
            if overwrite:
                replaced, lost = await self._readable_ledgers(name, head)
            if head.exists and not overwrite and head.schema != schema:
                raise other_schema(name, head.schema, schema)
            tried = head.sequence + 1
            await self._check_publishable(name, head, added)
            sequence = await self._swap(name, head, version, added, overwrite, txn, schema)
            return Publication(sequence, False, replaced)

        done = await swap(f"dataset {name!r}", attempt, self._rng, ask_again=txn is not None)
        if not done.repeated or done.sequence == tried:
            _tell_lost(name, lost)
        return done

    async def drop(self, name: str, *, delete_ledgers: bool = False) -> Dataset | None:
        """Remove a dataset.

        On return the removal is as durable as the metadata store. The transaction keys are
        forgotten. A value of about 100 bytes stays in the metadata store. If the call is cancelled,
        the dataset may or may not have been removed.

        Args:
            name: The name of the dataset.
            delete_ledgers: Whether to delete also those ledgers of the dataset that were written
                for it. This happens after the removal. If it fails, the dataset is removed, and
                `sweep` deletes the rest later.

        Returns:
            The dataset as it was, or None if it did not exist. If parts of its list of ledgers are
            missing or damaged, the ledgers in them are not included. A warning in the log says so.

        Raises:
            MetadataError: The head of the dataset is damaged, so the dataset cannot be dropped, or
                other clients changed the dataset during each of 100 attempts.
            UsageError: The name is not valid.
        """
        check_dataset_name(name)
        lost: Sequence[str] = ()
        await self._store.tree.sync()

        async def attempt() -> Dataset | None:
            nonlocal lost
            head, version = await self._head(name)
            if not head.exists:
                return None
            ledgers, lost = await self._readable_ledgers(name, head)
            await self._write(name, head.dropped(), version)
            return Dataset(name, head.sequence, ledgers, head.transactions, head.schema)

        dropped = await swap(f"dataset {name!r}", attempt, self._rng)
        if dropped is not None:
            _tell_lost(name, lost)
            await self._remove_chunks(name)
            if delete_ledgers:
                await self.discard(name, dropped.ledger_ids)
        return dropped

    # -- deleting ledgers ---------------------------------------------------------------------

    async def discard(self, name: str, ledger_ids: Iterable[int]) -> list[int]:
        """Delete ledgers that were written for a dataset and that it does not contain.

        Afterwards none of the deleted ledgers can be published. The call is safe to repeat, and
        safe while others publish. If it is cancelled, the next call for the dataset deletes the
        ledgers that this one condemned.

        Args:
            name: The name of the dataset.
            ledger_ids: The ids of the ledgers. Ledgers that the dataset contains, that were written
                for another one, or whose metadata cannot be read are not deleted.

        Returns:
            The ids of the deleted ledgers.

        Raises:
            MetadataError: The dataset is damaged, so it is not known which ledgers it contains, or
                other clients changed the dataset during each of 100 attempts. Ledgers may have been
                deleted: call this again.
            UsageError: The name or an id is not valid.
        """
        check_dataset_name(name)
        wanted = sorted({checked_ledger_id(ledger_id) for ledger_id in ledger_ids})
        mine = [
            ledger_id
            for ledger_id, owner in zip(wanted, await each(wanted, self._owner))
            if owner == name
        ]
        deleted: list[int] = []
        for at in range(0, len(mine), CONDEMNED_MAX):
            deleted += await self._discard_some(name, mine[at : at + CONDEMNED_MAX])
        return deleted

    async def sweep_orphans(
        self,
        older_than_s: float,
        *,
        name: str | None = None,
        job: str | None = None,
        first: int = 0,
        keep: Iterable[int] = (),
        look_at_most: int | None = None,
    ) -> list[int]:
        """Delete the ledgers that `sweep` deletes. A warning in the log names the skipped items.

        Args:
            older_than_s: As for `sweep`.
            name: As for `sweep`.
            job: As for `sweep`.
            first: As for `sweep`.
            keep: As for `sweep`.
            look_at_most: As for `sweep`.

        Returns:
            The ids of the deleted ledgers, ascending.

        Raises:
            QuireError: The errors of `sweep`.
        """
        swept = await self.sweep(
            older_than_s, name=name, job=job, first=first, keep=keep, look_at_most=look_at_most
        )
        log_skipped(logger, "the sweep of orphans", swept.skipped)
        return swept.deleted

    async def sweep(
        self,
        older_than_s: float,
        *,
        name: str | None = None,
        job: str | None = None,
        first: int = 0,
        keep: Iterable[int] = (),
        look_at_most: int | None = None,
    ) -> Sweep:
        """Delete old ledgers that were written for a dataset but are not published.

        A ledger belongs to a dataset if its custom metadata `quire.dataset` names it. A ledger or a
        dataset that cannot be read is skipped, and the sweep continues. The ledgers that were
        written for a dataset that cannot be read are kept, because it may contain them. Ledgers
        whose metadata names no dataset, or has no creation time, are never deleted.

        Ledgers of a job that is still running are unpublished as well, so the age limit must be
        longer than the longest job. If ledgers of a running job were swept, its `publish` raises
        NoSuchLedgerError, so a dataset never has gaps.

        The call is safe to repeat, and safe while others publish. If it is cancelled, the next
        sweep continues.

        Args:
            older_than_s: The age limit, in seconds. Younger ledgers are kept.
            name: Sweep only the ledgers of this dataset.
            job: Sweep only the ledgers of this job.
            first: The smallest ledger id to look at.
            keep: The ids of ledgers that are kept in any case.
            look_at_most: The largest number of ledgers whose metadata is read. The default is no
                limit.

        Returns:
            The ids of the deleted ledgers, and the items that were skipped.

        Raises:
            CollectionOffError: Garbage collection is switched off. Nothing was deleted. A sweep of
                one `job`, which runs after the job, then returns an empty result instead.
            MetadataWentBackError: The metadata store is in an older state than before. Nothing was
                deleted. A sweep of one `job` then returns an empty result instead.
            MetadataError: The list of ledgers could not be read completely. Nothing was deleted.
            UsageError: An argument is not valid.
        """
        if name is not None:
            check_dataset_name(name)
        check_seconds("older_than_s", older_than_s)
        if look_at_most is not None and look_at_most < 0:
            raise UsageError(
                f"look_at_most must be a number of ledgers from 0 on, not {look_at_most}"
            )
        if job is None:
            await check_collectable(self._store)
        elif not await may_collect(self._store):
            return Sweep([], [])
        found, skipped = await self._unpublished_candidates(
            older_than_s, name, job, first, keep, look_at_most
        )
        deleted = await self._discard_all(found, skipped)
        return Sweep(deleted, skipped)

    async def look_for_orphans(
        self,
        older_than_s: float,
        *,
        name: str | None = None,
        job: str | None = None,
        first: int = 0,
    ) -> DatasetOrphans:
        """Find the ledgers that `sweep` would delete, without deleting anything.

        A job that is still running may publish some of them. Cancelling this call is safe.

        Args:
            older_than_s: As for `sweep`.
            name: As for `sweep`.
            job: As for `sweep`.
            first: As for `sweep`.

        Returns:
            The orphans, and the ledgers and datasets that could not be read.

        Raises:
            MetadataError: The list of ledgers could not be read completely.
            UsageError: An argument is not valid.
        """
        if name is not None:
            check_dataset_name(name)
        check_seconds("older_than_s", older_than_s)
        found, skipped = await self._unpublished_candidates(
            older_than_s, name, job, first, (), None
        )
        orphans: list[DatasetOrphan] = []
        for owner, candidates in found.items():
            ledger_ids = [one.ledger_id for one in candidates]
            with _kept_if_unreadable(owner, ledger_ids, skipped):
                held = await self._held(owner)
                orphans += (one for one in candidates if one.ledger_id not in held)
        return DatasetOrphans(sorted(orphans, key=lambda one: one.ledger_id), skipped)

    async def delete_orphans(self, orphans: Iterable[DatasetOrphan]) -> Sweep:
        """Delete orphans that `look_for_orphans` found.

        A ledger that a dataset names by now is kept. The call is safe to repeat, and safe while
        others publish. If it is cancelled, the next sweep continues.

        Args:
            orphans: The orphans.

        Returns:
            The ids of the deleted ledgers, and the datasets that could not be read, with the
            ledgers that were kept for that reason.

        Raises:
            CollectionOffError: Garbage collection is switched off. Nothing was deleted.
            MetadataWentBackError: The metadata store is in an older state than before. Nothing was
                deleted.
        """
        await check_collectable(self._store)
        found: dict[str, list[DatasetOrphan]] = {}
        for orphan in orphans:
            found.setdefault(orphan.dataset, []).append(orphan)
        skipped: list[Skipped] = []
        return Sweep(await self._discard_all(found, skipped), skipped)

    async def _unpublished_candidates(
        self,
        older_than_s: float,
        name: str | None,
        job: str | None,
        first: int,
        keep: Iterable[int],
        look_at_most: int | None,
    ) -> tuple[dict[str, list[DatasetOrphan]], list[Skipped]]:
        """Return the old ledgers that were written for datasets, by the name of their dataset.

        Some of them may be published: the heads are not read.
        """
        before_ms = self._clock.now_ms() - round(older_than_s * 1000)
        spared = set(keep)
        found: dict[str, list[DatasetOrphan]] = {}
        skipped: list[Skipped] = []
        async for some in self._some_ledgers(first, spared, look_at_most):
            for ledger_id, value in zip(some, await each(some, self._metadata)):
                if isinstance(value, Skipped):
                    skipped.append(value)
                elif value is not None and 0 <= value.ctime_ms <= before_ms:
                    owner, writer = _text(value.custom, OWNER_KEY), _text(value.custom, JOB_KEY)
                    if owner and name in (None, owner) and job in (None, writer):
                        found.setdefault(owner, []).append(
                            DatasetOrphan(ledger_id, owner, writer, value.ctime_ms, value.length)
                        )
        return dict(sorted(found.items())), skipped

    async def _discard_all(
        self, found: Mapping[str, Sequence[DatasetOrphan]], skipped: list[Skipped]
    ) -> list[int]:
        deleted: list[int] = []
        for owner, orphans in found.items():
            ledger_ids = [one.ledger_id for one in orphans]
            with _kept_if_unreadable(owner, ledger_ids, skipped):
                deleted += await self.discard(owner, ledger_ids)
        return sorted(deleted)

    async def _held(self, name: str) -> set[int]:
        """Return the ids of the ledgers that a dataset names; none if it does not exist."""
        check_dataset_name(name)
        try:
            return {ledger.ledger_id for ledger in (await self.read(name)).ledgers}
        except NoSuchKeyError:
            return set()

    async def _some_ledgers(
        self, first: int, spared: set[int], at_most: int | None
    ) -> AsyncIterator[list[int]]:
        """Yield batches of ledgers from `first` on, without the spared ones, `at_most` in total."""
        left = at_most
        ranges = self._store.list_ledgers(first)
        try:
            async for found in ranges:
                some = [i for i in found.ledger_ids if i not in spared][:left]
                yield some
                if left is not None:
                    left -= len(some)
                    if not left:
                        return
        finally:
            if isinstance(ranges, AsyncGenerator):
                await ranges.aclose()

    async def _discard_some(self, name: str, ledger_ids: Sequence[int]) -> list[int]:
        condemned = await self._condemn(name, ledger_ids)
        await each(condemned, self._store.delete_ledger)
        await self._pardon(name, condemned)
        return [ledger_id for ledger_id in condemned if ledger_id in set(ledger_ids)]

    async def _condemn(self, name: str, ledger_ids: Sequence[int]) -> Sequence[int]:
        """Condemn ledgers, and return all that are condemned now.

        The result includes ledgers that an interrupted call condemned and did not delete. The write
        also makes publications in flight fail, because it changes the version of the head.
        """

        async def attempt() -> Sequence[int]:
            head, version = await self._head(name)
            held = {ledger.ledger_id for ledger in await self._ledgers(name, head, version)}
            new = [i for i in ledger_ids if i not in held and i not in head.condemned]
            if not new and not head.condemned:
                return ()
            condemned = (*head.condemned, *new)
            if len(condemned) > 2 * CONDEMNED_MAX:
                await each(head.condemned, self._store.delete_ledger)
                await self._pardon(name, head.condemned)
                raise VersionConflictError(
                    f"dataset {name!r} was changed while ledgers of it were being deleted"
                )
            await self._write(name, replace(head, condemned=condemned), version)
            return condemned

        return await swap(f"dataset {name!r}", attempt, self._rng)

    async def _pardon(self, name: str, ledger_ids: Sequence[int]) -> None:
        """Take deleted ledgers off the list of condemned ones.

        They still cannot be published, because they do not exist any more.
        """
        gone = set(ledger_ids)

        async def attempt() -> None:
            head, version = await self._head(name)
            left = tuple(i for i in head.condemned if i not in gone)
            if left != head.condemned:
                await self._write(name, replace(head, condemned=left), version)

        await swap(f"dataset {name!r}", attempt, self._rng)

    async def _owner(self, ledger_id: int) -> str:
        value = await self._metadata(ledger_id)
        return "" if value is None or isinstance(value, Skipped) else _text(value.custom, OWNER_KEY)

    async def _metadata(self, ledger_id: int) -> LedgerMetadata | Skipped | None:
        """Return the metadata of a ledger, or None if the ledger is deleted."""
        try:
            return (await self._store.read_ledger(ledger_id)).value
        except MetadataUnavailableError:
            raise
        except NoSuchLedgerError:
            return None
        except MetadataError as error:
            return Skipped(f"ledger {ledger_id}", str(error))

    # -- heads and chunks ---------------------------------------------------------------------

    async def _newest(self, name: str) -> Head:
        """Return the head after all acknowledged changes, which a server may lag behind."""
        await self._store.tree.sync()
        return (await self._head(name))[0]

    async def _head(self, name: str) -> tuple[Head, int | None]:
        """Return the head and its version, or None as the version if nothing was ever stored."""
        try:
            stored = await self._store.read_value((HEADS, name))
        except NoSuchKeyError:
            return Head(), None
        return decode_head(name, stored.value), stored.version

    async def _ledgers(
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
            if (await self._head(name))[1] != version:
                raise VersionConflictError(
                    f"dataset {name!r} was changed while its list of ledgers was read"
                ) from error
            raise MetadataError(
                f"dataset {name!r} is damaged: a part of its list of ledgers is missing "
                f"in the metadata store ({error.args[0]})",
                remedy=CHUNK_REMEDY,
            ) from error
        return (*(ledger for part in parts for ledger in part), *head.ledgers)

    async def _readable_ledgers(
        self, name: str, head: Head
    ) -> tuple[tuple[DatasetLedger, ...], Sequence[str]]:
        """Return the ledgers of a head as far as they can be read, and what is wrong with the rest.

        The result means something only if a compare-and-swap on the version of this head succeeds
        afterwards: the chunks of a head that was replaced may have been deleted.
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

    async def _check_publishable(
        self, name: str, head: Head, added: Sequence[DatasetLedger]
    ) -> None:
        def missing(found: str) -> NoSuchLedgerError:
            return NoSuchLedgerError(
                f"nothing was published to dataset {name!r}: {found}",
                remedy=(
                    "Check the id. If the ledger was deleted, write the data again, and sweep "
                    "only orphans that are older than the longest job takes"
                ),
            )

        async def look(ledger_id: int) -> QuireError | None:
            if ledger_id in condemned:
                return missing(f"ledger {ledger_id} is being deleted")
            try:
                found = (await self._store.read_ledger(ledger_id)).value
            except NoSuchLedgerError:
                return missing(
                    f"ledger {ledger_id} does not exist: it was never created, or it was deleted"
                )
            if (owner := _text(found.custom, OWNER_KEY)) not in ("", name):
                return _written_for(owner, ledger_id, name)
            if not found.closed:
                return _unreadable(name, f"ledger {ledger_id} is not closed", "Close it first")
            if (last := ends[ledger_id]) > found.last_entry_id:
                return _unreadable(
                    name,
                    f"ledger {ledger_id} has no entry {last}: it is closed and "
                    f"{end_text(found.last_entry_id)}",
                    "Correct the range",
                )
            return None

        async def check(ledger_id: int) -> None:
            if await look(ledger_id) is None:
                return
            # This client's server may lag behind the client that closed the ledger.
            await self._store.tree.sync()
            if (error := await look(ledger_id)) is not None:
                raise error

        condemned = set(head.condemned)
        ends: dict[int, int] = {}
        for ledger in added:
            ends[ledger.ledger_id] = max(ledger.last, ends.get(ledger.ledger_id, ledger.last))
        await each(sorted(ends), check)

    async def _swap(
        self,
        name: str,
        head: Head,
        version: int | None,
        added: Sequence[DatasetLedger],
        overwrite: bool,
        txn: str | None,
        schema: DatasetSchema | None,
    ) -> int:
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
        await self._write(name, new, version)
        if head.chunks or chunks:
            await self._remove_chunks(name)
        return new.sequence

    async def _write(self, name: str, head: Head, version: int | None) -> None:
        await self._store.write_value((HEADS, name), encode_head(name, head), version)

    async def _remove_chunks(self, name: str) -> None:
        """Delete the chunks that no head can name any more.

        This is best effort. A later call finds the chunks that it leaves.
        """
        try:
            found = await self._store.list_values((CHUNKS, name))
            head, version = await self._head(name)
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


# -- inside -----------------------------------------------------------------------------------


def _parts(given: Iterable[DatasetLedger]) -> tuple[DatasetLedger, ...]:
    """Return the parts that a caller wants to publish. Raises ArgumentTypeError."""
    parts = tuple(given) if isinstance(given, Iterable) else (given,)
    for part in parts:
        if not isinstance(part, DatasetLedger):
            raise ArgumentTypeError(
                "the ledgers to publish must be a list of DatasetLedger, but it has a value of "
                f"type {type(part).__name__}. Nothing was published"
            )
    return parts


def _check_apart(name: str, added: Iterable[DatasetLedger]) -> None:
    """Check that no entry is in two of the ranges. Raises UsageError."""
    ranges = sorted((one.ledger_id, one.first, one.last) for one in added)
    for (ledger_id, first, last), (following, start, end) in pairwise(ranges):
        if ledger_id == following and start <= last:
            raise UsageError(
                f"entries {first}..{last} and {start}..{end} of ledger {ledger_id} overlap, so "
                f"nothing was published to dataset {name!r}",
                remedy="Give each entry once",
            )


def _written_for(owner: str, ledger_id: int, name: str) -> UsageError:
    return UsageError(
        f"nothing was published to dataset {name!r}: ledger {ledger_id} was written for dataset "
        f"{owner!r}, and is deleted with it",
        remedy=f"Copy the entries to a ledger whose custom metadata {OWNER_KEY!r} is {name!r}",
    )


def _unreadable(name: str, why: str, remedy: str) -> UsageError:
    return UsageError(f"nothing was published to dataset {name!r}: {why}", remedy=remedy)


def no_such_dataset(name: str) -> NoSuchKeyError:
    return NoSuchKeyError(
        f"dataset {name!r} does not exist",
        remedy="Check the name and the metadata URI, or publish the dataset first",
    )


def other_schema(name: str, known: DatasetSchema | None, given: DatasetSchema | None) -> UsageError:
    """Return the error for rows that do not fit to the schema of a dataset."""
    if known is None:
        return UsageError(
            f"dataset {name!r} has no schema, because each of its entries is a row: rows with the "
            f"columns {given} cannot be added. Nothing was published",
            remedy="Write to another dataset, or replace this one with an overwrite",
        )
    rows = "entries without a schema"
    if given is not None:
        rows = f"rows with the columns {_with_partitions(given)}"
    return UsageError(
        f"{rows}, cannot be added to dataset {name!r}, which has the columns "
        f"{_with_partitions(known)}. Nothing was published",
        remedy="Give the rows the same columns and types, or replace the dataset with an overwrite",
    )


def _with_partitions(schema: DatasetSchema) -> str:
    return f"{schema}, partitioned by {', '.join(schema.partition_by) or 'nothing'}"


def _tell_lost(name: str, lost: Sequence[str]) -> None:
    """Log which parts of a list of ledgers that was just removed could not be read."""
    if lost:
        logger.warning(
            "dataset %s: %d parts of the list of ledgers that was removed could not be read (%s). "
            "A sweep deletes the ledgers in them that were written for this dataset",
            name, len(lost), "; ".join(lost[:IDS_NAMED_MAX]),
            extra={"event": "dataset_list_lost", "dataset": name, "parts": len(lost)},
        )  # fmt: skip


@contextmanager
def _kept_if_unreadable(
    name: str, ledger_ids: Sequence[int], skipped: list[Skipped]
) -> Iterator[None]:
    """Record a dataset that cannot be read, and the ledgers that are kept for this reason."""
    try:
        yield
    except MetadataUnavailableError:
        raise
    except (MetadataError, UsageError) as error:
        skipped.append(Skipped(f"dataset {name!r}", _kept(ledger_ids, error)))


def _kept(ledger_ids: Sequence[int], error: Exception) -> str:
    shown = ", ".join(map(str, ledger_ids[:IDS_NAMED_MAX]))
    more = f" and {len(ledger_ids) - IDS_NAMED_MAX} more" * (len(ledger_ids) > IDS_NAMED_MAX)
    return f"{error}. The ledgers that were written for it are kept: {shown}{more}"


def _text(custom: Mapping[str, bytes], key: str) -> str:
    return custom.get(key, b"").decode(errors="replace")
