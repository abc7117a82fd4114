"""Runs with streams: every invariant holds, runs can be repeated, and each invariant can fail."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from quire.codec.distributedlog.segment import StreamSegment
from quire_simulator import RunPlan, run_plan, simulate
from quire_simulator.streams import invariants as invariants
from quire_simulator.streams.facts import (
    ObservedStream,
    ReadRecord,
    Sent,
    WriterAttempt,
    producer_of,
    producer_payload,
)
from quire_simulator.streams.invariants import JudgedStream, ReaderPosition
from quire_simulator.streams.plans import STREAM_SHAPES, StreamPlan
from quire_simulator.streams.writers import StreamWriterActor
from tests.support.long import long_after

SEEDS = int(os.environ.get("QUIRE_SIM_SEEDS", "5"))
PLANS = 150
DIGEST_OF = "from quire_simulator import simulate; print(simulate({}, 'streams').trace_digest)"


@pytest.mark.parametrize("seed", long_after(2, range(SEEDS)))
def test_the_invariants_of_streams_hold(seed: int) -> None:
    result = simulate(seed, "streams")
    assert result.failure is None, (result.failure, list(map(str, result.schedule)))


@pytest.mark.long
def test_the_same_seed_gives_the_same_run() -> None:
    one, other = simulate(3, "streams", trace=True), simulate(3, "streams", trace=True)
    assert one == other
    found = subprocess.run(
        [sys.executable, "-c", DIGEST_OF.format(3)],
        env={**os.environ, "PYTHONHASHSEED": "5"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert found.stdout.strip() == one.trace_digest


def all_plans() -> list[StreamPlan]:
    return [plan for seed in range(PLANS) for plan in RunPlan.make(seed, "streams").streams]


def test_the_seeds_create_streams_of_every_kind() -> None:
    plans = all_plans()
    assert {plan.kind for plan in plans} == {"stream", "machine"}
    assert {plan.txids for plan in plans} == {"time", "given"}
    assert {plan.compression for plan in plans} == {"none", "lz4"}
    assert {plan.shape for plan in plans} == set(STREAM_SHAPES)
    assert {s.end for plan in plans for s in plan.streamers} == {"close", "abandon", "leave"}
    for some in (
        "retention_ms", "retention_bytes", "producers", "tokens", "ends", "follows_s", "scans_s",
        "truncations_s", "rename_s", "remove_s",
    ):  # fmt: skip
        assert any(getattr(plan, some) for plan in plans), some
    assert any(RunPlan.make(seed, "all").streams for seed in range(PLANS))
    targets = {f.target for seed in range(PLANS) for f in RunPlan.make(seed, "streams").schedule}
    assert {"stream-0", "streamer-0.0", "tailer-0.0", "scanner-0.0"} <= targets


def test_a_plan_without_some_of_its_streams_can_run() -> None:
    plan = next(p for p in (RunPlan.make(n, "streams") for n in range(50)) if len(p.streams) > 2)
    assert run_plan(replace(plan, streams=plan.streams[1:])).failure is None
    first = replace(plan.streams[0], streamers=plan.streams[0].streamers[:1], follows_s=())
    assert run_plan(replace(plan, streams=(first,), schedule=())).failure is None
    assert run_plan(replace(plan, streams=())).failure is None


# -- the invariants
# ----------------------------------------------------------------------------------


def facts_of(*payloads: bytes, **what: object) -> ObservedStream:
    """Return a stream to which one writer appended these records, one per entry, and which was
    read.
    """
    plan = next(p for p in all_plans() if p.kind == "stream" and not p.retained)
    facts = ObservedStream(plan)
    handle = WriterAttempt("a", 0, begun=1, opened=2)
    facts.handles.append(handle)
    for number, payload in enumerate(payloads):
        sent = Sent(payload, handle, begun=3 + number, txid=number, sequence=number)
        facts.sent[payload] = [sent]
        handle.sent.append(sent)
        facts.acked[payload] = DLSN(1, number, 0)
        facts.log[number] = seen(payload, number)
        facts.places[payload] = number
    for name, value in what.items():
        setattr(facts, name, value)
    return facts


def seen(payload: bytes, number: int, **what: int) -> ReadRecord:
    return ReadRecord(
        payload, DLSN(1, what.get("entry", number), 0), what.get("txid", number), number
    )


@pytest.mark.parametrize(
    ("invariant", "reads"),
    [
        (invariants.only_what_was_appended_is_read, seen(b"x", 3)),
        (invariants.no_record_is_skipped, seen(b"c", 2)),
        (invariants.a_record_is_there_once, seen(b"a", 1)),
        (invariants.readers_agree, seen(b"a", 1)),
        (invariants.records_are_in_order, seen(b"b", 1, entry=0)),
        (invariants.records_are_in_order, seen(b"b", 1, txid=3)),
        (invariants.a_record_is_what_its_writer_said, seen(b"b", 1, entry=7)),
        (invariants.a_record_is_what_its_writer_said, seen(b"b", 2, entry=1, txid=1)),
        (invariants.a_record_is_what_its_writer_said, seen(b"b", 1, txid=2)),
    ],
    ids=lambda what: getattr(what, "__name__", ""),
)
def test_a_wrong_record_in_a_reader_is_found(
    invariant: invariants.ReadInvariant, reads: ReadRecord
) -> None:
    view = ReaderPosition("reader", DLSN(1, 0, 0), upcoming=1)
    assert invariant(facts_of(b"a", b"b", b"c"), view, seen(b"b", 1)) is None
    assert invariant(facts_of(b"a", b"b", b"c"), view, reads) is not None


def test_a_reader_that_starts_too_late_or_too_early_is_found() -> None:
    facts = facts_of(b"a", b"b", b"c")
    begun = ReaderPosition("reader", DLSN(1, 1, 0))
    assert invariants.no_record_is_skipped(facts, begun, seen(b"b", 1)) is None
    assert "did not receive 1:1:0" in (
        invariants.no_record_is_skipped(facts, begun, seen(b"c", 2)) or ""
    )
    assert "but received 1:0:0" in (
        invariants.no_record_is_skipped(facts, begun, seen(b"a", 0)) or ""
    )
    facts.asked = DLSN(1, 2, 0)
    assert invariants.no_record_is_skipped(facts, begun, seen(b"c", 2)) is None


def test_a_reader_that_skips_a_lost_segment_is_found() -> None:
    """The next segment begins with a later number. Only a reader that knew the end misses nothing.

    A seed of the workload `damaged` found a reader that had read the ledger to its end before
    somebody deleted it.
    """
    facts = facts_of(b"a", b"b", b"c")
    facts.destroyed.add(1)
    after = ReadRecord(b"d", DLSN(2, 0, 0), 9, 1_000)
    at_the_end = ReaderPosition("reader", DLSN(1, 0, 0), upcoming=3)
    facts.positions.update({one.position: one.payload for one in facts.log.values()})
    assert invariants.no_record_is_skipped(facts, at_the_end, after) is None
    before_it = ReaderPosition("reader", DLSN(1, 0, 0), upcoming=2)
    assert invariants.no_record_is_skipped(facts, before_it, after) is not None
    facts.destroyed.clear()
    assert invariants.no_record_is_skipped(facts, at_the_end, after) is not None


def test_a_wrong_acknowledgement_of_a_writer_is_found() -> None:
    facts = facts_of(b"a", b"b")
    old, sent = facts.handles[0], facts.sent[b"b"][0]
    at = DLSN(1, 1, 0)
    for invariant in invariants.ACK_INVARIANTS:
        assert invariant(facts, sent, at) is None
    assert invariants.told_positions_are_true(facts, sent, DLSN(1, 5, 0))
    facts.handles.append(WriterAttempt("b", 1, begun=3, opened=4))
    assert facts.handles[1].follows(old)
    assert invariants.a_successor_ends_the_writer(facts, sent, at)
    assert invariants.a_successor_ends_the_writer(facts, sent, None) is None
    facts.ended = sent.begun
    assert invariants.an_ended_stream_takes_no_more(facts, sent, at)
    sent.refused = True
    assert invariants.what_was_refused_is_not_there(facts, sent, at)


def completed(number: int, start: int, count: int = 2) -> StreamSegment:
    return StreamSegment(number, 10 + number, 1).completed(
        last_txid=1, record_count=count, last_entry_id=1, last_slot_id=0, completion_time_ms=5,
        start_sequence_id=start,
    )  # fmt: skip


GOOD = {s.name: s for s in (completed(1, 0), completed(2, 2), StreamSegment(3, 13, 1))}


@pytest.mark.parametrize(
    ("invariant", "change"),
    [
        (
            invariants.numbers_of_segments_have_no_hole,
            lambda nodes: nodes.pop(completed(2, 2).name),
        ),
        (
            invariants.only_the_newest_segment_is_open,
            lambda nodes: nodes.update(other=StreamSegment(1, 11, 1)),
        ),
        (
            invariants.sequence_ids_have_no_hole,
            lambda nodes: nodes.update({completed(2, 3).name: completed(2, 3)}),
        ),
        (
            invariants.a_completed_segment_stays_as_it_is,
            lambda nodes: nodes.update({completed(2, 2, 5).name: completed(2, 2, 5)}),
        ),
        (
            invariants.only_what_was_asked_for_is_truncated,
            lambda nodes: nodes.update({completed(1, 0).name: completed(1, 0).truncated()}),
        ),
        (
            invariants.a_segment_goes_when_it_is_truncated,
            lambda nodes: nodes.pop(completed(1, 0).name),
        ),
    ],
    ids=lambda what: getattr(what, "__name__", ""),
)
def test_incorrect_stream_metadata_is_found(
    invariant: invariants.MetadataInvariant, change: Callable[[dict[str, StreamSegment]], object]
) -> None:
    after = dict(GOOD)
    assert invariant(facts_of(), GOOD, after) is None
    change(after)
    assert invariant(facts_of(), GOOD, after) is not None


def test_a_truncation_that_is_undone_is_found() -> None:
    whole = {"s": completed(1, 0).truncated()}
    part = {"s": completed(1, 0).partially_truncated(DLSN(1, 1, 0))}
    invariant = invariants.truncation_never_goes_back
    assert invariant(facts_of(), part, whole) is None
    assert invariant(facts_of(), whole, part)
    assert invariant(facts_of(), part, {"s": completed(1, 0)})


def test_an_incorrect_end_of_a_stream_is_found() -> None:
    payloads = [b"a", producer_payload("p0", 0), b"b", producer_payload("p0", 1)]
    records = [seen(payload, number) for number, payload in enumerate(payloads)]
    whole = JudgedStream(DLSN(1, 0, 0), records)
    facts = facts_of(*payloads)
    facts.producers["p0"] = 1
    for invariant in invariants.END_INVARIANTS:
        assert invariant(facts, whole) is None, invariant.__name__

    assert invariants.what_was_read_is_there(facts, replace(whole, records=records[:-1]))
    facts.acked[b"lost"] = DLSN(1, 9, 0)
    assert invariants.an_acknowledged_record_is_there(facts, whole)
    assert (
        invariants.an_acknowledged_record_is_there(facts, replace(whole, oldest=DLSN(2, 0, 0)))
        is None
    )
    assert invariants.the_first_record_is_number_0(facts, replace(whole, records=records[1:]))
    facts.producers["p0"] = 2
    assert invariants.producers_are_in_the_stream_without_a_gap(facts, whole)
    assert invariants.producers_are_in_the_stream_without_a_gap(
        facts_of(), replace(whole, records=[records[3]])
    )
    [handle] = facts.handles
    handle.sent.insert(0, Sent(b"gone", handle, 0))
    assert invariants.what_a_writer_sent_is_there_up_to_some_record(facts, whole)
    handle.sent.reverse()
    assert invariants.a_writer_s_records_are_in_its_order(facts, whole)


def test_mixed_records_of_two_writers_are_found() -> None:
    facts = facts_of(b"a", b"b", b"c")
    [old] = facts.handles
    new = WriterAttempt("b", 1, begun=9, opened=10)
    new.sent.append(old.sent.pop(1))
    facts.handles.append(new)
    assert invariants.writers_come_one_after_the_other(facts, JudgedStream(DLSN(1, 0, 0), []))
    old.sent.pop()
    assert (
        invariants.writers_come_one_after_the_other(facts, JudgedStream(DLSN(1, 0, 0), [])) is None
    )


@pytest.mark.parametrize("taken", [False, True])
def test_a_cancelled_append_that_waited_for_space_appended_no_record(taken: bool) -> None:
    """A seed of `damaged` with a small buffer counted such a record as acknowledged."""
    facts = facts_of(b"a")
    writer, chance = SimpleNamespace(next_sequence=1), random.Random(0)
    writer_plan = facts.plan.streamers[0]
    actor = StreamWriterActor(Any, writer, facts.handles[0], facts, writer_plan, chance)  # type: ignore[arg-type]
    chance.random = lambda: 0.0  # type: ignore[method-assign]
    sent = [Sent(b"b", facts.handles[0], begun=9, sequence=1)]

    async def append() -> None:
        writer.next_sequence += taken
        await asyncio.Event().wait()

    assert asyncio.run(actor._outcome(sent, append())) is None
    assert sent[0].refused is not taken
    assert actor._cancelled == (sent if taken else [])


def test_a_payload_identifies_its_producer() -> None:
    assert producer_of(producer_payload("p1.2.0", 17)) == ("p1.2.0", 17)
    assert producer_of(b"w1/2.") is None
