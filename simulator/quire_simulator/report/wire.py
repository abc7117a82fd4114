"""Decode the messages between clients and bookies from the bytes on the network.

This serves only the readable trace. Invalid bytes never raise, because a fault may have changed
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import error as StructError
from typing import NamedTuple

from quire.codec.entry.entry import LAC_PACKET, META, META_BYTES
from quire.codec.wire import v2 as frames
from quire.codec.wire import v3
from quire.codec.wire.messages_pb2 import AddRequest, ReadRequest
from quire.codec.wire.v2 import LAST_ENTRY, LENGTH, MAX_FRAME_BYTES, Buffer, Code, Flag, Opcode
from quire_simulator.machine.transport import End

LAST = "the last entry"


class Said(NamedTuple):
    """One request or answer. Entries are -1 if it names none."""

    verb: str
    answer: bool
    ledger_id: int = -1
    first: int = -1
    last: int = -1
    lac: int | None = None


class Wiretap:
    """An assembler of messages from the bytes of each direction of each connection."""

    def __init__(self, bookie_port: int) -> None:
        self._bookie_port = bookie_port
        self._begun: dict[tuple[End, End], bytes] = {}
        """The received part of an incomplete frame, by direction."""
        self._garbled: set[tuple[End, End]] = set()

    def heard(self, local: End, remote: End, data: bytes) -> Iterator[Said]:
        """Yield the messages that `data` completes."""
        direction = (local, remote)
        if direction in self._garbled:
            return
        answer = local[1] == self._bookie_port
        data = self._begun.pop(direction, b"") + data
        at = 0
        while len(data) - at >= LENGTH.size:
            size = LENGTH.unpack_from(data, at)[0] + LENGTH.size
            if not 2 * LENGTH.size <= size <= MAX_FRAME_BYTES:
                self._garbled.add(direction)
                yield Said("bytes that are not a frame", answer)
                return
            if at + size > len(data):
                break
            yield message_of(data[at : at + size], answer)
            at += size
        if at < len(data):
            self._begun[direction] = data[at:]


def message_of(frame: bytes, answer: bool) -> Said:
    """Decode one complete frame of either protocol."""
    try:
        if frame[LENGTH.size] == v3.FIRST_BYTE:
            payload = frame[LENGTH.size :]
            return _answer_v3(payload) if answer else _request_v3(payload)
        _, opcode, flags = frames.split_word(frames.WORD.unpack_from(frame)[1])
        return _answer_v2(frame, opcode) if answer else _request_v2(frame, opcode, flags)
    except (ValueError, IndexError, StructError):  # The frame was cut short, or is not a message.
        return Said("a frame that cannot be decoded", answer)


def _named(code: int) -> str:
    return Code(code).name if code in Code.__members__.values() else f"code {code}"


def _lac_of(entry: Buffer) -> int:
    return int(META.unpack_from(entry)[2])


# -- protocol v2 ------------------------------------------------------------------------------


def _request_v2(frame: bytes, opcode: int, flags: int) -> Said:
    if opcode == Opcode.ADD:
        _, _, _, ledger_id, entry_id = frames.ADD_HEAD.unpack_from(frame)
        verb = "recovery add" if flags & Flag.RECOVERY_ADD else "add"
        lac = _lac_of(frame[frames.FRAME_HEADER_BYTES :])
        return Said(verb, False, ledger_id, entry_id, entry_id, lac)
    if opcode == Opcode.READ:
        _, _, ledger_id, entry_id = frames.READ_REQUEST.unpack_from(frame)
        return _read(ledger_id, entry_id, fence=bool(flags & Flag.DO_FENCING))
    if opcode == Opcode.BATCH_READ:
        fields = frames.BATCH_READ_REQUEST.unpack_from(frame)
        verb = "fence, read on from" if flags & Flag.DO_FENCING else "read on from"
        return Said(verb, False, fields[2], fields[3], fields[3])
    return Said(_opcode_name(opcode), False)


def _answer_v2(frame: bytes, opcode: int) -> Said:
    if opcode == Opcode.BATCH_READ:
        _, _, code, ledger_id, first, _ = frames.BATCH_RESPONSE.unpack_from(frame)
        if code != Code.OK:
            return Said(f"{_named(code)} to read", True, ledger_id, first, first)
        bounds = frames.frame_bounds(memoryview(frame)[frames.BATCH_RESPONSE.size :])
        return Said("entries", True, ledger_id, first, first + len(bounds) - 1)
    if opcode not in (Opcode.ADD, Opcode.READ):
        return Said(f"{_opcode_name(opcode)} done", True)
    _, _, code, ledger_id, entry_id = frames.RESPONSE.unpack_from(frame)
    if opcode == Opcode.ADD:
        verb = "added" if code == Code.OK else f"{_named(code)} to add"
        return Said(verb, True, ledger_id, entry_id, entry_id)
    return _entry(code, ledger_id, entry_id, frame[frames.RESPONSE.size :])


def _opcode_name(opcode: int) -> str:
    known = opcode in Opcode.__members__.values()
    return Opcode(opcode).name.lower() if known else f"operation {opcode}"


def _read(ledger_id: int, entry_id: int, *, fence: bool) -> Said:
    verb = "fence, read" if fence else "read"
    if entry_id == LAST_ENTRY:
        return Said(f"{verb} {LAST}", False, ledger_id)
    return Said(verb, False, ledger_id, entry_id, entry_id)


def _entry(code: int, ledger_id: int, entry_id: int, entry: bytes) -> Said:
    if code != Code.OK:
        what = f" {LAST}" if entry_id == LAST_ENTRY else ""
        return Said(f"{_named(code)} to read{what}", True, ledger_id, entry_id, entry_id)
    if len(entry) < META_BYTES:
        return Said("answered", True, ledger_id)
    _, found, lac, _ = META.unpack_from(entry)
    return Said("entry", True, ledger_id, found, found, lac)


# -- protocol v3 ------------------------------------------------------------------------------


def _request_v3(payload: bytes) -> Said:
    request = v3.parse_request(payload)
    if request.HasField("addRequest"):
        add = request.addRequest
        recovery = add.HasField("flag") and add.flag == AddRequest.RECOVERY_ADD
        verb = "recovery add" if recovery else "add"
        if add.writeFlags & v3.DEFERRED_SYNC:
            verb = f"deferred {verb}"
        return Said(verb, False, add.ledgerId, add.entryId, add.entryId, _lac_of(add.body))
    if request.HasField("readRequest"):
        read = request.readRequest
        if read.HasField("previousLAC"):
            return Said("wait for a later LAC", False, read.ledgerId, lac=read.previousLAC)
        fence = read.HasField("flag") and read.flag == ReadRequest.FENCE_LEDGER
        return _read(read.ledgerId, read.entryId, fence=fence)
    if request.HasField("writeLacRequest"):
        write = request.writeLacRequest
        return Said("write the LAC", False, write.ledgerId, lac=write.lac)
    if request.HasField("readLacRequest"):
        return Said("read the LAC", False, request.readLacRequest.ledgerId)
    if request.HasField("forceLedgerRequest"):
        return Said("force", False, request.forceLedgerRequest.ledgerId)
    if request.HasField("getListOfEntriesOfLedgerRequest"):
        return Said("list", False, request.getListOfEntriesOfLedgerRequest.ledgerId)
    return Said(_operation_name(request.header.operation), False)


def _answer_v3(payload: bytes) -> Said:
    answer = v3.parse_response(payload)
    if answer.HasField("addResponse"):
        add = answer.addResponse
        code = v3.status_of(answer, add.status)
        verb = "added" if code == Code.OK else f"{_named(code)} to add"
        return Said(verb, True, add.ledgerId, add.entryId, add.entryId)
    if answer.HasField("readResponse"):
        read = answer.readResponse
        code = v3.status_of(answer, read.status)
        if code == Code.OK and not read.body:
            return Said("the LAC", True, read.ledgerId, lac=read.maxLAC)
        return _entry(code, read.ledgerId, read.entryId, read.body)
    if answer.HasField("readLacResponse"):
        found = answer.readLacResponse
        code = v3.status_of(answer, found.status)
        if code != Code.OK:
            return Said(f"{_named(code)} to read the LAC", True, found.ledgerId)
        lacs = [-1]
        if len(found.lacBody) >= LAC_PACKET.size:
            lacs.append(LAC_PACKET.unpack_from(found.lacBody)[1])
        if len(found.lastEntryBody) >= META_BYTES:
            lacs.append(_lac_of(found.lastEntryBody))
        return Said("the LAC", True, found.ledgerId, lac=max(lacs))
    for part, verb in _SIMPLE_ANSWERS:
        if answer.HasField(part):
            inner = getattr(answer, part)
            code = v3.status_of(answer, inner.status)
            text = f"{verb} done" if code == Code.OK else f"{_named(code)} to {verb}"
            return Said(text, True, inner.ledgerId)
    return Said(f"{_operation_name(answer.header.operation)} done", True)


_SIMPLE_ANSWERS = (
    ("writeLacResponse", "write the LAC"),
    ("forceLedgerResponse", "force"),
    ("getListOfEntriesOfLedgerResponse", "list"),
)


def _operation_name(operation: int) -> str:
    known = operation in v3.Op.__members__.values()
    return v3.Op(operation).name.lower().replace("_", " ") if known else f"operation {operation}"
