"""One of Apache's bookies lies to our clients.

The table is the same as for one of ours (`tests/processes/faults/test_byzantine.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire import DigestType
from quire.testing.cluster import free_ports
from tests.support.bookies.byzantine_proxy import ByzantineProxy
from tests.support.interop.apache_cluster import Cluster
from tests.support.processes.byzantine import (
    LIAR,
    LOOPBACK,
    ROWS,
    Place,
    Row,
    check_readers_audit_and_repair,
    check_second_opener,
)

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CASES = [
    pytest.param(row, digest, id=f"{row.lie.name.lower()}-{digest.name.lower()}")
    for row in ROWS
    for digest in (DigestType.CRC32C, DigestType.HMAC)
    if digest in row.digests
]


@pytest.fixture(scope="module")
def whole_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        # It listens where it registers: clients are sent to the proxy by their own network.
        (liar,) = cluster.add_apache(1, listeningInterface="lo", advertisedAddress=LIAR)
        liar.host = LIAR
        cluster.add_quire(4)
        cluster.wait_ready()
        (port,) = free_ports(1)
        with ByzantineProxy((LOOPBACK, port), (LIAR, liar.port)) as proxy:
            detours = {(LIAR, liar.port): (LOOPBACK, port)}
            yield Place(cluster.uri, proxy, liar.id, detours)


@pytest.fixture
def place(whole_place: Place) -> Iterator[Place]:
    yield whole_place
    whole_place.liar.lie = None


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
