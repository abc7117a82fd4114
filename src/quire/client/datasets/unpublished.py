"""Ledgers that were written for a dataset and that it does not name.

A job that died leaves such ledgers, and so do an overwrite and a drop. Deleting and publishing
could race: a sweep finds an unpublished ledger, a slow job publishes it, and the sweep deletes it.
Therefore ledgers are *condemned* first, by a compare-and-swap on the head that a publication swaps
as well. A condemned ledger can no longer be published, and a published ledger cannot be condemned.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from quire._runtime.clock import Clock
from quire._runtime.tasks import each
from quire.client.compare_and_swap import swap
from quire.client.datasets.format import CONDEMNED_MAX, check_dataset_name
from quire.client.datasets.heads import DatasetHeads
from quire.client.unreadable_items import Skipped
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.interface import MetadataStore

OWNER_KEY = "quire.dataset"
"""The key of a ledger's custom metadata that holds the dataset for which the ledger was written.
Quire deletes only ledgers that have their dataset's name here."""
JOB_KEY = "quire.job"
"""The key of a ledger's custom metadata that holds the job that wrote the ledger."""

IDS_NAMED_MAX = 10
"""The number of ledger ids that one message names."""


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


class UnpublishedLedgers:
    """The ledgers of one cluster that were written for datasets and that these do not name."""

    def __init__(
        self, store: MetadataStore, heads: DatasetHeads, clock: Clock, rng: random.Random
    ) -> None:
        self._store = store
        self._heads = heads
        self._clock = clock
        self._rng = rng

    async def candidates(
        self,
        older_than_s: float,
        name: str | None,
        job: str | None,
        first: int,
        keep: Iterable[int],
        look_at_most: int | None,
    ) -> tuple[dict[str, list[DatasetOrphan]], list[Skipped]]:
        """Return the old ledgers that were written for datasets, by the name of their dataset.

        Some of them may be published: the heads are not read. The second result has the ledgers
        whose metadata cannot be read. The arguments are those of `Datasets.sweep`. Raises
        MetadataError.
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
                    owner, writer = text_of(value.custom, OWNER_KEY), text_of(value.custom, JOB_KEY)
                    if owner and name in (None, owner) and job in (None, writer):
                        found.setdefault(owner, []).append(
                            DatasetOrphan(ledger_id, owner, writer, value.ctime_ms, value.length)
                        )
        return dict(sorted(found.items())), skipped

    async def orphans(
        self, found: Mapping[str, Sequence[DatasetOrphan]], skipped: list[Skipped]
    ) -> list[DatasetOrphan]:
        """Return those of the candidates that no dataset names.

        Datasets that cannot be read are added to `skipped`, and their ledgers are left out. Raises
        MetadataUnavailableError.
        """
        orphans: list[DatasetOrphan] = []
        for owner, candidates in found.items():
            ledger_ids = [one.ledger_id for one in candidates]
            with _kept_if_unreadable(owner, ledger_ids, skipped):
                check_dataset_name(owner)
                _, ledgers = await self._heads.newest_ledgers(owner)
                held = {ledger.ledger_id for ledger in ledgers}
                orphans += (one for one in candidates if one.ledger_id not in held)
        return sorted(orphans, key=lambda one: one.ledger_id)

    async def delete_all(
        self, found: Mapping[str, Sequence[DatasetOrphan]], skipped: list[Skipped]
    ) -> list[int]:
        """Delete those of the candidates that no dataset names, and return their ids, ascending.

        Datasets that cannot be read are added to `skipped`, and their ledgers are kept. Raises
        MetadataUnavailableError. Some ledgers may have been deleted then.
        """
        deleted: list[int] = []
        for owner, orphans in found.items():
            ledger_ids = [one.ledger_id for one in orphans]
            with _kept_if_unreadable(owner, ledger_ids, skipped):
                deleted += await self.delete(owner, ledger_ids)
        return sorted(deleted)

    async def delete(self, name: str, ledger_ids: Iterable[int]) -> list[int]:
        """Delete those of the ledgers that were written for a dataset and are not part of it.

        Returns their ids. Raises MetadataError if it is not known which ledgers the dataset has.
        """
        check_dataset_name(name)
        wanted = sorted(set(ledger_ids))
        mine = [
            ledger_id
            for ledger_id, owner in zip(wanted, await each(wanted, self._owner))
            if owner == name
        ]
        deleted: list[int] = []
        for at in range(0, len(mine), CONDEMNED_MAX):
            deleted += await self._delete_some(name, mine[at : at + CONDEMNED_MAX])
        return deleted

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

    async def _delete_some(self, name: str, ledger_ids: Sequence[int]) -> list[int]:
        condemned = await self._condemn(name, ledger_ids)
        await self._delete_condemned(name, condemned)
        return [ledger_id for ledger_id in condemned if ledger_id in set(ledger_ids)]

    async def _delete_condemned(self, name: str, condemned: Sequence[int]) -> None:
        """Delete condemned ledgers, and take them off the list.

        An interrupted call may have deleted some of them already. Others may have created ledgers
        with these ids since, which are not those of the dataset and are kept.
        """

        async def delete(ledger_id: int) -> None:
            if await self._owner(ledger_id) == name:
                await self._store.delete_ledger(ledger_id)

        await each(condemned, delete)
        await self._pardon(name, condemned)

    async def _condemn(self, name: str, ledger_ids: Sequence[int]) -> Sequence[int]:
        """Condemn ledgers, and return all that are condemned now.

        The result includes ledgers that an interrupted call condemned and did not delete. The write
        also makes publications in flight fail, because it changes the version of the head.
        """

        async def attempt() -> Sequence[int]:
            head, version = await self._heads.read(name)
            held = {ledger.ledger_id for ledger in await self._heads.ledgers(name, head, version)}
            new = [i for i in ledger_ids if i not in held and i not in head.condemned]
            if not new and not head.condemned:
                return ()
            condemned = (*head.condemned, *new)
            if len(condemned) > 2 * CONDEMNED_MAX:
                await self._delete_condemned(name, head.condemned)
                raise VersionConflictError(
                    f"dataset {name!r} was changed while ledgers of it were being deleted"
                )
            await self._heads.write(name, replace(head, condemned=condemned), version)
            return condemned

        return await swap(f"dataset {name!r}", attempt, self._rng)

    async def _pardon(self, name: str, ledger_ids: Sequence[int]) -> None:
        """Take deleted ledgers off the list of condemned ones.

        They still cannot be published, because they do not exist any more.
        """
        gone = set(ledger_ids)

        async def attempt() -> None:
            head, version = await self._heads.read(name)
            left = tuple(i for i in head.condemned if i not in gone)
            if left != head.condemned:
                await self._heads.write(name, replace(head, condemned=left), version)

        await swap(f"dataset {name!r}", attempt, self._rng)

    async def _owner(self, ledger_id: int) -> str:
        value = await self._metadata(ledger_id)
        return (
            "" if value is None or isinstance(value, Skipped) else text_of(value.custom, OWNER_KEY)
        )

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


def text_of(custom: Mapping[str, bytes], key: str) -> str:
    """Return an item of custom metadata as text, or "" if there is none."""
    return custom.get(key, b"").decode(errors="replace")
