"""The memory that a bookie uses for clients that request much and receive nothing.

`bench/hostile.py` measures the same with 2,000 connections of several kinds.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from tests.support.bookies.bookie import free_port
from tests.support.processes.cli import Quire
from tests.support.waiting import wait_for

MIB = 1024 * 1024
KEY = master_key(b"")
LEDGER, ENTRIES = 7, 320
BESIDE_MIB = 30
"""Memory that the allocator keeps, and that the bookie needs for other things than answers."""
LIMIT_MIB = 32
LEFT_MIB = 40
"""Memory that a bookie's allocator may keep after such a storm."""


def resident_mib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    [line] = [line for line in text.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) // 1024


def add(sock: socket.socket, entry_id: int, size: int) -> None:
    codec = EntryCodec(LEDGER, DigestType.CRC32C, b"")
    sock.sendall(frames.add_request(KEY, codec.pack(entry_id, entry_id - 1, 0, bytes(size))))
    assert sock.recv(frames.ADD_RESPONSE_BYTES, socket.MSG_WAITALL) == frames.add_response(
        0, LEDGER, entry_id
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_eleven_kilobytes_of_requests_do_not_cost_a_gigabyte(tmp_path: Path) -> None:
    """Twenty connections with 400 batch reads each, none of which is read."""
    quire = Quire(f"sqlite:///{tmp_path}/metadata.db")
    quire("cluster", "init").ok()
    quire.environment["QUIRE_BOOKIE_MAX_ANSWER_BYTES"] = str(LIMIT_MIB * MIB)
    port = free_port()
    started = quire.start("bookie", "start", "--dir", str(tmp_path / "b"), "--port", str(port))
    with started as bookie, ExitStack() as stack:

        def connect() -> socket.socket | None:
            try:
                sock = socket.create_connection(("127.0.0.1", port), timeout=20)
            except OSError:
                return None
            return stack.enter_context(sock)

        honest = wait_for(connect, "the bookie listens")
        assert honest is not None
        for entry_id in range(ENTRIES):
            add(honest, entry_id, 16 * 1024)
        before = resident_mib(bookie.pid)
        requests = b"".join(
            frames.batch_read_request(LEDGER, 0, number, ENTRIES, 5 * MIB) for number in range(400)
        )
        hostile = [connect() for _ in range(20)]
        for sock in hostile:
            assert sock is not None
            sock.sendall(requests)
        most = 0
        for entry_id in range(ENTRIES, ENTRIES + 200):
            add(honest, entry_id, 1024)
            most = max(most, resident_mib(bookie.pid) - before)
        assert most < 2 * LIMIT_MIB + BESIDE_MIB, f"{most} MiB"
        for sock in hostile:
            assert sock is not None
            sock.close()
        add(honest, ENTRIES + 200, 1024)
        left = wait_for(
            lambda: resident_mib(bookie.pid) - before, right=lambda grown: grown < LEFT_MIB
        )
        assert left < LEFT_MIB
