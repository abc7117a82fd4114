"""A Byzantine bookie: it stores what it receives, but gives some clients wrong answers.

Each ensemble has at most one, as clients assume (`assume_liars`), and it may continue to the end of
the run. Its own copies count neither for nor against an invariant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.bookie.server import Bookie
from quire.client import Client
from quire.client.cluster.health import PROVEN, Misbehaviour
from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import META, EntryCodec
from quire.codec.wire.v2 import Buffer
from quire.errors import NoSuchLedgerError, StorageError
from quire.storage.read.read_exceptions import NoEntry
from quire.storage.segment.batch import LogBatch
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import World

BYZANTINE = "bookie-0"
FORGED = b"FORGED"
LAC_AHEAD = 999


class ByzantineBookie:
    """A Byzantine bookie. `world.lies` names the lies it tells, and how often."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._chance = world.loop.derive(f"liar {name}")
        self._earlier: dict[int, bytes] = {}
        """One entry of each ledger, to be returned in place of another."""
        started = world.started

        async def on_start(started_name: str, bookie: Bookie) -> None:
            if started_name == name:
                self._hold(bookie)
            await started(started_name, bookie)

        world.started = on_start
        if name in world.bookies:
            self._hold(world.bookies[name])

    def _tells(self, lie: str) -> bool:
        return self._chance.random() < self._world.lies.get(lie, 0.0)

    def _hold(self, bookie: Bookie) -> None:
        store = bookie.store
        read, read_blocking, append, fence = (
            store.read, store.read_blocking, store.append, store.fence
        )  # fmt: skip

        def lying_read(ledger_id: int, first: int, *how: int) -> list[Buffer]:
            return self._told(ledger_id, read(ledger_id, first, *how))

        async def lying_read_blocking(ledger_id: int, first: int, *how: int) -> list[Buffer]:
            return self._told(ledger_id, await read_blocking(ledger_id, first, *how))

        def lying_append(
            batch: LogBatch,
            done: Callable[[LogBatch, StorageError | None], None],
            *,
            reserve: bool = False,
        ) -> None:
            if self._tells("drop"):
                done(batch, None)
            else:
                append(batch, done, reserve=reserve)

        def lying_fence(ledger_id: int, done: Callable[[StorageError | None], None]) -> None:
            if self._tells("ignore fence"):
                done(None)
            else:
                fence(ledger_id, done)

        store.read = lying_read  # type: ignore[method-assign, assignment]
        store.read_blocking = lying_read_blocking  # type: ignore[method-assign, assignment]
        store.append = lying_append  # type: ignore[method-assign]
        store.fence = lying_fence  # type: ignore[method-assign]

    def _told(self, ledger_id: int, entries: Sequence[Buffer]) -> list[Buffer]:
        found: list[Buffer] = []
        for entry in map(bytes, entries):
            if self._tells("deny"):
                break
            if self._tells("forge"):
                found.append(self._forged(ledger_id, entry))
            elif self._tells("garble"):
                found.append(garbled(entry))
            elif self._tells("swap") and ledger_id in self._earlier:
                found.append(self._earlier[ledger_id])
            else:
                found.append(entry)
                self._earlier.setdefault(ledger_id, entry)
        if not found:
            raise NoEntry
        return found

    def _forged(self, ledger_id: int, entry: bytes) -> bytes:
        """Return another payload, and perhaps another LAC, with a valid digest.

        If a bookie cannot compute the ledger's digest, the entry is only garbled.
        """
        try:
            metadata = self._world.cluster.ledger(ledger_id).value
        except NoSuchLedgerError:
            return garbled(entry)
        digest = metadata.digest or DigestType.CRC32
        if digest is DigestType.HMAC and metadata.password:
            return garbled(entry)  # Bookies do not know the password of the HMAC key.
        _, entry_id, lac, length = META.unpack_from(entry)
        told = self._chance.choice((lac, -1, entry_id + LAC_AHEAD))
        return EntryCodec(ledger_id, digest, b"").pack(entry_id, told, length, FORGED)


def garbled(entry: bytes) -> bytes:
    return entry[:-1] + bytes([entry[-1] ^ 1])


def hear(stage: Stage, name: str, client: Client) -> None:
    """Check in the end that a client accuses only Byzantine bookies.

    In a run without faults, no replica of a ledger that is `closed_whole` is missing. Some replicas
    lag for a moment.
    """
    undisturbed = not stage.plan.schedule and not stage.plan.cancelling
    for one in client.suspects():
        facts = stage.checker.facts(one.last_ledger)
        honest = one.bookie not in stage.checker.destroyed
        if one.kind is Misbehaviour.DROPPED and facts.recreated:
            # A recovery may take entries of the former ledger for those of the new one. Members
            # that never had them then look as if they had dropped them.
            honest &= one.last_entry in stage.world.claims.of(one.last_ledger).get(one.bookie, ())
        if one.kind in PROVEN and honest:
            what = f"{name} reports {one.kind.value} of {one.bookie}"
            what += f", entry {one.last_entry} of ledger {one.last_ledger}"
            stage.checker.fail("only_a_liar_is_accused", what)
        everywhere = facts.closed_whole and not facts.deleted
        if one.kind is Misbehaviour.MISSING and undisturbed and everywhere:
            what = f"{name} reports that {one.bookie} lacks entry {one.last_entry}"
            what += f" of ledger {one.last_ledger}, which it has a moment later"
            stage.checker.fail("a_late_replica_is_not_accused", what)
