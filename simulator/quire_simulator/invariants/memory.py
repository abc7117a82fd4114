"""Check what bookies hold for their clients: answers that nobody reads, and partial requests."""

from __future__ import annotations

from quire.bookie.protocol.connection import Connection
from quire.bookie.protocol.connection_limits import FREE_PARTIAL_BYTES, HARD_FACTOR
from quire.bookie.server import Bookie
from quire_simulator.invariants.checker import Checker
from quire_simulator.invariants.history import PAYLOAD_MAX_BYTES
from quire_simulator.machine.transport import MAX_READ_BYTES
from quire_simulator.world.world import World

SMALL_BYTES = 64 * 1024
"""The bytes of answers to adds and of refusals, which take no part in the limits."""


class BookieMemory:
    """The bytes that were really held, whatever a bookie counts."""

    def __init__(self, world: World, checker: Checker) -> None:
        self._world = world
        self._checker = checker
        world.network.measures_backlog = True
        checker.sampled.append(self._look)

    def _look(self) -> None:
        for name, bookie in self._world.bookies.items():
            if bookie.recovered:
                self._answers(name, bookie)
                self._requests(name, bookie)

    def _answers(self, name: str, bookie: Bookie) -> None:
        config, network = bookie.config, self._world.network
        scale = max((facts.scale for facts in self._checker.ledgers.values()), default=1)
        # An answer is admitted if the limit is not reached before it.
        one = max(config.max_batch_read_bytes, 2 * scale * PAYLOAD_MAX_BYTES) + SMALL_BYTES
        whole = network.backlog_peak.pop(name, 0)
        if whole > config.max_answer_bytes + one:
            what = f"{name} held {whole} bytes of answers, limit {config.max_answer_bytes}"
            self._checker.fail("answers_are_bounded", what)
        single = network.single_backlog_peak.pop(name, 0)
        if single > config.max_unsent_bytes + one:
            what = f"{name} held {single} bytes of one client's answers"
            self._checker.fail("answers_are_bounded", f"{what}, limit {config.max_unsent_bytes}")

    def _requests(self, name: str, bookie: Bookie) -> None:
        config, connections = bookie.config, bookie.service.connections
        if len(connections) > config.max_connections:
            what = f"{name} has {len(connections)} connections, limit {config.max_connections}"
            self._checker.fail("connections_are_bounded", what)
        held = [
            one._frames.held_bytes
            for one in connections
            if isinstance(one, Connection) and one._frames.held_bytes > FREE_PARTIAL_BYTES
        ]
        limit = HARD_FACTOR * config.max_partial_bytes + MAX_READ_BYTES
        if len(held) == 1:  # One request may always arrive, whatever its size.
            limit = max(limit, config.max_frame_bytes + MAX_READ_BYTES)
        if sum(held) > limit:
            what = f"{name} holds {sum(held)} bytes of unfinished requests, limit {limit}"
            self._checker.fail("unfinished_requests_are_bounded", what)
