"""A raw connection to a bookie process, for tests of the wire protocol."""

from __future__ import annotations

import socket

from quire.testing.cluster import LocalCluster

ANSWER_S = 20.0


class Peer:
    """A raw connection to the first bookie of a cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.socket = socket.create_connection(("127.0.0.1", cluster.bookies[0].port))
        self.socket.settimeout(ANSWER_S)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except ConnectionError:
            pass  # The bookie closed the connection while we were sending. `receive` reports it.

    def receive(self) -> bytes:
        """Return one frame with its length, or b"" if the connection was closed."""
        head = self._exactly(4)
        if not head:
            return b""
        return head + self._exactly(int.from_bytes(head, "big"))

    def _exactly(self, size: int) -> bytes:
        data = b""
        try:
            while len(data) < size:
                more = self.socket.recv(size - len(data))
                if not more:
                    return b""
                data += more
        except ConnectionError:
            return b""
        return data
