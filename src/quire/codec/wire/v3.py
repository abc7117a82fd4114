"""Protocol v3: frames whose payload is a protobuf message (wire-protocol spec, section 3).

`messages.proto` has the messages; what is here frames them and translates status codes. What comes
by the thousand, adds and their answers, has a shorter way: `v3_stretch`.
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
"""With it begins every v3 request of a client; it is no version of protocol v2."""
VERSION = 3
HIGH_PRIORITY = 100
"""What Apache's client puts on recovery; any number above 0 means the same."""
DEFERRED_SYNC = 1
"""In `writeFlags`: acknowledge before the sync; a FORCE_LEDGER makes it durable."""


class Op(enum.IntEnum):
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
    """One value, not a bit mask."""

    FENCE = 1
    PIGGYBACK = 2


class RequestedInfo(enum.IntFlag):
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
"""Code of protocol v2 -> status. The rooms above know codes only."""
CODE_OF: dict[int, int] = {int(status): int(code) for code, status in _STATUS.items()}


class BadMessageError(ValueError):
    """The payload is no v3 message."""


def parse_request(payload: Buffer) -> Request:
    try:
        request = Request.FromString(payload)  # type: ignore[arg-type]  # a memoryview will do
    except DecodeError as error:
        raise BadMessageError("not a v3 request") from error
    if not request.IsInitialized():  # a field is missing, or has a value that no enumeration has
        raise BadMessageError("an incomplete v3 request")
    return request


def parse_response(payload: Buffer) -> Response:
    try:
        answer = Response.FromString(payload)  # type: ignore[arg-type]
    except DecodeError as error:
        raise BadMessageError("not a v3 response") from error
    if not answer.IsInitialized():
        raise BadMessageError("an incomplete v3 response")
    return answer


def frame(message: Request | Response) -> bytes:
    payload = message.SerializeToString()
    return LENGTH.pack(len(payload)) + payload


# -- requests ---------------------------------------------------------------------------------


def header(op: Op, txn_id: int, priority: int = 0) -> BKPacketHeader:
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
    """One ADD frame; `entry` are the bytes that are stored."""
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
    read = ReadRequest(ledgerId=ledger_id, entryId=entry_id)
    if fence_with is not None:
        read.masterKey = fence_with
        read.flag = ReadRequest.FENCE_LEDGER
    return frame(Request(header=header(Op.READ, txn_id), readRequest=read))


def long_poll_request(
    txn_id: int, ledger_id: int, previous_lac: int, timeout_ms: int, *, last_entry: bool = False
) -> bytes:
    """Wait for the LAC to pass `previous_lac`, and bring the entry behind it, or the last entry
    that there is (6.7)."""
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


# -- answers ----------------------------------------------------------------------------------


def response(op: int, txn_id: int, code: int) -> Response:
    """An answer without its own part; the caller fills in that (with the same status)."""
    found = Response(
        header=BKPacketHeader(version=messages.VERSION_THREE, txnId=txn_id),
        status=STATUS_OF[code],
    )
    found.header.operation = op  # type: ignore[assignment]
    return found


def status_of(answer: Response, inner: int) -> int:
    """The code that counts: the outer status where it is not EOK, else the inner one."""
    status = answer.status or inner
    return CODE_OF.get(status, int(Code.BAD_REQUEST))


@lru_cache(maxsize=64)
def status_varint(code: int) -> bytes:
    return encode_varint(STATUS_OF[code])
