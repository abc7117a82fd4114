"""Replication of fragments, which are segments of a ledger: copying and naming the copies.

The entries that members of a segment should hold are copied to other bookies. Once they are durable
there, the metadata names the new bookies. Each new bookie gets only the entries that its position
in the ensemble stores, so striping is respected. Nothing changes for readers before the
compare-and-swap, so a copy may be abandoned or repeated at any moment. The bookie collects unused
copies as garbage.

A ledger may have thousands of segments. Its metadata grows with them, so one compare-and-swap names
the copies of many segments (`CopyBatch`): the time is linear in the number of segments.

Before a bookie drops an unused copy, it rewrites the metadata unchanged, which changes its version
(`quire.bookie.background.over_replicated`). So the compare-and-swap must use the version that was
read before the copy began. After a conflict, whatever caused it, the copy may be gone and is made
again.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quire.client import Client
from quire.client.client import pool_of
from quire.codec.metadata.ledger_metadata import LedgerMetadata, Segment
from quire.codec.metadata.ledger_metadata_format import encode
from quire.core.fragments import Fragment, entry_bytes, replaced_in, stored_by, with_segments
from quire.core.placement import Wanted
from quire.core.replicas import Copies
from quire.errors import LedgerRecreatedError, QuireError, UsageError, VersionConflictError
from quire.metadata.interface import Versioned
from quire.metadata.ledgers.creation import same_creation
from quire.metadata.ledgers.size import encode_change, ledger_bytes_max
from quire.replication.budget import UNBOUNDED, Budget
from quire.replication.repair.opened_ledger import OpenedLedger
from quire.replication.repair.password_check import check_password
from quire.replication.repair.recovery_adds import RecoveryAdds
from quire.replication.repair.replica_source import ReplicaSource

COPY_WINDOW_BYTES = 1024 * 1024
COPY_WINDOW_ENTRIES_MAX = 4_096
COPY_WINDOW_ENTRIES = 256
"""The number of entries to copy at the same time if their size is not known."""
SEGMENT_MARGIN_BYTES = 16
"""The number of bytes by which the metadata of a segment may grow in addition to the ids of its
bookies, because the lengths of the ids are stored too."""
BATCH_SEGMENTS_MAX = 256
"""The largest number of segments whose copies one compare-and-swap names."""
BATCH_BYTES_MAX = 64 * 1024 * 1024
"""The number of copied payload bytes at which a batch of copies must be named in the metadata. If
the process ends before, the copies are useless. A single segment may have more bytes."""


Wrong = Callable[[Sequence[int]], Collection[str]]
"""A function that receives entry ids, and returns the bookies whose replica of any of them is known
to be wrong although its digest is right."""


def none_wrong(ids: Sequence[int]) -> Collection[str]:
    """Return no bookie, because no replica is known to be wrong."""
    return ()


class CopyOutcome(enum.StrEnum):
    """The outcome of a batch, when the metadata was to name the bookies with the new copies."""

    DONE = "done"
    CONFLICT = "conflict"
    """Another client has changed the ledger, or created it again. The copies are garbage, and the
    metadata must be read again."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of one batch of copies."""

    outcome: CopyOutcome
    entries: int = 0
    size_bytes: int = 0
    """The bytes of payload that were written to new bookies."""
    named: frozenset[int] = frozenset()
    """The first entry ids of the segments whose new members the metadata names."""
    broken: Mapping[str, QuireError] = field(default_factory=dict)
    """The new bookies that failed, with their errors. Copies on them are not named."""


async def choose_replacements(
    client: Client,
    ledger: OpenedLedger,
    fragment: Fragment,
    indexes: Sequence[int],
    lost: Collection[str] = (),
) -> dict[int, str]:
    """Choose new bookies for members of a segment, and return them by member index.

    `indexes` are the members to replace. No new bookie is one of `lost`.

    Raises NotEnoughBookiesError if there are not enough bookies.
    """
    wanted = Wanted.replacing(
        fragment.ensemble,
        {index: fragment.ensemble[index] for index in indexes},
        ledger.metadata.write_quorum,
        ledger.metadata.ack_quorum,
        frozenset(lost),
    )
    chosen = await pool_of(client).pick(wanted)
    if len(chosen) < len(indexes):
        raise client.placement.too_few(wanted)
    return chosen


class CopyBatch:
    """Copies of segments of one ledger, which one compare-and-swap names. Use with `async with`.

    `copy` segments until the batch is `full`, then `name` it, and continue with the next one.
    Copies that are not named when the block ends are garbage. Cancel-safe at any moment.
    """

    def __init__(
        self,
        client: Client,
        ledger: OpenedLedger,
        *,
        budget: Budget = UNBOUNDED,
        living: bool = False,
        segments_max: int | None = None,
        wrong: Wrong = none_wrong,
    ) -> None:
        """Prepare batches for one ledger.

        With `living`, entries are also read from the members to be replaced, like from the others.
        Without it, they are read from these members only if no other bookie has them.
        `segments_max` overrides `BATCH_SEGMENTS_MAX`. Entries are never read from bookies that are
        `wrong` about them.
        """
        self._client = client
        self._ledger = ledger
        self._budget = budget
        self._living = living
        self._wrong = wrong
        self._segments_max = segments_max or BATCH_SEGMENTS_MAX
        self._sources: dict[tuple[str, ...], ReplicaSource] = {}
        """The readers of entries. The key has the bookies that the reader asks last."""
        self._password_checked = False
        self._stored: Versioned[LedgerMetadata] | None = None
        """The metadata as it was before the first copy of the batch, or None before that copy."""
        self._room_bytes = 0
        """A lower bound of the bytes by which the ledger's metadata may still grow in this
        batch."""
        self._adds: dict[str, RecoveryAdds] = {}
        self._copied: list[tuple[Segment, frozenset[str]]] = []
        """The copied segments with their new members, as the metadata will name them, and the new
        bookies of each."""
        self.broken: dict[str, QuireError] = {}
        """The new bookies that failed in any batch, with their errors."""

    async def __aenter__(self) -> CopyBatch:
        return self

    async def __aexit__(self, *error: object) -> None:
        for one in self._adds.values():
            await one.__aexit__(asyncio.CancelledError)
        self._adds = {}

    @property
    def full(self) -> bool:
        """Whether the batch must be named before more is copied."""
        size = sum(one.size_bytes for one in self._adds.values())
        return len(self._copied) >= self._segments_max or size >= BATCH_BYTES_MAX

    async def copy(self, fragment: Fragment, replacements: Mapping[int, str]) -> bool:
        """Copy the entries of the members at these indexes to the bookies that replace them.

        Returns False if nothing was copied, because the segment has changed, the ledger was created
        again, or the batch has a copy of the segment already. The ledger must then be read again.
        Returns True if the copies were sent. They may not be durable yet: `name` waits for that.

        Raises:
            UsageError: The segment is still being written (rule 24).
            ReadError: An entry has no good replica left.
            UnauthorizedError: The password of an open ledger is wrong, or cannot be checked.
            BookieError: A new bookie failed. The attribute `broken` has it then.
            NoSuchLedgerError: The ledger was deleted.
            MetadataTooLargeError: The names of the new bookies do not fit. Nothing was copied.
            MetadataError: The store failed.
        """
        if not fragment.closed:
            raise UsageError(
                f"the segment of ledger {self._ledger.ledger_id} from entry "
                f"{fragment.segment_first} on was not copied, because it is still being written",
                remedy="Only complete segments can be copied: wait until the writer closes the "
                "ledger or changes its ensemble",
            )
        stored = await self._begun()
        if not same_creation(self._ledger.stored, stored):
            return False
        segment = _changed(stored.value, fragment, replacements)
        if segment is None or any(one.first_entry_id == fragment.first for one, _ in self._copied):
            return False
        self._take_room(stored.value, segment)
        if not fragment.empty:
            if not self._password_checked:
                await check_password(self._client, self._ledger)
                self._password_checked = True
            await self._copy_to(fragment, replacements)
        self._copied.append((segment, frozenset(replacements.values())))
        return True

    async def _begun(self) -> Versioned[LedgerMetadata]:
        """Return the metadata from before the first copy of the batch. Read it if necessary."""
        if self._stored is None:
            self._stored = await self._client.metadata.read_ledger(self._ledger.ledger_id)
            value = self._stored.value
            self._room_bytes = ledger_bytes_max(value.state) - len(encode(value))
        return self._stored

    def _take_room(self, now: LedgerMetadata, segment: Segment) -> None:
        """Check that the metadata has room for the ids of the segment's new bookies.

        The check estimates their bytes, and encodes the metadata only near the limit, because
        encoding all segments for each one would make the work quadratic. Raises
        MetadataTooLargeError.
        """
        there = next(one for one in now.segments if one.first_entry_id == segment.first_entry_id)
        names = zip(there.ensemble, segment.ensemble)
        growth = sum(len(new.encode()) - len(old.encode()) for old, new in names if new != old)
        self._room_bytes -= max(growth, 0) + SEGMENT_MARGIN_BYTES
        if self._room_bytes < 0:
            wanted = with_segments(now, [*(one for one, _ in self._copied), segment])
            encode_change(wanted, self._ledger.ledger_id)

    async def _copy_to(self, fragment: Fragment, replacements: Mapping[int, str]) -> None:
        old = tuple(fragment.ensemble[index] for index in replacements)
        last = () if self._living else old
        if last not in self._sources:
            self._sources[last] = ReplicaSource(self._client, self._ledger, last=last)
        step = window_entries(self._ledger.metadata, self._budget)
        adds: dict[int, RecoveryAdds] = {}
        try:
            for index, bookie in replacements.items():
                adds[index] = await self._opened(bookie)
            await _copy(self._ledger, fragment, self._sources[last], adds, step, self._wrong)
        except QuireError as error:
            failed = [replacements[index] for index, one in adds.items() if one.failed]
            self.broken.update(dict.fromkeys(failed, error))
            raise

    async def _opened(self, bookie: str) -> RecoveryAdds:
        if bookie not in self._adds:
            adds = RecoveryAdds(self._client, self._ledger, bookie, budget=self._budget)
            try:
                self._adds[bookie] = await adds.__aenter__()
            except QuireError as error:
                self.broken[bookie] = error
                raise
        return self._adds[bookie]

    async def name(self) -> CopyResult:
        """Wait until the copies are durable, and name them by one compare-and-swap.

        Segments with a copy on a bookie that failed are not named; the bookie is in `broken` of the
        result. CONFLICT means that another client changed the ledger, and nothing was named. The
        next `copy` begins another batch.

        Raises:
            NoSuchLedgerError: The ledger was deleted.
            MetadataUnavailableError: The compare-and-swap may have been done. Read the metadata
                again to find out.
            MetadataError: The store refused the change, and nothing was named.
        """
        broken: dict[str, QuireError] = {}
        adds, copied, stored = self._adds, self._copied, self._stored
        for bookie in list(adds):
            one = adds[bookie]
            try:
                await one.__aexit__(None)
            except QuireError as error:
                broken[bookie] = error
        self._adds, self._copied, self._stored = {}, [], None
        self.broken.update(broken)
        entries = sum(one.entries for one in adds.values())
        size_bytes = sum(one.size_bytes for one in adds.values())
        durable = [segment for segment, bookies in copied if bookies.isdisjoint(broken)]
        named = frozenset(one.first_entry_id for one in durable)
        done = CopyResult(CopyOutcome.DONE, entries, size_bytes, named, broken)
        if not durable:
            return done
        assert stored is not None  # something was copied
        if await self._name_all(stored, durable):
            return done
        return replace(done, outcome=CopyOutcome.CONFLICT, named=frozenset())

    async def _name_all(
        self, stored: Versioned[LedgerMetadata], segments: Sequence[Segment]
    ) -> bool:
        wanted = with_segments(stored.value, segments)
        return await _name(self._client, self._ledger.ledger_id, stored, wanted)


async def _copy(
    ledger: OpenedLedger,
    fragment: Fragment,
    source: ReplicaSource,
    adds: Mapping[int, RecoveryAdds],
    step: int,
    wrong: Wrong,
) -> None:
    metadata = ledger.metadata
    first = fragment.first
    while first <= fragment.last:
        last = min(first + step - 1, fragment.last)
        wanted = {index: stored_by(metadata, index, first, last) for index in adds}
        every = sorted(set().union(*wanted.values()))
        for portion in portions(every, wrong):
            copies = await source.read(fragment.ensemble, portion, wrong(portion))
            for index, ids in wanted.items():
                mine = ids if portion is every else [entry for entry in portion if entry in ids]
                if mine:
                    await adds[index].write(part_of(copies, mine))
        first = last + 1


def portions(ids: Sequence[int], wrong: Wrong) -> Iterator[Sequence[int]]:
    """Divide entries into portions that may be read together.

    An entry with a wrong replica is a portion of its own, because it has its own good replicas. The
    others are one portion, which is `ids` itself if there is no wrong replica.
    """
    alone = [entry for entry in ids if wrong((entry,))] if wrong(ids) else []
    together = [entry for entry in ids if entry not in alone] if alone else ids
    if together:
        yield together
    for entry in alone:
        yield (entry,)


def window_entries(metadata: LedgerMetadata, budget: Budget) -> int:
    """Return the number of entries of a ledger to copy at the same time, from their mean size."""
    mean = entry_bytes(metadata)
    if not mean:
        return COPY_WINDOW_ENTRIES
    count = int(budget.slice_bytes(COPY_WINDOW_BYTES) / mean)
    return min(max(count, 1), COPY_WINDOW_ENTRIES_MAX)


def part_of(copies: Copies, ids: Sequence[int]) -> Copies:
    """Return the entries of `copies` whose ids are in `ids`, in the order of `ids`."""
    if len(ids) == len(copies.ids):
        return copies
    at = {entry: n for n, entry in enumerate(copies.ids)}
    rows = [at[entry] for entry in ids]
    return Copies(ids, [copies.payloads[n] for n in rows], [copies.lengths[n] for n in rows])


def _changed(
    now: LedgerMetadata, fragment: Fragment, replacements: Mapping[int, str]
) -> Segment | None:
    """Return the present segment with its replacements, or None if it is no longer `fragment`."""
    first = fragment.segment_first
    there = now.segment_of(first)
    if there.first_entry_id != first or there.ensemble != fragment.ensemble:
        return None
    # The copy has the whole segment only if the end of the segment has not changed meanwhile.
    if now.segment_end(there, now.last_entry_id if now.closed else fragment.last) != fragment.last:
        return None
    changes = {index: (fragment.ensemble[index], new) for index, new in replacements.items()}
    return replaced_in(now, first, changes)


async def _name(
    client: Client,
    ledger_id: int,
    known: Versioned[LedgerMetadata],
    wanted: LedgerMetadata,
) -> bool:
    """Write the metadata, and return whether the metadata store has `wanted` now."""
    try:
        await client.metadata.write_ledger(ledger_id, wanted, known.version, known)
    except VersionConflictError:
        # The conflict may be with this client's own write, if the answer to that was lost.
        stored = await client.metadata.read_ledger(ledger_id)
        return same_creation(known, stored) and stored.value == wanted
    except LedgerRecreatedError:
        return False  # even if this write was done before, the ledger is another one now
    return True
