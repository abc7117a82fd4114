"""Helpers of `conftest` that other test modules also use."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.interop.apache_cluster import Cluster

MakeCluster = Callable[[str], Cluster]
