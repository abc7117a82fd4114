"""The probe of how the address of a bookie that is not registered answers to a connection.

A bookie that is not registered has stopped, or is cut off from the metadata store. Whether
something listens at its former address tells which.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from enum import StrEnum
from typing import cast

from quire.net.network import Network


class ProbeResult(StrEnum):
    """The answer of an address to a new connection."""

    REFUSED = "refused"
    """Nothing listens there."""
    ACCEPTED = "accepted"
    """Something listens there. It need not be the bookie."""
    SILENT = "silent"
    """There is no answer: the machine is off, or the network is cut."""


class _Client(asyncio.Protocol):
    """The client side of a connection that sends nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


async def probe_port(
    network: Network, host: str, port: int, timeout_s: float
) -> ProbeResult | None:
    """Return how an address answers to a new connection within `timeout_s`.

    Nothing is sent, and the connection is closed at once. The result is None if the name of the
    host is unknown. Cancel-safe.
    """
    try:
        async with asyncio.timeout(timeout_s):
            client = cast(_Client, await network.connect(host, port, _Client))
    except socket.gaierror:
        return None
    except OSError as error:  # or its subclass TimeoutError
        # If a host name has several addresses, the error names the reason for each of them.
        reasons = set(re.findall(r"\[Errno (\d+)\]", str(error)))
        refused = isinstance(error, ConnectionRefusedError) or reasons == {str(errno.ECONNREFUSED)}
        return ProbeResult.REFUSED if refused else ProbeResult.SILENT
    client.transport.close()
    return ProbeResult.ACCEPTED
