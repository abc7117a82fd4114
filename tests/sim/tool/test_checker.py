"""Every invariant notices what it should, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from quire.client.cluster.health import Misbehaviour, UnhealthyBookie
from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from quire.codec.metadata.ledger_metadata_format import encode
from quire.codec.wire.v2 import ADD_HEAD, add_request, add_responses, frame_bounds
from quire.errors import NotEnoughBookiesError, UsageError
from quire_simulator.faults.byzantine import hear
from quire_simulator.faults.flips import Flips
from quire_simulator.invariants.checker import (
    CALLS_PER_ROLL,
    LISTINGS_PER_ROLL,
    STORE_CALLS_MAX,
    Checker,
)
from quire_simulator.invariants.history import RunHistory, payload
from quire_simulator.invariants.ledger import LEDGER_INVARIANTS, METADATA_CHANGES_MAX, Facts
from quire_simulator.metadata.items import StoredItem
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World, bookie_id

if TYPE_CHECKING:
    from quire.client import Client
    from quire_simulator.plans.plans import RunPlan

LEDGER = 7
NAMES = ("bookie-0", "bookie-1", "bookie-2")
ENSEMBLE = tuple(map(bookie_id, NAMES))
METADATA = LedgerMetadata(3, 3, 2, (Segment(0, ENSEMBLE),))
SIZES = [len(payload(LEDGER, entry)) for entry in range(10)]


class Bench:
    """A checker that a test feeds with facts about one ledger."""

    def __init__(self) -> None:
        self.world = World.make(1, 3)
        self.history = RunHistory(self.world.loop.time, self.world.trace)
        self.checker = Checker(self.world, self.history, lambda: None)
        self.version = -1
        self.store(METADATA)

    def store(self, metadata: LedgerMetadata) -> None:
        self.version += 1
        self.world.cluster.ledgers[LEDGER] = StoredItem(encode(metadata), self.version)
        self.world.cluster.ledger_changed(LEDGER)

    def close(self, last: int, length: int | None = None) -> None:
        self.store(METADATA.with_close(last, sum(SIZES[: last + 1]) if length is None else length))

    def claim(self, last: int, *names: str) -> None:
        for name in names:
            held = self.world.claims._entries.setdefault(LEDGER, {})
            held.setdefault(bookie_id(name), set()).update(range(last + 1))

    def say(self, kind: str, last: int = -1, note: str = "") -> None:
        self.history.add("client", kind, LEDGER, 0, last, note)

    @property
    def broken(self) -> str | None:
        return self.checker.broken.invariant if self.checker.broken is not None else None


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.world.loop.close()


def test_a_correct_ledger_violates_no_invariant(bench: Bench) -> None:
    bench.claim(9, *NAMES[:2])
    bench.say("acked", 4)
    bench.say("observe", 4)
    bench.say("read", 4)
    bench.store(METADATA.with_state(LedgerState.IN_RECOVERY))
    bench.close(9)
    bench.say("recovered", 9)
    bench.say("read", 9)
    bench.checker.check_all()
    bench.checker.queues_are_bounded()
    assert bench.broken is None


def acknowledged_entries_are_cut_off(bench: Bench) -> None:
    bench.say("acked", 4)
    bench.close(3)


def a_writer_goes_on_behind_the_close(bench: Bench) -> None:
    bench.close(3)
    bench.say("acked", 4)


def an_entry_is_acknowledged_by_one_bookie(bench: Bench) -> None:
    bench.world.claims._entries[LEDGER][ENSEMBLE[1]].discard(2)
    bench.say("acked", 2)


def the_handle_confirms_what_one_bookie_has(bench: Bench) -> None:
    bench.world.claims._entries[LEDGER][ENSEMBLE[1]].discard(2)
    bench.checker.facts(LEDGER).handle_confirmed = lambda: 2
    bench.checker.check_all()


def the_metadata_names_bookies_that_have_nothing(bench: Bench) -> None:
    bench.say("acked", 4)
    bench.store(replace(METADATA, segments=(Segment(0, (*ENSEMBLE[1:], "bookie-3:3181")),)))


def a_bookie_is_named_twice(bench: Bench) -> None:
    bench.store(replace(METADATA, segments=(Segment(0, (*ENSEMBLE[:2], ENSEMBLE[1])),)))


def a_bookie_that_is_named_twice_counts_once(bench: Bench) -> None:
    bench.say("acked", 4)
    bench.world.claims._entries[LEDGER].pop(ENSEMBLE[0])
    bench.store(replace(METADATA, segments=(Segment(0, (*ENSEMBLE[:2], ENSEMBLE[1])),)))


def an_ensemble_goes_round(bench: Bench) -> None:
    for _ in range(METADATA_CHANGES_MAX + 1):
        bench.store(METADATA)


def a_lac_is_ahead(bench: Bench) -> None:
    bench.say("acked", 4)
    bench.say("observe", 5)


def a_lac_is_behind_the_close(bench: Bench) -> None:
    bench.say("acked", 4)
    bench.say("observe", 4)
    bench.checker.facts(LEDGER).acked = -1
    bench.close(3)


def an_entry_is_read_early(bench: Bench) -> None:
    bench.say("acked", 4)
    bench.say("read", 5)


def what_was_read_is_cut_off(bench: Bench) -> None:
    bench.say("acked", 4)
    bench.say("read", 4)
    bench.checker.facts(LEDGER).acked = -1
    bench.close(3)


def two_ends(bench: Bench) -> None:
    bench.close(4)
    bench.say("recovered", 5)


def two_lengths(bench: Bench) -> None:
    bench.close(4)
    bench.close(4, length=0)


def opened_again(bench: Bench) -> None:
    bench.close(4)
    bench.store(METADATA)


def a_wrong_length(bench: Bench) -> None:
    bench.close(4, length=sum(SIZES[:6]))


def a_writer_that_forgets_the_length(bench: Bench) -> None:
    bench.close(4, length=0)


def wrong_bytes(bench: Bench) -> None:
    bench.say("wrong", note="entry 3 in the place of 4")


def a_false_no(bench: Bench) -> None:
    bench.say("denied", note="no such entry")


def a_refused_entry_is_there(bench: Bench) -> None:
    bench.say("refused", 3)
    bench.close(4)


def a_writer_that_does_not_stop(bench: Bench) -> None:
    bench.say("late", note="appended after LedgerFencedError")


def a_bookie_serves_something_else(bench: Bench) -> None:
    entries = [b"head" + payload(LEDGER, 3), b"head" + payload(LEDGER, 3)]
    bench.world.claims.served(ENSEMBLE[0], LEDGER, 3, entries)


def a_writer_hoards(bench: Bench) -> None:
    facts = bench.checker.facts(LEDGER)
    facts.backlog, facts.backlog_max_bytes = (lambda: 101), 100
    bench.checker.queues_are_bounded()


BROKEN: dict[Callable[[Bench], None], str] = {
    acknowledged_entries_are_cut_off: "acknowledged_is_kept",
    a_writer_goes_on_behind_the_close: "nothing_acknowledged_beyond_the_close",
    an_entry_is_acknowledged_by_one_bookie: "acknowledged_is_on_a_quorum",
    the_handle_confirms_what_one_bookie_has: "acknowledged_is_on_a_quorum",
    the_metadata_names_bookies_that_have_nothing: "acknowledged_is_on_a_quorum",
    a_bookie_is_named_twice: "the_bookies_of_a_segment_are_distinct",
    a_bookie_that_is_named_twice_counts_once: "acknowledged_is_on_a_quorum",
    an_ensemble_goes_round: "metadata_is_not_hammered",
    a_lac_is_ahead: "lac_is_acknowledged",
    a_lac_is_behind_the_close: "lac_is_within_the_close",
    an_entry_is_read_early: "only_the_acknowledged_is_read",
    what_was_read_is_cut_off: "what_was_read_stays",
    two_ends: "one_close_wins",
    two_lengths: "one_close_wins",
    opened_again: "the_state_goes_on",
    a_wrong_length: "the_length_is_that_of_the_entries",
    a_writer_that_forgets_the_length: "the_length_is_that_of_the_entries",
    wrong_bytes: "entries_are_what_was_appended",
    a_false_no: "no_false_absence",
    a_refused_entry_is_there: "what_was_refused_is_not_there",
    a_writer_that_does_not_stop: "a_dead_handle_stays_dead",
    a_bookie_serves_something_else: "no_bookie_serves_wrong_bytes",
    a_writer_hoards: "queues_are_bounded",
}


@pytest.mark.parametrize("wrong", BROKEN, ids=lambda wrong: wrong.__name__)
def test_each_violated_invariant_is_found(bench: Bench, wrong: Callable[[Bench], None]) -> None:
    bench.claim(9, *NAMES[:2])
    wrong(bench)
    assert bench.broken == BROKEN[wrong]


def test_every_ledger_invariant_has_a_case() -> None:
    assert {invariant.__name__ for invariant in LEDGER_INVARIANTS} <= set(BROKEN.values())


def test_a_recovery_may_not_know_the_length(bench: Bench) -> None:
    bench.claim(9, *NAMES[:2])
    bench.store(METADATA.with_state(LedgerState.IN_RECOVERY))
    bench.close(4, length=0)
    assert bench.broken is None


def test_a_deleted_ledger_violates_no_invariant(bench: Bench) -> None:
    bench.say("delete")
    bench.say("denied", note="no such ledger")
    bench.say("acked", 4)
    assert bench.broken is None


def test_entries_of_a_destroyed_bookie_may_be_missing(bench: Bench) -> None:
    bench.claim(4, NAMES[1])
    bench.world.destroyed.add(NAMES[0])
    bench.say("acked", 4)
    assert bench.broken is None


def test_only_entries_of_a_lost_directory_may_be_missing(bench: Bench) -> None:
    bench.claim(4, *NAMES[:2])
    bench.world.claims.lose(ENSEMBLE[0], [LEDGER], 1.0)
    bench.say("acked", 4)
    assert bench.broken is None
    assert bench.checker.lost_entries(NAMES[0], LEDGER) == set(range(5))
    bench.claim(2, NAMES[0])  # they are back
    assert bench.checker.lost_entries(NAMES[0], LEDGER) == {3, 4}
    bench.world.claims._entries[LEDGER][ENSEMBLE[1]].discard(1)
    bench.store(METADATA)
    assert bench.broken == "acknowledged_is_on_a_quorum"


def test_lost_entries_that_are_no_longer_needed_may_be_denied(bench: Bench) -> None:
    bench.claim(4, *NAMES)
    bench.world.claims.lose(ENSEMBLE[0], [LEDGER], 1.0)
    bench.say("acked", 2)
    assert bench.checker.lost_entries(NAMES[0], LEDGER) == {0, 1, 2}
    others = (*ENSEMBLE[1:], "bookie-3:3181")
    bench.world.claims._entries[LEDGER]["bookie-3:3181"] = set(range(5))
    bench.store(replace(METADATA, segments=(Segment(0, others),)))
    assert bench.checker.lost_entries(NAMES[0], LEDGER) == set()
    bench.store(METADATA)
    bench.say("delete")
    assert bench.checker.lost_entries(NAMES[0], LEDGER) == set()
    assert bench.broken is None


def heard(bench: Bench, kind: Misbehaviour, name: str = NAMES[0]) -> str | None:
    """Return the invariant that a client breaks which reports entry 3 of a bookie."""
    plan = SimpleNamespace(schedule=(), cancelling=0.0)
    stage = Stage(bench.world, cast("RunPlan", plan), bench.history, bench.checker)
    report = UnhealthyBookie(bookie_id(name), kind, 1, LEDGER, 3)
    hear(stage, "client", cast("Client", SimpleNamespace(suspects=lambda: [report])))
    return bench.broken


def test_a_client_is_not_blamed_for_a_right_call(bench: Bench) -> None:
    plan = SimpleNamespace(schedule=(), cancelling=0.0)
    stage = Stage(bench.world, cast("RunPlan", plan), bench.history, bench.checker)
    stage.failed("writer-0", LEDGER, NotEnoughBookiesError("too few"))
    assert bench.broken is None
    stage.failed("writer-0", LEDGER, UsageError("ids begin at 0"))
    assert bench.broken == "a_right_call_is_not_refused"


def closed_by_its_writer(bench: Bench) -> Facts:
    bench.claim(9, *NAMES[1:])
    bench.world.metadata_caller = "writer-0"
    bench.close(9)
    return bench.checker.facts(LEDGER)


def test_a_replica_that_was_sent_everything_is_not_missing(bench: Bench) -> None:
    closed_by_its_writer(bench)
    assert heard(bench, Misbehaviour.MISSING) == "a_late_replica_is_not_accused"


def test_a_member_that_failed_may_lack_entries(bench: Bench) -> None:
    """Seed 4188511301 of `lagging`: a bookie did not answer adds in time, and the writer confirmed
    an entry without it before it rejoined."""
    closed_by_its_writer(bench).member_failed = lambda: True
    assert heard(bench, Misbehaviour.MISSING) is None
    assert heard(bench, Misbehaviour.DROPPED) == "only_a_liar_is_accused"


def test_members_without_the_entries_of_a_former_ledger_may_be_reported(bench: Bench) -> None:
    """Seed 4188511316 of `recreated`: a recovery of the new ledger found entries of the former one
    on one of its three members."""
    facts = closed_by_its_writer(bench)
    facts.deleted = facts.recreated = True
    assert heard(bench, Misbehaviour.DROPPED) is None
    assert heard(bench, Misbehaviour.DROPPED, NAMES[1]) == "only_a_liar_is_accused"


@pytest.mark.parametrize("kind", [Misbehaviour.BAD_DIGEST, Misbehaviour.WRONG_ENTRY])
def test_entries_of_a_former_ledger_excuse_no_wrong_bytes(bench: Bench, kind: Misbehaviour) -> None:
    facts = closed_by_its_writer(bench)
    facts.deleted = facts.recreated = True
    assert heard(bench, kind) == "only_a_liar_is_accused"


CALLER = "streamer-0.0"


def called(bench: Bench, *counts: int) -> str | None:
    for count in counts:
        bench.world.called(CALLER, count)
    return bench.broken


def complete_a_segment(bench: Bench, last: int, *, foreign: bool = True) -> None:
    bench.checker.facts(LEDGER).foreign = foreign
    bench.claim(9, *NAMES)
    bench.world.metadata_caller = CALLER
    bench.close(last)


def test_store_calls_of_rolls_are_allowed(bench: Bench) -> None:
    """Seed 3462444634 of `retention`: a writer completed 39 segments of one or two entries in a
    second, and read every segment twice for each of them."""
    limit = STORE_CALLS_MAX + CALLS_PER_ROLL + LISTINGS_PER_ROLL
    assert called(bench, 1, STORE_CALLS_MAX) is None
    complete_a_segment(bench, 3)
    assert called(bench, STORE_CALLS_MAX + 1, limit) is None
    assert called(bench, limit + 1) == "the_store_is_not_hammered"


def test_rolls_of_an_earlier_second_allow_no_calls(bench: Bench) -> None:
    called(bench, 1)
    complete_a_segment(bench, 3)
    assert called(bench, 1, STORE_CALLS_MAX) is None
    assert called(bench, STORE_CALLS_MAX + 1) == "the_store_is_not_hammered"


def test_a_completed_segment_is_counted_once(bench: Bench) -> None:
    called(bench, 1)
    complete_a_segment(bench, 3)
    complete_a_segment(bench, 3)
    limit = STORE_CALLS_MAX + CALLS_PER_ROLL + LISTINGS_PER_ROLL
    assert called(bench, limit + 1) == "the_store_is_not_hammered"


@pytest.mark.parametrize(("last", "foreign"), [(-1, True), (3, False)])
def test_only_segments_with_records_count_as_rolls(bench: Bench, last: int, foreign: bool) -> None:
    called(bench, 1)
    complete_a_segment(bench, last, foreign=foreign)
    assert called(bench, STORE_CALLS_MAX + 1) == "the_store_is_not_hammered"


def claim_what_was_never_stored(world: World) -> None:
    world.claims._entries[LEDGER] = {ENSEMBLE[0]: {0}}


def claim_a_fence_that_was_never_stored(world: World) -> None:
    world.claims._fences[LEDGER] = {ENSEMBLE[0]: True}


def wipe(world: World) -> None:
    world.wiped.add(NAMES[0])


def put_an_old_disk_back(world: World) -> None:
    world.outdated.add(NAMES[0])


def lose_what_it_had(world: World) -> None:
    """Lose entries without the bookie knowing it."""
    for name in NAMES[:2]:
        world.claims._entries.setdefault(LEDGER, {})[bookie_id(name)] = {0}
    world.claims.lose(ENSEMBLE[0], [LEDGER], 0.0)
    world.lossy.add(NAMES[0])
    world.cluster.ledgers[LEDGER] = StoredItem(encode(METADATA.with_close(0, SIZES[0])), 1)
    world.cluster.ledger_changed(LEDGER)


@pytest.mark.parametrize(
    ("lie", "invariant"),
    [
        (put_an_old_disk_back, "an_old_disk_is_refused"),
        (lose_what_it_had, "what_is_lost_is_unknown"),
        (claim_what_was_never_stored, "what_is_durable_stays"),
        (claim_a_fence_that_was_never_stored, "what_is_durable_stays"),
        (wipe, "an_empty_disk_is_refused"),
        (lambda world: None, None),
    ],
)
def test_a_bookie_is_checked_when_it_starts(
    bench: Bench, lie: Callable[[World], None], invariant: str | None
) -> None:
    async def scenario() -> None:
        await bench.world.start(NAMES[0])
        await bench.world.stop(NAMES[0])
        lie(bench.world)
        await bench.world.start(NAMES[0])
        await bench.world.stop(NAMES[0])

    bench.world.loop.run(scenario())
    assert bench.broken == invariant


def test_remaining_tasks_are_named(bench: Bench) -> None:
    async def scenario() -> None:
        bench.checker.nothing_is_left_behind()
        assert bench.broken is None
        node = bench.world.network.node("client").node
        node.create_task(asyncio.sleep(1_000), name="forgotten")
        bench.checker.nothing_is_left_behind()

    bench.world.loop.run(scenario())
    assert bench.checker.broken is not None
    assert "forgotten on client" in bench.checker.broken.what


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_garbage_may_survive_two_collections_but_not_three(bench: Bench, passes: int) -> None:
    """Seed 2119843894 of `space`: a writer had sent its last adds to a slow bookie. Seed 781042 of
    `topics`: a pass waited for the next one to confirm a mass deletion."""
    bench.checker.facts(8).deleted = True

    async def scenario() -> None:
        await bench.world.start(NAMES[0])
        bookie = bench.world.bookies[NAMES[0]]
        collect, late = bookie.collect_garbage, passes

        async def collected() -> None:
            nonlocal late
            await collect()
            if late:
                late -= 1
                bookie.store.create_ledger(8, master_key(b""))

        bookie.collect_garbage = collected  # type: ignore[method-assign, assignment]
        await bench.checker.garbage_is_collected()
        await bench.world.stop(NAMES[0])

    bench.world.loop.run(scenario())
    assert bench.broken == (None if passes < 3 else "garbage_is_collected")


def test_a_bookie_with_a_wrong_registration_is_named(bench: Bench) -> None:
    async def scenario() -> list[list[str]]:
        await bench.world.start(NAMES[0])
        seen = [bench.checker.unregistered()]
        bench.world.cluster.presences[ENSEMBLE[0]].readonly = True
        seen.append(bench.checker.unregistered())
        del bench.world.cluster.presences[ENSEMBLE[0]]
        seen.append(bench.checker.unregistered())
        await bench.world.stop(NAMES[0])
        return seen

    assert bench.world.loop.run(scenario()) == [[], [NAMES[0]], [NAMES[0]]]


def test_bit_flips_change_only_bytes_that_a_digest_covers() -> None:
    codec, key = EntryCodec(LEDGER, DigestType.CRC32C, b""), master_key(b"")
    data = b"".join(add_request(key, codec.pack(e, e - 1, 50, b"payload")) for e in range(200))
    flips = Flips("bookie-0", random.Random(1))
    assert flips(("client", "bookie-1"), data) == data
    answers = add_responses(LEDGER, 0, 100)
    assert flips(("bookie-0", "client"), answers) == answers
    changed = flips(("client", "bookie-0"), data)
    assert frame_bounds(changed) == frame_bounds(data)
    different = 0
    for start, end in frame_bounds(data):
        covered = start + ADD_HEAD.size
        assert changed[start:covered] == data[start:covered]
        different += changed[covered:end] != data[covered:end]
    assert 0 < different < 100
