"""What the bytes of all streams have in common: limits, reserved numbers, and the error
(distributedlog spec, 1.1). The formats themselves:

| module           | bytes of                                                       |
|------------------|----------------------------------------------------------------|
| `dlsn`           | positions                                                      |
| `envelope`       | an entry around its records                                    |
| `record`         | records and whole entries: the hot path                        |
| `record_set`     | many records of one producer in one                            |
| `stream_control` | what Quire keeps in control records                            |
| `stream_segment` | a segment's metadata and the names of its node                 |
| `stream_binding` | a namespace's binding, its URI, access rights                  |
| `stream_name`    | names of streams, the nodes below them, members of their locks |
"""

from __future__ import annotations


class StreamFormatError(ValueError):
    """Bytes that are not what they have to be: damaged, or in a form that is not known here.

    Never to be taken for an end, or for something that is not there.
    """


FIRST_LSSN = 1
"""Number of a stream's first segment (lssn: log segment sequence number)."""
UNASSIGNED_LSSN = 0
UNASSIGNED_SEQUENCE_ID = -1

MAX_TXID = 2**63 - 1
"""Of the end of a stream only."""
MAX_USER_TXID = MAX_TXID - 1
INVALID_TXID = -999
"""The last txid of a segment in progress. Never stored."""

MAX_POSITION = 2**31 - 1
"""Records of one segment."""
MAX_RECORD_BYTES = 1_048_576 - 8_192
"""With the 20 bytes before the payload."""
MAX_ENTRY_BYTES = 1_048_576 - 4_096
"""Of an entry before compression, with its envelope; and of a record set."""
MAX_EXPANDED_BYTES = 5_242_880
"""What the compressed parts of one entry may become together. No Java writer makes entries this
long; the bound keeps a few bytes from filling the memory."""
