"""Our client on Apache's bookies, with both of their storages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.interop import operations
from tests.support.interop.apache_java import ApacheClient
from tests.support.interop.checks import Pair
from tests.support.interop.make_cluster import MakeCluster
from tests.support.interop.operations import Operation, possible
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import STRIPED, Shape, payloads

pytestmark = pytest.mark.interop

STORAGES = ["sorted", pytest.param("db", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=STORAGES)
def pair(request: pytest.FixtureRequest, shared_cluster: MakeCluster) -> Iterator[Pair]:
    cluster = shared_cluster(request.param)
    one, other = QuireClient(cluster.uri), ApacheClient(cluster.uri, "v3")
    yield Pair(one, other, lambda: QuireClient(cluster.uri, explicit_lac=True))
    one.close()
    other.close()


ESSENTIAL = possible(QuireClient.features, operations.ESSENTIAL)
THOROUGH = possible(QuireClient.features, operations.THOROUGH)


@pytest.mark.parametrize("operation", ESSENTIAL, ids=lambda op: op.__name__)
def test_quires_client_works_with_apaches_bookies(pair: Pair, operation: Operation) -> None:
    operation(pair)


@pytest.mark.slow
@pytest.mark.parametrize("operation", THOROUGH, ids=lambda op: op.__name__)
def test_quires_client_completes_every_operation(pair: Pair, operation: Operation) -> None:
    operation(pair)


@pytest.mark.slow
@pytest.mark.parametrize("shape", operations.SHAPES, ids=str)
@pytest.mark.parametrize("operation", operations.OF_ANY_SHAPE, ids=lambda op: op.__name__)
def test_quires_client_works_with_every_digest_and_quorum(
    pair: Pair, operation: Callable[[Pair, Shape], None], shape: Shape
) -> None:
    operation(pair, shape)


@pytest.mark.parametrize("pair", ["sorted"], indirect=True)
def test_entry_lists_and_disk_space_are_returned_to_quires_client(pair: Pair) -> None:
    """List entries and disk space. Apache's bookie with DbLedgerStorage never answers the list
    request.
    """
    writer = pair.other.create(STRIPED)
    writer.append_all(payloads(50))
    writer.close()
    assert isinstance(pair.one, QuireClient)
    for at, bookie in enumerate(pair.one.describe(writer.ledger_id).last_ensemble):
        expected = [number for number in range(50) if at in {number % 3, (number + 1) % 3}]
        assert pair.one.entries_of(bookie, writer.ledger_id) == expected
        free, total = pair.one.disk_space(bookie)
        assert 0 < free <= total
