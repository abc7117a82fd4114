"""One of five bookies lies at the protocol level.

The tests check what clients see, what an audit reports, and what a repair does. The table is in
docs/explanation/byzantine-bookies.md, and its rows are `ROWS`. Every client is new, so that it has
not learnt about the liar before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from quire import DigestType
from quire._runtime.clock import SystemClock
from quire.client.cluster.health import Misbehaviour
from quire.errors import RecoveryError
from quire.replication import Kind, ReplicationLocks, repair_ledger
from quire.testing.cluster import BookieProcess, LocalCluster, free_ports
from tests.support.bookies.byzantine_proxy import ByzantineProxy, Lie
from tests.support.processes.byzantine import (
    CRC32C,
    ENTRIES,
    HMAC,
    LIAR,
    LOOPBACK,
    PASSWORD,
    RIGHT,
    ROWS,
    Place,
    Row,
    audited,
    check_readers_audit_and_repair,
    check_second_opener,
    connected,
    everywhere,
    read_all,
    write,
    wrong_ones,
)

pytestmark = pytest.mark.slow


CASES = [
    pytest.param(
        row,
        digest,
        id=f"{row.lie.name.lower()}-{digest.name.lower()}",
        marks=pytest.mark.long if at else (),
    )
    for row in ROWS
    for at, digest in enumerate(row.digests)
]
"""Each lie with each digest. `make test` tries one digest of each."""


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


# -- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "digest"), CASES)
async def test_readers_audits_and_repairs_detect_a_byzantine_bookie(
    place: Place, row: Row, digest: DigestType
) -> None:
    await check_readers_audit_and_repair(place, row, digest)


@pytest.mark.parametrize(("row", "digest"), CASES)
async def test_a_second_recovery_beside_a_byzantine_bookie(
    place: Place, row: Row, digest: DigestType
) -> None:
    await check_second_opener(place, row, digest)


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
async def test_batch_reads_and_recovery_work_beside_a_byzantine_bookie(
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


async def test_a_stale_lac_hides_no_entry(place: Place) -> None:
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


async def test_hmac_rejects_entries_forged_without_the_password(place: Place) -> None:
    """A bookie with the password could forge any entry. Without it, no forged bytes are
    accepted."""
    liar = place.liar
    ledger_id, _ = await write(place, HMAC)
    liar.lie, liar.digest = Lie.FORGED, HMAC
    for guess in (b"", b"Secret", PASSWORD[:-1]):
        liar.password = guess
        assert wrong_ones(await read_all(place, ledger_id)) == []
    liar.password = PASSWORD
    assert wrong_ones(await read_all(place, ledger_id)) != []


@pytest.mark.parametrize("lie", [Lie.DROPPED, Lie.DENIED])
async def test_a_bookie_that_answers_honestly_again_is_repaired(place: Place, lie: Lie) -> None:
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


async def test_a_dropped_end_of_a_ledger_is_reported_as_a_short_replica(place: Place) -> None:
    """An ack quorum has what is missing, and that is all that writers promise: SHORT, not MISSING.
    It is repaired all the same."""
    async with connected(place) as client:
        writer = await client.create_ledger(
            ensemble_size=4, write_quorum=3, ack_quorum=2, password=PASSWORD
        )
        await writer.append_many(RIGHT[:20])
        await everywhere(writer)  # Otherwise the liar drops the beginning, too.
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


def test_the_document_has_a_row_for_each_case() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "byzantine-bookies.md"
    section = page.read_text().partition("## What is seen")[2]
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
