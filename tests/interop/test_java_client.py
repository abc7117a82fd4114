"""Apache's Java client on our bookies, with both protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.interop import operations
from tests.support.interop.apache_java import FEATURES, ApacheClient
from tests.support.interop.checks import Pair
from tests.support.interop.make_cluster import MakeCluster
from tests.support.interop.operations import Operation, possible
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import STRIPED, Shape, payloads

pytestmark = pytest.mark.interop

LONG_POLL_MS = 4_000
"""Below the 5 s after which Apache's client gives up on a bookie."""


def over_both(chosen: Sequence[Operation]) -> list[Any]:
    """Return the operations that each protocol supports."""
    return [
        pytest.param(protocol, operation, id=f"{protocol}-{operation.__name__}")
        for protocol, features in FEATURES.items()
        for operation in possible(features, chosen)
    ]


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, shared_cluster: MakeCluster) -> Iterator[Pair]:
    cluster = shared_cluster("quire")
    protocol: str = request.param
    one, other = ApacheClient(cluster.uri, protocol), QuireClient(cluster.uri)
    yield Pair(one, other, lambda: ApacheClient(cluster.uri, protocol, explicit_lac=True))
    one.close()
    other.close()


@pytest.mark.parametrize(("pair", "operation"), over_both(operations.ESSENTIAL), indirect=["pair"])
def test_javas_client_works_with_quires_bookies(pair: Pair, operation: Operation) -> None:
    operation(pair)


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "operation"), over_both(operations.THOROUGH), indirect=["pair"])
def test_javas_client_completes_every_operation(pair: Pair, operation: Operation) -> None:
    operation(pair)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["v2", "v3"], indirect=True)
@pytest.mark.parametrize("shape", operations.SHAPES, ids=str)
@pytest.mark.parametrize("operation", operations.OF_ANY_SHAPE, ids=lambda op: op.__name__)
def test_javas_client_works_with_every_digest_and_quorum(
    pair: Pair, operation: Callable[[Pair, Shape], None], shape: Shape
) -> None:
    operation(pair, shape)


@pytest.mark.parametrize("pair", ["v2"], indirect=True)
def test_a_batch_read_returns_many_entries(pair: Pair) -> None:
    """One request for many entries, which only v2 has."""
    sent = payloads(500)
    writer = pair.other.create()
    writer.append_all(sent)
    writer.close()
    assert isinstance(pair.one, ApacheClient)
    reader = pair.one.open(writer.ledger_id)
    assert reader.read_batch(0, 500) == sent
    assert reader.read_batch(490, 500) == sent[490:]
    assert reader.read_batch(7, 1) == sent[7:8]
    half = sum(map(len, sent)) // 2
    begun = reader.read_batch(0, 500, half)
    assert 0 < len(begun) < 500
    assert begun == sent[: len(begun)]
    reader.close()


@pytest.mark.parametrize("pair", ["v3"], indirect=True)
def test_long_polls_are_sent_to_all_bookies_in_parallel(pair: Pair) -> None:
    """All bookies of the ensemble are polled at once."""
    sent = payloads(30)
    writer = pair.other.create()
    writer.append(sent[0])
    assert isinstance(pair.one, ApacheClient)
    reader = pair.one.open(writer.ledger_id)
    with ThreadPoolExecutor(1) as thread:
        for number in range(1, len(sent)):
            waiting = thread.submit(reader.tail, number - 1, LONG_POLL_MS, True)
            writer.append(sent[number])
            assert waiting.result() == sent[number - 1]
    writer.close()
    reader.close()


@pytest.mark.parametrize("pair", ["v3"], indirect=True)
def test_entry_lists_are_returned_to_javas_client(pair: Pair) -> None:
    """Each bookie lists its entries, from which Apache's auditor counts replicas."""
    writer = pair.other.create(STRIPED)
    writer.append_all(payloads(50))
    writer.close()
    ensemble = pair.one.describe(writer.ledger_id).last_ensemble
    assert isinstance(pair.one, ApacheClient)
    for at, bookie in enumerate(ensemble):
        expected = [number for number in range(50) if at in {number % 3, (number + 1) % 3}]
        assert pair.one.entries_of(bookie, writer.ledger_id, 50) == expected


@pytest.mark.parametrize("pair", ["v3"], indirect=True)
def test_disk_space_is_returned_to_javas_client(pair: Pair) -> None:
    assert isinstance(pair.one, ApacheClient)
    space = pair.one.disk_space()
    assert len(space) == 4
    for free, total in space.values():
        assert 0 < free <= total
