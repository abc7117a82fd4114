"""Several sinks publish to one stream: every interleaving of two commits, and of their crashes.

A fault point is a step of one commit before which the other program does something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import (
    LedgerClosedError,
    MetadataDeniedError,
    MetadataUnavailableError,
    NoSuchStreamError,
    StreamConditionError,
    StreamEndedError,
    StreamError,
    StreamFencedError,
    StreamQuotaError,
    TxidOrderError,
)
from quire.streams.namespace import namespace
from quire.streams.namespace.claim_stamp import claimant, is_sink, sink_stamp
from quire.streams.namespace.job_plans import job_plans
from quire.streams.namespace.settings import StreamSettings
from quire.streams.ownership import orphans
from quire.streams.ownership.orphans import delete_orphans, find_orphans
from quire.streams.publish import plans, publishing, stream_end
from quire.streams.publish.publishing import (
    BatchKey,
    BuiltSegment,
    SegmentBuilder,
    StreamBatch,
    abort,
    begin,
    publish,
    take,
    withdraw,
)
from quire.streams.publish.segment_builder import JOB_KEY
from quire.streams.write.producers import read_marks
from quire.streams.write.segments import APPLICATION
from quire.streams.write.takeover import take_over
from tests.support.streams import Bench, run

A = BatchKey("a", "query-a", 0)
B = BatchKey("b", "query-b", 0)
JOB = BatchKey.of_job("nightly")
STEPS = ("read_published", "merge", "_check", "_commit")
"""The steps of a commit, in order."""
Action = Callable[[], Awaitable[object]]


class CrashError(Exception):
    """The driver died here, because the test decided so."""


async def build(
    b: Bench, batch: StreamBatch, payloads: list[bytes], txids: list[int] | None = None
) -> BuiltSegment:
    builder = SegmentBuilder(
        b.client, f"{b.streams.path}/s", StreamSettings(**batch.settings),
        job=batch.key.job, life=batch.life, snapshot=batch.snapshot,
    )  # fmt: skip
    await builder.append(payloads, txids or [batch.txid] * len(payloads))
    built = await builder.close()
    assert built is not None
    return built


async def planned(b: Bench, key: BatchKey, **how: Any) -> StreamBatch:
    batch = await begin(b.streams, "s", key, **how)
    assert batch is not None
    return batch


async def published(b: Bench, key: BatchKey, *rows: bytes, **how: Any) -> list[StreamSegment]:
    batch = await planned(b, key, **how)
    return await publish(b.streams, "s", batch, [await build(b, batch, list(rows))])


async def check(b: Bench, *rows: bytes) -> None:
    """Check the records, their order, and that no ledger is left over."""
    found = await b.read("s")
    assert [r.payload for r in found] == list(rows)
    assert [r.sequence for r in found] == list(range(len(rows)))
    assert [r.txid for r in found] == sorted(r.txid for r in found)
    segments = await b.streams.segments("s")
    assert [s.lssn for s in segments] == list(range(1, len(segments) + 1))
    assert sorted(await b.ledgers()) == sorted(s.ledger_id for s in segments)
    for former, later in pairwise(segments):
        assert former.last_txid <= later.first_txid


def before(
    monkeypatch: pytest.MonkeyPatch, step: str, action: Action, *, times: int = 1
) -> list[int]:
    """Do something each of the first `times` times that a commit reaches the step.

    The list has one item for each time that the step was reached by the commit.
    """
    real, inside = getattr(publishing, step), False
    reached: list[int] = []

    async def faulty(*arguments: Any, **named: Any) -> Any:
        nonlocal inside
        if not inside:
            reached.append(len(reached))
            if len(reached) <= times:
                inside = True
                try:
                    await action()
                finally:
                    inside = False
        return await real(*arguments, **named)

    monkeypatch.setattr(publishing, step, faulty)
    return reached


# -- two sinks --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("key", [A, JOB])
@pytest.mark.parametrize("early", [False, True], ids=["plans in the step", "planned before"])
def test_a_commit_succeeds_if_another_sink_publishes_during_any_step(
    monkeypatch: pytest.MonkeyPatch, step: str, parts: int, key: BatchKey, early: bool
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        other = await planned(b, B) if early else None
        await asyncio.sleep(0.01)
        batch = await planned(b, key)
        built = [await build(b, batch, [b"a%d" % k]) for k in range(parts)]

        async def publishes() -> None:
            theirs = other or await planned(b, B)
            await publish(b.streams, "s", theirs, [await build(b, theirs, [b"b"])])

        reached = before(monkeypatch, step, publishes)
        segments = await publish(b.streams, "s", batch, built)
        assert reached
        assert len(segments) == 1
        await check(b, b"b", *[b"a%d" % k for k in range(parts)])
        assert b.client.counters.stream_commits_retried == 1
        assert await begin(b.streams, "s", key) is None

    run(scene)


def test_the_plan_of_one_sink_does_not_disturb_other_sinks() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        await planned(b, B)
        await planned(b, JOB)
        await publish(b.streams, "s", batch, [await build(b, batch, [b"a"])])
        assert b.client.counters.stream_commits_retried == 0
        await check(b, b"a")

    run(scene)


def test_concurrent_sinks_keep_the_order_of_each_sink(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quire.streams")

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_bytes": 10_000_000})

        async def query(name: str) -> None:
            for number in range(10):
                key = BatchKey(name, f"query-{name}", number)
                await published(b, key, f"{name}{number}.0".encode(), f"{name}{number}.1".encode())
                await b.streams.retain("s")

        await asyncio.gather(*map(query, "abcd"))
        found = [r.payload.decode() for r in await b.read("s")]
        for name in "abcd":
            mine = [one for one in found if one[0] == name]
            assert mine == [f"{name}{n}.{k}" for n in range(10) for k in range(2)]
        retried = b.client.counters.stream_commits_retried
        events = [r for r in caplog.records if getattr(r, "event", "") == "stream_commit_retried"]
        assert len(events) == retried > 0
        await check(b, *[one.encode() for one in found])

    run(scene)


def test_a_commit_that_always_loses_the_race_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "COMMIT_LIMIT_S", 3.0)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a"]), await build(b, batch, [b"a"])]
        numbers = iter(range(1_000))

        async def faster() -> None:
            await published(b, replace(B, number=next(numbers)), b"b")

        reached = before(monkeypatch, "_commit", faster, times=1_000)
        with pytest.raises(
            StreamFencedError, match="other sinks published first during each"
        ) as caught:
            await publish(b.streams, "s", batch, built)
        assert caught.value.outcome_known
        assert len(reached) > 3
        assert await abort(b.streams, "s", batch, built)
        await check(b, *[b"b"] * len(reached))

    run(scene)


# -- crashes inside of commits ----------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("other", ["before the crash", "after the crash", "not at all"])
def test_a_driver_that_restarts_after_dying_before_any_step_publishes_once(
    monkeypatch: pytest.MonkeyPatch, step: str, other: str
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]

        async def dies() -> None:
            if other == "before the crash":
                await published(b, B, b"b")
            raise CrashError

        with monkeypatch.context() as patch:
            before(patch, step, dies)
            with pytest.raises(CrashError):
                await publish(b.streams, "s", batch, built)
        if other == "after the crash":
            await published(b, B, b"b")
        await published(b, A, b"a0", b"a1")
        for ledger in built:
            await b.client.delete_ledger(ledger.ledger_id)  # as a sweep does
        named = {segment.ledger_id for segment in await b.streams.segments("s")}
        for ledger_id in set(await b.ledgers()) - named:
            await b.client.delete_ledger(ledger_id)
        await check(b, *([] if other == "not at all" else [b"b"]), b"a0", b"a1")

    run(scene)


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("end", ["crash", "lost reply"])
def test_a_driver_that_dies_after_the_transaction_publishes_once(
    monkeypatch: pytest.MonkeyPatch, follows: bool, end: str
) -> None:
    """The driver restarts or retries. Another sink may have published in between."""
    real = publishing._commit

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]

        async def ends(*arguments: Any) -> None:
            await real(*arguments)
            monkeypatch.setattr(publishing, "_commit", real)
            if follows:
                await published(b, B, b"b")
            raise CrashError if end == "crash" else MetadataUnavailableError("lost")

        monkeypatch.setattr(publishing, "_commit", ends)
        with pytest.raises(CrashError if end == "crash" else MetadataUnavailableError):
            await publish(b.streams, "s", batch, built)
        if end == "crash":
            assert await begin(b.streams, "s", A) is None
            await abort(b.streams, "s", batch, built)
        else:
            segments = await publish(b.streams, "s", batch, built)
            assert [s.record_count for s in segments] == [2]
        await check(b, b"a0", b"a1", *([b"b"] if follows else []))

    run(scene)


def test_a_commit_with_a_lost_reply_publishes_once_beside_another_sink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]
        tree, real = b.client.metadata.tree, b.client.metadata.tree.commit
        lost = False

        async def commit(*operations: Any) -> None:
            nonlocal lost
            await real(*operations)
            if not lost and any(one.path.endswith("quire-writers/a") for one in operations):
                lost = True
                await published(b, B, b"b")
                raise MetadataUnavailableError("the reply is lost")

        monkeypatch.setattr(tree, "commit", commit)
        segments = await publish(b.streams, "s", batch, built)
        assert lost
        assert [s.lssn for s in segments] == [1]
        await check(b, b"a0", b"a1", b"b")

    run(scene)


def test_a_sink_that_dies_during_a_takeover_from_a_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"w")

        async def dies(*arguments: Any, **named: Any) -> None:
            raise CrashError

        with monkeypatch.context() as patch:
            patch.setattr("quire.streams.write.takeover.complete", dies)
            with pytest.raises(CrashError):
                await take(b.streams, "s", A)
        assert await b.numbers("s") == [-1]
        await published(b, B, b"b")
        await published(b, A, b"a")
        await check(b, b"w", b"b", b"a")

    run(scene)


def test_concurrent_sinks_take_the_stream_over_from_a_writer() -> None:
    async def scene(b: Bench) -> None:
        writer = await b.streams.open_writer("s", create=True)
        await writer.append(b"w")
        keys = [BatchKey(name, name, 0) for name in "cdef"]
        await asyncio.gather(*[published(b, key, key.writer.encode()) for key in keys])
        found = [r.payload for r in await b.read("s")]
        assert found[0] == b"w"
        assert sorted(found[1:]) == [b"c", b"d", b"e", b"f"]
        await check(b, *found)

    run(scene)


# -- the end of a plan ------------------------------------------------------------------------


@pytest.mark.parametrize("key", [A, JOB])
@pytest.mark.parametrize("step", STEPS)
def test_an_abort_during_any_step_ends_a_commit_that_retries(
    monkeypatch: pytest.MonkeyPatch, step: str, key: BatchKey
) -> None:
    """Another sink publishes too, so that the commit has to be tried again."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, key)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]

        async def aborts() -> None:
            assert await abort(b.streams, "s", batch, built)
            await published(b, B, b"b")

        before(monkeypatch, step, aborts)
        with pytest.raises((StreamError, StreamFencedError)):
            await publish(b.streams, "s", batch, built)
        await check(b, b"b")
        await published(b, key, b"again")
        await check(b, b"b", b"again")

    run(scene)


def test_an_abort_before_the_retried_transaction_ends_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledgers exist when the commit looks, and are deleted before its transaction."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a"], [batch.txid + 60_000])]  # is not copied
        await published(b, B, b"b")

        async def aborts() -> None:
            assert await abort(b.streams, "s", batch, built)

        before(monkeypatch, "_commit", aborts)
        with pytest.raises(StreamFencedError, match="its plan has ended") as caught:
            await publish(b.streams, "s", batch, built)
        assert caught.value.outcome_known
        await check(b, b"b")

    run(scene)


@pytest.mark.parametrize("step", STEPS)
def test_the_next_driver_of_a_writer_fences_the_former_one(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        zombie = await planned(b, A)
        built = [await build(b, zombie, [b"old"]), await build(b, zombie, [b"old"])]
        batches: list[StreamBatch] = []

        async def begins() -> None:
            batches.append(await planned(b, A))

        before(monkeypatch, step, begins)
        with pytest.raises(StreamFencedError, match="another driver of the same writer") as caught:
            await publish(b.streams, "s", zombie, built)
        assert caught.value.outcome_known
        assert await abort(b.streams, "s", zombie, built)
        new = [await build(b, batches[0], [b"new"])]
        await publish(b.streams, "s", batches[0], new)
        await check(b, b"new")

    run(scene)


def test_the_oldest_plan_of_a_job_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "OPEN_JOBS_MAX", 2)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        first = await planned(b, BatchKey.of_job("0"))
        await published(b, BatchKey.of_job("1"), b"1")  # its plan is deleted by its publication
        rest = []
        for name in "23":
            await asyncio.sleep(1)
            rest.append(await planned(b, BatchKey.of_job(name)))
        built = [await build(b, first, [b"0"])]
        with pytest.raises(StreamFencedError, match="its plan has ended") as caught:
            await publish(b.streams, "s", first, built)
        assert caught.value.outcome_known
        await abort(b.streams, "s", first, built)
        for batch in rest:
            await publish(b.streams, "s", batch, [await build(b, batch, [b"%d" % len(rest)])])
        await check(b, b"1", b"2", b"2")
        left = await b.client.metadata.tree.children(
            f"{b.streams.metadata('s').paths.root}/{plans.PLANS}"
        )
        assert left == []

    run(scene)


@pytest.mark.parametrize("step", STEPS)
def test_a_stream_that_is_created_again_does_not_get_the_batch(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]

        async def again() -> None:
            await b.streams.delete_stream("s")
            await b.streams.create_stream("s")
            await take(b.streams, "s", A)  # its plan has the same path and version

        before(monkeypatch, step, again)
        with pytest.raises((NoSuchStreamError, StreamFencedError)):
            await publish(b.streams, "s", batch, built)
        assert await b.read("s") == []

    run(scene)


def test_a_job_without_batches_leaves_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job once left a plan, until a thousand of them prevented a rename of the stream."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        root = b.streams.metadata("s").paths.root

        async def left() -> list[str]:
            return await job_plans(b.client.metadata.tree, root)

        batch = await planned(b, JOB)
        assert len(await left()) == 1
        await withdraw(b.streams, "s", batch)
        assert await left() == []
        await withdraw(b.streams, "s", batch)  # It may be repeated.
        with pytest.raises(StreamConditionError):
            await begin(b.streams, "s", JOB, token="t")
        assert await left() == [], "the planning failed"
        real = publishing.take

        async def late(*arguments: Any, **named: Any) -> StreamBatch:
            made = await real(*arguments, **named)
            monkeypatch.setattr(publishing, "take", real)
            await published(b, JOB, b"a")
            return made

        monkeypatch.setattr(publishing, "take", late)
        assert await begin(b.streams, "s", JOB) is None, "another driver has published it"
        assert await left() == []
        query = await planned(b, A)
        await withdraw(b.streams, "s", query)
        await publish(b.streams, "s", query, [await build(b, query, [b"b"])])
        await check(b, b"a", b"b")

    run(scene)


def test_the_plans_of_killed_jobs_do_not_prevent_a_rename(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error told the user to truncate the stream, which did not help."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        await published(b, JOB, b"a")
        running = [await planned(b, BatchKey.of_job(str(n))) for n in range(30)]
        metadata, target = b.streams.metadata("s"), b.streams.metadata("t")
        creates, deletes = await b.streams._moves(metadata.paths, target.paths.root)
        nodes = len(creates)
        assert len(deletes) == nodes + len(running)
        limit = 2 * nodes + namespace.FENCED_OPERATIONS + 10
        assert limit < nodes + len(deletes)
        monkeypatch.setattr(namespace, "COMMIT_OPERATIONS_MAX", limit)
        real, late = b.streams._rename, []

        async def renames(*arguments: Any) -> Any:
            if not await job_plans(b.client.metadata.tree, metadata.paths.root):
                late.append(await planned(b, BatchKey.of_job("late")))
            return await real(*arguments)

        b.streams._rename = renames  # type: ignore[method-assign]
        await b.streams.rename_stream("s", "t")
        assert len(late) == 1
        assert await job_plans(b.client.metadata.tree, target.paths.root) == []
        assert [r.payload for r in await b.read("t")] == [b"a"]
        for batch in (running[0], running[-1], late[0]):
            with pytest.raises(NoSuchStreamError):
                await publish(b.streams, "s", batch, [])
            await abort(b.streams, "s", batch, [])

    run(scene)


@pytest.mark.parametrize("key", [A, JOB])
def test_an_abort_leaves_the_plan_of_a_stream_that_was_created_again(key: BatchKey) -> None:
    """Both plans of a writer have the same path and version."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        old = await planned(b, key)
        await b.streams.delete_stream("s")
        await b.streams.create_stream("s")
        new = await planned(b, key)
        built = [await build(b, new, [b"new"])]
        await abort(b.streams, "s", old, [])
        await publish(b.streams, "s", new, built)
        await check(b, b"new")

    run(scene)


@pytest.mark.parametrize("early", [True, False], ids=["planned", "planning"])
def test_a_commit_that_always_loses_the_claim_reports_that_nothing_was_published(
    monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """The error said that records may be in the stream, although nothing was published."""
    monkeypatch.setattr(stream_end, "TAKE_ATTEMPTS", 2)

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A, fence_writers=True) if early else None
        built = [] if batch is None else [await build(b, batch, [b"a"])]
        writer = await b.streams.open_writer("s")
        await writer.append(b"w")

        async def taken(*arguments: object, **named: object) -> None:
            raise b.streams.metadata("s")._fenced()

        monkeypatch.setattr(stream_end, "take_over", taken)
        with pytest.raises(StreamFencedError, match=r"of 2 attempts\. Nothing was") as caught:
            await (planned(b, A) if batch is None else publish(b.streams, "s", batch, built))
        assert caught.value.outcome_known
        assert "may or may not" not in str(caught.value)

    run(scene)


def test_every_error_that_refuses_a_batch_has_a_known_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of a bookie while small ledgers are merged says nothing about the stream."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]

        async def fails(*arguments: object) -> None:
            raise LedgerClosedError("closed by another client")

        monkeypatch.setattr(publishing, "_copy", fails)
        with pytest.raises(LedgerClosedError) as caught:
            await publish(b.streams, "s", batch, built)
        assert caught.value.outcome_known
        assert await abort(b.streams, "s", batch, built)
        await check(b)

    run(scene)


# -- writers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("appends", [False, True])
def test_a_writer_that_took_over_is_not_fenced_without_permission(
    monkeypatch: pytest.MonkeyPatch, step: str, appends: bool
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]
        writers = []

        async def opens() -> None:
            writers.append(await b.streams.open_writer("s"))
            if appends:
                await writers[0].append(b"w")

        before(monkeypatch, step, opens)
        with pytest.raises(
            StreamFencedError, match=r"a writer \(session 0x.* took the stream"
        ) as caught:
            await publish(b.streams, "s", batch, built)
        assert caught.value.outcome_known
        assert await abort(b.streams, "s", batch, built)
        await writers[0].append(b"still")
        await writers[0].close()
        await check(b, *([b"w"] if appends else []), b"still")

    run(scene)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("appends", [False, True])
def test_a_writer_that_took_over_is_fenced_with_permission(
    monkeypatch: pytest.MonkeyPatch, step: str, appends: bool
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A, fence_writers=True)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]
        writers = []

        async def opens() -> None:
            await asyncio.sleep(1)
            writers.append(await b.streams.open_writer("s"))
            if appends:
                await writers[0].append(b"w")

        before(monkeypatch, step, opens)
        await publish(b.streams, "s", batch, built)
        with pytest.raises(StreamFencedError):
            await writers[0].append(b"no")
        found = [r.payload for r in await b.read("s")]
        assert found == [*([b"w"] if appends else []), b"a0", b"a1"]
        await published(b, B, b"b")
        assert [s.lssn for s in await b.streams.segments("s")] == [1, 2, 3][: 2 + appends]

    run(scene)


def test_a_batch_follows_a_writer_that_another_sink_has_fenced() -> None:
    """Nobody is fenced by that, so that no permission is needed."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a"])]
        async with await b.streams.open_writer("s") as writer:
            await writer.append(b"w")
        await published(b, B, b"b")
        await publish(b.streams, "s", batch, built)
        await check(b, b"w", b"b", b"a")

    run(scene)


def test_the_producers_and_the_token_of_a_writer_in_between_are_kept() -> None:
    async def scene(b: Bench) -> None:
        async with await b.streams.open_writer("s", create=True) as writer:
            await (await writer.producer("till")).append(b"w1", 1)
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a"], [batch.txid + 600_000])]
        async with await b.streams.open_writer("s") as writer:
            await (await writer.producer("till")).append(b"w2", 2)
        await published(b, B, b"b")
        await publish(b.streams, "s", batch, built)
        newest = (await b.streams.segments("s"))[-1:]
        assert (await read_marks(b.client, newest, b"")).last_sequence("till") == 2
        async with await b.streams.open_writer("s") as writer:
            assert (await writer.producer("till")).last_sequence == 2
        await check(b, b"w1", b"w2", b"b", b"a")

        batch = await planned(b, replace(A, number=1))
        built = [await build(b, batch, [b"no"])]
        async with await b.streams.open_writer("s") as writer:
            await writer.set_fencing_token("t")
        await take(b.streams, "s", replace(B, number=1), token="t")
        with pytest.raises(StreamConditionError, match="does not have the fencing token ''"):
            await publish(b.streams, "s", batch, built)
        assert await abort(b.streams, "s", batch, built)

    run(scene)


def test_a_batch_is_refused_if_the_stream_was_ended_meanwhile() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A, fence_writers=True)
        built = [await build(b, batch, [b"a"])]
        writer = await b.streams.open_writer("s")
        await writer.append(b"w")
        await writer.end_stream()
        with pytest.raises(StreamEndedError):
            await publish(b.streams, "s", batch, built)
        assert await abort(b.streams, "s", batch, built)

    run(scene)


def test_a_program_that_ignores_sink_claims_is_treated_as_a_writer() -> None:
    """Its segment in progress appears under the claim of the sinks, which it leaves."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a"])]
        metadata = b.streams.metadata("s")
        claim = publishing._claim_of(batch.claim)
        ledger = await b.client.create_ledger()
        await metadata.allocate(claim, ledger.ledger_id)
        await metadata.change(claim, begin=StreamSegment(1, ledger.ledger_id, 0))
        with pytest.raises(StreamFencedError, match="a writer that is not Quire's") as caught:
            await publish(b.streams, "s", batch, built)
        assert caught.value.outcome_known
        assert await b.numbers("s") == [-1]
        ledger.abandon()

    run(scene)


# -- limits -----------------------------------------------------------------------------------


def test_two_sinks_with_given_txids_keep_the_txid_order() -> None:
    """The stream keeps the order of txids, so that the later commit needs the larger ones."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"txids": "given"})
        first, second = await planned(b, A), await planned(b, B)
        mine = [await build(b, first, [b"a"], [30])]
        await publish(b.streams, "s", second, [await build(b, second, [b"b"], [20])])
        await publish(b.streams, "s", first, mine)
        late = await planned(b, replace(B, number=1))
        assert late.txid == 30
        second = await planned(b, replace(A, number=1))
        await publish(b.streams, "s", second, [await build(b, second, [b"c"], [50])])
        built = [await build(b, late, [b"d"], [40])]
        with pytest.raises(TxidOrderError, match=r"txid 40 is less than txid 50 .*") as error:
            await publish(b.streams, "s", late, built)
        assert "let the stream assign txids by time" in str(error.value)
        assert await abort(b.streams, "s", late, built)
        await check(b, b"b", b"a", b"c")

    run(scene)


def test_the_quota_includes_bytes_that_other_sinks_published() -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"bytes_max": 2_000})
        first, second = await planned(b, A), await planned(b, B)
        mine = [await build(b, first, [b"a" * 1_200])]
        await publish(b.streams, "s", second, [await build(b, second, [b"b" * 1_200])])
        with pytest.raises(StreamQuotaError):
            await publish(b.streams, "s", first, mine)
        assert await abort(b.streams, "s", first, mine)
        await check(b, b"b" * 1_200)

    run(scene)


@pytest.mark.parametrize("step", STEPS)
def test_retention_of_one_sink_does_not_disturb_the_commit_of_another(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s", settings={"retention_bytes": 1})
        for number in range(3):
            await published(b, replace(B, number=number), b"b%d" % number)
        batch = await planned(b, A)
        built = [await build(b, batch, [b"a0"]), await build(b, batch, [b"a1"])]

        async def retains() -> None:
            await asyncio.gather(b.streams.retain("s"), b.streams.retain("s"))

        before(monkeypatch, step, retains)
        await publish(b.streams, "s", batch, built)
        assert b.client.counters.stream_commits_retried == 0
        found = await b.read("s")
        assert [r.payload for r in found] == [b"b2", b"a0", b"a1"]
        assert [r.sequence for r in found] == [2, 3, 4]

    run(scene)


def test_sink_claims_are_recognized_by_their_stamp() -> None:
    stamp = sink_stamp("1f-2", "writer/käse 1")
    assert is_sink(stamp)
    assert stamp.isascii()
    assert claimant(stamp) == "sink writer/käse 1 (session 0x1f of the metadata store)"
    assert not is_sink("1f-2")
    assert claimant("1f-2") == "a writer (session 0x1f of the metadata store)"
    assert claimant("") == "a writer (another program)"


def test_a_writer_holds_the_claim_of_a_stream_exclusively() -> None:
    async def scene(b: Bench) -> None:
        await published_stream(b)
        taken = await take_over(b.client, b.streams.metadata("s"), b"")
        assert not is_sink(taken.claim.stamp)
        await take(b.streams, "s", A)
        assert is_sink((await b.streams.metadata("s").shared_claim()).stamp)

    async def published_stream(b: Bench) -> None:
        await b.streams.create_stream("s")
        await published(b, B, b"b")

    run(scene)


# -- the search for orphans -------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("key", [A, JOB])
def test_a_batch_whose_ledgers_are_swept_is_not_published(
    monkeypatch: pytest.MonkeyPatch, step: str, key: BatchKey
) -> None:
    """The stream named ledgers that were gone, because a commit was not ended by the sweep."""

    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, key)
        built = await build(b, batch, [b"lost"])

        async def sweep() -> None:
            found = await find_orphans(b.client, 0)
            assert [one.ledger_id for one in found] == [built.ledger_id]
            assert await delete_orphans(b.client, found) == []

        before(monkeypatch, step, sweep)
        with pytest.raises((StreamFencedError, StreamError)):
            await publish(b.streams, "s", batch, [built])
        await check(b)
        # The next batch is published.
        again = await planned(b, key)
        await publish(b.streams, "s", again, [await build(b, again, [b"kept"])])
        await check(b, b"kept")

    run(scene)


def test_a_sweep_keeps_plans_that_are_newer_than_its_age_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        batch = await planned(b, A)
        await build(b, batch, [b"orphan"])
        found = await find_orphans(b.client, 0)
        monkeypatch.setattr(orphans, "CLOCK_SKEW_S", 0.0)
        await asyncio.sleep(1)
        later, job = await planned(b, A), await planned(b, JOB)
        built = await build(b, later, [b"kept"])
        assert await delete_orphans(b.client, found) == []
        await publish(b.streams, "s", later, [built])
        assert await publish(b.streams, "s", job, []) == []

    run(scene)


def test_a_ledger_with_an_invalid_stream_path_does_not_end_a_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its metadata can say anything, and the plans of a stream may be denied."""
    end = orphans.end_old_plans

    async def denied(tree: Any, root: str, until_ms: int) -> None:
        if "/denied/" in root:
            raise MetadataDeniedError("ZooKeeper denies access")
        await end(tree, root, until_ms)

    async def scene(b: Bench) -> None:
        made = []
        for stream in ("/acme/test//a", "/acme/test/denied", "/acme/test/b"):
            custom = {**APPLICATION, "stream": stream.encode(), JOB_KEY: b"/job/0"}
            ledger = await b.client.create_ledger(custom=custom)
            ledger.abandon()
            made.append(ledger.ledger_id)
        left = await delete_orphans(b.client, await find_orphans(b.client, 0))
        assert [(one.orphan.ledger_id, one.why) for one in left] == [
            (made[1], "ZooKeeper denies access")
        ]
        assert await b.ledgers() == [made[1]]

    monkeypatch.setattr(orphans, "end_old_plans", denied)
    run(scene)
