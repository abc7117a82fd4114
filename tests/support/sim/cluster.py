"""The names of simulated bookies, the number of seeds, and payloads that tests share."""

from __future__ import annotations

import os

SEEDS = int(os.environ.get("QUIRE_SIM_SEEDS", "5"))


BOOKIES = ("bookie-0", "bookie-1", "bookie-2")


def payload(entry_id: int) -> bytes:
    return b"%d." % entry_id * (1 + entry_id % 40)
