"""The window of the errors of a bookie, and the limit of remembered reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quire._runtime.tasks import TaskSet
from quire.client.cluster import health as health_module
from quire.client.cluster.health import BookieHealth, Misbehaviour
from quire.config import ClientConfig


def test_errors_after_a_quarantine_are_counted_from_zero() -> None:
    config = ClientConfig(quarantine_errors=3, quarantine_window_s=10.0, quarantine_s=5.0)
    now_s = [0.0]
    health = BookieHealth(config, lambda: now_s[0], TaskSet())
    for _ in range(3):
        health.error("b")
    assert health.quarantined("b")
    now_s[0] = 6.0
    assert not health.quarantined("b")
    health.error("b")
    health.error("b")
    assert not health.quarantined("b")
    health.error("b")
    assert health.quarantined("b")


def test_errors_at_the_edge_of_the_window_count() -> None:
    config = ClientConfig(quarantine_errors=2, quarantine_window_s=10.0)
    now_s = [0.0]
    health = BookieHealth(config, lambda: now_s[0], TaskSet())
    health.error("b")
    now_s[0] = 10.5
    health.error("b")
    assert not health.quarantined("b")
    now_s[0] = 20.5
    health.error("b")
    assert health.quarantined("b")


def test_a_replica_is_reported_once_until_too_many_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_module, "REPORTED_MAX", 2)

    async def scene() -> None:
        reported: list[int] = []

        async def on_damage(ledger_id: int, bookies: Sequence[str]) -> None:
            reported.append(ledger_id)

        health = BookieHealth(ClientConfig(), lambda: 0.0, TaskSet())
        health.on_damage = on_damage
        for ledger_id in (1, 1, 2, 1, 2, 3, 3, 1):
            health.misbehaved("b", Misbehaviour.MISSING, ledger_id, 0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert reported == [1, 2, 3, 1]

    asyncio.run(scene())
