"""Limits of the metadata of a ledger that are so small that ledgers reach them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from quire.metadata.ledgers import size
from quire_simulator.plans.plans import RunPlan
from quire_simulator.plans.workloads import WORKLOADS

NODE_BYTES = {2: (560, 700), 3: (240, 320)}
"""Room for every new ledger of a run, and for one to three ensemble changes, by the format."""
CHANGES_RESERVED = 1
CLOSING_BYTES = 2_000


@contextmanager
def metadata_limits(plan: RunPlan) -> Iterator[None]:
    """Use small limits until the end of the block, if the workload wants them."""
    if not WORKLOADS[plan.workload].small_metadata:
        yield
        return
    chance = random.Random(f"{plan.seed}/limits {plan.workload}")
    small = {
        "NODE_BYTES_MAX": chance.randint(*NODE_BYTES[plan.metadata_version]),
        "ENSEMBLE_CHANGES_RESERVED": CHANGES_RESERVED,
        "CLOSING_BYTES": CLOSING_BYTES,
    }
    before = {name: getattr(size, name) for name in small}
    _set(small)
    try:
        yield
    finally:
        _set(before)


def _set(limits: Mapping[str, int]) -> None:
    for name, value in limits.items():
        setattr(size, name, value)
