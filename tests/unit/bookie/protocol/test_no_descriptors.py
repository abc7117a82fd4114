"""Reads in a bookie whose process has no file descriptor left for a segment of the log."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec
from quire.codec.wire import v2 as frames
from quire.codec.wire.v2 import Code
from quire.config import BookieConfig
from quire.storage.disk import RealFile
from tests.support.bookies.bookie import memory_metadata, peer_of, running_bookie

KEY = master_key(b"")
LEDGER = 7
CONFIG = BookieConfig(segment_bytes=8 * 1024 * 1024, min_free_bytes=0, scrub_interval_s=0)


def entry(entry_id: int) -> bytes:
    codec = EntryCodec(LEDGER, DigestType.CRC32C, b"")
    return codec.pack(entry_id, entry_id - 1, 0, b"payload %d" % entry_id)


def batch(first: int, max_bytes: int) -> bytes:
    return frames.batch_read_request(LEDGER, first, first, 100, max_bytes)


@pytest.mark.parametrize("max_bytes", [4_000_000, 1_000])
async def test_a_read_without_a_descriptor_is_an_error_and_no_damage(
    tmp_path: Path, max_bytes: int
) -> None:
    """A large batch read once closed the connection, and a read on a thread reported damage."""
    events: list[tuple[str, dict[str, Any]]] = []
    metadata = memory_metadata()
    async with (
        running_bookie(tmp_path, CONFIG, metadata, bookie_id="b") as bookie,
        peer_of(bookie) as peer,
    ):
        for entry_id in range(3):
            answer = await peer.ask(frames.add_request(KEY, entry(entry_id)))
            assert answer == frames.add_response(0, LEDGER, entry_id)
    async with (
        running_bookie(
            tmp_path, CONFIG, metadata, bookie_id="b",
            log=lambda event, **fields: events.append((event, fields)),
        ) as bookie,
        peer_of(bookie) as peer,
    ):  # fmt: skip
        disk = bookie._disks[0]
        real = disk.open

        def opened(name: str) -> RealFile:
            raise OSError(errno.EMFILE, "Too many open files")

        disk.open = opened  # type: ignore[method-assign]
        failed = frames.batch_read_response(Code.IO_ERROR, LEDGER, 0, 0)
        assert await peer.ask(batch(0, max_bytes)) == failed
        assert await peer.ask(frames.read_request(LEDGER, 1)) == (
            frames.read_response(Code.IO_ERROR, LEDGER, 1)
        )
        disk.open = real  # type: ignore[method-assign]
        everything = [entry(entry_id) for entry_id in range(3)]
        assert await peer.ask(batch(0, max_bytes)) == (
            frames.batch_read_response(0, LEDGER, 0, 0, everything)
        )
        assert bookie.store.stats().damaged_reads == 0
        told = [fields["error"] for event, fields in events if event == "read_failed"]
        assert told
        assert all("no file descriptor is left" in str(error) for error in told)
