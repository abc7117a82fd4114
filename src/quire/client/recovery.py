"""Recovery of a ledger whose writer may be dead: fence it, find its end, write back, close.

docs/explanation/replication.md explains the steps, and docs/internals/replication-rules.md lists
the rules that they must keep. Every request in this file fences (rule 1). Nothing is published
before the closing compare-and-swap (rule 6), so any number of recoveries may run at the same time.
The first one to close decides, and the others adopt what it stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass

from quire._runtime.tasks import TaskSet, cancelled
from quire.client.cluster.pool import BookiePool
from quire.client.observability.logs import log_event
from quire.client.observability.tracing import GuardedSpan, note
from quire.client.read.engine import ReadEngine
from quire.client.read.last_confirmed import read_last_confirmed
from quire.client.write.add_session import AddSession, SharedByWriters
from quire.codec.entry.digest import master_key
from quire.codec.entry.entry import BadEntryError, EntryCodec, EntryRun, check_batch
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.wire.v2 import (
    BATCH_RESPONSE_BYTES,
    LAST_ENTRY,
    MAX_FRAME_BYTES,
    Flag,
)
from quire.config import ClientConfig
from quire.core.append.quorum import stripe
from quire.core.ledger_changes import (
    PrivateSegment,
    closed_by_recovery,
    marked_in_recovery,
    private_change,
    with_private,
)
from quire.core.recovery import (
    HONEST_BOOKIES,
    EntryVerdict,
    RecoveryVotes,
    TrustModel,
    recovery_lac,
)
from quire.errors import (
    BookieTimeoutError,
    NotEnoughBookiesError,
    QuireError,
    ReadError,
    RecoveryError,
    UnauthorizedError,
)
from quire.metadata.interface import MetadataStore, Versioned
from quire.metadata.ledgers.size import check_close
from quire.metadata.ledgers.update import update_ledger
from quire.net.answer_codes import NoEntryAnswer, NoLedgerAnswer

FENCED_READ = Flag.DO_FENCING | Flag.HIGH_PRIORITY
RECOVERY_ADD = Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
WINDOW_ENTRIES = 1_000
STRIPED_WINDOW_ENTRIES = 128


@dataclass(slots=True)
class _Found:
    """The consecutive entries that one round of reading proved to exist."""

    payloads: list[bytes]
    lengths: Sequence[int]
    """The cumulative length of the ledger at each entry, in bytes."""
    end: bool
    """Whether the round also proved that the entry after them does not exist."""


class LedgerRecovery:
    """One attempt to recover one ledger."""

    def __init__(
        self,
        ledger_id: int,
        metadata: Versioned[LedgerMetadata],
        password: bytes,
        codec: EntryCodec,
        store: MetadataStore,
        pool: BookiePool,
        shared: SharedByWriters,
        config: ClientConfig,
        tasks: TaskSet,
        trust: TrustModel = HONEST_BOOKIES,
        *,
        unverified_password: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self._unverified_password = unverified_password
        self._trust = trust
        self._current = metadata
        self._key = master_key(password)
        self._codec = codec
        self._store = store
        self._pool = pool
        self._shared = shared
        self._config = config
        self._tasks = tasks
        self._segments: list[PrivateSegment] = []
        """The segments that this recovery began when it replaced bookies. The metadata names them
        only from the close on."""
        self._preferred = 0
        self._written_back = 0
        self._begun = False
        """Whether the metadata says that the ledger is in recovery, so that bookies may have been
        fenced."""

    async def run(self) -> Versioned[LedgerMetadata]:
        """Recover the ledger, and return its closed metadata.

        After an error or a cancellation nothing is lost, and the ledger can be opened again. An
        error that is raised after the metadata said that the ledger is in recovery has
        `outcome_known` False, whatever its class: bookies may have been fenced.

        Raises:
            RecoveryError: Too few bookies answered, or accepted what was written back.
            UnauthorizedError: The password is wrong or cannot be checked.
            WriteError: The session that writes the last entries back failed: for example, the
                ensemble changed too often.
            LedgerRecreatedError: The ledger was deleted meanwhile, and its id was used again.
            MetadataError: The metadata store failed, or the ledger was deleted meanwhile.
            ClientClosedError: The client was closed.
        """
        with self._span("recover") as span:
            try:
                closed = await self._run_in_time()
            except QuireError as error:
                if self._begun:
                    error.outcome_known = False
                log_event(
                    logging.INFO, "recovery_failed", ledger=self.ledger_id, outcome="open",
                    error=str(error),
                )  # fmt: skip
                raise
            last, written_back = closed.value.last_entry_id, self._written_back
            note(span, last_entry=last, written_back=written_back)
        log_event(
            logging.INFO, "ledger_recovered", ledger=self.ledger_id, entry=last,
            written_back=written_back, outcome="closed",
        )  # fmt: skip
        return closed

    def _span(self, name: str) -> AbstractContextManager[GuardedSpan | None]:
        return self._pool.tracing.span(name, ledger_id=self.ledger_id)

    async def _run_in_time(self) -> Versioned[LedgerMetadata]:
        try:
            async with asyncio.timeout(self._config.recovery_timeout_s):
                return await self._run()
        except ReadError as error:
            why = str(error.args[0]).removeprefix(f"ledger {self.ledger_id}: ")
            raise RecoveryError(
                f"ledger {self.ledger_id} cannot be recovered now: {why}",
                ledger_id=self.ledger_id,
                causes=error.causes,
                remedy=(
                    "Nothing is lost. Start the bookies of the ledger, and open it with "
                    "recovery again"
                ),
            ) from error
        except NotEnoughBookiesError as error:
            # It comes from the session that writes back, and speaks of a writer.
            raise RecoveryError(
                f"ledger {self.ledger_id} cannot be recovered now, because its last entries cannot "
                f"be written back: {error.reason or error.args[0]}",
                ledger_id=self.ledger_id,
                causes=error.causes,
                remedy=f"Nothing is lost. {error.remedy}",
            ) from error
        except QuireError:
            raise
        except TimeoutError as error:
            raise RecoveryError(
                f"ledger {self.ledger_id} was not recovered within "
                f"{self._config.recovery_timeout_s:g} s",
                ledger_id=self.ledger_id,
                remedy=(
                    "Nothing is lost, but the ledger may already be fenced or closed. Open "
                    "it with recovery again"
                ),
            ) from error

    async def _run(self) -> Versioned[LedgerMetadata]:
        before = self._current.value
        if before.password is None and not before.closed:
            await check_key(
                self.ledger_id, before, self._key, self._pool, self._config.read_timeout_s,
                unverified=self._unverified_password,
            )  # fmt: skip
        self._current = await update_ledger(
            self._store,
            self.ledger_id,
            self._current,
            marked_in_recovery,
        )
        snapshot = self._current.value
        if snapshot.closed:
            return self._current
        self._begun = True
        with self._span("recover.fence") as span:
            known = await read_last_confirmed(
                snapshot,
                self._codec,
                self._pool,
                self._config.read_timeout_s,
                fence_with=self._key,
                trust=self._trust,
            )
            lac = recovery_lac({0: known.lac}, snapshot.last_segment.first_entry_id)
            note(span, last_entry=lac)
        with self._span("recover.write_back") as span:
            last, length = await self._write_back(snapshot, lac)
            self._written_back = last - lac
            note(span, first_entry=lac + 1, last_entry=last)
        with self._span("recover.close"):
            return await self._close(last, length)

    # -- reading on and writing back ----------------------------------------------------------

    async def _write_back(self, snapshot: LedgerMetadata, lac: int) -> tuple[int, int]:
        """Write every existing entry after `lac` back, until an ack quorum has it.

        Returns the id of the last entry, and the length of the ledger in bytes.
        """
        session = AddSession(
            codec=self._codec,
            key=self._key,
            pool=self._pool,
            shared=self._shared,
            config=self._config,
            tasks=self._tasks,
            ensemble=snapshot.last_segment.ensemble,
            write_quorum=snapshot.write_quorum,
            ack_quorum=snapshot.ack_quorum,
            change_ensemble=self._change_ensemble,
            last_confirmed=lac,
            flags=RECOVERY_ADD,
            # Do not send the advancing LAC: a reader could learn one that a concurrent recovery
            # then cuts off (rule 42).
            lac_sent=lac,
        )
        try:
            upcoming, length = lac + 1, -1
            while True:
                found = await self._read_on(snapshot, upcoming)
                if found.payloads:
                    session.pipeline.length = found.lengths[0] - len(found.payloads[0])
                    await session.room()
                    session.push(found.payloads)
                    upcoming += len(found.payloads)
                    length = found.lengths[-1]
                if found.end:
                    break
            last = upcoming - 1
            if last > lac:
                await session.wait_for(last)  # rule 5
                await session.reached()
            elif lac >= 0:
                length = await self._length_at(snapshot, lac)
        finally:
            session.stop()
        return last, max(length, 0)

    async def _read_on(self, snapshot: LedgerMetadata, first: int) -> _Found:
        if snapshot.ensemble_size == snapshot.write_quorum and not self._trust.compares_copies:
            return await self._read_batch(snapshot, first)
        return await self._read_striped(snapshot, first)

    async def _read_batch(self, snapshot: LedgerMetadata, first: int) -> _Found:
        """Ask one member for many entries from `first` on, and the others for entry `first` only.

        The answers about entry `first` decide whether the ledger ends before it. The requests also
        fence the members.
        """
        ensemble = snapshot.last_segment.ensemble
        size, quorum = snapshot.ensemble_size, snapshot.write_quorum
        votes = RecoveryVotes(first, size, quorum, snapshot.ack_quorum, self._trust)
        many = self._preferred % len(ensemble)
        errors: dict[str, BaseException | str] = {}
        tasks = {
            asyncio.ensure_future(
                self._ask_batch(ensemble[index], first, WINDOW_ENTRIES if index == many else 1)
            ): index
            for index in range(len(ensemble))
        }
        single: EntryRun | None = None
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index = tasks[task]
                    run = self._vote(task, first, index, votes, ensemble[index], errors)
                    if run is not None and index == many:
                        return _Found(run.payloads(), run.ledger_lengths, end=False)
                    single = single or run
                if votes.verdict(first) is EntryVerdict.ABSENT:
                    return _Found([], [], end=True)
                if single is not None and all(tasks[task] != many for task in pending):
                    # The member that was asked for many entries does not have the first one.
                    self._preferred += 1
                    return _Found(single.payloads(), single.ledger_lengths, end=False)
        finally:
            await cancelled(tasks)
        raise self._undecidable(first, errors)

    def _vote(
        self,
        task: asyncio.Task[EntryRun],
        entry: int,
        index: int,
        votes: RecoveryVotes,
        bookie: str,
        errors: dict[str, BaseException | str],
    ) -> EntryRun | None:
        error = task.exception()
        if error is None:
            votes.positive(entry)
            return task.result()
        if isinstance(error, UnauthorizedError):
            raise error
        if isinstance(error, NoEntryAnswer):
            votes.negative(entry, index)
        elif isinstance(error, QuireError | TimeoutError | BadEntryError):
            votes.neither(entry, index)
            if isinstance(error, BadEntryError):
                self._misbehaved(bookie, error, entry)
        else:
            raise error
        errors[bookie] = error
        return None

    async def _ask_batch(self, bookie: str, first: int, count: int) -> EntryRun:
        async with asyncio.timeout(self._config.read_timeout_s):
            answer = await self._pool.ask(
                bookie,
                lambda channel: channel.batch_read(
                    self.ledger_id, first, count, MAX_FRAME_BYTES, FENCED_READ, self._key
                ),
            )
        return check_batch(
            self._codec, answer, first, BATCH_RESPONSE_BYTES, len(answer), limit=count
        )

    async def _read_striped(self, snapshot: LedgerMetadata, first: int) -> _Found:
        """Read a window of entries with single reads, and decide which of them exist.

        Every member is asked for the entries of the window that it should have.
        """
        last = first + STRIPED_WINDOW_ENTRIES - 1
        size, quorum = snapshot.ensemble_size, snapshot.write_quorum
        ensemble = snapshot.last_segment.ensemble
        votes = RecoveryVotes(first, size, quorum, snapshot.ack_quorum, self._trust)
        copies: dict[tuple[int, Hashable], bytes] = {}
        errors: dict[str, BaseException | str] = {}

        async def ask(index: int) -> None:
            entries = list(stripe(index, first, last, size, quorum))
            answers: list[bytes | BaseException]
            try:
                async with asyncio.timeout(self._config.read_timeout_s):
                    answers = await self._pool.ask_many(
                        ensemble[index], self.ledger_id, entries, FENCED_READ, self._key
                    )
            except (QuireError, TimeoutError) as error:
                answers = [error] * len(entries)
            for entry, answer in zip(entries, answers):
                if isinstance(answer, NoEntryAnswer):
                    votes.negative(entry, index)
                elif isinstance(answer, bytes) and self._valid(answer, entry, ensemble[index]):
                    content = self._content(answer)
                    votes.positive(entry, index, content)
                    copies[entry, content] = answer
                else:
                    votes.neither(entry, index, damaged=isinstance(answer, bytes))
                    errors[ensemble[index]] = (
                        answer if isinstance(answer, BaseException) else "digest does not match"
                    )

        tasks = {asyncio.ensure_future(ask(index)) for index in range(size)}
        try:
            while tasks:
                _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for error in errors.values():
                    if isinstance(error, UnauthorizedError):
                        raise error
                found = self._decided(votes, copies, first, last)
                if found is not None:
                    return found
        finally:
            await cancelled(tasks)
        raise self._undecidable(first, errors)

    def _decided(
        self,
        votes: RecoveryVotes,
        copies: dict[tuple[int, Hashable], bytes],
        first: int,
        last: int,
    ) -> _Found | None:
        """Return the entries of a window that exist, or None while too few answers are known.

        The entries end before the first one that does not exist or cannot be decided, or at the end
        of the window.
        """
        payloads: list[bytes] = []
        lengths: list[int] = []
        for entry in range(first, last + 1):
            verdict = votes.verdict(entry)
            if verdict is EntryVerdict.EXISTS:
                whole = self._codec.unpack(copies[entry, votes.content(entry)], entry)
                payloads.append(whole.payload)
                lengths.append(whole.ledger_length)
            elif verdict is EntryVerdict.ABSENT:
                return _Found(payloads, lengths, end=True)
            elif verdict is EntryVerdict.UNDECIDABLE and payloads:
                # Write back the entries before this one, then ask for this one again.
                return _Found(payloads, lengths, end=False)
            else:
                return None
        return _Found(payloads, lengths, end=False)

    def _valid(self, data: bytes, entry: int, bookie: str) -> bool:
        try:
            self._codec.check(data, entry)
        except BadEntryError as error:
            self._misbehaved(bookie, error, entry)
            return False
        return True

    def _content(self, data: bytes) -> Hashable:
        """Return the part of a copy that is compared, or None if copies are not compared."""
        return self._codec.content(data) if self._trust.compares_copies else None

    def _misbehaved(self, bookie: str, error: BadEntryError, entry: int) -> None:
        metadata = self._current.value
        self._pool.health.bad_entry(bookie, error, metadata, self._codec, entry)

    # -- ensembles and closing ----------------------------------------------------------------

    async def _change_ensemble(
        self, failed: dict[int, str], replacements: dict[int, str], first: int
    ) -> tuple[str, ...]:
        segments = private_change(self._current.value, self._segments, replacements, first)
        # The metadata must still have room for the close.
        check_close(with_private(self._current.value, segments))
        self._segments = segments
        return segments[-1][1]

    async def _length_at(self, snapshot: LedgerMetadata, entry_id: int) -> int:
        """Return the ledger's length in bytes up to an entry, from the header of the entry.

        The result is 0 if the entry cannot be read. The length is advisory: nothing depends on it
        (docs/reference/apache-compatibility.md).
        """

        async def same(newest: bool) -> bool:
            return False

        engine = ReadEngine(
            self._codec, lambda: snapshot, same, self._pool, self._config, self._trust
        )
        try:
            async with aclosing(engine.runs(entry_id, entry_id)) as runs:
                async for run in runs:
                    return run.ledger_lengths[-1]
        except ReadError:
            pass
        return 0

    async def _close(self, last: int, length: int) -> Versioned[LedgerMetadata]:
        closed = await update_ledger(
            self._store,
            self.ledger_id,
            self._current,
            lambda now: closed_by_recovery(now, self._segments, last, length),
        )
        if not closed.value.closed:
            raise RecoveryError(
                f"ledger {self.ledger_id} was not closed: another client set its state back to "
                f"{closed.value.state.name} during the recovery",
                ledger_id=self.ledger_id,
                remedy="Open it with recovery again",
            )
        return closed

    def _undecidable(self, entry: int, errors: dict[str, BaseException | str]) -> RecoveryError:
        why, remedy = (
            "too few bookies answered",
            "Start its bookies and open it with recovery again",
        )
        if self._trust.byzantine:
            why = f"too few bookies agree (assume_liars is {self._trust.byzantine})"
            remedy += ", or open it without assume_liars to believe those that answer"
        return RecoveryError(
            f"ledger {self.ledger_id} cannot be recovered now: {why} to tell whether entry {entry} "
            "exists",
            ledger_id=self.ledger_id,
            entry_id=entry,
            causes={who: str(why) or type(why).__name__ for who, why in errors.items()},
            remedy=f"{remedy}; nothing is lost",
        )


async def check_key(
    ledger_id: int,
    metadata: LedgerMetadata,
    key: bytes,
    pool: BookiePool,
    timeout_s: float,
    *,
    unverified: bool = False,
) -> None:
    """Check the master key of a ledger with the bookies that know the ledger.

    The call returns once such a bookie has accepted `key`, which fences the ledger on that bookie.
    With `unverified`, it also returns if no bookie that answered knows the ledger.

    This is for a ledger whose metadata has no password (format 1). The bookies that hold an entry
    of the ledger know its master key. A bookie that does not know the ledger accepts the key of the
    first request that fences it. Without this check, recovery with a wrong password would close an
    empty ledger and leave the wrong key on its bookies.

    The newest segment is asked first. A bookie that does not know the ledger receives no request
    that fences. Cancel-safe.

    Raises:
        UnauthorizedError: A bookie refused the key, or no bookie that answered knows the ledger,
            without `unverified`. `causes` then has the error of each bookie that failed or did not
            answer.
    """
    failed: dict[str, QuireError] = {}
    asked: set[str] = set()
    for segment in reversed(metadata.segments):
        bookies = [bookie for bookie in segment.ensemble if bookie not in asked]
        asked.update(bookies)
        answers = await asyncio.gather(
            *(_accepts(ledger_id, bookie, key, pool, timeout_s, failed) for bookie in bookies)
        )
        if any(answers):
            return
        for error in failed.values():
            if isinstance(error, UnauthorizedError):
                raise error
    if unverified:
        return
    remedy = (
        "If you are certain of the password, recover with unverified_password "
        "(`quire ledger recover --unverified-password`)"
    )
    if failed:
        remedy = f"Start these bookies, and try again. {remedy}"
    raise UnauthorizedError(
        f"the password of ledger {ledger_id} cannot be checked: its metadata stores "
        "none, and no bookie that answered knows the ledger. Nothing was changed",
        ledger_id=ledger_id,
        causes=dict(failed),
        remedy=remedy,
    )


async def _accepts(
    ledger_id: int,
    bookie: str,
    key: bytes,
    pool: BookiePool,
    timeout_s: float,
    failed: dict[str, QuireError],
) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            channel = await pool.channel(bookie)
            try:
                await channel.read(ledger_id, LAST_ENTRY, Flag.NONE, b"")
            except NoLedgerAnswer:
                return False
            except NoEntryAnswer:
                pass  # it knows the ledger, for example from an explicit LAC
            try:
                await channel.read(ledger_id, LAST_ENTRY, Flag.DO_FENCING, key)
            except NoEntryAnswer:
                pass
            return True
    except QuireError as error:
        failed[bookie] = error
    except TimeoutError:
        failed[bookie] = BookieTimeoutError(f"the bookie did not answer within {timeout_s:g} s")
    return False
