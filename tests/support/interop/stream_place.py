"""The cluster and the namespaces of stream tests, with as many clients as a test needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.interop.apache_cluster import Cluster
from tests.support.interop.apache_streams import ApacheStreams, bind
from tests.support.interop.quire_streams import QuireStreams
from tests.support.interop.stream_sides import Streams

BY_JAVA = "/messaging/java"
BY_QUIRE = "/messaging/quire"
"""The namespace that Quire has created. Java has created the namespace `BY_JAVA`."""
SIDES = ("apache", "quire")


@dataclass
class Place:
    """A cluster with two namespaces, and as many clients of both projects as a test needs."""

    cluster: Cluster
    opened: list[Streams] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.cluster.kazoo.exists(BY_JAVA) is None:
            bind(self.uri(BY_JAVA), self.cluster.zookeeper)
            QuireStreams.make(self.cluster.uri, BY_QUIRE).close()

    def uri(self, path: str = BY_QUIRE) -> str:
        return f"distributedlog://{self.cluster.zookeeper}{path}"

    def apache(self, path: str = BY_QUIRE, **settings: Any) -> ApacheStreams:
        made = ApacheStreams(self.uri(path), **settings)
        self.opened.append(made)
        return made

    def quire(self, path: str = BY_QUIRE, **settings: Any) -> QuireStreams:
        made = QuireStreams.make(self.cluster.uri, path, **settings)
        self.opened.append(made)
        return made

    def pair(self, writing: str) -> tuple[Streams, Streams]:
        """Return a client of the project `writing`, and a client of the other project to read.

        Both use the namespace that the reading project has created.
        """
        if writing == "apache":
            return self.apache(BY_QUIRE), self.quire(BY_QUIRE)
        return self.quire(BY_JAVA), self.apache(BY_JAVA)

    def side(self, name: str, path: str = BY_QUIRE) -> Streams:
        return self.apache(path) if name == "apache" else self.quire(path)

    def close(self) -> None:
        for side in self.opened:
            side.close()
