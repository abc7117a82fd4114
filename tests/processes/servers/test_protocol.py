"""A bookie and its peers: exchanges recorded from a real Apache bookie, and invalid bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire
from quire.codec.wire import v2 as frames
from quire.codec.wire.v3 import parse_response
from quire.errors import EntryTooLargeError
from quire.testing.cluster import LocalCluster
from tests.support.processes.protocol import Peer

pytestmark = pytest.mark.slow

LIVE = json.loads((Path(__file__).parents[2] / "golden" / "wire-live.json").read_text())
SILENCE_S = 0.2
"""Seconds for which nothing may arrive when no answer is expected."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=1, directory=tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def alive(cluster: LocalCluster) -> bool:
    """Whether an honest client is served."""
    with Peer(cluster) as peer:
        peer.send(frames.read_request(987_654, 0))
        return peer.receive() == frames.read_response(1, 987_654, 0)


def test_recorded_exchanges_of_apaches_bookie_match(cluster: LocalCluster) -> None:
    """Every exchange recorded from a writable bookie with the default storage matches, byte for
    byte.

    Exchanges with other kinds of bookies are in `tests/unit/bookie/protocol/test_bookie_v3.py`.
    """
    peers: dict[str, Peer] = {}
    tried = 0
    for vector in LIVE:
        inputs = vector["inputs"]
        if inputs["storage"] != "SortedLedgerStorage" or vector["name"].startswith("live_ro_"):
            continue
        if inputs["connection"] not in peers:
            peers[inputs["connection"]] = Peer(cluster)
        peer = peers[inputs["connection"]]
        peer.send(bytes.fromhex(inputs["request_hex"]))
        answer = peer.receive()
        tried += 1
        if vector["name"] == "live_v3_bookieinfo_3":  # the space on that machine and on this one
            theirs = parse_response(bytes.fromhex(vector["hex"])[4:])
            ours = parse_response(answer[4:])
            info = ours.getBookieInfoResponse
            assert info.totalDiskCapacity >= info.freeDiskSpace > 0
            theirs.getBookieInfoResponse.CopyFrom(info)
            assert ours == theirs
            continue
        assert answer.hex() == (vector["hex"] or ""), vector["name"]
        assert inputs["outcome"] == ("response" if answer else "connection_closed")
    for peer in peers.values():
        peer.socket.close()
    assert tried == 78


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x03abc",
        (frames.MAX_FRAME_BYTES - 3).to_bytes(4, "big") + b"\x02\x01\x00\x00",
        b"\xff\xff\xff\xff\x02\x01\x00\x00",
        b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
        frames.read_request(1, 1)[:20] + b"\x00" * 4 + b"\xff" * 64,
        b"\x00\x00\x00\x08\x02\x02\x00\x00aaaa",
        b"\x00\x00\x00\x14\x02\x02\x00\x01" + b"\x00" * 16,
        b"\x00\x00\x00\x12\x02\x01\x00\x00" + b"\x00" * 14,
        b"\x00\x00\x00\x06\x0a\x04\x08\x03\x10\x01",
        b"\x00\x00\x00\x0c\x0a\x06\x08\x03\x10\x63\x18\x01aaaa",
    ],
    ids=[
        "empty frame", "too short", "too long", "a huge length", "HTTP", "garbage behind a request",
        "a short read", "fencing without a key", "a short add", "half a v3 request",
        "an unknown v3 operation",
    ],
)  # fmt: skip
def test_a_malformed_request_ends_only_its_connection(cluster: LocalCluster, data: bytes) -> None:
    with Peer(cluster) as honest, Peer(cluster) as liar:
        liar.send(data)
        while liar.receive():
            pass
        honest.send(frames.read_request(987_654, 0))
        assert honest.receive() == frames.read_response(1, 987_654, 0)
    assert "connection_refused" in cluster.bookies[0].log_path.read_text()


def test_the_largest_entry_is_accepted_and_one_byte_more_refused(cluster: LocalCluster) -> None:
    with quire.blocking.connect(cluster.uri) as client:
        writer = client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        largest = frames.MAX_FRAME_BYTES - 64
        assert writer.append(b"a" * largest) == 0
        with pytest.raises(EntryTooLargeError, match=f"the limit is {largest} bytes of payload"):
            writer.append(b"a" * (largest + 1))
        assert writer.append(b"still open") == 1
        writer.close()
        reader = client.open_ledger(writer.ledger_id)
        assert [len(entry.payload) for entry in reader.read()] == [largest, 10]
