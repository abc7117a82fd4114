"""Damage to streams: ledgers that are deleted, and metadata nodes that cannot be read.

Only the damaged data may be lost. No position is assigned again, and readers learn what is missing.
A ledger whose node cannot be read is neither deleted nor reported as an orphan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from quire.client import Client
from quire.codec.distributedlog.name import StreamPaths
from quire.codec.distributedlog.segment import StreamSegment, Truncation
from quire.errors import LedgerOwnedError, QuireError
from quire.metadata.tree import Put
from quire.streams.ownership.lost_ledgers import LostLedgers, lost_ledgers
from quire.streams.ownership.orphans import look_for_orphans
from quire.streams.ownership.owners import refuse_owned
from quire_simulator.metadata.nodes import PERSISTENT
from quire_simulator.streams.facts import ObservedStream
from quire_simulator.streams.invariants import in_order
from quire_simulator.streams.plans import StreamPlan
from quire_simulator.streams.stage import NAMESPACE, StreamStage
from quire_simulator.world.stage import POLL_S

# Writers log what they find lost. The simulator does not need these lines.
logging.getLogger("quire.streams").addHandler(logging.NullHandler())
GARBAGE = (b"", b"\xff\xfe no segment", b"9;1;2;3", b"5;abc", b"261;1;2")
"""The choices for the bytes that are found in place of a segment's metadata."""
SPOILT_S = (0.05, 0.5, 3.0)
YOUNGER_S = 3_600.0
"""Longer than any error of a calendar, so that every ledger is older than that from now."""


async def lose_ledger(stage: StreamStage, who: str, client: Client, plan: StreamPlan) -> None:
    """Delete the ledger of the segment in progress, as a user may who does not know its owner."""
    facts = await stage.until_there(plan)
    while facts is not None and not stage.over and stage.is_current(facts):
        newest = in_order(facts.segments)[-1:]
        if newest and newest[0].in_progress:
            await _is_refused(stage, who, client, facts, newest[0])
            stage.note(who, "delete ledger", f"{newest[0].ledger_id}: segment {newest[0].lssn}")
            facts.destroyed.add(newest[0].lssn)
            await client.delete_ledger(newest[0].ledger_id)
            return
        await asyncio.sleep(POLL_S)


async def _is_refused(
    stage: StreamStage, who: str, client: Client, facts: ObservedStream, segment: StreamSegment
) -> None:
    """Check that `refuse_owned` refuses the deletion, because the stream owns the ledger."""
    try:
        await refuse_owned(client, [segment.ledger_id])
    except LedgerOwnedError:
        stage.note(who, "refused", segment.ledger_id)
        return
    now = {one.ledger_id for one in facts.segments.values()}
    there = segment.ledger_id in stage.world.cluster.ledgers  # Somebody else may have deleted it.
    if there and segment.ledger_id in now and stage.is_current(facts):
        what = f"the deletion of the ledger of {segment} was not refused"
        stage.fail(facts, "an_owned_ledger_is_not_deleted", what)


async def judge_losses(stage: StreamStage, client: Client) -> None:
    """Check that the search for lost ledgers finds those that streams need but that are gone."""
    told = {one.ledger_id for one in (await _lost(client)).lost}
    for facts in stage.lives.values():
        for segment in facts.segments.values():
            gone = segment.ledger_id not in stage.world.cluster.ledgers
            needed = segment.truncation is not Truncation.TRUNCATED
            if needed and gone != (segment.ledger_id in told):
                word = "gone" if gone else "there"
                what = f"the ledger of {segment} is {word}, but the search finds {sorted(told)}"
                stage.fail(facts, "what_is_lost_is_reported", what)


async def _lost(client: Client) -> LostLedgers:
    results = [found async for found in lost_ledgers(client)]
    return results[-1]


async def spoil_node(stage: StreamStage, who: str, client: Client, plan: StreamPlan) -> None:
    """Make the node of a segment unreadable for a while, and look for orphans meanwhile."""
    chance = stage.world.loop.derive(f"actor {who}")
    facts = await stage.until_there(plan)
    while facts is not None and not stage.over and not facts.segments:
        await asyncio.sleep(POLL_S)
    if facts is None or not stage.is_current(facts) or not facts.segments:
        return
    segment = chance.choice(in_order(facts.segments))
    path = StreamPaths(NAMESPACE, stage.name(plan)).segment(segment.name)
    if path in stage.spoilt or stage.world.cluster.tree.get(path) is None:
        return
    duration_s = chance.choice(SPOILT_S)
    stage.note(who, "spoil", f"{'in progress' if segment.in_progress else 'completed'}: {path}")
    garbage = chance.choice(GARBAGE)
    _spoil(stage, path, segment, garbage)
    loop = stage.world.loop
    context = loop.main.context.copy()
    loop.call_later(duration_s, _restore, stage, path, segment, garbage, context=context)
    try:
        report = await look_for_orphans(client, -YOUNGER_S)
    except QuireError as error:
        stage.note(who, "failed", type(error).__name__)
        return
    if path in stage.spoilt:
        stage.note(who, "looked for orphans", f"{len(report.orphans)} found")
    _are_orphans(stage, facts, [orphan.ledger_id for orphan in report.orphans])


def _are_orphans(stage: StreamStage, facts: ObservedStream, found: Sequence[int]) -> None:
    named = {segment.ledger_id: segment for segment in facts.segments.values()}
    for ledger_id in found:
        if ledger_id in named and stage.is_current(facts):
            what = f"ledger {ledger_id} of {named[ledger_id]} is called an orphan"
            stage.fail(facts, "a_named_ledger_is_no_orphan", what)


def _spoil(stage: StreamStage, path: str, segment: StreamSegment, garbage: bytes) -> None:
    stage.spoilt[path] = segment
    _put(stage, path, garbage)


def _restore(stage: StreamStage, path: str, segment: StreamSegment, garbage: bytes) -> None:
    """Let an operator repair the node, if nobody has deleted it meanwhile."""
    del stage.spoilt[path]
    node = stage.world.cluster.tree.get(path)
    if node is not None and node.value == garbage:
        _put(stage, path, segment.to_bytes())


def _put(stage: StreamStage, path: str, value: bytes) -> None:
    cluster = stage.world.cluster
    _, changes = cluster.tree.commit([Put(path, value)], PERSISTENT)
    cluster.tree_changed(changes)
