"""The errors that Quire raises on purpose, in one class tree.

Every error answers three questions: what happened and to what (the message), whether the outcome is
known (`outcome_known`), and what to do next (`remedy`). Errors of single bookies, and of servers of
the metadata store, are attached as `causes`, by bookie id or address. Each class also carries
BookKeeper's client error code (`code`, see Java's `BKException`) for tools that know these numbers.

A class also derives from one of Python's own errors if that error means the same: TimeoutError,
ConnectionError, ValueError, PermissionError, FileNotFoundError, FileExistsError, KeyError or
IndexError. Code in Quire that catches one of these around a call that may raise a QuireError must
therefore catch QuireError first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from copy import copy
from typing import Any, TypeVar


class QuireError(Exception):
    """The base class of all errors that Quire raises on purpose.

    Any other exception that escapes from Quire is a bug, unless code of the program raised it, such
    as a state machine or the source of an object.

    Attributes:
        code: BookKeeper's client error code for this class of error.
        outcome_known: Whether the error says what became of the call. If it is False, the change
            may or may not have taken effect: check before you repeat it.
        remedy: What to do next, as a sentence without its final full stop. It is empty if there is
            no general advice.
        causes: The errors of single bookies, or of servers of the metadata store, that led to this
            one, by the id of the bookie or the address of the server.
    """

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
        text = Exception.__str__(self)  # KeyError.__str__ would put the message in quotes
        if self.causes:
            text += " (" + "; ".join(f"{who}: {why}" for who, why in self.causes.items()) + ")"
        if self.remedy:
            text += f"{'' if text.endswith('?') else '.'} {self.remedy}"
        return text


E = TypeVar("E", bound=QuireError)


def nothing_done(error: E) -> E:
    """Set `outcome_known` of an error whose message says that nothing was done, and return it.

    The classes of these errors leave the outcome open, because others of the class do not know it.
    """
    error.outcome_known = True
    return error


def done_in_part(error: E) -> E:
    """Return a copy of the error of one part of a call, whose other parts may have been done.

    The error may know the outcome of its own part. That of the whole call is unknown to it.
    """
    found = copy(error)
    found.outcome_known = False
    return found


class UsageError(QuireError, ValueError):
    """Raised for a call that cannot succeed: a bad argument, or a handle that is closed.

    Nothing was done, unless the message says otherwise. Correct the call; repeating it does not
    help.
    """

    code = -14


class ArgumentTypeError(UsageError, TypeError):
    """Raised when an argument has the wrong type. Nothing was done."""


class EntryExistsError(UsageError):
    """Raised when a caller chooses the id of an entry that it has appended already.

    Nothing was sent.
    """


_TYPES: dict[type, str] = {str: "text (str)", bytes: "bytes", bool: "True or False"}


def check_type(what: str, value: object, kind: type) -> None:
    """Check the type of an argument of a public call.

    Args:
        what: The name of the argument for the message, such as "a ledger id".
        value: The argument.
        kind: str, bytes or bool. `whole_number` checks numbers. A bool is checked because Python
            would take every text for True, also "no" and "false".

    Raises:
        ArgumentTypeError: The argument has another type.
    """
    if isinstance(value, kind):
        return
    remedy = "Encode it first: text with .encode()" if kind is bytes else None
    raise ArgumentTypeError(
        f"{what} must be {_TYPES[kind]}, not {type(value).__name__}", remedy=remedy
    )


def whole_number(what: str, value: object) -> int:
    """Return an argument of a public call that is a whole number, as an int of Python.

    Everything that Python takes as an index is accepted, such as the numbers in columns of NumPy
    and pandas. Those have few bits, and SQLite would not find a ledger by one, so it must not be
    used in their place. True and False are refused: they are never meant as the numbers 1 and 0.

    Args:
        what: The name of the argument for the message, such as "a ledger id".
        value: The argument.

    Returns:
        The number.

    Raises:
        ArgumentTypeError: The argument is not a whole number.
    """
    if type(value) is int:
        return value
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ArgumentTypeError(f"{what} must be a whole number (int), not {type(value).__name__}")


def check_seconds(what: str, value: object) -> None:
    """Check that an argument of a public call is a number of seconds.

    Args:
        what: The name of the argument for the message, such as "older_than_s".
        value: The argument.

    Raises:
        ArgumentTypeError: The argument is not a number.
        UsageError: The argument is not finite.
    """
    if not isinstance(value, int | float):
        raise ArgumentTypeError(f"{what} must be a number of seconds, not {type(value).__name__}")
    if not math.isfinite(value):
        raise UsageError(f"{what} must be a finite number of seconds, not {value}")


class ClientClosedError(QuireError):
    """Raised by calls on a client that is closed, or that is closed while the call runs.

    Connect again. Entries that a writer had sent when its client was closed may or may not be in
    the ledger: open the ledger with `recover=True` to find out.
    """

    code = -19


def client_closed() -> ClientClosedError:
    """Return the error of a call on a client that is closed."""
    return ClientClosedError("the client is closed", remedy="Connect again")


# -- what a later version wrote ---------------------------------------------------------------


class LaterVersionError(QuireError):
    """Raised when stored data was written by a later version of Quire or of BookKeeper.

    The data is not damaged, and this version does not change it. Each subclass stands for one
    place: a bookie's disk, the metadata store, a stream, a checkpoint or offloaded history.
    """

    remedy = "Install the version that wrote it, or a later one. Nothing is damaged"


def written_later(what: str, found: str, known: str, *, by: str = "Quire") -> str:
    """Return the message of a `LaterVersionError`.

    Args:
        what: The name of the file or value that was read, such as a path.
        found: What the file or value has, such as "format 2".
        known: What this version knows, such as "format 1".
        by: The program that may have written it.
    """
    return (
        f"{what} was written by a later version of {by}: it has {found}, but this version knows "
        f"only {known}"
    )


def later_json(
    what: str, value: Any, names: Collection[str], known: int = 1, *, key: str = "format"
) -> str:
    """Return an error message if a later version wrote a JSON value, and otherwise "".

    The field `key` of the value holds the number of its format. A value without this field has
    format 1. A value is from a later version if its number is higher than `known`, or if it has a
    field that this version does not know: writing the value again would remove that field.

    Args:
        what: The name of the value for the message, such as a path.
        value: The decoded value. Anything but an object passes.
        names: The names of the fields that this version knows, without the number of the format.
            The names of a nested object are checked by another call.
        known: The highest format that this version knows.
        key: The name of the field with the number of the format.
    """
    if not isinstance(value, dict):
        return ""
    found = value.get(key, 1)
    if isinstance(found, int) and found > known:
        return written_later(what, f"format {found}", f"format {known}")
    more = sorted(str(name) for name in value if name not in names and name != key)
    if more:
        return written_later(what, f"the field {more[0]!r}", f"the fields {', '.join(names)}")
    return ""


DAMAGED_JSON = (
    AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError, UsageError,
)  # fmt: skip
"""The errors of decoding a JSON value that is not as it was stored. It may hold numbers like 1e999,
and any nesting."""


# -- metadata ---------------------------------------------------------------------------------


class MetadataError(QuireError):
    """The base class of errors of the metadata store.

    The store failed or refused a change, a value does not exist, or a value cannot be used.
    """

    code = -9


class MetadataUnavailableError(MetadataError, ConnectionError):
    """Raised when the metadata store does not answer.

    It is also raised when other clients changed what a call needs during each of its attempts. The
    outcome of a write is unknown, unless `outcome_known` says otherwise: it may or may not have
    been stored. Check the store and the URI, then try again.
    """

    outcome_known = False
    remedy = "Check that the store is running and that the URI names it"


class MetadataDeniedError(MetadataError, PermissionError):
    """Raised when the metadata store refuses access.

    The client gave no identity, or one that lacks the right. The request that was refused changed
    nothing. Connect with an identity that has the right (`quire.ZooKeeperOptions`).
    """


class UnreadableMetadataError(MetadataError):
    """Raised when the metadata of one ledger, or one under-replication mark, cannot be decoded.

    The value is damaged or has an unknown format. The store itself answers, and other ledgers are
    not affected.
    """

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
        """The store's version of the unreadable value, which a write that replaces it must name."""


class LaterMetadataError(LaterVersionError, UnreadableMetadataError):
    """Raised when a later version of Quire or of BookKeeper wrote a value in the metadata store."""


class LaterClusterError(LaterVersionError, MetadataError):
    """Raised when a later version of Quire or of BookKeeper wrote the layout of the whole cluster.

    That is the node LAYOUT in ZooKeeper, or the SQLite file. No ledger of the cluster can be used.
    """


class MetadataTooLargeError(MetadataError):
    """Raised when a ledger's metadata would become too large for the store.

    Nothing was written.
    """

    remedy = (
        "The ledger can still be recovered, closed, read and deleted. Close it and write to a new "
        "ledger"
    )


class MetadataURIError(MetadataError, ValueError):
    """Raised when a metadata URI cannot be used, because its form or its scheme is wrong."""

    remedy = "Use sqlite:////absolute/file.db or zk+hierarchical://HOST:PORT/ledgers"


class ClusterNotInitialisedError(MetadataError):
    """Raised when the metadata store answers but holds no cluster. Nothing was changed."""

    remedy = (
        "If the cluster is new, make it with `quire cluster init --metadata URI`. If it is not, "
        "correct the URI, or restore the store (docs/guides/repair/disaster-recovery.md)"
    )


class MetadataWentBackError(MetadataError):
    """Raised when the metadata store is in an older state than one that it confirmed before.

    A backup was restored, or a disk lost its newest writes. Ledgers that the store does not name
    may still exist, so nothing is deleted.
    """

    remedy = (
        "`quire cluster gc status` names the bookies that refuse. Restore the newest "
        "backup, find out what is missing (docs/guides/repair/disaster-recovery.md), and only then "
        "let the bookies resume with `quire cluster gc accept`"
    )


class CollectionOffError(QuireError):
    """Raised when ledgers are to be deleted as garbage while garbage collection is switched off.

    A bookie's own setting or the switch of the whole cluster turns it off. Nothing was deleted.
    """

    remedy = (
        "`quire cluster gc status` shows who switched it off; `quire cluster gc on` switches it on "
        "again"
    )


class VersionConflictError(MetadataError):
    """Raised when a compare-and-swap fails because another client changed the value first.

    Nothing was written, unless `outcome_known` is False: then this write may have been done before
    the other client changed the value again. Read the value again and decide again.
    """

    code = -17


class NoSuchLedgerError(MetadataError, KeyError):
    """Raised when the metadata store has no ledger with this id.

    The ledger was never created, or it was deleted.
    """

    code = -25


class LedgerExistsError(MetadataError, FileExistsError):
    """Raised when a ledger is created with an id that another ledger has. Nothing was created."""

    code = -20


class NoSuchKeyError(MetadataError, KeyError):
    """Raised when a value that was read, changed or deleted is not in the metadata store.

    The value is anything but the metadata of a ledger, for example a cookie or a dataset.
    """


class KeyExistsError(MetadataError):
    """Raised when a value that is to be created in the metadata store exists already.

    Nothing was changed.
    """


class NotEmptyError(MetadataError):
    """Raised when a node of the metadata store is to be deleted while it has child nodes.

    Nothing was deleted.
    """


# -- ledgers ----------------------------------------------------------------------------------


class LedgerError(QuireError):
    """The base class of errors that concern one ledger.

    Attributes:
        ledger_id: The id of the ledger, or None.
        entry_id: The id of the entry that the error is about, or None.
    """

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
    """Raised by a writer that is closed, or whose ledger was closed by another client.

    The outcome of entries in flight is unknown: each may or may not be part of the ledger. Open the
    ledger to find out.
    """

    code = -11
    outcome_known = False


class LedgerFencedError(LedgerError):
    """Raised by a writer when another client opened its ledger with recovery.

    This writer can never append again. The outcome of entries in flight is unknown: open the ledger
    to see which of them it contains. To continue writing, create a new ledger.
    """

    code = -101
    outcome_known = False


class UnauthorizedError(LedgerError, PermissionError):
    """Raised when the password of a ledger is wrong or cannot be checked.

    It is also raised when a bookie does not accept the client. Use the password with which the
    ledger was created, and check whether the bookie requires TLS.
    """

    code = -102


class LedgerRecreatedError(LedgerError):
    """Raised when the ledger was deleted and another ledger was created with its id.

    A handle that raises it can no longer be used, because its ledger does not exist. Bookies may
    have stored an append that was in flight, or that was acknowledged after the deletion, as an
    entry of the new ledger.
    """

    code = -25
    remedy = "Open the ledger again to work with the new one"


class LedgerOwnedError(LedgerError):
    """Raised when ledgers were not deleted because something needs them, or may need them.

    The owner is a stream, an object, a dataset or another application. Nothing was deleted.

    Attributes:
        owners: Descriptions of the owners of each ledger, by ledger id.
    """

    code = -14
    remedy = (
        "If the owner is a stream, an object or a dataset, delete or truncate that instead "
        "(`quire stream truncate`, `quire object delete`, `quire dataset delete`), which frees its "
        "ledgers. The option force deletes a ledger anyway, and its owner loses that data"
    )

    def __init__(self, message: str, *, owners: Mapping[int, list[str]]) -> None:
        super().__init__(message)
        self.owners = dict(owners)


class NotEnoughBookiesError(LedgerError):
    """Raised when too few writable bookies are available for an ensemble.

    If `create_ledger` raises it, nothing was created. If the writer of a ledger raises it, that
    writer can no longer be used and the outcome of entries in flight is unknown: open the ledger
    with `recover=True` to find out. If `StreamWriter.roll` raises it, the writer of the stream can
    still be used. Start more bookies, or create ledgers with a smaller ensemble.
    """

    code = -6
    outcome_known = False
    reason: str = ""
    """The thing that a writer lacks, as a clause. It is empty for other errors of this class."""


class WriteError(LedgerError):
    """Raised when a writer fails in a way that it cannot repair by trying again.

    The outcome of entries in flight is unknown: open the ledger with `recover=True` to find out.
    """

    code = -12
    outcome_known = False


class AddQuorumTimeoutError(WriteError, TimeoutError):
    """Raised when an append was not acknowledged by an ack quorum within `add_quorum_timeout_s`.

    This writer can no longer be used. The outcome of its entries in flight is unknown: open the
    ledger with `recover=True` to find out.
    """

    code = -21


class EntryTooLargeError(LedgerError, ValueError):
    """Raised when an entry does not fit into one frame of the protocol.

    Nothing was sent, and the writer can still be used. Split the payload.
    """

    code = -14


class RecoveryError(LedgerError):
    """Raised when a ledger could not be recovered, usually because too few bookies answered.

    Nothing is lost. The ledger may already be fenced, or even closed. Open it with recovery again.
    """

    code = -10
    outcome_known = False


class ReadError(LedgerError):
    """Raised when entries, or the end of a ledger, could not be read. The entries may exist.

    Try again once the bookies named in `causes` answer. If `causes` is empty, the entry is not
    known to be acknowledged yet, or its content cannot be used: the message says which.
    """

    code = -1
    outcome_known = False


class NoSuchEntryError(ReadError, IndexError):
    """Raised when an entry does not exist.

    The entry is after the end of the ledger, or every replica says that it never had the entry.
    `Client.list_entries` raises it if the bookie has no entry of the ledger.
    """

    code = -13
    outcome_known = True


class DigestError(ReadError):
    """Raised when a replica of an entry is damaged, and all others are damaged or deny the entry.

    A replica is damaged if the bytes of the entry do not match their digest. If that is so on every
    replica, the password may be wrong.
    """

    code = -5


# -- bookies ----------------------------------------------------------------------------------


class BookieError(QuireError):
    """The base class of errors of one bookie: it answered with an error, or did not answer."""

    code = -8
    outcome_known = False


class BookieUnavailableError(BookieError, ConnectionError):
    """Raised when a bookie cannot be reached, or when the connection to it is lost."""

    code = -8


class SilentConnectionError(BookieUnavailableError):
    """Raised when the connection to a bookie died silently: no data arrives over it any more.

    The bookie itself may be healthy. Repeat the request over a new connection before you conclude
    anything about the bookie.
    """


class TlsError(BookieUnavailableError):
    """Raised when the connection to a bookie could not be secured.

    This includes a bookie that rejects the client's certificate. Nothing was sent to the bookie.
    Quire never falls back to an unencrypted connection. Check the certificates and the authorities
    on both sides.
    """

    code = -24
    outcome_known = True


class BookieTimeoutError(BookieError, TimeoutError):
    """Raised when a bookie did not answer in time.

    Whether it carried out the request is unknown.
    """

    code = -23


class BookieReadOnlyError(BookieError):
    """Raised when a bookie refuses an entry because it is read-only.

    For example, its disk is full, or an operator made it read-only.
    """

    code = -104
    outcome_known = True


class BookieBusyError(BookieError):
    """Raised when a bookie refuses a request because it is overloaded.

    It is also raised, without contacting the bookie, when this client already has too many calls to
    the bookie outstanding. Try again later.
    """

    code = -105


class BookieIOError(BookieError):
    """Raised when a bookie could not read or write its disk.

    It is also raised when a bookie refuses a request with a code that Quire does not know.
    """

    code = -1


class DataUnknownError(BookieError):
    """Raised when a bookie may have lost data and therefore does not answer "no such entry".

    The entry may exist on this bookie. Read it from another replica.
    """

    code = -108


class ProtocolError(BookieError):
    """Raised when the peer sent bytes that the protocol does not allow.

    It is also raised when a bookie does not speak this version of the protocol.
    """

    code = -16


# -- objects ----------------------------------------------------------------------------------


class NoSuchObjectError(MetadataError, FileNotFoundError):
    """Raised when no object has this name, or when the requested version was deleted."""


class ObjectExistsError(MetadataError, FileExistsError):
    """Raised when an object with this name exists already. Nothing was changed."""


class ObjectDamagedError(QuireError):
    """Raised when the stored bytes of an object are lost, or are not those that were put.

    A damaged object is never reported as missing.
    """

    code = -5


# -- streams ----------------------------------------------------------------------------------


class StreamError(QuireError):
    """The base class of errors that concern streams."""


class NoSuchNamespaceError(StreamError, FileNotFoundError):
    """Raised when there is no namespace of streams at the given path.

    Create it with `create=True`.
    """


class NoSuchStreamError(StreamError, FileNotFoundError):
    """Raised when the namespace has no stream or topic with this name.

    It was never created, or it was deleted or renamed. The error is also raised if it was replaced
    by another one with the same name while it was in use.
    """


class StreamExistsError(StreamError, FileExistsError):
    """Raised when a stream or a topic with this name exists already. Nothing was changed."""


class StreamFencedError(StreamError):
    """Raised when another client took the stream over, or deleted or renamed it.

    Another client takes a stream over when it opens the stream for writing, or publishes to it
    first. A writer that raises this error can never append again. Records in flight may or may not
    be part of the stream: open the stream to find out.
    """

    outcome_known = False


class StreamClosedError(StreamError):
    """Raised by a writer of a stream or a topic that is closed, or was stopped with `abandon`.

    A namespace, a leader and a follower that are closed or have ended raise it, too. Records in
    flight may or may not be part of the stream: open the stream to find out.
    """

    outcome_known = False


class StreamEndedError(StreamError):
    """Raised by an append to a stream that was ended, or when such a stream is opened for writing.

    Nothing can be appended after the end of a stream.
    """


class StreamConditionError(StreamError):
    """Raised when the condition of an append does not hold. Nothing was appended.

    The stream does not have the expected number of records, another fencing token is in force, or a
    compaction that has read further is published.
    """


class StreamLockedError(StreamError):
    """Raised when another writer, or another offload job, holds the lock of the stream.

    The lock was not released within the time that the caller allows. The stream was not changed.
    """


class StreamQuotaError(StreamError):
    """Raised when a limit of the stream or of its namespace is reached. Nothing was changed."""


class RecordTooLargeError(StreamError, ValueError):
    """Raised when a record is larger than DistributedLog's format allows.

    Nothing was appended.
    """


class TxidOrderError(StreamError, ValueError):
    """Raised when the transaction id of a record is less than the one before it, or is too large.

    Nothing was appended.
    """


class StreamGapError(StreamError):
    """Raised when records that were to be read no longer exist: they were truncated or lost.

    Attributes:
        kind: "truncated" or "lost" if a reader of the stream raised the error (see `Gap.kind`), and
            otherwise an empty string.
    """

    kind = ""


class StreamDivergedError(StreamError):
    """Raised when the target of a stream replication is not a copy of its source.

    A stream with the target's name exists already, and has another origin or other records, or a
    topic with the target's name has another number of partitions. The replication of this stream
    ends, and changes nothing more.
    """


class StreamDamagedError(StreamError):
    """Raised when the metadata or an entry of a stream cannot be decoded.

    It is also raised when records that a state machine or a copy of the stream needs are missing.
    Damage is never reported as the end of the stream.
    """


class LaterStreamError(LaterVersionError, StreamError):
    """Raised when a later version of Quire, or another library, wrote a part of a stream.

    The part is an entry, the stored position of a named reader, or the snapshot of a state machine.
    """


class LaterRowsError(LaterVersionError, ReadError):
    """Raised when a later version of Quire wrote an entry with rows of a dataset."""

    outcome_known = True


class LaterCheckpointError(LaterVersionError, UsageError):
    """Raised when a later version of Quire wrote the checkpoint of a Spark job."""


# -- storage and start-up ---------------------------------------------------------------------


class StorageError(QuireError):
    """The base class of errors of a bookie's disk.

    The disk failed, or it holds data that cannot be used.
    """


class DiskFullError(StorageError):
    """Raised when the disk has no space left for new segments of the log."""

    remedy = (
        "`quire bookie explain space DIR` shows what uses the disk. Free some space, add a disk, "
        "or delete ledgers that nobody needs; reads continue meanwhile"
    )


class DamagedError(StorageError):
    """Raised when stored bytes do not match their checksum.

    Damaged data is never reported as missing.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        causes: Mapping[str, BaseException | str] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, causes=causes, remedy=remedy)
        self.file = file
        """The name of the damaged file in the data directory. Empty if it is not known."""


class LaterStorageError(LaterVersionError, StorageError):
    """Raised when a later version of Quire wrote a file of a bookie's data directory.

    The bookie does not start, and changes nothing in that directory.
    """


class CookieError(QuireError):
    """Raised when a data directory and the cluster do not belong together."""


class LaterCookieError(LaterVersionError, CookieError):
    """Raised when a later version of Quire or of BookKeeper wrote a bookie's cookie."""


class TlsConfigError(QuireError):
    """Raised when a certificate, key or authority file cannot be used.

    It is also raised when TLS options contradict each other.
    """

    code = -24


class StartError(QuireError):
    """Raised when a server could not start, for example because its port is in use."""


class JobError(QuireError):
    """Raised when an administrative job failed, such as emptying a bookie or offloading a stream.

    The outcome is unknown, but it is safe to run the job again: it continues or begins anew.
    """

    outcome_known = False


class JobRefusedError(JobError):
    """Raised when a job cannot succeed, before it has changed anything.

    For example, no other bookie can take the replicas of a bookie that is to be emptied.
    """

    outcome_known = True


# -- offloaded history ------------------------------------------------------------------------


class HistoryError(QuireError):
    """Raised when the offloaded history of a stream could not be read or written.

    The history is the copy of old segments in Parquet files or tables. The error is also raised
    while another job writes the history. Everything that was committed before stays valid, and the
    stream is not truncated beyond it. Run the job again.
    """

    outcome_known = False


class LaterHistoryError(LaterVersionError, HistoryError):
    """Raised when a later version of Quire wrote the offloaded history, or a compacted table."""

    outcome_known = True


class HistoryDamagedError(HistoryError):
    """Raised when a file of a stream's offloaded history is missing or was changed.

    Damaged history is never reported as missing records.
    """

    outcome_known = True
