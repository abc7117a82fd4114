"""One ledger as a copy of another one, in another cluster perhaps.

An entry's payload is copied as it is. So positions, control records, envelopes and compression of a
segment are the same in both, and nothing is decoded on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from quire.client import Client, LedgerReader, LedgerWriter
from quire.streams.publish.segment_builder import JOB_KEY
from quire.streams.write.segments import APPLICATION

Piece = Mapping[str, Any]
"""What JSON can say: which ledger is to be copied, and what its copy is to be like."""

JOB = b"quire-replicate"
"""Under `JOB_KEY` in the custom metadata of every ledger that is made here."""
SOURCE_KEY = "quire.source"
"""There as well: the ledger that it is a copy of."""


async def create(client: Client, piece: Piece, password: bytes) -> LedgerWriter:
    """The writer of a new ledger that is to become a copy of the one that the piece names."""
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
            SOURCE_KEY: str(piece["ledger"]).encode(),
        },
    )


async def copy_ledger(
    read: Client, written: Client, piece: Piece, read_password: bytes, password: bytes
) -> Piece:
    """Durable and closed on return. After an error, or if cancelled, nothing is left, or an orphan.
    Raises what ledgers raise."""
    if piece["empty"]:
        writer = await create(written, piece, password)
        await writer.close()
        return {"ledger": writer.ledger_id, "last": -1, "bytes": 0}
    # A ledger whose writer completed the segment and died before it closed it is closed now.
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
