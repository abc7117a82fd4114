"""Every invariant of objects notices what it should, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.errors import (
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchObjectError,
    ObjectDamagedError,
    ObjectExistsError,
)
from quire.streams.objects.format import ObjectInfo, encode_head, head_key
from quire_simulator import RunPlan, simulate
from quire_simulator.invariants.checker import Checker
from quire_simulator.invariants.history import RunHistory
from quire_simulator.invariants.objects import BUCKET, PUT_KEY, ObjectCall, ObjectInvariants
from quire_simulator.metadata.items import StoredItem
from quire_simulator.world.world import World

NAME = "a"
DATA = b"0123456789"


class Bench:
    """Objects that a test changes as clients would."""

    def __init__(self) -> None:
        self.world = World.make(1, 3)
        history = RunHistory(self.world.loop.time, self.world.trace)
        self.checker = Checker(self.world, history, lambda: None)
        self.facts = ObjectInvariants(self.world, self.checker)
        self.head: bytes | None = None
        self.puts = 0

    def info(self, put: str, ledger_id: int, size: int = len(DATA)) -> ObjectInfo:
        return ObjectInfo(NAME, ledger_id, size, 4, "0" * 64, 0, {PUT_KEY: put})

    def read(self, client: str) -> None:
        self.world.metadata_caller = client
        self.world.cluster.value_shown(head_key(BUCKET, NAME), self.head)

    def write(self, client: str, info: ObjectInfo | None) -> None:
        self.world.metadata_caller = client
        before, self.head = self.head, None if info is None else encode_head(info)
        self.world.cluster.value_changed(head_key(BUCKET, NAME), before, self.head)

    def publish(
        self, client: str = "one", *, replace: bool = True
    ) -> tuple[ObjectCall, ObjectInfo]:
        """Do everything that a put does until it has written its head."""
        info = self.info(f"{client}/{self.puts}", self.puts)
        self.puts += 1
        self.world.cluster.ledgers[info.ledger_id] = StoredItem(b"")
        call = self.facts.begin_put(client, NAME, info.metadata[PUT_KEY], DATA)
        call.replace = replace
        self.read(client)
        self.write(client, info)
        return call, info

    def put(self, client: str = "one", *, replace: bool = True) -> ObjectInfo:
        call, info = self.publish(client, replace=replace)
        self.facts.was_put(call, info)
        self.facts.end(call)
        return info

    def delete(self, client: str = "one") -> None:
        call = self.facts.begin(client, "delete", NAME)
        self.read(client)
        self.write(client, None)
        self.facts.was_deleted(call, True)
        self.facts.end(call)

    def drop(self, info: ObjectInfo) -> None:
        """Delete a ledger."""
        del self.world.cluster.ledgers[info.ledger_id]
        self.checker.on_ledger(info.ledger_id)

    @property
    def broken(self) -> str | None:
        return self.checker.broken.invariant if self.checker.broken is not None else None


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.world.loop.close()


def test_correct_calls_violate_no_object_invariant(bench: Bench) -> None:
    first = bench.put()
    second = bench.put("two")
    bench.drop(first)
    call = bench.facts.begin("one", "get", NAME)
    bench.facts.described(call, second)
    bench.facts.was_read(call, second, DATA[3:5], 3, 2)
    bench.facts.were_listed(call, [second])
    bench.delete("two")
    bench.drop(second)
    bench.facts.was_not_read(call, NoSuchObjectError("gone"))
    assert bench.broken is None


def test_a_change_of_an_unread_version_is_found(bench: Bench) -> None:
    bench.put()
    call = bench.facts.begin("two", "delete", NAME)
    bench.read("two")
    bench.put("one")
    bench.write("two", None)
    assert call.shown
    assert bench.broken == "a_change_replaces_what_was_read"


def test_a_restored_former_version_is_found(bench: Bench) -> None:
    first = bench.put()
    bench.put("two")
    bench.facts.begin("three", "sweep")
    bench.read("three")
    bench.write("three", first)
    assert bench.broken == "a_former_version_stays_away"


def test_a_retried_put_may_restore_its_version(bench: Bench) -> None:
    """The reply to its first attempt was lost."""
    call, info = bench.publish()
    bench.put("two")
    bench.read("one")
    bench.write("one", info)
    bench.facts.was_put(call, info)
    assert bench.broken is None


def test_unrequested_changes_are_found(bench: Bench) -> None:
    bench.put()
    bench.put("two", replace=False)
    assert bench.broken == "a_change_is_what_was_asked_for"


def test_a_sweep_that_deletes_an_object_is_found(bench: Bench) -> None:
    bench.put()
    bench.facts.begin("two", "sweep")
    bench.read("two")
    bench.write("two", None)
    assert bench.broken == "a_change_is_what_was_asked_for"


def test_a_change_after_the_end_of_a_call_is_found(bench: Bench) -> None:
    bench.put()
    bench.read("one")
    bench.write("one", None)
    assert bench.broken == "a_change_is_what_was_asked_for"


def test_an_agreement_is_valid_for_one_version(bench: Bench) -> None:
    first = bench.put()
    call = bench.facts.begin_put("two", NAME, "two/x", DATA)
    call.approved.add(first.metadata[PUT_KEY])
    bench.read("two")
    bench.write("two", bench.info("two/x", 50))
    assert bench.broken is None
    bench.put()
    bench.read("two")
    bench.write("two", bench.info("two/x", 50))
    assert bench.broken == "a_change_is_what_was_asked_for"


def test_a_deleted_ledger_of_an_object_is_found(bench: Bench) -> None:
    bench.drop(bench.put())
    assert bench.broken == "an_object_keeps_its_ledger"


def test_a_ledger_deleted_before_its_put_returns_is_found(bench: Bench) -> None:
    call, info = bench.publish()
    bench.drop(info)
    assert bench.broken is None
    bench.facts.was_put(call, info)
    assert bench.broken == "an_object_keeps_its_ledger"


def test_a_successful_put_that_stored_nothing_is_found(bench: Bench) -> None:
    call = bench.facts.begin_put("one", NAME, "one/x", DATA)
    bench.facts.was_put(call, bench.info("one/x", 50))
    assert bench.broken == "an_object_is_there"


def test_a_refused_put_that_stored_an_object_is_found(bench: Bench) -> None:
    call, _ = bench.publish()
    bench.facts.was_not_put(call, MetadataUnavailableError("lost"))
    assert bench.broken is None
    bench.facts.was_not_put(call, ObjectExistsError("it was not changed"))
    assert bench.broken == "what_was_refused_is_not_done"


def test_a_refused_put_may_only_report_its_own_undo(bench: Bench) -> None:
    call, _ = bench.publish()
    bench.read("one")
    bench.write("one", None)
    bench.put("two")
    bench.facts.was_not_put(call, NoSuchLedgerError("a sweep has condemned its ledger"))
    assert bench.broken is None
    bench.facts.was_not_put(call, ObjectExistsError("it was not changed"))
    assert bench.broken == "what_was_refused_is_not_done"


def test_a_successful_deletion_without_effect_is_found(bench: Bench) -> None:
    bench.put()
    call = bench.facts.begin("two", "delete", NAME)
    bench.read("two")
    bench.facts.was_deleted(call, True)
    assert bench.broken == "a_deleted_object_is_gone"


def test_a_deletion_that_denies_an_existing_object_is_found(bench: Bench) -> None:
    bench.put()
    call = bench.facts.begin("two", "delete", NAME)
    bench.read("two")
    bench.facts.was_deleted(call, False)
    assert bench.broken == "an_object_is_there"


def test_a_read_of_a_former_version_is_found(bench: Bench) -> None:
    first = bench.put()
    bench.put()
    bench.facts.described(bench.facts.begin("two", "get", NAME), first)
    assert bench.broken == "a_version_is_the_present_one"


@pytest.mark.parametrize("error", [NoSuchObjectError("gone"), ObjectDamagedError("damaged")])
@pytest.mark.parametrize("opened", [False, True])
def test_a_denial_of_an_existing_object_is_found(
    bench: Bench, error: Exception, opened: bool
) -> None:
    info = bench.put()
    call = bench.facts.begin("two", "get", NAME)
    assert isinstance(error, NoSuchObjectError | ObjectDamagedError)
    bench.facts.was_not_read(call, error, info.metadata[PUT_KEY] if opened else None)
    assert bench.broken == "an_object_is_there"


def test_a_version_whose_put_has_not_returned_may_be_damaged(bench: Bench) -> None:
    """A sweep may delete the ledger of such a put, which then takes the version back."""
    _, info = bench.publish()
    bench.drop(info)
    call = bench.facts.begin("two", "get", NAME)
    bench.facts.was_not_read(call, ObjectDamagedError("its ledger was deleted"))
    assert bench.broken is None


def test_a_read_of_wrong_bytes_is_found(bench: Bench) -> None:
    info = bench.put()
    call = bench.facts.begin("two", "get", NAME)
    bench.facts.was_read(call, info, DATA[:-1], 0, None)
    assert bench.broken == "an_object_is_whole"


def test_a_wrong_object_size_is_found(bench: Bench) -> None:
    info = bench.put()
    other = bench.info(info.metadata[PUT_KEY], info.ledger_id, size=9)
    bench.facts.described(bench.facts.begin("two", "get", NAME), other)
    assert bench.broken == "an_object_is_whole"


def test_an_unordered_listing_is_found(bench: Bench) -> None:
    info = bench.put()
    call = bench.facts.begin("two", "list")
    bench.facts.were_listed(call, [info, info])
    assert bench.broken == "a_listing_is_in_order"


def test_a_listing_that_omits_an_object_is_found(bench: Bench) -> None:
    bench.put()
    bench.facts.were_listed(bench.facts.begin("two", "list"), [])
    assert bench.broken == "an_object_is_there"


def test_a_sweep_that_left_its_ledger_is_found(bench: Bench) -> None:
    info = bench.put()
    bench.facts.were_swept(bench.facts.begin("two", "sweep"), [info.ledger_id])
    assert bench.broken == "no_ledger_is_left_of_an_object"


@pytest.mark.long
def test_the_workload_uses_objects() -> None:
    plan = RunPlan.make(0, "objects")
    assert len(plan.objects) >= 3
    assert {f"objects-{one.number}" for one in plan.objects} <= plan.names
    assert simulate(0, "objects").failure is None
