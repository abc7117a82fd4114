"""Sending this package to executors on which it is not installed.

The package is pure Python. Its dependencies (pyarrow, pandas, and the compiled crc32c, lz4 and
protobuf) must be installed on the executors.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from quire.spark.session import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("quire", "pyspark_quire")
NOT_SHIPPED = frozenset(("__pycache__", "cli", "testing"))
"""The names of directories that are not sent to executors, because no task needs them."""
STAMP = (2013, 1, 1, 0, 0, 0)
"""The modification time of all files in the archive.

The same sources then make the same archive, which Spark sends only once.
"""


def package_zip(path: str | Path) -> Path:
    """Write the Python files of Quire, as it is installed here, to a zip file.

    The commands and `quire.testing` are left out, because no task needs them. Pass the file to
    `spark-submit --py-files`, or to `spark.addArtifacts(..., pyfile=True)`.

    Args:
        path: The path of the zip file. A file that exists there is replaced.

    Returns:
        The same path.

    Raises:
        OSError: The file cannot be written.
    """
    target, here = Path(path), Path(__file__).parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for file in sorted((here / package).rglob("*.py")):
                name = file.relative_to(here)
                if NOT_SHIPPED.isdisjoint(name.parts):
                    entry = zipfile.ZipInfo(name.as_posix(), STAMP)
                    archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return target


def ship(spark: SparkSession) -> SparkSession:
    """Send Quire to the executors of a session, as if it were installed there, and register it.

    The driver (or the server of Spark Connect) must have Quire installed, because Spark 4.3 does
    not pass sent files to the driver's part of streaming queries. The dependencies of Quire are not
    sent: the executors must have them.

    Args:
        spark: The session.

    Returns:
        The same session.

    Raises:
        UsageError: PySpark, or a package that it needs, is not installed.
        OSError: The archive cannot be written to the directory of temporary files.
    """
    # Executors that join later fetch the file from this process, so it is kept until the process
    # ends.
    directory = tempfile.mkdtemp(prefix="quire-ship-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    spark.addArtifacts(str(package_zip(Path(directory, "quire.zip"))), pyfile=True)
    return register(spark)
