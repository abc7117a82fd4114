"""Check a password against the bookies, for a ledger whose metadata has none.

Format 1 of the metadata stores no password. The bookies that hold an entry of the ledger know its
master key. A bookie that does not know the ledger accepts the key of the first request that fences
it. Without this check, recovery with a wrong password would close an empty ledger and leave the
wrong key on its bookies.
"""

from __future__ import annotations

import asyncio

from quire.client.cluster.pool import BookiePool
from quire.codec.metadata.ledger_metadata import LedgerMetadata
from quire.codec.wire.v2 import LAST_ENTRY, Flag
from quire.errors import BookieTimeoutError, QuireError, UnauthorizedError
from quire.net.answer_codes import NoEntryAnswer, NoLedgerAnswer


async def check_key(
    ledger_id: int, metadata: LedgerMetadata, key: bytes, pool: BookiePool, timeout_s: float
) -> None:
    """Return once a bookie that knows the ledger has accepted `key`, which fences the ledger there.

    The newest segment is asked first. A bookie that does not know the ledger receives no request
    that fences. Cancel-safe.

    Raises:
        UnauthorizedError: a bookie refused the key, or no bookie that answered knows the ledger.
            `causes` names the bookies that did not answer.
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
    raise UnauthorizedError(
        f"the password of ledger {ledger_id} cannot be checked: its metadata stores "
        "none, and no bookie that answered knows the ledger. Nothing was changed",
        ledger_id=ledger_id,
        causes=dict(failed),
        remedy="If you are certain of the password, recover with unverified_password "
        "(`quire ledger recover --unverified-password`)",
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
    except TimeoutError:
        failed[bookie] = BookieTimeoutError(f"no answer within {timeout_s:g} s")
    except QuireError as error:
        failed[bookie] = error
    return False
