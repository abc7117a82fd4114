"""Where the cluster keeps its metadata: one interface (`base`), three drivers."""

from __future__ import annotations

import random
from pathlib import Path

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.deprecated import warn_renamed
from quire.metadata.common import SESSION_TIMEOUT_MS
from quire.metadata.interface import MetadataStore
from quire.metadata.uri import Driver, parse_uri
from quire.metadata.zookeeper.options import ZooKeeperOptions

__all__ = ["MetadataStore", "ZooKeeperOptions", "open_metadata"]


async def open_metadata(
    uri: str,
    *,
    create: bool = False,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    session_timeout_s: float = SESSION_TIMEOUT_MS / 1000,
    zookeeper: ZooKeeperOptions | None = None,
    connect_timeout_s: float | None = None,
    session_timeout_ms: int | None = None,
) -> MetadataStore:
    """Connect to the store that `uri` names (see `uri`); `close` it in the end.

    With `create`, a missing SQLite file (or in-memory cluster) is made and initialised; the first
    `initialise` of the store then returns the new instance id. A ZooKeeper root is only ever made
    by `initialise`. Without `create`, a missing SQLite file is `ClusterNotInitialisedError` and
    stays missing. `session_timeout_s` seconds after it was last heard of, a process has lost what
    is ephemeral (`session_timeout_ms` is the deprecated spelling). `zookeeper` says who we are to
    ZooKeeper; None: what the environment says (`zookeeper_options`). `connect_timeout_s` is how
    long servers are tried; None: as long as is usual.

    Raises MetadataURIError, MetadataUnavailableError where nothing answers in time, MetadataError
    where what is there cannot be used, UsageError for an identity that cannot be read. Cancelling
    leaves nothing open.
    """
    if session_timeout_ms is None:
        session_timeout_ms = round(1000 * session_timeout_s)
    else:
        warn_renamed("session_timeout_ms", "session_timeout_s")
    where = parse_uri(uri)
    clock = clock or SystemClock()
    rng = rng or random.Random()
    # Each driver is imported when it is asked for: a client of SQLite loads no ZooKeeper client.
    if where.driver is Driver.MEMORY:
        from quire.metadata.memory.store import open_memory

        return open_memory(
            where.name,
            create=create,
            clock=clock,
            rng=rng,
            session_timeout_ms=session_timeout_ms,
        )
    if where.driver is Driver.SQLITE:
        from quire.metadata.sqlite.store import SqliteStore

        return await SqliteStore.open(
            Path(where.path),
            create=create,
            clock=clock,
            rng=rng,
            session_timeout_ms=session_timeout_ms,
        )
    from quire.metadata.zookeeper.kazoo_adapter import CONNECT_TIMEOUT_S
    from quire.metadata.zookeeper.store import ZooKeeperStore

    return await ZooKeeperStore.connect(
        where,
        clock=clock,
        rng=rng,
        session_timeout_ms=session_timeout_ms,
        connect_timeout_s=CONNECT_TIMEOUT_S if connect_timeout_s is None else connect_timeout_s,
        options=zookeeper or ZooKeeperOptions.from_environment(),
    )
