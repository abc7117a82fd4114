"""Bringing this package to executors that do not have it installed. It is pure Python; what it
needs besides (pyarrow, pandas, and the compiled crc32c, lz4 and protobuf) must be there."""

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
"""Directories that no task needs."""
STAMP = (2013, 1, 1, 0, 0, 0)
"""Of all files: the same sources make the same archive, which Spark then sends once."""


def package_zip(path: str | Path) -> Path:
    """Write the package as it is installed here into a zip, for `spark-submit --py-files` or
    `spark.addArtifacts(..., pyfile=True)`; its path."""
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
    """Send the package to the executors of this session, in which it then is as if it were
    installed there; returns the session. The driver (of Spark Connect: the server) must have it
    installed: Spark 4.3 does not give the drivers' part of streaming queries what was sent."""
    # Executors that come later fetch the file from this process: it stays until the end of it.
    directory = tempfile.mkdtemp(prefix="quire-ship-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    spark.addArtifacts(str(package_zip(Path(directory, "quire.zip"))), pyfile=True)
    return register(spark)
