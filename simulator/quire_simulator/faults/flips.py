"""A link that changes bits of the entries that pass it, in both directions.

Only what a digest covers is touched, behind the ids: nothing protects a frame's head but the
checksum of TCP, and who changes that can say what it likes.
"""

from __future__ import annotations

import random

from quire.codec.wire.v2 import ADD_HEAD, VERSION, frame_bounds

FLIPPED_FRAMES = 0.2


class Flips:
    """To be `SimNetwork.mangle`: what goes to or from this host."""

    def __init__(self, host: str, rng: random.Random) -> None:
        self._host = host
        self._rng = rng

    def __call__(self, route: tuple[str, str], data: bytes) -> bytes:
        if self._host not in route:
            return data
        changed = bytearray(data)
        for start, end in frame_bounds(data):
            # An answer with an entry has its ids in the same place, or before it. What is not of
            # this version may have anything there.
            covered = start + ADD_HEAD.size
            if end > covered and data[start + 4] == VERSION and self._rng.random() < FLIPPED_FRAMES:
                changed[self._rng.randrange(covered, end)] ^= 1 << self._rng.randrange(8)
        return bytes(changed)
