"""The creation of a bookie's store from its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields, replace

from quire._runtime.clock import Clock
from quire.config import BookieConfig
from quire.storage.config import SEGMENT_BYTES_LEAST, StorageConfig, segment_bytes_of
from quire.storage.directories import DataDirectory, LedgerDirectories, Store
from quire.storage.interfaces import Disk
from quire.storage.log.group_commit import StorageTimes
from quire.storage.store import LedgerStore

SHARED_LIMITS = tuple(
    {one.name for one in fields(StorageConfig)} & {one.name for one in fields(BookieConfig)}
)
"""The names of the settings that `BookieConfig` and `StorageConfig` have in common."""


def open_store(
    directories: Sequence[DataDirectory], config: BookieConfig, clock: Clock, times: StorageTimes
) -> Store:
    """Create the store of a bookie over its data directories. The store is not started.

    `times` receives the latencies of its log. Call this on the event loop. Raises UsageError if
    there are too many directories (`MAX_DIRECTORIES`).
    """
    schedule = asyncio.get_running_loop().call_later
    count = len(directories)
    stores = [
        LedgerStore(
            one.disk, one.log_worker, one.maintenance_worker,
            _share(storage_config(config, one.disk), count), clock,
            schedule=schedule, reader=one.reader, times=times,
        )
        for one in directories
    ]  # fmt: skip
    return stores[0] if count == 1 else LedgerDirectories(stores)


def _share(config: StorageConfig, directories: int) -> StorageConfig:
    """Return the configuration of the store in one of several data directories.

    Limits of the whole bookie are divided by `directories`, the number of directories.
    """
    return replace(
        config,
        max_queued_bytes=max(1, config.max_queued_bytes // directories),
        log_cache_bytes=-(-config.log_cache_bytes // directories),  # rounded up: 0 means no limit
        footer_cache_bytes=config.footer_cache_bytes // directories,
        max_open_files=max(1, config.max_open_files // directories),
    )


def storage_config(config: BookieConfig, disk: Disk) -> StorageConfig:
    """Return the storage configuration of a data directory.

    If `segment_bytes` is 0 in the bookie's configuration, the size of `disk` decides.
    """
    segment_bytes = config.segment_bytes
    if not segment_bytes:
        try:
            segment_bytes = segment_bytes_of(disk.total_bytes())
        except OSError:  # opening the log reports the error
            segment_bytes = SEGMENT_BYTES_LEAST
    shared = {name: getattr(config, name) for name in SHARED_LIMITS}
    return StorageConfig(**{**shared, "segment_bytes": segment_bytes})
