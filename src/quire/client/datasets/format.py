"""The stored form of a dataset: a head value, and chunk values for large datasets. No I/O.

The head, at ("datasets", NAME), is JSON in UTF-8:

    {"format": 1, "exists": true, "sequence": 3,
     "chunks": [{"id": "2-9f...", "ledgers": 800}],
     "ledgers": [{"id": 7, "first": 0, "last": 99, "rows": 100, "bytes": 5120}],
     "transactions": {"nightly-2026-11-03": 3},
     "condemned": []}

The head of a dataset with typed rows has format 2 and a field `schema` (`schema.py`). A ledger in
it may have a field `partition`, such as {"day": "2026-11-03"}. A version that does not know schemas
refuses such a dataset. All other datasets keep format 1.

The dataset's ledgers are those of the chunks, in order, followed by those of the head. A chunk, at
("dataset_chunks", NAME, ID), is {"format": 1, "ledgers": [...]} and never changes. Its format is 2
if a ledger has a partition. Its id begins with the version that the head had when the chunk was
made, and ends with a digest of its bytes. A chunk can be published only by a compare-and-swap on
that version. Once the head has a newer version that does not name the chunk, the chunk is garbage.

Dropping a dataset leaves a head with `exists` false. The head's version therefore never starts
again, and a publisher that was suspended during the drop cannot win a compare-and-swap.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quire.client.datasets.schema import (
    DatasetSchema,
    Partition,
    PartitionValue,
    decode_schema,
    schema_value,
)
from quire.codec.metadata.stored_json import stored_json
from quire.errors import (
    DAMAGED_JSON,
    LaterMetadataError,
    MetadataError,
    UsageError,
    check_type,
    later_json,
    whole_number,
)

FORMAT = 1
TYPED_FORMAT = 2
"""The format of heads with a schema, and of chunks whose ledgers have partitions."""
_NAMES = ("exists", "sequence", "chunks", "ledgers", "transactions", "condemned")
"""The fields of a head. A chunk has `ledgers` only."""
_TYPED_NAMES = (*_NAMES, "schema")
_NUMBER_FIELDS = ("ledger_id", "first", "last", "rows", "bytes")
"""The fields of a `DatasetLedger` that are whole numbers."""
_LEDGER_NAMES = ("id", "first", "last", "rows", "bytes")
_TYPED_LEDGER_NAMES = (*_LEDGER_NAMES, "partition")
VALUE_BYTES_MAX = 900_000
"""The largest head, in bytes, that a publication may leave. Every store takes 1,000,000 bytes. The
rest is reserved for the ids of ledgers that are being deleted, so that a dataset with a full head
can still be swept, overwritten and dropped."""
SWEPT_BYTES_MAX = 1_000_000
"""The largest head, in bytes, while ledgers are being deleted."""
INLINE_BYTES_MAX = 64 * 1024
"""The largest size, in bytes, of the ledgers in the head, which every publication rewrites. If they
are larger, all of them move into chunks."""
CHUNK_BYTES_MAX = 256 * 1024
TRANSACTIONS_MAX = 1_000
"""The number of transaction keys that a dataset remembers. The oldest is forgotten first."""
TRANSACTION_KEY_BYTES_MAX = 256
TRANSACTION_KEY_STORED_BYTES_MAX = 320
"""The largest size, in bytes, of a transaction key as it is stored. There a quote takes two bytes
and a control character six."""
NAME_BYTES_MAX = 4_096
"""The largest size, in bytes of UTF-8, of a dataset's name. The metadata of each ledger repeats
it."""
NO_HEAD = "new"
CONDEMNED_MAX = 1_000
"""The number of ledgers that one compare-and-swap condemns."""
HEAD_REMEDY = "Restore the metadata store from a backup, which sets back the whole cluster"
"""The remedy for a damaged head. An overwrite would forget which ledgers are being deleted."""
CHUNK_REMEDY = (
    "Publish the dataset again with `overwrite`, or restore the metadata store from a backup, "
    "which sets back the whole cluster"
)
"""The remedy for a damaged or lost chunk, whose ledgers an overwrite replaces."""


@dataclass(frozen=True, slots=True)
class DatasetLedger:
    """Entries `first` to `last` of one ledger, as a part of a dataset.

    Raises:
        UsageError: A value has the wrong type, a number is negative, or `first` is greater than
            `last`.
    """

    ledger_id: int
    """The id of the ledger."""
    first: int
    """The id of the first entry."""
    last: int
    """The id of the last entry."""
    rows: int
    """The number of rows in the entries from `first` to `last`."""
    bytes: int
    """The number of payload bytes of the entries from `first` to `last`."""
    partition: Partition = ()
    """The value of each partition column, which all rows of this part have."""

    def __post_init__(self) -> None:
        numbers = (self.ledger_id, self.first, self.last, self.rows, self.bytes)
        if not {int}.issuperset(map(type, numbers)):
            for name, number in zip(_NUMBER_FIELDS, numbers):
                checked = whole_number(f"{name} of a ledger in a dataset", number)
                object.__setattr__(self, name, checked)
        if self.ledger_id < 0 or not 0 <= self.first <= self.last:
            raise UsageError(
                f"entries {self.first}..{self.last} of ledger {self.ledger_id} are not a valid "
                "range for a dataset: ids begin at 0, and the first must not be greater than "
                "the last"
            )
        if self.rows < 0 or self.bytes < 0:
            raise UsageError(
                f"the numbers of rows and bytes of ledger {self.ledger_id} in a dataset must not "
                f"be negative, but they are {self.rows} and {self.bytes}"
            )


@dataclass(frozen=True, slots=True)
class Chunk:
    """The id of a chunk value, and the number of ledgers in it."""

    chunk_id: str
    ledgers: int


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a dataset, decoded. `Head()` is the head of a dataset that never existed."""

    exists: bool = False
    sequence: int = 0
    """The number of publications so far."""
    chunks: tuple[Chunk, ...] = ()
    ledgers: tuple[DatasetLedger, ...] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)
    """Transaction keys and the sequence numbers of their publications, the oldest first."""
    condemned: tuple[int, ...] = ()
    """Ledgers that are being deleted and can no longer be published."""
    schema: DatasetSchema | None = None
    """The schema of the rows, or None if each entry is a row of its own."""

    def published(
        self,
        chunks: Sequence[Chunk],
        ledgers: Sequence[DatasetLedger],
        txn: str | None,
        schema: DatasetSchema | None = None,
    ) -> Head:
        """Return the head after one more publication, which leaves these chunks and ledgers."""
        transactions = dict(self.transactions)
        if txn is not None:
            transactions[txn] = self.sequence + 1
        for key in list(transactions)[:-TRANSACTIONS_MAX]:
            del transactions[key]
        return replace(
            self,
            exists=True,
            sequence=self.sequence + 1,
            chunks=tuple(chunks),
            ledgers=tuple(ledgers),
            transactions=transactions,
            schema=schema,
        )

    def dropped(self) -> Head:
        """Return the head that a dropped dataset leaves behind."""
        return Head(sequence=self.sequence, condemned=self.condemned)


def check_dataset_name(name: str) -> str:
    """Return `name`. Raises UsageError if a dataset cannot have this name."""
    check_type("the name of a dataset", name, str)
    if not name or name in (".", "..") or "/" in name or not name.isprintable():
        raise UsageError(
            f"{name!r} cannot be the name of a dataset",
            remedy="Use printable characters without '/', and a name other than '.' and '..'",
        )
    if len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"the name of a dataset must have at most {NAME_BYTES_MAX} bytes, not "
            f"{len(name.encode())}"
        )
    return name


def check_transaction_key(txn: str) -> str:
    """Return `txn`.

    Raises UsageError if it is empty or no valid Unicode text, or so long that `TRANSACTIONS_MAX`
    such keys may not fit into one head.
    """
    check_type("a transaction key", txn, str)
    try:
        size = len(txn.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"the transaction key {txn!r} is no valid Unicode text: it has one half of a pair of "
            "surrogates"
        ) from None
    stored = len(_dump(txn)) - len('""')
    if not txn or size > TRANSACTION_KEY_BYTES_MAX:
        raise UsageError(
            f"a transaction key must have 1 to {TRANSACTION_KEY_BYTES_MAX} bytes, not {size}"
        )
    if stored > TRANSACTION_KEY_STORED_BYTES_MAX:
        raise UsageError(
            f"a transaction key must take at most {TRANSACTION_KEY_STORED_BYTES_MAX} bytes as it "
            f"is stored, not {stored}: a quote takes two, and a control character six"
        )
    return txn


# -- bytes ------------------------------------------------------------------------------------


def encode_head(name: str, head: Head, bytes_max: int = SWEPT_BYTES_MAX) -> bytes:
    """Return the head's stored form. Raises UsageError if it has more than `bytes_max` bytes."""
    typed = head.schema is not None
    data = _dump(
        {
            "format": TYPED_FORMAT if typed else FORMAT,
            "exists": head.exists,
            "sequence": head.sequence,
            "chunks": [{"id": c.chunk_id, "ledgers": c.ledgers} for c in head.chunks],
            "ledgers": [_ledger_value(ledger) for ledger in head.ledgers],
            "transactions": dict(head.transactions),
            "condemned": list(head.condemned),
            **({} if head.schema is None else {"schema": schema_value(head.schema)}),
        }
    )
    if len(data) > bytes_max:
        raise UsageError(
            f"dataset {name!r} is too large: its head would take {len(data):,} bytes, and the "
            f"limit is {bytes_max:,} bytes. Nothing was changed",
            remedy="Write fewer, larger partitions, use shorter transaction keys, or use several "
            "datasets",
        )
    return data


def decode_head(name: str, data: bytes) -> Head:
    """Return the head that these bytes hold. Raises MetadataError if they cannot be decoded."""
    what = f"dataset {name!r}"
    value = _load(what, data, HEAD_REMEDY)
    try:
        schema = decode_schema(what, value["schema"]) if _typed(value) else None
        return Head(
            exists=bool(value["exists"]),
            sequence=int(value["sequence"]),
            chunks=tuple(Chunk(str(c["id"]), int(c["ledgers"])) for c in value["chunks"]),
            ledgers=_ledgers(what, value["ledgers"], _typed(value)),
            transactions={str(k): int(v) for k, v in value["transactions"].items()},
            condemned=tuple(int(ledger_id) for ledger_id in value["condemned"]),
            schema=schema,
        )
    except DAMAGED_JSON as error:
        raise _not_understood(what, error, HEAD_REMEDY) from error


def encode_chunk(ledgers: Iterable[DatasetLedger]) -> bytes:
    """Return the stored form of a chunk."""
    ledgers = tuple(ledgers)
    version = TYPED_FORMAT if any(ledger.partition for ledger in ledgers) else FORMAT
    return _dump({"format": version, "ledgers": [_ledger_value(ledger) for ledger in ledgers]})


def decode_chunk(name: str, chunk: Chunk, data: bytes) -> tuple[DatasetLedger, ...]:
    """Return the ledgers of a chunk.

    Raises MetadataError if its bytes are not the ones that were published.
    """
    what = f"chunk {chunk.chunk_id} of dataset {name!r}"
    value = _load(what, data, CHUNK_REMEDY)
    try:
        ledgers = _ledgers(what, value["ledgers"], _typed(value))
    except DAMAGED_JSON as error:
        raise _not_understood(what, error, CHUNK_REMEDY) from error
    if len(ledgers) != chunk.ledgers or chunk_id_digest(data) != chunk.chunk_id.split("-")[-1]:
        raise MetadataError(
            f"{what} is damaged: its content is not what was published", remedy=CHUNK_REMEDY
        )
    return ledgers


def chunk_id_digest(data: bytes) -> str:
    """Return the digest of a chunk's bytes with which its id ends."""
    return hashlib.sha256(data).hexdigest()[:32]


def split(
    ledgers: Sequence[DatasetLedger], version: int | None
) -> tuple[list[tuple[Chunk, bytes]], Sequence[DatasetLedger]]:
    """Move ledgers into new chunks if together they are too large for the head.

    Args:
        ledgers: The ledgers after those of the chunks that the head has already.
        version: The version of the head that the publication replaces, or None for the first one.

    Returns:
        The new chunks with their bytes, and the ledgers that stay in the head: all of them if there
        are no new chunks, and otherwise none.
    """
    sizes = [len(_dump(_ledger_value(ledger))) + 1 for ledger in ledgers]
    if sum(sizes) <= INLINE_BYTES_MAX:
        return [], ledgers
    chunks = []
    start = size = 0
    for at, added in enumerate([*sizes, CHUNK_BYTES_MAX]):
        if size + added > CHUNK_BYTES_MAX and at > start:
            data = encode_chunk(ledgers[start:at])
            base = NO_HEAD if version is None else str(version)
            chunk = Chunk(f"{base}-{chunk_id_digest(data)}", at - start)
            chunks.append((chunk, data))
            start, size = at, 0
        size += added
    return chunks, ()


def chunk_base_version(chunk_id: str) -> int | None:
    """Return the version of the head when the chunk was made.

    Returns -1 if there was no head, and None for a name that is not the id of a chunk.
    """
    version = chunk_id.split("-")[0]
    if version == NO_HEAD:
        return -1
    return int(version) if version.isdecimal() else None


# -- inside -----------------------------------------------------------------------------------


def _typed(value: Mapping[str, Any]) -> bool:
    return bool(value["format"] == TYPED_FORMAT)


def _ledger_value(ledger: DatasetLedger) -> dict[str, Any]:
    more = {"partition": dict(ledger.partition)} if ledger.partition else {}
    return {
        "id": ledger.ledger_id,
        "first": ledger.first,
        "last": ledger.last,
        "rows": ledger.rows,
        "bytes": ledger.bytes,
        **more,
    }


def _ledgers(
    what: str, values: Iterable[Mapping[str, Any]], typed: bool
) -> tuple[DatasetLedger, ...]:
    values = tuple(values)
    names = _TYPED_LEDGER_NAMES if typed else _LEDGER_NAMES
    for one in values:
        if message := later_json(what, one, names, FORMAT):
            raise LaterMetadataError(message)
    return tuple(
        DatasetLedger(
            int(v["id"]),
            int(v["first"]),
            int(v["last"]),
            int(v["rows"]),
            int(v["bytes"]),
            tuple((str(name), _partition_value(one)) for name, one in v["partition"].items())
            if "partition" in v
            else (),
        )
        for v in values
    )


def _partition_value(value: object) -> PartitionValue:
    if value is None or isinstance(value, str | int):
        return value
    raise ValueError(f"{value!r} cannot be the value of a partition column")


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _load(what: str, data: bytes, remedy: str) -> dict[str, Any]:
    try:
        value = stored_json(data)
    except DAMAGED_JSON as error:
        raise _not_understood(what, error, remedy) from error
    if not isinstance(value, dict):
        raise _not_understood(what, "it is not a JSON object", remedy)
    names = _TYPED_NAMES if value.get("format") == TYPED_FORMAT else _NAMES
    if message := later_json(what, value, names, TYPED_FORMAT):
        raise LaterMetadataError(message)
    if value.get("format") not in (FORMAT, TYPED_FORMAT):
        named = value.get("format")
        why = "it names no format" if named is None else f"its format is {named!r}"
        raise _not_understood(what, why, remedy)
    return value


def _not_understood(what: str, why: object, remedy: str) -> MetadataError:
    return MetadataError(f"{what} cannot be decoded: {why}", remedy=remedy)
