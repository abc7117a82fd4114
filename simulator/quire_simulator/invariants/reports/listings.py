"""Compare lists of streams, namespaces and ledgers with what existed while they were made.

What existed during all of a call must be in its list, and what never existed during the call must
not. So a list can be checked while others create, rename and delete.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

from quire.client import Client
from quire.errors import QuireError
from quire.streams import Namespace
from quire.streams.namespace import tree_search
from quire_simulator.invariants.checker import Checker
from quire_simulator.streams.stage import NAMESPACE, StreamStage
from quire_simulator.world.stage import Stage

PAGE_NAMES = (1, 2, 5)
"""The sizes of pages of the streams of a namespace."""
PARTS = ("", "", "s", "m", "0", "renamed", "renamed/")
"""What names begin with, or contain, that are asked for."""
Key = TypeVar("Key", str, int)

LISTS = 1
"""The number of lists that a judge of streams asks for."""


async def list_names(
    stage: StreamStage, who: str, client: Client, streams: Namespace, chance: random.Random
) -> None:
    """Ask for a list of streams, of one kind or another, and check it."""
    begun, before = stage.moment(), dict(stage.names)
    part, kind = chance.choice(PARTS), chance.choice(["all", "pages", "pages", "sizes"])
    if kind == "all":
        found = await streams.streams(part)
        wanted = [name for name in _names_of(stage) if name.startswith(part)]
    elif kind == "pages":
        found = await _in_pages(stage, who, streams, chance.choice(PAGE_NAMES), part)
        wanted = [name for name in _names_of(stage) if part in name]
    else:
        await _sizes(stage, who, client, before, begun)
        return
    unsure = {name for name, moment in stage.names_changed.items() if moment > begun}
    there = {name for name in wanted if before.get(name, False)}
    compare_listed(stage.checker, f"{who} listed streams with {part!r}", found, there, unsure)


def _names_of(stage: StreamStage) -> list[str]:
    plans = stage.stage.plan.streams
    return [name for plan in plans for name in (plan.name, plan.new_name)]


async def _in_pages(
    stage: StreamStage, who: str, streams: Namespace, limit: int, part: str
) -> list[str]:
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await tree_search.streams_page(streams, after=after, limit=limit, part=part)
        following = page.next
        wrong = (
            len(page.names) > limit
            or (following is not None and following <= after)
            or any(name <= after for name in page.names)
        )
        if wrong:
            what = f"{who}: the page of {limit} streams after {after!r} is {page}"
            stage.checker.fail("a_listing_is_in_order", what)
            return found
        found += page.names
        after = following
    return found


async def _sizes(
    stage: StreamStage, who: str, client: Client, before: dict[str, bool], begun: int
) -> None:
    # A deletion that has not ended has removed the segments, and not yet their parent.
    ending = sum(not before.get(name, False) and stage.has_node(name) for name in _names_of(stage))
    sizes = await tree_search.namespace_sizes(client)
    certain = sum(
        there for name, there in before.items() if stage.names_changed.get(name, 0) < begun
    )
    most = certain + ending + sum(moment > begun for moment in stage.names_changed.values())
    told = sizes.get(NAMESPACE)
    if list(sizes) != [NAMESPACE] or told is None or not certain <= told <= most:
        what = f"{who} was told {sizes}, but {NAMESPACE} has from {certain} to {most} streams"
        stage.checker.fail("a_list_is_complete", what)


async def judge_lists(stage: StreamStage, who: str, client: Client, streams: Namespace) -> None:
    """Ask for lists of streams, and for the subscriptions of each stream, when all is quiet."""
    chance = stage.world.loop.derive(f"lists of {who}")
    for _ in range(LISTS):
        await list_names(stage, who, client, streams, chance)
    for plan in stage.stage.plan.streams:
        facts = stage.lives[plan.number]
        if not stage.exists(plan) or not stage.is_current(facts):
            continue
        found = await streams.subscriptions(stage.name(plan))
        unsure = facts.committing - set(facts.committed)
        mine = [name for name in found if name.startswith("tailer-")]  # A query has one too.
        what = f"{who} listed the subscriptions of {plan.name}"
        compare_listed(stage.checker, what, mine, set(facts.committed), unsure)


async def judge_ledgers(stage: Stage, who: str, client: Client) -> None:
    """List the ledgers of the cluster, all of them or those from some id on."""
    cluster = stage.world.cluster
    before = set(cluster.ledgers)
    chance = stage.world.loop.derive(f"ledgers of {who}")
    first = chance.choice([0, 0, *sorted(before)])
    try:
        found = [ledger_id async for ledger_id in client.list_ledgers(first)]
    except QuireError as error:
        stage.history.add(who, "failed", note=f"list: {error}")
        return
    after = set(cluster.ledgers)
    unsure = (before ^ after) | {n for n, facts in stage.checker.ledgers.items() if facts.recreated}
    passing = {n for n in found if n not in before and n in stage.checker.ledgers}
    there = {ledger_id for ledger_id in before if ledger_id >= first}
    what = f"{who} listed the ledgers from {first} on"
    compare_listed(stage.checker, what, found, there, unsure | passing)


def compare_listed(
    checker: Checker,
    what: str,
    found: Sequence[Key],
    there: Iterable[Key],
    unsure: Iterable[Key],
) -> None:
    """Compare a list with what must be there, except for what changed during the call."""
    checker.checks += 1
    wrong = (set(found) ^ set(there)) - set(unsure)
    if wrong:
        missing = sorted(wrong - set(found))
        strange = sorted(wrong & set(found))
        checker.fail("a_list_is_complete", f"{what} without {missing} and with {strange}")
    if list(found) != sorted(set(found)):
        checker.fail("a_listing_is_in_order", f"{what}: {list(found)}")
