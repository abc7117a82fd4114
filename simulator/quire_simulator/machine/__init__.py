"""A simulated machine: time, network, disk and calendar, all determined by a seed.

    loop = SimulatedLoop(seed)
    trace = Trace(loop.time)
    network = SimNetwork(loop, loop.derive("network"), trace=trace)

    async def main() -> None:
        host = network.node("bookie-1")          # a quire.net.network.Network
        disk = SimDisk(loop.derive("disk"), "bookie-1")
        host.node.create_task(serve(host, disk))
        ...
        network.kill("bookie-1")                 # ends the process: connections, tasks, timers
        disk.crash()                             # the power fails: unsynced data may be lost
        restarted = network.node("bookie-1")     # a new node with the same name and disk

    loop.run(main())

Real clients, bookies and storage run unchanged. The same seed gives the same run and the same
`trace.hexdigest()` in any process, with any PYTHONHASHSEED.
"""

from __future__ import annotations

from quire_simulator.machine.clock import SimClock
from quire_simulator.machine.disk import PowerLossError, SimDisk, SimFile
from quire_simulator.machine.loop import (
    DeadlockError,
    LimitError,
    Node,
    SimulatedLoop,
    SimulationError,
    current_node,
)
from quire_simulator.machine.network import SimHost, SimNetwork, SimPort
from quire_simulator.machine.trace import Trace
from quire_simulator.machine.transport import SimTransport
from quire_simulator.machine.worker import SimWorker

__all__ = [
    "DeadlockError",
    "LimitError",
    "Node",
    "PowerLossError",
    "SimClock",
    "SimDisk",
    "SimFile",
    "SimHost",
    "SimNetwork",
    "SimPort",
    "SimTransport",
    "SimWorker",
    "SimulatedLoop",
    "SimulationError",
    "Trace",
    "current_node",
]
