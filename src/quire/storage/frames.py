"""Checking frames that lie back to back against what the index says of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

from quire.codec.log_parts import Buffer

FRAME_IDS = struct.Struct(">I24xqq")  # length, (header word, key), ledger, entry


@lru_cache(maxsize=256)
def heads_of(frame_size: int) -> struct.Struct:
    """(length, ledger, entry) of a frame."""
    return struct.Struct(f"{FRAME_IDS.format}{frame_size - FRAME_IDS.size}x")


def frames_are(
    frames: Buffer, ledger_id: int, ids: Sequence[int], sizes: Iterable[int], frame_size: int
) -> bool:
    """Whether these are just the frames of these entries; `frame_size`: of all, or 0."""
    count = len(ids)
    if frame_size:
        if len(frames) != frame_size * count:
            return False
        lengths, ledgers, entries = zip(*heads_of(frame_size).iter_unpack(frames))
        return (
            lengths.count(frame_size - 4) == count
            and ledgers.count(ledger_id) == count
            and entries == tuple(ids)
        )
    at, end = 0, len(frames)
    for entry_id, size in zip(ids, sizes, strict=True):
        if at + FRAME_IDS.size > end:
            return False
        if FRAME_IDS.unpack_from(frames, at) != (size - 4, ledger_id, entry_id):
            return False
        at += size
    return at == end
