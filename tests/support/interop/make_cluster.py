"""The type of the fixture `shared_cluster`, which returns a cluster by its kind of bookies."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.interop.apache_cluster import Cluster

MakeCluster = Callable[[str], Cluster]
