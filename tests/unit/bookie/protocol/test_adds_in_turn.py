"""Adds to ledgers in turn are columns from the chunk to the footer, and equal single adds."""

from __future__ import annotations

import asyncio
import random
import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.bookie.protocol.connection import Connection
from quire.bookie.protocol.service import BookieService
from quire.codec.log.group import ColumnarBatch
from quire.codec.wire.v2 import RESPONSE, Code, Flag, add_request
from quire.config import BookieConfig
from quire.errors import UsageError
from quire.net.network import AsyncioNetwork
from quire.storage.read.read_exceptions import NoEntry, NoLedger
from quire.storage.segment.batch import LogBatch, Run, runs_of
from quire.storage.segment.segment import SegmentState
from quire_simulator.machine.disk import SimDisk
from tests.support.storage.storage import SMALL, StoreOnDisk, key_of, make_batch, make_entry

LEDGERS = range(1, 5)
Add = tuple[int, int]


def store_on(seed: int = 1) -> StoreOnDisk:
    box = StoreOnDisk(SimDisk(random.Random(seed), "bookie"), SMALL)
    box.open()
    for ledger_id in LEDGERS:
        box.store.create_ledger(ledger_id, key_of(ledger_id))
    return box


def adds_of(rows: Sequence[Add], size: int) -> list[tuple[int, int, bytes]]:
    return [(ledger, entry, bytes([ledger, entry]) * (size // 2)) for ledger, entry in rows]


def frames_of(rows: Sequence[Add], size: int) -> bytes:
    return b"".join(
        add_request(key_of(ledger), make_entry(ledger, entry, payload))
        for ledger, entry, payload in adds_of(rows, size)
    )


def singles_batch(rows: Sequence[Add], size: int) -> LogBatch:
    data = frames_of(rows, size)
    ledgers, entries = zip(*rows)
    return LogBatch([data], ColumnarBatch(ledgers, entries, len(data) // len(rows)))


def listed(batch: LogBatch) -> LogBatch:
    """Return the same batch with a run for each entry."""
    assert batch.columns is not None
    return LogBatch(batch.buffers or (), runs_of(batch.columns))


def seen(box: StoreOnDisk) -> dict[int, Any]:
    """Return everything that the store reports of its ledgers."""
    told = {}
    for ledger_id, info in box.store.ledgers.items():
        parts = [
            (part.segment.number, part.first, part.last, part.span, part.size_bytes,
             [(run.first, run.count, run.offset, run.frame_size, run.ledger_id,
               run.batch.sequence, run.batch.file_offset) for run in part.runs])
            for part in info.open_parts
        ]  # fmt: skip
        entries: dict[int, Any] = {}
        for entry in range(info.last_entry_id + 1):
            try:
                entries[entry] = box.read(ledger_id, entry, 1)
            except NoEntry:
                entries[entry] = None
        told[ledger_id] = info.last_entry_id, info.sealed, parts, entries
    return told


turns = st.lists(st.tuples(st.sampled_from(LEDGERS), st.integers(0, 12)), min_size=1, max_size=12)
batches = st.lists(
    st.tuples(turns, st.sampled_from([20, 20, 20, 40]), st.sampled_from("sssr")),
    min_size=1,
    max_size=25,
)


NEIGHBOURS = [([(1, 2 * n), (1, 2 * n + 1), (2, n)], 40, "s") for n in range(100)]
"""Entries that lie back to back become one row of the footer."""


@settings(max_examples=60)
@given(batches, st.sampled_from([1, 3]))
@example(NEIGHBOURS, 1)
def test_columns_and_runs_give_the_same_log_and_index(steps: Any, pumped: int) -> None:
    """Ids ascend, repeat and arrive late, in batches of every kind, over several segments."""
    boxes = store_on(), store_on()
    for number, (rows, size, kind) in enumerate(steps):
        for box, as_runs in zip(boxes, (False, True)):
            made = singles_batch(rows, size)
            if kind == "r":
                made = make_batch(adds_of(rows, size))
                made = listed(made) if made.columns else made
            box.store.append(listed(made) if made.columns and as_runs else made, lambda *_: None)
            if number % pumped == 0:
                box.pump()
    assert seen(boxes[0]) == seen(boxes[1])
    for box in boxes:
        box.idle()
    assert seen(boxes[0]) == seen(boxes[1])
    for box in boxes:
        box.close()
        box.open()
    assert seen(boxes[0]) == seen(boxes[1])
    logs = [
        {name: bytes(box.disk.open(name).read(0, 1 << 20) or b"") for name in names}
        for box in boxes
        for names in [[f"log/{name}" for name in box.disk.list("log") if name.endswith(".seg")]]
    ]
    assert logs[0] == logs[1]


def test_a_sealed_segment_keeps_no_columns() -> None:
    box = store_on()
    for entry in range(120):
        box.store.append(
            singles_batch([(ledger, entry) for ledger in LEDGERS], 40), lambda *_: None
        )
        box.pump()
    box.idle()
    states = {True: 0, False: 0}
    for segment in box.store._catalogue.segments.values():
        sealed = segment.state is SegmentState.SEALED
        states[sealed] += 1
        assert not (sealed and (segment.columnar.rows or segment.parts))
    assert states[True] >= 2
    assert seen(box)[2][0] == 119


def test_ids_are_listed_only_if_they_are_not_consecutive() -> None:
    box = store_on()
    for ledger, entries in enumerate(([5, 6, 7], [5, 6, 9], [0, 1, 2]), 1):
        for entry in entries:
            box.store.append(singles_batch([(ledger, entry), (4, 0)], 20), lambda *_: None)
        part = box.store.ledgers[ledger].tail
        assert part is not None
        assert list(part.ids) == entries
        assert (part.entries is None) == (entries[-1] - entries[0] == 2)
        assert [run.first for run in part.runs] == entries


class Watched(array):  # type: ignore[type-arg]
    """Rows that are added to at the moment when another thread has copied them, or will."""

    before: Callable[[], None] | None = None
    behind: Callable[[], None] | None = None

    def __getitem__(self, key: Any) -> Any:
        before, self.before = self.before, None
        if before is not None:
            before()
        found = super().__getitem__(key)
        behind, self.behind = self.behind, None
        if behind is not None:
            behind()
        return found


@pytest.mark.parametrize("entry", [7, 9, 5, 2])
@pytest.mark.parametrize("moment", ["before", "behind"])
def test_runs_read_while_an_entry_is_added_are_consistent(entry: int, moment: str) -> None:
    """Maintenance looks at runs while an entry arrives. It only sees runs that existed."""
    box = store_on()
    for known in (5, 6):
        box.store.append(singles_batch([(1, known), (2, known)], 20), lambda *_: None)
    part = box.store.ledgers[1].tail
    assert part is not None
    known_runs = [(run.first, run.batch.sequence, run.offset) for run in part.runs]
    assert [first for first, _, _ in known_runs] == [5, 6]
    rows = Watched("Q", part.rows)
    part.rows = rows
    batch = singles_batch([(1, entry), (3, 0)], 20)
    setattr(rows, moment, lambda: box.store.append(batch, lambda *_: None))
    looked = [(run.first, run.batch.sequence, run.offset) for run in part.runs]
    assert looked[:2] == known_runs
    assert looked[2:] in ([], [(entry, known_runs[1][1] + 1, 0)])
    assert sorted(run.first for run in part.runs) == sorted([5, 6, entry])


def test_an_unknown_ledger_in_the_middle_of_columns_stores_nothing() -> None:
    box = store_on()
    box.store.append(singles_batch([(1, 0), (2, 0)], 20), lambda *_: None)
    batch = singles_batch([(1, 1), (9, 0), (2, 1)], 20)
    with pytest.raises(UsageError, match="ledger 9 is not in this bookie's store"):
        box.store.append(batch, lambda *_: None)
    box.store.append(singles_batch([(2, 1), (3, 0)], 20), lambda *_: None)
    box.pump()
    with pytest.raises(NoEntry):
        box.read(1, 1)
    assert len(box.read(2, 0, 2)) == 2
    box.close()
    box.open()
    with pytest.raises(NoEntry):
        box.read(1, 1)
    assert len(box.read(2, 0, 2)) == 2


# -- through a connection ---------------------------------------------------------------------

KEY = b"k" * 20
SIZE = 30


def add(ledger: int, entry: int, key: bytes = KEY, flags: int = 0) -> bytes:
    head = struct.pack(">qqqq", ledger, entry, max(entry, 0) - 1, SIZE)
    return add_request(key, head + bytes([ledger, entry % 256]) * (SIZE // 2), flags)


class Bookie:
    """A connection to the real service over a store on a simulated disk."""

    def __init__(self) -> None:
        self.box = StoreOnDisk(SimDisk(random.Random(1), "bookie"), SMALL)
        self.box.open()
        self.service = BookieService(
            self.box.store, BookieConfig(), self.box.clock, AsyncioNetwork(), lambda *_, **__: None
        )
        self.connection = Connection(self.service)
        self.sent: list[bytes] = []
        transport = self
        self.connection.connection_made(cast(Any, transport))
        for ledger in range(1, 9):
            self.box.store.create_ledger(ledger, KEY)
        self.box.fence(4)
        self.box.fence(8)
        self.box.pump()
        self.box.drop([8])
        self.box.idle()

    def write(self, data: bytes) -> None:
        self.sent.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def receive(self, *chunks: bytes) -> list[tuple[int, int, int]]:
        """Return (ledger, entry, code) of all answers, sorted, because refusals come first."""
        for chunk in chunks:
            self.connection.data_received(chunk)
        self.box.pump()
        self.connection._send_out()
        answers = RESPONSE.iter_unpack(b"".join(self.sent))
        return sorted((ledger, entry, code) for _, _, code, ledger, entry in answers)

    def stored(self) -> dict[Any, Any]:
        told: dict[Any, Any] = {}
        for ledger in range(1, 12):
            for entry in range(12):
                try:
                    told[ledger, entry] = self.box.read(ledger, entry)
                except (NoEntry, NoLedger) as error:
                    told[ledger, entry] = type(error)
        infos = self.box.store.ledgers.values()
        told[0] = {one.ledger_id: (one.last_entry_id, one.last_add_confirmed) for one in infos}
        return told


SPECIAL = [
    add(4, 3),  # fenced
    add(4, 3, flags=Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY),
    add(3, 6, key=b"x" * 20),  # a wrong key
    add(8, 0),  # fenced and then deleted
    add(9, 0),  # not known yet
    add(10, 2, key=b"y" * 20),  # not known yet, with another key
    add(2, -1),  # no entry id
    add(11, -1),
    add(1, 5),  # once more
    add(1, 2),  # late
]
WANTED = {
    (3, 6): Code.UNAUTHORIZED,
    (8, 0): Code.FENCED,
    (2, -1): Code.BAD_REQUEST,
    (11, -1): Code.BAD_REQUEST,
}


requests = st.lists(
    st.one_of(
        st.sampled_from(SPECIAL),
        # Not ledger 2: a run that begins with no entry id is refused as a whole.
        st.builds(add, st.sampled_from([1, 3, 5, 6, 7, 9]), st.integers(0, 11)),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60)
@given(requests, st.lists(st.floats(0, 1), max_size=3))
def test_a_chunk_is_handled_like_its_single_frames(sent: list[bytes], places: list[float]) -> None:
    """A chunk may begin and end in the middle of a frame."""
    data = b"".join(sent)
    cuts = [0, *sorted(int(place * len(data)) for place in places), len(data)]
    chunks = [data[start:stop] for start, stop in pairwise(cuts) if stop > start]

    async def run() -> None:
        whole, single = Bookie(), Bookie()
        answers = whole.receive(*chunks)
        assert answers == single.receive(*sent)
        assert len(answers) == len(sent)
        assert whole.stored() == single.stored()
        for bookie in whole, single:
            bookie.box.idle()
            await bookie.box.store.close()
            bookie.box.open()
        assert whole.stored() == single.stored()

    asyncio.run(run())


@pytest.mark.parametrize("ledgers", [(1, 2, 3, 5, 6, 7), (1,) * 6])
def test_a_frame_begun_in_another_chunk_joins_the_batch_of_the_next(
    ledgers: tuple[int, ...],
) -> None:
    """Each chunk makes one batch, however many frames it has."""

    async def run() -> None:
        bookie = Bookie()
        sent = [add(ledger, 5 + at) for at, ledger in enumerate(ledgers)]
        data, cut = b"".join(sent), len(sent[0]) * 3 // 2
        batches = bookie.service.counters.add_batches
        answers = bookie.receive(data[:cut], data[cut:])
        assert answers == [(ledger, 5 + at, Code.OK) for at, ledger in enumerate(ledgers)]
        assert bookie.service.counters.add_batches == batches + 2
        for at, ledger in enumerate(ledgers):
            assert bookie.box.read(ledger, 5 + at)[0][32:] == bytes([ledger, 5 + at]) * (SIZE // 2)

    asyncio.run(run())


def test_refused_adds_in_a_chunk_do_not_affect_those_of_other_ledgers() -> None:
    """The other adds are stored in one batch, and nothing of the refused ones is stored."""

    async def run() -> None:
        bookie = Bookie()
        good = [add(ledger, 5) for ledger in (1, 2, 3, 5, 6, 7)]
        sent = [*good[:3], *SPECIAL, *good[3:]]
        batches = bookie.service.counters.add_batches
        refused = bookie.service.counters.adds_refused
        answers = bookie.receive(b"".join(sent))
        assert len(answers) == len(sent)
        for ledger, entry, code in answers:
            if (ledger, entry) == (4, 3):
                assert code in (Code.OK, Code.FENCED)
            else:
                assert code == WANTED.get((ledger, entry), Code.OK), (ledger, entry)
        assert [code for *row, code in answers if row == [4, 3]] == [Code.OK, Code.FENCED]
        assert bookie.service.counters.add_batches == batches + 1
        assert bookie.service.counters.adds_refused == refused + 3
        for ledger in (1, 2, 3, 5, 6, 7):
            assert bookie.box.read(ledger, 5)[0][32:] == bytes([ledger, 5]) * (SIZE // 2)
        assert bookie.box.read(4, 3)[0][32:] == bytes([4, 3]) * (SIZE // 2)
        assert bookie.box.store.ledgers[10].master_key == b"y" * 20
        assert bookie.box.store.ledgers[4].last_add_confirmed == 2

    asyncio.run(run())


def test_a_wrong_key_is_refused_for_each_ledger_in_a_chunk() -> None:
    async def run() -> None:
        bookie = Bookie()
        wrong = [add(ledger, 5, key=b"x" * 20) for ledger in (1, 2, 9, 3, 5)]
        answers = bookie.receive(b"".join([add(6, 5), *wrong, add(7, 5)]))
        stored = {6: Code.OK, 7: Code.OK, 9: Code.OK}  # 9 is not known yet: it is theirs now
        assert answers == [
            (ledger, 5, stored.get(ledger, Code.UNAUTHORIZED)) for ledger in (1, 2, 3, 5, 6, 7, 9)
        ]
        here = {key[0] for key, found in bookie.stored().items() if key and isinstance(found, list)}
        assert here == {6, 7, 9}

    asyncio.run(run())


def test_a_failed_batch_answers_every_add() -> None:
    async def run() -> None:
        bookie = Bookie()
        cast(SimDisk, bookie.box.disk).fail_sync_once()
        sent = [add(ledger, 5) for ledger in (1, 2, 3, 5, 6, 7)]
        answers = bookie.receive(b"".join(sent))
        assert answers == [(ledger, 5, Code.IO_ERROR) for ledger in (1, 2, 3, 5, 6, 7)]

    asyncio.run(run())


def test_the_columns_of_a_batch_convert_to_runs() -> None:
    batch = singles_batch([(3, 7), (1, 0)], 20)
    assert batch.run_count == batch.entry_count == 2
    first, second = batch.runs
    assert isinstance(first, Run)
    assert (first.ledger_id, first.first, first.count, first.offset) == (3, 7, 1, 0)
    assert second.offset == first.frame_size == first.size_bytes
    batch.forget_runs()
    assert (batch.runs, batch.run_count) == ((), 0)
