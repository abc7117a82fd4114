"""The bookie process: what `quire bookie` runs."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from quire._runtime.clock import SystemClock
from quire._runtime.heap import (
    COLLECT_INTERVAL_S,
    KEPT_BYTES,
    collect_on_demand,
    keep_heap,
    trim_heap,
)
from quire._runtime.retry import Backoff, Retry
from quire._runtime.scheduling import schedule_as_batch
from quire._runtime.tasks import TaskSet
from quire.bookie.options import check_bookie
from quire.bookie.protocol.security import check_security
from quire.bookie.server import Address, Bookie, LoadingBar
from quire.config import BookieConfig
from quire.errors import CookieError, QuireError, StorageError
from quire.metadata import open_metadata
from quire.net.network import AsyncioNetwork
from quire.storage.directories import DataDirectory
from quire.storage.disk import RealDisk
from quire.storage.worker import ThreadReader, ThreadWorker

EXIT_DISK_FAILED = 74
"""EX_IOERR of sysexits.h: whoever supervises the process must not simply start it again."""
BESIDE_BACKOFF = Backoff(5.0, 5.0)
TRIM_INTERVAL_S = 5.0
"""Seconds between two looks whether a storm of requests has left free memory behind."""
SWITCH_INTERVAL_S = 0.0005
"""The log thread gets the interpreter lock back soon after its sync returned."""


@dataclass(frozen=True, slots=True)
class BookieOptions:
    metadata_uri: str
    directories: Sequence[str]
    """One at least. With several, one that fails does not end the bookie."""
    port: int = 0
    """0: any free one."""
    advertise: str = "127.0.0.1"
    """Host name or address under which others reach this bookie."""
    bookie_id: str = ""
    """'': what the directory's bookie was first started with, else ADVERTISE:PORT."""
    bind: str = ""
    """Address to listen on; '' : the advertised one."""
    config: BookieConfig = field(default_factory=BookieConfig)
    on_serving: Callable[[str], None] | None = None
    """Called with the bookie id once it serves."""
    loading_bar: LoadingBar | None = None
    """Shown while a log is loaded that takes a while; None: lines in the log."""
    around: Callable[[Bookie], AbstractAsyncContextManager[Any]] | None = None
    """Entered with the bookie before it starts, and left behind its end."""
    beside: Callable[[str], Coroutine[Any, Any, None]] | None = None
    """Runs in the same process from then on, given the bookie id; it is cancelled at the stop. If
    it ends by an error that is logged, and the bookie serves on."""


def log_event(event: str, **fields: object) -> None:
    """One line of JSON on standard error."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    line = json.dumps({"time": stamp, "event": event, **fields}, default=str)
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def run_bookie(options: BookieOptions) -> int:
    """Serve until SIGTERM or SIGINT (0), until it is decommissioned (0), until the disk fails
    (`EXIT_DISK_FAILED`), or until another process has the bookie's id (1). Raises QuireError when
    it cannot start."""
    check_bookie(
        options.directories,
        port=options.port,
        advertise=options.advertise,
        bind=options.bind,
        bookie_id=options.bookie_id,
        config=options.config,
    )
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_heap()
    collect_on_demand()
    return _run(_serve(options))


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
            log=log_event,
            random_bytes=secrets.token_bytes,
            reader=first.reader,
            more_directories=others,
            loading_bar=options.loading_bar,
        )
        if options.around is not None:
            await around.enter_async_context(options.around(bookie))
        if not await _started(bookie, stopping):
            return 0
        # What is loaded now lives as long as the process: no need to look at it again.
        gc.collect()
        gc.freeze()
        tasks.start(_collect_now_and_then())
        tasks.start(_trim_after_storms(bookie))
        if options.config.batch_scheduling:
            tasks.start(schedule_as_batch(log_event))
        if options.on_serving is not None:
            options.on_serving(bookie.bookie_id)
        if options.beside is not None:
            tasks.start(_beside(options.beside, bookie.bookie_id))
        return await _until_stopped(bookie, stopping, options.config.stop_timeout_s)
    finally:
        await tasks.close()
        await around.aclose()
        for reader in readers:
            reader.close()
        await metadata.close()


def _directories(
    options: BookieOptions, readers: Sequence[ThreadReader], loop: asyncio.AbstractEventLoop
) -> list[DataDirectory]:
    return [
        DataDirectory(
            # Of several, one that does not exist may be one that is not mounted.
            RealDisk(path, make=len(options.directories) == 1),
            ThreadWorker(loop, "quire-log"),
            ThreadWorker(loop, "quire-maintenance"),
            reader,
        )
        for path, reader in zip(options.directories, readers, strict=True)
    ]


async def _started(bookie: Bookie, stopping: asyncio.Event) -> bool:
    """False: it was to stop before it had started, and is stopped. Errors as `Bookie.start`."""
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


async def _trim_after_storms(bookie: Bookie) -> None:
    """Return free memory to the system after a storm of requests, once most of it is free."""
    while True:
        await asyncio.sleep(TRIM_INTERVAL_S)
        peak_bytes = bookie.service.take_peak_bytes()
        if peak_bytes > KEPT_BYTES and bookie.service.held_bytes < peak_bytes // 2:
            await asyncio.to_thread(trim_heap)


async def _beside(work: Callable[[str], Coroutine[Any, Any, None]], bookie_id: str) -> None:
    """Whatever becomes of it, the bookie serves."""
    retry = Retry(BESIDE_BACKOFF, random.Random())
    while True:
        try:
            await work(bookie_id)
            return
        except QuireError as error:
            log_event("beside_failed", error=str(error))
        await retry.pause()


async def _until_stopped(bookie: Bookie, stopping: asyncio.Event, timeout_s: float) -> int:
    bookie.failed.add_done_callback(lambda _: stopping.set())
    await stopping.wait()
    why = bookie.failed.result() if bookie.failed.done() else None
    failure = EXIT_DISK_FAILED if isinstance(why, StorageError) else 1
    # Decommissioned (CookieError) is what an operator wanted: nobody is to start it again.
    clean = why is None or isinstance(why, CookieError)
    try:
        async with asyncio.timeout(timeout_s):
            await bookie.stop()
    except TimeoutError:
        log_event("stop_timeout", seconds=timeout_s)
        return failure
    except QuireError as error:
        log_event("stop_failed", error=str(error))
        return failure
    return 0 if clean else failure
