"""Record what each bookie has claimed to be durable.

A claim is recorded where the store reports it, not where a client learns of it, and when a bookie
finds the entries at its start. A claim stays true: a bookie that comes back must still have what it
claimed. The exceptions are a destroyed disk, a deleted ledger, and copies that the bookie dropped
because they no longer belong to it. What was lost with a data directory counts as lost until the
bookie claims it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from quire.codec.entry.frame_runs import Entries
from quire.codec.wire.v2 import Buffer
from quire.errors import StorageError
from quire.storage.directories import Store
from quire.storage.recovery.early_reads import EarlyReads
from quire.storage.recovery.log_recovery import RecoveryReport
from quire.storage.segment.batch import LogBatch, Run
from quire.storage.segment.segment import LedgerInfo
from quire.storage.store import LedgerStore

Done = Callable[[LogBatch, StorageError | None], None]
RecordDone = Callable[[StorageError | None], None]


def entries_of(run: Run) -> Iterable[int]:
    return range(run.first, run.first + run.count) if run.ids is None else list(run.ids)


class Claims:
    """The claims of all bookies, by bookie id and ledger id."""

    reports: dict[str, RecoveryReport]
    """The report of the last start of each bookie."""
    known: dict[str, frozenset[int]]
    """The ledgers that each bookie had at its last start."""
    served: Callable[[str, int, int, Sequence[Buffer]], None]
    """Called when a bookie serves entries, with the bookie id, ledger, first entry, and entries."""

    dropped: Callable[[str, int], None]
    """Called with the bookie id and the ledger before a bookie drops a ledger."""

    def __init__(self) -> None:
        self.reports, self.known = {}, {}
        self.served_while_loading = 0
        """The number of entries that bookies served before they had loaded their logs."""
        self.frame_bytes_max = 0
        """The size of the largest entry that a bookie was given, with its frame."""
        self.served = lambda me, ledger_id, first, entries: None
        self.dropped = lambda me, ledger_id: None
        self._entries: dict[int, dict[str, set[int]]] = {}
        self._fences: dict[int, dict[str, bool]] = {}
        self._lost: dict[int, dict[str, set[int]]] = {}
        self.lost_fences: dict[str, set[int]] = {}
        """Ledgers that the bookie had fenced when it lost them and that still name it."""
        self._gone: dict[str, dict[int, bool]] = {}
        """The ledgers that each bookie dropped and has not had since, and whether that is durable.

        Bookies with several directories are left out, because one of them may be missing.
        """
        self.returned: dict[str, list[int]] = {}
        """The ledgers that each bookie found at its last start, although it had dropped them for
        good."""
        self.drops_kept = 0
        """The number of durable drops that starts were compared with."""
        self.lost_at_s: dict[str, float] = {}
        """The time when each bookie last lost a directory."""

    def of(self, ledger_id: int) -> Mapping[str, set[int]]:
        """Return a map from bookie id to the entries that it has claimed."""
        return self._entries.get(ledger_id, {})

    def lost(self, ledger_id: int) -> Mapping[str, set[int]]:
        """Return a map from bookie id to the entries that it claimed and then lost with a
        directory.

        It may have claimed them again since.
        """
        return self._lost.get(ledger_id, {})

    def lose(self, bookie_id: str, ledger_ids: Iterable[int], now_s: float) -> None:
        """Record that a bookie lost these ledgers, with their fences."""
        self.lost_at_s[bookie_id] = now_s
        self._gone.pop(bookie_id, None)
        for ledger_id in ledger_ids:
            entries = self._entries.get(ledger_id, {}).pop(bookie_id, set())
            self._lost.setdefault(ledger_id, {}).setdefault(bookie_id, set()).update(entries)
            if self._fences.get(ledger_id, {}).pop(bookie_id, False):
                self.lost_fences.setdefault(bookie_id, set()).add(ledger_id)

    def held_by(self, bookie_id: str) -> dict[int, tuple[frozenset[int], bool]]:
        """Return the entries and the fence that the bookie has claimed so far, by ledger id."""
        return {
            ledger_id: (
                frozenset(self._entries.get(ledger_id, {}).get(bookie_id, ())),
                self._fences.get(ledger_id, {}).get(bookie_id, False),
            )
            for ledger_id in self.ledgers_of(bookie_id)
        }

    def keep(self, bookie_id: str, ledger_id: int, held: tuple[frozenset[int], bool]) -> None:
        """Count these entries and this fence of a ledger as not lost.

        The bookie still has them, or an older copy of the lost directory has them.
        """
        entries, fenced = held
        self._claimed(bookie_id, ledger_id).update(entries)
        if fenced:
            self._fences.setdefault(ledger_id, {})[bookie_id] = True
            self.lost_fences.get(bookie_id, set()).discard(ledger_id)

    def forget(self, bookie_id: str, ledger_id: int) -> None:
        """Forget the bookie's claims on a ledger that it no longer has to keep."""
        self._entries.get(ledger_id, {}).pop(bookie_id, None)
        self._fences.get(ledger_id, {}).pop(bookie_id, None)

    def named(self, ledger_id: int, bookies: Collection[str]) -> None:
        """Record that only these bookies are members of the ledger: others need no fence."""
        for bookie, ledgers in self.lost_fences.items():
            if bookie not in bookies:
                ledgers.discard(ledger_id)

    def ledgers_of(self, bookie_id: str) -> list[int]:
        claimed = [n for n, by in self._entries.items() if bookie_id in by]
        claimed += [n for n, by in self._fences.items() if bookie_id in by]
        return sorted(set(claimed))

    def fenced(self, bookie_id: str, ledger_id: int) -> bool:
        return bookie_id in self._fences.get(ledger_id, {})

    def ends(self, bookie_id: str, store: Store) -> None:
        """Note which drops of a bookie are durable, at the moment when it stops or dies."""
        gone = self._gone.get(bookie_id, {})
        if not isinstance(store, LedgerStore) or not store._started:
            return  # A bookie that was stopped while it started has dropped nothing.
        if store._maintenance.collector.deletions_logged:
            gone.update(dict.fromkeys(gone, True))

    def watch(self, bookie_id: str, store: Store) -> None:
        """Record from now on what this store claims."""
        self._watch_start(bookie_id, store)
        self._watch_writes(bookie_id, store)
        self._watch_reads(bookie_id, store)
        for early in store.early:
            self._watch_loading(bookie_id, early)

    def _watch_start(self, bookie_id: str, store: Store) -> None:
        recover = store.recover

        def noted_recover() -> RecoveryReport:
            self.reports[bookie_id] = report = recover()
            self.known[bookie_id] = frozenset(store.ledgers)
            # Entries that were written before an unclean stop are durable now, although they were
            # not acknowledged.
            for ledger_id, info in store.ledgers.items():
                for part in info.open_parts:
                    for run in part.runs:
                        self._claimed(bookie_id, ledger_id).update(entries_of(run))
            self._compare_drops(bookie_id, store.ledgers)
            return report

        store.recover = noted_recover  # type: ignore[method-assign]

    def _compare_drops(self, bookie_id: str, found: Mapping[int, object]) -> None:
        gone = self._gone.pop(bookie_id, {})
        kept = {ledger_id for ledger_id, durable in gone.items() if durable}
        self.drops_kept += len(kept)
        self.returned[bookie_id] = sorted(kept & found.keys())
        # The log that was just loaded does not have these, so no later start may find them.
        self._gone[bookie_id] = dict.fromkeys(gone.keys() - found.keys(), True)

    def _watch_writes(self, bookie_id: str, store: Store) -> None:
        append, fence, drop = store.append, store.fence, store.drop_ledgers
        create = store.create_ledger

        def noted_append(batch: LogBatch, done: Done, *, reserve: bool = False) -> None:
            sizes = [run.frame_size or max(run.sizes or (0,)) for run in batch._runs]
            sizes += [] if batch.columns is None else [batch.columns[2]]
            self.frame_bytes_max = max(self.frame_bytes_max, 0, *sizes)
            append(batch, lambda b, error: synced(b, error, done), reserve=reserve)

        def synced(batch: LogBatch, error: StorageError | None, done: Done) -> None:
            if error is None:
                self._claim(bookie_id, batch.runs)
            done(batch, error)

        def noted_fence(ledger_id: int, done: RecordDone) -> None:
            fence(ledger_id, lambda error: fenced(ledger_id, error, done))

        def fenced(ledger_id: int, error: StorageError | None, done: RecordDone) -> None:
            if error is None:
                self._fences.setdefault(ledger_id, {})[bookie_id] = True
            done(error)

        def noted_drop(ledger_ids: Iterable[int]) -> None:
            ids = list(ledger_ids)
            for ledger_id in ids:
                self.dropped(bookie_id, ledger_id)
                self.forget(bookie_id, ledger_id)
            if isinstance(store, LedgerStore):
                self._gone.setdefault(bookie_id, {}).update(dict.fromkeys(ids, False))
            drop(ids)

        def noted_create(ledger_id: int, master_key: bytes, *, again: bool = False) -> LedgerInfo:
            self._gone.get(bookie_id, {}).pop(ledger_id, None)
            return create(ledger_id, master_key, again=again)

        store.create_ledger = noted_create  # type: ignore[method-assign]

        store.append = noted_append  # type: ignore[method-assign]
        store.fence = noted_fence  # type: ignore[method-assign]
        store.drop_ledgers = noted_drop  # type: ignore[method-assign]

    def _watch_reads(self, bookie_id: str, store: Store) -> None:
        read, read_blocking = store.read, store.read_blocking

        def noted_read(ledger_id: int, first: int, *how: int) -> Sequence[Buffer]:
            entries = read(ledger_id, first, *how)
            self.served(bookie_id, ledger_id, first, entries)
            return entries

        async def noted_read_blocking(ledger_id: int, first: int, *how: int) -> Sequence[Buffer]:
            entries = await read_blocking(ledger_id, first, *how)
            self.served(bookie_id, ledger_id, first, entries)
            return entries

        store.read = noted_read  # type: ignore[method-assign, assignment]
        store.read_blocking = noted_read_blocking  # type: ignore[method-assign, assignment]

    def _watch_loading(self, bookie_id: str, early: EarlyReads) -> None:
        read = early.read

        async def noted_read(ledger_id: int, first: int, *how: int) -> Entries | None:
            entries = await read(ledger_id, first, *how)
            if entries is not None:
                self.served(bookie_id, ledger_id, first, entries)
                self.served_while_loading += len(entries)
            return entries

        early.read = noted_read  # type: ignore[method-assign, assignment]

    def _claim(self, bookie_id: str, runs: Sequence[Run]) -> None:
        for run in runs:
            self._claimed(bookie_id, run.ledger_id).update(entries_of(run))

    def _claimed(self, bookie_id: str, ledger_id: int) -> set[int]:
        return self._entries.setdefault(ledger_id, {}).setdefault(bookie_id, set())
