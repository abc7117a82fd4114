"""The addresses of bookies that are not registered are asked seldom."""

from __future__ import annotations

from typing import Any

import pytest

from quire.http.watch import observations
from quire.http.watch.observations import GONE_PORTS_INTERVAL_S, GonePorts
from quire.net.port_probe import ProbeResult


async def test_ports_of_lost_bookies_are_probed_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    now_s = 100.0

    class Pool:
        async def probe_port(self, bookie: str, timeout_s: float) -> ProbeResult | None:
            asked.append(bookie)
            return None if bookie == "name" else ProbeResult.REFUSED

    monkeypatch.setattr(observations, "pool_of", lambda client: Pool())
    ports, client = GonePorts(lambda: now_s, 20.0), object()
    some: Any = client
    assert await ports.of(some, ["b:1"]) == {"b:1": ProbeResult.REFUSED}
    now_s += GONE_PORTS_INTERVAL_S - 1
    assert await ports.of(some, ["b:1"]) == {"b:1": ProbeResult.REFUSED}
    assert asked == ["b:1"]
    assert await ports.of(some, ["b:1", "name"]) == {"b:1": ProbeResult.REFUSED, "name": None}
    assert asked == ["b:1", "b:1", "name"]
    assert await ports.of(some, ["b:1"]) == {"b:1": ProbeResult.REFUSED}
    now_s += GONE_PORTS_INTERVAL_S
    assert await ports.of(some, ["b:1"]) == {"b:1": ProbeResult.REFUSED}
    assert asked[3:] == ["b:1"]
    assert await ports.of(some, []) == {}
    await ports.close()
