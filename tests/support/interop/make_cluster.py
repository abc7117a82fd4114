"""The type of the fixture `shared_cluster`: a function from a kind of bookies to a cluster."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.interop.apache_cluster import Cluster

MakeCluster = Callable[[str], Cluster]
