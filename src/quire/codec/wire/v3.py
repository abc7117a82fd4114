"""Protocol v3: frames whose payload is a protobuf message (docs/reference/protocol.md).

A frame is the length of the message in bytes (4 bytes, unsigned, big-endian), and the message.
`messages.proto` defines the messages. This module frames them and translates status codes. Adds and
their responses, of which there are thousands, are usually handled by `v3_adds`, which is faster.
"""

from __future__ import annotations

import enum
from functools import lru_cache

from google.protobuf.message import DecodeError

from quire.codec.protobuf_wire import encode_varint
from quire.codec.wire import messages_pb2 as messages
from quire.codec.wire.messages_pb2 import (
    AddRequest,
    AuthMessage,
    BKPacketHeader,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    GetListOfEntriesOfLedgerRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    Response,
    StartTLSRequest,
    WriteLacRequest,
)
from quire.codec.wire.v2 import LENGTH, Buffer, Code

FIRST_BYTE = 0x0A
"""The first byte of every v3 request of a client. No version of protocol v2 has this number."""
VERSION = 3
HIGH_PRIORITY = 100
"""The priority that Apache's client gives to recovery. Every number above 0 means the same."""
DEFERRED_SYNC = 1
"""The flag in `writeFlags` with which a bookie acknowledges an add before the sync. A FORCE_LEDGER
makes the add durable."""


class Op(enum.IntEnum):
    """The operation of a request."""

    READ = 1
    ADD = 2
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    BOOKIE_INFO = 8
    START_TLS = 9
    FORCE = 10
    LIST_ENTRIES = 11


class ReadFlag(enum.IntEnum):
    """The flag of a read: one value, not a bit mask."""

    FENCE = 1
    PIGGYBACK = 2


class RequestedInfo(enum.IntFlag):
    """The information that a client asks a bookie for."""

    TOTAL_CAPACITY = 1
    FREE_SPACE = 2


_STATUS = {
    Code.OK: messages.EOK,
    Code.NO_LEDGER: messages.ENOLEDGER,
    Code.NO_ENTRY: messages.ENOENTRY,
    Code.BAD_REQUEST: messages.EBADREQ,
    Code.IO_ERROR: messages.EIO,
    Code.UNAUTHORIZED: messages.EUA,
    Code.BAD_VERSION: messages.EBADVERSION,
    Code.FENCED: messages.EFENCED,
    Code.READ_ONLY: messages.EREADONLY,
    Code.TOO_MANY_REQUESTS: messages.ETOOMANYREQUESTS,
    Code.UNKNOWN_LEDGER_STATE: messages.EUNKNOWNLEDGERSTATE,
}
STATUS_OF: dict[int, messages.StatusCode] = {int(code): s for code, s in _STATUS.items()}
"""The v3 status for each code of protocol v2. Code outside of this package uses only the codes of
v2."""
CODE_OF: dict[int, int] = {int(status): int(code) for code, status in _STATUS.items()}
"""The code of protocol v2 for each v3 status."""


class BadMessageError(ValueError):
    """The error for a payload that is not a v3 message."""


def parse_request(payload: Buffer) -> Request:
    """Parse the payload of a request frame.

    Raises:
        BadMessageError: The payload is not a v3 request, or lacks a required field.
    """
    try:
        request = Request.FromString(payload)  # type: ignore[arg-type]  # a memoryview will do
    except DecodeError as error:
        raise BadMessageError("the request is not a valid message of protocol v3") from error
    if not request.IsInitialized():  # a field is missing, or has an unknown enumeration value
        raise BadMessageError("the request of protocol v3 lacks a required field")
    return request


def parse_response(payload: Buffer) -> Response:
    """Parse the payload of a response frame.

    Raises:
        BadMessageError: The payload is not a v3 response, or lacks a required field.
    """
    try:
        answer = Response.FromString(payload)  # type: ignore[arg-type]
    except DecodeError as error:
        raise BadMessageError("the response is not a valid message of protocol v3") from error
    if not answer.IsInitialized():
        raise BadMessageError("the response of protocol v3 lacks a required field")
    return answer


def frame(message: Request | Response) -> bytes:
    """Return the frame of a message."""
    payload = message.SerializeToString()
    return LENGTH.pack(len(payload)) + payload


# -- requests ---------------------------------------------------------------------------------


def header(op: Op, txn_id: int, priority: int = 0) -> BKPacketHeader:
    """Return the header of a request. A `priority` above 0 is that of recovery."""
    found = BKPacketHeader(version=messages.VERSION_THREE, txnId=txn_id)
    found.operation = int(op)  # type: ignore[assignment]
    if priority:
        found.priority = priority
    return found


def add_request(
    txn_id: int,
    key: bytes,
    entry: bytes,
    ledger_id: int,
    entry_id: int,
    *,
    recovery: bool = False,
    deferred_sync: bool = False,
) -> bytes:
    """Return an ADD frame. `entry` is the bytes to store, and `key` the master key.

    `recovery` marks an add of recovery, which a fenced ledger accepts. With `deferred_sync`, the
    bookie acknowledges the add before it is durable.
    """
    add = AddRequest(ledgerId=ledger_id, entryId=entry_id, masterKey=key, body=entry)
    if deferred_sync:
        add.writeFlags = DEFERRED_SYNC
    if recovery:
        add.flag = AddRequest.RECOVERY_ADD
    priority = HIGH_PRIORITY if recovery else 0
    return frame(Request(header=header(Op.ADD, txn_id, priority), addRequest=add))


def read_request(
    txn_id: int, ledger_id: int, entry_id: int, *, fence_with: bytes | None = None
) -> bytes:
    """Return a READ frame.

    `fence_with` is the master key with which the ledger is fenced, or None.
    """
    read = ReadRequest(ledgerId=ledger_id, entryId=entry_id)
    if fence_with is not None:
        read.masterKey = fence_with
        read.flag = ReadRequest.FENCE_LEDGER
    return frame(Request(header=header(Op.READ, txn_id), readRequest=read))


def long_poll_request(
    txn_id: int, ledger_id: int, previous_lac: int, timeout_ms: int, *, last_entry: bool = False
) -> bytes:
    """Return a READ frame that waits until the LAC passes `previous_lac`.

    The bookie responds after `timeout_ms` milliseconds at the latest. The response has the entry
    after `previous_lac`, or the last existing entry with `last_entry`.
    """
    read = ReadRequest(ledgerId=ledger_id, entryId=-1, previousLAC=previous_lac, timeOut=timeout_ms)
    if not last_entry:
        read.flag = ReadRequest.ENTRY_PIGGYBACK
    return frame(Request(header=header(Op.READ, txn_id), readRequest=read))


def write_lac_request(txn_id: int, ledger_id: int, lac: int, key: bytes, packet: bytes) -> bytes:
    write = WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=key, body=packet)
    return frame(Request(header=header(Op.WRITE_LAC, txn_id), writeLacRequest=write))


def read_lac_request(txn_id: int, ledger_id: int) -> bytes:
    read = ReadLacRequest(ledgerId=ledger_id)
    return frame(Request(header=header(Op.READ_LAC, txn_id), readLacRequest=read))


def force_request(txn_id: int, ledger_id: int) -> bytes:
    force = ForceLedgerRequest(ledgerId=ledger_id)
    return frame(Request(header=header(Op.FORCE, txn_id), forceLedgerRequest=force))


def bookie_info_request(txn_id: int, requested: int) -> bytes:
    info = GetBookieInfoRequest(requested=requested)
    return frame(Request(header=header(Op.BOOKIE_INFO, txn_id), getBookieInfoRequest=info))


def list_entries_request(txn_id: int, ledger_id: int) -> bytes:
    listing = GetListOfEntriesOfLedgerRequest(ledgerId=ledger_id)
    return frame(
        Request(header=header(Op.LIST_ENTRIES, txn_id), getListOfEntriesOfLedgerRequest=listing)
    )


def start_tls_request(txn_id: int) -> bytes:
    return frame(Request(header=header(Op.START_TLS, txn_id), startTLSRequest=StartTLSRequest()))


def auth_request(txn_id: int, plugin: str, token: bytes) -> bytes:
    message = AuthMessage(authPluginName=plugin, payload=token)
    return frame(Request(header=header(Op.AUTH, txn_id), authRequest=message))


# -- responses --------------------------------------------------------------------------------


def response(op: int, txn_id: int, code: int) -> Response:
    """Return a response with its header and outer status only.

    The caller adds the part for the operation, with the same status.
    """
    found = Response(
        header=BKPacketHeader(version=messages.VERSION_THREE, txnId=txn_id),
        status=STATUS_OF[code],
    )
    found.header.operation = op  # type: ignore[assignment]
    return found


def status_of(answer: Response, inner: int) -> int:
    """Return the code of a response: the outer status unless it is EOK, otherwise the inner one."""
    status = answer.status or inner
    return CODE_OF.get(status, int(Code.BAD_REQUEST))


@lru_cache(maxsize=64)
def status_varint(code: int) -> bytes:
    """Return the v3 status of a code as a varint."""
    return encode_varint(STATUS_OF[code])
