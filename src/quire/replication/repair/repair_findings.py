"""Repair of the entries that single bookies lack, from replicas with a valid digest.

The entries are written back to the bookie that lacks them. If that bookie cannot be repaired,
another one replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from quire.client import Client
from quire.core.fragments import Fragment, stored_by
from quire.core.replicas import Copies, Finding, Kind
from quire.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    NoSuchLedgerError,
    QuireError,
    ReadError,
)
from quire.metadata.ledgers.unreadable import UNREADABLE, reason_of
from quire.replication.budget import UNBOUNDED, Budget
from quire.replication.marks.locks import LockHeldError, ReplicationLocks
from quire.replication.repair.bookie_removal import CONFLICTS_MAX, REASON_CHARS_MAX
from quire.replication.repair.fragment import (
    CopyBatch,
    CopyResult,
    choose_replacements,
    portions,
    window_entries,
)
from quire.replication.repair.opened_ledger import OpenedLedger, open_for_repair
from quire.replication.repair.password_check import check_password
from quire.replication.repair.recovery_adds import RecoveryAdds
from quire.replication.repair.replica_reader import ReplicaReader, Unreachable, answers
from quire.replication.repair.replica_source import ReplicaSource

WRITE_BACK_ATTEMPTS = 2
"""The number of attempts to write entries back to a bookie that answers, but whose connection is
lost."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair of one ledger."""

    ledger: int
    """The id of the ledger."""
    written_back: int = 0
    """The number of entries that were written back to the bookie that lacked them."""
    moved: int = 0
    """The number of segments in which another bookie replaced one that could not be repaired."""
    entries: int = 0
    """The number of entries that were written, back to a bookie or to another one."""
    size_bytes: int = 0
    """The payload bytes of the entries that were written."""
    left: list[Finding] = field(default_factory=list)
    """The findings that could not be repaired. `Finding.detail` says why."""


async def repair_ledger(
    client: Client,
    locks: ReplicationLocks,
    ledger_id: int,
    found: Sequence[Finding],
    *,
    password: bytes = b"",
    budget: Budget = UNBOUNDED,
) -> Repaired:
    """Repair the findings of one ledger, and only these, under the ledger's lock.

    Every entry that is written back is read again from that bookie. A bookie that does not return
    it is replaced. A replica that differs from the others is overwritten only if most replicas
    agree. Outdated findings count as repaired: those of a bookie that is no longer a member, or of
    a ledger that was deleted. `password` is used if the metadata does not contain one, and `budget`
    limits the rate of the copies. Safe to repeat. Cancel-safe. Raises only MetadataError.
    """
    try:
        async with locks.hold(ledger_id):
            return await repair_locked(client, ledger_id, found, password=password, budget=budget)
    except LockHeldError as error:
        left = [replace(one, detail=str(error.args[0])) for one in found]
        return Repaired(ledger_id, left=left)


async def repair_locked(
    client: Client,
    ledger_id: int,
    found: Sequence[Finding],
    *,
    password: bytes = b"",
    budget: Budget = UNBOUNDED,
) -> Repaired:
    """Do the same as `repair_ledger`, with its arguments, for a ledger whose lock the caller holds.

    Safe to repeat. Cancel-safe. Raises only MetadataError.
    """
    return await _Repair(client, ledger_id, found, password, budget).run()


@dataclass(slots=True)
class _Moving:
    """A segment in which another bookie replaces a member that could not be repaired."""

    findings: Sequence[Finding]
    why: str
    """The reason why the member could not be repaired."""
    target: str = ""


class _Repair:
    def __init__(
        self,
        client: Client,
        ledger_id: int,
        found: Sequence[Finding],
        password: bytes,
        budget: Budget,
    ) -> None:
        self._client = client
        self._found = found
        self._different = [one for one in found if one.kind is Kind.DIFFERENT]
        self._password = password
        self._budget = budget
        self._done = Repaired(ledger_id)

    async def run(self) -> Repaired:
        todo: dict[str, list[Finding]] = {}
        for one in self._found:
            todo.setdefault(one.bookie, []).append(one)
        for bookie, findings in todo.items():
            left = self._done.left
            for _ in range(CONFLICTS_MAX):
                # The next attempt tries again what the one before has left.
                self._done = replace(self._done, left=left)
                try:
                    ledger = await open_for_repair(
                        self._client, self._done.ledger, password=self._password
                    )
                except NoSuchLedgerError:
                    return replace(self._done, left=[])
                except UNREADABLE as error:
                    self._leave(findings, reason_of(error))
                    break
                if await self._bookie(ledger, bookie, findings):
                    break
            else:
                self._done = replace(self._done, left=left)  # the last attempt may have left some
                self._leave(findings, f"other clients changed the ledger {CONFLICTS_MAX} times")
        return self._done

    async def _bookie(self, ledger: OpenedLedger, bookie: str, findings: Sequence[Finding]) -> bool:
        """Repair the findings of one bookie. Return False if the metadata has changed meanwhile."""
        # Also a bookie that is replaced is never copied from a replica that is known to differ.
        batch = CopyBatch(self._client, ledger, budget=self._budget, wrong=self._wrong)
        async with batch:
            try:
                return await self._segments(batch, ledger, bookie, findings)
            except NoSuchLedgerError:
                return False

    async def _segments(
        self, batch: CopyBatch, ledger: OpenedLedger, bookie: str, findings: Sequence[Finding]
    ) -> bool:
        moving: dict[int, _Moving] = {}
        unchanged = True
        for fragment in ledger.fragments():
            if bookie not in fragment.ensemble:
                continue
            mine = [
                one for one in findings
                if one.first <= fragment.last and one.last >= fragment.first
            ]  # fmt: skip
            if not mine:
                continue
            index = fragment.ensemble.index(bookie)
            if any(one.kind is Kind.UNREACHABLE for one in mine):
                why = await answers(self._client, bookie)
                if not why:
                    self._leave(mine, "the bookie answers again: audit the ledger once more")
                    continue
            else:
                why = await self._try_to_write_back(ledger, fragment, index, mine)
                if not why:
                    continue
            if not fragment.closed:
                self._leave(mine, f"{why}; the segment is still being written")
                continue
            one = _Moving(mine, why)
            if await self._move(batch, ledger, fragment, index, one):
                moving[fragment.segment_first] = one
            if batch.full:
                unchanged &= self._named(await batch.name(), moving)
        return self._named(await batch.name(), moving) and unchanged

    async def _try_to_write_back(
        self, ledger: OpenedLedger, fragment: Fragment, index: int, findings: Sequence[Finding]
    ) -> str:
        """Write the entries of findings back to the bookie that lacks them.

        Return '' after success, else the reason of the failure. If the connection to the bookie was
        lost but the bookie still answers, there is a second attempt.
        """
        bookie, why = fragment.ensemble[index], ""
        for _ in range(WRITE_BACK_ATTEMPTS):
            try:
                await self._write_back(ledger, fragment, index, findings)
                return ""
            except (Unreachable, BookieUnavailableError, BookieTimeoutError) as error:
                why = str(error)
                if await answers(self._client, bookie):
                    break
            except QuireError as error:
                return str(error)
        return why

    async def _write_back(
        self, ledger: OpenedLedger, fragment: Fragment, index: int, findings: Sequence[Finding]
    ) -> None:
        bookie = fragment.ensemble[index]
        await check_password(self._client, ledger)
        source = ReplicaSource(self._client, ledger, last=(bookie,))
        adds = RecoveryAdds(self._client, ledger, bookie, in_place=True, budget=self._budget)
        reader = ReplicaReader(
            self._client, ledger.ledger_id, ledger.metadata, ledger.codec, bookie
        )
        left: list[tuple[Finding, str]] = []
        async with adds:
            for one in findings:
                unread: ReadError | None = None
                for ids in self._portions(ledger, fragment, index, one):
                    copies, error = await source.read_some(fragment.ensemble, ids, self._wrong(ids))
                    unread = unread or error
                    if copies.ids:
                        await adds.write(copies)
                        await adds.drain()
                        await _verify(reader, copies)
                if unread is not None:
                    left.append((one, str(unread)))
        for one, why in left:
            self._leave([one], why)
        self._done = replace(
            self._done,
            written_back=self._done.written_back + adds.entries,
            entries=self._done.entries + adds.entries,
            size_bytes=self._done.size_bytes + adds.size_bytes,
        )

    def _portions(
        self, ledger: OpenedLedger, fragment: Fragment, index: int, finding: Finding
    ) -> Iterator[Sequence[int]]:
        """Yield the entry ids of a finding in portions that are copied together.

        If a finding of the ledger says that the replicas of an entry differ, the entry is a portion
        of its own, because its good replicas are determined separately.
        """
        metadata = ledger.metadata
        step = window_entries(metadata, self._budget)
        first, end = max(finding.first, fragment.first), min(finding.last, fragment.last)
        while first <= end:
            ids = stored_by(metadata, index, first, min(first + step - 1, end))
            yield from portions(ids, self._wrong)
            first += step

    def _wrong(self, ids: Sequence[int]) -> set[str]:
        """Return the bookies whose replica of any of these entries differs from most others."""
        return {
            one.bookie
            for one in self._different
            if any(one.first <= entry <= one.last for entry in ids)
        }

    async def _move(
        self,
        batch: CopyBatch,
        ledger: OpenedLedger,
        fragment: Fragment,
        index: int,
        moving: _Moving,
    ) -> bool:
        """Copy the part of a member that could not be repaired to another bookie.

        Return False after a failure. Its reason is then in `left` with the findings.
        """
        try:
            lost = tuple(batch.broken)
            chosen = await choose_replacements(self._client, ledger, fragment, [index], lost)
            moving.target = chosen[index]
            await batch.copy(fragment, chosen)
        except NoSuchLedgerError:
            raise
        except QuireError as error:
            self._leave(moving.findings, f"{moving.why}, and it cannot be replaced: {error}")
            return False
        return True

    def _named(self, done: CopyResult, moving: dict[int, _Moving]) -> bool:
        """Count the segments that a batch has moved.

        Return False if another client has changed the ledger, so that some were not moved.
        """
        self._done = replace(
            self._done,
            moved=self._done.moved + len(done.named),
            entries=self._done.entries + done.entries,
            size_bytes=self._done.size_bytes + done.size_bytes,
        )
        unchanged = True
        for segment_first, one in moving.items():
            if (error := done.broken.get(one.target)) is not None:
                self._leave(one.findings, f"{one.why}, and it cannot be replaced: {error}")
            elif segment_first not in done.named:
                unchanged = False
        moving.clear()
        return unchanged

    def _leave(self, findings: Sequence[Finding], why: str) -> None:
        left = [replace(one, detail=why[:REASON_CHARS_MAX]) for one in findings]
        self._done = replace(self._done, left=[*self._done.left, *left])


async def _verify(reader: ReplicaReader, wanted: Copies) -> None:
    """Raise `Unreachable` if the bookie does not return what was written to it."""
    at = 0
    for part in await reader.read(wanted.ids):
        if not isinstance(part, Copies):
            raise Unreachable(
                "the bookie acknowledged repaired entries, but does not return entries "
                f"{part.first} to {part.last}: {part.detail or part.kind}"
            )
        count = len(part.ids)
        if list(part.payloads) != list(wanted.payloads[at : at + count]) or list(
            part.lengths
        ) != list(wanted.lengths[at : at + count]):
            raise Unreachable(
                "the bookie acknowledged repaired entries, but returns different ones: check "
                "its disk"
            )
        at += count
