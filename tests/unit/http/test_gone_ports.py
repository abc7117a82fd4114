"""The addresses of bookies that are not registered are asked seldom."""

from __future__ import annotations

from typing import Any

import pytest

from quire.http.watch import observations
from quire.http.watch.observations import GONE_PORTS_INTERVAL_S, GonePorts
from quire.net.knock import Knock


async def test_they_are_asked_again_after_a_while_and_for_a_new_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    now_s = 100.0

    class Pool:
        async def knock(self, bookie: str, timeout_s: float) -> Knock | None:
            asked.append(bookie)
            return None if bookie == "name" else Knock.REFUSED

    monkeypatch.setattr(observations, "pool_of", lambda client: Pool())
    ports, client = GonePorts(lambda: now_s, 20.0), object()
    some: Any = client
    assert await ports.of(some, ["b:1"]) == {"b:1": Knock.REFUSED}
    now_s += GONE_PORTS_INTERVAL_S - 1
    assert await ports.of(some, ["b:1"]) == {"b:1": Knock.REFUSED}
    assert asked == ["b:1"]
    assert await ports.of(some, ["b:1", "name"]) == {"b:1": Knock.REFUSED, "name": None}
    assert asked == ["b:1", "b:1", "name"]
    assert await ports.of(some, ["b:1"]) == {"b:1": Knock.REFUSED}
    now_s += GONE_PORTS_INTERVAL_S
    assert await ports.of(some, ["b:1"]) == {"b:1": Knock.REFUSED}
    assert asked[3:] == ["b:1"]
    assert await ports.of(some, []) == {}
    await ports.close()
