"""The framework of walkthroughs: how answers, errors and costs are compared with what is known."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from quire.client import Client
from quire.errors import QuireError
from quire_simulator.invariants.reports.comparison import Comparison, shortened
from quire_simulator.machine.transport import Traffic
from quire_simulator.world.stage import Stage

T = TypeVar("T")
Bounds = Traffic
EXTRA_EVERY_S = 0.02
"""Seconds for which a client may send and receive a little more: explicit LACs and probes."""
EXTRA_BYTES = 300
EXTRA_WRITES = 6

CALLS_OF_A_LOST_SWAP = 3
"""The largest number of calls of the metadata store because a compare-and-swap has lost: the client
reads what is there, because it must and because it watches, and writes again."""


class Walk:
    """One walkthrough of one client."""

    def __init__(self, stage: Stage, name: str, chance: random.Random) -> None:
        self.stage = stage
        self.name = name
        self.chance = chance
        self._reports = Comparison(stage.checker, "reports_are_true", name)
        self.clients: list[Client] = []
        self.client = self.another_client()

    def another_client(self, **settings: Any) -> Client:
        """Return one more client, which is closed at the end. Its costs are counted separately."""
        number = len(self.clients)
        config = replace(self.stage.plan.client_config, **settings)
        name = f"{self.name}.{number}"
        client = self.stage.world.client(name, config)
        self.stage.world.network.traffic[name] = Traffic()
        self.clients.append(client)
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.close()

    # -- comparisons --------------------------------------------------------------------------

    def fail(self, invariant: str, what: str) -> None:
        self.stage.checker.fail(invariant, f"{self.name}: {what}")

    def same(self, what: str, found: object, wanted: object) -> None:
        """Check that a report is equal to what is known."""
        self.stage.checker.checks += 1
        self._reports.equal(what, found, wanted)

    def between(self, what: str, found: float, least: float, most: float) -> None:
        """Check that a number is within bounds, both of which are possible."""
        self.stage.checker.checks += 1
        self._reports.within(what, least, found, most)

    def true(self, what: str, holds: object) -> None:
        """Check a statement about a report, and say `what` if it does not hold."""
        self.stage.checker.checks += 1
        self._reports.true(what, holds)

    async def refused(
        self,
        what: str,
        call: Awaitable[object],
        kind: type[QuireError],
        *named: object,
        known: bool = True,
        **fields: object,
    ) -> None:
        """Check that a call is refused with this kind of error.

        The message must name the subjects, and the error must have the fields. `known` is what the
        error should say of the outcome.
        """
        self.stage.checker.checks += 1
        try:
            answer = await call
        except kind as error:
            text = str(error)
            wrong = [f"does not name {one}" for one in named if str(one) not in text]
            if error.outcome_known != known:
                wrong.append(f"has outcome_known={error.outcome_known}")
            for field, value in fields.items():
                if getattr(error, field) != value:
                    wrong.append(f"has {field}={getattr(error, field)}")
            if wrong:
                told = f"the error of {what} {' and '.join(wrong)}: {error!r}"
                self.fail("errors_name_their_subject", told)
        except QuireError as error:
            told = f"{what} raised {error!r} instead of {kind.__name__}"
            self.fail("errors_name_their_subject", told)
        else:
            self._reports.fail(f"{what} returned {shortened(answer)}, but must be refused")

    # -- costs --------------------------------------------------------------------------------

    @contextmanager
    def costs(
        self, what: str, client: Client, *, calls: int, seconds: float = 5.0
    ) -> Iterator[None]:
        """Check that a block calls the metadata store at most so often, and ends in time.

        Small limits that were drawn as knobs may make a call slow, so the time is not checked then.
        Each compare-and-swap that was made to lose may cost `CALLS_OF_A_LOST_SWAP` more calls.
        """
        world, cluster = self.stage.world, self.stage.world.cluster
        name = f"{self.name}.{self.clients.index(client)}"
        before, begin_s = world.store_calls[name], world.loop.time()
        lost_swaps = cluster.lost_swaps
        yield
        calls += CALLS_OF_A_LOST_SWAP * (cluster.lost_swaps - lost_swaps)
        made, took_s = world.store_calls[name] - before, world.loop.time() - begin_s
        self.stage.checker.checks += 1
        if made > calls:
            told = f"{what} took {made} calls of the metadata store, instead of at most {calls}"
            self.fail("a_quiet_cluster_costs_little", told)
        if took_s > seconds and not self.stage.plan.knobs:
            told = f"{what} took {took_s:.3f} s, instead of at most {seconds:g} s"
            self.fail("a_quiet_cluster_costs_little", told)

    @contextmanager
    def traffic(self, what: str, client: Client, bounds: Callable[[], Bounds]) -> Iterator[None]:
        """Check that a block sends and receives at most so much.

        `bounds` is called afterwards. Nothing is checked if limits were drawn as knobs.
        """
        world = self.stage.world
        made = world.network.traffic[f"{self.name}.{self.clients.index(client)}"]
        before, begin_s = replace(made), world.loop.time()
        yield
        self.stage.checker.checks += 1
        most = bounds()
        # Clients with explicit LACs send one now and then, and probe connections that rest.
        rounds = (world.loop.time() - begin_s) / EXTRA_EVERY_S + 1
        for name, measured, limit, extra in (
            ("bytes sent", made.sent_bytes - before.sent_bytes, most.sent_bytes, EXTRA_BYTES),
            ("writes", made.writes - before.writes, most.writes, EXTRA_WRITES),
            ("bytes received", made.received_bytes - before.received_bytes, most.received_bytes,
             EXTRA_BYTES),
        ):  # fmt: skip
            bound = limit + rounds * extra
            if measured > bound and not self.stage.plan.knobs:
                told = f"{what} took {measured} {name}, instead of at most {bound:.0f}"
                self.fail("a_quiet_cluster_costs_little", told)

    async def in_time(self, what: str, call: Awaitable[T], seconds: float) -> T | None:
        """Return the result of a call that must end within this time."""
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError:
            self.fail("a_quiet_cluster_costs_little", f"{what} took more than {seconds:g} s")
            return None
