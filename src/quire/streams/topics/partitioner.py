"""The partition of a record, by its key.

The function is that of Kafka's default partitioner, so that records that come from a Kafka topic
with the same number of partitions keep theirs. It must never change: all producers of a topic have
to agree on it, and the node of the topic names it.
"""

from __future__ import annotations

from functools import lru_cache

PARTITIONER = "murmur2"
"""The name of this function in the nodes of topics."""
SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
KEYS_REMEMBERED = 10_000
"""The number of keys whose partition a process remembers, because the hash is slow in Python."""
_32_BITS = 0xFFFFFFFF
_31_BITS = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 hash of some bytes, as an unsigned number."""
    value = SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * MULTIPLIER & _32_BITS
        part = (part ^ part >> 24) * MULTIPLIER & _32_BITS
        value = value * MULTIPLIER & _32_BITS ^ part
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & _32_BITS
    value = (value ^ value >> 13) * MULTIPLIER & _32_BITS
    return value ^ value >> 15


@lru_cache(KEYS_REMEMBERED)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: `(murmur2(key) & 0x7fffffff) % partitions`."""
    return (murmur2(key) & _31_BITS) % partitions
