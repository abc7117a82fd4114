"""Compare what audits, explanations and overviews say about ledgers with what is on the disks.

This happens near the end of a run, when all ledgers are closed and nothing changes any more. The
run knows the entries that each bookie has, so it knows which copies a report must call missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.core.fragments import fragments, stored_by
from quire.core.replicas import Finding, Kind
from quire.replication.audit import pieces
from quire.replication.audit.audit import Audit
from quire.replication.explain import at_risk, entry, explain, status
from quire_simulator.invariants.ledger import bookies_of, members_of
from quire_simulator.invariants.reports.comparison import REST_S, Comparison
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import bookie_id

Held = dict[int, dict[str, set[int]]]
"""The entries that each bookie has, by ledger and bookie id."""
LEDGERS_MAX = 8
"""The largest number of ledgers that one run asks about."""
SHARE = 0.5
"""The share of runs that compare these reports, which takes a seventh of the time of a run."""
ABSENT = (Kind.MISSING, Kind.SHORT)
RATES = (None, 1_000_000.0)
"""The largest numbers of bytes per second at which an audit reads one bookie."""


async def compare(stage: Stage) -> None:
    """Compare all reports about some closed ledgers whose bookies are honest and undamaged."""
    world, chance = stage.world, stage.world.loop.derive("reports")
    spoiled = {*world.destroyed, *world.tampered, *world.bit_rot, *world.partly_lost, *world.lossy}
    if world.loop.derive("share of reports").random() >= SHARE:
        return
    if world.flipped or world.lies or stage.plan.liars or spoiled:
        return
    await asyncio.sleep(REST_S)  # Adds to the last members of a write set may be on their way.
    known = {
        ledger_id: metadata
        for ledger_id, metadata in sorted(_all(stage).items())
        if metadata.closed and not stage.checker.facts(ledger_id).deleted
    }
    some = chance.sample(list(known), min(len(known), LEDGERS_MAX))
    held = {one: await _held(stage, one) for one in some}
    client = world.client("judge-4", stage.plan.client_config)
    reports = _Reports(stage, client, {one: known[one] for one in some}, held)
    await reports.audit(chance.choice(RATES))
    if some:
        await reports.explain(some[0], deep=chance.random() < 0.5)
        await reports.entry(some[0], chance.random())
    await reports.at_risk(set(chance.sample(list(world.disks), 2)))
    await reports.overview()
    await client.close()


def _all(stage: Stage) -> dict[int, LedgerMetadata]:
    cluster = stage.world.cluster
    return {one: MemoryCluster.ledger(cluster, one).value for one in cluster.ledgers}


async def _held(stage: Stage, ledger_id: int) -> dict[str, set[int]]:
    names = list(stage.world.bookies)
    return {bookie_id(name): await stage.checker.held(name, ledger_id) for name in names}


class _Reports:
    """The reports about some closed ledgers."""

    def __init__(
        self, stage: Stage, client: Client, ledgers: dict[int, LedgerMetadata], held: Held
    ) -> None:
        self._stage = stage
        self._client = client
        self._ledgers = ledgers
        self._held = held

    def _compare(self, invariant: str, source: str) -> Comparison:
        return Comparison(self._stage.checker, invariant, source)

    def _password(self, ledger_id: int) -> bytes:
        # Walkthroughs choose passwords that the checker does not know.
        stored = self._ledgers[ledger_id].password
        return self._stage.checker.facts(ledger_id).password if stored is None else stored

    def _wanted(self, ledger_id: int) -> dict[str, set[int]]:
        """Return the entries that each bookie should have, by the metadata alone."""
        metadata = self._ledgers[ledger_id]
        wanted: dict[str, set[int]] = {}
        for one in fragments(metadata, metadata.last_entry_id):
            for index, bookie in enumerate(one.ensemble):
                entries = stored_by(metadata, index, one.first, one.last)
                wanted.setdefault(bookie, set()).update(entries)
        return wanted

    def _lacking(self, ledger_id: int) -> dict[str, set[int]]:
        """Return the entries that each bookie should have and does not have."""
        held = self._held[ledger_id]
        lacks = {b: wanted - held.get(b, set()) for b, wanted in self._wanted(ledger_id).items()}
        return {bookie: entries for bookie, entries in lacks.items() if entries}

    # -- audits -------------------------------------------------------------------------------

    async def audit(self, rate: float | None) -> None:
        """Audit the ledgers, as `quire pipeline audit` does, and compare the findings."""
        told = self._compare("what_an_audit_finds_is_true", "an audit")
        audit, client = Audit(), self._client
        ids = [one for one in self._ledgers if not self._password(one)]
        for piece in audit.looking(ids):
            audit.saw(await pieces.look(client, piece))
        told.equal("ledgers", sorted(audit.ledgers), sorted(ids))
        for ledger_id, planned in audit.ledgers.items():
            told.equal(f"last entry of ledger {ledger_id}", planned.last,
                       self._ledgers[ledger_id].last_entry_id)  # fmt: skip
        await audit.probe(client)
        for turn in audit.reading(rate):
            read = [one["bookie"] for one in turn]
            told.true(f"{read} are read at once", rate is None or len(set(read)) == len(read))
            for piece in turn:
                audit.has_read(await pieces.read(client, piece))
        for piece in audit.comparing(rate):
            audit.has_compared(await pieces.compare_blocks(client, piece))
        told.equal("unread ledgers", len(audit.unread), 0)
        found = await audit.findings(client)
        order = [(one.ledger, one.bookie, one.first) for one in found]
        told.equal("order of the findings", order, sorted(order))
        good = sum(
            len(wanted & self._held[one].get(bookie, set()))
            for one in ids
            for bookie, wanted in self._wanted(one).items()
            if bookie_is_up(self._stage, bookie)
        )
        # Replicas that do not answer in time are not counted.
        silent = [one for one in found if one.kind is Kind.UNREACHABLE]
        told.within("good replicas", 0 if silent else good, audit.entries, good)
        for ledger_id in ids:
            self._findings(told, ledger_id, [one for one in found if one.ledger == ledger_id])

    def _findings(self, told: Comparison, ledger_id: int, found: Collection[Finding]) -> None:
        """Check the findings about one ledger: which copies are missing, and of which kind."""
        metadata, lacking = self._ledgers[ledger_id], self._lacking(ledger_id)
        for one in found:
            what = f"ledger {ledger_id}: entries {one.first}..{one.last} on {one.bookie}"
            told.true(
                f"{what} are called {one.kind.value}", one.kind in (*ABSENT, Kind.UNREACHABLE)
            )
            if one.kind is Kind.UNREACHABLE:
                up = bookie_is_up(self._stage, one.bookie)
                told.true(f"{what} are called unreachable, but the bookie runs", not up)
                continue
            lacks = lacking.get(one.bookie, set())
            told.true(f"{what} are called {one.kind.value}, but are there",
                      one.first in lacks and one.last in lacks)  # fmt: skip
            others = min(
                sum(entry in self._held[ledger_id].get(b, ()) for b in members_of(metadata, entry))
                for entry in lacks
                if one.first <= entry <= one.last
            )
            if one.kind is Kind.SHORT:
                told.true(f"{what} are called short, but have {others} copies",
                          others >= metadata.ack_quorum)  # fmt: skip
        for bookie, lacks in lacking.items():
            mine = [one for one in found if one.bookie == bookie]
            left = {n for n in lacks if not any(one.first <= n <= one.last for one in mine)}
            told.true(f"ledger {ledger_id}: {bookie} lacks {sorted(left)[:5]}", not left)

    # -- explanations -------------------------------------------------------------------------

    async def explain(self, ledger_id: int, *, deep: bool) -> None:
        """Compare the explanation of a ledger, as `quire explain ledger` gives it."""
        told = self._compare("what_is_explained_is_true", f"the explanation of ledger {ledger_id}")
        metadata, lacking = self._ledgers[ledger_id], self._lacking(ledger_id)
        found = await explain.explain_ledger(
            self._client, ledger_id, deep=deep, password=self._password(ledger_id)
        )
        told.equal("state", (found.state, found.last_entry, found.deep),
                   ("CLOSED", metadata.last_entry_id, deep))  # fmt: skip
        told.equal(
            "quorums",
            found.quorums,
            (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
        )
        presences = self._stage.world.cluster.presences
        for view, one in zip(
            found.segments, fragments(metadata, metadata.last_entry_id), strict=True
        ):
            told.equal("segment", (view.first, view.last, view.closed),
                       (one.first, one.last, one.closed))  # fmt: skip
            told.equal("bookies", tuple(r.bookie for r in view.replicas), one.ensemble)
            for index, replica in enumerate(view.replicas):
                wanted = set(stored_by(metadata, index, one.first, one.last))
                lacks = wanted & lacking.get(replica.bookie, set())
                told.equal(f"entries of {replica.bookie}", replica.entries, len(wanted))
                presence = presences.get(bookie_id(replica.bookie.partition(":")[0]))
                registered = "gone" if presence is None else (
                    "read-only" if presence.readonly else "writable"
                )  # fmt: skip
                told.equal(f"registration of {replica.bookie}", replica.registered, registered)
                if presence is None:
                    continue
                states = ("missing", "short") if lacks else ("present",) if wanted else ("empty",)
                told.true(f"{replica.bookie} is called {replica.state} in segment {view.first}",
                          replica.state in states)  # fmt: skip
            copies = self._copies(ledger_id, one.first, one.last)
            told.equal(f"copies in segment {view.first}", view.copies_min, copies)
        gone = any(r.registered == "gone" for v in found.segments for r in v.replicas)
        well = not lacking and not gone and found.mark is None and not found.damage
        says = found.verdict.sentence.startswith("Nothing is wrong")
        told.equal(f"verdict {found.verdict.sentence!r}", says, well)
        told.equal(f"a command after {found.verdict.sentence!r}", bool(found.verdict.command),
                   not well)  # fmt: skip

    def _copies(self, ledger_id: int, first: int, last: int) -> int:
        """Return the number of copies of the entry of a range that has the fewest."""
        metadata = self._ledgers[ledger_id]
        return min(
            (
                sum(
                    n in self._held[ledger_id].get(bookie, ())
                    and bookie in self._stage.world.cluster.presences
                    for bookie in members_of(metadata, n)
                )
                for n in range(first, last + 1)
            ),
            default=metadata.write_quorum,
        )

    async def entry(self, ledger_id: int, share: float) -> None:
        """Compare what each bookie is said to have of one entry."""
        metadata = self._ledgers[ledger_id]
        if metadata.last_entry_id < 0:
            return
        number = int(share * (metadata.last_entry_id + 1))
        told = self._compare("what_is_explained_is_true", f"entry {number} of ledger {ledger_id}")
        found = await entry.entry_copies(
            self._client, ledger_id, number, password=self._password(ledger_id)
        )
        told.equal("bookies", [one.bookie for one in found.copies], members_of(metadata, number))
        for one in found.copies:
            if one.bookie not in self._stage.world.cluster.presences:
                continue
            here = number in self._held[ledger_id].get(one.bookie, ())
            told.equal(f"the copy on {one.bookie}", one.state, "good" if here else "missing")
        good = [one.payload for one in found.copies if one.state == "good"]
        told.equal("the good copy", found.good.payload if found.good else None,
                   good[0] if good else None)  # fmt: skip

    # -- the cluster --------------------------------------------------------------------------

    async def at_risk(self, lost: set[str]) -> None:
        """Compare how many ledgers would lack copies if these bookies were lost."""
        told = self._compare("ledgers_at_risk_are_counted", f"the risk without {sorted(lost)}")
        gone = {bookie_id(name) for name in lost}
        there = [bookie_id(name) for name in self._stage.world.disks if name not in lost]
        found = [
            one async for one in at_risk.at_risk(self._client, there, {"those": gone, "none": ()})
        ][-1]
        known = _all(self._stage)
        told.equal("ledgers", (found.ledgers, found.whole, found.skipped), (len(known), True, 0))
        lacking = last = none = 0
        for metadata in known.values():
            copies = [
                (sum(b not in gone for b in members_of(metadata, n)), metadata.write_quorum)
                for one in metadata.segments
                for n in _entries(metadata, one.first_entry_id)
            ]
            fewest = min((left for left, _ in copies), default=metadata.write_quorum)
            lacking += any(left < quorum for left, quorum in copies)
            last += fewest == 1 < metadata.write_quorum
            none += fewest == 0
        told.equal("ledgers that lack copies", found.lacking, lacking)
        told.equal("ledgers with one copy", found.last_copy, last)
        told.equal("ledgers without a copy", found.unreadable, none)
        told.equal("groups", found.by_group, {"those": lacking, "none": 0})
        told.within("ledgers that cannot be repaired", 0, found.without_spare, lacking)
        if len(there) <= 1:
            return
        named = sum(bool(gone & bookies_of(one)) for one in known.values())
        told.within("ledgers that lack copies", 0, found.lacking, named)

    async def overview(self) -> None:
        """Compare the overview of repairs, as `quire autorecovery status` shows it."""
        told = self._compare("what_is_explained_is_true", "the overview of repairs")
        store, clock = self._client.metadata, self._client.clock
        found = await status.overview(store, clock=clock)
        marked = [one async for one in status.marked_ledgers(store, clock=clock)]
        told.equal("marked ledgers", found.marked, len(marked))
        told.equal("the first mark", found.example and found.example.ledger,
                   marked[0].ledger if marked else None)  # fmt: skip
        told.within("ledgers in repair", 0, found.locked, found.marked)
        told.within("failing ledgers", len(found.failures), found.failing, found.marked)
        told.equal("enabled", (found.enabled, found.switched_off), (True, None))
        told.equal("damaged nodes", found.damaged, ())
        told.equal("an auditor", bool(found.unexamined), found.auditor is None)
        for one in marked:
            told.true(f"no reason is given for ledger {one.ledger}", one.sentence())
            told.true(f"ledger {one.ledger} has an age of {one.age_s}", (one.age_s or 0) >= 0)


def bookie_is_up(stage: Stage, bookie: str) -> bool:
    return bookie.partition(":")[0] in stage.world.bookies


def _entries(metadata: LedgerMetadata, first: int) -> range:
    """Return the entries of a segment, or one of each write set if the segment is open."""
    later = [one.first_entry_id for one in metadata.segments if one.first_entry_id > first]
    if later:
        return range(first, min(later))
    end = metadata.last_entry_id + 1 if metadata.closed else first + metadata.ensemble_size
    return range(first, end)
