"""The checks, errors and encodings that the drivers of the metadata store share.

The first half has checks of arguments, errors and the encoding of registrations. The second half is
about the tree and about lost sessions.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import uuid
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from quire._runtime.clock import Clock
from quire._runtime.units import counted
from quire.codec.metadata import registration
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.errors import (
    ClientClosedError,
    KeyExistsError,
    LedgerExistsError,
    MetadataError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NotEmptyError,
    QuireError,
    UsageError,
    VersionConflictError,
)
from quire.metadata.interface import ANY_VERSION, BookieAddress
from quire.metadata.tree import (
    COMMIT_BYTES_MAX,
    COMMIT_OPERATIONS_MAX,
    OPERATION_BYTES,
    Check,
    Create,
    Delete,
    Operation,
    Put,
)

E = TypeVar("E", bound=QuireError)

SESSION_TIMEOUT_MS = 10_000
"""Milliseconds after which a process that was not heard of loses its ephemeral nodes."""

LIST_RANGE_LEDGERS = 10_000
"""The largest number of ledgers in one range of `list_ledgers`. In ZooKeeper it is the number of
ledgers below one parent."""

CREATE_ATTEMPTS_MAX = 1_000
"""The number of new ids to try for one ledger. An id is skipped if a caller has chosen it
before."""

NODE_BYTES_MAX = 1_000_000
"""The largest size, in bytes, of one registration, cookie or value in any store. ZooKeeper accepts
a little more at its default settings, which leaves space for the rest of the request. The metadata
of a ledger has limits that depend on its state (`quire.metadata.ledgers.size`)."""

logger = logging.getLogger("quire.metadata")


def check_ledger_id(ledger_id: int) -> None:
    """Raise UsageError unless the number is a ledger id."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise UsageError(f"{ledger_id} is not a ledger id: use 0 to 2**63-1")


def check_version(version: int) -> None:
    """Raise UsageError for a negative version.

    ZooKeeper takes -1 as any version. A write of ledger metadata with -1 would overwrite changes
    that the caller has not seen.
    """
    if version < 0:
        raise UsageError(
            f"{version} is not a version of a value in the metadata store",
            remedy="Pass the version that came with the value when it was read",
        )


def check_size(data: bytes, what: str) -> bytes:
    """Return `data`, or raise UsageError if it has more than `NODE_BYTES_MAX` bytes.

    `what` is the data, as the message names it.
    """
    if len(data) > NODE_BYTES_MAX:
        raise UsageError(
            f"{what} of {len(data):,} bytes is too large: the limit of the metadata store is "
            f"{NODE_BYTES_MAX:,} bytes. Nothing was written",
            remedy="Store less here, for example the id of a ledger that holds the data",
        )
    return data


def check_key(key: Sequence[str]) -> tuple[str, ...]:
    """Return `key` as a tuple, or raise UsageError if a part cannot be a name in every store."""
    parts = tuple(key)
    if isinstance(key, str) or not parts:
        raise UsageError(
            f"{key!r} is not a key of a value: use a sequence of one or more names, such as "
            "('datasets', 'flights')"
        )
    for part in parts:
        _check_name(part)
    return parts


def check_prefix(prefix: Sequence[str]) -> tuple[str, ...]:
    """Return `prefix` as a tuple, or raise UsageError as `check_key`. A prefix may be empty."""
    return check_key(prefix) if isinstance(prefix, str) or len(prefix) > 0 else ()


def _check_name(name: str) -> None:
    if not name or name in (".", "..") or "/" in name or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be a name in the key of a value",
            remedy="Use printable characters other than '/', and not the names '.' and '..'",
        )


def no_such_ledger(ledger_id: int) -> NoSuchLedgerError:
    return NoSuchLedgerError(
        f"ledger {ledger_id} does not exist: it was never created, or it was deleted"
    )


def ledger_exists(ledger_id: int) -> LedgerExistsError:
    return LedgerExistsError(
        f"ledger {ledger_id} already exists",
        remedy="Choose another id, or let the store generate one",
    )


def conflict(
    what: str, version: int, found: int | None = None, *, unknown: bool = False
) -> VersionConflictError:
    """Return the error of a failed compare-and-swap.

    Args:
        what: The value that was to be changed.
        version: The version that was expected.
        found: The version in the store, if the store tells it.
        unknown: Whether this write may have been done before others changed the value again.
    """
    now = "" if found is None else f", now it is {found}"
    before = ". This write may have been done before that: its response was lost" if unknown else ""
    error = VersionConflictError(
        f"{what} was changed by another client: version {version} was expected{now}{before}",
        remedy="Read the new value, and decide on its basis",
    )
    error.outcome_known = not unknown
    return error


def replaced(what: str, *, unknown: bool = False) -> VersionConflictError:
    """Return the error of a compare-and-swap of a value that was deleted and created again.

    `unknown` is that of `conflict`.
    """
    before = (
        ", perhaps after this call changed or deleted it (a response was lost)" if unknown else ""
    )
    error = VersionConflictError(
        f"{what} was deleted and created again by another client{before}",
        remedy="Read the new value, and decide on its basis",
    )
    error.outcome_known = not unknown
    return error


def in_doubt(error: E) -> E:
    """Set `outcome_known` of the error to False, and return the error."""
    error.outcome_known = False
    return error


def bookie_exists(bookie_id: str, waited_ms: int | None = None) -> KeyExistsError:
    """Return the error for a bookie id that another process holds.

    `waited_ms` is the time for which this process has waited for the id, or None if it did not.
    """
    waited = "" if waited_ms is None else f", and still was after {waited_ms} ms"
    return KeyExistsError(
        f"bookie {bookie_id} is registered by another process that is still running{waited}",
        remedy="Stop the other process, or give this bookie an id of its own",
    )


def registered_here(bookie_id: str) -> KeyExistsError:
    return KeyExistsError(
        f"bookie {bookie_id} is already registered by this process",
        remedy="Close the first registration before you register the bookie again",
    )


def no_ledger_manager(store: str, ledger_manager: str | None) -> None:
    """Raise UsageError unless `ledger_manager` is None, for a store that has no ledger managers.

    `store` names the store in the error.
    """
    if ledger_manager is not None:
        raise UsageError(
            f"the metadata store {store} has no ledger managers, so {ledger_manager!r} cannot be "
            "chosen",
            remedy="Leave the ledger manager out: only ZooKeeper has several",
        )


def new_instance_id(rng: random.Random) -> str:
    """Return a random id for a new cluster."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def stamped(metadata: LedgerMetadata, clock: Clock) -> LedgerMetadata:
    """Return the metadata of a new ledger with the present time as its creation time.

    Metadata that has a creation time already, or that does not store one, is returned unchanged.
    """
    if metadata.ctime_stored and metadata.ctime_ms < 0:
        return replace(metadata, ctime_ms=clock.now_ms())
    return metadata


def encode_address(address: BookieAddress) -> bytes:
    """Return the payload of a registration.

    Raises:
        UsageError: The address cannot be registered.
    """
    registration.check_bookie_id(address.bookie_id)
    if not address.host or not 0 < address.port < 65536:
        raise UsageError(
            f"bookie {address.bookie_id} cannot be registered with host {address.host!r} and "
            f"port {address.port}: the host must not be empty, and the port must be from 1 to "
            "65535"
        )
    endpoint = registration.Endpoint(
        registration.RPC_ENDPOINT,
        address.host,
        address.port,
        extensions=(registration.TLS_EXTENSION,) if address.tls else (),
    )
    if any(other.protocol == registration.RPC_PROTOCOL for other in address.others):
        raise UsageError(
            f"bookie {address.bookie_id} cannot be registered with a second endpoint for clients",
            remedy="Register only one, because clients use any one of them",
        )
    info = registration.BookieServiceInfo((endpoint, *address.others), dict(address.properties))
    what = f"the registration of bookie {address.bookie_id}"
    return check_size(registration.encode(info), what)


def decode_address(bookie_id: str, payload: bytes) -> BookieAddress | None:
    """Return the address in the payload of a registration, or None if there is none to connect to.

    The reason for None is logged, not raised: one bookie that registers something malformed must
    not hide the others.
    """
    try:
        info = registration.decode(payload, bookie_id)
    except MetadataError as error:
        logger.warning("%s", error)
        return None
    endpoint = info.rpc_endpoint()
    if endpoint is None:
        logger.warning("bookie %s registered no endpoint for clients", bookie_id)
        return None
    return BookieAddress(
        bookie_id,
        endpoint.host,
        endpoint.port,
        dict(info.properties),
        tls=registration.TLS_EXTENSION in endpoint.extensions,
        others=tuple(e for e in info.endpoints if e.protocol != registration.RPC_PROTOCOL),
    )


def assumed_address(bookie_id: str) -> BookieAddress | None:
    """Return the address that an id of the form host:port names, or None for another id.

    Most bookies have such an id, and most of them can be reached there. Only the registration of
    the bookie says where it can really be reached.
    """
    host, _, port = bookie_id.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return BookieAddress(bookie_id, host, int(port), assumed=True)


def store_closed(what: str) -> ClientClosedError:
    """Return the error of a call on a metadata store that this process has closed.

    The message says that the client is closed, because a program's client opens and closes the
    store. `what` is the store, as the message names it.
    """
    return ClientClosedError(
        f"the client is closed, so {what} can no longer be used", remedy="Connect again"
    )


class WatchHandle:
    """The handle of a watch, for its owner. Nothing is delivered after it is closed."""

    def __init__(self, closed: Callable[[], None]) -> None:
        self._on_close = closed
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close()


# -- the tree ---------------------------------------------------------------------------------

ROOT = "/"

_RESERVED = "zookeeper"
"""The top node that ZooKeeper reserves for itself."""

_UNUSABLE = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""The characters that ZooKeeper allows in no name."""


def check_path(path: str) -> str:
    """Return `path`, or raise UsageError unless it can be a path in every store."""
    if path == ROOT:
        return path
    slash, *names = path.split("/")
    if slash or not names or any(name in ("", ".", "..") for name in names):
        raise UsageError(
            f"{path!r} is not a valid path of a node in the metadata store",
            remedy="Begin it with '/', do not end it with '/', and do not use '.' and '..'",
        )
    if _UNUSABLE.search(path):
        raise UsageError(
            f"{path!r} cannot be a path in the metadata store: it has a character that "
            "ZooKeeper refuses",
            remedy="Use no control characters, no private-use characters, and none after U+FFEF",
        )
    if names[0] == _RESERVED:
        raise UsageError(
            f"{path!r} cannot be a path in the metadata store: ZooKeeper reserves /{_RESERVED} "
            "for itself",
            remedy="Use another top node",
        )
    return path


def check_path_below_root(path: str) -> str:
    """Return `path` like `check_path`, but raise UsageError for '/' too."""
    if path == ROOT:
        raise UsageError(
            "the node / cannot be created or deleted, because it always exists",
            remedy="Name a node below it",
        )
    return check_path(path)


def check_operations(operations: Sequence[Operation]) -> None:
    """Raise UsageError unless every store can carry out the operations in one transaction."""
    size = 0
    for operation in operations:
        match operation:
            case Create(path, value):
                check_path_below_root(path)
                size += len(check_size(value, f"the value of {path}"))
            case Put(path, value, version):
                check_path(path)
                size += len(check_size(value, f"the value of {path}"))
                _check_node_version(version)
            case Delete(path, version):
                check_path_below_root(path)
                _check_node_version(version)
            case Check(path, version):
                check_path(path)
                _check_node_version(version)
        size += len(operation.path.encode()) + OPERATION_BYTES
    if len(operations) > COMMIT_OPERATIONS_MAX or size > COMMIT_BYTES_MAX:
        raise UsageError(
            f"a commit of {counted(len(operations), 'operation')} and {counted(size, 'byte')} is "
            f"too large: the limits are {COMMIT_OPERATIONS_MAX:,} operations and "
            f"{COMMIT_BYTES_MAX:,} bytes",
            remedy="Keep large data in a ledger, or use several commits",
        )


def _check_node_version(version: int) -> None:
    if version < ANY_VERSION:
        raise UsageError(
            f"{version} is not a version of a node",
            remedy="Pass the version that came with the node when it was read, or -1 for any "
            "version",
        )


def parent_of(path: str) -> str:
    """Return the path of the parent. The parent of '/' is ''."""
    if path == ROOT:
        return ""
    return path.rpartition("/")[0] or ROOT


def prefix_of(parent: str) -> str:
    """Return the text with which the paths of all nodes below `parent` begin: it ends in '/'."""
    return parent if parent == ROOT else parent + "/"


def ancestors_of(path: str) -> list[str]:
    """Return the paths of the ancestors of `path`, the top one first, and then `path` itself.

    The root '/' is left out.
    """
    names = path.split("/")[1:]
    return ["/" + "/".join(names[:end]) for end in range(1, len(names) + 1)]


def sequential_path(path: str, number: int) -> str:
    return f"{path}{number:010d}"


# -- errors -----------------------------------------------------------------------------------


def no_such_node(path: str) -> NoSuchKeyError:
    return NoSuchKeyError(f"the node {path} does not exist in the metadata store")


def missing(operation: Operation) -> NoSuchKeyError:
    """Return the error for a node that does not exist, or for the missing parent of a new node."""
    if isinstance(operation, Create):
        return NoSuchKeyError(
            f"{_named(operation)}: its parent {parent_of(operation.path)} does not exist in the "
            "metadata store. Nothing was committed",
            remedy="Create the parent first",
        )
    return NoSuchKeyError(
        f"{_named(operation)}: the node does not exist in the metadata store. Nothing of this "
        "commit was changed"
    )


def exists_already(operation: Operation) -> KeyExistsError:
    return KeyExistsError(
        f"{_named(operation)}: the node already exists in the metadata store. Nothing of this "
        "commit was changed"
    )


def version_conflict(operation: Operation, found: int | None = None) -> VersionConflictError:
    expected = ANY_VERSION if isinstance(operation, Create) else operation.version
    return conflict(f"{_named(operation)}: the node", expected, found)


def not_empty(operation: Operation) -> NotEmptyError:
    return NotEmptyError(
        f"{_named(operation)}: the node has child nodes. Nothing was committed",
        remedy="Delete its child nodes first",
    )


def below_ephemeral(operation: Operation) -> UsageError:
    return UsageError(
        f"{_named(operation)}: its parent {parent_of(operation.path)} is ephemeral, and "
        "ephemeral nodes cannot have child nodes",
        remedy="Create the node below a node that is not ephemeral",
    )


def _named(operation: Operation) -> str:
    return f"{type(operation).__name__.lower()} {operation.path}"


# -- lost sessions and outages ----------------------------------------------------------------

P = ParamSpec("P")


class EventWatches(Generic[P]):
    """The callbacks for one kind of event of a store, such as a new session."""

    def __init__(self) -> None:
        # This dictionary is a set that keeps its order, so that a seed repeats a run exactly.
        self._watches: dict[_EventWatch[P], None] = {}

    def add(self, call: Callable[P, None]) -> WatchHandle:
        def forget() -> None:
            self._watches.pop(watch, None)

        watch = _EventWatch(forget, call)
        self._watches[watch] = None
        return watch

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for watch in list(self._watches):
            watch.notify(*args, **kwargs)

    def close(self) -> None:
        for watch in list(self._watches):
            watch.close()


class _EventWatch(WatchHandle, Generic[P]):
    def __init__(self, closed: Callable[[], None], call: Callable[P, None]) -> None:
        super().__init__(closed)
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Schedule the callback on the event loop.

        The metadata driver calls this method. An exception in the callback does not reach it.
        """
        self._loop.call_soon(partial(self._deliver, *args, **kwargs), context=self._context)

    def _deliver(self, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self.closed:
            self._call(*args, **kwargs)
