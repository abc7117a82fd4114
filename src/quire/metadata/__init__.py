"""The metadata store of a cluster: one interface, and drivers for SQLite and ZooKeeper.

The interface is in `interface`, `tree` and `values`. The drivers are `sqlite` and `zookeeper`, and
`common` has what they share. The development package quire-simulator adds a driver for a store in
memory. `ledgers`, `bookies` and `outages` define what other packages keep in a store. Besides
`errors` and the helpers in `_runtime`, this package may import only the codec and core.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Protocol

from quire._runtime.clock import Clock, SystemClock
from quire._runtime.names.former_names import in_seconds_now
from quire.errors import MetadataURIError, UsageError
from quire.metadata.common import SESSION_TIMEOUT_MS
from quire.metadata.interface import MetadataStore
from quire.metadata.uri import Driver, MetadataURI, parse_uri
from quire.metadata.zookeeper.options import ZooKeeperOptions

__all__ = ["MetadataStore", "ZooKeeperOptions", "open_metadata", "register_driver"]


class DriverOpener(Protocol):
    """A function that opens the stores of one URI scheme, for a driver of another package."""

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
    """Make `open_metadata` open the URIs of `scheme` with `opener`, in this process.

    The only scheme that another package can provide is `memory`. The package quire-simulator
    registers its driver.

    Raises:
        UsageError: The scheme is another one.
    """
    if scheme != Driver.MEMORY.value:
        raise UsageError(
            f"a driver for the scheme {scheme!r} cannot be registered: only "
            f"{Driver.MEMORY.value!r} can be provided by another package"
        )
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
    """Connect to the metadata store that a URI names. Close the store when it is no longer needed.

    If the call is cancelled, nothing stays open.

    Args:
        uri: The URI of the store. `quire.metadata.uri` lists the forms.
        create: Whether to create a SQLite file that is missing or empty. The first `initialise` of
            the store then returns the new instance id. Without it, such a file raises
            ClusterNotInitialisedError and stays as it is. A ZooKeeper root is created only by
            `initialise`, whatever this argument is.
        clock: The clock. By default it is the system's clock.
        rng: The generator of random choices. By default it is a new one.
        session_timeout_s: Seconds after which a process that was not heard of loses its ephemeral
            nodes and registrations.
        zookeeper: The identity to present to ZooKeeper. By default it is taken from the environment
            (`ZooKeeperOptions.from_environment`).
        connect_timeout_s: Seconds to try the servers of ZooKeeper before the call fails. The
            default is 10 s.
        session_timeout_ms: Deprecated. Use `session_timeout_s`.

    Raises:
        MetadataURIError: The URI is malformed or names no known store.
        ArgumentTypeError: The URI is not text.
        ClusterNotInitialisedError: The SQLite file does not exist or is empty, without `create`.
        MetadataUnavailableError: The store did not answer in time.
        MetadataError: The store holds something that cannot be used.
        UsageError: The identity for ZooKeeper cannot be read.
    """
    if session_timeout_ms is not None:
        in_seconds_now("session_timeout_ms", "session_timeout_s")
        session_timeout_s = session_timeout_ms / 1000
    session_timeout_ms = round(1000 * session_timeout_s)
    where = parse_uri(uri)
    clock = clock or SystemClock()
    rng = rng or random.Random()
    # A driver is imported only when it is used, so a client of SQLite loads no ZooKeeper client.
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
