"""Audits of ledgers, and the replacement of members in one fragment, without a job around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.client import Client
from quire.core.fragments import Fragment
from quire.replication import Audit, Finding
from quire.replication.audit import pieces as audit_pieces
from quire.replication.repair.fragment import CopyBatch, CopyOutcome, CopyResult
from quire.replication.repair.opened_ledger import OpenedLedger


async def audited(client: Client, ids: Sequence[int], password: bytes = b"") -> list[Finding]:
    """Audit these ledgers completely in this process, and return the findings."""
    audit = Audit()
    for piece in audit.looking(ids):
        audit.saw(await audit_pieces.look(client, piece, password))
    await audit.probe(client)
    for turn in audit.reading():
        for piece in turn:
            audit.has_read(await audit_pieces.read(client, piece, password))
    for piece in audit.comparing():
        audit.has_compared(await audit_pieces.compare_blocks(client, piece, password))
    return await audit.findings(client)


async def replicate_fragment(
    client: Client, ledger: OpenedLedger, fragment: Fragment, replacements: Mapping[int, str]
) -> CopyResult:
    """Replace members of one fragment of a ledger, by their index in the ensemble.

    This copies their entries, waits until the copies are durable, and names the new members in the
    metadata. The error of a copy is raised.
    """
    async with CopyBatch(client, ledger) as batch:
        if not await batch.copy(fragment, replacements):
            return CopyResult(CopyOutcome.CONFLICT)
        done = await batch.name()
    for error in done.broken.values():
        raise error
    return done
