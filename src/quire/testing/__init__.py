"""Tools for tests of programs that use Quire: a cluster of real processes on this machine.

    from quire.testing import LocalCluster

    with LocalCluster(bookies=3) as cluster:
        ...  # connect to cluster.uri

pytest finds the fixtures `quire_cluster` and `quire_blocking_client`, and with pytest-asyncio
`quire_client`, wherever Quire is installed. docs/guides/programs/test-your-program.md shows how
to use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire._runtime.names.lazy import lazily

if TYPE_CHECKING:
    from quire.testing._process import ServerProcess
    from quire.testing.cluster import BookieProcess, LocalCluster
else:
    # pytest loads the plugin in each run, so nothing else is imported before it is used.
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "BookieProcess": "quire.testing.cluster:BookieProcess",
            "LocalCluster": "quire.testing.cluster:LocalCluster",
            "ServerProcess": "quire.testing._process:ServerProcess",
            "quire_blocking_client": "quire.testing.pytest_plugin:quire_blocking_client",
            "quire_client": "quire.testing.pytest_plugin:quire_client",
            "quire_cluster": "quire.testing.pytest_plugin:quire_cluster",
        },
    )

__all__ = ["BookieProcess", "LocalCluster", "ServerProcess"]
