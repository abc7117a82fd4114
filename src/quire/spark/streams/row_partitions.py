"""The partitions of a topic to which rows go.

They depend only on the content of a row. A micro-batch that is computed again, after some
partitions were published and others were not, is therefore divided in the same way.
"""

from __future__ import annotations

from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from quire.streams.topics.partitioner import partition_of


def row_partitions(keys: pa.Array | None, values: pa.Array, partitions: int) -> pa.Array:
    """Return the partition of each row.

    A row with a key goes to the partition of its key, as with every other producer. A row without
    one goes to the CRC-32 of its value, modulo the number of partitions.

    Args:
        keys: The keys, as binary or string, or None if no row has one.
        values: The values, as binary or string.
        partitions: The number of partitions.
    """
    if keys is None:
        return _by_value(values, partitions)
    encoded = keys.cast(pa.binary()).dictionary_encode()
    of_keys = [partition_of(key, partitions) for key in encoded.dictionary.to_pylist()]
    found = pa.array(of_keys, pa.int32()).take(encoded.indices)
    if not keys.null_count:
        return found
    return pc.if_else(pc.is_valid(keys), found, _by_value(values, partitions))


def _by_value(values: pa.Array, partitions: int) -> pa.Array:
    payloads = values.cast(pa.binary()).to_pylist()
    return pa.array([crc32(one or b"") % partitions for one in payloads], pa.int32())
