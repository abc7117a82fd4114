"""Bookies that take no more adds still serve reads, and fence: theirs and ours."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.interop.apache_cluster import Cluster
from tests.interop.apache_java import ApacheClient
from tests.interop.checks import check_closed, refused
from tests.interop.quire_side import QuireClient
from tests.interop.sides import PLAIN, Client, Code, Shape, payloads

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["quire", "sorted", "db"])
def test_a_member_becomes_read_only(cluster: Cluster, kind: str) -> None:
    """What it holds is read and recovered; writers and new ledgers go elsewhere."""

    def add(count: int) -> None:
        if kind == "quire":
            cluster.add_quire(count)
        else:
            cluster.add_apache(count, kind)
        cluster.wait_ready()

    add(4)
    java, ours = ApacheClient(cluster.uri, "v3"), QuireClient(cluster.uri)
    clients: list[Client] = [java, ApacheClient(cluster.uri, "v2"), ours]
    sent = payloads(100)
    everywhere = Shape(4, 4, 3)
    writers = []
    for client in clients:
        for _ in range(2):
            writer = client.create(everywhere)
            writer.append_all(sent)
            writer.abandon()
            writers.append(writer)

    add(1)  # Apache's writer, and its recovery, need one to take the place of another
    now = cluster.read_only(cluster.bookies[0])
    said = cluster.shell("listbookies", "-ro")
    assert re.findall(r"BookieID:(\S+),", said) == [now.id]
    for client in clients:
        refused(partial(client.create, Shape(5, 5, 4)), Code.NOT_ENOUGH_BOOKIES)
        writer = client.create(PLAIN)
        assert now.id not in client.describe(writer.ledger_id).last_ensemble
        writer.append_all(sent)
        writer.close()
    # It is fenced and read like the others, by either client.
    for number, writer in enumerate(writers):
        by = clients[-1] if number % 2 else clients[0]
        by.open(writer.ledger_id, recover=True).close()
        check_closed(clients, writer.ledger_id, sent, everywhere)
    # And it alone holds everything.
    for bookie in cluster.bookies[1:]:
        bookie.kill()
    for client in clients:
        reader = client.open(writers[0].ledger_id)
        assert reader.read(0, 99) == sent
        reader.close()
        client.close()
