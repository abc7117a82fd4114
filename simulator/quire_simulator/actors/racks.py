"""Bookies in racks.

Bookies move between racks while clients write, and whole racks lose power. In the end every ledger
must be placed as the policy requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.client import Client
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.config import PlacementConfig
from quire.core.append.quorum import write_set
from quire.core.fragments import fragments
from quire.errors import NoSuchLedgerError, QuireError
from quire.replication.explain.explain import explain_ledger
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World, bookie_id

MIN_RACKS = 3
"""With a write quorum of 3, every copy of an entry is in another rack."""
LATE_S = 3.0
"""Seconds for which an ensemble that was chosen by a replaced rack table may still be stored."""

Racks = Mapping[str, str]
"""A map from bookie id to rack."""


def settle(world: World, racks: int) -> None:
    """Distribute the bookies over this number of racks, and configure every client with them."""
    names = enumerate(sorted(world.disks))
    world.placement = placement
    world.racks = {bookie_id(name): f"/rack-{number % racks}" for number, name in names}


def placement(racks: Racks) -> PlacementConfig:
    return PlacementConfig(min_racks=MIN_RACKS, enforce_racks=True, locations=dict(racks))


def keeps_apart(racks: Racks, ensemble: Sequence[str], write_quorum: int) -> bool:
    """Return whether every write quorum covers as many racks as required."""
    size, least = len(ensemble), min(MIN_RACKS, write_quorum)
    windows = (write_set(first, size, write_quorum) for first in range(size))
    return all(len({racks[ensemble[index]] for index in one}) >= least for one in windows)


class RackInvariants:
    """Check the racks of every ensemble at the moment it is stored."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._world = stage.world
        self._seen: dict[int, LedgerMetadata] = {}
        """The metadata of each ledger at its last change."""
        self._tables: list[tuple[float, Racks]] = [(0.0, self._world.racks)]
        """Each rack table with the time since when it applies."""
        cluster = self._world.cluster
        observer, read_observer, relocated, rack_lost = (
            cluster.observer, cluster.read_observer, self._world.relocated, self._world.rack_lost
        )  # fmt: skip

        def on_ledger(ledger_id: int) -> None:
            self._stored(ledger_id, _metadata(self._world, ledger_id))
            observer(ledger_id)

        def on_read(ledger_id: int, metadata: LedgerMetadata) -> None:
            # A ledger is read for the first time when it is created.
            if ledger_id not in self._seen:
                self._stored(ledger_id, metadata)
            read_observer(ledger_id, metadata)

        def on_relocated() -> None:
            self._tables.append((self._world.loop.time(), self._world.racks))
            relocated()

        def on_rack_lost(rack: str) -> None:
            self._without(rack)
            rack_lost(rack)

        cluster.observer = on_ledger
        cluster.read_observer = on_read
        self._world.relocated = on_relocated
        self._world.rack_lost = on_rack_lost

    def _since(self, horizon_s: float) -> list[Racks]:
        """Return the tables that applied at `horizon_s` or later."""
        ends = [begin_s for begin_s, _ in self._tables[1:]] + [float("inf")]
        return [table for (_, table), end_s in zip(self._tables, ends) if end_s > horizon_s]

    def _stored(self, ledger_id: int, now: LedgerMetadata | None) -> None:
        before = self._seen.pop(ledger_id, None)
        if now is None:
            return
        self._seen[ledger_id] = now
        former = [] if before is None else [one.ensemble for one in before.segments]
        tables = self._since(self._world.loop.time() - LATE_S)
        for segment in now.segments:
            new = segment.ensemble not in former
            # If the ledger was already placed otherwise when this ensemble was chosen, the writer
            # chooses as well as it can.
            apart = all(
                keeps_apart(table, one, now.write_quorum) for one in former for table in tables
            )
            former.append(segment.ensemble)
            kept = any(keeps_apart(table, segment.ensemble, now.write_quorum) for table in tables)
            if new and apart and not kept:
                racks = [self._world.racks[bookie] for bookie in segment.ensemble]
                what = f"ledger {ledger_id} was placed on {segment.ensemble} in racks {racks}"
                self._stage.checker.fail("an_ensemble_is_in_different_racks", what)

    def _without(self, rack: str) -> None:
        """Check that every acknowledged entry also has a copy outside the rack.

        Ledgers whose placement does not satisfy the policy are skipped.
        """
        for ledger_id, metadata in self._seen.items():
            facts = self._stage.checker.facts(ledger_id)
            if facts.deleted:
                continue
            held = self._world.claims.of(ledger_id)
            for fragment in fragments(metadata, facts.confirmed):
                ensemble, quorum = fragment.ensemble, metadata.write_quorum
                if not keeps_apart(self._world.racks, ensemble, quorum):
                    continue
                for entry in range(fragment.first, min(fragment.last, facts.confirmed) + 1):
                    members = [ensemble[i] for i in write_set(entry, len(ensemble), quorum)]
                    others = [b for b in members if self._world.racks[b] != rack]
                    if not any(entry in held.get(bookie, ()) for bookie in others):
                        what = f"ledger {ledger_id} entry {entry} has copies in {rack} only"
                        self._stage.checker.fail("a_rack_may_be_lost", what)
                        return


def misplaced(world: World) -> str:
    """Describe a closed ledger whose placement violates the policy, or return ''."""
    for ledger_id in sorted(world.cluster.ledgers) if world.racks else ():
        metadata = _metadata(world, ledger_id)
        for segment in metadata.segments if metadata is not None and metadata.closed else ():
            assert metadata is not None
            if not keeps_apart(world.racks, segment.ensemble, metadata.write_quorum):
                racks = [world.racks[bookie] for bookie in segment.ensemble]
                return f"a segment of ledger {ledger_id} is in racks {racks}"
    return ""


async def explain(stage: Stage, client: Client) -> None:
    """Check that `explain_ledger` reports every ledger as complete, with its real members."""
    for ledger_id in sorted(stage.world.cluster.ledgers):
        try:
            told = await explain_ledger(client, ledger_id)
        except (NoSuchLedgerError, QuireError) as error:
            stage.checker.fail("what_is_explained_is_true", f"ledger {ledger_id}: {error}")
            continue
        metadata = _metadata(stage.world, ledger_id)
        if metadata is None:
            continue
        named = [tuple(one.bookie for one in segment.replicas) for segment in told.segments]
        bad = [
            f"{one.bookie} is {one.state}, {one.registered}"
            for segment in told.segments
            for one in segment.replicas
            if one.state not in ("present", "empty") or one.registered == "gone"
        ]
        if named != [one.ensemble for one in metadata.segments] or bad:
            what = f"ledger {ledger_id} was explained as {named}; {', '.join(bad)}"
            stage.checker.fail("what_is_explained_is_true", what)


def _metadata(world: World, ledger_id: int) -> LedgerMetadata | None:
    try:
        return world.cluster.ledger(ledger_id).value
    except NoSuchLedgerError:
        return None
