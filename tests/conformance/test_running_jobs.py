"""Running jobs, as they announce themselves, on each metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from quire.metadata.interface import MetadataStore
from quire.metadata.tree import Create, Delete, Put
from quire.replication.marks import job_announcements
from quire.replication.marks.job_announcements import (
    RUNNING_MAX,
    JobStatus,
    RunningJob,
    announced,
    running_jobs,
)
from tests.support.metadata.backends import Backend
from tests.support.waiting import until

LIMIT_S = 30
BOOKIE = "10.0.0.1:3181"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_announcements, "SAY_INTERVAL_S", 0.02)


def job(
    store: MetadataStore, far: Callable[[], JobStatus] = JobStatus, by: str = "host/a.1"
) -> AbstractAsyncContextManager[None]:
    return announced(store, "recover", BOOKIE, by, lambda: 7, far)


async def told(
    store: MetadataStore, wanted: Callable[[list[RunningJob]], bool]
) -> list[RunningJob]:
    return await until(lambda: running_jobs(store), right=wanted)


async def test_a_job_is_listed_while_it_runs(backend: Backend, store: MetadataStore) -> None:
    other, far = await backend.store(), JobStatus()
    assert await running_jobs(other) == []
    async with job(store, lambda: far):
        [found] = await told(other, bool)
        assert found == RunningJob("recover", BOOKIE, "host/a.1", 7, 7, JobStatus())
        far = JobStatus("replicating", 10, 3, 4_000_000, 1_000_000, paused=True)
        [found] = await told(other, lambda jobs: jobs[0].far.ledgers == 10)
        assert found.far == far
        assert found.as_json()["ledgers_done"] == 3
        assert found.sentence() == (
            f"recover {BOOKIE}, by host/a.1: replicating, 3 of 10 ledgers, 1.0 of 4.0 MB, paused"
        )
        async with job(other, by="b"):
            assert [one.by for one in await told(store, lambda jobs: len(jobs) == 2)]
    assert await told(other, lambda jobs: not jobs) == []


async def test_a_job_disappears_with_its_session(backend: Backend, store: MetadataStore) -> None:
    mortal = await backend.store()
    async with job(mortal):
        await told(store, bool)
        await mortal.close()
        await told(store, lambda jobs: not jobs)


async def test_a_job_whose_node_was_deleted_is_listed_again(store: MetadataStore) -> None:
    async with job(store):
        await told(store, bool)
        root = job_announcements._root(store.uri)
        [name] = await store.tree.children(root)
        await store.tree.commit(Delete(f"{root}/{name}"))
        await told(store, bool)


async def test_an_unchanged_job_status_is_not_written(store: MetadataStore) -> None:
    looked = 0

    def far() -> JobStatus:
        nonlocal looked
        looked += 1
        return JobStatus("waiting")

    async with job(store, far):
        await told(store, bool)
        root = job_announcements._root(store.uri)
        [name] = await store.tree.children(root)
        await until(lambda: looked >= 5)
        assert (await store.tree.read(f"{root}/{name}")).version == 0


async def test_malformed_and_surplus_job_nodes_are_skipped(store: MetadataStore) -> None:
    root = job_announcements._root(store.uri)
    await store.tree.make_path(root)
    for number, value in enumerate((b"", b"[]", b'{"far": {}}', b"\xff", b'{"far": 7}')):
        await store.tree.commit(Create(f"{root}/0-{number}", value))
    assert await running_jobs(store) == []
    async with job(store):
        [found] = await told(store, bool)
        [name] = [one for one in await store.tree.children(root) if one.startswith("recover")]
        value = (await store.tree.read(f"{root}/{name}")).value
    # A later version may say more.
    await store.tree.commit(Put(f"{root}/0-0", value.replace(b'"step"', b'"more": 1, "step"')))
    assert await running_jobs(store) == [found]
    await store.tree.commit(*(Create(f"{root}/1-{n:03}", value) for n in range(RUNNING_MAX)))
    assert len(await running_jobs(store)) < RUNNING_MAX


async def test_a_job_runs_even_if_it_cannot_be_announced(backend: Backend) -> None:
    away = await backend.store()
    await away.close()
    async with job(away), asyncio.timeout(LIMIT_S):
        await asyncio.sleep(0)
