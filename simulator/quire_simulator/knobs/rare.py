"""Rare branches that a run takes on purpose, and the sizes of the simulated kernel's buffers.

Most rare branches need no switch, because a small limit takes them: a cache that evicts, a batch
that is cut early, a queue that is full, a time-out that strikes. These are the others.
"""

from __future__ import annotations

from quire_simulator.knobs.knob import Knob, RareBranch, limits

KNOBS = (
    # A compare-and-swap of a ledger or a value loses against somebody who wrote the same again.
    RareBranch("quire_simulator.metadata.store", "LOST_SWAPS", 0.0, 0.3),
    # A new connection breaks some milliseconds later, as if a proxy recycled it.
    RareBranch("quire_simulator.machine.network", "RECYCLED", 0.0, 0.05),
    # Received data is delivered in two pieces.
    RareBranch("quire_simulator.machine.network", "CUT_PROBABILITY", 0.1, 1.0),
    # A read that must not wait finds its data uncached.
    RareBranch(
        "quire_simulator.machine.disk", "COLD_READ_PROBABILITY", 0.1, 1.0,
        parameters=("quire_simulator.machine.disk:SimDisk.__init__.cold_read_probability",),
    ),
    # The log thread and the maintenance thread wake although nothing waits for them.
    RareBranch("quire_simulator.machine.worker", "SPURIOUS", 0.0, 0.5),
    # With less in flight, the entries of the workload `large` take minutes over a slow route, and
    # other answers may take longer than the shortest read timeout, so that retries pile up.
    *limits("quire_simulator.machine.transport", WINDOW_BYTES=128 * 1024, HIGH_WATER_BYTES=64),
    Knob(
        "quire_simulator.machine.transport", "MAX_READ_BYTES", 256,
        also=("quire_simulator.invariants.checker", "quire_simulator.invariants.memory",
              "quire_simulator.machine.network"),
    ),
)  # fmt: skip
