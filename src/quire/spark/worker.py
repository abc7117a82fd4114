"""The state that the tasks of one Python worker process share.

This is a client for each cluster, a garbage collector that has little to do, and short error
messages. Spark reuses its Python workers, and module globals survive between tasks. Workers are
forked, so clients are kept by process id.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from pyspark import TaskContext

from quire import QuireError, blocking
from quire.client.cluster.placement import parse_placement
from quire.config import ClientConfig, TlsClientConfig
from quire.errors import ClientClosedError, MetadataUnavailableError
from quire.spark.options import WriteOptions
from quire.spark.quiet import quiet_worker
from quire.spark.streams.write_options import StreamWriteOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CLIENTS_MAX = 8
"""The number of clusters to which one process keeps a connection."""

_Key = tuple[str, TlsClientConfig | None, str, int]


@dataclass(slots=True, eq=False)
class _KeptClient:
    """A client, and the number of blocks of `client` that use it now."""

    client: blocking.Client
    users: int = 0
    forgotten: bool = False
    """Whether no further block gets the client, so that the last user closes it."""


_clients: dict[_Key, _KeptClient] = {}
_lock = threading.Lock()
"""Guards `_clients` and its values. A program may run several jobs in threads."""
_frozen_pid = -1


@contextmanager
def client(
    uri: str, tls: TlsClientConfig | None = None, placement: str = ""
) -> Iterator[blocking.Client]:
    """Yield a connected client of this process for the cluster at `uri`.

    The client is kept for the next task. It is forgotten if the block raises because the metadata
    store did not answer or the client was closed, and closed once no other thread uses it. Raises
    the errors of `quire.connect`.
    """
    key = (uri, tls, placement, os.getpid())
    kept = _kept(key)
    try:
        yield kept.client
    except (MetadataUnavailableError, ClientClosedError):
        with _lock:
            if _clients.get(key) is kept:
                del _clients[key]
            kept.forgotten = True
        raise
    finally:
        with _lock:
            kept.users -= 1
            unused = kept.forgotten and not kept.users
        if unused:
            kept.client.close()


def _kept(key: _Key) -> _KeptClient:
    """Return the client of a key for one more user, after connecting it if there is none."""
    with _lock:
        if (found := _clients.get(key)) is not None:
            found.users += 1
            return found
    uri, tls, placement, _ = key
    config = ClientConfig(tls=tls)
    if placement:
        config = replace(config, placement=parse_placement(placement))
    made = _KeptClient(blocking.connect(uri, config=config))
    closed: list[blocking.Client] = []
    with _lock:
        found = _clients.setdefault(key, made)
        found.users += 1
        if found is not made:  # Another thread was faster.
            closed.append(made.client)
        while len(_clients) > CLIENTS_MAX:
            oldest = next(iter(_clients))
            old = _clients.pop(oldest)
            old.forgotten = True
            if not old.users and oldest[-1] == os.getpid():
                closed.append(old.client)  # Connections of the parent are left alone.
    for one in closed:
        one.close()
    return found


def writing(
    options: WriteOptions | StreamWriteOptions,
) -> AbstractContextManager[blocking.Client]:
    """Return the block of `client` for the cluster to which these options write."""
    return client(options.metadata, options.tls, options.placement)


def close_clients() -> None:
    """Close all clients of this process. Programs that go on after their last task call this."""
    with _lock:
        found = [kept.client for key, kept in _clients.items() if key[-1] == os.getpid()]
        _clients.clear()
    for one in found:
        one.close()


def plainly(method: Callable[P, R]) -> Callable[P, R]:
    """Cut the traceback off errors that a method raises to Spark.

    Quire's errors say what happened and what to do, and Spark shows the whole traceback to the
    user.
    """

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except QuireError as error:
            raise error.with_traceback(None) from None

    return called


def plain_rows(batches: Iterator[T]) -> Iterator[T]:
    """Yield the batches of a generator. It is to generators what `plainly` is to methods."""
    try:
        yield from batches
    except QuireError as error:
        raise error.with_traceback(None) from None


def prepare() -> None:
    """Exclude everything that is imported from garbage collection, once per worker process.

    Spark's daemon collects after every task. With pandas and pyarrow loaded that takes 31 ms, and
    0.02 ms after this call.
    """
    global _frozen_pid
    if _frozen_pid != os.getpid() and TaskContext.get() is not None:
        _frozen_pid = os.getpid()
        gc.collect()
        gc.freeze()


quiet_worker()  # Every worker that runs code of Quire imports this module.
