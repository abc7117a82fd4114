"""A bookie of a service answers its supervisor over its standard streams."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest

from quire.bookie.server import Bookie
from quire.cli.servers.processes.reports import METRICS, STATUS, reporting
from quire.errors import BookieTimeoutError
from tests.support.waiting import until

LIMIT_S = 10.0
LARGE = "x" * 1_000_000
"""More than a pipe keeps."""


class FakeBookie:
    bookie_id = "b7-0"
    serving = writable = True
    loading_percent = 100

    def __init__(self) -> None:
        self.failed = asyncio.get_running_loop().create_future()


class FakeServer:
    url = "http://127.0.0.1:8081"

    def __init__(self) -> None:
        self.metrics: str | Exception = "m 1\n"

    async def metrics_text(self) -> str:
        if isinstance(self.metrics, Exception):
            raise self.metrics
        return self.metrics

    def around(self, bookie: Bookie) -> Any:
        return self

    async def __aenter__(self) -> FakeServer:
        return self

    async def __aexit__(self, *error: object) -> None: ...


async def test_a_bookie_answers_its_supervisor_until_the_pipe_closes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An error of the metrics is no end of the supervisor. The end of the pipe is."""
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append(number))
    questions, asking = os.pipe()
    answering, answers = os.pipe()
    server = FakeServer()
    with (
        os.fdopen(questions) as stdin,
        os.fdopen(answers, "w") as stdout,
        os.fdopen(answering, "rb") as said,
    ):
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)

        replies = asyncio.StreamReader(limit=2 * len(LARGE))
        receiving, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(replies), said
        )

        async def ask(question: bytes) -> dict[str, Any]:
            os.write(asking, question)
            async with asyncio.timeout(LIMIT_S):
                answer: dict[str, Any] = json.loads(await replies.readline())
            return answer

        async with reporting(server.around)(cast(Bookie, FakeBookie())):
            status = await ask(STATUS)
            assert status == {
                "id": "b7-0", "serving": True, "writable": True, "loaded_percent": 100,
                "http": server.url,
            }  # fmt: skip
            assert (await ask(METRICS))["metrics"] == "m 1\n"
            server.metrics = BookieTimeoutError("the bookie b9 does not answer")
            assert await ask(METRICS) == status
            server.metrics = LARGE  # The event loop goes on while nobody reads the answer.
            assert (await ask(METRICS))["metrics"] == LARGE
            assert signals == []
            os.close(asking)
            await until(lambda: signals == [signal.SIGTERM])
        receiving.close()
