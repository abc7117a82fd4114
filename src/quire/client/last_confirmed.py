"""Asking the last segment's bookies how far a ledger is known to be confirmed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from quire.client.pool import BookiePool
from quire.codec.entry import BadEntryError, EntryCodec
from quire.codec.frames import LAST_ENTRY, Flag
from quire.codec.ledger_metadata import LedgerMetadata
from quire.core.quorum import covered
from quire.errors import (
    BookieTimeoutError,
    DigestError,
    LedgerError,
    QuireError,
    ReadError,
    UnauthorizedError,
)
from quire.net.channel import NoEntryAnswer


@dataclass(slots=True)
class LastConfirmed:
    lac: int = -1
    """The highest LAC that a valid entry carries; -1 if none does."""
    last_entry: int = -1
    """The highest entry that a bookie has."""
    known: set[int] = field(default_factory=set)
    """Ensemble indexes that answered."""
    errors: dict[str, QuireError] = field(default_factory=dict)


async def read_last_confirmed(
    metadata: LedgerMetadata,
    codec: EntryCodec,
    pool: BookiePool,
    timeout_s: float,
    *,
    fence_with: bytes | None = None,
) -> LastConfirmed:
    """The LAC according to the last ensemble, as soon as the answers cover every possible ack
    quorum (replication spec, 6.2 and 7). With `fence_with` (the master key) each bookie is fenced
    by the same request.

    An answer whose digest is wrong counts as none (rule 9). Raises UnauthorizedError at once, and
    ReadError when all have answered without coverage. Cancel-safe.
    """
    ensemble = metadata.last_segment.ensemble
    result = LastConfirmed()
    flags = Flag.NONE if fence_with is None else Flag.DO_FENCING

    async def ask(index: int) -> None:
        bookie = ensemble[index]
        try:
            async with asyncio.timeout(timeout_s):
                channel = await pool.channel(bookie)
                data = await channel.read(codec.ledger_id, LAST_ENTRY, flags, fence_with or b"")
            entry, lac, _ = codec.check(data)
            result.lac = max(result.lac, lac)
            result.last_entry = max(result.last_entry, entry)
        except NoEntryAnswer:
            pass
        except BadEntryError as error:
            result.errors[bookie] = DigestError(str(error), ledger_id=codec.ledger_id)
            return
        except TimeoutError:
            result.errors[bookie] = BookieTimeoutError(f"no answer within {timeout_s:g} s")
            return
        except QuireError as error:
            result.errors[bookie] = error
            return
        result.known.add(index)

    tasks = {asyncio.ensure_future(ask(index)) for index in range(len(ensemble))}
    try:
        while tasks:
            _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for error in result.errors.values():
                if isinstance(error, UnauthorizedError):
                    raise error
            if covered(result.known, len(ensemble), metadata.write_quorum, metadata.ack_quorum):
                return result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise _uncovered(codec.ledger_id, result)


def _uncovered(ledger_id: int, result: LastConfirmed) -> LedgerError:
    return ReadError(
        f"ledger {ledger_id}: too few bookies of its last segment answered to know its last entry",
        ledger_id=ledger_id,
        causes=dict(result.errors),
        remedy="Bring the bookies back and try again; nothing was changed",
    )
