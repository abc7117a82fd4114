"""What the drivers of the metadata store share: checks of arguments, errors, registrations as
bytes, and the watches of lost sessions. The second half is about the tree.
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

from quire._runtime.clock import Clock
from quire.codec.metadata import registration
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.errors import (
    KeyExistsError,
    LedgerExistsError,
    MetadataError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NotEmptyError,
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

SESSION_TIMEOUT_MS = 10_000
"""A process that has not been heard of for so long has lost what is ephemeral."""

LIST_RANGE_LEDGERS = 10_000
"""Most ledgers in one range of `list_ledgers` (as many as below one parent in ZooKeeper)."""

CREATE_ATTEMPTS_MAX = 1_000
"""New ids tried for one ledger before giving up; each was taken by a caller-chosen id."""

NODE_BYTES_MAX = 1_000_000
"""The largest size, in bytes, of one registration, cookie or value in any store. It is what
ZooKeeper accepts at its default settings, less room for the rest of the request. The metadata of a
ledger has limits that depend on its state (`ledger_size`)."""

logger = logging.getLogger("quire.metadata")


def check_ledger_id(ledger_id: int) -> None:
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise UsageError(f"{ledger_id} is not a ledger id: use 0 to 2**63-1")


def check_version(version: int) -> None:
    """Refuse -1, which ZooKeeper takes as "any": a blind write of ledger metadata."""
    if version < 0:
        raise UsageError(f"a compare-and-swap needs the version that was read, not {version}")


def check_size(data: bytes, what: str) -> bytes:
    """`data`; `UsageError` if not every store can keep it."""
    if len(data) > NODE_BYTES_MAX:
        raise UsageError(
            f"{what} of {len(data):,} bytes is too large: the limit of the metadata store is "
            f"{NODE_BYTES_MAX:,} bytes. Nothing was written",
            remedy="Store less here, for example the id of a ledger that holds the data",
        )
    return data


def check_key(key: Sequence[str]) -> tuple[str, ...]:
    """`key` as a tuple; `UsageError` unless every part can be a name in every store."""
    parts = tuple(key)
    if isinstance(key, str) or not parts:
        raise UsageError(f"{key!r} is not a key: use one or more names, as ('datasets', 'flights')")
    for part in parts:
        _check_name(part)
    return parts


def check_prefix(prefix: Sequence[str]) -> tuple[str, ...]:
    """As `check_key`, but may be empty."""
    return check_key(prefix) if isinstance(prefix, str) or len(prefix) > 0 else ()


def _check_name(name: str) -> None:
    if not name or name in (".", "..") or "/" in name or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be part of a key",
            remedy="Use printable names without '/', other than '.' and '..'",
        )


def no_such_ledger(ledger_id: int) -> NoSuchLedgerError:
    return NoSuchLedgerError(f"ledger {ledger_id} does not exist: never created, or deleted")


def ledger_exists(ledger_id: int) -> LedgerExistsError:
    return LedgerExistsError(
        f"ledger {ledger_id} exists already", remedy="Choose another id, or let the store choose"
    )


def conflict(
    what: str, version: int, found: int | None = None, *, unknown: bool = False
) -> VersionConflictError:
    """`found` is the version stored, where the store tells. `unknown`: this write may have been
    done before the others, whose changes hide it."""
    now = "" if found is None else f", now it is {found}"
    before = " (perhaps after this very write, whose answer was lost)" if unknown else ""
    error = VersionConflictError(
        f"{what} was changed by someone else{before}: version {version} was expected{now}",
        remedy="Read it again and decide again",
    )
    error.outcome_known = not unknown
    return error


def bookie_exists(bookie_id: str, waited_ms: int) -> KeyExistsError:
    return KeyExistsError(
        f"bookie {bookie_id} is registered by another live process (waited {waited_ms} ms for it "
        "to go)",
        remedy="Stop the other process, or give this bookie an id of its own",
    )


def registered_here(bookie_id: str) -> KeyExistsError:
    return KeyExistsError(
        f"bookie {bookie_id} is registered by this process already",
        remedy="Close the first registration",
    )


def no_ledger_manager(store: str, ledger_manager: str | None) -> None:
    """`UsageError` if one is asked for where there is none."""
    if ledger_manager is not None:
        raise UsageError(
            f"{store} has no ledger managers: {ledger_manager!r} cannot be chosen",
            remedy="Only ZooKeeper arranges ledgers in different ways",
        )


def new_instance_id(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def stamped(metadata: LedgerMetadata, clock: Clock) -> LedgerMetadata:
    """With a creation time, where it is to be stored and the caller left it to us."""
    if metadata.ctime_stored and metadata.ctime_ms < 0:
        return replace(metadata, ctime_ms=clock.now_ms())
    return metadata


def encode_address(address: BookieAddress) -> bytes:
    """The registration's payload. `UsageError` if the address cannot be registered."""
    registration.check_bookie_id(address.bookie_id)
    if not address.host or not 0 < address.port < 65536:
        raise UsageError(
            f"bookie {address.bookie_id} cannot listen at {address.host!r}, port {address.port}"
        )
    endpoint = registration.Endpoint(
        registration.RPC_ENDPOINT,
        address.host,
        address.port,
        extensions=(registration.TLS_EXTENSION,) if address.tls else (),
    )
    if any(other.protocol == registration.RPC_PROTOCOL for other in address.others):
        raise UsageError(
            f"bookie {address.bookie_id} cannot register a second endpoint for clients",
            remedy="Clients take any one of them; register one",
        )
    info = registration.BookieServiceInfo((endpoint, *address.others), dict(address.properties))
    what = f"the registration of bookie {address.bookie_id}"
    return check_size(registration.encode(info), what)


def decode_address(bookie_id: str, payload: bytes) -> BookieAddress | None:
    """None, with a word in the log, where the payload names nothing to connect to: one bookie that
    registers nonsense must not hide the others."""
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


class WatchHandle:
    """A watch as the caller holds it. Nothing is delivered once it is closed."""

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
"""The top node that ZooKeeper keeps for itself."""

_UNUSABLE = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""What ZooKeeper allows in no name."""


def check_path(path: str) -> str:
    """`path`; `UsageError` unless it can be a path in every store."""
    if path == ROOT:
        return path
    slash, *names = path.split("/")
    if slash or not names or any(name in ("", ".", "..") for name in names):
        raise UsageError(
            f"{path!r} is not a path in the tree",
            remedy="Begin it with '/', end it without, and use names other than '.' and '..'",
        )
    if _UNUSABLE.search(path):
        raise UsageError(
            f"{path!r} cannot be a path in the tree: it has a character that ZooKeeper refuses",
            remedy="Use no control or private characters, and none beyond U+FFEF",
        )
    if names[0] == _RESERVED:
        raise UsageError(f"{path!r} cannot be used: /{_RESERVED} is ZooKeeper's own")
    return path


def check_path_below_root(path: str) -> str:
    """As `check_path`, for what cannot be done to '/'."""
    if path == ROOT:
        raise UsageError("the node / is always there: it is neither created nor deleted")
    return check_path(path)


def check_operations(operations: Sequence[Operation]) -> None:
    """`UsageError` unless every store could carry them out in one transaction."""
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
            f"a commit of {len(operations)} operations and {size} bytes is too large: "
            f"{COMMIT_OPERATIONS_MAX} operations and {COMMIT_BYTES_MAX} bytes are allowed",
            remedy="Keep large data in a ledger, or use several commits",
        )


def _check_node_version(version: int) -> None:
    if version < ANY_VERSION:
        raise UsageError(f"{version} is no version of a node")


def parent_of(path: str) -> str:
    """'' for '/'."""
    if path == ROOT:
        return ""
    return path.rpartition("/")[0] or ROOT


def prefix_of(parent: str) -> str:
    """With what the paths of the nodes below `parent` begin."""
    return parent if parent == ROOT else parent + "/"


def ancestors_of(path: str) -> list[str]:
    """From the top down, without '/', with `path` itself."""
    names = path.split("/")[1:]
    return ["/" + "/".join(names[:end]) for end in range(1, len(names) + 1)]


def sequential_path(path: str, number: int) -> str:
    return f"{path}{number:010d}"


# -- errors -----------------------------------------------------------------------------------


def no_such_node(path: str) -> NoSuchKeyError:
    return NoSuchKeyError(f"the node {path} does not exist")


def missing(operation: Operation) -> NoSuchKeyError:
    """The node of the operation, or the parent of the one that it was to create."""
    if isinstance(operation, Create):
        return NoSuchKeyError(
            f"{_named(operation)}: the node {parent_of(operation.path)} does not exist"
        )
    return NoSuchKeyError(f"{_named(operation)}: there is no such node")


def exists_already(operation: Operation) -> KeyExistsError:
    return KeyExistsError(f"{_named(operation)}: the node exists already")


def version_conflict(operation: Operation, found: int | None = None) -> VersionConflictError:
    expected = ANY_VERSION if isinstance(operation, Create) else operation.version
    return conflict(f"{_named(operation)}: the node", expected, found)


def not_empty(operation: Operation) -> NotEmptyError:
    return NotEmptyError(
        f"{_named(operation)}: there are nodes below it", remedy="Delete those first"
    )


def below_ephemeral(operation: Operation) -> UsageError:
    return UsageError(
        f"{_named(operation)}: {parent_of(operation.path)} is ephemeral and has no children"
    )


def _named(operation: Operation) -> str:
    return f"{type(operation).__name__.lower()} {operation.path}"


# -- lost sessions ----------------------------------------------------------------------------


class SessionWatches:
    """Who is to be told when a new session has begun."""

    def __init__(self) -> None:
        # A dictionary as a set that keeps its order: the same seed, the same run.
        self._watches: dict[_SessionWatch, None] = {}

    def add(self, lost: Callable[[], None]) -> WatchHandle:
        def forget() -> None:
            self._watches.pop(watch, None)

        watch = _SessionWatch(forget, lost)
        self._watches[watch] = None
        return watch

    def tell(self) -> None:
        for watch in list(self._watches):
            watch.notify()

    def close(self) -> None:
        for watch in list(self._watches):
            watch.close()


class _SessionWatch(WatchHandle):
    def __init__(self, closed: Callable[[], None], lost: Callable[[], None]) -> None:
        super().__init__(closed)
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    def notify(self) -> None:
        """Deliver in a later event-loop iteration, so that a callback's error is not ours."""
        self._loop.call_soon(self._deliver, context=self._context)

    def _deliver(self) -> None:
        if not self.closed:
            self._lost()
