"""Scripts of stores whose disks lose power. They are short, so that every moment can be tried."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from quire.errors import DiskFullError
from tests.support.crash.crash_sweep import BrokenPromiseError, Script, Step, together
from tests.support.storage.promises import PromisingStore
from tests.support.storage.storage import SMALL

TINY = replace(
    SMALL,
    segment_bytes=32 * 1024,
    reserve_bytes=16 * 1024,
    index_cache_interval_s=0.0,
    index_cache_segments=1,
)
COMPACTING = replace(
    TINY,
    segment_bytes=80 * 1024,
    max_group_bytes=32 * 1024,
    compact_minor_interval_s=0.0,
    compact_major_interval_s=0.0,
)


def look(store: PromisingStore) -> None:
    """Call `check_space`, which a bookie does every few seconds, and which starts what is due.

    An example is writing an index cache.
    """
    store.store.check_space()


Entries = list[tuple[int, int, bytes]]


class Writer:
    """A source of steps that add entries, with ascending ids in each ledger."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._next: dict[int, int] = {}

    def made(self, count: int, most_bytes: int, *ledger_ids: int) -> Entries:
        entries: Entries = []
        for ledger_id in ledger_ids:
            first = self._next.get(ledger_id, 0)
            self._next[ledger_id] = first + count
            entries += [
                (ledger_id, first + at, self._rng.randbytes(self._rng.randrange(most_bytes)))
                for at in range(count)
            ]
        return entries

    def add(self, count: int, most_bytes: int, *ledger_ids: int) -> Step:
        entries = self.made(count, most_bytes, *ledger_ids)
        return lambda store: store.append(entries)


def first_start() -> Iterator[Step]:
    """Write the cookie, the identity and the first groups, then stop cleanly and start again."""
    writer = Writer(1)
    yield writer.add(1, 300, 1, 2)
    yield PromisingStore.pump
    yield lambda store: store.write_lac(1, 0)
    yield lambda store: store.fence(2)
    yield PromisingStore.pump
    yield PromisingStore.close
    yield PromisingStore.open
    yield writer.add(2, 900, 1, 3)
    yield PromisingStore.idle
    yield PromisingStore.close
    yield PromisingStore.open


def rolls() -> Iterator[Step]:
    """Write many ledgers over several segments that are sealed meanwhile, with fences and LACs."""
    writer = Writer(2)
    for turn in range(5):
        yield together(
            writer.add(2, 900, 1, 2, 3, 4, 5),
            lambda store, turn=turn: store.write_lac(1, turn),
            writer.add(3, 1500, 1 + turn),
            writer.add(2, 1500, 6),
            lambda store, turn=turn: store.fence(1 + turn // 2),
            writer.add(1, 2500, 3, 5),
            look,
        )
        yield PromisingStore.idle
    yield writer.add(1, 100, 4)
    yield PromisingStore.pump


def deletes() -> Iterator[Step]:
    """Delete ledgers, some of them fenced, and whole segments. Write a deleted ledger again."""
    writer = Writer(3)
    for _ in range(2):
        yield together(writer.add(4, 1200, 1, 2), writer.add(4, 1200, 3, 4), writer.add(2, 2000, 2))
    yield together(lambda store: store.fence(2), lambda store: store.fence(1), look)
    yield PromisingStore.idle
    yield together(
        look, lambda store: store.drop([2, 3, 4]), writer.add(4, 1500, 5), writer.add(4, 1500, 5, 6)
    )
    yield together(
        lambda store: store.drop([1, 5]), writer.add(3, 1000, 6), lambda store: store.fence(7)
    )
    yield together(writer.add(2, 500, 2, 6), writer.add(3, 2500, 6), writer.add(3, 2500, 6))
    yield PromisingStore.idle
    yield together(look, lambda store: store.drop([2]), writer.add(1, 500, 6))
    yield PromisingStore.idle
    yield look
    yield PromisingStore.idle


def compacts() -> Iterator[Step]:
    """Merge two segments and rewrite one, while adds continue and a ledger is deleted."""
    writer = Writer(4)
    yield together(writer.add(3, 6000, 1, 2, 3, 4), lambda store: store.write_lac(1, 1))
    yield lambda store: store.fence(2)
    yield together(writer.add(3, 6000, 3, 4), writer.add(3, 6000, 3, 5))
    yield PromisingStore.idle
    yield together(writer.add(3, 6000, 1, 3), writer.add(3, 9000, 3, 4))
    yield PromisingStore.idle
    yield together(lambda store: store.drop([3]), writer.add(6, 6000, 4), writer.add(5, 7000, 6))
    yield PromisingStore.idle
    for turn in range(4):
        yield look
        yield together(writer.add(2, 900, 1, 2), writer.add(2, 900, 7 + turn))
        if turn == 1:
            yield together(lambda store: store.fence(4), lambda store: store.drop([4]))
        yield PromisingStore.idle
    yield writer.add(2, 300, 1, 2)
    yield PromisingStore.pump


def no_more_room(store: PromisingStore) -> None:
    """Use up all free space."""
    store.sim.capacity_bytes -= store.sim.free_bytes()


def until_full(writer: Writer) -> Step:
    """Return a step that adds entries until they are refused."""

    def step(store: PromisingStore) -> None:
        while store.store.writable:
            try:
                writer.add(3, 3000, 3)(store)
            except DiskFullError:
                break
            store.pump()

    return step


def recovery_add(writer: Writer, *ledger_ids: int) -> Step:
    """Return a step that adds an entry as a recovery does, which may use the reserve."""
    add = writer.made(1, 900, *ledger_ids)
    return lambda store: store.append(add, reserve=True)


def expect(*, writable: bool) -> Step:
    def step(store: PromisingStore) -> None:
        if store.store.writable != writable:
            raise BrokenPromiseError(f"writable: {store.store.writable}")
        if store.errors:
            raise BrokenPromiseError(f"refused: {store.errors[0]}")

    return step


def fills() -> Iterator[Step]:
    """Fill the disk, and free a part of it.

    Fences and adds of recoveries use the reserve. A ledger is dropped, and a compaction uses the
    space reserved for it. Adds continue in the freed space.
    """
    writer = Writer(6)
    yield together(writer.add(3, 2000, 1, 2, 4), writer.add(8, 6000, 3), writer.add(8, 6000, 3))
    yield together(writer.add(9, 6000, 3), writer.add(2, 3000, 1, 5))
    yield PromisingStore.idle
    for _ in range(2):
        yield look
        yield PromisingStore.idle
    yield no_more_room
    yield until_full(writer)
    yield look
    yield PromisingStore.idle
    yield expect(writable=False)
    yield together(
        lambda store: store.fence(2),
        recovery_add(writer, 1, 2),
        lambda store: store.write_lac(1, 1),
        recovery_add(writer, 5),
    )
    yield PromisingStore.idle
    yield together(lambda store: store.drop([3]), lambda store: store.fence(4), look)
    for _ in range(5):
        yield PromisingStore.idle
        yield look
    yield PromisingStore.idle
    yield expect(writable=True)
    yield together(writer.add(2, 900, 1, 8), lambda store: store.fence(8))
    yield PromisingStore.idle


def wide() -> Iterator[Step]:
    """Write so many ledgers that a segment's records about them fill several disk blocks."""
    writer = Writer(5)
    for _ in range(3):
        yield writer.add(1, 900, *range(1, 61))
        yield PromisingStore.idle


FIRST_START = Script(first_start, TINY)
ROLLS = Script(rolls, TINY)
DELETES = Script(deletes, TINY)
COMPACTS = Script(compacts, COMPACTING)
WIDE = Script(wide, replace(TINY, segment_bytes=64 * 1024, index_cache_segments=100))
"""The script `wide`, which only tests of defects use.

The other scripts cover everything else better.
"""
FILLS = Script(fills, COMPACTING)
SCRIPTS = (FIRST_START, ROLLS, DELETES, COMPACTS, FILLS)
