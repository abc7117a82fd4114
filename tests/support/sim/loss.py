"""An autorecovery process that repairs what bookies report as lost."""

from __future__ import annotations

import asyncio

from quire.client import Client
from quire.replication import Autorecovery, AutorecoverySettings
from quire_simulator.world.world import World


def heal(world: World, client: Client) -> asyncio.Task[None]:
    """Start an autorecovery process without the periodic check of all ledgers, and return its task.

    It repairs the ledgers that bookies have marked.
    """
    healer = Autorecovery(
        client,
        "healer",
        settings=AutorecoverySettings(
            backoff_s=1.0, poll_s=1.0, open_grace_s=5.0, ledger_check_interval_s=0.0
        ),
        clock=client.clock,
        rng=world.loop.derive("healer"),
    )
    return world.network.node("healer").node.create_task(healer.run())
