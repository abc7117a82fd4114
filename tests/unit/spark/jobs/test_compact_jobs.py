"""A damaged list of the jobs that were published to the target of a compaction."""

from __future__ import annotations

import asyncio
import importlib
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from quire.errors import MetadataError

# The package has a function of the same name.
compact = importlib.import_module("quire.spark.jobs.compact")


class _Namespace:
    async def __aenter__(self) -> _Namespace:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def metadata(self, name: str) -> Any:
        async def nothing() -> None:
            pass

        return SimpleNamespace(require=nothing, tree=SimpleNamespace(sync=nothing))


class _Cluster:
    password = b""

    @contextmanager
    def client(self) -> Any:
        yield SimpleNamespace(aio=None)


@pytest.mark.parametrize("jobs", [[7], [["compact", 1]], 7, None])
def test_a_list_that_cannot_be_decoded_names_the_stream(
    jobs: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(*_: object, **__: object) -> _Namespace:
        return _Namespace()

    async def read(*_: object) -> Any:
        return SimpleNamespace(values={"jobs": jobs})

    monkeypatch.setattr(compact, "call", asyncio.run)
    monkeypatch.setattr(compact, "open_namespace", opened)
    monkeypatch.setattr(compact, "read_published", read)
    source: Any = SimpleNamespace(cluster=_Cluster(), namespace="/n")
    with pytest.raises(MetadataError, match="published to stream target cannot be decoded"):
        compact._jobs(source, "target")
