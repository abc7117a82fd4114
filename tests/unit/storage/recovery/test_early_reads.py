"""A bookie that still loads its log: what it answers, what it does not, and how it stops."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from struct import unpack_from
from typing import TypeVar

import pytest

from quire.bookie.main import _started
from quire.bookie.server import Bookie
from quire.codec.entry.digest import master_key
from quire.codec.entry.frame_runs import Entries
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.v2 import LAST_ENTRY, Code, Flag
from quire.metadata.interface import MetadataStore
from quire.storage.disk import RealDisk
from quire.storage.inspect.contents import open_segment
from quire.storage.recovery.early_reads import EarlyReads
from quire.storage.recovery.index_cache import CACHE_NAME
from quire.storage.recovery.loading import LoadProgress, LoadStopped
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.segment.segment import segment_name
from quire.storage.store import LedgerStore
from quire.storage.worker import InlineReader
from quire_simulator.machine.disk import SimFile
from tests.support.bookies.bookie import SMALL as BOOKIE
from tests.support.bookies.bookie import memory_metadata, peer_of, running_bookie
from tests.support.crash.crash_sweep import contents_of
from tests.support.storage.storage import SMALL, StoreOnDisk, disk_of, make_entry, run, sim_disk
from tests.support.waiting import until

T = TypeVar("T")
CONFIG = replace(SMALL, compact_minor_ratio=0.0, compact_major_ratio=0.0)
KEY = master_key(b"")
FIRST_PAYLOAD, PAYLOAD = b"1" * 9000, b"2" * 9000
SEGMENT_BYTES = 1024 * 1024
LOADED, NOT_LOADED, UNKNOWN = 1, 2, 3
"""Ledgers in segments loaded before the gate, in segments after it, and in none."""


# -- the store --------------------------------------------------------------------------------


def filled(segments: int = 4) -> StoreOnDisk:
    """Ledger 1 in every segment, and one ledger for each."""
    box = StoreOnDisk(sim_disk(1, cold_read_probability=0.0), CONFIG)
    box.open()
    entry_id = 0
    for number in range(1, segments + 1):
        while box.store.stats().sealed_segments < number:
            box.append([(1, entry_id, bytes(700)), (10 + number, entry_id, bytes(600))])
            entry_id += 1
            box.idle()
    box.close()
    disk_of(box).remove(CACHE_NAME)
    return box


@pytest.fixture
def at_each_step(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[LedgerStore], None]]:
    """Return a list of functions that are called at each relevant step while the log is loaded."""
    called: list[Callable[[LedgerStore], None]] = []
    opening: list[LedgerStore] = []
    recover, advance = LedgerStore.recover, LoadProgress.advance

    def recovering(store: LedgerStore) -> RecoveryReport:
        opening.append(store)
        return recover(store)

    def advancing(progress: LoadProgress, segments: int = 1) -> None:
        for one in called:
            one(opening[-1])
        advance(progress, segments)

    monkeypatch.setattr(LedgerStore, "recover", recovering)
    monkeypatch.setattr(LoadProgress, "advance", advancing)
    return called


def early(store: LedgerStore, ledger_id: int, entry_id: int, count: int = 1) -> list[bytes] | None:
    [one] = store.early
    found = run(one.read(ledger_id, entry_id, count, 1 << 30, 4))
    return None if found is None else [bytes(entry) for entry in found]


@pytest.mark.parametrize("damaged", [False, True], ids=["", "started again"])
def test_early_reads_leave_no_file_open(
    damaged: bool,
    at_each_step: list[Callable[[LedgerStore], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds even if a footer is damaged and the start begins again without it."""
    box = filled()
    disk = disk_of(box)
    if damaged:
        with open_segment(disk, 3) as one:
            assert one.description.trailer is not None
            at = one.description.trailer.summary_at + 5
        disk.flip_bit(segment_name(3), at)
    files: list[SimFile] = []
    open_file = disk.open

    def opening(name: str) -> SimFile:
        files.append(open_file(name))
        return files[-1]

    monkeypatch.setattr(disk, "open", opening)

    def look(store: LedgerStore) -> None:
        early(store, 1, 0)

    at_each_step.append(look)
    box.open()
    box.store.end_early()
    box.idle()
    box.close()
    assert files
    assert [file for file in files if not file._closed] == []


def test_loaded_entries_are_read_and_others_are_unknown(
    at_each_step: list[Callable[[LedgerStore], None]],
) -> None:
    box = filled()
    found: list[int] = []

    def look(store: LedgerStore) -> None:
        answers = {key: early(store, *key) for key in box.acknowledged}
        for key, answer in answers.items():
            assert answer in (None, [box.acknowledged[key]])
        found.append(sum(answer is not None for answer in answers.values()))
        assert early(store, 1, 1 << 40) is None
        assert early(store, 99, 0) is None

    at_each_step.append(look)
    box.open()
    assert found == sorted(found)
    assert 0 in found
    assert found[-1] == len(box.acknowledged)
    assert len(set(found)) >= 4
    box.close()


def test_a_read_of_several_entries_ends_where_the_loaded_part_ends(
    at_each_step: list[Callable[[LedgerStore], None]],
) -> None:
    box = filled()
    lengths: list[int] = []

    def look(store: LedgerStore) -> None:
        entries = early(store, 1, 0, 1 << 20)
        if entries is not None:
            assert entries == [box.acknowledged[1, n] for n in range(len(entries))]
            lengths.append(len(entries))

    at_each_step.append(look)
    box.open()
    assert lengths == sorted(lengths)
    assert len(set(lengths)) >= 4


def test_a_damaged_entry_is_unknown_until_a_later_copy_is_loaded(
    at_each_step: list[Callable[[LedgerStore], None]],
) -> None:
    """The read is right once that copy is loaded."""
    box = filled(2)
    box.open()
    payload = box.acknowledged[1, 0][32:]
    while box.store.stats().sealed_segments < 4:
        box.append([(1, 0, payload)])
        box.idle()
    box.close()
    disk_of(box).remove(CACHE_NAME)
    for block in range(1, 4):
        disk_of(box).flip_bit(segment_name(1), 4096 * block + 900)
    answers: list[list[bytes] | None] = []
    at_each_step.append(lambda store: answers.append(early(store, 1, 0)))
    box.open()
    assert None in answers
    assert answers[-1] == [make_entry(1, 0, payload)]
    assert all(answer in (None, answers[-1]) for answer in answers)


def test_stopping_a_start_changes_nothing_on_disk(
    at_each_step: list[Callable[[LedgerStore], None]],
) -> None:
    box = filled()
    before = {name: bytes_of(box, name) for name in contents_of(disk_of(box))}
    steps = 0
    wanted = 0

    def stop(store: LedgerStore) -> None:
        nonlocal steps
        steps += 1
        if steps == wanted:
            store.stop_loading()

    at_each_step.append(stop)
    for wanted in range(1, 9):
        steps = 0
        with pytest.raises(LoadStopped):
            box.open()
        assert steps == wanted
        box.store.end_early()
        assert {name: bytes_of(box, name) for name in contents_of(disk_of(box))} == before
    wanted = 0
    box.open()
    for key, entry in box.acknowledged.items():
        assert box.read(*key) == [entry]


def bytes_of(box: StoreOnDisk, name: str) -> bytes:
    content = contents_of(disk_of(box))[name]
    return b"" if content is None else content.read(0, content.size)


def test_a_start_can_be_stopped_while_it_loads_the_index_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = filled()
    box.open()
    box.close()
    assert CACHE_NAME in contents_of(disk_of(box))
    index = LoadProgress.index

    def stop(progress: LoadProgress, *known: object) -> None:
        index(progress, *known)  # type: ignore[arg-type]
        progress.stop()

    monkeypatch.setattr(LoadProgress, "index", stop)
    with pytest.raises(LoadStopped):
        box.open()
    assert box.store.ledgers == {}  # before it had read any of them
    monkeypatch.undo()
    assert "used for" in box.open().index_cache


# -- the index cache --------------------------------------------------------------------------

GONE, RANDOM = 7, -(1 << 50)
"""A ledger that was deleted, and one whose id is far from the others."""


def cached(monkeypatch: pytest.MonkeyPatch) -> StoreOnDisk:
    """Return a closed store whose index cache has blocks of two ledgers each."""
    monkeypatch.setattr("quire.storage.background.index_cache_writer.LEDGERS_PER_BLOCK", 2)
    box = StoreOnDisk(sim_disk(1, cold_read_probability=0.0), CONFIG)
    box.open()
    for entry_id in range(4):
        for ledger_id in (*range(1, 9), RANDOM):
            box.append([(ledger_id, entry_id, bytes(700))])
        box.idle()
    box.fence(3)
    box.drop([GONE])
    box.idle()
    box.close()
    assert CACHE_NAME in contents_of(disk_of(box))
    return box


@pytest.fixture
def at_each_block(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[LedgerStore], None]]:
    """Return a list of functions that are called before each block of the index cache is loaded."""
    called: list[Callable[[LedgerStore], None]] = []
    opening: list[LedgerStore] = []
    recover, check = LedgerStore.recover, LoadProgress.check

    def recovering(store: LedgerStore) -> RecoveryReport:
        opening.append(store)
        return recover(store)

    def checking(progress: LoadProgress) -> None:
        if progress.search is not None:
            for one in called:
                one(opening[-1])
        check(progress)

    monkeypatch.setattr(LedgerStore, "recover", recovering)
    monkeypatch.setattr(LoadProgress, "check", checking)
    return called


def test_a_ledger_is_read_before_the_cache_is_decoded(
    at_each_block: list[Callable[[LedgerStore], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ledgers were once decoded before the first answer: 20 s for ten million ledgers."""
    box = cached(monkeypatch)
    loaded: list[int] = []

    def look(store: LedgerStore) -> None:
        loaded.append(len(store.ledgers))
        for (ledger_id, entry_id), entry in box.acknowledged.items():
            assert early(store, ledger_id, entry_id) == [entry]
            assert early(store, ledger_id, 4) is None  # It may be in a newer segment.
        assert early(store, GONE, 0) is None
        assert early(store, 99, 0) is None

    at_each_block.append(look)
    report = box.open()
    assert "used for" in report.index_cache
    assert sorted(set(loaded)) == [0, 2, 4, 6, 8]
    assert loaded.count(0) > 2  # It was also searched while the groups of the log were read.
    assert box.store._loading.search is None
    assert box.store.ledgers[3].fenced


def test_a_damaged_block_of_the_cache_hides_its_ledgers_only(
    at_each_block: list[Callable[[LedgerStore], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read once the footers are loaded, because the cache is then not used."""
    box = cached(monkeypatch)
    cache = contents_of(disk_of(box))[CACHE_NAME]
    assert cache is not None
    whole = cache.read(0, cache.size)
    last = whole.rindex(b"LEDG")
    answers: dict[tuple[int, int], set[bool]] = {}

    def look(store: LedgerStore) -> None:
        if not store.ledgers:
            for key, entry in box.acknowledged.items():
                answer = early(store, *key)
                assert answer in (None, [entry])
                answers.setdefault(key, set()).add(answer is not None)

    at_each_block.append(look)
    left = disk_of(box).copy()
    for offset in range(last + 20, whole.index(b"ENDS", last), 7):
        answers.clear()
        box.disk = left.copy()
        disk_of(box).flip_bit(CACHE_NAME, offset)
        report = box.open()
        assert report.index_cache.startswith("not used: a block of the index cache does not match")
        assert box.store._loading.search is None
        hidden = {key[0] for key, found in answers.items() if found == {False}}
        assert hidden == {8, RANDOM}
        assert {key[0] for key, found in answers.items() if found == {True}} == {1, 2, 3, 4, 5, 6}
        for key, entry in box.acknowledged.items():
            assert box.read(*key) == [entry]
        box.store.give_up()


def test_an_unreadable_or_missing_cache_hides_its_ledgers(
    at_each_block: list[Callable[[LedgerStore], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = cached(monkeypatch)
    answers: list[list[bytes] | None] = []

    def look(store: LedgerStore) -> None:
        if not answers:
            disk = disk_of(box)
            disk.fail_reads(CACHE_NAME)
            answers.append(early(store, 1, 0))
            disk.remove(CACHE_NAME)
            answers.append(early(store, 2, 0))

    at_each_block.append(look)
    box.open()
    assert answers == [None, None]
    for key, entry in box.acknowledged.items():
        assert box.read(*key) == [entry]


def test_early_answers_from_the_cache_end_once_the_cache_is_loaded(
    at_each_block: list[Callable[[LedgerStore], None]],
    at_each_step: list[Callable[[LedgerStore], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A segment after the cache may contain the deletion of a ledger."""
    box = cached(monkeypatch)
    box.open()
    box.drop([5])
    box.append([(6, 4, bytes(700))])
    box.idle()
    entry = make_entry(5, 0, bytes(700))
    at_each_block.append(lambda store: before.append(early(store, 5, 0)))
    at_each_step.append(lambda store: after.append(early(store, 5, 0)))
    before: list[list[bytes] | None] = []
    after: list[list[bytes] | None] = []
    box.open()  # Not after a clean stop.
    assert "used for" in box.report.index_cache
    assert [entry] in before
    assert after[-1] is None
    assert early(box.store, 5, 0) is None


class Held(InlineReader):
    """Holds cold reads until the test releases them."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def read(self, call: Callable[[], T], done: Callable[[T | None], None]) -> None:
        self.waiting.append(lambda: done(call()))


async def test_a_read_that_is_under_way_when_the_store_starts(
    at_each_step: list[Callable[[LedgerStore], None]],
) -> None:
    """A read once ended in a KeyError because of segments that were sealed meanwhile.

    Its client got no answer (found by the simulator, in the workload `loading`).
    """
    box, held = filled(), Held()
    reads: list[asyncio.Task[Entries | None]] = []

    def begin(store: LedgerStore) -> None:
        if not reads and early(store, 1, 0) is not None:
            disk_of(box).cold_read_probability = 1.0
            one = EarlyReads(box.disk, CONFIG, held, store.ledgers, store._loading)
            store.early.append(one)
            reads.append(asyncio.ensure_future(one.read(1, 0, 1 << 20, 1 << 30, 4)))

    at_each_step.append(begin)
    box.open()
    await asyncio.sleep(0)
    assert held.waiting
    box.store.end_early()
    entry_id = 1 + max(entry_id for ledger_id, entry_id in box.acknowledged if ledger_id == 1)
    sealed = box.store.stats().sealed_segments
    while box.store.stats().sealed_segments < sealed + 2:
        box.append([(1, entry_id, bytes(700))])
        entry_id += 1
        box.idle()
    while held.waiting:
        held.waiting.pop(0)()
        await asyncio.sleep(0)
    assert await reads[0] is None  # the store has it


# -- the bookie -------------------------------------------------------------------------------


class Gate:
    """Holds the loading thread after the first segment until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        advance = LoadProgress.advance

        def advancing(progress: LoadProgress, segments: int = 1) -> None:
            if progress.sealed:
                self.reached.set()
                assert self.opened.wait(60)
            advance(progress, segments)

        monkeypatch.setattr(LoadProgress, "advance", advancing)
        monkeypatch.setattr("quire.bookie.server.SERVE_EARLY_AFTER_S", 0.0)


@asynccontextmanager
async def loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directories: int = 1
) -> AsyncIterator[tuple[Gate, Bookie, MetadataStore, asyncio.Task[None], asyncio.Event]]:
    """Yield a bookie that has loaded its first segment, and its task, which ends at the event."""
    metadata = memory_metadata()
    config = replace(BOOKIE, segment_bytes=SEGMENT_BYTES)
    paths = [tmp_path / f"bookie-{number}" for number in range(directories)]
    more = [RealDisk(str(path)) for path in paths[1:]]
    async with running_bookie(paths[0], config, metadata, more=more) as bookie:
        bookie_id = bookie.bookie_id
        async with peer_of(bookie) as peer:
            for ledger_id, payload in ((LOADED, FIRST_PAYLOAD), (NOT_LOADED, PAYLOAD)):
                for entry_id in range(200):
                    entry = make_entry(ledger_id, entry_id, payload)
                    assert code_of(await peer.ask(frames.add_request(KEY, entry))) == Code.OK
    for path in paths:
        (path / CACHE_NAME).unlink()
    gate = Gate(monkeypatch)
    found: asyncio.Future[Bookie] = asyncio.get_running_loop().create_future()
    start = Bookie.start

    async def remember(bookie: Bookie) -> None:
        found.set_result(bookie)
        await start(bookie)

    monkeypatch.setattr(Bookie, "start", remember)
    end = asyncio.Event()

    async def serve() -> None:
        more = [RealDisk(str(path)) for path in paths[1:]]
        async with running_bookie(paths[0], config, metadata, bookie_id=bookie_id, more=more):
            await end.wait()

    task = asyncio.create_task(serve())
    try:
        bookie = await found
        await asyncio.to_thread(gate.reached.wait, 60)
        await until(lambda: bookie.service.loading_store is not None)
        yield gate, bookie, metadata, task, end
    finally:
        gate.opened.set()
        end.set()
        await asyncio.wait([task])
    if not task.cancelled():
        await task


def code_of(answer: bytes) -> int:
    """Return the code of a v2 answer."""
    found: int = unpack_from(">i", answer, 8)[0]
    return found


def read_of(answer: bytes) -> bytes:
    assert code_of(answer) == Code.OK
    return answer[frames.READ_RESPONSE_BYTES :]


async def test_a_loading_bookie_serves_loaded_entries_and_refuses_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.bookie.protocol.loading_store.WAIT_S", 0.0)
    async with (
        loading(tmp_path, monkeypatch) as (gate, bookie, metadata, _, _),
        peer_of(bookie) as peer,
    ):
        assert bookie.bookie_id in (await metadata.bookies()).readonly
        assert not bookie.serving
        assert not bookie.recovered
        entry = make_entry(LOADED, 5, FIRST_PAYLOAD)
        assert read_of(await peer.ask(frames.read_request(LOADED, 5))) == entry
        batch = await peer.ask(frames.batch_read_request(LOADED, 5, 1, 10, 1 << 20))
        assert batch.count(FIRST_PAYLOAD) == 10
        # Entries that are not loaded or missing, the last entry, and fencing: never "no such
        # entry".
        busy = Code.TOO_MANY_REQUESTS
        for request in (
            frames.read_request(NOT_LOADED, 5),
            frames.read_request(LOADED, 1000),
            frames.read_request(UNKNOWN, 0),
            frames.read_request(LOADED, LAST_ENTRY),
            frames.read_request(LOADED, 5, Flag.DO_FENCING, KEY),
            frames.batch_read_request(NOT_LOADED, 0, 1, 10, 1 << 20),
        ):
            assert code_of(await peer.ask(request)) == busy
        for entry_id, flags in ((200, 0), (200, Flag.RECOVERY_ADD), (200, Flag.HIGH_PRIORITY)):
            added = frames.add_request(KEY, make_entry(LOADED, entry_id, b"new"), flags)
            assert code_of(await peer.ask(added)) == Code.READ_ONLY
        async with peer_of(bookie) as other:
            for request, refusal in (
                (v3.read_request(1, NOT_LOADED, 5), busy),
                (v3.read_lac_request(2, LOADED), busy),
                (v3.list_entries_request(3, LOADED), busy),
                (v3.write_lac_request(4, LOADED, 7, KEY, bytes(32)), Code.READ_ONLY),
                (v3.force_request(5, LOADED), Code.IO_ERROR),
                (v3.long_poll_request(6, LOADED, 5, 1000), busy),
            ):
                answer = v3.parse_response((await other.ask(request))[4:])
                assert v3.status_of(answer, 0) == refusal
            answer = v3.parse_response((await other.ask(v3.read_request(7, LOADED, 5)))[4:])
            assert answer.readResponse.body == entry
            info = v3.parse_response((await other.ask(v3.bookie_info_request(8, 3)))[4:])
            assert info.getBookieInfoResponse.freeDiskSpace > 0
        gate.opened.set()
        await until(lambda: bookie.serving)
        # The same connection continues, with what is now known.
        assert read_of(await peer.ask(frames.read_request(NOT_LOADED, 5))) == make_entry(
            NOT_LOADED, 5, PAYLOAD
        )
        assert code_of(await peer.ask(frames.read_request(LOADED, 1000))) == Code.NO_ENTRY
        added = frames.add_request(KEY, make_entry(LOADED, 200, b"new"))
        assert code_of(await peer.ask(added)) == Code.OK
        await until_writable(metadata, bookie)


async def until_writable(metadata: MetadataStore, bookie: Bookie) -> None:
    await until(metadata.bookies, right=lambda found: bookie.bookie_id in found.writable)


async def test_a_read_waits_for_its_part_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.bookie.protocol.loading_store.WAIT_S", 600.0)
    async with loading(tmp_path, monkeypatch) as (gate, bookie, _, _, _), peer_of(bookie) as peer:
        peer.send(frames.read_request(NOT_LOADED, 5) + frames.read_request(LOADED, 1000))
        peer.send(frames.read_request(LOADED, 7))
        # Loaded entries do not wait for it.
        assert read_of(await peer.receive()) == make_entry(LOADED, 7, FIRST_PAYLOAD)
        assert bookie.service.loading_store is not None
        assert bookie.service.loading_store._waiting == 2
        gate.opened.set()
        answers = {code_of(answer): answer for answer in [await peer.receive() for _ in range(2)]}
        assert read_of(answers[Code.OK]) == make_entry(NOT_LOADED, 5, PAYLOAD)
        assert Code.NO_ENTRY in answers


async def test_the_number_of_reads_that_wait_for_loading_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.bookie.protocol.loading_store.WAIT_S", 600.0)
    monkeypatch.setattr("quire.bookie.protocol.loading_store.WAITING_MAX", 3)
    async with loading(tmp_path, monkeypatch) as (_, bookie, _, _, _), peer_of(bookie) as peer:
        peer.send(b"".join(frames.read_request(NOT_LOADED, n) for n in range(5)))
        for _ in range(2):
            assert code_of(await peer.receive()) == Code.TOO_MANY_REQUESTS


async def test_a_ledger_in_a_directory_that_is_not_loaded_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.bookie.protocol.loading_store.WAIT_S", 0.0)
    async with loading(tmp_path, monkeypatch, directories=2) as (
        gate, bookie, _, _, _,
    ), peer_of(bookie) as peer:  # fmt: skip
        requests = [frames.read_request(one, 5) for one in (LOADED, NOT_LOADED)]
        answers = {code_of(await peer.ask(request)) for request in requests}
        assert answers == {Code.OK, Code.TOO_MANY_REQUESTS}
        gate.opened.set()
        await until(lambda: bookie.serving)
        assert [code_of(await peer.ask(request)) for request in requests] == [Code.OK, Code.OK]


async def test_a_stop_does_not_wait_until_the_log_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with loading(tmp_path, monkeypatch) as (gate, bookie, metadata, task, _):
        task.cancel()
        await until(lambda: bookie.store._loading._stopped)  # type: ignore[union-attr]
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not bookie.recovered
        assert (await metadata.bookies()).find(bookie.bookie_id) is None
        links = [os.readlink(one.path) for one in os.scandir("/proc/self/fd") if one.is_symlink()]
        assert [name for name in links if name.startswith(str(tmp_path))] == []


async def test_a_stop_right_after_loading_releases_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The early reader was once asked when everything would be durable, which it cannot say.

    The directory was not released (found by the simulator, in the workload `loading`).
    """
    async with loading(tmp_path, monkeypatch) as (gate, bookie, metadata, task, _):
        # It is too late for the thread to notice.
        monkeypatch.setattr(LoadProgress, "check", lambda progress: None)
        async with peer_of(bookie) as peer:
            entry = make_entry(LOADED, 5, FIRST_PAYLOAD)
            assert read_of(await peer.ask(frames.read_request(LOADED, 5))) == entry
            task.cancel()
            await until(lambda: bookie.store._loading._stopped)  # type: ignore[union-attr]
            gate.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert bookie.recovered
        assert (await metadata.bookies()).find(bookie.bookie_id) is None
        links = [os.readlink(one.path) for one in os.scandir("/proc/self/fd") if one.is_symlink()]
        assert [name for name in links if name.startswith(str(tmp_path))] == []


async def test_a_stop_request_cancels_the_start_of_a_bookie() -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    class Starting:
        async def start(self) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("start")

    stopping = asyncio.Event()
    starting = asyncio.create_task(_started(Starting(), stopping))  # type: ignore[arg-type]
    await begun.wait()
    stopping.set()
    assert not await starting
    assert ended == ["start"]
