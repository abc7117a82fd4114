"""Reading the LAC of a ledger from the bookies of its last segment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from quire._runtime.tasks import cancelled
from quire.client.cluster.pool import BookiePool
from quire.codec.entry.entry import BadEntryError, EntryCodec
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.wire.v2 import LAST_ENTRY, Flag
from quire.core.recovery import HONEST_BOOKIES, TrustModel
from quire.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    DigestError,
    LedgerError,
    ProtocolError,
    QuireError,
    ReadError,
    UnauthorizedError,
)
from quire.net.answer_codes import NoEntryAnswer
from quire.net.control import LacAnswer


@dataclass(slots=True)
class LastConfirmed:
    """The LAC of a ledger, and the answers of bookies from which it was concluded."""

    lac: int = -1
    """The highest LAC that the answers prove under the trust model, or -1 if there is none."""
    known: set[int] = field(default_factory=set)
    """The ensemble indexes of the bookies whose answers count."""
    lacs: dict[str, int] = field(default_factory=dict)
    """The LAC that each bookie has proved by a digest, by bookie id. It is -1 if the bookie has
    nothing of the ledger."""
    errors: dict[str, QuireError] = field(default_factory=dict)
    """The errors of the bookies whose answers do not count, by bookie id."""


async def read_last_confirmed(
    metadata: LedgerMetadata,
    codec: EntryCodec,
    pool: BookiePool,
    timeout_s: float,
    *,
    fence_with: bytes | None = None,
    trust: TrustModel = HONEST_BOOKIES,
    cover: bool = True,
) -> LastConfirmed:
    """Return the LAC according to the bookies of the last segment.

    It returns as soon as the answers include a member of every possible ack quorum (rule 4 of
    docs/internals/replication-rules.md). With `fence_with` (the master key) the ledger is fenced on
    each bookie, which returns its last entry. Without it, a bookie also returns the last explicit
    LAC of the writer, if there is one (READ_LAC of protocol v3; a bookie that speaks only v2
    returns its last entry).

    An answer with a wrong digest does not count (rule 9). If bookies may be Byzantine, more answers
    are needed, and a LAC that one of them could forge is used only if enough bookies prove it that
    one of them is honest. A lower LAC is always safe. Cancel-safe.

    Args:
        metadata: The metadata of the ledger.
        codec: The codec of its entries.
        pool: The connections to bookies.
        timeout_s: Seconds that each bookie may take.
        fence_with: The master key, to fence the ledger.
        trust: The assumptions about Byzantine bookies.
        cover: Whether the answers must include a member of every possible ack quorum. If it is
            false, the call waits until every bookie has answered or `timeout_s` has passed, and the
            LAC may be lower than the newest one.

    Raises:
        UnauthorizedError: A bookie does not accept the key. It is raised at once.
        ReadError: `cover` is true, and too few bookies gave an answer that counts.
    """
    ensemble = metadata.last_segment.ensemble
    result = LastConfirmed()

    async def ask(index: int) -> None:
        if await _ask(ensemble[index], metadata, codec, pool, timeout_s, result, fence_with):
            result.known.add(index)

    tasks = {asyncio.ensure_future(ask(index)) for index in range(len(ensemble))}
    try:
        while tasks:
            _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for error in result.errors.values():
                if isinstance(error, UnauthorizedError):
                    raise error
            result.lac = trust.believed_lac(result.lacs.values())
            quorums = metadata.write_quorum, metadata.ack_quorum
            if cover and trust.covered(result.known, len(ensemble), *quorums):
                return result
    finally:
        await cancelled(tasks)
    if not cover:
        return result
    raise _uncovered(codec.ledger_id, result)


async def _ask(
    bookie: str,
    metadata: LedgerMetadata,
    codec: EntryCodec,
    pool: BookiePool,
    timeout_s: float,
    result: LastConfirmed,
    fence_with: bytes | None,
) -> bool:
    """Ask a bookie for the LAC, and return whether its answer counts.

    The answer or the error is added to `result`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            if fence_with is None:
                await _read_lac(bookie, codec, pool, result)
            else:
                await _read_last_entry(bookie, codec, pool, result, fence_with)
    except NoEntryAnswer:
        result.lacs[bookie] = -1
    except BadEntryError as error:
        pool.health.bad_entry(bookie, error, metadata, codec, -1)
        result.errors[bookie] = DigestError(str(error), ledger_id=codec.ledger_id)
        return False
    except QuireError as error:
        result.errors[bookie] = error
        return False
    except TimeoutError:
        result.errors[bookie] = BookieTimeoutError(
            f"the bookie did not answer within {timeout_s:g} s"
        )
        return False
    return True


async def _read_last_entry(
    bookie: str,
    codec: EntryCodec,
    pool: BookiePool,
    result: LastConfirmed,
    fence_with: bytes | None,
) -> None:
    flags = Flag.NONE if fence_with is None else Flag.DO_FENCING
    data = await pool.ask(
        bookie,
        lambda channel: channel.read(codec.ledger_id, LAST_ENTRY, flags, fence_with or b""),
    )
    _, lac, _ = codec.check(data)
    result.lacs[bookie] = lac


async def _read_lac(
    bookie: str, codec: EntryCodec, pool: BookiePool, result: LastConfirmed
) -> None:
    await pool.control(bookie)
    try:
        answer = await pool.ask_control(bookie, lambda channel: channel.read_lac(codec.ledger_id))
    except (BookieUnavailableError, ProtocolError):
        # It accepted the connection but not the request: perhaps it speaks only v2.
        await _read_last_entry(bookie, codec, pool, result, None)
        return
    lac = verified_lac(codec, answer)
    result.lacs[bookie] = lac
    pool.health.lac(bookie, codec.ledger_id, lac)


def verified_lac(codec: EntryCodec, answer: LacAnswer) -> int:
    """Return the highest LAC in a bookie's answer that has a valid digest of the ledger.

    Returns -1 if the answer has neither an explicit LAC nor an entry. Raises BadEntryError if it
    has one or both of them, but no valid digest.
    """
    bad: BadEntryError | None = None
    lacs: list[int] = []
    try:
        if answer.packet:
            lacs.append(codec.unpack_lac(answer.packet))
    except BadEntryError as error:
        bad = error
    try:
        if answer.last_entry:
            lacs.append(codec.check(answer.last_entry)[1])
    except BadEntryError as error:
        bad = error
    if not lacs and bad is not None:
        raise bad
    return max(lacs, default=-1)


def _uncovered(ledger_id: int, result: LastConfirmed) -> LedgerError:
    return ReadError(
        f"ledger {ledger_id}: too few bookies of its last segment answered to find its last entry",
        ledger_id=ledger_id,
        causes=dict(result.errors),
        remedy="Start these bookies and try again; nothing was changed",
    )
