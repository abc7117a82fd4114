"""Tools for tests of programs that use Quire: a cluster of real processes on this machine.

    from quire.testing import LocalCluster

    with LocalCluster(bookies=3, directory=tmp_path) as cluster:
        ...  # connect to cluster.metadata_uri

pytest finds the fixtures in `pytest_plugin` by itself wherever Quire is installed.
"""

from __future__ import annotations

from quire.testing.cluster import LocalCluster

__all__ = ["LocalCluster"]
