"""The metadata store in one SQLite file, shared by the processes of one machine.

A change is on the disk when its call returns (`synchronous=FULL`). A compare-and-swap is one write
transaction. Ephemeral data depends on a session: a lease on the machine's boot clock (`session`).
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from quire._runtime.clock import Clock
from quire._runtime.tasks import TaskSet, UnexpectedErrors
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.metadata.ledger_metadata_format import decode
from quire.codec.metadata.ledger_path import LEDGER_ID_MAX
from quire.codec.metadata.registration import check_bookie_id
from quire.errors import (
    ClientClosedError,
    KeyExistsError,
    MetadataError,
    NoSuchKeyError,
    UnreadableMetadataError,
)
from quire.metadata.common import (
    LIST_RANGE_LEDGERS,
    SESSION_TIMEOUT_MS,
    WatchHandle,
    bookie_exists,
    check_key,
    check_ledger_id,
    check_prefix,
    check_size,
    check_version,
    conflict,
    encode_address,
    ledger_exists,
    logger,
    new_instance_id,
    no_ledger_manager,
    no_such_ledger,
    registered_here,
    replaced,
    stamped,
    store_closed,
)
from quire.metadata.interface import (
    ANY_VERSION,
    BookieAddress,
    Bookies,
    KnownRanges,
    LedgerRange,
    Registration,
    Versioned,
    Watch,
)
from quire.metadata.ledgers.creation import check_same_creation
from quire.metadata.ledgers.size import encode_change, encode_new
from quire.metadata.ledgers.unreadable import decode_ledger
from quire.metadata.sqlite.file import BUSY_TIMEOUT_MS, SqliteFile, Work
from quire.metadata.sqlite.session import LeaseMachine, Session, ThisMachine, WantedRegistration
from quire.metadata.sqlite.tree import SqliteTree
from quire.metadata.sqlite.watch import WATCH_POLL_S, Watches

T = TypeVar("T")

RENEWALS_PER_TIMEOUT = 4
"""The number of times that a lease is renewed within its duration."""

REGISTER_POLL_S = 0.1
"""Seconds between two checks whether another session has released a bookie's id."""

_SESSION_ID_BITS = 63


class SqliteStore:
    """A metadata store in a SQLite file.

    `quire.metadata.interface.MetadataStore` documents the calls.
    """

    def __init__(
        self,
        file: SqliteFile,
        clock: Clock,
        session_id: int,
        created: bool,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        machine: LeaseMachine | None = None,
        watch_poll_s: float = WATCH_POLL_S,
    ) -> None:
        self.uri = f"sqlite:///{file.path}"
        self._file = file
        self._clock = clock
        self._claim_initialise = created
        self._session_timeout_ms = session_timeout_ms
        self._session = Session(session_id, session_timeout_ms, machine or ThisMachine())
        self._tasks = TaskSet()
        self._unexpected = UnexpectedErrors()
        self._watches = Watches(file, self._session, self._tasks, poll_s=watch_poll_s)
        self.tree = SqliteTree(
            file, self._session, self._watches, self._keep_session, self._check_open
        )
        self._presences: dict[str, WantedRegistration] = {}
        self._registrations: dict[str, _SqliteRegistration] = {}
        self._session_used = False
        self._renewing = False
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        create: bool,
        clock: Clock,
        rng: random.Random,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
        machine: LeaseMachine | None = None,
        watch_poll_s: float = WATCH_POLL_S,
    ) -> SqliteStore:
        """Open the store in the file at `path`, with the arguments of `open_metadata`.

        If the call fails or is cancelled, nothing stays open. Raises ClusterNotInitialisedError if
        the file is missing or empty and `create` is False, and MetadataError if it cannot be used.
        """
        file, created = await SqliteFile.open(
            path,
            new_instance_id(rng) if create else None,
            busy_timeout_ms=busy_timeout_ms,
        )
        return cls(
            file,
            clock,
            rng.getrandbits(_SESSION_ID_BITS),
            created,
            session_timeout_ms=session_timeout_ms,
            machine=machine,
            watch_poll_s=watch_poll_s,
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.close()
        self.tree.close()
        try:
            await self._tasks.close()
            if self._session_used:
                await self._file.write(self._session.end)
        except MetadataError as error:
            # The lease expires by itself, or ends with this process.
            logger.warning("the session could not be ended: %s", error)
        finally:
            await self._file.close()

    # -- cluster ------------------------------------------------------------------------------

    async def initialise(self, ledger_manager: str | None = None) -> str:
        no_ledger_manager(self.uri, ledger_manager)
        instance_id = await self.instance_id()
        if not self._claim_initialise:
            raise KeyExistsError(
                f"the metadata file {self._file.path} already contains a cluster. Nothing was "
                "changed",
                remedy="Use this cluster, or name another file in the metadata URI",
            )
        self._claim_initialise = False
        return instance_id

    async def is_initialised(self) -> bool:
        self._check_open()
        return True  # a file without a cluster cannot be opened

    async def instance_id(self) -> str:
        def work(connection: sqlite3.Connection) -> str:
            return str(connection.execute("SELECT instance_id FROM cluster").fetchone()[0])

        return await self._read(work)

    # -- ledgers ------------------------------------------------------------------------------

    async def create_ledger(
        self, metadata: LedgerMetadata, ledger_id: int | None = None
    ) -> tuple[int, Versioned[LedgerMetadata]]:
        if ledger_id is not None:
            check_ledger_id(ledger_id)
        data = encode_new(stamped(metadata, self._clock))
        now_ms = self._clock.now_ms()

        def work(connection: sqlite3.Connection) -> tuple[int, Versioned[LedgerMetadata]]:
            found = _next_ledger_id(connection) if ledger_id is None else ledger_id
            try:
                there = _ledger(connection, found)
            except UnreadableMetadataError:
                raise ledger_exists(found) from None
            if there is not None:
                if metadata.ctoken and there.value.ctoken == metadata.ctoken:
                    return found, there
                raise ledger_exists(found)
            connection.execute("INSERT INTO ledgers VALUES (?, 0, ?, ?)", (found, now_ms, data))
            return found, Versioned(decode(data, now_ms), 0, now_ms)

        return await self._write(work)

    async def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        check_ledger_id(ledger_id)
        found = await self._read(lambda connection: _ledger(connection, ledger_id))
        if found is None:
            raise no_such_ledger(ledger_id)
        return found

    async def write_ledger(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        known: Versioned[LedgerMetadata] | None = None,
    ) -> Versioned[LedgerMetadata]:
        check_ledger_id(ledger_id)
        check_version(version)
        data = encode_change(stamped(metadata, self._clock), ledger_id)

        def work(connection: sqlite3.Connection) -> Versioned[LedgerMetadata]:
            row = connection.execute(
                "SELECT version, ctime_ms FROM ledgers WHERE ledger_id = ?", (ledger_id,)
            ).fetchone()
            if row is None:
                raise no_such_ledger(ledger_id)
            if known is not None:
                stored = _ledger(connection, ledger_id)
                assert stored is not None
                check_same_creation(ledger_id, known, stored)
            if row[0] != version:
                raise conflict(f"ledger {ledger_id}", version, row[0])
            connection.execute(
                "UPDATE ledgers SET version = ?, metadata = ? WHERE ledger_id = ?",
                (version + 1, data, ledger_id),
            )
            return Versioned(decode(data, row[1]), version + 1, row[1])

        return await self._write(work)

    async def delete_ledger(self, ledger_id: int) -> None:
        check_ledger_id(ledger_id)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM ledgers WHERE ledger_id = ?", (ledger_id,))

        await self._write(work)

    async def list_ledgers(
        self, first: int = 0, *, complete: bool = False, known: KnownRanges | None = None
    ) -> AsyncIterator[LedgerRange]:
        check_ledger_id(first)
        start = first

        def work(connection: sqlite3.Connection) -> tuple[int, ...]:
            rows = connection.execute(
                "SELECT ledger_id FROM ledgers WHERE ledger_id >= ? ORDER BY ledger_id LIMIT ?",
                (start, LIST_RANGE_LEDGERS),
            )
            return tuple(ledger_id for (ledger_id,) in rows)

        while start <= LEDGER_ID_MAX:
            found = await self._read(work)
            last = found[-1] if len(found) == LIST_RANGE_LEDGERS else LEDGER_ID_MAX
            if complete and last == LEDGER_ID_MAX:
                await self._file.check_structure()
            yield LedgerRange(start, last, found)
            start = last + 1

    async def list_ledgers_down(self, last: int = LEDGER_ID_MAX) -> AsyncIterator[LedgerRange]:
        check_ledger_id(last)
        end = last

        def work(connection: sqlite3.Connection) -> tuple[int, ...]:
            rows = connection.execute(
                "SELECT ledger_id FROM ledgers WHERE ledger_id <= ? ORDER BY ledger_id DESC "
                "LIMIT ?",
                (end, LIST_RANGE_LEDGERS),
            )
            return tuple(ledger_id for (ledger_id,) in rows)[::-1]

        while end >= 0:
            found = await self._read(work)
            first = found[0] if len(found) == LIST_RANGE_LEDGERS else 0
            yield LedgerRange(first, end, found)
            end = first - 1

    async def skip_ledger_ids(self, last: int) -> None:
        check_ledger_id(last)
        if last == LEDGER_ID_MAX:
            raise _used_up("no ids were skipped")

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE cluster SET next_ledger_id = max(next_ledger_id, ?)", (last + 1,)
            )

        await self._write(work)

    def watch_ledger(
        self, ledger_id: int, changed: Callable[[Versioned[LedgerMetadata] | None], None]
    ) -> Watch:
        check_ledger_id(ledger_id)
        self._check_open()
        return self._watches.watch_ledger(ledger_id, changed)

    def on_outage(self, ended: Callable[[float], None]) -> Watch:
        self._check_open()
        return WatchHandle(lambda: None)  # a file does not go away and come back

    # -- bookies ------------------------------------------------------------------------------

    async def register_bookie(self, address: BookieAddress, readonly: bool = False) -> Registration:
        presence = WantedRegistration(address.bookie_id, encode_address(address), readonly)
        self._check_open()
        if address.bookie_id in self._presences:
            raise registered_here(address.bookie_id)
        self._presences[address.bookie_id] = presence
        self._session_used = True
        try:
            await self._take_in_time(presence)
        except BaseException:
            # The thread may still carry out the registration, so ask it to undo that.
            del self._presences[address.bookie_id]
            self._tasks.start(self._withdraw_row(address.bookie_id))
            raise
        self._keep_session()
        registration = _SqliteRegistration(self, address)
        self._registrations[address.bookie_id] = registration
        return registration

    async def _take_in_time(self, presence: WantedRegistration) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._session_timeout_ms / 1000
        while not await self._write(lambda connection: self._session.take(connection, presence)):
            if loop.time() >= deadline:
                raise bookie_exists(presence.bookie_id, self._session_timeout_ms)
            await asyncio.sleep(REGISTER_POLL_S)

    def _keep_session(self) -> None:
        self._session_used = True
        if not self._renewing and not self._closed:
            self._renewing = True
            self._tasks.start(self._renew())

    async def _renew(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._session_timeout_ms / 1000 / RENEWALS_PER_TIMEOUT)
            try:
                taken = await self._renew_now(tuple(self._presences.values()))
                failing = False
            except MetadataError as error:
                if not failing:
                    logger.warning("the lease of the session could not be renewed: %s", error)
                failing = True
                continue
            except Exception as error:  # noqa: BLE001 - otherwise the lease would end
                self._unexpected.note("renew the lease", error)
                continue
            for bookie_id, registration in list(self._registrations.items()):
                if bookie_id not in taken:
                    registration.held_until = None
                elif registration.held(self._session_timeout_ms):
                    del self._presences[bookie_id], self._registrations[bookie_id]

    async def _renew_now(self, presences: Sequence[WantedRegistration]) -> list[str]:
        def work(connection: sqlite3.Connection) -> list[str]:
            return self._session.renew(connection, presences)

        return await self._write(work)

    async def set_readonly(
        self, bookie_id: str, readonly: bool, payload: bytes | None = None
    ) -> None:
        presence = replace(self._presences[bookie_id], readonly=readonly)
        if payload is not None:
            presence = replace(presence, payload=payload)
        self._presences[bookie_id] = presence
        if not await self._write(lambda connection: self._session.take(connection, presence)):
            raise bookie_exists(bookie_id)

    async def withdraw(self, bookie_id: str) -> None:
        self._registrations.pop(bookie_id, None)
        if self._presences.pop(bookie_id, None) is not None and not self._closed:
            # A task of its own, because a cancelled call must not leave the row behind.
            await asyncio.wait([self._tasks.start(self._withdraw_row(bookie_id))])

    async def _withdraw_row(self, bookie_id: str) -> None:
        """Delete the registration of a bookie, unless the bookie registers again meanwhile."""

        def work(connection: sqlite3.Connection) -> None:
            if bookie_id not in self._presences:
                self._session.withdraw(connection, bookie_id)

        try:
            await self._write(work)
        except (MetadataError, ClientClosedError) as error:
            logger.warning(
                "bookie %s stays registered until its lease expires: %s", bookie_id, error
            )

    async def bookies(self, *, addresses: bool = True) -> Bookies:
        return await self._read(self._session.bookies)

    async def registered(self) -> frozenset[str]:
        found = await self.bookies()
        return frozenset((*found.writable, *found.readonly))

    async def learn_bookies(self, bookie_ids: Collection[str]) -> Mapping[str, BookieAddress]:
        found = await self.bookies()
        addresses = {id_: found.find(id_) for id_ in bookie_ids}
        return {id_: address for id_, address in addresses.items() if address is not None}

    def watch_bookies(self, changed: Callable[[Bookies], None], *, addresses: bool = True) -> Watch:
        # One query reads all registrations with their addresses, so `addresses` saves nothing.
        self._check_open()
        return self._watches.watch_bookies(changed)

    # -- cookies and values -------------------------------------------------------------------

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes]:
        check_bookie_id(bookie_id)
        return await self._read_node("cookies", bookie_id, f"the cookie of {bookie_id}")

    async def write_cookie(self, bookie_id: str, cookie: bytes, version: int | None) -> int:
        check_bookie_id(bookie_id)
        what = f"the cookie of {bookie_id}"
        return await self._write_node("cookies", bookie_id, cookie, version, what)

    async def delete_cookie(self, bookie_id: str, version: int = ANY_VERSION) -> None:
        check_bookie_id(bookie_id)
        await self._delete_node("cookies", bookie_id, version, f"the cookie of {bookie_id}")

    async def list_cookies(self) -> list[str]:
        def work(connection: sqlite3.Connection) -> list[str]:
            return [name for (name,) in connection.execute("SELECT name FROM cookies")]

        return sorted(await self._read(work))

    async def read_value(self, key: Sequence[str]) -> Versioned[bytes]:
        name = "/".join(check_key(key))
        return await self._read_node("values", name, f"the value {name}")

    async def write_value(
        self,
        key: Sequence[str],
        value: bytes,
        version: int | None,
        *,
        known: bytes | None = None,
    ) -> int:
        name = "/".join(check_key(key))
        return await self._write_node("values", name, value, version, f"the value {name}", known)

    async def delete_value(
        self, key: Sequence[str], version: int = ANY_VERSION, *, known: bytes | None = None
    ) -> bool:
        name = "/".join(check_key(key))
        return await self._delete_node("values", name, version, f"the value {name}", known)

    async def list_values(self, prefix: Sequence[str]) -> list[str]:
        before = "".join(f"{part}/" for part in check_prefix(prefix))

        def work(connection: sqlite3.Connection) -> set[str]:
            rows = connection.execute('SELECT name FROM "values"')
            if before:
                # The character '0' follows '/', so this is everything that begins with `before`.
                query = 'SELECT name FROM "values" WHERE name >= ? AND name < ?'
                rows = connection.execute(query, (before, before[:-1] + "0"))
            return {name[len(before) :].partition("/")[0] for (name,) in rows}

        return sorted(await self._read(work))

    async def _read_node(self, table: str, name: str, what: str) -> Versioned[bytes]:
        def work(connection: sqlite3.Connection) -> Versioned[bytes] | None:
            row = connection.execute(
                f'SELECT data, version FROM "{table}" WHERE name = ?', (name,)
            ).fetchone()
            return None if row is None else Versioned(row[0], row[1])

        found = await self._read(work)
        if found is None:
            raise NoSuchKeyError(f"{what} does not exist in the metadata store")
        return found

    async def _write_node(
        self,
        table: str,
        name: str,
        data: bytes,
        version: int | None,
        what: str,
        known: bytes | None = None,
    ) -> int:
        check_size(data, what)
        if version is not None:
            check_version(version)

        def work(connection: sqlite3.Connection) -> int:
            stored = _version_of(connection, table, name)
            if version is None:
                if stored is not None:
                    raise KeyExistsError(
                        f"{what} already exists in the metadata store. Nothing was changed"
                    )
                connection.execute(f'INSERT INTO "{table}" VALUES (?, 0, ?)', (name, data))
                return 0
            if stored is None:
                raise NoSuchKeyError(f"{what} does not exist in the metadata store")
            if stored != version:
                raise conflict(what, version, stored)
            _check_known(connection, table, name, what, known)
            connection.execute(
                f'UPDATE "{table}" SET version = ?, data = ? WHERE name = ?',
                (version + 1, data, name),
            )
            return version + 1

        return await self._write(work)

    async def _delete_node(
        self, table: str, name: str, version: int, what: str, known: bytes | None = None
    ) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            stored = _version_of(connection, table, name)
            if stored is not None and version not in (ANY_VERSION, stored):
                raise conflict(what, version, stored)
            if stored is not None:
                _check_known(connection, table, name, what, known)
            connection.execute(f'DELETE FROM "{table}" WHERE name = ?', (name,))
            return stored is not None

        return await self._write(work)

    async def _read(self, work: Work[T]) -> T:
        self._check_open()
        return await self._file.read(work)

    async def _write(self, work: Work[T]) -> T:
        self._check_open()
        try:
            return await self._file.write(work)
        finally:  # also if the caller was cancelled, or the outcome is unknown
            self._watches.wake()
            self.tree.look_at_session()

    def _check_open(self) -> None:
        if self._closed:
            raise store_closed(f"the metadata store {self.uri}")


class _SqliteRegistration:
    """The registration of one bookie."""

    def __init__(self, store: SqliteStore, address: BookieAddress) -> None:
        self._store = store
        self._address = address
        self._bookie_id = address.bookie_id
        self._closed = False
        self.held_until: float | None = None
        """The time, on the clock of the event loop, until which another session may keep the id. It
        is None if no other session has it."""
        self.lost: asyncio.Future[KeyExistsError] = asyncio.get_running_loop().create_future()

    def held(self, timeout_ms: int) -> bool:
        """Note that another session has the id. Return True if it has kept the id for too long.

        This registration is lost then.
        """
        now = asyncio.get_running_loop().time()
        if self.held_until is None:
            logger.error("another process has registered bookie %s", self._bookie_id)
            self.held_until = now + timeout_ms / 1000
        if now < self.held_until:
            return False
        self.lost.set_result(bookie_exists(self._bookie_id, timeout_ms))
        return True

    async def set_readonly(
        self, readonly: bool, properties: Mapping[str, str] | None = None
    ) -> None:
        if self.lost.done():
            raise self.lost.result()
        if self._closed:
            raise ClientClosedError(
                f"the registration of bookie {self._bookie_id} was closed, so it cannot be changed"
            )
        payload = None
        if properties is not None:
            payload = encode_address(replace(self._address, properties=properties))
        await self._store.set_readonly(self._bookie_id, readonly, payload)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self.lost.done():
                await self._store.withdraw(self._bookie_id)


def _ledger(connection: sqlite3.Connection, ledger_id: int) -> Versioned[LedgerMetadata] | None:
    row = connection.execute(
        "SELECT metadata, ctime_ms, version FROM ledgers WHERE ledger_id = ?", (ledger_id,)
    ).fetchone()
    if row is None:
        return None
    return Versioned(decode_ledger(ledger_id, row[0], row[1], row[2]), row[2], row[1])


def _next_ledger_id(connection: sqlite3.Connection) -> int:
    """Return the next id of the counter that no caller has chosen for a ledger."""
    found = int(connection.execute("SELECT next_ledger_id FROM cluster").fetchone()[0])
    while connection.execute("SELECT 1 FROM ledgers WHERE ledger_id = ?", (found,)).fetchone():
        found += 1
    if found >= LEDGER_ID_MAX:
        raise _used_up("no ledger was created")
    connection.execute("UPDATE cluster SET next_ledger_id = ?", (found + 1,))
    return found


def _used_up(what: str) -> MetadataError:
    return MetadataError(
        f"{what}: all ledger ids that the metadata store can generate are used up",
        remedy="Create the ledger with an id that you choose",
    )


def _check_known(
    connection: sqlite3.Connection, table: str, name: str, what: str, known: bytes | None
) -> None:
    """Raise VersionConflictError if a row has other data than `known`, which may be None."""
    if known is None:
        return
    (data,) = connection.execute(f'SELECT data FROM "{table}" WHERE name = ?', (name,)).fetchone()
    if data != known:
        raise replaced(what)


def _version_of(connection: sqlite3.Connection, table: str, name: str) -> int | None:
    row = connection.execute(f'SELECT version FROM "{table}" WHERE name = ?', (name,)).fetchone()
    return None if row is None else int(row[0])
