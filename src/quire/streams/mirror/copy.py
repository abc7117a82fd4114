"""The copy of one ledger, usually in another cluster.

The payload of each entry is copied unchanged. Positions, control records, envelopes and compression
of a segment are therefore the same in both clusters, and nothing is decoded on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from quire.client import Client, LedgerReader, LedgerWriter
from quire.streams.publish.segment_builder import JOB_KEY, LIFE_KEY
from quire.streams.write.segments import APPLICATION

Piece = Mapping[str, Any]
"""The ledger to copy and the properties of its copy, as values that JSON can represent.

`ledger` is the ledger to copy, `path` the path of the target stream, `life` the id of its life, and
`empty` whether to create an empty ledger instead, for a truncated segment. The other keys are
arguments of `create_ledger`.
"""

JOB = b"quire-replicate"
"""The value of `JOB_KEY` in the custom metadata of every ledger that a replication creates."""
SOURCE_KEY = "quire.source"
"""The key in the custom metadata of a copied ledger for the id of the ledger it is a copy of."""


async def create(client: Client, piece: Piece, password: bytes) -> LedgerWriter:
    """Create the ledger that will become the copy of the ledger in `piece`."""
    return await client.create_ledger(
        ensemble_size=piece["ensemble_size"],
        write_quorum=piece["write_quorum"],
        ack_quorum=piece["ack_quorum"],
        digest=piece["digest"],
        password=password,
        custom={
            **APPLICATION,
            "stream": piece["path"].encode(),
            JOB_KEY: JOB,
            LIFE_KEY: piece["life"].encode(),
            SOURCE_KEY: str(piece["ledger"]).encode(),
        },
    )


async def copy_ledger(
    read: Client, written: Client, piece: Piece, read_password: bytes, password: bytes
) -> Piece:
    """Copy a ledger from the cluster of `read` to that of `written`, where it gets `password`.

    The copy is durable and closed on return. The source ledger is recovered and closed first if it
    is still open. After an error or a cancellation, at most an orphan is left. Raises the errors of
    ledgers.

    Returns the id of the copy (`ledger`), its last entry or -1 (`last`), and the number of its
    payload bytes (`bytes`).
    """
    if piece["empty"]:
        writer = await create(written, piece, password)
        await writer.close()
        return {"ledger": writer.ledger_id, "last": -1, "bytes": 0}
    # If the writer completed the segment and died before it closed the ledger, this closes it.
    async with await read.open_ledger(
        piece["ledger"], password=read_password, recover=True
    ) as reader:
        writer = await create(written, piece, password)
        try:
            await _entries(reader, writer)
            last = await writer.close()
        except BaseException:
            writer.abandon()
            await written.delete_ledger(writer.ledger_id)
            raise
    return {"ledger": writer.ledger_id, "last": last, "bytes": writer.length}


async def _entries(reader: LedgerReader, writer: LedgerWriter) -> None:
    if reader.last_add_confirmed < 0:
        return
    async with aclosing(reader.read_runs()) as runs:
        async for run in runs:
            for payload in run.payloads():
                writer.submit(payload)
            await writer.room()
