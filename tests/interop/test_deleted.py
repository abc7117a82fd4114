"""Our bookies free what either client deletes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.interop.apache_cluster import Cluster
from tests.support.interop.apache_java import ApacheClient
from tests.support.interop.checks import check_closed
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import PLAIN, Client, ClientError, Code, payloads
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SENT = payloads(50)


def written(client: Client) -> int:
    writer = client.create()
    writer.append_all(SENT)
    writer.close()
    return writer.ledger_id


def freed(look: Callable[[], list[int]]) -> bool:
    """Return whether a bookie reports that it has nothing of a ledger."""
    try:
        return not look()
    except ClientError as error:
        return error.code in {Code.NO_LEDGER_ON_BOOKIE, Code.NO_SUCH_ENTRY}


def test_a_deletion_frees_space_on_both_kinds_of_bookies(cluster: Cluster) -> None:
    cluster.add_quire(3, gc_interval_s=1)
    cluster.wait_ready()
    java, ours = ApacheClient(cluster.uri, "v3"), QuireClient(cluster.uri)
    for deleting in (java, ours):
        gone, kept = [[written(client) for client in (java, ours)] for _ in range(2)]
        left_open = java.create()
        left_open.append_all(SENT[:10])
        for ledger_id in gone:
            for bookie in cluster.bookies:
                assert java.entries_of(bookie.id, ledger_id, 50) == list(range(50))
                assert ours.entries_of(bookie.id, ledger_id) == list(range(50))
            deleting.delete(ledger_id)
        for ledger_id in gone:
            for bookie in cluster.bookies:
                look = partial(ours.entries_of, bookie.id, ledger_id)
                wait_for(partial(freed, look), f"{bookie.id} frees ledger {ledger_id}")
                assert freed(partial(java.entries_of, bookie.id, ledger_id, 50))
        for ledger_id in kept:
            check_closed([java, ours], ledger_id, SENT, PLAIN)
        left_open.append_all(SENT[10:])
        left_open.close()
        check_closed([java, ours], left_open.ledger_id, SENT, PLAIN)
    java.close()
    ours.close()
