"""A Python for Spark's workers that has imported what they need before Spark's daemon forks them.

    python workers.py -m pyspark.daemon MODULE     the daemon, with the imports done
    python workers.py -m MODULE ARGUMENT...        another module of Spark's

Spark's own daemon imports nothing, so each worker does. The workers import from `pyspark.zip`,
which Spark puts first in the path and which has only sources that are compiled each time. That
takes more than a second of CPU time for each process that plans, reads or writes, and a query has a
few. With this program, workers use the installed PySpark and run the same code. With
QUIRE_FRESH_COMMANDS=1, Spark uses its own daemon.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from pathlib import Path

DAEMON = "pyspark.daemon"
PACKED = ("pyspark.zip", "py4j-")
"""The beginnings of the names of the archives that Spark puts into the path."""


def write_python(directory: Path) -> str:
    """Write an executable to which PYSPARK_PYTHON can be set, and return its path."""
    path = directory / "python"
    # Spark also asks it for its version with -c.
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -m ] && exec "{sys.executable}" "{__file__}" "$@"\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def main() -> None:
    module = sys.argv[2]
    # As with -m, the workers cannot import the modules of the tests.
    sys.path[0] = os.getcwd()
    sys.path[:] = [one for one in sys.path if not os.path.basename(one).startswith(PACKED)]
    if module == DAEMON:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark.worker  # noqa: F401

        import quire.metadata.sqlite.store
        import quire.spark.source  # noqa: F401

        gc.freeze()  # Otherwise each worker copies what its collector touches.
    del sys.argv[:2]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
