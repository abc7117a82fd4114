"""Bounds for what one recovery may cost, whatever fails meanwhile."""

from __future__ import annotations

from quire.client import Client
from quire.client.cluster.pool import REST_S
from quire_simulator.plans.faults import LAG_KINDS
from quire_simulator.world.stage import Stage

WRITES = 2
"""The number of writes to the metadata of a ledger by a recovery that nobody disturbs.

It stores that the ledger is in recovery, and then the close. Each change that another client makes
meanwhile may cost one more attempt.
"""


class CostOfRecovery:
    """The costs of a recovery, counted from its creation until `check`."""

    def __init__(self, stage: Stage, name: str, client: Client, ledger_id: int) -> None:
        self._stage = stage
        self._name = name
        self._ledger_id = ledger_id
        self._client = client
        self._begin_s = stage.world.loop.time()
        self._before = self._now()

    def _now(self) -> tuple[int, int, int]:
        facts = self._stage.checker.facts(self._ledger_id)
        by_others = facts.changes - facts.changed_by[self._name] + facts.rewritten
        ensembles = self._client._pool.counters.ensemble_changes
        return self._stage.world.ledger_writes[self._name], by_others, ensembles

    def check(self) -> None:
        """Check that the recovery did not cost more than its bounds.

        Every private change of its ensemble replaces a bookie that has failed, and that bookie is
        not chosen again for `REST_S`. So each bookie is replaced once at first, and then at most
        once in that time.
        """
        if self._stage.checker.facts(self._ledger_id).recreated:
            return
        writes, by_others, ensembles = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )
        # A server that lags may show a version that others had replaced before this recovery began.
        lags = any(fault.kind in LAG_KINDS for fault in self._stage.plan.schedule)
        if writes > WRITES + by_others + lags:
            self._fail(f"{writes} writes to its metadata, with {by_others} changes by others")
        took_s = self._stage.world.loop.time() - self._begin_s
        if ensembles > self._stage.plan.bookies * (1 + took_s / REST_S):
            self._fail(f"{ensembles} changes of its ensemble in {took_s:.2f} s")

    def _fail(self, what: str) -> None:
        what = f"a recovery of ledger {self._ledger_id} by {self._name} made {what}"
        self._stage.checker.fail("calls_are_bounded", what)
