"""Walkthroughs of a ledger with bad copies: what readers, audits and explanations say of them.

A copy is missing, damaged, garbled, or another entry. The script chooses the bad copies, so it
knows the exact findings. They are computed here entry by entry, and by Quire range by range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from quire.client import Client
from quire.client.cluster.health import REPAIRABLE, Misbehaviour, UnhealthyBookie
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.replicas import Finding, Kind
from quire.replication.audit import pieces
from quire.replication.audit.audit import Audit
from quire.replication.explain import explain
from quire_simulator.actors.walkthroughs.false_copies import FalseCopies, Lie
from quire_simulator.actors.walkthroughs.ledgers import (
    ARRIVED_S,
    CALLS_OF_A_CHANGE,
    Written,
    append,
    create,
    metrics_of,
    read_all_ways,
)
from quire_simulator.actors.walkthroughs.walk import Walk
from quire_simulator.invariants.ledger import members_of
from quire_simulator.world.world import bookie_id

AWAY = 0.5
"""The probability that a bookie is stopped while the ledger is written."""
STEPS = 3
RATES = (None, 1_000_000.0)
ABSENCE_CHECKED = 10
"""The least number of times `absence_recheck_s` after which a denial has been checked."""
KINDS = {Lie.GARBLED: Kind.DAMAGED, Lie.DAMAGED: Kind.DAMAGED, Lie.MISSING: Kind.MISSING}


@dataclass(frozen=True, slots=True)
class Part:
    """One segment of a closed ledger. Both ends are included."""

    first: int
    last: int
    ensemble: tuple[str, ...]


class Known:
    """What is known of the copies of a closed ledger: where they should be, and which are bad."""

    def __init__(self, metadata: LedgerMetadata, false: FalseCopies) -> None:
        self.metadata = metadata
        starts = [one.first_entry_id for one in metadata.segments]
        ends = [start - 1 for start in starts[1:]] + [metadata.last_entry_id]
        self.parts = [
            Part(first, last, one.ensemble)
            for first, last, one in zip(starts, ends, metadata.segments, strict=True)
        ]
        self._false = false.copies

    def stored(self, part: Part, bookie: str) -> list[int]:
        """Return the entries of a segment that a bookie should have."""
        return [
            n for n in range(part.first, part.last + 1) if bookie in members_of(self.metadata, n)
        ]

    def absent(self, bookie: str, entry: int) -> bool:
        """Return whether a bookie says that it has no good bytes of an entry."""
        return self._false.get((bookie, entry), Lie.OTHER) is not Lie.OTHER

    def copies(self, entry: int) -> int:
        """Return the number of copies of an entry that are readable with a valid digest."""
        return sum(not self.absent(one, entry) for one in members_of(self.metadata, entry))

    def kinds(self, part: Part, bookie: str) -> dict[int, Kind]:
        """Return the kind of problem of each bad copy of a bookie in a segment, by entry."""
        stored = self.stored(part, bookie)
        found = {n: KINDS[self._false[bookie, n]] for n in stored if self.absent(bookie, n)}
        for entry in stored:
            if entry not in found and self._differs(bookie, entry):
                found[entry] = Kind.DIFFERENT
        for run in _runs(stored, [n for n in found if found[n] is Kind.MISSING]):
            for entry in run:
                enough = self.copies(entry) >= self.metadata.ack_quorum
                if enough and run[-1] == stored[-1] and run[0] != stored[0]:
                    found[entry] = Kind.SHORT
        return found

    def _differs(self, bookie: str, entry: int) -> bool:
        votes = [
            (one, self._false.get((one, entry)) is Lie.OTHER)
            for one in members_of(self.metadata, entry)
            if not self.absent(one, entry)
        ]
        mine = dict(votes)[bookie]
        agree = sum(vote == mine for _, vote in votes)
        return agree < len(votes) and 2 * agree <= len(votes)


def _runs(stored: Sequence[int], some: Iterable[int]) -> list[list[int]]:
    """Return the runs of adjacent stored entries that consist of some of them."""
    chosen, runs, before = set(some), list[list[int]](), False
    for entry in stored:
        if entry in chosen:
            runs += [] if before else [[]]
            runs[-1].append(entry)
        before = entry in chosen
    return runs


# -- the walkthrough -------------------------------------------------------------------------------


async def walk_bad_copies(walk: Walk) -> None:
    """Write a ledger, make some copies bad, and compare what is said of them."""
    written = await _written(walk)
    metadata = walk.stage.world.cluster.ledger(written.ledger_id).value
    codec = EntryCodec(written.ledger_id, metadata.digest or DigestType.CRC32, written.password)
    false = FalseCopies(walk.stage.world, written.ledger_id, codec)
    known = Known(metadata, false)
    away = dict(await _away(walk, written, known))
    false.copies.update(away)
    try:
        if metadata.write_quorum > 1:
            _spoil(walk, known, false, [Lie.MISSING, Lie.DAMAGED, Lie.GARBLED])
            await _read(walk, written, known, false)
            await _examine(walk, written, known)
        false.copies.clear()
        false.copies.update(away)
        _spoil(walk, known, false, list(Lie))
        await _examine(walk, written, known)
    finally:
        false.release()


async def _written(walk: Walk) -> Written:
    """Write a ledger and close it. A bookie may be away for a while."""
    world, counted = walk.stage.world, {"adds": 0, "add_bytes": 0, "most batches": 0}
    written = await create(walk, spare=1, copies=min(2, len(world.bookies)))
    await append(walk, written, counted)
    if walk.chance.random() < AWAY and len(world.bookies) > written.shape[0]:
        ensemble = world.cluster.ledger(written.ledger_id).value.segments[0].ensemble
        await world.stop(walk.chance.choice([n for n in world.bookies if bookie_id(n) in ensemble]))
    for _ in range(STEPS):
        await append(walk, written, counted, calls=CALLS_OF_A_CHANGE)
    await written.handle.close()
    while not all(n in world.bookies and world.bookies[n].recovered for n in world.disks):
        await asyncio.sleep(ARRIVED_S)
    await asyncio.sleep(ARRIVED_S)
    return written


async def _away(walk: Walk, written: Written, known: Known) -> list[tuple[tuple[str, int], Lie]]:
    """Return the copies that a bookie does not have because it was away."""
    world, found = walk.stage.world, list[tuple[tuple[str, int], Lie]]()
    for name in world.bookies:
        held = await walk.stage.checker.held(name, written.ledger_id)
        for part in known.parts:
            if bookie_id(name) in part.ensemble:
                stored = known.stored(part, bookie_id(name))
                found += [((bookie_id(name), n), Lie.MISSING) for n in stored if n not in held]
    return found


def _spoil(walk: Walk, known: Known, false: FalseCopies, lies: Sequence[Lie]) -> None:
    """Make a range of the copies of one or two bookies bad, so that a good copy is left of each."""
    chance, metadata = walk.chance, known.metadata
    undetected = metadata.digest is DigestType.DUMMY
    lies = [one for one in lies if not (undetected and one is Lie.GARBLED)]
    for _ in range(chance.randint(1, 2)):
        part = chance.choice(known.parts)
        bookie, lie = chance.choice(part.ensemble), chance.choice(lies)
        stored = known.stored(part, bookie)
        if not stored:
            continue
        first = chance.choice([0, chance.randrange(len(stored))])
        last = chance.choice([len(stored) - 1, chance.randrange(first, len(stored))])
        for entry in stored[first : last + 1]:
            bad = sum((one, entry) in false.copies for one in members_of(metadata, entry))
            if bad + 1 < metadata.write_quorum:
                false.copies.setdefault((bookie, entry), lie)


# -- readers ---------------------------------------------------------------------------------------


async def _read(walk: Walk, written: Written, known: Known, false: FalseCopies) -> None:
    """Read everything in every way, and check whom the client accuses, and of what."""
    client = walk.another_client()
    reported: list[tuple[int, str]] = []

    async def on_damage(ledger_id: int, bookies: Sequence[str]) -> None:
        reported.extend((ledger_id, bookie) for bookie in bookies)

    client.on_damage = on_damage
    false.told.clear()
    reader = await client.open_ledger(written.ledger_id, password=written.password)
    for _ in range(walk.chance.randint(1, 3)):
        await read_all_ways(walk, reader, written)
    await asyncio.sleep(client.config.absence_recheck_s * ABSENCE_CHECKED)
    told = dict(false.told)
    suspects = client.suspects()
    wanted = {(written.ledger_id, one.bookie) for one in suspects if one.kind in REPAIRABLE}
    if walk.stage.plan.knobs:
        # A client that may remember only a few reports and suspects repeats some, and omits others.
        bad = {(written.ledger_id, bookie) for bookie, _ in false.copies}
        walk.same("the suspects that are not reported for repair", wanted - set(reported), set())
        walk.same("the good replicas that are reported", set(reported) - bad, set())
    else:
        walk.same("the replicas that are reported for repair", sorted(reported), sorted(wanted))
    metrics = metrics_of(client.metrics())
    walk.same("the metric of suspects", metrics["quire_client_suspects"], len(suspects))
    walk.same("the order of the suspects", suspects,
              sorted(suspects, key=lambda one: (one.bookie, one.kind)))  # fmt: skip
    for one in suspects:
        _check_suspect(walk, one, known, false)
    if walk.stage.plan.knobs or client.config.assume_liars:
        return  # Answers may come too late to be examined.
    metadata = known.metadata
    garbled = metadata.password is not None or metadata.digest is not DigestType.HMAC
    accused = {(one.bookie, one.kind) for one in suspects}
    for (bookie, lie), count in told.items():
        if lie is Lie.GARBLED and garbled:
            kind = Misbehaviour.BAD_DIGEST
        elif lie is Lie.MISSING:
            every = metadata.ack_quorum == metadata.write_quorum
            kind = Misbehaviour.DROPPED if every else Misbehaviour.MISSING
        else:
            continue
        if (bookie, kind) not in accused:
            walk.fail("a_liar_is_named", f"{bookie} was not accused of {kind.value}, although it "
                      f"began {count} answers with entries that are {lie.value}")  # fmt: skip


def _check_suspect(walk: Walk, one: UnhealthyBookie, known: Known, false: FalseCopies) -> None:
    """Check that a bookie is accused of what it has done, in the right number."""
    lie = Lie.GARBLED if one.kind is Misbehaviour.BAD_DIGEST else Lie.MISSING
    what = f"{one.bookie} is accused of {one.kind.value}"
    if one.last_ledger != false.ledger_id or false.copies.get((one.bookie, one.last_entry)) != lie:
        walk.fail("only_a_liar_is_accused", f"{what}: {one}")
    walk.between(f"the times that {what}", one.count, 1, false.told[one.bookie, lie])
    every = known.metadata.ack_quorum == known.metadata.write_quorum
    kinds = {Misbehaviour.BAD_DIGEST, Misbehaviour.DROPPED if every else Misbehaviour.MISSING}
    walk.same(f"the kind of which {what}", one.kind in kinds, True)


# -- audits and explanations -----------------------------------------------------------------------


async def _examine(walk: Walk, written: Written, known: Known) -> None:
    """Audit the ledger and have it explained, and compare both with what is known."""
    client = walk.another_client()
    audit, found = await _audit(walk, client, written)
    metadata = known.metadata
    good = [
        n
        for part in known.parts
        for bookie in part.ensemble
        for n in known.stored(part, bookie)
        if not known.absent(bookie, n)
    ]
    walk.same("the good replicas of an audit", audit.entries, len(good))
    walk.same(
        "the good bytes of an audit", audit.bytes, sum(len(written.payloads[n]) for n in good)
    )
    explained = await explain.explain_ledger(
        client, written.ledger_id, deep=True, password=written.password
    )
    for part, view in zip(known.parts, explained.segments, strict=True):
        wanted = {one: known.kinds(part, one) for one in part.ensemble}
        for bookie in part.ensemble:
            mine = [
                (one.first, one.last, one.kind.value, one.detail)
                for one in found
                if one.bookie == bookie and part.first <= one.first <= part.last
            ]
            _check_findings(walk, known, part, bookie, mine, wanted[bookie])
        for replica in view.replicas:
            kinds = wanted[replica.bookie]
            _check_findings(walk, known, part, replica.bookie, replica.bad, kinds)
            none = "present" if known.stored(part, replica.bookie) else "empty"
            worst = max(kinds.values(), key=explain.SEVERITY.index).value if kinds else none
            walk.same(f"the state of {replica.bookie}", replica.state, worst)
        bad = [sum(n in kinds for kinds in wanted.values())
               for n in range(part.first, part.last + 1)]  # fmt: skip
        walk.same("the fewest copies", view.copies_min, metadata.write_quorum - max(bad, default=0))


async def _audit(walk: Walk, client: Client, written: Written) -> tuple[Audit, list[Finding]]:
    audit, rate, password = Audit(), walk.chance.choice(RATES), written.password
    for piece in audit.looking([written.ledger_id]):
        audit.saw(await pieces.look(client, piece, password))
    await audit.probe(client)
    for turn in audit.reading(rate):
        for piece in turn:
            audit.has_read(await pieces.read(client, piece, password))
    for piece in audit.comparing(rate):
        audit.has_compared(await pieces.compare_blocks(client, piece, password))
    found = await audit.findings(client)
    order = [(one.ledger, one.bookie, one.first) for one in found]
    walk.same("the order of findings", order, sorted(order))
    return audit, found


def _check_findings(
    walk: Walk,
    known: Known,
    part: Part,
    bookie: str,
    found: Sequence[tuple[int, int, str, str]],
    wanted: Mapping[int, Kind],
) -> None:
    """Compare the ranges of bad entries of one replica with what is known of each entry."""
    stored = known.stored(part, bookie)
    told = {n: kind for first, last, kind, _ in found for n in stored if first <= n <= last}
    what = f"the bad entries {part.first} to {part.last} on {bookie}"
    walk.same(what, told, {n: kind.value for n, kind in wanted.items()})
    for first, last, kind, detail in found:
        walk.same(f"{what}: the ends of {kind} {first} to {last}",
                  (first in stored, last in stored), (True, True))  # fmt: skip
        if kind in (Kind.MISSING.value, Kind.SHORT.value):
            fewest = min(known.copies(n) for n in stored if first <= n <= last)
            quorum = known.metadata.write_quorum
            walk.same(f"{what}: the copies", detail, f"at most {fewest} of {quorum} copies")
    for one, other in pairwise(found):
        between = [n for n in stored if one[1] < n < other[0]]
        if one[2:] == other[2:] and not between and one[1] < other[0]:
            walk.fail("reports_are_true", f"{what}: {one} and {other} are not one range")
