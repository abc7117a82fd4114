"""The log of a client that loses ZooKeeper."""

from __future__ import annotations

import asyncio
import logging

import pytest

from quire.metadata.zookeeper import absence
from quire.metadata.zookeeper.absence import AbsenceLog
from tests.support.waiting import until

LOGGER = "quire.metadata.zookeeper"


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if record.name == LOGGER]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)


async def test_losing_and_regaining_zookeeper_log_one_event_each(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absence, "AWAY_S", 0.0)
    log = AbsenceLog("zk-1:2181,zk-2:2181", lambda: {"zk-1:2181": "Connection refused"})
    log.back()
    assert events(caplog) == [], "the store was never unavailable"
    told: list[float] = []
    log.watches.add(told.append)
    for _ in range(5):  # kazoo reports each attempt
        log.lost()
    await until(lambda: events(caplog) == ["metadata_lost"])
    log.lost()
    log.back()
    log.back()
    assert events(caplog) == ["metadata_lost", "metadata_back"]
    first, second = caplog.records
    assert "zk-1:2181: Connection refused" in first.getMessage()
    assert vars(second)["seconds"] >= 0
    await until(lambda: len(told) == 1)
    assert told[0] >= 0
    assert "answers again, after" in second.getMessage()


async def test_a_move_to_another_server_logs_no_event(caplog: pytest.LogCaptureFixture) -> None:
    log = AbsenceLog("zk-1:2181", dict)
    log.lost()
    await asyncio.sleep(0)
    log.back()
    assert events(caplog) == []
    log.lost()
    log.close()
    log.back()
    assert events(caplog) == []
