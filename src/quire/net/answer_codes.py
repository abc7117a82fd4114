"""The exceptions that stand for the error codes in the answers of bookies."""

from __future__ import annotations

from quire.codec.wire.v2 import Code
from quire.errors import (
    BookieBusyError,
    BookieError,
    BookieIOError,
    BookieReadOnlyError,
    DataUnknownError,
    LedgerFencedError,
    ProtocolError,
    QuireError,
    UnauthorizedError,
)


class NoEntryAnswer(BookieError):
    """Raised when a bookie says that it does not have the requested entry or ledger.

    Recovery counts it as evidence that the entry was not acknowledged.
    """

    code = -13
    outcome_known = True


class NoLedgerAnswer(NoEntryAnswer):
    """Raised when a bookie says that it knows nothing about the ledger, not even its master key."""


def error_of(code: int, ledger_id: int, entry_id: int, bookie_id: str) -> QuireError:
    """Return the exception for an answer code of a bookie other than OK.

    The message names the ledger and the entry, unless their ids are negative.
    """
    what = f"bookie {bookie_id}"
    if ledger_id >= 0:
        what += f", ledger {ledger_id}"
    if entry_id >= 0:
        what += f", entry {entry_id}"
    what += ": "
    match code:
        case Code.NO_LEDGER:
            return NoLedgerAnswer(what + "no such ledger on this bookie")
        case Code.NO_ENTRY:
            return NoEntryAnswer(what + "no such entry on this bookie")
        case Code.UNAUTHORIZED:
            return UnauthorizedError(
                what + "wrong password, or the bookie requires TLS or another certificate",
                ledger_id=ledger_id,
                remedy="Check the password of the ledger, and the client's TLS settings",
            )
        case Code.FENCED:
            return LedgerFencedError(
                what + "the ledger is fenced, because another client opened it with recovery",
                ledger_id=ledger_id,
                remedy="Open it to see which entries it has, and create a new ledger to write more",
            )
        case Code.READ_ONLY:
            return BookieReadOnlyError(
                what + "the bookie takes no new entries now: it is read-only or full, or has not "
                "loaded its log since it was started"
            )
        case Code.TOO_MANY_REQUESTS:
            return BookieBusyError(
                what + "the bookie has too many requests, or has not loaded its log since it was "
                "started: try again later"
            )
        case Code.UNKNOWN_LEDGER_STATE:
            return DataUnknownError(
                what + "the bookie may have lost data of this ledger: read another replica"
            )
        case Code.IO_ERROR:
            return BookieIOError(what + "I/O error on the bookie: see its log")
        case Code.BAD_VERSION:
            return ProtocolError(
                what + "the bookie does not speak this version of the protocol: upgrade it"
            )
        case _:
            return BookieIOError(
                what + f"the bookie refused the request (code {code}): see its log"
            )
