"""A link that flips bits of the entries it carries, in both directions.

Only bytes after the ids are changed, which a digest covers. Nothing but TCP's checksum protects the
head of a frame, so flips there could turn a message into any other.
"""

from __future__ import annotations

import random

from quire.codec.wire.v2 import ADD_HEAD, VERSION, frame_bounds

FLIPPED_FRAMES = 0.2


class Flips:
    """The callable for `SimNetwork.mangle`: it changes what goes to or from this host."""

    def __init__(self, host: str, rng: random.Random) -> None:
        self._host = host
        self._rng = rng

    def __call__(self, route: tuple[str, str], data: bytes) -> bytes:
        if self._host not in route:
            return data
        changed = bytearray(data)
        for start, end in frame_bounds(data):
            # An answer that contains an entry has its ids at the same offset or before it. A frame
            # of another protocol version may have anything there.
            covered = start + ADD_HEAD.size
            if end > covered and data[start + 4] == VERSION and self._rng.random() < FLIPPED_FRAMES:
                changed[self._rng.randrange(covered, end)] ^= 1 << self._rng.randrange(8)
        return bytes(changed)
