"""A Byzantine bookie: a proxy that changes the answers of an honest bookie, or its requests.

    with ByzantineProxy(("127.0.0.2", port), ("127.0.0.1", port), digest, password) as liar:
        liar.lie = Lie.WRONG_BYTES

The proxy works frame by frame, in both protocols. The bookie listens at the one address and
registers the other (`--bind`, `--advertise`), so that every client connects to the proxy. Lies are
made from the entries that the bookie was asked to store.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from quire.codec.entry.digest import DigestType
from quire.codec.entry.entry import META, META_BYTES, EntryCodec
from quire.codec.wire import v3
from quire.codec.wire.messages_pb2 import Response, StatusCode
from quire.codec.wire.v2 import (
    ADD_PREFIX,
    BATCH_READ_WORD,
    BATCH_RESPONSE,
    BATCH_RESPONSE_BYTES,
    LENGTH,
    READ_RESPONSE_BYTES,
    RESPONSE,
    Code,
    Opcode,
    add_response,
    batch_read_response,
    frame_bounds,
    read_response,
    split_word,
)
from tests.support.network.fault_proxy import CHUNK_BYTES, Address, ProxyThread, Way

LAST_ENTRY = -1
TOO_HIGH_BY = 1_000


class Lie(enum.StrEnum):
    """The kinds of lies, with the names of the rows in docs/explanation/byzantine-bookies.md."""

    WRONG_BYTES = "wrong bytes"
    """One bit of the payload is flipped, and the digest is unchanged."""
    FORGED = "wrong bytes, recomputed digest"
    """The digest is recomputed without the password, so an HMAC does not match."""
    WRONG_ENTRY = "another entry"
    """A neighbouring entry is returned instead of the requested one."""
    DROPPED = "acknowledged, not stored"
    STALE_LAC = "stale LAC"
    """The first entry is returned if the last one is requested, so the LAC seems older."""
    HIGH_LAC = "LAC too high"
    """The LAC in answers to long polls, which no digest covers, is too high."""
    DENIED = "no such entry"
    """The bookie answers that the entry, or the list of a ledger's entries, does not exist."""


@dataclass(slots=True)
class _Conversation:
    """The state of one proxied connection."""

    rest: dict[str, bytearray] = field(
        default_factory=lambda: {"request": bytearray(), "answer": bytearray()}
    )
    """The part of an incomplete frame that has arrived, by direction."""
    asked: dict[int, int] = field(default_factory=dict)
    """The entry id that each request of protocol v3 asks for, by transaction id."""

    def frames(self, way: str, chunk: bytes) -> list[bytes]:
        """Add a chunk in one direction, and return the frames that are complete.

        `way` is "request" or "answer".
        """
        rest = self.rest[way]
        rest += chunk
        bounds = frame_bounds(rest)
        found = [bytes(rest[start:end]) for start, end in bounds]
        if bounds:
            del rest[: bounds[-1][1]]
        return found


class ByzantineProxy(ProxyThread):
    def __init__(
        self,
        listen: Address,
        server: Address,
        digest: DigestType = DigestType.CRC32C,
        password: bytes = b"",
    ) -> None:
        """Create a proxy that tells no lies yet.

        Forged digests are computed with `digest` and with `password` as the password of the
        ledgers.
        """
        super().__init__(listen, server)
        self.lie: Lie | None = None
        """The current lie, or None to be honest. A test may change it at any time."""
        self.digest = digest
        self.password = password
        self.told = 0
        """The number of answers so far in which the proxy has lied."""
        self._held: dict[int, dict[int, bytes]] = {}
        """The entries that clients have sent to the bookie, by ledger id and entry id."""

    def _pass_on(
        self,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> tuple[Way, Way]:
        conversation = _Conversation()

        async def requests() -> None:
            while chunk := await from_client.read(CHUNK_BYTES):
                for frame in conversation.frames("request", chunk):
                    pretended = self._request(conversation, frame)
                    if pretended is None:
                        to_server.write(frame)
                    else:
                        to_client.write(pretended)
                await to_server.drain()

        async def answers() -> None:
            while chunk := await from_server.read(CHUNK_BYTES):
                for frame in conversation.frames("answer", chunk):
                    to_client.write(self._answer(conversation, frame))
                await to_client.drain()

        return requests(), answers()

    # -- requests ----------------------------------------------------------------------------

    def _request(self, conversation: _Conversation, frame: bytes) -> bytes | None:
        """Return the proxy's own answer to a request, or None to pass the request on."""
        if frame[LENGTH.size] == v3.FIRST_BYTE:
            return self._request_v3(conversation, frame)
        version, opcode, _ = split_word(*LENGTH.unpack_from(frame, LENGTH.size))
        if opcode != Opcode.ADD:
            return None
        ledger, entry = self._remember(frame[ADD_PREFIX.size :])
        if self.lie is not Lie.DROPPED:
            return None
        self.told += 1
        return add_response(Code.OK, ledger, entry, version)

    def _request_v3(self, conversation: _Conversation, frame: bytes) -> bytes | None:
        request = v3.parse_request(frame[LENGTH.size :])
        txn = request.header.txnId
        if request.HasField("readRequest"):
            conversation.asked[txn] = request.readRequest.entryId
        if not request.HasField("addRequest"):
            return None
        ledger, entry = self._remember(request.addRequest.body)
        if self.lie is not Lie.DROPPED:
            return None
        self.told += 1
        answer = v3.response(v3.Op.ADD, txn, Code.OK)
        answer.addResponse.status = answer.status
        answer.addResponse.ledgerId, answer.addResponse.entryId = ledger, entry
        return v3.frame(answer)

    def _remember(self, body: bytes) -> tuple[int, int]:
        ledger, entry, _, _ = META.unpack_from(body)
        self._held.setdefault(ledger, {})[entry] = body
        return ledger, entry

    # -- answers ----------------------------------------------------------------------------

    def _answer(self, conversation: _Conversation, frame: bytes) -> bytes:
        if self.lie is None:
            return frame
        if frame[LENGTH.size] == v3.FIRST_BYTE:
            return self._answer_v3(conversation, frame)
        (word,) = LENGTH.unpack_from(frame, LENGTH.size)
        version, opcode, _ = split_word(word)
        if word == BATCH_READ_WORD:
            return self._batch(frame)
        if opcode != Opcode.READ:
            return frame
        _, _, code, ledger, entry = RESPONSE.unpack_from(frame)
        if code:
            return frame
        body = self._twisted(ledger, entry, frame[READ_RESPONSE_BYTES:])
        if body is None:
            return read_response(Code.NO_ENTRY, ledger, entry, version=version)
        return read_response(Code.OK, ledger, entry, body, version)

    def _batch(self, frame: bytes) -> bytes:
        _, _, code, ledger, first, request_id = BATCH_RESPONSE.unpack_from(frame)
        if code:
            return frame
        bounds = frame_bounds(memoryview(frame)[BATCH_RESPONSE_BYTES:])
        entries: list[bytes] = []
        for number, (start, end) in enumerate(bounds):
            at = BATCH_RESPONSE_BYTES + start + LENGTH.size
            body = self._twisted(ledger, first + number, frame[at : BATCH_RESPONSE_BYTES + end])
            if body is None:
                return batch_read_response(Code.NO_ENTRY, ledger, first, request_id)
            entries.append(body)
        return batch_read_response(Code.OK, ledger, first, request_id, entries)

    def _answer_v3(self, conversation: _Conversation, frame: bytes) -> bytes:
        answer = v3.parse_response(frame[LENGTH.size :])
        asked = conversation.asked.pop(answer.header.txnId, 0)
        told = self.told
        if answer.HasField("readResponse"):
            self._read_v3(answer, asked)
        elif answer.HasField("readLacResponse"):
            self._lac_v3(answer)
        elif answer.HasField("getListOfEntriesOfLedgerResponse") and self.lie is Lie.DENIED:
            own = answer.getListOfEntriesOfLedgerResponse
            own.ClearField("availabilityOfEntriesOfLedger")
            self.told += 1
            own.status = self._denied(answer)
        return frame if self.told == told else v3.frame(answer)

    def _read_v3(self, answer: Response, asked: int) -> None:
        own = answer.readResponse
        if own.HasField("maxLAC"):
            told = {Lie.STALE_LAC: min(own.maxLAC, 0), Lie.HIGH_LAC: own.maxLAC + TOO_HIGH_BY}
            lac = told.get(self.lie, own.maxLAC) if self.lie is not None else own.maxLAC
            self.told += lac != own.maxLAC
            own.maxLAC = lac
        if not own.body:
            return
        body = self._twisted(own.ledgerId, asked, own.body)
        if body is None:
            own.ClearField("body")
            own.ClearField("maxLAC")
            own.status = self._denied(answer)
        else:
            own.body = body

    def _lac_v3(self, answer: Response) -> None:
        own = answer.readLacResponse
        if self.lie in (Lie.STALE_LAC, Lie.DENIED):
            own.ClearField("lacBody")
        if not own.lastEntryBody:
            return
        body = self._twisted(own.ledgerId, LAST_ENTRY, own.lastEntryBody)
        if body is None:
            own.ClearField("lastEntryBody")
            own.status = self._denied(answer)
        else:
            own.lastEntryBody = body

    def _denied(self, answer: Response) -> StatusCode:
        answer.status = v3.STATUS_OF[Code.NO_ENTRY]
        return answer.status

    # -- entries ------------------------------------------------------------------------------

    def _twisted(self, ledger: int, asked: int, body: bytes) -> bytes | None:
        """Return the entry as the current lie changes it, or None to deny that it exists.

        `asked` is the requested id, or the value that requests the last entry.
        """
        lies: dict[Lie, Callable[[], bytes | None]] = {
            Lie.WRONG_BYTES: lambda: _flipped(body),
            Lie.FORGED: lambda: self._forged(ledger, body),
            Lie.WRONG_ENTRY: lambda: self._neighbour(ledger, body),
            Lie.STALE_LAC: lambda: self._first(ledger, body) if asked == LAST_ENTRY else body,
            Lie.DENIED: lambda: None,
        }
        make = lies.get(self.lie) if self.lie is not None else None
        found = body if make is None else make()
        self.told += found != body
        return found

    def _forged(self, ledger: int, body: bytes) -> bytes:
        codec = EntryCodec(ledger, self.digest, self.password)
        _, entry, lac, length = META.unpack_from(body)
        payload = _flipped(body)[codec.head_bytes :]
        return codec.pack(entry, lac, length, payload)

    def _neighbour(self, ledger: int, body: bytes) -> bytes:
        """Return the previous entry, or the next one for the first entry."""
        _, entry, _, _ = META.unpack_from(body)
        held = sorted(self._held.get(ledger, {entry: body}))
        at = held.index(entry)
        other = held[at - 1] if at else held[min(1, len(held) - 1)]
        return self._held[ledger][other] if other != entry else body

    def _first(self, ledger: int, body: bytes) -> bytes:
        held = self._held.get(ledger)
        return held[min(held)] if held else body


def _flipped(body: bytes) -> bytes:
    """Return an entry with the last bit flipped, which belongs to the payload."""
    assert len(body) > META_BYTES
    return body[:-1] + bytes((body[-1] ^ 1,))


def flipped_payload(payload: bytes) -> bytes:
    """Return a payload as `WRONG_BYTES` and `FORGED` change it."""
    return payload[:-1] + bytes((payload[-1] ^ 1,))
