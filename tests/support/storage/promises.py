"""A store that may be stopped at any moment, and the check that it keeps what it has promised."""

from __future__ import annotations

import random
import struct
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quire._runtime.clock import SystemClock
from quire.bookie.directories import identity
from quire.errors import StorageError
from quire.storage.config import StorageConfig
from quire.storage.recovery.log_recovery import RecoveryReport
from quire_simulator.machine.disk import SimDisk
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.items import StoredItem
from quire_simulator.metadata.store import MemoryStore
from tests.support.storage.storage import Entries, StoreOnDisk, key_of, run

T = TypeVar("T")
EARLY_LOOKS = 4
"""The approximate number of entries that are read at each step of a start."""
BOOKIE_ID = "bookie-1:3181"
INSTANCE_ID = "0f5f2f51-7a4a-4d0c-9d0b-2a9e4d5c6b7a"


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits only for event-loop iterations, and return its result."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


@dataclass(slots=True)
class Promises:
    """Everything that a store has reported as durable, and everything else that it may hold."""

    acknowledged: Entries = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    lacs: dict[int, bytes] = field(default_factory=dict)
    """The last explicit LAC that was reported durable, as a packet, by ledger."""
    dropped: dict[int, bool] = field(default_factory=dict)
    """The ledgers whose deletion has begun, and whether each was fenced.

    After a crash they may exist again.
    """
    deleted: dict[int, bool] = field(default_factory=dict)
    """The ledgers whose deletion is durable, and whether each was fenced. They must not exist
    again.
    """
    refused: set[int] = field(default_factory=set)
    """The ids of ledgers that were fenced and whose deletion is durable.

    The store must refuse to create them again, or hold them fenced.
    """
    cookies: dict[str, StoredItem] = field(default_factory=dict)
    """The cookies in the metadata store, which does not crash, by bookie id."""
    seen: Entries = field(default_factory=dict)
    """Every entry that was ever appended. No other entry may ever be read."""
    seen_lacs: dict[int, set[bytes]] = field(default_factory=dict)
    version: int = 0
    """A number that grows with each promise, and when a promise is withdrawn."""

    @property
    def mark(self) -> tuple[int, int]:
        """A value that changes whenever the promises change."""
        return self.version, len(self.cookies)

    def copy(self) -> Promises:
        lacs = {ledger_id: set(packets) for ledger_id, packets in self.seen_lacs.items()}
        return Promises(
            dict(self.acknowledged), set(self.fenced), dict(self.lacs), dict(self.dropped),
            dict(self.deleted), set(self.refused), dict(self.cookies), dict(self.seen), lacs,
            self.version,
        )  # fmt: skip


class PromisingStore(StoreOnDisk):
    """A store with the cookie of a bookie, which records what it promises."""

    def __init__(
        self, disk: SimDisk, config: StorageConfig, promises: Promises | None = None
    ) -> None:
        super().__init__(disk, config)
        self.sim = disk
        self.promises = promises or Promises()
        self.acknowledged = self.promises.acknowledged
        self.fenced = self.promises.fenced
        self.written = self.promises.seen
        cluster = MemoryCluster("sweep", clock=SystemClock(), rng=random.Random(1))
        cluster.instance_id = INSTANCE_ID
        cluster.cookies = self.promises.cookies
        self.metadata = MemoryStore(cluster)
        self.serving = False
        """Whether the store is open."""
        self.early_entries = 0
        """The number of entries that were read while the store loaded its log."""
        self.searched_entries = 0
        """The number of these that were found in the index cache while it was loaded."""

    def open(self) -> RecoveryReport:
        rng = random.Random(5)
        drive(identity.check_identity(self.disk, self.metadata, BOOKIE_ID, rng.randbytes))
        report = super().open()
        self.serving = True
        return report

    def before_recovery(self) -> None:
        """Arrange that entries are read at every step while the store loads its log.

        Each read must return the right entry, or find nothing.
        """
        loading, [early] = self.store._loading, self.store.early
        advance, check, keys = loading.advance, loading.check, sorted(self.promises.seen)
        keys = keys[:: len(keys) // EARLY_LOOKS + 1]

        def look() -> None:
            for ledger_id, entry_id in keys if loading.sealed else ():
                searched = loading.search is not None and ledger_id not in self.store.ledgers
                found = run(early.read(ledger_id, entry_id, 1, 0, 0))
                if found is not None:
                    entry = self.promises.seen[ledger_id, entry_id]
                    assert bytes(found[0]) == entry, (
                        f"{ledger_id, entry_id} is wrong during a start"
                    )
                    self.early_entries += 1
                    self.searched_entries += searched

        def advancing(segments: int = 1) -> None:
            look()
            advance(segments)

        def checking() -> None:
            if loading.search is not None:
                look()
            check()

        loading.advance = advancing  # type: ignore[method-assign]
        loading.check = checking  # type: ignore[method-assign]

    def close(self) -> None:
        self.serving = False
        super().close()

    def append(
        self,
        entries: Sequence[tuple[int, int, bytes]],
        *,
        reserve: bool = False,
        cuts: Sequence[int] = (),
    ) -> None:
        """Append entries as `StoreOnDisk.append` does.

        A ledger that the store refuses to create is created again, as an add of a recovery does.
        """
        for ledger_id in sorted({entry[0] for entry in entries} - self.store.ledgers.keys()):
            self.promises.deleted.pop(ledger_id, None)
            if self.store.is_refused(ledger_id):
                self.store.create_ledger(ledger_id, key_of(ledger_id), again=True)
        before = len(self.written)
        super().append(entries, reserve=reserve, cuts=cuts)
        assert len(self.written) == before + len(entries), "an entry id was used twice"

    def write_lac(self, ledger_id: int, lac: int) -> None:
        packet = struct.pack(">qq", ledger_id, lac)
        self.promises.seen_lacs.setdefault(ledger_id, set()).add(packet)

        def done(error: StorageError | None) -> None:
            if error is None:
                self.promises.lacs[ledger_id] = packet
                self.promises.version += 1

        self.store.write_explicit_lac(ledger_id, packet, done)

    def drop(self, ledger_ids: Any) -> None:
        """Delete ledgers, and record what that promises.

        Once the deletion is durable, the ledgers must not exist again. Those that were fenced must
        be refused.
        """
        promises, gone = self.promises, sorted(set(ledger_ids))
        refused = {ledger_id for ledger_id in gone if self.store.ledgers[ledger_id].fenced}
        for ledger_id in gone:
            promises.dropped[ledger_id] = ledger_id in self.fenced
        self.store.drop_ledgers(gone)
        for key in [key for key in self.acknowledged if key[0] in gone]:
            del self.acknowledged[key]
        self.fenced.difference_update(gone)
        for ledger_id in gone:
            promises.lacs.pop(ledger_id, None)
        promises.version += 1

        def done(error: StorageError | None) -> None:
            # If there was no space for the record, it is logged later, and nothing is promised yet.
            if error is None and self.store.deletions_logged:
                promises.version += 1
                promises.deleted.update({one: one in refused for one in gone})
                promises.refused.update(refused)

        self.store.barrier(done)

    def fence(self, ledger_id: int) -> None:
        if ledger_id not in self.store.ledgers:
            self.store.create_ledger(ledger_id, key_of(ledger_id))

        def done(error: StorageError | None) -> None:
            self.promises.version += 1
            if error is not None:
                self.errors.append(error)
            elif ledger_id in self.store.ledgers:
                self.fenced.add(ledger_id)
            elif ledger_id in self.promises.dropped:  # It was dropped meanwhile.
                self.promises.dropped[ledger_id] = True

        self.store.fence(ledger_id, done)

    # -- checks -----------------------------------------------------------------------------------

    def check(self) -> Entries:
        """Check that everything promised exists, and return all entries.

        Everything else must be complete or missing.
        """
        store, promises = self.store, self.promises
        assert self.report.problems == (), self.report.problems
        assert not self.report.negatives_unknown
        assert not self.report.damaged_blocks or self.report.torn_group is not None
        found = self.readable()
        for key, entry in found.items():
            assert promises.seen.get(key) == entry, f"{key} is not what was written"
        for key in promises.acknowledged:
            assert key in found, f"{key} was acknowledged but is missing"
        for ledger_id in promises.fenced:
            assert ledger_id in store.ledgers, f"ledger {ledger_id} is gone with its fence"
            assert store.ledgers[ledger_id].fenced, f"the fence of ledger {ledger_id} is gone"
        for ledger_id, packet in promises.lacs.items():
            known = store.ledgers[ledger_id].explicit_lac
            assert known is not None, f"the explicit LAC of ledger {ledger_id} is gone"
            assert known >= packet, f"the explicit LAC of ledger {ledger_id} is an older one"
        self._check_ledgers(found)
        self._check_deleted()
        return found

    def _check_ledgers(self, found: Entries) -> None:
        lasts: dict[int, int] = {}
        for ledger_id, entry_id in found:
            lasts[ledger_id] = max(lasts.get(ledger_id, -1), entry_id)
        for ledger_id, info in self.store.ledgers.items():
            what = f"ledger {ledger_id}"
            assert info.master_key == key_of(ledger_id), f"{what} has another master key"
            assert info.last_entry_id == lasts.get(ledger_id, -1), f"{what} ends elsewhere"
            packets = self.promises.seen_lacs.get(ledger_id, set())
            assert info.explicit_lac is None or info.explicit_lac in packets
            told = [struct.unpack(">qq", packet)[1] for packet in packets]
            told += [key[1] for key in self.promises.seen if key[0] == ledger_id]
            assert info.last_add_confirmed <= max(told, default=-1), f"{what}: an unknown LAC"

    def _check_deleted(self) -> None:
        store, promises = self.store, self.promises
        for ledger_id in promises.deleted:
            assert ledger_id not in store.ledgers, f"ledger {ledger_id} is back after its deletion"
        for ledger_id, fenced in promises.dropped.items():
            info = store.ledgers.get(ledger_id)
            if fenced and info is not None:
                assert info.fenced, f"ledger {ledger_id} came back without its fence"
        for ledger_id in promises.refused - store.ledgers.keys():
            assert store.is_refused(ledger_id), f"ledger {ledger_id} is no longer refused"

    def readable(self) -> Entries:
        """Read every entry that the index names, and return the entries.

        A DamagedError means that an entry is missing.
        """
        found: Entries = {}
        for ledger_id in self.store.ledgers:
            for first, last in drive(self.store.entry_ranges(ledger_id)):
                while first <= last:
                    entries = self.read(ledger_id, first, last - first + 1)
                    found.update({(ledger_id, first + at): one for at, one in enumerate(entries)})
                    first += len(entries)
        return found
