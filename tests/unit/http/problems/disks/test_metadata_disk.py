"""The problem of a full disk that has the metadata file, and is not that of a bookie.

`quire explain` said that the bookies were cut off or paused, because they could not renew their
sessions, or that the metadata store should be started.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire._runtime.clock import SystemClock
from quire.cli import explain
from quire.client import Client
from quire.config import ClientConfig
from quire.errors import MetadataUnavailableError
from quire.http.server.api import Call, Route
from quire.http.views.cluster_view import ClusterView
from quire.http.views.last_known import LastKnown
from quire.http.views.problems.metadata_store import of_metadata_disk
from quire.http.watch.reachability import MetadataReachability
from quire.metadata import open_metadata
from quire.metadata.sqlite.disk_space import FULL_BYTES, MetadataDisk, metadata_disk
from tests.support.http.problems import GB, bookie

DISK = MetadataDisk("/meta data/a.db", 50 * GB, 100 * GB)


def test_a_full_metadata_disk_is_a_problem_with_space_and_remedy() -> None:
    assert of_metadata_disk(None) == []
    assert of_metadata_disk(DISK) == []
    assert of_metadata_disk(replace(DISK, free_bytes=FULL_BYTES)) != []
    (found,) = of_metadata_disk(replace(DISK, free_bytes=FULL_BYTES - 1), [bookie("a")])
    assert found.severity == "bad"
    assert found.what == (
        "The disk of the metadata file is full: /meta data/a.db: 1.0 MB of 100 GB free"
    )
    assert "du -xh '/meta data'." in found.next
    assert "Bookies cannot keep their registrations" in found.risk


def test_a_disk_that_is_nearly_full_is_reported_once() -> None:
    nearly = replace(DISK, free_bytes=9 * GB)
    (found,) = of_metadata_disk(nearly, [bookie("a", free=50)])
    assert (found.severity, found.what) == (
        "warn",
        "The disk of the metadata file is nearly full: 91 % of it is used (/meta data/a.db: 9.0 GB "
        "of 100 GB free)",
    )
    assert of_metadata_disk(nearly, [bookie("a", free=9)]) == [], "the disk belongs to the bookie"


def test_only_a_sqlite_file_has_a_disk(tmp_path: Path) -> None:
    for uri in ("memory://a", "zk://here/ledgers", "nonsense"):
        assert metadata_disk(uri) is None
    assert metadata_disk(f"sqlite:///{tmp_path}/none/none.db") is None
    found = metadata_disk(f"sqlite:///{tmp_path}/not-there-yet.db")
    assert found is not None
    assert 0 < found.free_bytes < found.total_bytes


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    space = SimpleNamespace(f_bavail=0, f_bfree=0, f_frsize=4096, f_blocks=512)
    monkeypatch.setattr(os, "statvfs", lambda path: space)


@pytest.mark.usefixtures("full")
async def test_explain_and_the_dashboard_report_a_full_metadata_disk(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/meta.db"
    store = await open_metadata(uri, create=True)
    await store.initialise()

    async def nothing(url: str) -> str:
        return ""

    async with Client(store) as client:
        view = ClusterView(SystemClock().monotonic, nothing, wait_s=10)
        seen = await view.look(client)
        await view.close()
    assert seen.problems[0].what == (
        f"The disk of the metadata file is full: {tmp_path}/meta.db: 0 B of 2.1 MB free"
    )


@pytest.mark.usefixtures("full")
async def test_the_dashboard_reports_a_full_metadata_disk_during_an_outage(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/meta.db"
    error: MetadataUnavailableError | None = None

    async def ask() -> str:
        if error is not None:
            raise error
        return "instance"

    clock = SystemClock()
    reach = MetadataReachability(uri, ask, clock)

    async def answer(call: Call) -> dict[str, Any]:
        reach.check()
        return {"problems": []}

    route = LastKnown(reach, clock.now_ms).of(Route("GET", "/overview", "", answer))
    await reach.look()
    await route.handler(Call({}, {}, {}))
    error = MetadataUnavailableError("no")
    await reach.look()
    found = await route.handler(Call({}, {}, {}))
    assert found["problems"][0]["what"].startswith("The disk of the metadata file is full: ")


@pytest.mark.usefixtures("full")
async def test_a_full_metadata_disk_is_reported_once_during_an_outage(tmp_path: Path) -> None:
    """The last known state has the problem, too, which was shown and counted twice."""
    uri = f"sqlite:///{tmp_path}/meta.db"
    error: MetadataUnavailableError | None = None

    async def ask() -> str:
        if error is not None:
            raise error
        return "instance"

    clock = SystemClock()
    reach = MetadataReachability(uri, ask, clock)

    async def answer(call: Call) -> dict[str, Any]:
        reach.check()
        return {"problems": [asdict(one) for one in of_metadata_disk(metadata_disk(uri))]}

    known = LastKnown(reach, clock.now_ms)
    route = known.of(Route("GET", "/overview", "", answer))
    await reach.look()
    await route.handler(Call({}, {}, {}))
    error = MetadataUnavailableError("no")
    await reach.look()
    disk, store = (await route.handler(Call({}, {}, {})))["problems"]
    assert disk["what"].startswith("The disk of the metadata file is full: ")
    assert store["what"].startswith("The metadata store ")
    assert known.problem_counts("/overview")["bad"] == 2


@pytest.mark.usefixtures("full")
async def test_an_error_of_the_disk_is_not_blamed_on_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*how: object, **more: object) -> Any:
        raise MetadataUnavailableError("the disk is full", remedy="Free some space")

    monkeypatch.setattr(explain, "client_config", ClientConfig)
    monkeypatch.setattr("quire.metadata.open_metadata", refused)
    with pytest.raises(MetadataUnavailableError) as raised:
        async with explain.explaining(f"sqlite:///{tmp_path}/meta.db"):
            raise AssertionError("unreachable")
    assert str(raised.value) == "the disk is full. Free some space"
