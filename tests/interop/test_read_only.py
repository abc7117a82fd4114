"""Read-only bookies of both kinds still serve reads and fence."""

from __future__ import annotations

import json
import re
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from quire.testing.cluster import free_ports
from tests.support.interop.apache_cluster import LOOPBACK, Cluster
from tests.support.interop.apache_java import ApacheClient
from tests.support.interop.checks import check_closed, refused
from tests.support.interop.quire_side import QuireClient
from tests.support.interop.sides import PLAIN, Client, ClientError, Code, Shape, Writer, payloads
from tests.support.processes.http import TOKEN
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["quire", "sorted", "db"])
def test_a_read_only_member_is_read_and_replaced(cluster: Cluster, kind: str) -> None:
    """Its entries are read and recovered. Writers and new ledgers use other bookies."""

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


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_a_bookie_that_accepts_adds_again_is_used(
    cluster: Cluster, version: str, tmp_path: Path
) -> None:
    """A client finds it that knew it before and now connects for the first time."""
    (port,) = free_ports(1)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    http = ["--http", f"{LOOPBACK}:{port}", "--http-token-file", str(token)]
    (bookie,) = cluster.add_quire(1, http)
    cluster.wait_ready()
    client = ApacheClient(cluster.uri, version)
    alone = Shape(1, 1, 1)
    for held in (True, False):
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{port}/api/v1/bookie/state/readonly",
            json.dumps({"readOnly": held}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=10):
            pass
        was, now = ("available", "available/readonly")[:: 1 if held else -1]
        wait_for(lambda was=was: bookie.id not in cluster.children(was), f"it leaves {was}")
        assert bookie.id in cluster.children(now)

    def taken() -> Writer | None:
        with suppress(ClientError):
            return client.create(alone)
        return None

    writer = wait_for(taken, "Apache's client takes it for a new ledger")
    sent = payloads(10)
    writer.append_all(sent)
    writer.close()
    check_closed([client], writer.ledger_id, sent, alone)
    client.close()
