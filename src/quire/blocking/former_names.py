"""The former names of the blocking factories, for the modules that offered them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.blocking import streams
from quire.blocking.client import Client
from quire.blocking.datasets import Datasets
from quire.blocking.objects import Objects


class Namespace(streams.Namespace):
    """`quire.blocking.Namespace`, with the former factories that take a client."""

    @classmethod
    def create(
        cls,
        client: Client,
        path: str,
        *,
        settings: Mapping[str, Any] | None = None,
        password: bytes = b"",
    ) -> streams.Namespace:
        """Deprecated: use `client.namespace(path, create=True)`."""
        return client.namespace(path, create=True, settings=settings, password=password)

    @classmethod
    def open(cls, client: Client, path: str, *, password: bytes = b"") -> streams.Namespace:
        """Deprecated: use `client.namespace(path)`."""
        return client.namespace(path, password=password)


def objects(client: Client, bucket: str = "default") -> Objects:
    """Deprecated: use `client.objects(bucket)`."""
    return client.objects(bucket)


def datasets(client: Client) -> Datasets:
    """Deprecated: use `client.datasets`."""
    return client.datasets
