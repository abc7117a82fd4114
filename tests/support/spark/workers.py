"""A Python for Spark's workers that are forked from a process that has imported what they need.

    python -m MODULE ARGUMENT...     a fork of the server of this file (see `command_server`)
    python ARGUMENT...               the usual Python

Spark starts a daemon for each kind of work, a dozen in a session, and daemons fork workers. Other
workers have no daemon. Without this program, they import from `pyspark.zip`, which Spark puts first
in the path and which has only sources that are compiled each time. That takes more than a second of
CPU time for each process that plans, reads or writes, and a query has a few. With this program,
daemons and workers share the imports of one process, use the installed PySpark and run the same
code. With QUIRE_FRESH_COMMANDS=1, Spark uses the usual Python for all.

    python workers.py serve PATH        the server, which listens at PATH until its input ends
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import runpy
import shlex
import signal
import sys
from pathlib import Path

PROCESSES = Path(__file__).parents[1] / "processes"
PACKED = ("pyspark.zip", "py4j-")
"""The beginnings of the names of the archives that Spark puts into the path."""
LEFT_OUT = ("quire.testing.", "quire.cli.", "quire.http.", "quire.bookie.", "quire.__main__")
"""The beginnings of the names of modules that no worker needs."""
HASH_SEED = "PYTHONHASHSEED"
"""Spark sets it for its daemons, but a fork has the one of its server."""


def write_python(directory: Path) -> str:
    """Start the server, write an executable to which PYSPARK_PYTHON can be set, and return its
    path.
    """
    from tests.support.processes.forked_server import start_server

    environment = {HASH_SEED: "0", **os.environ}
    forked = start_server([sys.executable, "-u", __file__, "serve"], environment)
    path = directory / "python"
    # Spark also asks it for its version with -c, and runs drivers with it.
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -m ] && exec {shlex.join(forked)} "$@"\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def main() -> None:
    path = sys.argv[2]
    sys.path[0] = str(PROCESSES)
    import command_server
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark.sql.streaming.python_streaming_source_runner
    import pyspark.sql.worker
    import pyspark.worker

    import quire

    for package in (pyspark.sql.worker, quire):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(LEFT_OUT):
                importlib.import_module(module.name)
    gc.freeze()  # Otherwise each daemon copies what its collector touches.
    # Spark ends a daemon with SIGTERM, and the daemon then ends its workers.
    command_server.serve(path, if_abandoned=signal.SIGTERM)
    # As with -m, the workers cannot import the modules of the tests.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    given = [one for one in given if one and not os.path.basename(one).startswith(PACKED)]
    sys.path[:1] = [os.getcwd(), *given]
    program = sys.argv[2]
    del sys.argv[1:3]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
