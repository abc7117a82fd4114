"""A defect in a package of others, or an error that nobody expected, stops no writer or reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quire.client.client import pool_of
from quire.client.write.add_session import AddSession
from quire.config import PlacementConfig
from quire.errors import QuireError, WriteError
from tests.support.bookies.fake_bookies import (
    LEDGER,
    PASSWORD,
    FakeCluster,
    FakePool,
    created,
    payload,
    simulated,
)


def failing(*_: object, **__: object) -> Any:
    raise KeyError("oops")


@pytest.mark.parametrize("method", ["wish", "ack_domains"])
def test_a_writer_ends_if_the_placement_policy_fails(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends once waited for ever, because the ensemble change never ended."""

    async def main() -> None:
        cluster = await FakeCluster.made(4 if method == "ack_domains" else 3)
        async with cluster.client() as client:
            writer = await created(client)
            await writer.append(payload(0))
            placement = client.placement
            placement.config = PlacementConfig(policy="other", spread_acks=True)
            monkeypatch.setattr(placement.policy, method, failing)
            if method == "ack_domains":
                look = lambda session: placement.ack_domains(session.ensemble, 3)  # noqa: E731
                monkeypatch.setattr(AddSession, "_look_at_domains", look)
            names = writer.metadata.last_segment.ensemble
            for name in names if method == "wish" else names[:1]:
                cluster[name].die()
            with pytest.raises(QuireError, match="'other', which another package provides, failed"):
                await writer.append(payload(1))
            with pytest.raises(QuireError):
                await writer.close()

    simulated(main)


def test_a_writer_ends_if_its_ensemble_change_fails_unexpectedly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        cluster = await FakeCluster.made(4)
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        async with cluster.client() as client:
            writer = await created(client)
            await writer.append(payload(0))
            monkeypatch.setattr(FakePool, "pick", failing)
            cluster[writer.metadata.last_segment.ensemble[0]].die()
            with pytest.raises(WriteError, match=r"because of a bug: KeyError\('oops'\)") as error:
                await writer.append(payload(1))
            assert not error.value.outcome_known
            assert [repr(one["exception"]) for one in told] == ["KeyError('oops')"]
            with pytest.raises(WriteError):
                await writer.close()

    simulated(main)


@pytest.mark.parametrize(
    "order", [lambda bookies: bookies[:1], lambda bookies: [], lambda bookies: ["b9", *bookies[:1]]]
)
def test_all_replicas_are_asked_whatever_a_placement_policy_returns(
    order: Callable[[Sequence[str]], Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas that it left out were not asked, and the entry counted as one that never was."""

    async def main() -> None:
        cluster = await FakeCluster.made(3)
        await cluster.ledger((3, 3, 2), range(5), on=lambda entry: ["b1", "b2"])
        async with cluster.client() as client:
            placement = pool_of(client).placement
            placement.config = PlacementConfig(policy="other")
            monkeypatch.setattr(
                placement.policy, "read_order", lambda bookies, view: order(sorted(bookies))
            )
            async with await client.open_ledger(LEDGER, password=PASSWORD) as reader:
                found = [entry.entry_id async for entry in reader.read(0, 3)]
        assert found == list(range(4))

    simulated(main)
