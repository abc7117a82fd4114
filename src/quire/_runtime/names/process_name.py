"""The name of this process in locks, votes, marks and notes."""

from __future__ import annotations

import os
import socket


def process_name() -> str:
    """Return HOST.PID, the name of this process for locks, votes, marks and notes."""
    host = "".join(c if c.isascii() and (c.isalnum() or c in ".-_") else "-"
                   for c in socket.gethostname())  # fmt: skip
    return f"{host or 'host'}.{os.getpid()}"
