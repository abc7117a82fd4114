"""Spark in typical setups: SQL, broken installations, configuration.

`test_elsewhere` has Spark Connect, executors without the package, and spark-submit.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quire import blocking
from quire.blocking import Namespace
from quire.errors import UsageError
from quire.spark import package_zip
from quire.spark.options import ENV_METADATA, ENV_PASSWORD
from quire.spark.streams.options import StreamReadOptions
from quire.testing.cluster import LocalCluster
from tests.support.spark.streams import NAMESPACE, append, message_of, numbered, values

pytestmark = pytest.mark.spark

SECRET = "hunter2-of-the-ledgers"


# -- SQL --------------------------------------------------------------------------------------


def test_sql_reads_and_writes_views(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace
) -> None:
    append(streams, "sql", numbered(0, 50))
    options = f"OPTIONS (metadata '{cluster.uri}', namespace '{NAMESPACE}', stream 'sql')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sql_stream USING quire {options}")
    assert spark.sql("SELECT max(sequence) FROM sql_stream").collect()[0][0] == 49
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sql_sink (value BINARY) USING quire {options}")
    spark.sql("INSERT INTO sql_sink SELECT encode(string(id), 'utf-8') FROM range(50, 60)")
    assert sorted(values(cluster.uri, stream="sql")) == sorted(numbered(0, 60))
    for view in ("sql_stream", "sql_sink"):
        spark.catalog.dropTempView(view)


def test_create_table_names_the_statement_to_use_instead(
    spark: SparkSession, cluster: LocalCluster, streams: Namespace
) -> None:
    append(streams, "never", numbered(0, 1))
    options = f"OPTIONS (metadata '{cluster.uri}', namespace '{NAMESPACE}', stream 'never')"
    with pytest.raises(PySparkException) as caught:
        spark.sql(f"CREATE TABLE sql_table USING quire {options}")
    assert "use CREATE TEMPORARY VIEW" in message_of(caught.value)


def test_create_table_as_select_names_the_call_to_use_instead(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Spark passes no option to the writer of CREATE TABLE ... AS SELECT. A table that saveAsTable
    wrote could never be read, because its options are not passed to the reader."""
    options = f"OPTIONS (metadata '{cluster.uri}', dataset 'never')"
    with pytest.raises(PySparkException) as caught:
        spark.sql(f"CREATE TABLE sql_copy USING quire {options} AS SELECT '1' AS value")
    instead = "Write with .save(), or use CREATE TEMPORARY VIEW"
    assert instead in message_of(caught.value)
    frame = spark.range(1).selectExpr("string(id) AS value")
    given = {"metadata": cluster.uri, "dataset": "never"}
    writer = frame.write.options(**given).mode("append")
    with pytest.raises(UsageError, match=r"'saved' was not written: .*" + re.escape(instead)):
        writer.format("quire").saveAsTable("saved")
    with pytest.raises(UsageError, match=re.escape(instead)):
        writer.saveAsTable("saved", format="quire")
    with pytest.raises(UsageError, match=re.escape(instead)):
        frame.writeTo("saved").using("quire")
    assert not spark.catalog.tableExists("saved")
    writer.format("parquet").saveAsTable("saved", path=str(tmp_path / "saved"))
    assert spark.table("saved").count() == 1
    spark.sql("DROP TABLE saved")


def test_a_bad_name_is_an_error_before_any_task(spark: SparkSession, cluster: LocalCluster) -> None:
    """Spark asks for a writer only after the stages before the last one."""
    frame = spark.range(100).selectExpr("string(id % 7) AS value").groupBy("value").count()
    jobs = spark.sparkContext.statusTracker()
    before = jobs.getJobIdsForGroup(None)
    for name in ("a/b", "", "..", "x" * 5000):
        writer = frame.select("value").write.format("quire").mode("append")
        with pytest.raises(UsageError, match="option 'dataset': "):
            writer.option("metadata", cluster.uri).save(dataset=name)
        with pytest.raises(UsageError, match="option 'dataset': "):
            writer.option("metadata", cluster.uri).option("DataSet", name).save()
    with pytest.raises(UsageError, match="option 'stream': "):
        frame.write.format("quire").options(metadata=cluster.uri, stream=".a").save()
    assert jobs.getJobIdsForGroup(None) == before


# -- what is sent to executors ------------------------------------------------------------------


def test_the_package_archive_has_the_imported_modules(tmp_path: Path) -> None:
    first, second = package_zip(tmp_path / "a.zip"), package_zip(tmp_path / "b.zip")
    assert first.read_bytes() == second.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    assert {"quire/__init__.py", "quire/spark/source.py", "pyspark_quire/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("quire/admin", "quire/testing"))]


# -- discovery --------------------------------------------------------------------------------

BROKEN = {
    "quire is missing": "sys.modules['quire'] = None",
    "pyspark is another one": "sys.modules['pyspark.sql.datasource'] = None",
    "a dependency is missing": "sys.modules['pyarrow'] = None",
    "it fails in some other way": (
        "class Raises:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'quire.spark.source': raise RuntimeError('broken')\n"
        "sys.meta_path.insert(0, Raises())"
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_discovery_never_raises(case: str) -> None:
    """One package that raises would hide the data sources of all others."""
    code = (
        f"import sys\n{BROKEN[case]}\nimport pyspark_quire\n"
        "assert not hasattr(pyspark_quire, 'DefaultSource')\n"
        "assert getattr(pyspark_quire, 'DefaultSource', None) is None\nprint('quiet')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "quiet\n"), done.stderr


def test_discovery_finds_the_format() -> None:
    code = "import pyspark_quire; print(pyspark_quire.DefaultSource.name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "quire\n", done.stderr


# -- what is configured -----------------------------------------------------------------------


def test_the_environment_of_the_driver_configures_the_format() -> None:
    environment = {ENV_METADATA: "sqlite:////c.db", ENV_PASSWORD: SECRET}
    parsed = StreamReadOptions.parse({"stream": "s"}, environ=environment)
    assert (parsed.metadata, parsed.password) == ("sqlite:////c.db", SECRET.encode())
    given = StreamReadOptions.parse({"stream": "s", "password": "mine"}, environ=environment)
    assert given.password == b"mine"
    assert SECRET not in repr(parsed)


def test_a_statement_of_sql_needs_no_secret(
    spark: SparkSession, cluster: LocalCluster, client: blocking.Client
) -> None:
    """Spark redacts options, and Quire's errors have none: what is left is the statement itself."""
    with client.namespace("/secret", password=SECRET.encode(), create=True) as opened:
        append(opened, "s", numbered(0, 3))
    statement = (
        "CREATE OR REPLACE TEMPORARY VIEW secrets USING quire OPTIONS "
        f"(metadata '{cluster.uri}', namespace '/secret', stream 's', password '{SECRET}')"
    )
    spark.sql(statement)
    frame = spark.sql("SELECT value FROM secrets")
    assert frame.count() == 3
    plans: Callable[[], Any] = frame._jdf.queryExecution().toString
    assert SECRET not in str(plans())
    spark.catalog.dropTempView("secrets")
    with client.namespace("/secret", password=SECRET.encode()) as opened:
        opened.delete_stream("s")  # or the tables of all namespaces need a password
