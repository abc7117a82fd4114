"""A bookie is removed from a cluster shared with Apache's. Both sides read its entries."""

from __future__ import annotations

import socket

import pytest

from quire.replication import ReplicationLocks
from quire.replication.explain.explain import explain_ledger
from quire.replication.moves import decommission as jobs
from tests.support.interop.apache_cluster import Cluster
from tests.support.interop.apache_java import ApacheClient
from tests.support.interop.checks import check_closed
from tests.support.interop.quire_side import QuireClient, run
from tests.support.interop.sides import PLAIN, STRIPED, Client, ClientError, payloads

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SENT = payloads(150)


def named(client: QuireClient, ledger_id: int, bookie: str) -> bool:
    return any(bookie in one for one in client.describe(ledger_id).segments.values())


async def take_away(client: QuireClient, bookie: str) -> jobs.Decommissioned:
    aio = client.aio
    owner = socket.gethostname()
    locks = ReplicationLocks(aio.metadata, owner, aio.clock)
    return await jobs.decommission(aio, locks, bookie, owner=owner, now_ms=aio.clock.now_ms)


def test_quire_decommissions_apaches_bookie(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie is alive but does not know our orders, so it must be read-only.

    Its entries go to one of our bookies, and clients of both sides read them there.
    """
    monkeypatch.setattr(jobs, "DRAIN_WAIT_S", 1.0)
    monkeypatch.setattr(jobs, "RETIRE_WAIT_S", 1.0)
    (leaving, *_) = cluster.add_apache(3)
    cluster.wait_ready()
    ours, theirs = QuireClient(cluster.uri), ApacheClient(cluster.uri, "v3")
    clients: tuple[Client, Client] = (ours, theirs)
    closed = {}
    for client in clients:
        for shape in (PLAIN, STRIPED):
            writer = client.create(shape)
            writer.append_all(SENT)
            writer.close()
            closed[writer.ledger_id] = shape
    (taker,) = cluster.add_quire(1)
    cluster.wait_ready()
    with pytest.raises(ClientError, match="still accepts entries"):
        run(take_away(ours, leaving.id))
    cluster.read_only(leaving)
    before = [one for one in closed if named(ours, one, leaving.id)]
    assert before
    done = run(take_away(ours, leaving.id))
    assert done.drained
    assert done.cookie_removed
    assert not done.ended  # it is to be stopped by hand
    assert leaving.id not in cluster.children("cookies")
    leaving.kill()
    cluster.wait_gone(leaving)
    for ledger_id, shape in closed.items():
        assert not named(ours, ledger_id, leaving.id)
        check_closed(clients, ledger_id, SENT, shape)
        found = run(explain_ledger(ours.aio, ledger_id, deep=True))
        assert found.verdict.command == "", found.verdict
    assert {one for one in closed if named(ours, one, taker.id)} >= set(before)
    assert cluster.underreplicated() == []
    for client in clients:
        client.close()
