"""The blocks about Spark in documentation pages, run in the session of these tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quire.spark import worker
from quire.testing.cluster import LocalCluster
from tests.support.docs.page_runner import PageRunner
from tests.support.docs.pages import all_pages, blocks, needs

pytestmark = pytest.mark.spark

PAGES = [
    pytest.param(page, marks=[pytest.mark.long] if "long" in needs(page) else [])
    for page in all_pages()
    if "spark" in needs(page) or any(block.spark for block in blocks(page))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_spark_code_on_a_page_does_what_the_page_shows(
    page: Path, cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    # Processes that the page starts do not belong to the session, so they do not use test workers.
    environment = {
        **os.environ, "QUIRE_METADATA": cluster.uri, "PYSPARK_PYTHON": sys.executable
    }  # fmt: skip
    names = {"uri": cluster.uri, "spark": spark, "session": spark, "page": str(tmp_path)}
    with PageRunner(page, tmp_path, environment, names=names, spark=True) as runner:
        runner.run()
        wanted = [one for one in blocks(page) if runner.needs_spark(one) and not one.not_run]
        assert runner.ran == len(wanted) > 0
    worker.close_clients()
