"""Every error that Quire raises on purpose, in one tree.

Each class carries BookKeeper's client code (`code`, see `BKException`), so that tools which know
the numbers can go on using them. Three questions are answered by every error: what happened and
to what (the message), is the outcome known (`outcome_known`), and what to do (`remedy`).
Errors of single bookies are attached as `causes`, by bookie id.

Where one of Python's own errors says the same (TimeoutError, ConnectionError, ValueError,
PermissionError, FileNotFoundError, FileExistsError, KeyError, IndexError), the class derives from
it as well. Code of ours that catches one of those around calls that may raise a QuireError must
therefore catch QuireError first.
"""

from __future__ import annotations

from collections.abc import Mapping


class QuireError(Exception):
    """Base of all errors of Quire. Anything else that escapes is a bug."""

    code = -999
    outcome_known = True
    remedy = ""

    def __init__(
        self,
        message: str,
        *,
        causes: Mapping[str, BaseException | str] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.causes: dict[str, BaseException | str] = dict(causes or {})
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        text = Exception.__str__(self)  # a KeyError's own form quotes the message
        if self.causes:
            text += " (" + "; ".join(f"{who}: {why}" for who, why in self.causes.items()) + ")"
        if self.remedy:
            text += f". {self.remedy}"
        return text


class UsageError(QuireError, ValueError):
    """The caller asked for something that cannot be: a bad argument, a closed handle."""

    code = -14


class ArgumentTypeError(UsageError, TypeError):
    """An argument has the wrong type. Nothing was done."""


_TYPES = {int: "a whole number (int)", str: "text (str)", bytes: "bytes"}


def check_type(what: str, value: object, kind: type) -> None:
    """Check the type of an argument of a public call.

    Args:
        what: What the argument is, for the message: "a ledger id".
        value: The argument.
        kind: int (then everything that Python takes for an index will do), str or bytes.

    Raises:
        ArgumentTypeError: The argument has another type.
    """
    if isinstance(value, kind) or (kind is int and hasattr(value, "__index__")):
        return
    remedy = "Encode it first: text with .encode()" if kind is bytes else None
    raise ArgumentTypeError(f"{what} is {_TYPES[kind]}, not {type(value).__name__}", remedy=remedy)


class ClientClosedError(QuireError):
    """The client was closed while, or before, this was asked."""

    code = -19


# -- metadata ---------------------------------------------------------------------------------


class MetadataError(QuireError):
    """The metadata store failed or holds something that cannot be understood."""

    code = -9


class MetadataUnavailableError(MetadataError, ConnectionError):
    """The metadata store does not answer. The outcome of a write is unknown."""

    outcome_known = False
    remedy = "Check that the store is running and that the URI names it"


class MetadataDeniedError(MetadataError, PermissionError):
    """The metadata store does not let us: no identity was given, or one without the right."""


class UnreadableMetadataError(MetadataError):
    """The metadata of one ledger, or one mark, is damaged or has an unknown format. The store
    itself answers, and other ledgers are not affected."""

    def __init__(
        self,
        message: str,
        *,
        ledger_id: int | None = None,
        version: int | None = None,
        reason: str = "",
        causes: Mapping[str, BaseException | str] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, causes=causes, remedy=remedy)
        self.ledger_id = ledger_id
        self.reason = reason or message
        """The reason why the value cannot be read, without the ledger's id."""
        self.version = version
        """The version of the value that cannot be read. Its replacement must name it."""


class MetadataTooLargeError(MetadataError):
    """A ledger's metadata would become too large for the store. Nothing was written."""

    remedy = (
        "The ledger can still be recovered, closed, read and deleted. Close it and write to a new "
        "ledger"
    )


class MetadataURIError(MetadataError, ValueError):
    """The metadata URI cannot be used."""

    remedy = "Use sqlite:////absolute/file.db or zk+hierarchical://HOST:PORT/ledgers"


class ClusterNotInitialisedError(MetadataError):
    """The store answers but holds no cluster."""

    remedy = (
        "If the cluster is new, make it with `quire cluster init --metadata URI`. If it is not, "
        "correct the URI, or restore the store (docs/guides/disaster-recovery.md)"
    )


class MetadataWentBackError(MetadataError):
    """The metadata store went back to an older state: it lacks something that it confirmed before.
    A backup was restored, or a disk lost its newest writes. Ledgers that it does not name may still
    exist, so nothing is deleted."""

    remedy = (
        "`quire cluster gc status` names the bookies that refuse. Restore the newest "
        "backup, find out what is missing (docs/guides/disaster-recovery.md), and only then let "
        "the bookies resume with `quire cluster gc accept`"
    )


class CollectionOffError(QuireError):
    """Garbage collection is switched off. Nothing was deleted."""

    remedy = "`quire cluster gc status` shows by whom; `quire cluster gc on` switches it on again"


class VersionConflictError(MetadataError):
    """A compare-and-swap lost: someone else changed the value. Read it again and decide again."""

    code = -17


class NoSuchLedgerError(MetadataError, KeyError):
    """No ledger of this id exists in the metadata store (never created, or deleted)."""

    code = -25


class LedgerExistsError(MetadataError, FileExistsError):
    """A ledger of this id exists already."""

    code = -20


class NoSuchKeyError(MetadataError, KeyError):
    """No such node: a cookie, a dataset, a value."""


class KeyExistsError(MetadataError):
    """The node that was to be created exists already."""


class NotEmptyError(MetadataError):
    """The node that was to be deleted has nodes below it."""


# -- ledgers ----------------------------------------------------------------------------------


class LedgerError(QuireError):
    """Something about one ledger."""

    def __init__(
        self,
        message: str,
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        causes: Mapping[str, BaseException | str] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, causes=causes, remedy=remedy)
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class LedgerClosedError(LedgerError):
    """The handle is closed, or another client closed the ledger. An add that was in flight may
    or may not be part of the ledger: open it and look."""

    code = -11
    outcome_known = False


class LedgerFencedError(LedgerError):
    """Another client opened the ledger with recovery: this writer is out for good. The outcome of
    adds in flight is unknown; open the ledger to see which are in it."""

    code = -101
    outcome_known = False


class UnauthorizedError(LedgerError, PermissionError):
    """Wrong password (master key) for this ledger, or the connection is not authenticated."""

    code = -102


class LedgerRecreatedError(LedgerError):
    """The ledger was deleted, and another client created a new ledger with its id. The handle can
    no longer be used, because its ledger does not exist. An append that was in flight, or was
    acknowledged after the deletion, may have reached bookies that now keep it as an entry of the
    new ledger."""

    code = -25
    remedy = "Open the ledger again to work with the new one"


class LedgerOwnedError(LedgerError):
    """Ledgers were not deleted because a stream, an object, a dataset or another application needs
    them, or may need them. `owners` describes the owners of each ledger, by ledger id."""

    code = -14
    remedy = (
        "Delete or truncate the owner instead (`quire stream truncate`, `quire object delete`), "
        "which frees its ledgers; the option force deletes a ledger and loses what it holds for "
        "its owner"
    )

    def __init__(self, message: str, *, owners: Mapping[int, list[str]]) -> None:
        super().__init__(message)
        self.owners = dict(owners)


class NotEnoughBookiesError(LedgerError):
    """Too few writable bookies for the ensemble."""

    code = -6
    outcome_known = False


class WriteError(LedgerError):
    """An add failed in a way that more attempts cannot mend."""

    code = -12
    outcome_known = False


class AddQuorumTimeoutError(WriteError, TimeoutError):
    """An append was not acknowledged by an ack quorum within `add_quorum_timeout_s`: this writer is
    over, and the outcome of its adds in flight is unknown."""

    code = -21


class EntryTooLargeError(LedgerError, ValueError):
    """The entry does not fit into one frame of the protocol. Nothing was sent."""

    code = -14


class RecoveryError(LedgerError):
    """The ledger could not be recovered now. Nothing is lost; open it again."""

    code = -10
    outcome_known = False


class ReadError(LedgerError):
    """The entries could not be read from any replica; they may exist."""

    code = -1
    outcome_known = False


class NoSuchEntryError(ReadError, IndexError):
    """Every replica says that it never had this entry, or it lies beyond the ledger's end."""

    code = -13
    outcome_known = True


class DigestError(ReadError):
    """The bytes of an entry do not match its digest on any replica that was asked."""

    code = -5


# -- bookies ----------------------------------------------------------------------------------


class BookieError(QuireError):
    """One bookie answered with an error, or did not answer."""

    code = -8
    outcome_known = False


class BookieUnavailableError(BookieError, ConnectionError):
    """The bookie cannot be reached, or the connection was lost."""

    code = -8


class SilentConnectionError(BookieUnavailableError):
    """The connection to the bookie died silently: nothing arrives over it any more. The bookie
    itself may be healthy, so ask it again over a new connection before you conclude anything."""


class TlsError(BookieUnavailableError):
    """The connection to the bookie could not be secured, or the bookie does not accept who the
    client is. Nothing was sent to it; clear text is never tried instead."""

    code = -24
    outcome_known = True


class BookieTimeoutError(BookieError, TimeoutError):
    """The bookie did not answer in time."""

    code = -23


class BookieReadOnlyError(BookieError):
    """The bookie takes no more adds (full disk, or set so)."""

    code = -104
    outcome_known = True


class BookieBusyError(BookieError):
    """The bookie is overloaded."""

    code = -105


class BookieIOError(BookieError):
    """The bookie could not read or write its disk."""

    code = -1


class DataUnknownError(BookieError):
    """The bookie may have lost data and will not say "no such entry"."""

    code = -108


class ProtocolError(BookieError):
    """The peer sent bytes that the protocol does not allow."""

    code = -16


# -- objects ----------------------------------------------------------------------------------


class NoSuchObjectError(MetadataError, FileNotFoundError):
    """No object of this name exists (never put, or deleted), or this version of it was deleted."""


class ObjectExistsError(MetadataError, FileExistsError):
    """An object of this name exists already. Nothing was changed."""


class ObjectDamagedError(QuireError):
    """What the ledger of an object holds is not what was put. Damage is never reported as
    absence."""

    code = -5


# -- streams ----------------------------------------------------------------------------------


class StreamError(QuireError):
    """Something about one stream."""


class NoSuchNamespaceError(StreamError, FileNotFoundError):
    """No namespace of streams is there."""


class NoSuchStreamError(StreamError, FileNotFoundError):
    """No stream of this name exists in the namespace (never created, deleted, or renamed)."""


class StreamExistsError(StreamError, FileExistsError):
    """A stream of this name exists already."""


class StreamFencedError(StreamError):
    """Another client opened the stream for writing: this writer is out for good. What it had under
    way may or may not be part of the stream: open it and look."""

    outcome_known = False


class StreamClosedError(StreamError):
    """The writer is closed or was abandoned. What was under way may or may not be part of the
    stream."""

    outcome_known = False


class StreamEndedError(StreamError):
    """The stream was ended for good: nothing can follow."""


class StreamConditionError(StreamError):
    """The stream is not where a conditional append expects it, or another fencing token is in
    force. Nothing was appended."""


class StreamLockedError(StreamError):
    """Another writer holds the stream's lock. Nothing was changed."""


class StreamQuotaError(StreamError):
    """A limit of the stream or its namespace is reached. Nothing was done."""


class RecordTooLargeError(StreamError, ValueError):
    """The record does not fit into one of DistributedLog's. Nothing was appended."""


class TxidOrderError(StreamError, ValueError):
    """A txid is less than the one before it. Nothing was appended."""


class StreamGapError(StreamError):
    """Records that were to be read are not there any more: truncated, or lost."""


class StreamDivergedError(StreamError):
    """A stream is no copy of the one that it is to be a copy of. Nothing was changed."""


class StreamDamagedError(StreamError):
    """The metadata or an entry of a stream cannot be understood. Damage is never an end."""


# -- storage and start-up ---------------------------------------------------------------------


class StorageError(QuireError):
    """A bookie's disk failed or holds something that cannot be understood."""


class DiskFullError(StorageError):
    """No space is left for new segments."""

    remedy = (
        "`quire bookie explain space DIR` shows what takes it. Make room on the disk, add one, or "
        "delete ledgers that nobody needs; reads go on meanwhile"
    )


class DamagedError(StorageError):
    """Stored bytes do not match their checksum. Damage is never reported as absence."""


class CookieError(QuireError):
    """The data directory and the cluster do not belong together."""


class TlsConfigError(QuireError):
    """A certificate, key or authority file cannot be used, or the options contradict each other."""

    code = -24


class StartError(QuireError):
    """A server could not start: port in use, directory not writable, ..."""


class JobError(QuireError):
    """A job on Spark failed; run again it goes on, or begins anew, without doing harm."""

    outcome_known = False


# -- offloaded history ------------------------------------------------------------------------


class HistoryError(QuireError):
    """Offloaded history could not be read or written now, or somebody else is writing it. What was
    committed before counts; nothing is truncated that is not in it."""

    outcome_known = False


class HistoryDamagedError(HistoryError):
    """Offloaded history is not what was written: a file is missing or changed. Damage is never
    reported as absence."""

    outcome_known = True
