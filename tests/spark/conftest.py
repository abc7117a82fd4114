"""One Spark session and one cluster of three bookies for all tests of this directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from quire import blocking
from quire.blocking import Datasets, Namespace
from quire.cli.main import cli
from quire.spark import local_session, worker
from quire.testing.cluster import LocalCluster
from tests.support.spark import faults
from tests.support.spark.workers import write_python

# The workers cannot import the modules of the tests.
cloudpickle.register_pickle_by_value(faults)


FOLDER = Path(__file__).parent
WITH_DRIVERS = (
    "test_demo",
    "test_elsewhere",
    "test_exactly_once",
    "test_fan_in",
    "test_job_failures",
    "test_notebook",
)
"""Their tests run programs that start Spark."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run Spark. They are a separate part of `make test`, because each uses
    both cores.
    """
    for item in items:
        if item.path.is_relative_to(FOLDER) and (
            "spark" in getattr(item, "fixturenames", ()) or item.path.stem in WITH_DRIVERS
        ):
            item.add_marker(pytest.mark.jvm)


@pytest.fixture(scope="session", autouse=True)
def python_of_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set the Python of this session's workers, and of the drivers that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("QUIRE_FRESH_COMMANDS"):
            patch.setenv("PYSPARK_PYTHON", write_python(tmp_path_factory.mktemp("workers")))
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two task slots, two attempts more for each task that fails."""
    directory = tmp_path_factory.mktemp("spark")
    session = local_session(
        "tests",
        master="local[2,3]",
        settings={
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.local.dir": str(directory / "local"),
        },
    )
    for source in (faults.FaultyDataSource, faults.FaultyStreams, faults.Numbers):
        session.dataSource.register(source)
    yield session
    session.stop()


@pytest.fixture
def cluster(quire_cluster: LocalCluster) -> LocalCluster:
    return quire_cluster


@pytest.fixture(scope="session")
def close_clients() -> Callable[[], None]:
    """Ends the clients that the driver keeps: for tests whose cluster ends before the session."""
    return worker.close_clients


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.uri) as connected:
        yield connected
    worker.close_clients()


@pytest.fixture
def streams(client: blocking.Client, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """The NAMESPACE of the test's module."""
    with client.namespace(request.module.NAMESPACE, create=True) as opened:
        yield opened


@pytest.fixture
def stream(streams: Namespace, request: pytest.FixtureRequest) -> str:
    """A stream of this test's own."""
    name = re.sub(r"\W", "-", request.node.name)
    streams.create_stream(name)
    return name


@pytest.fixture
def datasets(client: blocking.Client) -> Datasets:
    return client.datasets


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A dataset of this test's own. Tests of two modules may have the same name."""
    return f"{request.path.stem}.{request.node.name}"


@pytest.fixture
def read(spark: SparkSession, cluster: LocalCluster) -> Callable[..., DataFrameReader]:
    def prepared(**options: Any) -> DataFrameReader:
        return spark.read.format("quire").options(**{"metadata": cluster.uri, **options})

    return prepared


@pytest.fixture
def save(cluster: LocalCluster, name: str) -> Callable[..., None]:
    """Write a frame as the dataset `name`."""

    def saved(
        frame: DataFrame, mode: str = "append", format: str = "quire", **options: Any
    ) -> None:
        given = {"metadata": cluster.uri, "dataset": name, **options}
        frame.write.format(format).mode(mode).options(**given).save()

    return saved


@pytest.fixture
def flag(tmp_path: Path) -> Callable[[str], Path]:
    """Files by which tasks and tests tell each other how far they are."""
    return lambda what: tmp_path / what


@pytest.fixture
def pipeline(
    spark: SparkSession, cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `quire pipeline ...` in the session of the tests: exit status, output, errors."""

    def run(*arguments: str, uri: str = "") -> tuple[int, str, str]:
        name, *others = arguments
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["pipeline", name, "--metadata", uri or cluster.uri, *others])
        found = capfd.readouterr()
        return int(ended.value.code or 0), found.out, found.err

    return run
