"""Where the cluster keeps its metadata: one interface, and drivers for SQLite and ZooKeeper.

`interface`, `tree` and `values` are the interface; `common` is what drivers share; `sqlite` and
`zookeeper` are drivers. A third one, in memory, comes with the development package quire-simulator.
`ledgers` and `bookies` are what the other rooms keep in a store. May import the codec and core.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Protocol

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.former_names import in_seconds_now
from quire.errors import MetadataURIError, UsageError
from quire.metadata.common import SESSION_TIMEOUT_MS
from quire.metadata.interface import MetadataStore
from quire.metadata.uri import Driver, MetadataURI, parse_uri
from quire.metadata.zookeeper.options import ZooKeeperOptions

__all__ = ["MetadataStore", "ZooKeeperOptions", "open_metadata", "register_driver"]


class DriverOpener(Protocol):
    """A function that opens the stores of one scheme, for a driver of another package."""

    async def __call__(
        self,
        where: MetadataURI,
        *,
        create: bool,
        clock: Clock,
        rng: random.Random,
        session_timeout_s: float,
    ) -> MetadataStore: ...


_openers: dict[str, DriverOpener] = {}


def register_driver(scheme: str, opener: DriverOpener) -> None:
    """Let `open_metadata` open the URIs of `scheme` with `opener`, in this process.

    The one scheme that is not part of this package is `memory`; the package quire-simulator
    registers its driver.
    """
    if scheme != Driver.MEMORY.value:
        raise UsageError(f"{scheme!r} is not a scheme that another package can provide")
    _openers[scheme] = opener


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

    With `create`, a missing SQLite file is made and initialised; the first
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
    if session_timeout_ms is not None:
        in_seconds_now("session_timeout_ms", "session_timeout_s")
        session_timeout_s = session_timeout_ms / 1000
    session_timeout_ms = round(1000 * session_timeout_s)
    where = parse_uri(uri)
    clock = clock or SystemClock()
    rng = rng or random.Random()
    # Each driver is imported when it is asked for: a client of SQLite loads no ZooKeeper client.
    if where.driver is Driver.MEMORY:
        opener = _openers.get(where.driver.value)
        if opener is None:
            raise MetadataURIError(
                f"{uri!r} names a store in memory, which is not part of the quire package",
                remedy="Install quire-simulator and import quire_simulator.metadata, or use a "
                "sqlite:/// URI",
            )
        return await opener(
            where, create=create, clock=clock, rng=rng, session_timeout_s=session_timeout_s
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
