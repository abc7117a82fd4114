"""The bookie: it connects storage, registration, connections and background work.

Disks, threads, network, clock and metadata store are passed in.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from typing import cast

from quire._runtime.clock import Clock
from quire._runtime.event_log import EventLog
from quire._runtime.retry import Backoff, Retry
from quire._runtime.shortages import reason_of
from quire._runtime.tasks import TaskSet, UnexpectedErrors
from quire._runtime.units import host_port
from quire.bookie.announcement import Announced, Announcement
from quire.bookie.background.collection_guard import (
    CollectionGuard,
    read_remembered,
    write_remembered,
)
from quire.bookie.background.damage import DamageReports
from quire.bookie.background.damage_notes import DamageNotes
from quire.bookie.background.garbage import (
    MassDeletionCheck,
    UnchangedRanges,
    collect_garbage,
    unnamed_ledgers,
)
from quire.bookie.background.orders import Orders, forget_predecessor
from quire.bookie.background.over_replicated import OverReplicated
from quire.bookie.directories import rollback
from quire.bookie.directories.cookie_directories import FoundDirectory, check_directories, look_at
from quire.bookie.directories.identity import remembered_id
from quire.bookie.directories.opening import open_store
from quire.bookie.directories.rollback import Rollbacks
from quire.bookie.options import check_config
from quire.bookie.protocol.connection import Connection
from quire.bookie.protocol.connection_limits import SWEEP_S
from quire.bookie.protocol.loading_store import LoadingStore
from quire.bookie.protocol.security import check_security
from quire.bookie.protocol.service import BookieService
from quire.codec.metadata.registration import Endpoint, check_bookie_id, default_bookie_id
from quire.config import BookieConfig
from quire.errors import (
    CollectionOffError,
    CookieError,
    KeyExistsError,
    LaterMetadataError,
    MetadataWentBackError,
    QuireError,
    StartError,
    StorageError,
)
from quire.metadata.bookies import tls_files
from quire.metadata.bookies.start_commands import StartCommand, write_start_command
from quire.metadata.bookies.unwritable import FAILED, FULL, HELD, LOADING, LOST, ORDERED, Unwritable
from quire.metadata.interface import BookieAddress, MetadataStore
from quire.metadata.outages import OutageNotes
from quire.net.certificates import CertificateExpiry, expiries
from quire.net.network import Network, Port
from quire.storage.background.compactor import Compaction
from quire.storage.background.quarantine_record import SegmentDamage
from quire.storage.directories import DataDirectory, LedgerDirectories, Store
from quire.storage.interfaces import BlockingReader, Disk, Worker
from quire.storage.log.group_commit import StorageTimes
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.stats import DirectoryState, space_of

LOADING_TOLD_S = 5.0
"""Seconds between two log lines about the progress of loading the log."""
LOADING_SHOWN_S = 0.25
"""Seconds between two updates of the progress bar while the log is loaded."""
SERVE_EARLY_AFTER_S = 1.0
"""Seconds after which a bookie that still loads its log begins to serve reads. Most bookies have
loaded it by then, and need only one change of the registration."""

NOTE_BACKOFF = Backoff(1.0, 30.0)
"""The pauses before the start command is written again after an attempt has failed."""
UNNAMED_TOLD = 100
"""The most ledger ids in the log event `garbage_unnamed`, which reports ledgers on this bookie that
are not in a metadata store that went back in time."""

LoadingBar = Callable[[], AbstractContextManager[Callable[[int], None]]]
"""A function that returns the context manager of a progress bar. The value of the context is a
function that takes the loaded share of the log in percent."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address that a bookie listens on, and the host under which clients reach it."""

    bind: str
    port: int
    """The port to listen on. 0 means any free port."""
    advertise: str
    bookie_id: str = ""
    """The id of the bookie. Empty means the id in the cookie of the data directory, or
    ADVERTISE:PORT for a new directory. Ledgers name a bookie by its id for good, even if it moves
    to another address."""


def _tls_files(config: BookieConfig) -> tls_files.TlsFiles | None:
    """Return the TLS files of a bookie. Their paths are absolute, because people read them."""
    if config.tls is None:
        return None
    authorities = config.tls.ca
    return tls_files.TlsFiles(
        os.path.abspath(config.tls.certificate),
        "" if authorities is None else os.path.abspath(authorities),
    )


class Bookie:
    """A bookie in the running event loop. Call `start`, and later `stop`.

    The future `failed` gets an error as its result when the bookie cannot continue, because its
    disk failed, another process took its id, or it was decommissioned.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        log_worker: Worker,
        maintenance_worker: Worker,
        metadata: MetadataStore,
        network: Network,
        clock: Clock,
        address: Address,
        config: BookieConfig,
        log: EventLog,
        random_bytes: Callable[[int], bytes],
        reader: BlockingReader | None = None,
        more_directories: Sequence[DataDirectory] = (),
        loading_bar: LoadingBar | None = None,
    ) -> None:
        """Create a bookie.

        `disk`, the workers and `reader` are those of the first data directory. `loading_bar` shows
        the progress of loading the log instead of log lines. Raises UsageError if two limits
        contradict each other, and TlsConfigError if the configured certificates cannot be used.
        """
        check_config(config)
        check_security(config)
        self.config = config
        self.metadata = metadata
        self.address = address
        self.bookie_id = ""
        self.failed: asyncio.Future[QuireError] = asyncio.get_running_loop().create_future()
        first = DataDirectory(disk, log_worker, maintenance_worker, reader)
        self._disks = [one.disk for one in (first, *more_directories)]
        self._network = network
        self._clock = clock
        self._random_bytes = random_bytes
        self._log = log
        self.log_times = StorageTimes(clock.monotonic)
        self.store = open_store((first, *more_directories), config, clock, self.log_times)
        self.service = BookieService(self.store, config, clock, network, log)
        self._port: Port | None = None
        self._instance_id = ""
        self._reader = reader
        self._loading_bar = loading_bar
        self._recovered = False
        self._begun = False
        """Whether this start is recorded in the metadata store."""
        self._serving = False
        self.stopping = False
        """Whether `stop` was called, also after a start that failed."""
        self.held_readonly = False
        self.others: tuple[Endpoint, ...] = ()
        """Further endpoints of the bookie's process, such as HTTP. The registration names them."""
        self.start_command = StartCommand()
        """The command that started the bookie's process. Without words if it is not known."""
        self._clearing = False
        self._mass_deletion = MassDeletionCheck(config.gc_interval_s, clock.monotonic)
        self._unchanged = UnchangedRanges()
        self._collecting = asyncio.Lock()
        self._collection_off = False
        """Whether the log already says that garbage collection is off."""
        self._orders: Orders | None = None
        self._over_replicated: OverReplicated | None = None
        self.collection: CollectionGuard | None = None
        """The guard of garbage collection. None before the directories were checked."""
        self.damage_reports: DamageReports | None = None
        self._damage_notes: DamageNotes | None = None
        self._damage_not_noted = ""
        """Why the last update of the notes about damage failed. Empty if it succeeded."""
        self.rollbacks: Rollbacks | None = None
        self._logged_writable = True
        """Whether the bookie accepts entries according to the last log event about that. True
        before the first one."""
        self._tasks = TaskSet()
        self.background_errors = UnexpectedErrors()
        """The unexpected errors of periodic work."""
        # The source of randomness for the pauses between retries.
        self._rng = rng = random.Random(int.from_bytes(random_bytes(8), "big"))
        self._outage_notes: OutageNotes | None = None
        self._announcement = Announcement(
            self._announced, log, self._tasks, rng, tls_files.as_properties(_tls_files(config))
        )

    @property
    def writable(self) -> bool:
        """Whether the bookie accepts entries of writers.

        A bookie accepts entries once it has read its log, while its store is writable and no
        operator keeps it read-only.
        """
        return self._recovered and self.store.writable and not self._held_back

    @property
    def _held_back(self) -> bool:
        """Whether an operator keeps the bookie read-only, regardless of its free space."""
        return self.held_readonly or (self._orders is not None and self._orders.draining)

    @property
    def unwritable(self) -> tuple[Unwritable, ...]:
        """The reasons why the bookie, or one of its data directories, does not accept all adds."""
        if not self._recovered:
            return (Unwritable(LOADING),)
        found = [Unwritable(HELD)] if self.held_readonly else []
        if self._orders is not None and self._orders.draining:
            found.append(Unwritable(ORDERED))
        kinds = {"full": FULL, "lost": LOST, "failed": FAILED}
        for one in self.store.directories():
            if one.kind in kinds:
                found.append(Unwritable(kinds[one.kind], one.path))
        return tuple(found)

    def _announced(self) -> Announced:
        return Announced(self.writable, self.unwritable)

    @property
    def recovered(self) -> bool:
        """Whether the log was read. Before that, the store is used only for early reads."""
        return self._recovered

    @property
    def loading_percent(self) -> int:
        """The share of the log that is loaded, in percent."""
        return 100 if self._recovered else self.store.loading_percent

    @property
    def serving(self) -> bool:
        """Whether the bookie is registered, listens, and has loaded its log."""
        return self._serving

    @property
    def status(self) -> int:
        """Apache's number for the state: 1 writable, 0 read-only, -1 not serving clients."""
        return int(self.writable) if self._serving and not self.failed.done() else -1

    def hold_readonly(self, held: bool) -> None:
        """Keep the bookie read-only, or stop doing so.

        With False, the bookie accepts entries of writers again unless something else prevents that.
        The setting ends with the process. To remove a bookie for good, use `quire bookie
        decommission`.
        """
        if held != self.held_readonly:
            self.held_readonly = held
            if self._recovered:
                self._on_writable_changed(self.store.writable)

    def explain_unwritable(self) -> list[tuple[Unwritable, str]]:
        """Return each reason of `unwritable` with an explanation in words."""
        order = self._orders.sentence() if self._orders is not None else ""
        said = {
            LOADING: f"{self.loading_percent} % of its log is loaded",
            HELD: "an operator holds it until its next start",
            ORDERED: order,
        }
        places = (
            {one.path: one.reason for one in self.store.directories()} if self._recovered else {}
        )
        return [(one, said.get(one.why) or places[one.directory]) for one in self.unwritable]

    def spaces(self) -> list[tuple[str, int, int]]:
        """Return the path, total bytes and free bytes of each data directory.

        A directory whose file system does not answer is left out.
        """
        found = []
        for disk in self._disks:
            with suppress(OSError):  # it failed; the state of the directory shows that
                found.append((disk.path, disk.total_bytes(), disk.free_bytes()))
        return found

    def space(self) -> tuple[int, int]:
        """Return the total and the free bytes of all data directories together.

        A file system with several of them counts once. One that does not answer is left out. Both
        numbers are 0 if no file system answers.
        """
        return space_of(self._disks) or (0, 0)

    def now_ms(self) -> int:
        """Return the Unix time in milliseconds by the clock of this bookie."""
        return self._clock.now_ms()

    def certificates(self) -> list[CertificateExpiry]:
        """Return the certificates in the bookie's TLS files, with the times when they expire."""
        return expiries(self.service.security.certificates(), self._clock.now_ms())

    async def start(self) -> None:
        """Check the directories, recover the log, listen, and register.

        If the recovery takes long, the bookie registers as read-only meanwhile, and serves what it
        has loaded. On return the bookie is registered and serves. After an error or a cancellation,
        nothing is left running, and no stored entry was changed.

        Raises:
            StartError: The port cannot be used, or another process uses a directory.
            CookieError: A directory does not belong to this bookie or cluster, or another process
                starts the same bookie.
            StorageError: The log cannot be used, or the disk fails.
            LaterVersionError: A later version of Quire wrote a part of a directory.
            UsageError: The bookie id is not valid, or the address cannot be registered.
            MetadataError: The metadata store fails, or another process has the bookie's id.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        self._port = self._bind()
        usable = await self._check_directories(self._port.number)
        await self._prepare_background(usable)
        await self._load_log(usable)
        self._start_store()
        await self._serve(self._port)
        self._begin_periods()
        self._serving = True
        self._log("serving", bookie=self.bookie_id, metadata=self.metadata.uri)

    async def _check_directories(self, port: int) -> list[Disk]:
        """Choose the id of this bookie, and check that the directories belong to it.

        Return the disks of the directories that can be used.
        """
        if self.address.bookie_id:
            check_bookie_id(self.address.bookie_id)
        found = look_at(self._disks, self.metadata.uri)
        self.bookie_id = self._choose_id(default_bookie_id(self.address.advertise, port), found)
        # This server of the store may lag behind the one of the last process, which wrote the
        # record of the directories until its end.
        await self.metadata.tree.sync()
        if all(one.cookie is None and one.error is None for one in found):
            await forget_predecessor(self.metadata, self.bookie_id)
        checked = await check_directories(
            found, self.metadata, self.bookie_id, self._random_bytes, self._clock.now_ms()
        )
        self._instance_id = checked.instance_id
        for path in checked.added:
            self._log("directory_added", directory=path)
        if isinstance(self.store, LedgerDirectories):
            self.store.on_directory_changed = self._on_directory_changed
            for path, error in checked.put_aside.items():
                self.store.refuse(path, error)
        return [disk for disk in self._disks if disk.path not in checked.put_aside]

    async def _prepare_background(self, usable: Sequence[Disk]) -> None:
        """Create the background jobs that need the id of this bookie, and follow its orders."""
        self._orders = await Orders.follow(
            self.metadata, self.bookie_id, self._on_orders, self._on_retired, self._log, self._tasks
        )
        self._outage_notes = OutageNotes(
            self.metadata, self.bookie_id, self._clock.now_ms, self._rng
        )
        self._outage_notes.start()
        self.collection = self._guard(usable)
        known = self.bookie_id, self._instance_id, self.collection
        self._over_replicated = OverReplicated(self.store, self.metadata, self._clock, *known)
        self.damage_reports = DamageReports(self.store, self.metadata, self._clock, *known)
        self._damage_notes = DamageNotes(
            self.store, self.metadata, self._clock, self.bookie_id,
            [disk.path for disk in self._disks],
        )  # fmt: skip

    async def _load_log(self, usable: Sequence[Disk]) -> None:
        """Load the log and record this start in the cluster."""
        self.rollbacks = Rollbacks(
            self.store, self.metadata, self.bookie_id, self._log, self._clock.monotonic,
            self.config.log_position_interval_s,
        )  # fmt: skip
        await self.rollbacks.check(usable)
        report = await self._recover()
        self._recovered = True
        await self.rollbacks.begin(self._random_bytes, report.went_back)
        self._begun = True
        for one in self.store.directories():
            if one.state == "failed":
                self._on_directory_changed(one)
        paths = ", ".join(disk.path for disk in self._disks)
        self._log("recovered", directory=paths, report=str(report))

    def _start_store(self) -> None:
        self.store.on_failure = self._on_failure
        self.store.on_writable_changed = self._on_writable_changed
        self.store.on_compaction = self._on_compaction
        self.store.on_damage = self._on_damage
        self.store.start()

    async def _serve(self, port: Port) -> None:
        """Listen and register, unless the bookie already did so while it loaded its log.

        A client that learns of the bookie connects at once, so the bookie must listen by then.
        """
        if not self._tell_service() and self._logged_writable:
            # The store has reported no change, because a directory failed before it was started.
            self._on_writable_changed(self.store.writable)
        if self.service.loading_store is not None:
            self._end_loading(self.service.loading_store)
            self._announcement.soon()
            return
        await self._listen(port)
        await self._register(port)

    def _guard(self, disks: Sequence[Disk]) -> CollectionGuard:
        """Create the guard of garbage collection, with the marks in these directories."""
        return CollectionGuard(
            self.metadata,
            self.bookie_id,
            read_remembered(disks),
            self._keep_mark,
            enabled=self.config.gc_enabled,
            clock=self._clock,
            random_bytes=self._random_bytes,
            log=self._log,
        )

    async def _keep_mark(self, data: bytes) -> None:
        """Write an encoded mark of the metadata store into every data directory in use.

        This is done on a thread if there is one.
        """
        serving = {one.path for one in self.store.directories() if one.state != "failed"}
        disks = [disk for disk in self._disks if disk.path in serving]
        if self._reader is None:
            write_remembered(disks, data)
            return
        work = asyncio.ensure_future(self._reader.run(lambda: write_remembered(disks, data)))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # keep the directories until the work has ended
            raise

    async def _register(self, port: Port) -> None:
        lost = await self._announcement.register(
            self.metadata,
            BookieAddress(
                self.bookie_id,
                self.address.advertise,
                port.number,
                tls=self.config.tls is not None,
                others=self.others,
            ),
            self._announced(),
        )
        lost.add_done_callback(self._on_registration_lost)

    async def _recover(self) -> RecoveryReport:
        """Recover the log, on a thread if there is one, and return a report.

        A large index takes a while to load. Meanwhile the bookie reports its progress, and serves
        what it has loaded.
        """
        if self._reader is None:
            return self.store.recover()
        telling = self._tasks.start(self._tell_loading())
        work = asyncio.ensure_future(self._reader.run(self.store.recover))
        try:
            await asyncio.wait([work], timeout=SERVE_EARLY_AFTER_S)
            if not work.done():
                await self._serve_while_loading()
            return await asyncio.shield(work)
        except BaseException:
            # The thread may be writing: keep the directories until it has ended.
            self.store.stop_loading()
            if not work.done():
                self._log("loading_stopped", bookie=self.bookie_id, percent=self.loading_percent)
            while not work.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            # If the recovery succeeded, it has opened files, which `stop` closes.
            self._recovered = not work.cancelled() and work.exception() is None
            raise
        finally:
            telling.cancel()

    async def _tell_loading(self) -> None:
        if self._loading_bar is None:
            while True:
                await asyncio.sleep(LOADING_TOLD_S)
                self._log("loading", bookie=self.bookie_id, percent=self.loading_percent)
        await asyncio.sleep(LOADING_SHOWN_S)
        with self._loading_bar() as show:
            while True:
                show(self.loading_percent)
                await asyncio.sleep(LOADING_SHOWN_S)

    async def _serve_while_loading(self) -> None:
        """Register as read-only and serve the entries that are loaded already.

        The bookie accepts no adds before it knows which ledgers are fenced.
        """
        assert self._port is not None
        partial = LoadingStore(self.store)
        # It has everything that the service uses of a store while `loading` is set.
        self.service.store, self.service.loading = cast(Store, partial), True
        self.service.loading_store = partial
        await self._listen(self._port)
        await self._register(self._port)
        self._log("serving_early", bookie=self.bookie_id, percent=self.loading_percent)

    def _end_loading(self, partial: LoadingStore) -> None:
        self.service.store, self.service.loading = self.store, False
        self.service.loading_store = None
        partial.end()
        self.store.end_early()

    def _begin_periods(self) -> None:
        config = self.config
        assert self.collection is not None
        self._tasks.start(self.raise_mark())
        self._repeat(config.metadata_mark_interval_s, self.raise_mark)
        self._repeat(config.gc_interval_s, self.collect_garbage)
        if config.gc_over_replicated_interval_s:
            self._repeat(config.gc_over_replicated_interval_s, self.collect_over_replicated)
        self._repeat(config.check_space_s, self._check_space)
        assert self.rollbacks is not None
        self._repeat(rollback.LOOK_S, self.rollbacks.look)
        self._tasks.start(self._note_damage())
        if self.start_command.words:
            self._tasks.start(self._note_start_command())
        if config.damage_report_interval_s:
            self._repeat(config.damage_report_interval_s, self.report_damage)

    async def _note_start_command(self) -> None:
        """Write the command that started this bookie, and its address, into the store."""
        assert self._port is not None
        address = host_port(self.address.advertise, self._port.number)
        started = replace(self.start_command, address=address)
        retry = Retry(NOTE_BACKOFF, self._rng)
        while True:
            try:
                await write_start_command(self.metadata, self.bookie_id, started)
                return
            except LaterMetadataError:
                return
            except QuireError:
                await retry.pause()

    async def stop(self) -> None:
        """End the registration, complete the adds that were received, and close the log.

        Everything that was acknowledged is durable on return. Reads that still wait for the disk
        are dropped. Safe to call twice. If the call is cancelled, the next start recovers the log.
        """
        self._serving = False
        self.stopping = True
        if self._port is not None:
            self._port.close()
        if self._orders is not None:
            self._orders.close()
        if self._outage_notes is not None:
            await self._outage_notes.close()
        await self._tasks.close()
        self.store.end_early()
        await self._announcement.withdraw()
        if self._recovered:
            if not self.service.loading:  # otherwise there are no adds, and the store never started
                await self.service.drain()
            await self.store.close()
            if self._begun and self.rollbacks is not None:
                await self.rollbacks.last()
        await self.service.close()
        for disk in self._disks:
            disk.close()
        if self.bookie_id:
            self._log("stopped", bookie=self.bookie_id)

    async def raise_mark(self) -> None:
        """Raise this bookie's mark in the metadata store. Errors are logged.

        When the bookie notices that the store went back, it names the ledgers that the store lacks.
        A pass of garbage collection names them again, but is not made while collection is off.
        """
        assert self.collection is not None
        before = self.collection.went_back
        await self.collection.raise_in_turn()
        if self.collection.went_back and not before:
            await self._tell_unnamed()

    async def collect_garbage(self) -> str:
        """Make one pass of garbage collection now, and return why it was not completed, or ''.

        If it was not completed, nothing was deleted. The reason is logged, but only once while
        collection is switched off.
        """
        assert self.collection is not None
        try:
            async with self._collecting:
                await collect_garbage(
                    self.store,
                    self.metadata,
                    self._instance_id,
                    self._log,
                    self.collection,
                    self._mass_deletion,
                    self._unchanged,
                )
            self._release_long_polls()
        except CollectionOffError as error:
            if not self._collection_off:  # log it once, because a full disk causes many passes
                self._log("garbage_collection_off", error=str(error))
            self._collection_off = True
            return str(error)
        except QuireError as error:
            self._log("garbage_collection_skipped", error=str(error))
            if isinstance(error, MetadataWentBackError):
                await self._tell_unnamed()
            return str(error)
        self._collection_off = False
        return ""

    @property
    def ledgers_unreadable(self) -> int:
        """The number of ledgers here whose metadata could not be read.

        It was counted by the last pass for superfluous copies.
        """
        return 0 if self._over_replicated is None else len(self._over_replicated.unread)

    async def _tell_unnamed(self) -> None:
        """Log the ledgers that this bookie holds and the metadata store does not name.

        An operator must examine them before accepting the store.
        """
        try:
            found = await unnamed_ledgers(self.store, self.metadata, self._instance_id)
        except QuireError as error:
            self._log("garbage_unnamed_unknown", error=str(error))
        else:
            last = found[-1] if found else None
            self._log("garbage_unnamed", count=len(found), last=last, ledgers=found[:UNNAMED_TOLD])

    async def collect_over_replicated(self) -> None:
        """Make one pass now that drops superfluous copies. Errors are logged.

        The pass drops only copies that the previous pass has also found, so passes must be far
        apart (see `over_replicated`).
        """
        assert self._over_replicated is not None
        try:
            await self._over_replicated.collect(self._log)
        except CollectionOffError as error:
            self._log("over_replicated_off", error=str(error))
        except QuireError as error:
            self._log("over_replicated_skipped", error=str(error))

    async def report_damage(self) -> None:
        """Make one pass now that marks ledgers with damaged or lost entries as under-replicated.

        It also updates the notes that `quire explain` shows. Errors are logged, and the next pass
        tries again.
        """
        await self._note_damage()
        assert self.damage_reports is not None
        try:
            await self.damage_reports.report(self._log)
        except (QuireError, CookieError) as error:
            self._log("damage_report_failed", error=str(error))

    # -- internal methods ---------------------------------------------------------------------

    def _choose_id(self, address: str, found: Sequence[FoundDirectory]) -> str:
        """Return the id of this bookie.

        It is the configured id, or else the id in the cookie of the data directory, or else
        `address`.
        """
        if self.address.bookie_id:
            return self.address.bookie_id
        kept = next((one.cookie.bookie_id for one in found if one.cookie is not None), "")
        if not kept and len(found) == 1 and found[0].error is not None:
            kept = remembered_id(found[0].disk, self.metadata.uri)  # raises if it cannot be read
        if kept and kept != address:
            self._log("id_kept", bookie=kept, address=address, why="the directory has this id")
        chosen = kept or address
        check_bookie_id(chosen)
        return chosen

    def _bind(self) -> Port:
        try:
            return self._network.bind(self.address.bind, self.address.port)
        except OSError as error:
            raise self._port_error(error) from None

    async def _listen(self, port: Port) -> None:
        try:
            await port.listen(lambda: Connection(self.service))
        except OSError as error:
            raise self._port_error(error) from None
        self._repeat(SWEEP_S, self.service.sweep)

    def _port_error(self, error: OSError) -> StartError:
        where = host_port(self.address.bind, self.address.port)
        if error.errno == errno.EADDRINUSE:
            return StartError(
                f"the bookie cannot listen on {where}: the port is in use by another process",
                remedy="Choose another port with --port, or stop the process that uses it",
            )
        return StartError(
            f"the bookie cannot listen on {where}: {reason_of(error)}",
            remedy="Check --bind (or --advertise) and --port",
        )

    def _repeat(self, period_s: float, work: Callable[[], Awaitable[object]]) -> None:
        self._tasks.start(self.background_errors.repeat(period_s, work))

    async def _check_space(self) -> None:
        self.store.check_space()
        self._clear_if_full()  # there is no event if the bookie was read-only before

    def _on_directory_changed(self, one: DirectoryState) -> None:
        """Log and announce the new state of one of several data directories."""
        self._log(f"directory_{one.state.replace('-', '_')}", directory=one.path, why=one.reason)
        self._announcement.soon()
        if one.state == "failed":
            self._release_long_polls()

    def _release_long_polls(self) -> None:
        """End the long polls of ledgers that are no longer here."""
        for ledger_id in self.service.long_polls.ledger_ids():
            if ledger_id not in self.store.ledgers:
                self.service.long_polls.release(ledger_id)

    def _on_failure(self, error: StorageError) -> None:
        paths = ", ".join(disk.path for disk in self._disks)
        self._log("storage_failed", directory=paths, error=str(error))
        self._give_up(error)

    def _give_up(self, error: QuireError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def _on_registration_lost(self, lost: asyncio.Future[KeyExistsError]) -> None:
        if not lost.cancelled():
            self._log("registration_lost", bookie=self.bookie_id, error=str(lost.result()))
            self._give_up(lost.result())

    def _on_writable_changed(self, has_room: bool) -> None:
        writable = self._logged_writable = self._tell_service()
        why = {} if writable else {"why": self._why_read_only()}
        self._log("writable" if writable else "read_only", bookie=self.bookie_id, **why)
        self._announcement.soon()
        self._clear_if_full()

    def _tell_service(self) -> bool:
        """Tell the service which adds it may accept, and return whether the bookie is writable."""
        held_back = self._held_back
        self.service.writable = self.store.all_writable and not held_back
        self.service.partly_writable = not self.service.writable and not held_back
        return self.writable

    def _why_read_only(self) -> str:
        found = [f"{one.path}: {one.reason}" for one in self.store.directories() if one.reason]
        return "; ".join(["an operator has made it read-only"] * self._held_back + found)

    def _clear_if_full(self) -> None:
        if self.store.disk_full and not self._clearing:
            self._clearing = True
            self._tasks.start(self._clear())

    async def _clear(self) -> None:
        """Collect garbage more often while the disk is full, because that frees space."""
        try:
            while self.store.disk_full:
                await asyncio.sleep(min(self.config.gc_full_interval_s, self.config.gc_interval_s))
                await self.collect_garbage()
        finally:
            self._clearing = False

    def _on_compaction(self, one: Compaction) -> None:
        name = "compaction_failed" if one.error else "compacted"
        self._log(name, **asdict(one))

    def _on_damage(self, path: str, damage: SegmentDamage, healed: bool) -> None:
        """Log that a segment was found to be damaged, or is no longer damaged, and leave a note."""
        if healed:
            self._log("damage_healed", directory=path, segment=damage.number)
        else:
            what = damage.describe()
            self._log("damage_found", directory=path, segment=damage.number, what=what)
            if self._damage_notes is not None:
                self._damage_notes.see(path, damage)
        if self._serving:
            self._tasks.start(self._note_damage())

    async def _note_damage(self) -> None:
        """Update the notes about damage. A failure is logged once, and tried again later."""
        assert self._damage_notes is not None
        why = ""
        try:
            await self._damage_notes.follow()
        except QuireError as error:
            why = str(error)
        if why and why != self._damage_not_noted:
            self._log("damage_not_noted", bookie=self.bookie_id, error=why)
        self._damage_not_noted = why

    def _on_orders(self) -> None:
        if not self._recovered:
            return  # the registration at the end of the start considers the orders
        self._log("draining" if not self.writable else "not_draining", bookie=self.bookie_id)
        self._on_writable_changed(self.store.writable)

    def _on_retired(self, error: CookieError) -> None:
        self._log("retired", bookie=self.bookie_id, error=str(error))
        self._give_up(error)
