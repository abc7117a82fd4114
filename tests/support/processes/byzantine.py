"""A cluster with one Byzantine bookie, and what clients, audits and repairs must detect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import quire
from quire import DigestType
from quire._runtime.clock import SystemClock
from quire.client.cluster.health import Misbehaviour
from quire.client.write.writer import LedgerWriter
from quire.metadata import open_metadata
from quire.net.network import AsyncioNetwork, ProtocolFactory
from quire.replication import Finding, Kind, ReplicationLocks, repair_ledger
from tests.support import replication
from tests.support.bookies.byzantine_proxy import ByzantineProxy, Lie, flipped_payload
from tests.support.network.fault_proxy import Address

LOOPBACK, LIAR = "127.0.0.1", "127.0.0.2"
"""The hosts of the honest bookies and of the Byzantine one.

Every ensemble has a bookie of each host, so the Byzantine bookie is in every ensemble.
"""


CRC32, CRC32C, HMAC, DUMMY = (
    DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC, DigestType.DUMMY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of lie, and what it must lead to. A row of docs/explanation/byzantine-bookies.md."""

    lie: Lie
    digests: tuple[DigestType, ...]
    sees_lies: bool
    """Whether a client may receive a wrong byte from a read, from a tail, or after a recovery."""
    finding: Kind | None
    """The kind of finding that an audit reports about the Byzantine bookie, or None.

    There are no findings about other bookies.
    """
    suspected: Misbehaviour | None
    """The misbehaviour of which a client that reads the ledger suspects the bookie, or None."""


ROWS = (
    Row(Lie.WRONG_BYTES, (CRC32C, CRC32, HMAC), False, Kind.DAMAGED, Misbehaviour.BAD_DIGEST),
    Row(Lie.WRONG_BYTES, (DUMMY,), True, Kind.DIFFERENT, None),
    Row(Lie.FORGED, (HMAC,), False, Kind.DAMAGED, Misbehaviour.BAD_DIGEST),
    Row(Lie.FORGED, (CRC32C, CRC32, DUMMY), True, Kind.DIFFERENT, None),
    Row(
        Lie.WRONG_ENTRY, (CRC32C, CRC32, HMAC, DUMMY), False, Kind.DAMAGED, Misbehaviour.WRONG_ENTRY
    ),
    Row(Lie.DROPPED, (CRC32C, HMAC), False, Kind.MISSING, Misbehaviour.MISSING),
    Row(Lie.DENIED, (CRC32C, HMAC), False, Kind.MISSING, Misbehaviour.MISSING),
    Row(Lie.STALE_LAC, (CRC32C, HMAC), False, None, None),
    Row(Lie.HIGH_LAC, (CRC32C, HMAC), False, None, None),
)


@dataclass(frozen=True, slots=True)
class Place:
    uri: str
    liar: ByzantineProxy
    bookie: str
    """The id of the Byzantine bookie."""
    detours: Mapping[Address, Address] = field(default_factory=dict)
    """The addresses that clients use instead of those that bookies have registered."""


PATIENCE_S = 60


ENTRIES = 60


PASSWORD = b"secret"


CONFIG = quire.ClientConfig(
    # Wait for the first bookie that is asked, so that the liar's answer counts on a busy machine.
    speculative_read_s=PATIENCE_S,
    read_timeout_s=PATIENCE_S,
    add_timeout_s=PATIENCE_S,
    absence_recheck_s=0.0,  # The first denial counts, because nobody lags.
    long_poll_s=0.5,
    explicit_lac_interval_s=0.02,
    # Otherwise the liar would be asked only once while others answer.
    quarantine_liars=False,
)


class Detours(AsyncioNetwork):
    def __init__(self, detours: Mapping[Address, Address]) -> None:
        super().__init__()
        self._detours = detours

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        return await super().connect(*self._detours.get((host, port), (host, port)), factory)


def payload(entry_id: int) -> bytes:
    return b"%d;" % entry_id * (1 + entry_id % 7)


RIGHT = [payload(entry) for entry in range(ENTRIES)]


@asynccontextmanager
async def connected(place: Place) -> AsyncIterator[quire.Client]:
    metadata = await open_metadata(place.uri)
    client = quire.Client(metadata, config=CONFIG, network=Detours(place.detours))
    async with asyncio.timeout(PATIENCE_S), client:
        yield client


async def everywhere(writer: LedgerWriter) -> None:
    """Wait until all members of the ensemble have acknowledged everything that was appended."""
    while writer._session.pipeline.unacked_bytes_max():
        await asyncio.sleep(0.001)


async def write(
    place: Place,
    digest: DigestType,
    quorums: tuple[int, int, int] = (4, 3, 2),
    *,
    close: bool = True,
    followed: bool = False,
) -> tuple[int, list[bytes]]:
    """Write a ledger with `ENTRIES` entries that all honest members have.

    Returns its id, and with `followed` the payloads that a reader received meanwhile. Without
    `close`, the writer is abandoned and the ledger stays open.
    """
    seen: list[bytes] = []
    async with connected(place) as client, connected(place) as other:
        writer = await client.create_ledger(
            ensemble_size=quorums[0],
            write_quorum=quorums[1],
            ack_quorum=quorums[2],
            digest=digest,
            password=PASSWORD,
        )
        assert place.bookie in writer.metadata.last_segment.ensemble

        async def follow() -> None:
            reader = await other.open_ledger(writer.ledger_id, password=PASSWORD)
            async for entry in reader.tail(0):
                seen.append(entry.payload)

        async with asyncio.TaskGroup() as group:
            if followed:
                group.create_task(follow())
                for entry in RIGHT:
                    await writer.append(entry)
            else:
                # In one event-loop iteration, so that none carries a LAC.
                await writer.append_many(RIGHT)
            await everywhere(writer)
            if close:
                await writer.close()
            else:
                writer.abandon()
        assert len(writer.metadata.segments) == 1  # No bookie was replaced.
        return writer.ledger_id, seen


async def read_all(
    place: Place, ledger_id: int, *, recover: bool = False, assume_liars: int = 0
) -> list[bytes]:
    async with connected(place) as client:
        reader = await client.open_ledger(
            ledger_id, password=PASSWORD, recover=recover, assume_liars=assume_liars
        )
        assert reader.ledger_closed
        return [entry.payload async for entry in reader.read()]


async def suspects_of(place: Place, ledger_id: int) -> set[tuple[str, Misbehaviour]]:
    async with connected(place) as client:
        reader = await client.open_ledger(ledger_id, password=PASSWORD)
        async for _ in reader.read():
            pass
        return {(one.bookie, one.kind) for one in client.suspects()}


async def audited(place: Place, ledger_id: int) -> list[Finding]:
    async with connected(place) as client:
        return await replication.audited(client, [ledger_id], PASSWORD)


def wrong_ones(found: list[bytes]) -> list[int]:
    """Return the ids of the entries that are lies, and check that all others are right.

    `found` must have `ENTRIES` payloads, and each lie must be a flipped bit.
    """
    assert len(found) == ENTRIES
    wrong = [entry for entry in range(ENTRIES) if found[entry] != RIGHT[entry]]
    assert [found[entry] for entry in wrong] == [flipped_payload(RIGHT[e]) for e in wrong]
    return wrong


async def check_readers_audit_and_repair(place: Place, row: Row, digest: DigestType) -> None:
    liar = place.liar
    liar.lie, liar.digest = row.lie, digest
    told = liar.told
    async with asyncio.timeout(PATIENCE_S):
        while liar.told == told:  # A tail may have had no reason to ask it for a LAC.
            ledger_id, followed = await write(place, digest, followed=True)
            assert bool(wrong_ones(followed)) is row.sees_lies
            assert bool(wrong_ones(await read_all(place, ledger_id))) is row.sees_lies

    named = await suspects_of(place, ledger_id)
    assert named == ({(place.bookie, row.suspected)} if row.suspected else set())
    found = await audited(place, ledger_id)
    assert {one.kind for one in found} == ({row.finding} if row.finding else set())
    assert {one.bookie for one in found} <= {place.bookie}

    async with connected(place) as client:
        locks = ReplicationLocks(client.metadata, "test", SystemClock())
        done = await repair_ledger(client, locks, ledger_id, found, password=PASSWORD)
        metadata = await client.ledger_metadata(ledger_id)
    assert done.left == []
    # It continues to lie: its copies fail the check after a repair, so another bookie replaces it.
    assert done.moved == (1 if found else 0)
    assert (place.bookie in metadata.last_segment.ensemble) is (not found)
    assert await audited(place, ledger_id) == []
    assert wrong_ones(await read_all(place, ledger_id)) == []


async def check_second_opener(place: Place, row: Row, digest: DigestType) -> None:
    """Check that a second client, which recovers an open ledger, finds every acknowledged entry.

    If digests can be forged, a recovery may accept the Byzantine bookie's bytes and write them to
    the others, depending on who answers first.
    """
    liar = place.liar
    liar.digest = digest
    liar.lie = Lie.DROPPED if row.lie is Lie.DROPPED else None
    ledger_id, _ = await write(place, digest, close=False)
    liar.lie = row.lie
    told = liar.told
    async with connected(place) as client:
        await client.open_ledger(ledger_id, password=PASSWORD, recover=True)
        # It was asked, but perhaps nobody waited for its answer.
        while liar.told == told and row.lie not in (Lie.DROPPED, Lie.HIGH_LAC):
            await asyncio.sleep(0.001)
    wrong = wrong_ones(await read_all(place, ledger_id))
    assert not wrong or row.sees_lies
    if not row.sees_lies:
        liar.lie = None
        assert wrong_ones(await read_all(place, ledger_id)) == []
