"""Thousands of mutated frames are sent to a running bookie.

It stays up with bounded memory, and an honest client beside them is not affected.
QUIRE_FUZZ_CONNECTIONS is the number of connections, with four frames each; `make soak` uses 2,500.
The frames derive from every request recorded from Apache's client and bookie, in both protocols.
Hypothesis mutates them from a fixed seed.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.testing.cluster import LocalCluster

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[2] / "golden"
CONNECTIONS = int(os.environ.get("QUIRE_FUZZ_CONNECTIONS", "600"))
FRAMES = 4
"""The number of frames on each connection. After an invalid frame the rest is ignored."""
CLOSES_S = 20.0
RSS_GROWTH_BYTES = 96 * 1024 * 1024
HONEST_LEDGER = 2**50 + 12_345
"""Too far from all others for a mutation to name it."""


def corpus() -> list[bytes]:
    requests = [
        bytes.fromhex(vector["inputs"]["request_hex"])
        for vector in json.loads((GOLDEN / "wire-live.json").read_text())
    ]
    requests += [
        bytes.fromhex(vector["hex"])
        for vector in json.loads((GOLDEN / "wire.json").read_text())
        if vector["hex"] is not None and "_req" in vector["name"]
    ]
    return sorted({request for request in requests if len(request) >= 12})


CORPUS = corpus()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a frame with wrong, missing or additional bytes, usually with a matching length."""
    frame = bytearray(draw(st.sampled_from(CORPUS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(4, len(frame) - 1))
        match draw(st.integers(0, 5)):
            case 0:
                frame[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                frame[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case 2 if len(frame) > 16:
                del frame[at : at + draw(st.integers(1, 8))]
            case 3:
                frame[at:at] = draw(st.binary(min_size=1, max_size=12))
            case 4 if at + 8 <= len(frame):
                frame[at : at + 8] = struct.pack(">q", draw(st.sampled_from(EDGES)))
            case 5:
                other = draw(st.sampled_from(CORPUS))
                frame[at:] = other[min(at, len(other) - 1) :]
        if len(frame) < 9:
            frame += bytes(9)
    lie = draw(st.integers(0, 30))
    if lie == 0:
        frame[:4] = draw(st.binary(min_size=4, max_size=4))
    elif lie > 3:
        frame[:4] = struct.pack(">I", len(frame) - 4)
    return bytes(frame)


EDGES = [0, 1, -1, -2, -0x1000, 2**31 - 1, 2**31, 2**63 - 1, -(2**63)]


class Honest:
    """A client that appends and reads, and wants to see what it wrote."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(CLOSES_S)
        self.key = master_key(b"honest")
        self.codec = EntryCodec(HONEST_LEDGER, DigestType.CRC32C, b"honest")
        self.written = 0

    def exchange(self, request: bytes, size: int) -> bytes:
        self.socket.sendall(request)
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "the bookie closed an honest connection"
            data += more
        return data

    def append_and_read(self) -> None:
        entry = self.codec.pack(self.written, self.written - 1, 5 * (self.written + 1), b"hello")
        request = frames.add_request(self.key, entry)
        expected = frames.add_response(0, HONEST_LEDGER, self.written)
        assert self.exchange(request, len(expected)) == expected
        back = frames.read_response(0, HONEST_LEDGER, self.written, entry)
        assert self.exchange(frames.read_request(HONEST_LEDGER, self.written), len(back)) == back
        self.written += 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=1, directory=tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_a_bookie_survives_mutated_frames(cluster: LocalCluster) -> None:
    bookie = cluster.bookies[0]
    honest = Honest(bookie.port)
    honest.append_and_read()
    before = bookie.rss_bytes()
    tried = 0

    @seed(4_172)
    @settings(
        max_examples=CONNECTIONS,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(mutated(), min_size=FRAMES, max_size=FRAMES), st.integers(0, 7))
    def attack(requests: list[bytes], how: int) -> None:
        nonlocal tried
        tried += len(requests)
        with socket.create_connection(("127.0.0.1", bookie.port)) as liar:
            liar.settimeout(CLOSES_S)
            try:
                if how == 0:  # cut anywhere
                    data = b"".join(requests)
                    for at in range(0, len(data), 37):
                        liar.sendall(data[at : at + 37])
                else:
                    liar.sendall(b"".join(requests))
                liar.shutdown(socket.SHUT_WR)
                while liar.recv(65_536):
                    pass
            except TimeoutError:
                pytest.fail("the bookie neither answers nor closes")
            except OSError:
                pass  # it has had enough of us
        honest.append_and_read()

    attack()
    assert tried >= CONNECTIONS * FRAMES
    assert bookie.alive
    assert bookie.rss_bytes() < before + RSS_GROWTH_BYTES
    honest.socket.close()
    log = bookie.log_path.read_text()
    assert "Traceback" not in log
    assert "connection_refused" in log
