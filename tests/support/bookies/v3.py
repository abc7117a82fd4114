"""Entries and the master key of the ledgers in tests of a bookie's protocol v3."""

from __future__ import annotations

from quire.codec.entry.digest import DigestType, master_key
from quire.codec.entry.entry import EntryCodec

KEY = master_key(b"testPasswd")


def entry(ledger: int, entry_id: int, lac: int = -1, payload: bytes = b"hello world") -> bytes:
    codec = EntryCodec(ledger, DigestType.CRC32C, b"testPasswd")
    return codec.pack(entry_id, lac, 11 * (entry_id + 1), payload)
