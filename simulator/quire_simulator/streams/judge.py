"""Check the streams at the end of a run.

Each stream gets a last record, or is deleted if its deletion has begun. All are read completely,
and their orphaned ledgers are found and deleted. Faults have ended by then, so any failure breaks
an invariant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.client import Client
from quire.codec.distributedlog.dlsn import INITIAL_DLSN
from quire.codec.distributedlog.name import StreamPaths
from quire.codec.distributedlog.segment import StreamSegment
from quire.errors import StreamConditionError, StreamEndedError
from quire.streams import Gap, Namespace, Record, StreamWriter
from quire.streams.ownership.orphans import delete_orphans, find_orphans
from quire.streams.publish.segment_builder import JOB_KEY
from quire.streams.write.segments import APPLICATION
from quire_simulator.invariants.reports.listings import judge_lists
from quire_simulator.invariants.reports.places import judge_pages, judge_places
from quire_simulator.streams.damage import judge_losses
from quire_simulator.streams.facts import ObservedStream
from quire_simulator.streams.invariants import ReaderPosition
from quire_simulator.streams.machines import start_leader
from quire_simulator.streams.plans import StreamPlan
from quire_simulator.streams.readers import removed
from quire_simulator.streams.retention import Retention
from quire_simulator.streams.stage import NAMESPACE, StreamStage

JUDGES = ("stream-judge-0", "stream-judge-1")
LAST = b"the last"
YOUNGER_S = 3_600.0
"""Longer than any error of a calendar, so that every ledger is older than that from now."""
POLL_S = 1.0
METADATA_DELAY_MAX_S = 0.02
"""The longest delay of a metadata call in this phase, whose work takes hundreds of calls."""


async def judge_streams(stage: StreamStage, followers: Callable[[], list[str]]) -> None:
    """Finish, read and check all streams. `followers` returns the names of unfinished followers."""
    plans = stage.stage.plan.streams
    if not plans:
        return
    while stage.spoilt:
        await asyncio.sleep(POLL_S)
    stage.world.metadata_delay_s = min(stage.world.metadata_delay_s, METADATA_DELAY_MAX_S)
    for judge in JUDGES:
        client = stage.world.client(judge, stage.stage.plan.client_config)
        streams = await stage.namespace(client)
        for plan in plans:
            if judge == JUDGES[0] and plan.queries:
                from quire_simulator.spark.judge import judge_query  # It imports pyspark.

                await judge_query(stage, judge, client, plan)
            if judge == JUDGES[0]:
                await _finish(stage, judge, streams, plan)
        while followers():
            await asyncio.sleep(POLL_S)
        whole: list[tuple[ObservedStream, list[Record]]] = []
        for plan in plans:
            if plan.kind == "stream" and stage.exists(plan):
                facts = stage.lives[plan.number]
                whole.append((facts, await _read(stage, judge, streams, facts)))
        if judge == JUDGES[-1]:
            for facts, records in whole:
                await judge_places(stage, judge, streams, facts, records)
            await judge_pages(stage, judge, streams, whole)
            await judge_lists(stage, judge, client, streams)
            await judge_losses(stage, client)
            await _orphans(stage, client)
        await streams.close()
        await client.close()
    await asyncio.sleep(POLL_S)  # A late request to a bookie may name a deleted ledger.


async def _finish(stage: StreamStage, judge: str, streams: Namespace, plan: StreamPlan) -> None:
    facts = stage.lives[plan.number]
    if facts.deleting:
        await removed(stage, judge, streams, facts)
        facts = stage.lives[plan.number]
        if stage.exists(plan):
            stage.fail(facts, "what_was_deleted_is_gone", "it was deleted, but still exists")
    elif not stage.exists(plan):
        if any(h.opened is not None and not h.tainted for h in facts.handles):
            stage.fail(facts, "a_stream_stays", "it does not exist, but nobody deleted it")
    elif plan.kind == "machine":
        await _lead(stage, judge, streams, plan)
    else:
        await _append_the_last(stage, judge, streams, facts)
        if facts.plan.retained:
            await Retention(stage).judge(judge, streams, facts)
    stage.finished.add(plan.number)


async def _append_the_last(
    stage: StreamStage, judge: str, streams: Namespace, facts: ObservedStream
) -> None:
    name, handle = stage.name(facts.plan), stage.begins(facts, judge)
    try:
        writer = await stage.insist(lambda: _open(streams, name))
    except StreamEndedError as error:
        handle.failed = stage.moment()
        if not facts.may_be_ended:
            stage.fail(facts, "only_who_ends_a_stream_ends_it", f"{judge}: {error}")
        return
    handle.opened = stage.moment()
    if facts.ended is not None:
        stage.fail(facts, "an_ended_stream_takes_no_more", f"{judge} opened a writer")
    txids = [writer.last_txid] if facts.plan.txids == "given" else None
    sent = stage.sends(facts, handle, [LAST], first=writer.next_sequence, txids=txids)
    for token in sorted(facts.tokens):
        try:
            appended = await writer.append_many([LAST], txids=txids, token=token)
        except StreamConditionError:
            continue
        stage.acked(facts, sent, list(appended))
        break
    else:
        stage.fail(
            facts, "conditions_are_kept", f"every token of {sorted(facts.tokens)} is refused"
        )
    if facts.plan.retained:
        await writer.roll()
        await Retention(stage).writer_retains(judge, streams, facts)
    await writer.close()
    stage.ends[facts.plan.number] = writer.next_sequence


async def _open(streams: Namespace, name: str) -> StreamWriter:
    return await streams.open_writer(name)


async def _lead(stage: StreamStage, judge: str, streams: Namespace, plan: StreamPlan) -> None:
    leader, machine = await start_leader(stage, judge, streams, plan, 0)
    if leader is None:
        stage.fail(stage.lives[plan.number], "quiet_heals", "nobody can become the leader")
        return
    await leader.confirm()
    commands = stage.commands(plan)
    for command, number in commands.acked.items():
        if number > machine.state[0] or commands.numbers.get(command) != number:
            commands.tell(
                "no_command_is_lost",
                f"{command} was acknowledged as number {number} of {machine.state[0]}, but is not",
            )
    stage.ends[plan.number] = leader.applied
    await leader.close()


async def _read(
    stage: StreamStage, judge: str, streams: Namespace, facts: ObservedStream
) -> list[Record]:
    view = ReaderPosition(judge, INITIAL_DLSN, floor=facts.floor)
    reader = await streams.open_reader(stage.name(facts.plan), on_gap="deliver")
    records: list[Record] = []
    async for batch in reader.batches():
        if isinstance(batch, Gap):
            stage.gap(facts, view, batch.kind, batch.behind)
            continue
        for record in batch:
            stage.saw(facts, view, record)
            records.append(record)
    if facts.ended is not None and not reader.ended:
        stage.fail(facts, "an_ended_stream_takes_no_more", f"{judge} did not reach its end")
    stage.judge_whole(facts, records)
    return records


async def _orphans(stage: StreamStage, client: Client) -> None:
    """Find and delete orphaned ledgers of streams.

    Clients that die between two steps leave ledgers that nothing names. The audit must find these
    and no others.
    """
    orphans = _unnamed(stage)
    for ledger_id in orphans:
        maker = stage.makers.get(ledger_id)  # None: the maker never learned that the ledger exists.
        job = stage.world.cluster.ledger(ledger_id).value.custom.get(JOB_KEY)
        if maker is not None and not maker.dead and job is None:
            what = f"ledger {ledger_id} of {maker.name}, which is alive, is named by nothing"
            stage.checker.fail("no_ledger_is_orphaned", what)
    found = await find_orphans(client, -YOUNGER_S)
    if [orphan.ledger_id for orphan in found] != orphans:
        what = f"the orphans are {orphans}, but the audit found {found}"
        stage.checker.fail("the_audit_finds_orphans", what)
    left = await delete_orphans(client, found)
    if left or _unnamed(stage):
        stage.checker.fail("the_audit_finds_orphans", f"{left or _unnamed(stage)} were not deleted")
    stage.note(JUDGES[-1], "orphans", len(orphans))


def _unnamed(stage: StreamStage) -> list[int]:
    cluster, named = stage.world.cluster, set()
    for plan in stage.stage.plan.streams:
        for name in (plan.name, plan.new_name):
            paths = StreamPaths(NAMESPACE, name)
            for child in cluster.tree.children(paths.segments) or []:
                node = cluster.tree.get(paths.segment(child))
                if node is not None:
                    named.add(StreamSegment.from_bytes(node.value).ledger_id)
            node = cluster.tree.get(paths.allocation)
            if node is not None and node.value:
                named.add(int(node.value))
    made = []
    for ledger_id in sorted(cluster.ledgers):
        custom = cluster.ledger(ledger_id).value.custom
        if custom.get("component") == APPLICATION["component"] and ledger_id not in named:
            made.append(ledger_id)
    return made
