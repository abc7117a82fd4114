"""The HTTP status and the JSON body of each error."""

from __future__ import annotations

from typing import Any

from quire.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    ClusterNotInitialisedError,
    CollectionOffError,
    JobRefusedError,
    KeyExistsError,
    LedgerExistsError,
    LedgerOwnedError,
    LedgerRecreatedError,
    MetadataDeniedError,
    MetadataUnavailableError,
    MetadataWentBackError,
    NoSuchEntryError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchNamespaceError,
    NoSuchObjectError,
    NoSuchStreamError,
    QuireError,
    ReadError,
    UnauthorizedError,
    UsageError,
    VersionConflictError,
)
from quire.http.server.security import RefusedRequest
from quire.http.watch.prometheus import HistoryError

_STATUS: tuple[tuple[tuple[type[QuireError], ...], int], ...] = (
    (
        (
            NoSuchLedgerError,
            NoSuchEntryError,
            NoSuchKeyError,
            NoSuchStreamError,
            NoSuchNamespaceError,
            NoSuchObjectError,
        ),
        404,
    ),
    ((LedgerOwnedError, LedgerRecreatedError), 409),
    ((UsageError,), 400),
    ((UnauthorizedError, MetadataDeniedError), 403),
    (
        (
            VersionConflictError,
            KeyExistsError,
            LedgerExistsError,
            CollectionOffError,
            MetadataWentBackError,
            JobRefusedError,
        ),
        409,
    ),
    (
        (
            MetadataUnavailableError,
            ClusterNotInitialisedError,
            BookieUnavailableError,
            ReadError,
        ),
        503,
    ),
    ((HistoryError,), 502),
    ((BookieTimeoutError,), 504),
)


class NotFoundError(UsageError):
    """The request names something that does not exist (status 404)."""


class NotOfferedError(UsageError):
    """The route exists in Apache BookKeeper, but has no meaning in Quire."""


def status_of(error: QuireError) -> int:
    """Return the HTTP status of an error. Errors that the table does not name have 500."""
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, NotOfferedError):
        return 501
    return next((status for kinds, status in _STATUS if isinstance(error, kinds)), 500)


def error_body(error: QuireError | RefusedRequest, *, outcome_known: bool = True) -> dict[str, Any]:
    """Return the JSON body of an error.

    `outcome_known` applies to refused requests only, because a QuireError has a value of its own.
    """
    if isinstance(error, RefusedRequest):
        said: dict[str, Any] = {
            "status": error.status,
            "kind": "Refused",
            "what": error.what,
            "causes": {},
            "remedy": error.remedy,
            "outcome_known": outcome_known,
            "code": UsageError.code,
        }
    else:
        said = {
            "status": status_of(error),
            "kind": type(error).__name__,
            "what": str(error.args[0]) if error.args else str(error),
            "causes": {who: str(why) for who, why in error.causes.items()},
            "remedy": error.remedy,
            "outcome_known": error.outcome_known,
            "code": error.code,
        }
        if isinstance(error, LedgerOwnedError):
            said["owners"] = {str(ledger_id): told for ledger_id, told in error.owners.items()}
    return {"error": said}
