"""One bookie of five lies, at the protocol level: what clients see, what an audit says of it, and
what a repair does. docs/byzantine.md has the table; its rows are `ROWS`.

Every client is a new one: what it has learnt about the liar shall not help the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import quire
from quire import DigestType
from quire._runtime.clock import SystemClock
from quire.client.cluster.quarantine import Misbehaviour
from quire.client.write.writer import LedgerWriter
from quire.errors import RecoveryError
from quire.metadata import open_metadata
from quire.net.network import AsyncioNetwork, ProtocolFactory
from quire.replication import Audit, Finding, Kind, ReplicationLocks, repair_ledger
from quire.replication.audit import pieces as audit_pieces
from quire.testing.cluster import BookieProcess, LocalCluster, free_ports
from tests.support.bookies.byzantine_proxy import ByzantineProxy, Lie, flipped_payload
from tests.support.network.fault_proxy import Address

pytestmark = pytest.mark.slow

LOOPBACK, LIAR = "127.0.0.1", "127.0.0.2"
"""A host of its own: every ensemble has a bookie of each host, so that the liar is in all."""
PATIENCE_S = 60
ENTRIES = 60
PASSWORD = b"secret"
CONFIG = quire.ClientConfig(
    # Whoever is asked first is waited for: on a busy machine too the liar is heard.
    speculative_read_s=PATIENCE_S,
    read_timeout_s=PATIENCE_S,
    add_timeout_s=PATIENCE_S,
    absence_recheck_s=0.0,  # the first denial counts: nobody lags here
    long_poll_s=0.5,
    explicit_lac_interval_s=0.02,
    # Or it would be asked once, and then no more while others answer.
    quarantine_liars=False,
)
CRC32, CRC32C, HMAC, DUMMY = (
    DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC, DigestType.DUMMY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """Of the table."""

    lie: Lie
    digests: tuple[DigestType, ...]
    sees_lies: bool
    """Whether a client may be given a wrong byte: by a read, a tail, or after a recovery."""
    finding: Kind | None
    """What an audit says of the liar; nothing of anybody else."""
    suspected: Misbehaviour | None
    """What a client that reads the ledger says of it."""


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
CASES = [
    pytest.param(row, digest, id=f"{row.lie.name.lower()}-{digest.name.lower()}")
    for row in ROWS
    for digest in row.digests
]


@dataclass(frozen=True, slots=True)
class Place:
    uri: str
    liar: ByzantineProxy
    bookie: str
    """The liar's id."""
    detours: Mapping[Address, Address] = field(default_factory=dict)
    """What clients are to connect to, in the place of what bookies have registered."""


class Detours(AsyncioNetwork):
    def __init__(self, detours: Mapping[Address, Address]) -> None:
        super().__init__()
        self._detours = detours

    async def connect(self, host: str, port: int, factory: ProtocolFactory) -> asyncio.Protocol:
        return await super().connect(*self._detours.get((host, port), (host, port)), factory)


@pytest.fixture(scope="module")
def whole_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(bookies=4, directory=directory))
        (port,) = free_ports(1)
        arguments = ("--bind", LOOPBACK, "--advertise", LIAR)
        behind = BookieProcess(9, port, directory, cluster.uri, arguments)
        stack.callback(behind.stop)
        behind.start()
        liar = stack.enter_context(ByzantineProxy((LIAR, port), (LOOPBACK, port)))
        yield Place(cluster.uri, liar, f"{LIAR}:{port}")


@pytest.fixture
def place(whole_place: Place) -> Iterator[Place]:
    yield whole_place
    whole_place.liar.lie = None
    whole_place.liar.password = b""


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
    """Until all members have acknowledged what was appended."""
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
    """A ledger of `ENTRIES`, which all honest members have, and perhaps what a reader saw that
    followed it. Without `close` its writer is gone."""
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
                await writer.append_many(RIGHT)  # in one turn: none of them carries a LAC
            await everywhere(writer)
            if close:
                await writer.close()
            else:
                writer.abandon()
        assert len(writer.metadata.segments) == 1  # no bookie was exchanged
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
        audit = Audit()
        for piece in audit.looking([ledger_id]):
            audit.saw(await audit_pieces.look(client, piece, PASSWORD))
        await audit.probe(client)
        for turn in audit.reading():
            for piece in turn:
                audit.has_read(await audit_pieces.read(client, piece, PASSWORD))
        for piece in audit.comparing():
            audit.has_compared(await audit_pieces.compare_blocks(client, piece, PASSWORD))
        return await audit.findings(client)


def wrong_ones(found: list[bytes]) -> list[int]:
    """Which entries are lies. Nothing else is wrong: every entry is there."""
    assert len(found) == ENTRIES
    wrong = [entry for entry in range(ENTRIES) if found[entry] != RIGHT[entry]]
    assert [found[entry] for entry in wrong] == [flipped_payload(RIGHT[e]) for e in wrong]
    return wrong


# -- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "digest"), CASES)
async def test_what_readers_and_an_audit_see_of_a_liar_and_what_a_repair_does(
    place: Place, row: Row, digest: DigestType
) -> None:
    liar = place.liar
    liar.lie, liar.digest = row.lie, digest
    told = liar.told
    async with asyncio.timeout(PATIENCE_S):
        while liar.told == told:  # a tail may have had no reason to ask it for a LAC
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
    # It lies on: what is written back does not come back, so another takes its place.
    assert done.moved == (1 if found else 0)
    assert (place.bookie in metadata.last_segment.ensemble) is (not found)
    assert await audited(place, ledger_id) == []
    assert wrong_ones(await read_all(place, ledger_id)) == []


@pytest.mark.parametrize(("row", "digest"), CASES)
async def test_what_a_second_opener_recovers_beside_a_liar(
    place: Place, row: Row, digest: DigestType
) -> None:
    """Every entry that was acknowledged is there. Where digests are forged recovery may take the
    liar's bytes for the entry's, and write them to the others: that depends on who answers first.
    """
    liar = place.liar
    liar.digest = digest
    liar.lie = Lie.DROPPED if row.lie is Lie.DROPPED else None
    ledger_id, _ = await write(place, digest, close=False)
    liar.lie = row.lie
    told = liar.told
    async with connected(place) as client:
        await client.open_ledger(ledger_id, password=PASSWORD, recover=True)
        # It was asked, and perhaps not waited for.
        while liar.told == told and row.lie not in (Lie.DROPPED, Lie.HIGH_LAC):
            await asyncio.sleep(0.001)
    wrong = wrong_ones(await read_all(place, ledger_id))
    assert not wrong or row.sees_lies
    if not row.sees_lies:
        liar.lie = None
        assert wrong_ones(await read_all(place, ledger_id)) == []


@pytest.mark.parametrize(("row", "digest"), CASES)
async def test_with_assume_liars_no_wrong_byte_is_read_or_written_back(
    place: Place, row: Row, digest: DigestType
) -> None:
    liar = place.liar
    liar.digest = digest
    liar.lie = Lie.DROPPED if row.lie is Lie.DROPPED else None
    ledger_id, _ = await write(place, digest, close=False)
    liar.lie = row.lie
    if row.suspected is Misbehaviour.BAD_DIGEST:
        # One whose last word does not check is unknown, and one more may lie: too many.
        with pytest.raises(RecoveryError, match="too few bookies"):
            await read_all(place, ledger_id, recover=True, assume_liars=1)
        liar.lie = None
    found = await read_all(place, ledger_id, recover=True, assume_liars=1)
    assert wrong_ones(found) == []
    liar.lie = None
    assert wrong_ones(await read_all(place, ledger_id)) == []


# -- besides the table ------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "digest"), CASES)
async def test_batch_reads_and_recovery_where_every_bookie_has_every_entry(
    place: Place, row: Row, digest: DigestType
) -> None:
    liar = place.liar
    liar.lie, liar.digest = row.lie, digest
    ledger_id, _ = await write(place, digest, (3, 3, 2), close=False)
    async with connected(place) as client:
        reader = await client.open_ledger(ledger_id, password=PASSWORD, recover=True)
        told = liar.told
        # One by one: members take turns in being asked first.
        found = [run.payloads() for e in range(ENTRIES) async for run in reader.read_runs(e, e)]
    assert bool(wrong_ones([one for (one,) in found])) is row.sees_lies
    assert liar.told > told or row.lie in (Lie.DROPPED, Lie.STALE_LAC, Lie.HIGH_LAC)
    assert wrong_ones(await read_all(place, ledger_id, assume_liars=1)) == [] or row.sees_lies


async def test_a_stale_lac_hides_nothing(place: Place) -> None:
    """Two honest members are asked too, and one of them knows."""
    async with connected(place) as client, connected(place) as other:
        writer = await client.create_ledger(ensemble_size=4, write_quorum=3, ack_quorum=2)
        await writer.append_many(RIGHT)
        place.liar.lie = Lie.STALE_LAC
        told = place.liar.told
        reader = await other.open_ledger(writer.ledger_id)
        while await reader.refresh() < ENTRIES - 1:
            await asyncio.sleep(0.005)
        assert place.liar.told > told
        await writer.close()


async def test_hmac_keeps_out_a_liar_that_knows_how_entries_are_made(place: Place) -> None:
    """With the password it could do all; without, it has no bytes that pass."""
    liar = place.liar
    ledger_id, _ = await write(place, HMAC)
    liar.lie, liar.digest = Lie.FORGED, HMAC
    for guess in (b"", b"Secret", PASSWORD[:-1]):
        liar.password = guess
        assert wrong_ones(await read_all(place, ledger_id)) == []
    liar.password = PASSWORD
    assert wrong_ones(await read_all(place, ledger_id)) != []


@pytest.mark.parametrize("lie", [Lie.DROPPED, Lie.DENIED])
async def test_a_bookie_that_lies_no_more_is_written_back_to(place: Place, lie: Lie) -> None:
    place.liar.lie = lie
    ledger_id, _ = await write(place, CRC32C)
    found = await audited(place, ledger_id)
    assert {one.kind for one in found} == {Kind.MISSING}
    place.liar.lie = None
    async with connected(place) as client:
        locks = ReplicationLocks(client.metadata, "test", SystemClock())
        done = await repair_ledger(client, locks, ledger_id, found, password=PASSWORD)
        assert place.bookie in (await client.ledger_metadata(ledger_id)).last_segment.ensemble
    assert (done.left, done.moved) == ([], 0)
    assert done.written_back == ENTRIES * 3 // 4
    assert await audited(place, ledger_id) == []


async def test_one_that_drops_the_end_is_not_told_from_one_that_never_got_it(place: Place) -> None:
    """An ack quorum has what is missing, and that is all that writers promise: SHORT, not MISSING.
    It is repaired all the same."""
    async with connected(place) as client:
        writer = await client.create_ledger(
            ensemble_size=4, write_quorum=3, ack_quorum=2, password=PASSWORD
        )
        await writer.append_many(RIGHT[:20])
        await everywhere(writer)  # else the liar drops the beginning, too
        place.liar.lie = Lie.DROPPED
        await writer.append_many(RIGHT[20:])
        await everywhere(writer)
        await writer.close()
        place.liar.lie = None
        found = await audited(place, writer.ledger_id)
        assert {(one.bookie, one.kind) for one in found} == {(place.bookie, Kind.SHORT)}
        locks = ReplicationLocks(client.metadata, "test", SystemClock())
        done = await repair_ledger(client, locks, writer.ledger_id, found, password=PASSWORD)
        assert done.left == []
    assert await audited(place, writer.ledger_id) == []
    assert wrong_ones(await read_all(place, writer.ledger_id)) == []


def test_the_document_has_the_rows() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "byzantine.md"
    section = page.read_text().partition("## Byzantine bookies: what is seen")[2]
    documented = {}
    for line in section.splitlines():
        if len(cells := [cell.strip() for cell in line.split("|")]) > 6:
            lie, digests, sees, _, suspected, finding = cells[1:7]
            documented.update(
                {(lie, digest): (sees, suspected, finding) for digest in digests.split(", ")}
            )
    for row in ROWS:
        for digest in row.digests:
            sees, suspected, finding = documented[row.lie.value, digest.name]
            assert suspected == (f"`{row.suspected}`" if row.suspected else "nothing"), row
            assert sees == ("**wrong bytes**" if row.sees_lies else "right bytes"), row
            assert finding == (f"`{row.finding}`" if row.finding else "nothing"), row
