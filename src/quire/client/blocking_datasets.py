"""The blocking twin of `quire.client.datasets.datasets`."""

from __future__ import annotations

from collections.abc import Iterable

from quire._runtime.clock import Clock
from quire.client.background import call
from quire.client.blocking import Client
from quire.client.datasets.datasets import Dataset, DatasetLedger, Datasets, Publication, Sweep


class BlockingDatasets:
    """See `Datasets`: the same calls, for a `quire.blocking` client."""

    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self._client = client
        self._clock = clock

    @property
    def aio(self) -> Datasets:
        """The asyncio twin, of this process."""
        client = self._client.aio
        return Datasets(client.metadata, clock=self._clock, rng=client.rng)

    def read(self, name: str) -> Dataset:
        """See `Datasets.read`."""
        return call(self.aio.read(name))

    def find_transaction(self, name: str, txn: str) -> int | None:
        """See `Datasets.find_transaction`."""
        return call(self.aio.find_transaction(name, txn))

    def publish(
        self,
        name: str,
        ledgers: Iterable[DatasetLedger],
        *,
        overwrite: bool = False,
        txn: str | None = None,
    ) -> Publication:
        """See `Datasets.publish`."""
        return call(self.aio.publish(name, ledgers, overwrite=overwrite, txn=txn))

    def drop(self, name: str, *, delete_ledgers: bool = False) -> Dataset | None:
        """See `Datasets.drop`."""
        return call(self.aio.drop(name, delete_ledgers=delete_ledgers))

    def discard(self, name: str, ledger_ids: Iterable[int]) -> list[int]:
        """See `Datasets.discard`."""
        return call(self.aio.discard(name, ledger_ids))

    def sweep_orphans(
        self,
        older_than_s: float,
        *,
        name: str | None = None,
        job: str | None = None,
        first: int = 0,
        keep: Iterable[int] = (),
        look_at_most: int | None = None,
    ) -> list[int]:
        """See `Datasets.sweep_orphans`."""
        return call(
            self.aio.sweep_orphans(
                older_than_s,
                name=name,
                job=job,
                first=first,
                keep=keep,
                look_at_most=look_at_most,
            )
        )

    def sweep(
        self,
        older_than_s: float,
        *,
        name: str | None = None,
        job: str | None = None,
        first: int = 0,
        keep: Iterable[int] = (),
        look_at_most: int | None = None,
    ) -> Sweep:
        """See `Datasets.sweep`."""
        return call(
            self.aio.sweep(
                older_than_s, name=name, job=job, first=first, keep=keep, look_at_most=look_at_most
            )
        )

    def list_datasets(self) -> list[str]:
        """See `Datasets.list_datasets`."""
        return call(self.aio.list_datasets())
