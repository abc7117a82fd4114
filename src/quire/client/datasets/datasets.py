"""Datasets: named sets of ledgers that are published in one compare-and-swap.

    datasets = client.datasets
    await datasets.publish("flights", [DatasetLedger(7, 0, 99, 100, 5120)], txn="2026-11-03")
    for ledger in (await datasets.read("flights")).ledgers: ...

A reader sees all ledgers of a publication or none. Ledgers are written first and published last.
Ledgers of writers that died are never part of a dataset, and `sweep_orphans` deletes them. A
dataset does not store the passwords of its ledgers.

`heads` stores the lists of ledgers, and `unpublished` deletes the ledgers that are in none.

`quire.blocking.Datasets` is the blocking form.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.opening import Ready, represented
from quire._runtime.tasks import each
from quire._runtime.units import end_text
from quire.client.checks import checked_ledger_id
from quire.client.compare_and_swap import swap
from quire.client.datasets.format import (
    DatasetLedger,
    Head,
    check_dataset_name,
    check_transaction_key,
)
from quire.client.datasets.heads import DatasetHeads
from quire.client.datasets.schema import DatasetSchema, check_partition
from quire.client.datasets.unpublished import (
    OWNER_KEY,
    DatasetOrphan,
    DatasetOrphans,
    Sweep,
    UnpublishedLedgers,
    text_of,
)
from quire.client.unreadable_items import Skipped, log_skipped, skipping
from quire.errors import (
    ArgumentTypeError,
    NoSuchKeyError,
    NoSuchLedgerError,
    QuireError,
    UsageError,
    check_seconds,
    check_type,
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

LOST_NAMED_MAX = 10
"""The number of lost parts of a list of ledgers that one message names."""

logger = logging.getLogger("quire.datasets")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as it was at one moment."""

    name: str
    """The name of the dataset."""
    sequence: int
    """The number of publications so far, those before the dataset was last dropped included."""
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
    """The sequence number of the publication, or if `repeated` that of the earlier publication with
    the same transaction key."""
    repeated: bool
    """Whether the key had been published before, by another client or by an earlier attempt of this
    call."""
    replaced: tuple[DatasetLedger, ...] = ()
    """The ledgers that the dataset had before an overwrite. They still exist: `discard` deletes
    those that the dataset does not contain any more."""


class Datasets(Ready):
    """The datasets of one cluster. `client.datasets` returns it.

    Every call raises MetadataUnavailableError if the metadata store does not answer. The outcome of
    a change is then unknown, unless the call says otherwise. A call raises MetadataDeniedError if
    the metadata store refuses this client, unless it skips what it cannot read. If the client is
    closed, every call raises ClientClosedError.
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
        self._heads = DatasetHeads(store)
        self._unpublished = UnpublishedLedgers(
            store, self._heads, clock or SystemClock(), self._rng
        )

    # -- reading ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return represented(self, cluster=self._store.uri)

    async def read(self, name: str) -> Dataset:
        """Read a dataset as it is now.

        Cancelling this call is safe.

        Args:
            name: The name of the dataset.

        Returns:
            The dataset, with every ledger that was published and not replaced, and no other.

        Raises:
            NoSuchKeyError: The dataset does not exist.
            MetadataError: The dataset is damaged or has an unknown format, or other clients changed
                it during each of 100 attempts.
            UsageError: The name is not valid.
        """
        check_dataset_name(name)
        head, ledgers = await self._heads.newest_ledgers(name)
        if not head.exists:
            raise no_such_dataset(name)
        return Dataset(name, head.sequence, ledgers, head.transactions, head.schema)

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
        head = await self._heads.newest(name)
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
        return (await self._heads.newest(name)).transactions.get(txn)

    async def list_datasets(self) -> list[str]:
        """List the names of all datasets.

        Each head is read. A dataset that cannot be read is listed too, with a warning in the log:
        `read` reports what is wrong with it. Cancelling this call is safe.

        Returns:
            The names, sorted.

        Raises:
            MetadataUnavailableError: The metadata store does not answer.
        """
        names = await self._heads.names()
        skipped: list[Skipped] = []

        async def exists(name: str) -> bool:
            with skipping(f"dataset {name!r}", skipped, UsageError):
                return (await self._heads.read(name))[0].exists
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
            MetadataError: The head of the dataset is damaged, the metadata of a ledger cannot be
                decoded, or other clients changed the dataset during each of 100 attempts. Nothing
                was published. Without `overwrite`, missing or damaged parts of the dataset's list
                of ledgers are not noticed.
        """
        check_dataset_name(name)
        check_type("overwrite", overwrite, bool)
        added = _parts(ledgers)
        _check_apart(name, added)
        for ledger in added:
            check_partition(schema, ledger.partition, ledger.ledger_id)
        if txn is not None:
            check_transaction_key(txn)
        tried = -1
        replaced: tuple[DatasetLedger, ...] = ()
        lost: Sequence[str] = ()

        async def attempt() -> Publication:
            nonlocal tried, replaced, lost
            head, version = await self._heads.read(name)
            if txn is not None and (done := head.transactions.get(txn)) is not None:
                # If this call made the publication and only the answer was lost, it knows which
                # ledgers it replaced.
                return Publication(done, True, replaced if done == tried else ())
            if overwrite:
                replaced, lost = await self._heads.readable_ledgers(name, head)
            if head.exists and not overwrite and head.schema != schema:
                raise other_schema(name, head.schema, schema)
            tried = head.sequence + 1
            await self._check_publishable(name, head, added)
            sequence = await self._heads.publish(name, head, version, added, overwrite, txn, schema)
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
        check_type("delete_ledgers", delete_ledgers, bool)
        lost: Sequence[str] = ()
        await self._store.tree.sync()

        async def attempt() -> Dataset | None:
            nonlocal lost
            head, version = await self._heads.read(name)
            if not head.exists:
                return None
            ledgers, lost = await self._heads.readable_ledgers(name, head)
            await self._heads.write(name, head.dropped(), version)
            return Dataset(name, head.sequence, ledgers, head.transactions, head.schema)

        dropped = await swap(f"dataset {name!r}", attempt, self._rng)
        if dropped is not None:
            _tell_lost(name, lost)
            await self._heads.remove_chunks(name)
            if delete_ledgers:
                await self.discard(name, dropped.ledger_ids)
        return dropped

    # -- deleting ledgers ---------------------------------------------------------------------

    async def discard(self, name: str, ledger_ids: Iterable[int]) -> list[int]:
        """Delete ledgers that were written for a dataset and that it does not contain.

        On return the deletions are durable, and the deleted ledgers can no longer be published.
        The call is safe to repeat, and safe while others publish. If it is cancelled, the next
        call for the dataset deletes the ledgers that this one had chosen.

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
        wanted = [checked_ledger_id(ledger_id) for ledger_id in ledger_ids]
        return await self._unpublished.delete(name, wanted)

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

        If the call is cancelled, the next sweep continues.

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
        found, skipped = await self._unpublished.candidates(
            older_than_s, name, job, first, keep, look_at_most
        )
        deleted = await self._unpublished.delete_all(found, skipped)
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
        found, skipped = await self._unpublished.candidates(
            older_than_s, name, job, first, (), None
        )
        return DatasetOrphans(await self._unpublished.orphans(found, skipped), skipped)

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
        return Sweep(await self._unpublished.delete_all(found, skipped), skipped)

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
            if (owner := text_of(found.custom, OWNER_KEY)) not in ("", name):
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


# -- inside -----------------------------------------------------------------------------------


def _parts(given: Iterable[DatasetLedger]) -> tuple[DatasetLedger, ...]:
    """Return the parts that a caller wants to publish.

    Raises ArgumentTypeError if one is not a `DatasetLedger`.
    """
    parts = tuple(given) if isinstance(given, Iterable) else (given,)
    for part in parts:
        if not isinstance(part, DatasetLedger):
            raise ArgumentTypeError(
                "the ledgers to publish must be a list of DatasetLedger, but it has a value of "
                f"type {type(part).__name__}. Nothing was published"
            )
    return parts


def _check_apart(name: str, added: Iterable[DatasetLedger]) -> None:
    """Raise UsageError if an entry is in two of the ranges."""
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
        f"{owner!r}, and may be deleted with that dataset",
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
        rows = f"rows with the columns {_with_partitions(given)},"
    return UsageError(
        f"{rows} cannot be added to dataset {name!r}, which has the columns "
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
            name, len(lost), "; ".join(lost[:LOST_NAMED_MAX]),
            extra={"event": "dataset_list_lost", "dataset": name, "parts": len(lost)},
        )  # fmt: skip
