"""Three bookies in this process, for the tests of streams and objects that need no simulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire.client import Client
from tests.support.objects import Bench, object_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with object_bench(tmp_path) as made:
        yield made


@pytest.fixture
async def client(bench: Bench) -> Client:
    return await bench.client()
