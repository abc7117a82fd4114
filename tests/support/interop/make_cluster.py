"""Shared by tests: helpers of `conftest` that other test modules need as well."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.interop.apache_cluster import Cluster

MakeCluster = Callable[[str], Cluster]
