"""Check the answers of bookies that still load their logs.

Such a bookie may return entries that it has. For anything else it must neither deny that it exists
nor confirm an operation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from quire._runtime.tasks import TaskGroup
from quire.client import Client
from quire.errors import QuireError
from quire_simulator.actors.readers import read_range
from quire_simulator.invariants.checker import Checker, InvariantError
from quire_simulator.machine.transport import End
from quire_simulator.report.wire import Said, Wiretap
from quire_simulator.world.stage import Stage
from quire_simulator.world.world import PORT, World, bookie_id

GIVEN = ("entry", "entries")
DENIALS = ("NO_ENTRY to read", "NO_LEDGER to read")
REFUSALS = ("TOO_MANY_REQUESTS to ", "READ_ONLY to ", "IO_ERROR to force")
PROMISES = ("added", "force done", "write the LAC done")
HARMLESS = "bookie info done"
"""An answer that is not about a ledger. Clients use the request to probe connections."""
READERS = 3
"""The number of clients that read at the end of a run."""
READ_AGAIN_S = 0.2
SHARES = (1.0, 0.6)
"""The share of bookies that start at the same time at the end, in each round."""
ENDS = ("stop", "kill", "crash")
UNCACHED = 0.7
"""The probability that a directory of such a bookie lacks an index cache."""
Asked = tuple[int, int]
"""Ledger and first entry."""


class LoadingAnswers:
    """An observer of all requests to bookies and their answers."""

    def __init__(self, world: World, checker: Checker) -> None:
        self._world = world
        self._checker = checker
        self._tap = Wiretap(PORT)
        self._asked: dict[tuple[End, End], dict[tuple[int, int], bool]] = {}
        """For each connection, each requested ledger and first entry, and whether only fencing
        reads asked.
        """
        world.network.written = self._written

    def _written(self, local: End, remote: End, data: bytes) -> None:
        answer = local[1] == PORT
        asked = self._asked.setdefault((remote, local) if answer else (local, remote), {})
        for said in self._tap.heard(local, remote, data):
            place = said.ledger_id, said.first
            if not answer:
                asked[place] = said.verb.startswith("fence, ") and asked.get(place, True)
            elif (bookie := self._world.bookies.get(local[0])) is None:
                continue  # The bookie is ending.
            elif not bookie.service.loading:
                self._denied(local[0], said)
            elif wrong := _wrong(said, fenced=asked.get(place)):
                what = f"{local[0]}, which is loading its log: {_text(said)}{wrong.what}"
                self._checker.fail(wrong.invariant, what)

    def _denied(self, name: str, said: Said) -> None:
        facts = self._checker.ledgers.get(said.ledger_id)
        if said.verb not in DENIALS or facts is None or facts.deleted:
            return
        if name in self._world.destroyed:
            return
        if said.first in self._world.claims.of(said.ledger_id).get(bookie_id(name), ()):
            self._checker.fail("what_is_here_is_not_denied", f"{name}: {_text(said)}")
        if said.first in self._checker.lost_entries(name, said.ledger_id):
            self._checker.fail("what_is_lost_is_unknown", f"{name}: {_text(said)}")


def _text(said: Said) -> str:
    return f"{said.verb} (ledger {said.ledger_id}, entry {said.first})"


def _wrong(said: Said, *, fenced: bool | None) -> InvariantError | None:
    """Return the invariant that an answer breaks, or None.

    `fenced` tells whether only fencing reads asked for the entry. It is None if nobody asked for
    this entry, but for the last one.
    """
    if said.verb.startswith(REFUSALS) or said.verb == HARMLESS:
        return None
    if said.verb in PROMISES or fenced:
        why = ", in answer to a fencing read" if fenced else ""
        return InvariantError("what_is_not_loaded_takes_nothing", why)
    if said.verb not in GIVEN or fenced is None:
        return InvariantError(
            "what_is_not_loaded_is_unknown", ", as the last entry" if fenced is None else ""
        )
    return None


async def judge(stage: Stage) -> None:
    """Restart bookies slowly while clients read all ledgers repeatedly.

    The bookies stop, are killed or crash first. Every ledger is closed by now.
    """
    world, chance = stage.world, stage.world.loop.derive("early")
    clients = {
        f"early-{n}": world.client(f"early-{n}", stage.plan.client_config) for n in range(READERS)
    }
    for share in SHARES:
        struck = [name for name in world.bookies if chance.random() < share]
        for name in struck:
            await _end(world, name, chance)
        world.slow_starts.slow = True
        async with TaskGroup() as group:
            starting = [
                group.create_task(world.start(name, stage.plan.bookie_config)) for name in struck
            ]
            for name, client in clients.items():
                group.create_task(_read_meanwhile(stage, name, client, starting))
        world.slow_starts.slow = False
    for client in clients.values():
        await client.close()


async def _end(world: World, name: str, chance: random.Random) -> None:
    """End the bookie, and perhaps remove index caches."""
    match chance.choice(ENDS):
        case "stop":
            await world.stop(name)
        case "kill":
            world.kill(name)
        case "crash":
            world.crash(name)
    for disk in world.disks_of(name):
        if chance.random() < UNCACHED:
            world.index_caches.lose(disk)


async def _read_meanwhile(
    stage: Stage, name: str, client: Client, starting: Sequence[asyncio.Task[bool]]
) -> None:
    ledger_ids = [n for n in stage.world.ledger_ids.values() if n in stage.world.cluster.ledgers]
    stage.world.loop.derive(name).shuffle(ledger_ids)
    while not all(start.done() for start in starting):
        for ledger_id in ledger_ids:
            password = stage.checker.facts(ledger_id).password
            try:
                reader = await client.open_ledger(ledger_id, password=password)
                await read_range(stage, name, reader, 0)
            except QuireError as error:
                stage.failed(name, ledger_id, error)
                stage.denied(name, ledger_id, error)
        await asyncio.sleep(READ_AGAIN_S)
