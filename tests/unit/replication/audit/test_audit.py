"""A complete audit of a ledger, on bookies with given answers: the problems that it names."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerState, Segment
from quire.codec.wire.v2 import Code
from quire.core.fragments import stored_by
from quire.core.replicas import BLOCK_ENTRIES, Finding, Kind
from quire.metadata.ledgers.update import update_ledger
from quire.net.answer_codes import error_of
from quire.replication.repair.opened_ledger import open_for_repair
from quire.replication.repair.replica_reader import LAG_S
from quire.replication.repair.replica_scan import compare
from tests.support.bookies.fake_bookies import (
    LEDGER,
    Ask,
    FakeBookie,
    FakeCluster,
    simulated,
)
from tests.support.replication import audited

CLOSED = LedgerState.CLOSED
SHAPES = [(3, 3, 2), (4, 3, 2)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["plain", "striped"])
Found = tuple[str, Kind, int, int]


def short(findings: Iterable[Finding]) -> list[Found]:
    return [(one.bookie, one.kind, one.first, one.last) for one in findings]


async def found_in(client: Client) -> list[Found]:
    return short(await audited(client, [LEDGER]))


def lose(bookie: FakeBookie, entries: Iterable[int]) -> None:
    for entry in entries:
        bookie.entries.pop(entry, None)


@shapes
@pytest.mark.parametrize("state", [CLOSED, LedgerState.OPEN])
def test_an_audit_finds_no_problem_in_a_complete_ledger(
    shape: tuple[int, int, int], state: LedgerState
) -> None:
    """Each replica is read once. Entries that may not be confirmed are not asked for."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(20), state=state)
        metadata = await cluster.stored()
        async with cluster.client() as client:
            assert await found_in(client) == []
        for index in range(shape[0]):
            asked = [ask.entry for ask in cluster[f"b{index}"].asked if ask.entry >= 0]
            last = 19 if state is CLOSED else 18
            assert sorted(set(asked)) == list(stored_by(metadata, index, 0, last))

    simulated(main)


@shapes
def test_an_audit_names_the_bookie_and_entries_of_each_problem(shape: tuple[int, int, int]) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(40), state=CLOSED)
        metadata = await cluster.stored()
        first, second, third = (list(stored_by(metadata, n, 0, 39)) for n in range(3))
        lose(cluster["b0"], first[3:6])
        for entry in second[-4:-2]:
            cluster["b1"].entries[entry] = cluster.entry(entry)[:-1] + b"?"
        other = third[10]
        cluster["b2"].entries[other] = cluster.entry(other, b"something else")
        async with cluster.client() as client:
            found = await found_in(client)
        assert found == [
            ("b0", Kind.MISSING, first[3], first[5]),
            ("b1", Kind.DAMAGED, second[-4], second[-3]),
            ("b2", Kind.DIFFERENT, other, other),
        ]

    simulated(main)


def test_without_a_majority_all_differing_replicas_are_named() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        cluster["b1"].entries[6] = cluster.entry(6, b"one")
        cluster["b2"].entries[6] = cluster.entry(6, b"two")
        async with cluster.client() as client:
            assert await found_in(client) == [
                (name, Kind.DIFFERENT, 6, 6) for name in ("b0", "b1", "b2")
            ]

    simulated(main)


def test_replicas_are_compared_in_every_block_and_segment() -> None:
    """The payloads have the same size, so only their checksums differ."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        count = 2 * BLOCK_ENTRIES + 10
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(BLOCK_ENTRIES + 7, ("b3", "b1", "b2")))
        await cluster.ledger((3, 3, 2), range(count), segments=segments, state=CLOSED)
        wrong = {0: "b0", BLOCK_ENTRIES - 1: "b1", BLOCK_ENTRIES: "b2", BLOCK_ENTRIES + 6: "b0",
                 BLOCK_ENTRIES + 7: "b3", 2 * BLOCK_ENTRIES: "b1", count - 1: "b3"}  # fmt: skip
        for entry, name in wrong.items():
            right = cluster.codec.unpack(cluster[name].entries[entry], entry).payload
            cluster[name].entries[entry] = cluster.entry(entry, bytes(len(right)))
        async with cluster.client() as client:
            found = await found_in(client)
        assert sorted(found, key=lambda one: one[2]) == [
            (name, Kind.DIFFERENT, entry, entry) for entry, name in wrong.items()
        ]

    simulated(main)


@shapes
def test_a_bookie_that_does_not_answer_is_unreachable_for_all_of_its_entries(
    shape: tuple[int, int, int],
) -> None:
    """The others are read all the same."""

    async def main() -> None:
        cluster = await FakeCluster.made(5)
        await cluster.ledger(shape, range(20), state=CLOSED)
        cluster["b1"].down = True
        lose(cluster["b2"], [5])
        async with cluster.client() as client:
            found = await found_in(client)
        assert found[0] == ("b1", Kind.UNREACHABLE, 0, 19)
        assert found[1:] == [("b2", Kind.MISSING, 5, 5)]

    simulated(main)


def test_a_bookie_that_lost_data_of_unknown_ledgers_reports_damage_not_absence() -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(20), state=CLOSED)
        cluster["b1"].says = lambda ask: error_of(
            Code.UNKNOWN_LEDGER_STATE, LEDGER, ask.entry, "b1"
        )
        async with cluster.client() as client:
            assert await found_in(client) == [("b1", Kind.DAMAGED, 0, 19)]

    simulated(main)


@pytest.mark.parametrize("comes", ["all", "one too few", "nothing", "dies"])
def test_a_replica_that_only_lagged_is_not_reported(comes: str) -> None:
    """Entries that are missing are read again after some time."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(20), state=CLOSED)
        late = cluster["b1"]
        kept = {entry: late.entries.pop(entry) for entry in range(15, 20)}
        if comes == "one too few":
            del kept[16]

        def then() -> None:
            if comes == "dies":
                late.die()
            elif comes != "nothing":
                late.entries.update(kept)

        async with cluster.client() as client:
            asyncio.get_running_loop().call_later(LAG_S * 0.9, then)
            found = await found_in(client)
        assert found == ([] if comes == "all" else [("b1", Kind.SHORT, 15, 19)])

    simulated(main)


@pytest.mark.parametrize("what", ["moved", "deleted", "moved elsewhere"])
def test_segments_that_changed_since_they_were_read_are_not_reported(what: str) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(5)
        segments = (Segment(0, ("b0", "b1", "b2")), Segment(10, ("b0", "b1", "b3")))
        await cluster.ledger((3, 3, 2), range(20), segments=segments, state=CLOSED)
        for entry in (5, 15):
            cluster["b1"].entries[entry] = cluster.entry(entry)[:-1] + b"?"
        changed = False

        async def change() -> None:
            if what == "deleted":
                await cluster.store.delete_ledger(LEDGER)
                return
            gone = 0 if what == "moved" else 10
            await update_ledger(
                cluster.store, LEDGER, await cluster.store.read_ledger(LEDGER),
                lambda now: None if any("b4" in s.ensemble for s in now.segments)
                else dataclasses.replace(now, segments=tuple(
                    Segment(s.first_entry_id, ("b0", "b4", s.ensemble[2]))
                    if s.first_entry_id == gone else s
                    for s in now.segments
                )),
            )  # fmt: skip

        def says(ask: Ask) -> Any:
            nonlocal changed
            if ask.entry == 19 and not changed:
                changed = True
                asyncio.get_running_loop().create_task(change()).add_done_callback(tasks.append)
            return ...

        tasks: list[Any] = []
        cluster["b0"].says = says
        async with cluster.client() as client:
            found = await found_in(client)
        assert tasks
        damaged = Kind.DAMAGED
        assert (
            found
            == {
                "moved": [("b1", damaged, 15, 15)],
                "moved elsewhere": [("b1", damaged, 5, 5)],
                "deleted": [],
            }[what]
        )

    simulated(main)


def test_a_comparison_uses_the_newest_copy_of_a_repaired_bookie() -> None:
    """A long read of such a bookie may return the copy from before the repair."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(10), state=CLOSED)
        old = cluster.entry(4, b"old")
        seen = 0

        def says(ask: Ask) -> Any:
            nonlocal seen
            if ask.entry == 4:
                seen += 1
                return old if seen == 1 else ...
            return ...

        cluster["b2"].says = says
        cluster["b1"].entries[7] = cluster.entry(7, b"another")
        async with cluster.client() as client:
            ledger = await open_for_repair(client, LEDGER)
            [fragment] = ledger.fragments()
            found = await compare(client, ledger, fragment, 0, 0)
            assert {
                index: [(one.first, one.kind) for one in bad] for index, bad in found.items()
            } == {1: [(7, Kind.DIFFERENT)]}
            cluster["b1"].down = True
            assert await compare(client, ledger, fragment, 0, 0, without=["b1"]) == {}
        assert seen == 3

    simulated(main)
