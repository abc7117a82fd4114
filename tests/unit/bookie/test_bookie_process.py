"""The process of a bookie: its start, what runs beside it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire._runtime.event_log import EventLog
from quire._runtime.retry import Backoff
from quire.bookie import main, server
from quire.bookie.main import BookieOptions, _beside, _serve, _started, _until_stopped
from quire.bookie.server import Bookie
from quire.errors import BookieUnavailableError, StartError, StorageError
from quire.metadata import open_metadata
from quire.metadata.bookies.start_commands import StartCommand, read_start_command
from quire.storage.worker import ThreadReader
from tests.support.bookies.bookie import SMALL
from tests.support.waiting import until

CONFIG = replace(SMALL, batch_scheduling=False)


async def prepared(root: Path, **more: Any) -> BookieOptions:
    """Return the options of a bookie whose cluster exists."""
    uri = f"sqlite:///{root}/cluster.db"
    metadata = await open_metadata(uri, create=True)
    if not await metadata.is_initialised():
        await metadata.initialise()
    await metadata.close()
    options = BookieOptions(uri, [str(root / "one")], config=CONFIG, log=quiet)
    return replace(options, **more)


def quiet(event: str, **fields: object) -> None:
    pass


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], None]]:
    """Return the signal handlers of the process, which a test calls instead of sending signals.

    The process of the tests also keeps its heap as it is.
    """
    handlers: dict[int, Callable[[], None]] = {}
    monkeypatch.setattr(
        asyncio.SelectorEventLoop,
        "add_signal_handler",
        lambda loop, number, handler: handlers.update({number: handler}),
    )
    monkeypatch.setattr(gc, "freeze", lambda: None)
    return handlers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_bookie_serves_until_a_signal_and_leaves_no_thread(
    tmp_path: Path, signals: dict[int, Callable[[], None]], number: int
) -> None:
    before = set(threading.enumerate())
    told: list[str] = []
    around: list[str] = []
    beside: list[str] = []

    @asynccontextmanager
    async def context(bookie: Bookie) -> AsyncIterator[None]:
        assert not bookie.serving
        around.append("entered")
        yield
        assert not bookie.serving
        around.append("left")

    def serving(bookie_id: str) -> None:
        told.append(bookie_id)
        assert around == ["entered"]

    async def work(bookie_id: str) -> None:
        beside.append(bookie_id)
        signals[number]()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            beside.append("cancelled")
            raise

    options = await prepared(
        tmp_path, bookie_id="b", around=context, on_serving=serving, beside=work
    )
    assert await _serve(options) == 0
    assert told == ["b"]
    assert around == ["entered", "left"]
    assert beside == ["b", "cancelled"]
    left = set(threading.enumerate()) - before
    assert [one.name for one in left if one.name.startswith("quire")] == []


async def test_the_command_that_started_a_bookie_is_known_after_its_end(
    tmp_path: Path, signals: dict[int, Callable[[], None]]
) -> None:
    """`quire explain` prints it, also for a bookie that had no HTTP server."""
    command = StartCommand(("quire", "bookie", "start", "--set", "gc_interval_s=60"), "/srv")

    async def work(bookie_id: str) -> None:
        store = await open_metadata(f"sqlite:///{tmp_path}/cluster.db")
        try:
            while (found := await read_start_command(store, bookie_id)) is None:
                await asyncio.sleep(0)
            (registered,) = (await store.bookies()).writable.values()
            where = f"{registered.host}:{registered.port}"
            assert found == replace(command, address=where)
        finally:
            await store.close()
        signals[signal.SIGTERM]()

    options = await prepared(tmp_path, bookie_id="b", beside=work, start_command=command)
    assert await _serve(options) == 0


async def test_a_bookie_that_cannot_start_leaves_no_thread(
    tmp_path: Path, signals: dict[int, Callable[[], None]]
) -> None:
    before = set(threading.enumerate())
    told: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = await prepared(tmp_path, on_serving=told.append, port=port)
        with pytest.raises(StartError, match=f"listen on 127.0.0.1:{port}: the port is in use"):
            await _serve(options)
    assert told == []
    left = set(threading.enumerate()) - before
    assert [one.name for one in left if one.name.startswith("quire")] == []


async def test_only_a_single_directory_is_created(tmp_path: Path) -> None:
    """A missing one among several may be a disk that is not mounted."""
    loop = asyncio.get_running_loop()
    names = [str(tmp_path / name) for name in ("one", "two")]
    options = BookieOptions("", names, config=CONFIG)
    readers = [ThreadReader(loop) for _ in names]
    main._directories(options, readers, loop)
    assert os.listdir(tmp_path) == []
    main._directories(replace(options, directories=names[:1]), readers[:1], loop)
    assert os.listdir(tmp_path) == ["one"]
    for reader in readers:
        reader.close()


async def test_the_reader_of_every_directory_is_closed(
    tmp_path: Path, signals: dict[int, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[Any] = []
    closed: list[Any] = []

    class Reader(ThreadReader):
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            super().__init__(loop)
            readers.append(self)

        def close(self, limit_s: float | None = None) -> bool:
            closed.append(self)
            return super().close(limit_s)

    monkeypatch.setattr(main, "ThreadReader", Reader)
    for name in ("one", "two"):
        os.mkdir(tmp_path / name)
    options = await prepared(
        tmp_path,
        directories=[str(tmp_path / "one"), str(tmp_path / "two")],
        on_serving=lambda _: signals[signal.SIGTERM](),
    )
    assert await _serve(options) == 0
    assert len(readers) == 2
    assert closed == readers


class Starting:
    """A bookie whose start lasts until a test ends it."""

    def __init__(self, error: Exception | None = None, *, at_once: bool = False) -> None:
        self.error = error
        self.at_once = at_once
        self.cancelled = False

    async def start(self) -> None:
        if self.error is not None:
            raise self.error
        if not self.at_once:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise


async def test_a_start_can_be_stopped() -> None:
    stopping = asyncio.Event()
    bookie: Any = Starting()
    starting = asyncio.ensure_future(_started(bookie, stopping))
    await asyncio.sleep(0)
    stopping.set()
    assert await starting is False
    assert bookie.cancelled
    done: Any = Starting(at_once=True)
    assert await _started(done, asyncio.Event()) is True
    failing: Any = Starting(StorageError("no disk"))
    with pytest.raises(StorageError, match="no disk"):
        await _started(failing, asyncio.Event())


async def test_work_that_runs_beside_a_bookie_is_restarted_after_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "BESIDE_BACKOFF", Backoff(0.001, 0.001))
    called: list[str] = []
    events: list[tuple[str, object]] = []

    async def work(bookie_id: str) -> None:
        called.append(bookie_id)
        if len(called) < 3:
            raise BookieUnavailableError("it is away")

    def log(event: str, **fields: object) -> None:
        events.append((event, fields["error"]))

    kept: EventLog = log
    await _beside(work, "b", kept)
    assert called == ["b"] * 3
    assert [event for event, _ in events] == ["beside_failed"] * 2
    assert "it is away" in str(events[0][1])

    async def wrong(bookie_id: str) -> None:
        raise ValueError("a fault of the program")

    with pytest.raises(ValueError, match="a fault"):
        await _beside(wrong, "b", kept)


async def test_a_stop_that_takes_too_long_is_logged() -> None:
    events: list[tuple[str, dict[str, object]]] = []

    class Hanging:
        def __init__(self) -> None:
            self.failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def stop(self) -> None:
            await asyncio.Event().wait()

    stopping = asyncio.Event()
    stopping.set()
    hanging: Any = Hanging()
    status = await _until_stopped(
        hanging, stopping, 0.01, lambda event, **fields: events.append((event, fields))
    )
    assert status == 1
    assert events == [("stop_timeout", {"seconds": 0.01})]


async def test_a_process_ends_although_a_thread_waits_for_a_disk_that_hangs(
    tmp_path: Path, signals: dict[int, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `stop_timeout_s`, the process waited for its threads until it was killed."""
    waiting, released = threading.Event(), threading.Event()

    def write(disks: object, data: bytes) -> None:
        waiting.set()
        released.wait()

    async def work(bookie_id: str) -> None:
        await asyncio.to_thread(waiting.wait)
        signals[signal.SIGTERM]()

    monkeypatch.setattr(server, "write_remembered", write)
    config = replace(CONFIG, stop_timeout_s=0.1)
    options = await prepared(tmp_path, bookie_id="b", beside=work, config=config)
    statuses: list[int] = []
    process = threading.Thread(
        target=lambda: statuses.append(asyncio.run(_serve(options))), daemon=True
    )
    process.start()
    try:
        await until(lambda: bool(statuses), "the process to end")
        assert statuses == [1]
    finally:
        released.set()
        await asyncio.to_thread(process.join)


@pytest.mark.parametrize(("held", "trims"), [(0, True), (49, True), (51, False)])
async def test_memory_is_returned_once_half_of_a_burst_is_over(
    monkeypatch: pytest.MonkeyPatch, held: int, trims: bool
) -> None:
    monkeypatch.setattr(main, "KEPT_BYTES", 50)
    trimmed: list[int] = []
    looked: list[int] = []

    def trim() -> None:
        trimmed.append(1)

    def take() -> int:
        looked.append(1)
        return 100 if len(looked) == 2 else 50  # Only the second interval has a burst.

    monkeypatch.setattr(main, "trim_heap", trim)
    bookie: Any = SimpleNamespace(service=SimpleNamespace(take_peak_bytes=take, held_bytes=held))
    for _ in range(4):
        await main._trim_after_storm(bookie)
    assert bool(trimmed) is trims
    assert len(trimmed) <= 1
