"""The bookie process, which `quire bookie` runs."""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from quire._runtime.clock import SystemClock
from quire._runtime.event_log import EventLog, EventWriter
from quire._runtime.heap import (
    COLLECT_INTERVAL_S,
    KEPT_BYTES,
    collect_on_demand,
    keep_heap,
    trim_heap,
)
from quire._runtime.retry import Backoff, Retry
from quire._runtime.scheduling import schedule_as_batch
from quire._runtime.shortages import connections_max, few_connections, raise_limit
from quire._runtime.tasks import TaskSet
from quire.bookie.options import check_bookie
from quire.bookie.protocol.security import check_security
from quire.bookie.server import Address, Bookie, LoadingBar
from quire.config import BookieConfig
from quire.errors import CookieError, QuireError, StorageError
from quire.metadata import open_metadata
from quire.metadata.bookies.start_commands import StartCommand
from quire.net.network import AsyncioNetwork
from quire.storage.directories import DataDirectory
from quire.storage.disk import RealDisk
from quire.storage.worker import ThreadReader, ThreadWorker

EXIT_DISK_FAILED = 74
"""The exit status of a bookie whose disk failed: EX_IOERR of sysexits.h. A supervisor must not
restart the process blindly."""
BESIDE_BACKOFF = Backoff(5.0, 5.0)
TRIM_INTERVAL_S = 5.0
"""Seconds between two checks whether a burst of requests has left free memory behind."""
READS_END_S = 1.0
"""Seconds to wait for the threads that read, at the end of the process. A disk that hangs must not
keep the process from ending."""
SWITCH_INTERVAL_S = 0.0005
"""The interpreter's switch interval in seconds. It is short so that the log thread gets the
interpreter lock soon after its sync returns."""
log_event: EventLog = EventWriter()
"""The event log of a process that chooses no other: one line of JSON on standard error."""


@dataclass(frozen=True, slots=True)
class BookieOptions:
    """The options of a bookie process."""

    metadata_uri: str
    directories: Sequence[str]
    """The paths of the data directories, at least one. With several, the failure of one does not
    end the bookie."""
    port: int = 0
    """The port to listen on. 0 means any free port."""
    advertise: str = "127.0.0.1"
    """The host name or address under which clients and other bookies reach this bookie."""
    bookie_id: str = ""
    """The id of the bookie. Empty means the id in the cookie of the data directory, or
    ADVERTISE:PORT for a new directory."""
    bind: str = ""
    """The address to listen on. Empty means the advertised one."""
    config: BookieConfig = field(default_factory=BookieConfig)
    on_serving: Callable[[str], None] | None = None
    """A function that is called with the bookie id once the bookie serves."""
    loading_bar: LoadingBar | None = None
    """The progress bar of a long start. With None, the progress is logged."""
    around: Callable[[Bookie], AbstractAsyncContextManager[Any]] | None = None
    """A function that returns a context manager. The context is entered before the bookie starts,
    and left after its end."""
    beside: Callable[[str], Coroutine[Any, Any, None]] | None = None
    """A coroutine function that runs in the same process while the bookie serves. It gets the
    bookie id, and is cancelled when the bookie stops. If it raises a QuireError, the error is
    logged, and the function is called again after a pause."""
    start_command: StartCommand = field(default_factory=StartCommand)
    """The command that started the process. Without words if it is not known."""
    log: EventLog = log_event
    """The function that writes the events of the process."""


def run_bookie(options: BookieOptions) -> int:
    """Run a bookie until it ends, and return the exit status of the process.

    The status is 0 after SIGTERM or SIGINT and after a decommission. It is `EXIT_DISK_FAILED` if
    the disk failed. It is 1 if another process took the bookie's id, if the stop fails, or if the
    stop takes longer than `stop_timeout_s`. Raises QuireError if the bookie cannot start.
    """
    check_bookie(
        options.directories,
        port=options.port,
        advertise=options.advertise,
        bind=options.bind,
        bookie_id=options.bookie_id,
        config=options.config,
    )
    options = _within_descriptors(options)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_heap()
    collect_on_demand()
    return _run(_serve(options))


def _within_descriptors(options: BookieOptions) -> BookieOptions:
    """Raise the limit of file descriptors, and lower that of connections if it leaves too few.

    A bookie whose connections take all descriptors could begin no segment of its log.
    """
    descriptors = raise_limit()
    wanted = options.config.max_connections
    admitted = connections_max(wanted, descriptors)
    if admitted == wanted:
        return options
    options.log("connections_limited", what=few_connections(admitted, wanted, descriptors))
    return replace(options, config=replace(options.config, max_connections=admitted))


def _run(work: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def _serve(options: BookieOptions) -> int:
    check_security(options.config)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    metadata = await open_metadata(
        options.metadata_uri, session_timeout_s=options.config.session_timeout_s
    )
    readers = [ThreadReader(loop) for _ in options.directories]
    directories = _directories(options, readers, loop)
    tasks, around = TaskSet(), AsyncExitStack()
    try:
        first, *others = directories
        bookie = Bookie(
            disk=first.disk,
            log_worker=first.log_worker,
            maintenance_worker=first.maintenance_worker,
            metadata=metadata,
            network=AsyncioNetwork(options.config.dead_client_s),
            clock=SystemClock(),
            address=Address(
                options.bind or options.advertise,
                options.port,
                options.advertise,
                options.bookie_id,
            ),
            config=options.config,
            log=options.log,
            random_bytes=secrets.token_bytes,
            reader=first.reader,
            more_directories=others,
            loading_bar=options.loading_bar,
        )
        bookie.start_command = options.start_command
        if options.around is not None:
            await around.enter_async_context(options.around(bookie))
        if not await _started(bookie, stopping):
            return 0
        # Everything that is loaded now lives as long as the process: exclude it from collections.
        gc.collect()
        gc.freeze()
        tasks.start(_collect_now_and_then())
        trim = partial(_trim_after_storm, bookie)
        tasks.start(bookie.background_errors.repeat(TRIM_INTERVAL_S, trim))
        if options.config.batch_scheduling:
            tasks.start(schedule_as_batch(options.log))
        if options.on_serving is not None:
            options.on_serving(bookie.bookie_id)
        if options.beside is not None:
            tasks.start(_beside(options.beside, bookie.bookie_id, options.log))
        return await _until_stopped(bookie, stopping, options.config.stop_timeout_s, options.log)
    finally:
        await tasks.close()
        await around.aclose()
        limit_s = READS_END_S
        for reader in readers:
            if not reader.close(limit_s):
                limit_s = 0.0
        await metadata.close()


def _directories(
    options: BookieOptions, readers: Sequence[ThreadReader], loop: asyncio.AbstractEventLoop
) -> list[DataDirectory]:
    return [
        DataDirectory(
            # A missing directory among several may be a disk that is not mounted: do not create it.
            RealDisk(path, make=len(options.directories) == 1),
            ThreadWorker(loop, "quire-log"),
            ThreadWorker(loop, "quire-maintenance"),
            reader,
        )
        for path, reader in zip(options.directories, readers, strict=True)
    ]


async def _started(bookie: Bookie, stopping: asyncio.Event) -> bool:
    """Start the bookie, and return whether it has started.

    False means that the process was asked to stop before the start was complete, and that the
    bookie is stopped. Raises the errors of `Bookie.start`.
    """
    starting = asyncio.ensure_future(bookie.start())
    asked = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([starting, asked], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
        if starting.cancelled():
            return False
        await starting
        return True
    finally:
        asked.cancel()


async def _collect_now_and_then() -> None:
    while True:
        await asyncio.sleep(COLLECT_INTERVAL_S)
        gc.collect()


async def _trim_after_storm(bookie: Bookie) -> None:
    """Return free memory to the system after a burst of requests, once half of it is free again."""
    peak_bytes = bookie.service.take_peak_bytes()
    if peak_bytes > KEPT_BYTES and bookie.service.held_bytes < peak_bytes // 2:
        await asyncio.to_thread(trim_heap)


async def _beside(
    work: Callable[[str], Coroutine[Any, Any, None]], bookie_id: str, log: EventLog
) -> None:
    """Run the coroutine function `work` beside the bookie, and call it again after a QuireError."""
    retry = Retry(BESIDE_BACKOFF, random.Random())
    while True:
        try:
            await work(bookie_id)
            return
        except QuireError as error:
            log("beside_failed", error=str(error))
        await retry.pause()


async def _until_stopped(
    bookie: Bookie, stopping: asyncio.Event, timeout_s: float, log: EventLog
) -> int:
    bookie.failed.add_done_callback(lambda _: stopping.set())
    await stopping.wait()
    why = bookie.failed.result() if bookie.failed.done() else None
    failure = EXIT_DISK_FAILED if isinstance(why, StorageError) else 1
    # An operator wanted the decommission (CookieError), so no supervisor should restart the bookie.
    clean = why is None or isinstance(why, CookieError)
    try:
        async with asyncio.timeout(timeout_s):
            await bookie.stop()
    except TimeoutError:
        log("stop_timeout", seconds=timeout_s)
        return failure
    except QuireError as error:
        log("stop_failed", error=str(error))
        return failure
    return 0 if clean else failure
