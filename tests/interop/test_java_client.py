"""Apache's Java client, over both protocols, on our bookies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.interop import operations
from tests.interop.apache_java import FEATURES, ApacheClient
from tests.interop.conftest import MakeCluster
from tests.interop.operations import Operation, Pair, possible
from tests.interop.quire_side import QuireClient
from tests.interop.sides import Shape, payloads

pytestmark = pytest.mark.interop


def over_both(chosen: Sequence[Operation]) -> list[Any]:
    """What each protocol has."""
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
def test_on_our_bookies(pair: Pair, operation: Operation) -> None:
    operation(pair)


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "operation"), over_both(operations.THOROUGH), indirect=["pair"])
def test_thoroughly(pair: Pair, operation: Operation) -> None:
    operation(pair)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["v2", "v3"], indirect=True)
@pytest.mark.parametrize("shape", operations.SHAPES, ids=str)
@pytest.mark.parametrize("operation", operations.OF_ANY_SHAPE, ids=lambda op: op.__name__)
def test_every_digest_and_quorum(
    pair: Pair, operation: Callable[[Pair, Shape], None], shape: Shape
) -> None:
    operation(pair, shape)


@pytest.mark.parametrize("pair", ["v2"], indirect=True)
def test_batch_reads(pair: Pair) -> None:
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
