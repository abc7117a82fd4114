"""The refusals of adds: in the version of the request, and only for the requests that are wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.bookie.server import Bookie
from quire.codec.wire import v2, v3
from quire.codec.wire.v2 import Code, Opcode
from tests.support.bookies.bookie import peer_of, running_bookie
from tests.support.bookies.v3 import KEY, entry

WRONG_KEY = b"w" * 20


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Bookie]:
    async with running_bookie(tmp_path / "bookie") as bookie:
        yield bookie


def versioned(request: bytes, version: int) -> bytes:
    """Return an add with the header word of another version."""
    word = v2.header_word(Opcode.ADD, 0, version)
    return request[:4] + word.to_bytes(4, "big") + request[8:]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_refused_add_is_answered_in_its_own_version(bookie: Bookie, version: int) -> None:
    async with peer_of(bookie) as peer:
        await peer.ask(v2.add_request(KEY, entry(1, 0)))
        answer = await peer.ask(versioned(v2.add_request(WRONG_KEY, entry(1, 1)), version))
        assert answer == v2.add_response(Code.UNAUTHORIZED, 1, 1, version)


async def test_only_negative_ids_are_refused_among_adds_that_arrive_together(
    bookie: Bookie,
) -> None:
    async with peer_of(bookie) as peer:
        peer.send(b"".join(v2.add_request(KEY, entry(1, number)) for number in range(-2, 3)))
        codes = {}
        for _ in range(5):
            _, _, code, _, number = v2.RESPONSE.unpack(await peer.receive())
            codes[number] = code
    bad, good = Code.BAD_REQUEST, Code.OK
    assert codes == {-2: bad, -1: bad, 0: good, 1: good, 2: good}
    assert bookie.store.ledgers[1].last_entry_id == 2


async def test_only_negative_ids_in_bodies_are_refused_among_adds_of_protocol_v3(
    bookie: Bookie,
) -> None:
    requests = [v3.add_request(n + 9, KEY, entry(1, n), 1, 100 + n) for n in range(-2, 3)]
    assert len(set(map(len, requests))) == 1
    async with peer_of(bookie) as peer:
        peer.send(b"".join(requests))
        codes = {}
        for _ in range(5):
            answer = v3.parse_response((await peer.receive())[4:])
            codes[answer.header.txnId - 9] = v3.status_of(answer, answer.addResponse.status)
    bad, good = Code.BAD_REQUEST, Code.OK
    assert codes == {-2: bad, -1: bad, 0: good, 1: good, 2: good}
