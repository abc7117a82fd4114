"""The metadata driver that keeps a cluster in one process, for tests and for the simulator.

Importing this package makes `open_metadata("memory://NAME")` work in this process. Read `cluster`,
then `store`, then `nodes` and `tree`.
"""

from __future__ import annotations

from quire.metadata import register_driver
from quire_simulator.metadata.cluster import MemoryCluster
from quire_simulator.metadata.store import MemoryStore, forget_memory, open_memory

__all__ = ["MemoryCluster", "MemoryStore", "forget_memory", "open_memory"]

register_driver("memory", open_memory)
