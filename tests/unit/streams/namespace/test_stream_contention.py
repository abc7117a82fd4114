"""The errors of calls if other clients change the same nodes during each attempt."""

from __future__ import annotations

import pytest

from quire.codec.distributedlog.dlsn import DLSN
from quire.errors import MetadataError, MetadataUnavailableError, UsageError, VersionConflictError
from quire.metadata.tree import Create, Delete, Operation, Put, Result
from quire.streams.namespace.stream_life import FIND_ATTEMPTS
from quire.streams.read.subscriptions import COMMIT_ATTEMPTS_MAX
from tests.support.streams import Bench, run


def _refuse(b: Bench, monkeypatch: pytest.MonkeyPatch, part: str) -> list[tuple[Operation, ...]]:
    """Let every commit that writes a path with `part` meet a change by another client."""
    refused: list[tuple[Operation, ...]] = []
    commit = b.client.metadata.tree.commit

    async def contended(*operations: Operation) -> list[Result]:
        if any(isinstance(one, Put | Create) and part in one.path for one in operations):
            refused.append(operations)
            raise VersionConflictError("another client was faster")
        return await commit(*operations)

    monkeypatch.setattr(b.client.metadata.tree, "commit", contended)
    return refused


def test_a_stream_whose_life_keeps_changing_is_not_reported_as_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        metadata = b.streams.metadata("s")
        await metadata.tree.commit(
            Delete((await metadata.life()).path)
        )  # as if another program had created the stream
        refused = _refuse(b, monkeypatch, "/lives/")
        with pytest.raises(MetadataUnavailableError, match=r"stream s .* each of 10 attempts"):
            await metadata.life()
        assert len(refused) == FIND_ATTEMPTS

    run(scene)


def test_a_subscription_that_others_keep_moving_is_not_a_usage_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        await b.streams.create_stream("s")
        mine = b.streams.subscription("s", "mine")
        assert await mine.commit(DLSN(1, 0, 0))
        refused = _refuse(b, monkeypatch, "mine")
        with pytest.raises(
            MetadataError, match=r"mine of stream s was not moved.* Try again$"
        ) as it:
            await mine.commit(DLSN(1, 0, 1))
        assert not isinstance(it.value, UsageError)
        assert it.value.outcome_known
        assert len(refused) == COMMIT_ATTEMPTS_MAX
        assert await mine.position() == DLSN(1, 0, 0)

    run(scene)
