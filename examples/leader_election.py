"""Several copies of a service, of which one leads: leader election with a state machine.

    python leader_election.py NAME

Start it in several terminals, with different names. One copy leads and counts; the others follow.
Kill the leader, or stop it with Ctrl-Z: another copy takes over and counts on from the last durable
number. A stopped leader that wakes up again finds out that it was replaced, and follows.
QUIRE_METADATA names the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys

import quire
from quire.errors import MetadataUnavailableError, QuireError, StreamFencedError

PLACE = ("/election", "counter")
WORK_S = 0.5
PATIENCE_S = 3.0
"""How long followers wait for a sign of the leader. If this is too short, leaders change more
often than necessary. The state is never in danger, because fencing decides who leads, not a
clock."""


class Counter:
    """The replicated state. `apply` uses nothing but the command, so that all copies agree."""

    def __init__(self) -> None:
        self.leader, self.count = "nobody", 0

    def apply(self, command: bytes) -> int:
        self.leader = command.decode()
        self.count += 1
        return self.count

    def snapshot(self) -> bytes:
        return json.dumps([self.leader, self.count]).encode()

    def restore(self, state: bytes) -> None:
        self.leader, self.count = json.loads(state)


async def follow(client: quire.Client) -> None:
    """Return when the leader has been silent for too long."""
    async with client.state_machine(*PLACE, Counter(), follow=True, create=True) as replica:
        print("following", flush=True)
        while True:
            # Copies wait for different times, so that two of them seldom try at once.
            patience_s = PATIENCE_S * random.uniform(1, 2)
            try:
                async with asyncio.timeout(patience_s):
                    await replica.wait_applied(replica.applied + 1)
            except TimeoutError:
                return


async def lead(client: quire.Client, name: str) -> None:
    """Lead until another copy takes over, which raises StreamFencedError."""
    counter = Counter()
    async with client.state_machine(*PLACE, counter, snapshot_every=1000) as leader:
        print(f"leading from {counter.count}", flush=True)
        while True:
            count = await leader.execute(name.encode())  # durable, and applied, when it returns
            print(f"count {count}", flush=True)
            await asyncio.sleep(WORK_S)


async def main(name: str) -> None:
    while True:
        try:
            async with quire.connect(os.environ["QUIRE_METADATA"]) as client:
                await follow(client)
                await lead(client, name)
        except StreamFencedError:
            print("replaced", flush=True)
        except MetadataUnavailableError as error:
            print(f"trying again: {error}", file=sys.stderr)
            await asyncio.sleep(WORK_S)
        except QuireError as error:
            # The last command may be in the log or not. The next leader knows.
            print(f"following again: {error}", file=sys.stderr)
            await asyncio.sleep(WORK_S)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except KeyboardInterrupt:
        pass
