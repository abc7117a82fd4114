"""The limits, reserved numbers and the error of all formats of streams.

docs/reference/streams-format.md describes the formats, which are those of Apache DistributedLog.

| module              | format                                                       |
|---------------------|--------------------------------------------------------------|
| `dlsn`              | positions in a stream                                        |
| `envelope`          | the envelope of an entry                                     |
| `compression`       | the compression of entries and of record sets                |
| `record`            | records and whole entries: the hot path                      |
| `record_envelope`   | the key, headers and event time of a record                  |
| `record_set`        | many records of one producer in one record                   |
| `control_record`    | the content of Quire's control records                       |
| `segment`           | the metadata of a segment, and the name of its node          |
| `namespace_binding` | the binding of a namespace, its URI, access rights           |
| `thrift_json`       | the JSON of bindings and access rights                       |
| `name`              | the names of streams and the nodes of a stream               |
| `lock`              | the members of a stream's lock                               |
"""

from __future__ import annotations

BY = "Quire or DistributedLog"
"""The programs that error messages name as the writers of something that this version does not
know."""


class StreamFormatError(ValueError):
    """The error for bytes of a stream that are damaged or have an unknown form.

    Never treat this error as the end of a stream, or as a missing record.
    """


class LaterStreamFormatError(StreamFormatError):
    """The error for bytes that a later version of Quire or of DistributedLog wrote.

    They are not damaged.
    """


FIRST_LSSN = 1
"""The number of a stream's first segment (LSSN: log segment sequence number)."""
UNASSIGNED_LSSN = 0
UNASSIGNED_SEQUENCE_ID = -1

MAX_TXID = 2**63 - 1
"""The transaction id (txid) of the end of a stream. No user record has it."""
MAX_USER_TXID = MAX_TXID - 1
INVALID_TXID = -999
"""The last txid of a segment in progress. It is never stored."""

MAX_POSITION = 2**31 - 1
"""The largest number of records in one segment."""
MAX_RECORD_BYTES = 1_048_576 - 8_192
"""The largest size of a record in bytes, including the 20 bytes before its payload."""
MAX_ENTRY_BYTES = 1_048_576 - 4_096
"""The largest size of an entry in bytes, with its envelope and before compression. A record set has
the same limit."""
MAX_EXPANDED_BYTES = 5_242_880
"""The largest number of bytes to which a compressed entry may expand, and to which the compressed
record sets of one entry may expand together. No Java writer makes entries of that size. The limit
keeps a few bytes from filling the memory."""
